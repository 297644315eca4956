// SPDX-License-Identifier: GPL-2.0-or-later
//! Records the newest branches that a vCPU takes. Pure: independent of QEMU.

use crate::flow::{self, Block, Plain, Step, Stretch};
use std::collections::VecDeque;
use tramplab_protocol::trace::{Kind, Record, VcpuTrace};

/// An inferred interrupt, and the facts its return will decide.
struct Inferred {
    /// The conditional branch before it, recorded on trial.
    trial: Option<Trial>,
    /// Number of the interrupt's record.
    interrupt: u64,
    /// Addresses where the interrupted flow can continue, with the `from` for each.
    resume: [u64; 3],
}

#[derive(Clone, Copy)]
struct Trial {
    /// The record's number.
    number: u64,
    /// Instructions recorded with it. If it is removed, they move to the interrupt.
    instructions: u64,
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
}

const VOID: Stretch = Stretch::new(None, 0);
const EMPTY: Slot = Slot { from: 0, to: 0, stretch: VOID };

/// Slots of a new ring.
const FIRST: usize = 1 << 12;

impl Slot {
    fn record(&self) -> Option<Record> {
        let Slot { from, to, stretch } = *self;
        stretch.kind().map(|kind| Record { from, to, kind, instructions: stretch.instructions() })
    }
}

/// The newest `capacity` branches of one vCPU.
pub struct Recorder<'b> {
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
    /// The interrupted block; the next field holds the interrupts that QEMU reported since it
    /// started.
    interrupted: Option<&'b Block>,
    told: Vec<(u64, u64)>,
    /// The branch before an interrupt that is about to be inferred.
    trial: Option<Trial>,
    open: VecDeque<Inferred>,
}

