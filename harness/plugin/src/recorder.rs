// SPDX-License-Identifier: GPL-2.0-or-later
//! The branches a vCPU takes, the newest of them kept. Pure: no QEMU here.

use crate::flow::{self, Block, Step};
use std::collections::VecDeque;
use tramplab_protocol::trace::{Kind, Record, VcpuTrace};

/// An interrupt that was inferred, and what its return will decide.
struct Inferred {
    /// The conditional branch before it, recorded on trial.
    trial: Option<Trial>,
    /// Number of the interrupt's record.
    interrupt: u64,
    /// Where the interrupted flow can go on, and what `from` was then.
    resume: [u64; 3],
}

#[derive(Clone, Copy)]
struct Trial {
    /// The record's number.
    number: u64,
    /// Instructions recorded with it: if it is left out they are the interrupt's.
    instructions: u32,
}

/// More interrupts than this are not open at once, unless their handlers never return.
const OPEN: usize = 64;

#[derive(Clone, Copy)]
struct Slot {
    record: Record,
    /// A conditional branch of which it turned out that it was not taken, or never became known.
    void: bool,
}

/// The branches of one vCPU, the newest `capacity` of them.
pub struct Recorder<'b> {
    ring: Vec<Slot>,
    capacity: usize,
    total: u64,
    /// How many of them are void, those included that the ring dropped.
    void: u64,
    previous: Option<&'b Block>,
    /// Instructions begun since the newest record.
    instructions: u32,
    /// Interrupts QEMU told of since the last block started.
    told: Vec<(u64, u64)>,
    /// The branch before an interrupt that is about to be inferred.
    trial: Option<Trial>,
    open: VecDeque<Inferred>,
}

