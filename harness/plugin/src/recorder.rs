// SPDX-License-Identifier: GPL-2.0-or-later
//! Records the newest branches that a vCPU takes. Pure: independent of QEMU.

use crate::{
    accesses,
    flow::{self, Block, Plain, Step, Stretch},
};
use std::collections::VecDeque;
use tramplab_protocol::trace::{Kind, Record, VcpuTrace};

/// An inferred interrupt, and the facts its return will decide.
struct Inferred {
    /// The conditional branch before it, recorded on trial.
    trial: Option<Trial>,
    /// Number of the interrupt's record, if it was kept.
    interrupt: Option<u64>,
    /// Addresses where the interrupted flow can continue, with the `from` for each.
    resume: [u64; 3],
}

#[derive(Clone, Copy)]
struct Trial {
    /// The record's number.
    number: u64,
    /// Instructions and accesses recorded with it. If it is removed, they move to the interrupt.
    instructions: u64,
    accesses: u64,
}

/// The facts about a vCPU that generated code notes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Noted {
    /// Address of the last instruction that began.
    pub begun: u64,
    /// Data accesses, in the form of [`accesses`]. Grows only while they are counted.
    pub accesses: u64,
}

/// Interrupts that QEMU may report before an instruction runs. Vectors that lead nowhere would
/// produce them without end.
pub const MOST_TOLD: usize = 1 << 10;

/// Limit of open interrupts. Only handlers that never return exceed it.
const OPEN: usize = 64;

/// A [`Record`] in compact form.
#[derive(Clone, Copy)]
struct Slot {
    from: u64,
    to: u64,
    /// Without a kind the slot is void: unused, or a conditional branch that was not taken or
    /// stayed undecided.
    stretch: Stretch,
    /// Since the record before.
    accesses: u64,
}

const VOID: Stretch = Stretch::new(None, 0);
const EMPTY: Slot = Slot { from: 0, to: 0, stretch: VOID, accesses: 0 };

/// Slots of a new ring.
const FIRST: usize = 1 << 12;

impl Slot {
    /// None if it is void.
    fn record(&self) -> Option<Record> {
        let Slot { from, to, stretch, accesses } = *self;
        let kind = stretch.kind()?;
        let accesses = Some(accesses::unpacked(accesses));
        Some(Record { from, to, kind, instructions: stretch.instructions(), accesses })
    }
}

/// The effect of a branch on the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selected {
    Kept,
    Dropped,
    /// Removes the newest record.
    Pops,
}

/// Selects the branches that a ring keeps.
pub trait Selection {
    /// `stretch` ends in the branch.
    fn of(&self, from: u64, to: u64, stretch: Stretch) -> Selected;

    /// The record of a branch that is kept.
    #[inline]
    fn kept(&self, from: u64, to: u64, stretch: Stretch) -> (u64, u64, Stretch) {
        (from, to, stretch)
    }
}

/// Keeps every branch.
#[derive(Clone, Copy, Debug)]
pub struct Everything;

impl Selection for Everything {
    #[inline]
    fn of(&self, _: u64, _: u64, _: Stretch) -> Selected {
        Selected::Kept
    }
}

/// The newest `capacity` selected branches of one vCPU.
pub struct Recorder<'b, S = Everything> {
    selection: S,
    /// Grows until it has `capacity` slots.
    ring: Vec<Slot>,
    /// Index of the next record, once the ring is full.
    next: usize,
    /// Number of the record in the first slot.
    first: u64,
    /// Void records, including those that the ring dropped.
    void: u64,
    capacity: usize,
    /// The running block, unless QEMU reported that it was interrupted.
    previous: Option<&'b Block>,
    /// Instructions begun since the newest record.
    instructions: u64,
    /// The noted accesses now, and at the newest record.
    accesses: u64,
    recorded_accesses: u64,
    /// The interrupted block; the next field holds the interrupts that QEMU reported since it
    /// started.
    interrupted: Option<&'b Block>,
    told: Vec<(u64, u64)>,
    /// The branch before an interrupt that is about to be inferred.
    trial: Option<Trial>,
    open: VecDeque<Inferred>,
}

impl<'b> Recorder<'b> {
    /// `accesses` are those noted before the first block.
    pub fn new(capacity: usize, accesses: u64) -> Recorder<'b> {
        Recorder::selecting(Everything, capacity, accesses)
    }
}

