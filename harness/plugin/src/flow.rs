// SPDX-License-Identifier: GPL-2.0-or-later
//! From the blocks a vCPU runs to the transfers between them. Pure: no QEMU here.
//!
//! Each time a block starts, what is known of the one before decides how control came here: which block it was, the
//! last of its instructions that was begun, and the transfer it ends in. A branch is one only if its instruction was
//! begun and the new block lies where it can lead.
//!
//! QEMU before 10.2 does not tell of interrupts and exceptions. They show as a block that starts where the last one
//! cannot lead. Two things are not decidable then, and are documented in `docs/branch-records.md`: an interrupt right
//! after a return, an indirect or a far transfer is taken for its target (the host knows handlers by name), and
//! whether an instruction at a block's end faulted or was interrupted after, until the handler returns.

use tramplab_protocol::trace::Kind;

/// The transfer a block ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// No branch: the block ended for the emulator's reasons.
    Next { may_fault: bool },
    /// Taken or not.
    Cond { target: u64 },
    /// Always taken, to a known place.
    Direct { kind: Kind, target: u64 },
    /// Always taken; where to is known when it happened.
    Indirect { kind: Kind },
    /// Raises an exception by definition (`ud2`).
    Trap,
}

/// A translated block.
///
/// What is asked of it whenever the guest runs it fits in one line of the host's cache, and needs few decisions: with the plugin armed, most
/// of the time goes there.
#[derive(Debug)]
#[repr(align(64))]
pub struct Block {
    pub start: u64,
    /// Address of the last instruction.
    pub last: u64,
    /// Where control goes from its end without a branch, or [`NOWHERE`].
    falls_to: u64,
    /// Where its branch leads, or [`NOWHERE`].
    leads_to: u64,
    /// Of the branch, if it has one.
    kind: Kind,
    /// All of the block, with the branch.
    pub stretch: Stretch,
    /// Whether the branch may lead to any place, and does no more than that: what returns from an interrupt is looked at closely.
    leads_anywhere: bool,
    /// Whether nothing in it can fail, so that it runs to its end whenever it starts: it does not have noted what was begun.
    whole: bool,
    /// Number of instructions.
    length: u32,
    rest: Box<Rest>,
}

#[derive(Debug)]
struct Rest {
    /// One past the last instruction.
    end: u64,
    tail: Tail,
    /// Addresses of all instructions, ascending.
    instructions: Box<[u64]>,
}

/// No block starts there.
const NOWHERE: u64 = u64::MAX;

/// How control came to a block, where that needs no closer look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// None if there was no branch.
    pub branch: Option<Kind>,
    /// Of the block before, all of which were begun.
    pub instructions: u32,
}

/// How many instructions, and above them the kind of the branch that they end in, so that both are stored at once.
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

    /// As many as a record can say.
    pub fn instructions(self) -> u32 {
        u32::try_from(self.0 & ((1 << Stretch::KIND) - 1)).unwrap_or(u32::MAX)
    }

    /// With more instructions before it: nobody lives to see as many as there is no room for.
    pub fn behind(self, instructions: u64) -> Stretch {
        Stretch(self.0.wrapping_add(instructions))
    }
}

/// How a block was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    AtItsEnd,
    /// After this instruction, an access to a device that the emulator did outside of the block.
    After(u64),
    /// At this instruction, which the next block begins again.
    Again(u64),
    /// At this instruction, which raised an exception.
    Raised(u64),
}

impl Block {
    /// Of at least one instruction, each of which may be the last that is begun.
    pub fn new(instructions: Box<[u64]>, end: u64, tail: Tail) -> Block {
        let (start, last) = (instructions[0], instructions[instructions.len() - 1]);
        let falls_to = if matches!(tail, Tail::Next { .. } | Tail::Cond { .. }) { end } else { NOWHERE };
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
            rest: Box::new(Rest { end, tail, instructions }),
        }
    }

    /// The same, of which nothing can fail.
    pub fn surely_whole(self) -> Block {
        Block { whole: true, ..self }
    }

    /// The last instruction that was begun, where `noted` is what was noted of this block or, as it may have noted none, of one before.
    pub fn begun(&self, noted: u64) -> u64 {
        if self.whole { self.last } else { noted }
    }

    pub fn end(&self) -> u64 {
        self.rest.end
    }

    pub fn tail(&self) -> Tail {
        self.rest.tail
    }

    /// How control came from here to `start`, if the block ran to its end and its last instruction leads there: as it nearly always is.
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

    /// `begun` is the last instruction begun, `start` where the next block is.
    pub fn left(&self, begun: u64, start: u64) -> Left {
        let begun = self.begun(begun);
        let inside = (self.start..self.rest.end).contains(&start);
        match self.rest.tail {
            // `rep` goes on, or the instruction is done again.
            Tail::Next { .. } if begun == self.last && start == begun => Left::Again(begun),
            _ if begun == self.last => Left::AtItsEnd,
            _ if start == begun => Left::Again(begun),
            _ if inside => Left::After(begun),
            _ => Left::Raised(begun),
        }
    }

    /// The address behind an instruction.
    fn next(&self, address: u64) -> u64 {
        let index = self.rest.instructions.partition_point(|&other| other <= address);
        self.rest.instructions.get(index).copied().unwrap_or(self.rest.end)
    }

    /// Instructions begun; one that is begun again is counted then. One at the end that raised an exception cannot be told from
    /// one that was interrupted after: so all that raised one are counted.
    pub fn counted(&self, left: Left) -> u32 {
        let until = |last: u64| self.rest.instructions.partition_point(|&address| address <= last) as u32;
        match left {
            Left::AtItsEnd => self.length,
            Left::After(address) | Left::Raised(address) => until(address),
            Left::Again(address) => until(address).saturating_sub(1),
        }
    }
}

/// What happened between two blocks, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Branch {
        from: u64,
        to: u64,
        kind: Kind,
        /// A conditional one before an inferred interrupt, whose return will tell whether it was taken.
        on_trial: bool,
    },
    /// An interrupt or exception that was inferred.
    Interrupt {
        from: u64,
        to: u64,
        /// Where the interrupted flow can go on, and what `from` was then.
        resume: [u64; 3],
    },
}

fn branch(from: u64, to: u64, kind: Kind) -> Step {
    Step::Branch { from, to, kind, on_trial: false }
}

/// How control came from block `p` to a block at `start`. `told` are the interrupts QEMU told of meanwhile.
pub fn between(p: &Block, begun: u64, told: &[(u64, u64)], start: u64, mut step: impl FnMut(Step)) {
    let begun = p.begun(begun);
    if !told.is_empty() {
        return between_told(p, begun, told, start, step);
    }
    let interrupt = |from, resume| Step::Interrupt { from, to: start, resume };
    match p.left(begun, start) {
        Left::After(_) | Left::Again(_) => return,
        // Unless it was an access to a device, done outside of the block, and the device's interrupt came at once.
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

/// The same where QEMU says where the flow was broken.
fn between_told(p: &Block, begun: u64, told: &[(u64, u64)], start: u64, mut step: impl FnMut(Step)) {
    let (first, _) = told[0];
    // The last instruction was done if the interrupt came after it.
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

/// Whether an exception that QEMU tells of at `from` is what the block's last instruction is there for. It is recorded from that
/// instruction, not from the next.
fn calls_by_exception(kind: Kind, p: &Block, from: u64) -> bool {
    match kind {
        Kind::Int => from == p.last || from == p.end(),
        // arm64's; x86-64's raises none, but for those it fails with.
        Kind::Syscall => from == p.end(),
        _ => false,
    }
}