impl<'b> Recorder<'b> {
    pub fn new(capacity: usize) -> Recorder<'b> {
        Recorder {
            ring: Vec::new(),
            capacity,
            total: 0,
            void: 0,
            previous: None,
            instructions: 0,
            told: Vec::new(),
            trial: None,
            open: VecDeque::new(),
        }
    }

    /// A block starts; `begun` is the address of the last instruction that was begun before it.
    pub fn block(&mut self, block: &'b Block, begun: u64) {
        if let Some(previous) = self.previous {
            let counted = previous.counted(previous.left(begun, block.start));
            self.instructions = self.instructions.saturating_add(counted);
            let told = std::mem::take(&mut self.told);
            flow::between(previous, begun, &told, block.start, |step| self.step(step));
            self.told = told;
            self.told.clear();
        }
        self.previous = Some(block);
    }

    /// QEMU tells of an interrupt or exception, before the block at `to` starts.
    pub fn discontinuity(&mut self, from: u64, to: u64) {
        self.told.push((from, to));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Branch { from, to, kind, on_trial: false } => {
                self.push(from, to, kind);
                if kind == Kind::Iret {
                    self.returned(to);
                }
            }
            Step::Branch { from, to, kind, on_trial: true } => {
                self.trial = Some(Trial { number: self.total, instructions: self.instructions });
                self.push(from, to, kind);
            }
            Step::Interrupt { from, to, resume } => {
                let trial = self.trial.take();
                self.interrupt(from, to, trial, resume);
            }
        }
    }

    fn interrupt(&mut self, from: u64, to: u64, trial: Option<Trial>, resume: [u64; 3]) {
        let interrupt = self.total;
        self.push(from, to, Kind::Interrupt);
        if self.open.len() == OPEN {
            self.give_up_oldest();
        }
        self.open.push_back(Inferred { trial, interrupt, resume });
    }

    /// A handler returned to `to`: which settles what was open about its interrupt.
    fn returned(&mut self, to: u64) {
        let Some(position) = self.open.iter().rposition(|open| open.resume.contains(&to)) else { return };
        let open = self.open.remove(position).expect("just found");
        if let Some(slot) = self.slot(open.interrupt) {
            slot.record.from = to;
        }
        if let Some(trial) = open.trial {
            // Taken if the flow went on at the target, which is not the next instruction.
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
            slot.void = true;
        }
        if let Some(slot) = self.slot(interrupt) {
            slot.record.instructions = slot.record.instructions.saturating_add(trial.instructions);
        }
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let kept = self.total - number <= self.capacity as u64;
        kept.then(|| &mut self.ring[(number % self.capacity as u64) as usize])
    }

    fn push(&mut self, from: u64, to: u64, kind: Kind) {
        let instructions = std::mem::take(&mut self.instructions);
        let slot = Slot { record: Record { from, to, kind, instructions }, void: false };
        if self.ring.len() < self.capacity {
            self.ring.push(slot);
        } else {
            self.ring[(self.total % self.capacity as u64) as usize] = slot;
        }
        self.total += 1;
    }

    /// What is kept, newest first. What an open interrupt will decide is not decided yet.
    pub fn newest_first(&self) -> impl Iterator<Item = &Record> {
        let (newer, older) = self.ring.split_at(self.oldest());
        newer.iter().rev().chain(older.iter().rev()).filter(|slot| !slot.void).map(|slot| &slot.record)
    }

    /// Where the oldest record is in the ring.
    fn oldest(&self) -> usize {
        if self.ring.len() < self.capacity { 0 } else { (self.total % self.capacity as u64) as usize }
    }

    /// What was recorded, oldest first.
    pub fn finish(mut self, index: u32) -> VcpuTrace {
        while !self.open.is_empty() {
            self.give_up_oldest();
        }
        let (newer, older) = self.ring.split_at(self.oldest());
        let records = older.iter().chain(newer).filter(|slot| !slot.void).map(|slot| slot.record).collect();
        VcpuTrace { index, total: self.total - self.void, records }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Tail;

    const V: u64 = 0xf000;

    fn block(start: u64, last: u64, end: u64, tail: Tail) -> Block {
        let instructions = (start..=last).step_by(4).collect();
        Block { start, last, end, tail, instructions }
    }

    /// A block of three instructions at 0x100, 0x104, 0x108.
    fn at(start: u64, tail: Tail) -> Block {
        block(start, start + 8, start + 12, tail)
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
        /// It is left at this instruction.
        Left(Block, u64),
        Told(u64, u64),
    }
    use Step::{Left, Told, Whole};

    fn run(capacity: usize, steps: &[Step]) -> Vec<Record> {
        let mut recorder = Recorder::new(capacity);
        let mut begun = 0;
        for step in steps {
            match step {
                Whole(block) => {
                    recorder.block(block, begun);
                    begun = block.last;
                }
                Left(block, at) => {
                    recorder.block(block, begun);
                    begun = *at;
                }
                Told(from, to) => recorder.discontinuity(*from, *to),
            }
        }
        recorder.finish(0).records
    }

    #[test]
    fn flows() {
        let stop = |start| Whole(at(start, NEXT));
        type Case = (&'static str, Vec<Step>, Vec<(u64, u64, Kind)>);
        let cases: Vec<Case> = vec![
            ("falls through", vec![Whole(at(0x100, NEXT)), stop(0x10c)], vec![]),
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
    fn every_instruction_is_counted_once() {
        let stop = |start| Whole(at(start, NEXT));
        let cases: Vec<(&str, Vec<Step>, &[u32])> = vec![
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
    fn the_ring_keeps_the_newest_and_counts_all() {
        let blocks: Vec<Block> = (1..=8).map(|i| at(0x1000 * i, RET)).collect();
        let mut recorder = Recorder::new(3);
        let mut begun = 0;
        for block in &blocks {
            recorder.block(block, begun);
            begun = block.last;
        }
        let newest_first: Vec<Record> = recorder.newest_first().copied().collect();
        let mut trace = recorder.finish(1);
        assert_eq!((trace.index, trace.total), (1, 7));
        let to: Vec<u64> = trace.records.iter().map(|r| r.to).collect();
        assert_eq!(to, [0x6000, 0x7000, 0x8000]);
        trace.records.reverse();
        assert_eq!(newest_first, trace.records);
    }

    #[test]
    fn a_branch_on_trial_that_left_the_ring_is_not_counted() {
        let blocks = [at(0x100, COND), at(V, CALL), at(0x200, RET), at(V + 12, IRET), at(0x10c, NEXT)];
        let mut recorder = Recorder::new(2);
        for (block, begun) in blocks.iter().zip([0, 0x108, V + 8, 0x208, V + 20]) {
            recorder.block(block, begun);
        }
        let trace = recorder.finish(0);
        let kinds: Vec<Kind> = trace.records.iter().map(|r| r.kind).collect();
        assert_eq!((trace.total, &kinds[..]), (4, &[Kind::Ret, Kind::Iret][..]));
    }
}