impl<'b, S: Selection> Recorder<'b, S> {
    pub fn selecting(selection: S, capacity: usize, accesses: u64) -> Recorder<'b, S> {
        Recorder {
            selection,
            ring: vec![EMPTY; FIRST.min(capacity)],
            next: 0,
            first: 0,
            void: 0,
            capacity,
            previous: None,
            instructions: 0,
            accesses,
            recorded_accesses: accesses,
            interrupted: None,
            told: Vec::new(),
            trial: None,
            open: VecDeque::new(),
        }
    }

    /// A block starts. `noted` returns the facts before it.
    ///
    /// With the plugin armed, most of the time goes here. Rare cases are in functions of their own,
    /// called last.
    #[inline]
    pub fn block(&mut self, block: &'b Block, noted: impl Fn() -> Noted) {
        let Some(previous) = self.previous.replace(block) else {
            return self.told_or_first(block, noted());
        };
        match previous.plainly(|| noted().begun, block.start) {
            Some(Plain { branch: None, instructions }) => {
                self.instructions += u64::from(instructions)
            }
            Some(Plain { branch: Some(_), .. }) => {
                self.accesses = noted().accesses;
                self.push(previous.last, block.start, previous.stretch.behind(self.instructions));
            }
            None => self.closely(previous, noted(), block.start),
        }
    }

    #[cold]
    #[inline(never)]
    fn told_or_first(&mut self, block: &'b Block, noted: Noted) {
        if let Some(interrupted) = self.interrupted.take() {
            self.closely(interrupted, noted, block.start);
        }
        // Interrupts before the first block are unknown.
        self.told.clear();
    }

    #[cold]
    #[inline(never)]
    fn closely(&mut self, previous: &Block, noted: Noted, start: u64) {
        let Noted { begun, accesses } = noted;
        self.accesses = accesses;
        let counted = previous.counted(previous.left(begun, start));
        self.instructions += u64::from(counted);
        let told = std::mem::take(&mut self.told);
        flow::between(previous, begun, &told, start, |step| self.step(step));
    }

    /// QEMU reported an interrupt or exception, before the block at `to` starts.
    pub fn discontinuity(&mut self, from: u64, to: u64) {
        self.interrupted = self.previous.take().or(self.interrupted);
        if self.told.len() < MOST_TOLD {
            self.told.push((from, to));
        }
    }

    /// Replaces the blocks that it still needs.
    pub fn move_blocks(&mut self, moved: impl Fn(&Block) -> &'b Block) {
        self.previous = self.previous.map(&moved);
        self.interrupted = self.interrupted.map(&moved);
    }

    /// Interrupts that wait for a block.
    #[cfg(test)]
    pub fn told(&self) -> usize {
        self.told.len()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Branch { from, to, kind, on_trial: false } => self.branch(from, to, kind),
            Step::Branch { from, to, kind, on_trial: true } => {
                let trial = Trial {
                    number: self.total(),
                    instructions: self.instructions,
                    accesses: self.accesses.wrapping_sub(self.recorded_accesses),
                };
                self.trial = self.push(from, to, self.stretch(kind)).then_some(trial);
            }
            Step::Interrupt { from, to, resume } => {
                let trial = self.trial.take();
                self.interrupt(from, to, trial, resume);
            }
        }
    }

    fn branch(&mut self, from: u64, to: u64, kind: Kind) {
        self.push(from, to, self.stretch(kind));
        if kind == Kind::Iret {
            self.returned(to);
        }
    }

    fn interrupt(&mut self, from: u64, to: u64, trial: Option<Trial>, resume: [u64; 3]) {
        let number = self.total();
        let interrupt = self.push(from, to, self.stretch(Kind::Interrupt)).then_some(number);
        if self.open.len() == OPEN {
            self.give_up_oldest();
        }
        self.open.push_back(Inferred { trial, interrupt, resume });
    }

    /// A handler returned to `to`, which decides the open questions about its interrupt.
    fn returned(&mut self, to: u64) {
        let Some(position) = self.open.iter().rposition(|open| open.resume.contains(&to)) else {
            return;
        };
        let open = self.open.remove(position).expect("just found");
        if let Some(slot) = open.interrupt.and_then(|number| self.slot(number)) {
            slot.from = to;
        }
        if let Some(trial) = open.trial {
            // The branch was taken if the flow continued at its target, not at the next
            // instruction.
            let taken = to != open.resume[0];
            if !taken {
                self.leave_out(trial, open.interrupt);
            }
        }
    }

    fn give_up_oldest(&mut self) {
        if let Some(Inferred { trial: Some(trial), interrupt, .. }) = self.open.pop_front() {
            self.leave_out(trial, interrupt);
        }
    }

    fn leave_out(&mut self, trial: Trial, interrupt: Option<u64>) {
        self.void += 1;
        if let Some(slot) = self.slot(trial.number) {
            slot.stretch = VOID;
        }
        if let Some(slot) = interrupt.and_then(|number| self.slot(number)) {
            slot.stretch = slot.stretch.behind(trial.instructions);
            slot.accesses = slot.accesses.wrapping_add(trial.accesses);
        }
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        // A record that was removed again may have had it.
        let age = self.total().checked_sub(number);
        let kept = age.is_some_and(|age| (1..=self.capacity as u64).contains(&age));
        kept.then(|| &mut self.ring[(number % self.capacity as u64) as usize])
    }

    fn total(&self) -> u64 {
        self.first + self.next as u64
    }

    pub fn selection(&self) -> &S {
        &self.selection
    }

    /// The number of records kept so far, less those removed again.
    pub fn recorded(&self) -> u64 {
        self.total() - self.void
    }

    /// The instructions begun since the newest record, ending in a branch.
    fn stretch(&self, kind: Kind) -> Stretch {
        Stretch::new(Some(kind), 0).behind(self.instructions)
    }

    /// Returns true if the branch is kept.
    #[inline]
    fn push(&mut self, from: u64, to: u64, stretch: Stretch) -> bool {
        let selected = self.selection.of(from, to, stretch);
        match selected {
            Selected::Kept => {
                let (from, to, stretch) = self.selection.kept(from, to, stretch);
                self.keep(from, to, stretch);
            }
            Selected::Dropped => {}
            Selected::Pops => self.pop(),
        }
        selected == Selected::Kept
    }

    /// Keeps a record, whatever is selected.
    #[inline]
    pub fn keep(&mut self, from: u64, to: u64, stretch: Stretch) {
        self.instructions = 0;
        let accesses = self.accesses.wrapping_sub(self.recorded_accesses);
        self.recorded_accesses = self.accesses;
        match self.ring.get_mut(self.next) {
            Some(slot) => {
                // Store each field by itself. For a whole slot the compiler makes a copy first, and
                // the CPU waits for it.
                slot.from = from;
                slot.to = to;
                slot.stretch = stretch;
                slot.accesses = accesses;
                self.next += 1;
            }
            None => self.push_with_room(Slot { from, to, stretch, accesses }),
        }
    }

    /// Removes the newest record.
    fn pop(&mut self) {
        if self.next == 0 && self.first > 0 {
            self.first -= self.capacity as u64;
            self.next = self.capacity;
        }
        if let Some(newest) = self.next.checked_sub(1) {
            self.ring[newest] = EMPTY;
            self.next = newest;
        }
    }

    /// Grows the ring, or starts over when it is full.
    #[cold]
    #[inline(never)]
    fn push_with_room(&mut self, slot: Slot) {
        if self.ring.len() < self.capacity {
            self.ring.resize(self.capacity.min(2 * self.ring.len()), EMPTY);
        } else {
            self.first += self.capacity as u64;
            self.next = 0;
        }
        self.ring[self.next] = slot;
        self.next += 1;
    }

    /// The kept records, newest first. Open interrupts are still undecided.
    pub fn newest_first(&self) -> impl Iterator<Item = Record> {
        self.oldest_first().rev()
    }

    fn oldest_first(&self) -> impl DoubleEndedIterator<Item = Record> {
        let (newer, older) = self.ring.split_at(self.next);
        older.iter().chain(newer).filter_map(Slot::record)
    }

    /// The kept records, oldest first, with their accesses if those were counted.
    pub fn finish(mut self, index: u32, accesses: bool) -> VcpuTrace {
        while !self.open.is_empty() {
            self.give_up_oldest();
        }
        let known =
            |record: Record| Record { accesses: record.accesses.filter(|_| accesses), ..record };
        let records = self.oldest_first().map(known).collect();
        VcpuTrace { index, total: self.recorded(), records }
    }
}

#[cfg(test)]
mod tests;
