// SPDX-License-Identifier: GPL-2.0-or-later
//! Flows as text, for the tests of profiler and recorder.

use super::{Block, Tail};
use tramplab_protocol::trace::Kind;

/// The kernel's half of the address space, where the tests' short addresses lie.
pub const K: u64 = 1 << 63;

pub const NEXT: Tail = Tail::Next { may_fault: false };
pub const RET: Tail = Tail::Indirect { kind: Kind::Ret };
pub const IRET: Tail = Tail::Indirect { kind: Kind::Iret };

pub enum Step {
    /// A block runs to its last instruction.
    Whole(Block),
    /// The block is left at this instruction.
    Left(Block, u64),
    Told(u64, u64),
    /// A switch from one thread to another, in the block that just started.
    Switch(u32, u32),
}

pub fn block(start: u64, last: u64, tail: Tail) -> Block {
    Block::new((start..=last).step_by(4).collect(), last + 4, tail)
}

/// A kernel block of three instructions: at 0x100, 0x104, 0x108.
pub fn at(start: u64, tail: Tail) -> Block {
    block(K + start, K + start + 8, tail)
}

pub fn call(target: u64) -> Tail {
    Tail::Direct { kind: Kind::Call, target: K + target }
}

/// Reads steps, in hexadecimal:
///
/// - `100 call 200`: a block of three instructions that ends in a call. Without a word it falls
///   through. `100-100` has one instruction, `u100` is in user space, `whole 100` notes nothing.
/// - `100 ret left 104`: the block is left at this instruction.
/// - `told 10c e100`: QEMU reports an interrupt.
/// - `switch 1 2`: a switch from one thread to another.
pub fn steps(text: &str) -> Vec<Step> {
    text.split(", ").map(|step| read(&step.split(' ').collect::<Vec<_>>())).collect()
}

fn read(words: &[&str]) -> Step {
    match words {
        ["told", from, to] => Step::Told(address(from), address(to)),
        ["switch", from, to] => Step::Switch(from.parse().unwrap(), to.parse().unwrap()),
        ["whole", block @ ..] => Step::Whole(read_block(block).surely_whole()),
        [block @ .., "left", at] => Step::Left(read_block(block), address(at)),
        block => Step::Whole(read_block(block)),
    }
}

fn read_block(words: &[&str]) -> Block {
    let (start, last) = match words[0].split_once('-') {
        Some((start, last)) => (address(start), address(last)),
        None => (address(words[0]), address(words[0]) + 8),
    };
    let tail = match words[1..] {
        [] => NEXT,
        ["may_fault"] => Tail::Next { may_fault: true },
        ["trap"] => Tail::Trap,
        [word] => Tail::Indirect { kind: kind(word) },
        ["cond", target] => Tail::Cond { target: address(target) },
        [word, target] => Tail::Direct { kind: kind(word), target: address(target) },
        _ => panic!("{words:?}"),
    };
    block(start, last, tail)
}

fn address(text: &str) -> u64 {
    let hex = |digits| u64::from_str_radix(digits, 16).unwrap();
    text.strip_prefix('u').map_or_else(|| K + hex(text), hex)
}

fn kind(word: &str) -> Kind {
    Kind::ALL.into_iter().find(|kind| kind.to_string() == word).expect(word)
}
