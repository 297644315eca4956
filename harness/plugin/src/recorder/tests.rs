// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::flow::steps::{
    IRET, K, NEXT, RET,
    Step::{self, Left, Switch, Told, Whole},
    at, call, steps,
};

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
    let call = |n: u64| at(0x100 * n, call(0x100 * n + 0x100)).surely_whole();
    let ret = |n: u64| at(0x100 * n, RET).surely_whole();
    let calls: Vec<Block> = (1..=5).map(call).collect();
    let returns: Vec<Block> = (6..=9).map(ret).collect();
    // Four of the five calls fit; the last return finds an empty ring.
    for (returned, kept) in [(0, &[0x200, 0x300, 0x400, 0x500][..]), (1, &[0x200, 0x300, 0x400])]
        .into_iter()
        .chain([(2, &[0x200, 0x300][..]), (4, &[])])
    {
        let mut recorder = Recorder::selecting(Stack, 4, 0);
        let last = at(0x100 * (6 + returned as u64), NEXT).surely_whole();
        for block in calls.iter().chain(&returns[..returned]).chain([&last]) {
            recorder.block(block, Noted::default);
        }
        let froms: Vec<u64> = recorder.oldest_first().map(|record| record.from - K - 8).collect();
        assert_eq!(froms, kept, "{returned} returns");
    }
}

/// Whether QEMU discards its code between the blocks changes nothing.
fn run(capacity: usize, steps: &[Step]) -> VcpuTrace {
    let trace = run_moving(capacity, steps, false);
    assert_eq!(run_moving(capacity, steps, true), trace);
    trace
}

fn run_moving(capacity: usize, steps: &[Step], moves: bool) -> VcpuTrace {
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
            Switch(..) => unreachable!("the recorder knows no threads"),
        }
        if moves {
            recorder.move_blocks(|block| Box::leak(Box::new(block.clone())));
        }
    }
    recorder.finish(0, false)
}

#[test]
fn records_flows() {
    let cases = [
        ("falls through", "100, 10c", ""),
        ("notes nothing, taken", "whole 100 cond 200, 200", "108>200 cond"),
        (
            "notes nothing, interrupted behind it, after one left in its middle",
            "200 ret left 204, whole 208, f000 iret, 214",
            "214>f000 interrupt, f008>214 iret",
        ),
        (
            "notes nothing, told of an interrupt behind it",
            "whole 100 cond 200, told 200 f000, f000",
            "108>200 cond, 200>f000 interrupt",
        ),
        ("not taken", "100 cond 200, 10c", ""),
        ("taken", "100 cond 200, 200", "108>200 cond"),
        ("taken to its own block", "100 cond 100, 100", "108>100 cond"),
        ("call", "100 call 200, 200", "108>200 call"),
        ("return", "100 ret, 300", "108>300 ret"),
        ("return into its own block", "100 ret, 104", "108>104 ret"),
        ("rep goes on", "100, 108", ""),
        ("device access in the middle", "100 ret left 100, 104", ""),
        (
            "device access in the middle, before a return",
            "100 ret left 104, 108-108 ret, 300",
            "108>300 ret",
        ),
        ("fault in the middle", "100 ret left 104, f000", "104>f000 interrupt"),
        (
            "access to a device in the middle, and its interrupt right behind it",
            "100 ret left 104, f000 iret, 108",
            "108>f000 interrupt, f008>108 iret",
        ),
        (
            "fault in the middle, done again",
            "100 ret left 104, f000 iret, 104",
            "104>f000 interrupt, f008>104 iret",
        ),
        ("fault at the end", "100 may_fault, f000", "108>f000 interrupt"),
        (
            "fault at the end, and a handler that skips it: taken for an interrupt behind it",
            "100 may_fault, f000 iret, 10c",
            "10c>f000 interrupt, f008>10c iret",
        ),
        ("ud2", "100 trap, f000", "108>f000 interrupt"),
        ("interrupt", "100, f000", "10c>f000 interrupt"),
        (
            "interrupt after an instruction that might have faulted",
            "100 may_fault, f000 iret, 10c",
            "10c>f000 interrupt, f008>10c iret",
        ),
        (
            "interrupt after a call",
            "100 call 200, f000 iret, 200",
            "108>200 call, 200>f000 interrupt, f008>200 iret",
        ),
        (
            "interrupt after a conditional that was taken",
            "100 cond 200, f000 iret, 200",
            "108>200 cond, 200>f000 interrupt, f008>200 iret",
        ),
        (
            "interrupt after a conditional that was not",
            "100 cond 200, f000 iret, 10c",
            "10c>f000 interrupt, f008>10c iret",
        ),
        (
            "nested",
            "100 cond 200, f000, f100 iret, f00c iret, 200",
            "108>200 cond, 200>f000 interrupt, f00c>f100 interrupt, f108>f00c iret, f014>200 iret",
        ),
        (
            "a conditional of which nothing became known is left out",
            "100 cond 200, f000",
            "10c>f000 interrupt",
        ),
        (
            "told: interrupt after a return",
            "100 ret, told 300 f000, f000",
            "108>300 ret, 300>f000 interrupt",
        ),
        ("told: the return itself faulted", "100 ret, told 108 f000, f000", "108>f000 interrupt"),
        (
            "told: not taken, then interrupted",
            "100 cond 200, told 10c f000, f000",
            "10c>f000 interrupt",
        ),
        ("told: software interrupt", "100 int, told 10c f000, f000", "108>f000 int"),
        (
            "told: a system call that is an exception",
            "100 syscall, told 10c f000, f000",
            "108>f000 syscall",
        ),
        (
            "told: one that is not, and an interrupt where it led to",
            "100 syscall, told 1000 f000, f000",
            "108>1000 syscall, 1000>f000 interrupt",
        ),
        ("told: one that failed", "100 syscall, told 108 f000, f000", "108>f000 interrupt"),
        (
            "told: an access to a device in the middle, and its interrupt right behind it",
            "100 ret left 104, told 108 f000, f000",
            "108>f000 interrupt",
        ),
        (
            "told: fault in the middle, and an interrupt before its handler ran",
            "100 ret left 104, told 104 f000, told f000 f100, f100",
            "104>f000 interrupt, f000>f100 interrupt",
        ),
    ];
    for (name, flow, expected) in cases {
        let found: Vec<String> = run(100, &steps(flow))
            .records
            .iter()
            .map(|r| format!("{:x}>{:x} {}", r.from & !K, r.to & !K, r.kind))
            .collect();
        assert_eq!(found.join(", "), expected, "{name}");
    }
}

