// SPDX-License-Identifier: MIT OR Apache-2.0
//! The x86-64 parts of QEMU's log.

use super::{Cause, Interrupt, hex};
use tramplab_protocol::trace::Kind;

/// The bytes of an instruction and its text. A long instruction's second line has further bytes and
/// no text.
pub fn instruction(rest: &str) -> (u64, &str) {
    // Eight bytes per line.
    let (bytes, text) = rest.split_at(rest.len().min(24));
    (bytes.split_whitespace().count() as u64, text.trim())
}

/// The kind of a branch, with its target if the instruction gives it. AT&T syntax.
pub fn branch(text: &str) -> Option<(Kind, Option<u64>)> {
    let mut words =
        text.split_whitespace().skip_while(|word| ["notrack", "bnd", "rep", "repz"].contains(word));
    let (name, operand) = (words.next()?, words.next().unwrap_or_default());
    let either = |direct, indirect| match operand.strip_prefix('*') {
        Some(_) => (indirect, None),
        None => (direct, Some(hex(operand))),
    };
    Some(match name {
        "jmp" | "jmpq" => either(Kind::Jump, Kind::IndJump),
        "call" | "callq" => either(Kind::Call, Kind::IndCall),
        "ljmp" | "ljmpq" => (Kind::IndJump, None),
        "lcall" | "lcallq" => (Kind::IndCall, None),
        "ret" | "retq" | "lret" | "lretq" | "retf" | "retfq" => (Kind::Ret, None),
        "iret" | "iretl" | "iretd" | "iretq" => (Kind::Iret, None),
        "syscall" | "sysenter" => (Kind::Syscall, None),
        "sysret" | "sysretl" | "sysretq" | "sysexit" => (Kind::Sysret, None),
        _ if name.starts_with('j') || name.starts_with("loop") => (Kind::Cond, Some(hex(operand))),
        _ => return None,
    })
}

/// A reader of the log's lines about interrupts and exceptions.
#[derive(Default)]
pub struct Interrupts {
    device: bool,
}

impl Interrupts {
    /// A block starts.
    pub fn block(&mut self) {
        // In real mode an interrupt has no further line.
        self.device = false;
    }

    pub fn line(&mut self, line: &str) -> Option<Interrupt> {
        self.device |= line.starts_with("Servicing hardware INT");
        // `v=0e e=0002 i=0 cpl=0 IP=0010:ffffffff81000000 pc=…`
        let (_, rest) = line.split_once(": v=")?;
        let field = |name: &str| rest.split(' ').find_map(|word| word.strip_prefix(name)).unwrap();
        let cause = match (std::mem::take(&mut self.device), field("i="), &rest[..2]) {
            (true, ..) => Cause::Device,
            (_, "1", _) => Cause::Instruction,
            (_, _, "01") => Cause::Trap,
            _ => Cause::Fault,
        };
        let at = hex(field("IP=").split_once(':').unwrap().1);
        Some(Interrupt { cause, at })
    }
}

#[test]
fn reads_kinds_of_branches() {
    for (text, expected) in [
        ("je       0x10016f", Some((Kind::Cond, Some(0x10016f)))),
        ("loop     0x10", Some((Kind::Cond, Some(0x10)))),
        ("jmpq     *%rax", Some((Kind::IndJump, None))),
        ("notrack jmpq *%rax", Some((Kind::IndJump, None))),
        ("callq    0x20", Some((Kind::Call, Some(0x20)))),
        ("callq    *8(%rip)", Some((Kind::IndCall, None))),
        ("repz retq", Some((Kind::Ret, None))),
        ("retq     $8", Some((Kind::Ret, None))),
        ("rep movsb (%rsi), (%rdi)", None),
        ("nop", None),
    ] {
        assert_eq!(branch(text), expected, "{text}");
    }
}
