// SPDX-License-Identifier: GPL-2.0-or-later
//! Derives the transfers between the blocks that a vCPU runs. Pure: independent of QEMU.
//!
//! When a block starts, three facts about the block before decide how control came here: which
//! block it was, its last instruction that began, and the transfer it ends in. A branch was taken
//! only if its instruction began and the new block lies where it can lead.
//!
//! QEMU before 10.2 does not report interrupts and exceptions. They show as a block that starts
//! where the last one cannot lead. Two cases are then undecidable, see `docs/branch-records.md`: an
//! interrupt right after a return, an indirect or a far transfer is taken for its target (the host
//! knows handlers by name); and whether an instruction at a block's end faulted or was interrupted
//! afterwards, until the handler returns.

#[cfg(test)]
pub mod steps;

use tramplab_protocol::{estimate::Event, trace::Kind};

/// The transfer that a block ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// No branch: the emulator ended the block.
    Next { may_fault: bool },
    /// Conditional.
    Cond { target: u64 },
    /// Always taken, to a known address.
    Direct { kind: Kind, target: u64 },
    /// Always taken, to an address known at run time.
    Indirect { kind: Kind },
    /// Raises an exception by definition (`ud2`).
    Trap,
}

/// A translated block.
///
/// The fields read at every run of the block fit in one cache line of the host and need few
/// decisions. With the plugin armed, most of the time goes there.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Block {
    pub start: u64,
    /// Address of the last instruction.
    pub last: u64,
    /// The address after the block's end, if control can fall through; else [`NOWHERE`].
    falls_to: u64,
    /// The target of its branch, or [`NOWHERE`].
    leads_to: u64,
    /// Kind of the branch, if it has one.
    kind: Kind,
    /// The whole block, with the branch.
    pub stretch: Stretch,
    /// True if its branch may lead to any address and does nothing else. A return from an interrupt
    /// gets a closer look.
    leads_anywhere: bool,
    /// True if nothing in it can fail. Such a block runs to its end whenever it starts, and does
    /// not note the instructions that begin.
    whole: bool,
    /// Number of instructions.
    length: u32,
    rest: Box<Rest>,
}

#[derive(Clone, Debug)]
struct Rest {
    /// One past the last instruction.
    end: u64,
    tail: Tail,
    /// Addresses of all instructions, ascending.
    instructions: Box<[u64]>,
    /// Instructions that cost by themselves, by their number. Only where a CPU is modelled.
    costly: Box<[(u32, Event)]>,
}

/// An address where no block starts.
const NOWHERE: u64 = u64::MAX;

/// How control came to a block, if no closer look is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// None if there was no branch.
    pub branch: Option<Kind>,
    /// Instructions of the block before, all of which began.
    pub instructions: u32,
}

/// A number of instructions, with the kind of the branch that ends them in the upper bits, so that
/// one store writes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch(u64);

impl Stretch {
    const KIND: u32 = 56;

    pub const fn new(kind: Option<Kind>, instructions: u32) -> Stretch {
        let kind = if let Some(kind) = kind { kind as u64 + 1 } else { 0 };
        Stretch(kind << Stretch::KIND | instructions as u64)
    }

    pub fn kind(self) -> Option<Kind> {
        Kind::from_byte((self.0 >> Stretch::KIND).checked_sub(1)? as u8)
    }

    /// The number of instructions, at most the largest that a record holds.
    pub fn instructions(self) -> u32 {
        u32::try_from(self.0 & ((1 << Stretch::KIND) - 1)).unwrap_or(u32::MAX)
    }

    /// Prepends instructions. The number does not overflow in a lifetime.
    pub fn behind(self, instructions: u64) -> Stretch {
        Stretch(self.0.wrapping_add(instructions))
    }
}

/// How control left a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    AtItsEnd,
    /// After this instruction, a device access that the emulator did outside the block.
    After(u64),
    /// At this instruction, which the next block repeats.
    Again(u64),
    /// At this instruction, which raised an exception.
    Raised(u64),
}