/// Each block has three instructions.
#[test]
fn counts_every_instruction_once() {
    let cases: [(_, _, &[u32]); 12] = [
        (
            "what notes nothing is counted whole",
            "whole 100, whole 10c cond 200, f000 ret, 300",
            &[6, 3],
        ),
        ("a branch ends its line", "100 call 200, 200", &[3]),
        (
            "blocks that fall through, and a branch not taken, are one line",
            "100, 10c cond 200, 118 ret, 300 ret, 400",
            &[9, 3],
        ),
        ("`rep` goes on: one instruction", "100, 108-108, 10c ret, 300", &[6]),
        (
            "an access to a device is done again outside of the block",
            "100 ret left 104, 108-108 ret, 300",
            &[3],
        ),
        ("… or by the next block", "100 ret left 104, 104-108 ret, 300", &[3]),
        ("what faults is begun twice", "100 ret left 104, f000 iret, 104-108 ret, 300", &[2, 3, 2]),
        (
            "a conditional that was taken, then an interrupt",
            "100 cond 200, f000 iret, 200 ret, 300",
            &[3, 0, 3, 3],
        ),
        (
            "a conditional left out leaves its line to the interrupt",
            "100 cond 200, f000 iret, 10c ret, 300",
            &[3, 3, 3],
        ),
        ("… also where nothing became known", "100 cond 200, f000 ret, 300", &[3, 3]),
        (
            "told: not taken, then interrupted",
            "100 cond 200, told 10c f000, f000 iret, 10c",
            &[3, 3],
        ),
        ("told: two at once", "100 ret left 104, told 104 f000, told f000 f100, f100", &[2, 0]),
    ];
    for (name, flow, expected) in cases {
        let found: Vec<u32> =
            run(100, &steps(flow)).records.iter().map(|r| r.instructions).collect();
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
    let to: Vec<u64> = trace.records.iter().map(|r| r.to - K).collect();
    assert_eq!(to, [0x6000, 0x7000, 0x8000]);
    trace.records.reverse();
    assert_eq!(newest_first, trace.records);
}

#[test]
fn does_not_count_a_branch_on_trial_that_left_the_ring() {
    let trace = run(2, &steps("100 cond 200, f000 call 200, 200 ret, f00c iret, 10c"));
    let kinds: Vec<Kind> = trace.records.iter().map(|r| r.kind).collect();
    assert_eq!((trace.total, &kinds[..]), (4, &[Kind::Ret, Kind::Iret][..]));
}

/// Blocks with their reads and writes.
fn accesses(capacity: usize, blocks: &[(Block, u32, u32)], counted: bool) -> Vec<Record> {
    // Those from before the recorder was armed do not count.
    let mut noted = Noted { begun: 0, accesses: 7 * accesses::READ + u64::MAX / 2 };
    let mut recorder = Recorder::new(capacity, noted.accesses);
    for (block, reads, writes) in blocks {
        recorder.block(block, || noted);
        let more = u64::from(*reads) * accesses::READ + u64::from(*writes) * accesses::WRITE;
        noted = Noted { begun: block.last, accesses: noted.accesses.wrapping_add(more) };
    }
    recorder.finish(0, counted).records
}

#[test]
fn counts_accesses_since_the_record_before() {
    let flow = [
        (at(0x300, NEXT), 1, 0),
        (at(0x30c, call(0x200)), 2, 1),
        (at(0x200, RET), 1, 0),
        // A conditional branch on trial, which the handler's return shows as not taken.
        (at(0x100, flow::Tail::Cond { target: K + 0x200 }), 5, 4),
        (at(0xf000, IRET), 3, 2),
        (at(0x10c, NEXT), 9, 9),
    ];
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
    assert_eq!(of(accesses(100, &flow, true)), all);
    assert_eq!(of(accesses(2, &flow, true)), all[2..]);
    let none = all.map(|(kind, _)| (kind, None));
    assert_eq!(of(accesses(100, &flow, false)), none);
}