impl<'b> Recorder<'b> {
    pub fn new(capacity: usize) -> Recorder<'b> {
        Recorder {
            ring: vec![EMPTY; FIRST.min(capacity)],
            next: 0,
            first: 0,
            void: 0,
            capacity,
            previous: None,
            instructions: 0,
            interrupted: None,
            told: Vec::new(),
            trial: None,
            open: VecDeque::new(),
        }
    }

    /// A block starts. `begun` is the address of the last instruction that began before it.
    ///
    /// With the plugin armed, most of the time goes here. Rare cases are in functions of their own,
    /// called last.
    #[inline]
    pub fn block(&mut self, block: &'b Block, begun: impl Fn() -> u64) {
        let Some(previous) = self.previous.replace(block) else { return self.told_or_first(block, begun()) };
        match previous.plainly(&begun, block.start) {
            Some(Plain { branch: None, instructions }) => self.instructions += u64::from(instructions),
            Some(Plain { branch: Some(_), .. }) => {
                self.push(previous.last, block.start, previous.stretch.behind(self.instructions));
            }
            None => self.closely(previous, begun(), block.start),
        }
    }

    #[cold]
    #[inline(never)]
    fn told_or_first(&mut self, block: &'b Block, begun: u64) {
        if let Some(interrupted) = self.interrupted.take() {
            self.closely(interrupted, begun, block.start);
        }
        // Interrupts before the first block are unknown.
        self.told.clear();
    }

    #[cold]
    #[inline(never)]
    fn closely(&mut self, previous: &Block, begun: u64, start: u64) {
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

    /// Interrupts that wait for a block.
    #[cfg(test)]
    pub fn told(&self) -> usize {
        self.told.len()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Branch { from, to, kind, on_trial: false } => self.branch(from, to, kind),
            Step::Branch { from, to, kind, on_trial: true } => {
                self.trial = Some(Trial { number: self.total(), instructions: self.instructions });
                self.push(from, to, self.stretch(kind));
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
        let interrupt = self.total();
        self.push(from, to, self.stretch(Kind::Interrupt));
        if self.open.len() == OPEN {
            self.give_up_oldest();
        }
        self.open.push_back(Inferred { trial, interrupt, resume });
    }

    /// A handler returned to `to`, which decides the open questions about its interrupt.
    fn returned(&mut self, to: u64) {
        let Some(position) = self.open.iter().rposition(|open| open.resume.contains(&to)) else { return };
        let open = self.open.remove(position).expect("just found");
        if let Some(slot) = self.slot(open.interrupt) {
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

    fn leave_out(&mut self, trial: Trial, interrupt: u64) {
        self.void += 1;
        if let Some(slot) = self.slot(trial.number) {
            slot.stretch = VOID;
        }
        if let Some(slot) = self.slot(interrupt) {
            slot.stretch = slot.stretch.behind(trial.instructions);
        }
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let kept = self.total() - number <= self.capacity as u64;
        kept.then(|| &mut self.ring[(number % self.capacity as u64) as usize])
    }

    fn total(&self) -> u64 {
        self.first + self.next as u64
    }

    /// The instructions begun since the newest record, ending in a branch.
    fn stretch(&self, kind: Kind) -> Stretch {
        Stretch::new(Some(kind), 0).behind(self.instructions)
    }

    #[inline]
    fn push(&mut self, from: u64, to: u64, stretch: Stretch) {
        self.instructions = 0;
        match self.ring.get_mut(self.next) {
            Some(slot) => {
                // Store each field by itself. For a whole slot the compiler makes a copy first, and
                // the CPU waits for it.
                slot.from = from;
                slot.to = to;
                slot.stretch = stretch;
                self.next += 1;
            }
            None => self.push_with_room(from, to, stretch),
        }
    }

    /// Grows the ring, or starts over when it is full.
    #[cold]
    #[inline(never)]
    fn push_with_room(&mut self, from: u64, to: u64, stretch: Stretch) {
        if self.ring.len() < self.capacity {
            self.ring.resize(self.capacity.min(2 * self.ring.len()), EMPTY);
        } else {
            self.first += self.capacity as u64;
            self.next = 0;
        }
        self.ring[self.next] = Slot { from, to, stretch };
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

    /// The kept records, oldest first.
    pub fn finish(mut self, index: u32) -> VcpuTrace {
        while !self.open.is_empty() {
            self.give_up_oldest();
        }
        let records = self.oldest_first().collect();
        VcpuTrace { index, total: self.total() - self.void, records }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Tail;

    const V: u64 = 0xf000;

    fn block(start: u64, last: u64, end: u64, tail: Tail) -> Block {
        Block::new((start..=last).step_by(4).collect(), end, tail)
    }

    /// A block of three instructions at 0x100, 0x104, 0x108.
    fn at(start: u64, tail: Tail) -> Block {
        block(start, start + 8, start + 12, tail)
    }

    /// A block that notes nothing because it always runs to its end.
    fn whole(start: u64, tail: Tail) -> Block {
        at(start, tail).surely_whole()
    }

    const NEXT: Tail = Tail::Next { may_fault: false };
    const COND: Tail = Tail::Cond { target: 0x200 };
    const RET: Tail = Tail::Indirect { kind: Kind::Ret };
    const IRET: Tail = Tail::Indirect { kind: Kind::Iret };
    const SYSCALL: Tail = Tail::Indirect { kind: Kind::Syscall };
    const CALL: Tail = Tail::Direct { kind: Kind::Call, target: 0x200 };

    enum Step {
        /// A block runs to its last instruction.
        Whole(Block),
        /// The block is left at this instruction.
        Left(Block, u64),
        Told(u64, u64),
    }
    use Step::{Left, Told, Whole};

    const NOTHING: u64 = 1;

    fn run(capacity: usize, steps: &[Step]) -> Vec<Record> {
        let mut recorder = Recorder::new(capacity);
        let mut begun = 0;
        for step in steps {
            match step {
                Whole(block) => {
                    recorder.block(block, || begun);
                    if block.begun(NOTHING) == NOTHING {
                        begun = block.last;
                    }
                }
                Left(block, at) => {
                    recorder.block(block, || begun);
                    begun = *at;
                }
                Told(from, to) => recorder.discontinuity(*from, *to),
            }
        }
        recorder.finish(0).records
    }

    #[test]
    fn records_flows() {
        let stop = |start| Whole(at(start, NEXT));
        type Case = (&'static str, Vec<Step>, Vec<(u64, u64, Kind)>);
        let cases: Vec<Case> = vec![
            ("falls through", vec![Whole(at(0x100, NEXT)), stop(0x10c)], vec![]),
            (
                "notes nothing, taken",
                vec![Whole(whole(0x100, COND)), stop(0x200)],
                vec![(0x108, 0x200, Kind::Cond)],
            ),
            (
                "notes nothing, interrupted behind it, after one left in its middle",
                vec![Left(at(0x200, RET), 0x204), Whole(whole(0x208, NEXT)), Whole(at(V, IRET)), stop(0x214)],
                vec![(0x214, V, Kind::Interrupt), (V + 8, 0x214, Kind::Iret)],
            ),
            (
                "notes nothing, told of an interrupt behind it",
                vec![Whole(whole(0x100, COND)), Told(0x200, V), stop(V)],
                vec![(0x108, 0x200, Kind::Cond), (0x200, V, Kind::Interrupt)],
            ),
            ("not taken", vec![Whole(at(0x100, COND)), stop(0x10c)], vec![]),
            ("taken", vec![Whole(at(0x100, COND)), stop(0x200)], vec![(0x108, 0x200, Kind::Cond)]),
            (
                "taken to its own block",
                vec![Whole(at(0x100, Tail::Cond { target: 0x100 })), stop(0x100)],
                vec![(0x108, 0x100, Kind::Cond)],
            ),
            ("call", vec![Whole(at(0x100, CALL)), stop(0x200)], vec![(0x108, 0x200, Kind::Call)]),
            ("return", vec![Whole(at(0x100, RET)), stop(0x300)], vec![(0x108, 0x300, Kind::Ret)]),
            (
                "return into its own block",
                vec![Whole(at(0x100, RET)), stop(0x104)],
                vec![(0x108, 0x104, Kind::Ret)],
            ),
            ("rep goes on", vec![Whole(at(0x100, NEXT)), stop(0x108)], vec![]),
            ("device access in the middle", vec![Left(at(0x100, RET), 0x100), stop(0x104)], vec![]),
            (
                "device access in the middle, before a return",
                vec![Left(at(0x100, RET), 0x104), Whole(block(0x108, 0x108, 0x10c, RET)), stop(0x300)],
                vec![(0x108, 0x300, Kind::Ret)],
            ),
            (
                "fault in the middle",
                vec![Left(at(0x100, RET), 0x104), stop(V)],
                vec![(0x104, V, Kind::Interrupt)],
            ),
            (
                "access to a device in the middle, and its interrupt right behind it",
                vec![Left(at(0x100, RET), 0x104), Whole(at(V, IRET)), stop(0x108)],
                vec![(0x108, V, Kind::Interrupt), (V + 8, 0x108, Kind::Iret)],
            ),
            (
                "fault in the middle, done again",
                vec![Left(at(0x100, RET), 0x104), Whole(at(V, IRET)), stop(0x104)],
                vec![(0x104, V, Kind::Interrupt), (V + 8, 0x104, Kind::Iret)],
            ),
            (
                "fault at the end",
                vec![Whole(at(0x100, Tail::Next { may_fault: true })), stop(V)],
                vec![(0x108, V, Kind::Interrupt)],
            ),
            (
                "fault at the end, and a handler that skips it: taken for an interrupt behind it",
                vec![Whole(at(0x100, Tail::Next { may_fault: true })), Whole(at(V, IRET)), stop(0x10c)],
                vec![(0x10c, V, Kind::Interrupt), (V + 8, 0x10c, Kind::Iret)],
            ),
            ("ud2", vec![Whole(at(0x100, Tail::Trap)), stop(V)], vec![(0x108, V, Kind::Interrupt)]),
            ("interrupt", vec![Whole(at(0x100, NEXT)), stop(V)], vec![(0x10c, V, Kind::Interrupt)]),
            (
                "interrupt after an instruction that might have faulted",
                vec![Whole(at(0x100, Tail::Next { may_fault: true })), Whole(at(V, IRET)), stop(0x10c)],
                vec![(0x10c, V, Kind::Interrupt), (V + 8, 0x10c, Kind::Iret)],
            ),
            (
                "interrupt after a call",
                vec![Whole(at(0x100, CALL)), Whole(at(V, IRET)), stop(0x200)],
                vec![(0x108, 0x200, Kind::Call), (0x200, V, Kind::Interrupt), (V + 8, 0x200, Kind::Iret)],
            ),
            (
                "interrupt after a conditional that was taken",
                vec![Whole(at(0x100, COND)), Whole(at(V, IRET)), stop(0x200)],
                vec![(0x108, 0x200, Kind::Cond), (0x200, V, Kind::Interrupt), (V + 8, 0x200, Kind::Iret)],
            ),
            (
                "interrupt after a conditional that was not",
                vec![Whole(at(0x100, COND)), Whole(at(V, IRET)), stop(0x10c)],
                vec![(0x10c, V, Kind::Interrupt), (V + 8, 0x10c, Kind::Iret)],
            ),
            (
                "nested",
                vec![
                    Whole(at(0x100, COND)),
                    Whole(at(V, NEXT)),
                    Whole(at(V + 0x100, IRET)),
                    Whole(at(V + 12, IRET)),
                    stop(0x200),
                ],
                vec![
                    (0x108, 0x200, Kind::Cond),
                    (0x200, V, Kind::Interrupt),
                    (V + 12, V + 0x100, Kind::Interrupt),
                    (V + 0x108, V + 12, Kind::Iret),
                    (V + 20, 0x200, Kind::Iret),
                ],
            ),
            (
                "a conditional of which nothing became known is left out",
                vec![Whole(at(0x100, COND)), stop(V)],
                vec![(0x10c, V, Kind::Interrupt)],
            ),
            (
                "told: interrupt after a return",
                vec![Whole(at(0x100, RET)), Told(0x300, V), stop(V)],
                vec![(0x108, 0x300, Kind::Ret), (0x300, V, Kind::Interrupt)],
            ),
            (
                "told: the return itself faulted",
                vec![Whole(at(0x100, RET)), Told(0x108, V), stop(V)],
                vec![(0x108, V, Kind::Interrupt)],
            ),
            (
                "told: not taken, then interrupted",
                vec![Whole(at(0x100, COND)), Told(0x10c, V), stop(V)],
                vec![(0x10c, V, Kind::Interrupt)],
            ),
            (
                "told: software interrupt",
                vec![Whole(at(0x100, Tail::Indirect { kind: Kind::Int })), Told(0x10c, V), stop(V)],
                vec![(0x108, V, Kind::Int)],
            ),
            (
                "told: a system call that is an exception",
                vec![Whole(at(0x100, SYSCALL)), Told(0x10c, V), stop(V)],
                vec![(0x108, V, Kind::Syscall)],
            ),
            (
                "told: one that is not, and an interrupt where it led to",
                vec![Whole(at(0x100, SYSCALL)), Told(0x1000, V), stop(V)],
                vec![(0x108, 0x1000, Kind::Syscall), (0x1000, V, Kind::Interrupt)],
            ),
            (
                "told: one that failed",
                vec![Whole(at(0x100, SYSCALL)), Told(0x108, V), stop(V)],
                vec![(0x108, V, Kind::Interrupt)],
            ),
            (
                "told: an access to a device in the middle, and its interrupt right behind it",
                vec![Left(at(0x100, RET), 0x104), Told(0x108, V), stop(V)],
                vec![(0x108, V, Kind::Interrupt)],
            ),
            (
                "told: fault in the middle, and an interrupt before its handler ran",
                vec![Left(at(0x100, RET), 0x104), Told(0x104, V), Told(V, V + 0x100), stop(V + 0x100)],
                vec![(0x104, V, Kind::Interrupt), (V, V + 0x100, Kind::Interrupt)],
            ),
        ];
        for (name, steps, expected) in cases {
            let found: Vec<_> = run(100, &steps).iter().map(|r| (r.from, r.to, r.kind)).collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    /// Each block has three instructions.
    #[test]
    fn counts_every_instruction_once() {
        let stop = |start| Whole(at(start, NEXT));
        let cases: Vec<(&str, Vec<Step>, &[u32])> = vec![
            (
                "what notes nothing is counted whole",
                vec![Whole(whole(0x100, NEXT)), Whole(whole(0x10c, COND)), Whole(at(V, RET)), stop(0x300)],
                &[6, 3],
            ),
            ("a branch ends its line", vec![Whole(at(0x100, CALL)), stop(0x200)], &[3]),
            (
                "blocks that fall through, and a branch not taken, are one line",
                vec![
                    Whole(at(0x100, NEXT)),
                    Whole(at(0x10c, COND)),
                    Whole(at(0x118, RET)),
                    Whole(at(0x300, RET)),
                    stop(0x400),
                ],
                &[9, 3],
            ),
            (
                "`rep` goes on: one instruction",
                vec![
                    Whole(at(0x100, NEXT)),
                    Whole(block(0x108, 0x108, 0x10c, NEXT)),
                    Whole(at(0x10c, RET)),
                    stop(0x300),
                ],
                &[6],
            ),
            (
                "an access to a device is done again outside of the block",
                vec![Left(at(0x100, RET), 0x104), Whole(block(0x108, 0x108, 0x10c, RET)), stop(0x300)],
                &[3],
            ),
            (
                "… or by the next block",
                vec![Left(at(0x100, RET), 0x104), Whole(block(0x104, 0x108, 0x10c, RET)), stop(0x300)],
                &[3],
            ),
            (
                "what faults is begun twice",
                vec![
                    Left(at(0x100, RET), 0x104),
                    Whole(at(V, IRET)),
                    Whole(block(0x104, 0x108, 0x10c, RET)),
                    stop(0x300),
                ],
                &[2, 3, 2],
            ),
            (
                "a conditional that was taken, then an interrupt",
                vec![Whole(at(0x100, COND)), Whole(at(V, IRET)), Whole(at(0x200, RET)), stop(0x300)],
                &[3, 0, 3, 3],
            ),
            (
                "a conditional left out leaves its line to the interrupt",
                vec![Whole(at(0x100, COND)), Whole(at(V, IRET)), Whole(at(0x10c, RET)), stop(0x300)],
                &[3, 3, 3],
            ),
            (
                "… also where nothing became known",
                vec![Whole(at(0x100, COND)), Whole(at(V, RET)), stop(0x300)],
                &[3, 3],
            ),
            (
                "told: not taken, then interrupted",
                vec![Whole(at(0x100, COND)), Told(0x10c, V), Whole(at(V, IRET)), stop(0x10c)],
                &[3, 3],
            ),
            (
                "told: two at once",
                vec![Left(at(0x100, RET), 0x104), Told(0x104, V), Told(V, V + 0x100), stop(V + 0x100)],
                &[2, 0],
            ),
        ];
        for (name, steps, expected) in cases {
            let found: Vec<u32> = run(100, &steps).iter().map(|r| r.instructions).collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn keeps_the_newest_records_and_counts_all() {
        let blocks: Vec<Block> = (1..=8).map(|i| at(0x1000 * i, RET)).collect();
        let mut recorder = Recorder::new(3);
        let mut begun = 0;
        for block in &blocks {
            recorder.block(block, || begun);
            begun = block.last;
        }
        let newest_first: Vec<Record> = recorder.newest_first().collect();
        let mut trace = recorder.finish(1);
        assert_eq!((trace.index, trace.total), (1, 7));
        let to: Vec<u64> = trace.records.iter().map(|r| r.to).collect();
        assert_eq!(to, [0x6000, 0x7000, 0x8000]);
        trace.records.reverse();
        assert_eq!(newest_first, trace.records);
    }

    #[test]
    fn does_not_count_a_branch_on_trial_that_left_the_ring() {
        let blocks = [at(0x100, COND), at(V, CALL), at(0x200, RET), at(V + 12, IRET), at(0x10c, NEXT)];
        let mut recorder = Recorder::new(2);
        for (block, begun) in blocks.iter().zip([0, 0x108, V + 8, 0x208, V + 20]) {
            recorder.block(block, || begun);
        }
        let trace = recorder.finish(0);
        let kinds: Vec<Kind> = trace.records.iter().map(|r| r.kind).collect();
        assert_eq!((trace.total, &kinds[..]), (4, &[Kind::Ret, Kind::Iret][..]));
    }
}