impl Block {
    /// A block of at least one instruction, any of which may be the last that begins.
    pub fn new(instructions: Box<[u64]>, end: u64, tail: Tail) -> Block {
        let (start, last) = (instructions[0], instructions[instructions.len() - 1]);
        let falls_to =
            if matches!(tail, Tail::Next { .. } | Tail::Cond { .. }) { end } else { NOWHERE };
        let (kind, leads_to) = match tail {
            Tail::Cond { target } => (Kind::Cond, target),
            Tail::Direct { kind, target } => (kind, target),
            Tail::Indirect { kind } => (kind, NOWHERE),
            Tail::Next { .. } | Tail::Trap => (Kind::Interrupt, NOWHERE),
        };
        Block {
            start,
            last,
            falls_to,
            leads_to,
            kind,
            stretch: Stretch::new(Some(kind), instructions.len() as u32),
            leads_anywhere: matches!(tail, Tail::Indirect { .. }) && kind != Kind::Iret,
            whole: false,
            length: instructions.len() as u32,
            rest: Box::new(Rest { end, tail, instructions, costly: Box::default() }),
        }
    }

    /// Marks the block as one in which nothing can fail.
    pub fn surely_whole(self) -> Block {
        Block { whole: true, ..self }
    }

    pub fn with_costly(mut self, costly: Box<[(u32, Event)]>) -> Block {
        self.rest.costly = costly;
        self
    }

    /// The instructions that cost by themselves among the first `instructions`.
    pub fn costly(&self, instructions: u32) -> impl Iterator<Item = Event> + '_ {
        let costly = self.rest.costly.iter().filter(move |&&(at, _)| at < instructions);
        costly.map(|&(_, event)| event)
    }

    /// The last instruction that began. `noted` was noted by this block, or by an earlier one if
    /// this one notes nothing.
    pub fn begun(&self, noted: u64) -> u64 {
        if self.whole { self.last } else { noted }
    }

    pub fn end(&self) -> u64 {
        self.rest.end
    }

    pub fn tail(&self) -> Tail {
        self.rest.tail
    }

    /// How control came from here to `start`, if the block ran to its end and its last instruction
    /// leads there. This is nearly always the case.
    #[inline]
    pub fn plainly(&self, begun: impl Fn() -> u64, start: u64) -> Option<Plain> {
        let branch = match start {
            _ if !self.whole && begun() != self.last => return None,
            _ if start == self.falls_to => None,
            _ if start == self.leads_to || self.leads_anywhere => Some(self.kind),
            _ => return None,
        };
        Some(Plain { branch, instructions: self.length })
    }

    /// `begun` is the last instruction that began, `start` the address of the next block.
    pub fn left(&self, begun: u64, start: u64) -> Left {
        let begun = self.begun(begun);
        let inside = (self.start..self.rest.end).contains(&start);
        match self.rest.tail {
            // A `rep` continues, or the instruction is repeated.
            Tail::Next { .. } if begun == self.last && start == begun => Left::Again(begun),
            _ if begun == self.last => Left::AtItsEnd,
            _ if start == begun => Left::Again(begun),
            _ if inside => Left::After(begun),
            _ => Left::Raised(begun),
        }
    }

    /// The address after an instruction.
    fn next(&self, address: u64) -> u64 {
        let index = self.rest.instructions.partition_point(|&other| other <= address);
        self.rest.instructions.get(index).copied().unwrap_or(self.rest.end)
    }

    /// Instructions that began; repeated ones count later. At a block's end, an instruction that
    /// raised an exception looks like one that was interrupted afterwards. All instructions that
    /// raised one are therefore counted.
    pub fn counted(&self, left: Left) -> u32 {
        let until =
            |last: u64| self.rest.instructions.partition_point(|&address| address <= last) as u32;
        match left {
            Left::AtItsEnd => self.length,
            Left::After(address) | Left::Raised(address) => until(address),
            Left::Again(address) => until(address).saturating_sub(1),
        }
    }
}

