// SPDX-License-Identifier: GPL-2.0-or-later

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

/// As in call-stack mode: calls are kept, and returns remove them.
struct Stack;

impl Selection for Stack {
    fn of(&self, _: u64, _: u64, stretch: Stretch) -> Selected {
        match stretch.kind() {
            Some(Kind::Call) => Selected::Kept,
            Some(Kind::Ret) => Selected::Pops,
            _ => Selected::Dropped,
        }
    }
}

#[test]
fn removes_the_newest_record_of_a_ring_that_has_started_over() {
    let call = |at| whole(at, Tail::Direct { kind: Kind::Call, target: at + 0x100 });
    let ret = |at| whole(at, RET);
    let calls: Vec<Block> = (1..=5).map(|at| call(0x100 * at)).collect();
    let returns: Vec<Block> = (6..=9).map(|at| ret(0x100 * at)).collect();
    // Four of the five calls fit; the last return finds an empty ring.
    for (returned, kept) in [(0, &[0x200, 0x300, 0x400, 0x500][..]), (1, &[0x200, 0x300, 0x400])]
        .into_iter()
        .chain([(2, &[0x200, 0x300][..]), (4, &[])])
    {
        let mut recorder = Recorder::selecting(Stack, 4, 0);
        let last = whole(0x100 * (6 + returned as u64), NEXT);
        for block in calls.iter().chain(&returns[..returned]).chain([&last]) {
            recorder.block(block, Noted::default);
        }
        let froms: Vec<u64> = recorder.oldest_first().map(|record| record.from - 8).collect();
        assert_eq!(froms, kept, "{returned} returns");
    }
}

/// Whether QEMU discards its code between the blocks changes nothing.
fn run(capacity: usize, steps: &[Step]) -> Vec<Record> {
    let records = run_moving(capacity, steps, false);
    assert_eq!(run_moving(capacity, steps, true), records);
    records
}

fn run_moving(capacity: usize, steps: &[Step], moves: bool) -> Vec<Record> {
    let mut recorder = Recorder::new(capacity, 0);
    let mut begun = 0;
    for step in steps {
        match step {
            Whole(block) => {
                recorder.block(block, || Noted { begun, accesses: 0 });
                if block.begun(NOTHING) == NOTHING {
                    begun = block.last;
                }
            }
            Left(block, at) => {
                recorder.block(block, || Noted { begun, accesses: 0 });
                begun = *at;
            }
            Told(from, to) => recorder.discontinuity(*from, *to),
        }
        if moves {
            recorder.move_blocks(|block| Box::leak(Box::new(block.clone())));
        }
    }
    recorder.finish(0, false).records
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
            vec![
                Left(at(0x200, RET), 0x204),
                Whole(whole(0x208, NEXT)),
                Whole(at(V, IRET)),
                stop(0x214),
            ],
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
            vec![
                (0x108, 0x200, Kind::Call),
                (0x200, V, Kind::Interrupt),
                (V + 8, 0x200, Kind::Iret),
            ],
        ),
        (
            "interrupt after a conditional that was taken",
            vec![Whole(at(0x100, COND)), Whole(at(V, IRET)), stop(0x200)],
            vec![
                (0x108, 0x200, Kind::Cond),
                (0x200, V, Kind::Interrupt),
                (V + 8, 0x200, Kind::Iret),
            ],
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
            vec![
                Whole(whole(0x100, NEXT)),
                Whole(whole(0x10c, COND)),
                Whole(at(V, RET)),
                stop(0x300),
            ],
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
    let mut recorder = Recorder::new(3, 0);
    let mut begun = 0;
    for block in &blocks {
        recorder.block(block, || Noted { begun, accesses: 0 });
        begun = block.last;
    }
    let newest_first: Vec<Record> = recorder.newest_first().collect();
    let mut trace = recorder.finish(1, true);
    assert_eq!((trace.index, trace.total), (1, 7));
    let to: Vec<u64> = trace.records.iter().map(|r| r.to).collect();
    assert_eq!(to, [0x6000, 0x7000, 0x8000]);
    trace.records.reverse();
    assert_eq!(newest_first, trace.records);
}

#[test]
fn does_not_count_a_branch_on_trial_that_left_the_ring() {
    let blocks = [at(0x100, COND), at(V, CALL), at(0x200, RET), at(V + 12, IRET), at(0x10c, NEXT)];
    let mut recorder = Recorder::new(2, 0);
    for (block, begun) in blocks.iter().zip([0, 0x108, V + 8, 0x208, V + 20]) {
        recorder.block(block, || Noted { begun, accesses: 0 });
    }
    let trace = recorder.finish(0, false);
    let kinds: Vec<Kind> = trace.records.iter().map(|r| r.kind).collect();
    assert_eq!((trace.total, &kinds[..]), (4, &[Kind::Ret, Kind::Iret][..]));
}

/// Blocks, the last instruction of each that begins, and its reads and writes.
fn accesses(capacity: usize, blocks: &[(Block, u64, u32, u32)], counted: bool) -> Vec<Record> {
    // Those from before the recorder was armed do not count.
    let mut noted = Noted { begun: 0, accesses: 7 * accesses::READ + u64::MAX / 2 };
    let mut recorder = Recorder::new(capacity, noted.accesses);
    for (block, begun, reads, writes) in blocks {
        recorder.block(block, || noted);
        let more = u64::from(*reads) * accesses::READ + u64::from(*writes) * accesses::WRITE;
        noted = Noted { begun: *begun, accesses: noted.accesses.wrapping_add(more) };
    }
    recorder.finish(0, counted).records
}

#[test]
fn counts_accesses_since_the_record_before() {
    let flow = || {
        [
            (at(0x300, NEXT), 0x308, 1, 0),
            (at(0x30c, CALL), 0x314, 2, 1),
            (at(0x200, RET), 0x208, 1, 0),
            // A conditional branch on trial, which the handler's return shows as not taken.
            (at(0x100, COND), 0x108, 5, 4),
            (at(V, IRET), V + 8, 3, 2),
            (at(0x10c, NEXT), 0x114, 9, 9),
        ]
    };
    let of = |records: Vec<Record>| -> Vec<(Kind, Option<(u32, u32)>)> {
        let pair = |record: Record| record.accesses.map(|of| (of.reads, of.writes));
        records.into_iter().map(|record| (record.kind, pair(record))).collect()
    };
    let all = [
        (Kind::Call, Some((3, 1))),
        (Kind::Ret, Some((1, 0))),
        // It has those of the branch that was left out.
        (Kind::Interrupt, Some((5, 4))),
        (Kind::Iret, Some((3, 2))),
    ];
    assert_eq!(of(accesses(100, &flow(), true)), all);
    assert_eq!(of(accesses(2, &flow(), true)), all[2..]);
    let none = all.map(|(kind, _)| (kind, None));
    assert_eq!(of(accesses(100, &flow(), false)), none);
}
