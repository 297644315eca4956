// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arm64 parts of QEMU's log.

use super::{Cause, Interrupt, hex};
use tramplab_protocol::trace::Kind;

/// The bytes of an instruction, and its text.
pub fn instruction(rest: &str) -> (u64, &str) {
    // `d503201f  nop`
    let (word, text) = rest.split_once(' ').unwrap_or((rest, ""));
    (word.len() as u64 / 2, text.trim())
}

/// The kind of a branch, with its target if the instruction gives it.
pub fn branch(text: &str) -> Option<(Kind, Option<u64>)> {
    let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let target = || operands.rsplit('#').next().map(hex);
    Some(match name {
        "b" => (Kind::Jump, target()),
        "bl" => (Kind::Call, target()),
        "cbz" | "cbnz" | "tbz" | "tbnz" => (Kind::Cond, target()),
        _ if name.starts_with("b.") || name.starts_with("bc.") => (Kind::Cond, target()),
        _ if name.starts_with("blr") => (Kind::IndCall, None),
        "br" | "braa" | "brab" | "braaz" | "brabz" => (Kind::IndJump, None),
        "ret" | "retaa" | "retab" => (Kind::Ret, None),
        "eret" | "eretaa" | "eretab" => (Kind::Iret, None),
        "svc" => (Kind::Syscall, None),
        _ => return None,
    })
}

/// A reader of the log's lines about interrupts and exceptions.
#[derive(Default)]
pub struct Interrupts {
    /// The cause of the exception that the following lines describe.
    cause: Option<Cause>,
}

impl Interrupts {
    /// A block starts.
    pub fn block(&mut self) {
        // Firmware calls have no further lines.
        self.cause = None;
    }

    /// ```text
    /// Taking exception 4 [Data Abort] on CPU 0
    /// ...with ESR 0x25/0x96000005
    /// ...with ELR 0x40200cd0
    /// ```
    pub fn line(&mut self, line: &str) -> Option<Interrupt> {
        if let Some(exception) = line.strip_prefix("Taking exception ") {
            self.cause = Some(match exception.split(' ').next().unwrap() {
                "5" => Cause::Device,
                _ => Cause::Fault,
            });
        } else if let Some(class) = line.strip_prefix("...with ESR ") {
            // A device has no class: the line belongs to an exception before.
            match (self.cause, class.split('/').next().unwrap()) {
                (Some(Cause::Device), _) => {}
                // A system call is the branch of its block.
                (_, "0x15") => self.cause = None,
                // `brk` gives its own address.
                (_, "0x3c") => self.cause = Some(Cause::Instruction),
                // A single step, from user space or from the kernel.
                (_, "0x32" | "0x33") => self.cause = Some(Cause::Trap),
                _ => {}
            }
        } else if let Some(at) = line.strip_prefix("...with ELR ") {
            return self.cause.take().map(|cause| Interrupt { cause, at: hex(at) });
        }
        None
    }
}

#[test]
fn reads_kinds_of_branches() {
    for (text, expected) in [
        ("b        #0x40200160", Some((Kind::Jump, Some(0x40200160)))),
        ("bl       #0x402010bc", Some((Kind::Call, Some(0x402010bc)))),
        ("b.ne     #0x40200130", Some((Kind::Cond, Some(0x40200130)))),
        ("bc.eq    #0x4020014c", Some((Kind::Cond, Some(0x4020014c)))),
        ("cbz      x1, #0x4020013c", Some((Kind::Cond, Some(0x4020013c)))),
        ("tbz      x1, #0x20, #0x4020013c", Some((Kind::Cond, Some(0x4020013c)))),
        ("br       x9", Some((Kind::IndJump, None))),
        ("braa     x9, x10", Some((Kind::IndJump, None))),
        ("blr      x9", Some((Kind::IndCall, None))),
        ("blraaz   x9", Some((Kind::IndCall, None))),
        ("ret      ", Some((Kind::Ret, None))),
        ("retab", Some((Kind::Ret, None))),
        ("eret", Some((Kind::Iret, None))),
        ("svc      #0", Some((Kind::Syscall, None))),
        ("hvc      #0", None),
        ("brk      #7", None),
        ("bti      c", None),
        ("bic      x0, x0, #1", None),
    ] {
        assert_eq!(branch(text), expected, "{text}");
    }
}

#[test]
fn reads_interrupts() {
    let told = |lines: &str| {
        let mut interrupts = Interrupts::default();
        lines.lines().filter_map(|line| interrupts.line(line)).collect::<Vec<_>>()
    };
    for (lines, expected) in [
        (
            "Taking exception 4 [Data Abort] on CPU 0\n...from EL1 to EL1\n...with ESR \
             0x25/0x96000005\n\
             ...with FAR 0x4000000000\n...with SPSR 0x3c5\n...with ELR 0x40200cd0\n...to EL1 PC \
             0x40210200 PSTATE 0x23c5",
            Some((Cause::Fault, 0x40200cd0)),
        ),
        (
            "Taking exception 5 [IRQ] on CPU 0\n...from EL1 to EL1\n...with ESR 0x15/0x56000000\n\
             ...with SPSR 0x345\n...with ELR 0x40200f50",
            Some((Cause::Device, 0x40200f50)),
        ),
        (
            "Taking exception 1 [Undefined Instruction] on CPU 0\n...with ESR \
             0x33/0xcf000022\n...with ELR 0x40200e1c",
            Some((Cause::Trap, 0x40200e1c)),
        ),
        (
            "Taking exception 7 [Breakpoint Instruction] on CPU 0\n...with ESR \
             0x3c/0xf2000007\n...with ELR 0x40200d10",
            Some((Cause::Instruction, 0x40200d10)),
        ),
        (
            "Taking exception 2 [SVC] on CPU 0\n...with ESR 0x15/0x56000001\n...with ELR \
             0x40200ef8",
            None,
        ),
        (
            "Taking exception 11 [Hypervisor Call] on CPU 0\n...from EL1 to EL2\n...with ESR \
             0x16/0x5a000000\n\
             ...handled as PSCI call",
            None,
        ),
    ] {
        let found: Vec<_> = told(lines).iter().map(|told| (told.cause, told.at)).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{lines}");
    }
}