/// An event between two blocks, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Branch {
        from: u64,
        to: u64,
        kind: Kind,
        /// Marks a conditional branch before an inferred interrupt. The interrupt's return tells if
        /// it was taken.
        on_trial: bool,
    },
    /// An interrupt or exception that was inferred.
    Interrupt {
        from: u64,
        to: u64,
        /// Addresses where the interrupted flow can continue, with the `from` for each.
        resume: [u64; 3],
    },
}

fn branch(from: u64, to: u64, kind: Kind) -> Step {
    Step::Branch { from, to, kind, on_trial: false }
}

/// Calls `step` with the events from block `p` to a block at `start`. `told` holds the interrupts
/// that QEMU reported meanwhile.
pub fn between(p: &Block, begun: u64, told: &[(u64, u64)], start: u64, mut step: impl FnMut(Step)) {
    let begun = p.begun(begun);
    if !told.is_empty() {
        return between_told(p, begun, told, start, step);
    }
    let interrupt = |from, resume| Step::Interrupt { from, to: start, resume };
    match p.left(begun, start) {
        Left::After(_) | Left::Again(_) => return,
        // Unless the instruction was a device access, done outside the block, followed by the
        // device's interrupt.
        Left::Raised(at) => {
            let next = p.next(at);
            return step(interrupt(at, [at, next, next]));
        }
        Left::AtItsEnd => {}
    }
    match p.tail() {
        Tail::Next { .. } | Tail::Cond { .. } if start == p.end() => {}
        Tail::Next { may_fault } => {
            let from = if may_fault { p.last } else { p.end() };
            step(interrupt(from, [p.last, p.end(), p.end()]));
        }
        Tail::Cond { target } if start == target => step(branch(p.last, target, Kind::Cond)),
        Tail::Cond { target } => {
            step(Step::Branch { from: p.last, to: target, kind: Kind::Cond, on_trial: true });
            step(interrupt(p.end(), [p.end(), target, p.end()]));
        }
        Tail::Direct { kind, target } => {
            step(branch(p.last, target, kind));
            if start != target {
                step(interrupt(target, [target; 3]));
            }
        }
        Tail::Indirect { kind } => step(branch(p.last, start, kind)),
        Tail::Trap => step(branch(p.last, start, Kind::Interrupt)),
    }
}

/// As [`between`], for a QEMU that reports where the flow broke.
fn between_told(
    p: &Block,
    begun: u64,
    told: &[(u64, u64)],
    start: u64,
    mut step: impl FnMut(Step),
) {
    let (first, _) = told[0];
    // The last instruction completed if the interrupt came after it.
    if begun == p.last && first != p.last {
        match p.tail() {
            Tail::Next { .. } | Tail::Trap => {}
            Tail::Cond { target } if first == target && target != p.end() => {
                step(branch(p.last, target, Kind::Cond));
            }
            Tail::Cond { .. } => {}
            Tail::Direct { kind, target } => step(branch(p.last, target, kind)),
            Tail::Indirect { kind } if calls_by_exception(kind, p, first) => {}
            Tail::Indirect { kind } => step(branch(p.last, first, kind)),
        }
    }
    for &(from, to) in told {
        match p.tail() {
            Tail::Indirect { kind } if begun == p.last && calls_by_exception(kind, p, from) => {
                step(branch(p.last, to, kind));
            }
            _ => step(branch(from, to, Kind::Interrupt)),
        }
    }
    debug_assert_eq!(told.last().map(|&(_, to)| to), Some(start));
}

/// Returns true if an exception that QEMU reports at `from` is the purpose of the block's last
/// instruction. It is recorded from that instruction, not from the next.
fn calls_by_exception(kind: Kind, p: &Block, from: u64) -> bool {
    match kind {
        Kind::Int => from == p.last || from == p.end(),
        // On arm64. On x86-64 a system call raises only exceptions for its own failure.
        Kind::Syscall => from == p.end(),
        _ => false,
    }
}
