// SPDX-License-Identifier: GPL-2.0-or-later

mod estimates;
mod threads;
mod ways;

use super::*;
use crate::flow::steps::{
    IRET, K, NEXT, RET,
    Step::{self, Left, Switch, Told, Whole},
    at, block, call, steps,
};

/// The entry of interrupts. Its text has the tests' handlers.
const ENTRY: u64 = 0xe000;
const SWITCH: u64 = 0x5000;

fn task(number: u32) -> Task {
    Task { address: K + u64::from(number), pid: number, command: format!("t{number}") }
}

fn setup() -> Setup {
    Setup {
        switch_to: K + SWITCH,
        entry_start: K + ENTRY,
        entry_end: K + ENTRY + 0x1000,
        comm: 0,
        pid: 0,
    }
}

fn feed<'a>(profiler: &mut Profiler<'a>, begun: &mut u64, steps: &'a [Step], parked: &mut Parking) {
    for step in steps {
        match step {
            Whole(block) => {
                profiler.block(block, *begun);
                *begun = block.last;
            }
            Left(block, at) => {
                profiler.block(block, *begun);
                *begun = *at;
            }
            Told(from, to) => profiler.discontinuity(*from, *to),
            Switch(previous, next) => profiler.switch(&task(*previous), &task(*next), parked),
        }
    }
}

fn run(steps: &[Step]) -> VcpuCounts {
    let mut profiler = Profiler::new(setup(), true);
    let mut begun = 0;
    feed(&mut profiler, &mut begun, steps, &mut Parking::default());
    profiler.finish(0, begun)
}

/// One line per path that was called or that ran anything: thread, calls from the outermost, number
/// of calls, and instructions by block address.
fn shown(counts: &VcpuCounts) -> Vec<String> {
    let short = |address: u64| format!("{:x}", address & !K);
    let mut names: Vec<String> = Vec::new();
    for path in &counts.paths {
        let thread = &counts.threads[path.thread as usize].command;
        let thread = if thread.is_empty() { "?" } else { thread };
        let sign = match path.kind {
            Entered::Call => "",
            Entered::Syscall => "s",
            Entered::Interrupt => "i",
        };
        names.push(match path.parent {
            None => thread.to_owned(),
            Some(parent) => format!("{}/{sign}{}", names[parent as usize], short(path.to)),
        });
    }
    let mut lines = Vec::new();
    for (index, (name, path)) in names.iter().zip(&counts.paths).enumerate() {
        let blocks = counts.blocks.iter().filter(|block| block.path as usize == index);
        let mut blocks: Vec<_> = blocks.map(|block| (block.start, block.instructions)).collect();
        blocks.sort_unstable();
        let blocks: String =
            blocks.iter().map(|(start, count)| format!(" {}={count}", short(*start))).collect();
        if path.calls > 0 || !blocks.is_empty() {
            lines.push(format!("{name} *{}{blocks}", path.calls));
        }
    }
    lines
}

#[test]
fn follows_calls_and_interrupts() {
    let cases = [
        ("a call and its return", "100 call 200, 200 ret, 10c", "? *0 100=3 10c=3; ?/200 *1 200=3"),
        (
            "a return from no interrupt, to behind itself (`sync_core`), in a handler",
            "100, e100 call 700, 700 iret, 70c ret, e10c iret, 10c",
            "? *0 100=3 10c=3; ?/ie100 *1 e100=3 e10c=3; ?/ie100/700 *1 700=3 70c=3",
        ),
        (
            "twice from one place, once from another",
            "100 call 200, 200 ret, 10c jump 100, 100 call 200, 200 ret, 10c call 200, 200",
            "? *0 100=6 10c=6; ?/200 *2 200=6; ?/200 *1 200=3",
        ),
        (
            "a tail jump: its return is the caller's",
            "100 call 200, 200 jump 300, 300 call 400, 400 ret, 30c ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3 300=3 30c=3; ?/200/400 *1 400=3",
        ),
        (
            "recursion",
            "100 call 200, 200 call 200, 200 call 200, 200-200 ret, 20c ret, 20c ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3 20c=3; ?/200/200 *1 200=3 20c=3; \
             ?/200/200/200 *1 200=1",
        ),
        (
            "`fexit`: the function returns to the trampoline, which returns to the function's \
             caller",
            // The function's entry calls the trampoline, which calls the code after that entry, and
            // drops its return to the function.
            "100 call 200, 200 call 900, 900 call 20c, 20c ret, 90c ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3; ?/200/900 *1 900=3 90c=3; ?/200/900/20c *1 20c=3",
        ),
        (
            "kretprobe: the return address was replaced, and what runs there returns to the real \
             caller",
            "100 call 200, 200 ret, 900 call a00, a00 ret, 90c ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3 900=3 90c=3; ?/200/a00 *1 a00=3",
        ),
        (
            "a return over several frames",
            "100 call 200, 200 call 300, 300 call 400, 400 ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3; ?/200/300 *1 300=3; ?/200/300/400 *1 400=3",
        ),
        (
            "a return from what was called before anything was seen",
            "200 ret, 10c call 300, 300",
            "? *0 10c=3 200=3; ?/300 *1 300=3",
        ),
        (
            "an interrupt that was inferred",
            "100, e100 call 700, 700 ret, e10c iret, 10c",
            "? *0 100=3 10c=3; ?/ie100 *1 e100=3 e10c=3; ?/ie100/700 *1 700=3",
        ),
        (
            "one that QEMU told of",
            "100, told 10c e100, e100 iret, 10c",
            "? *0 100=3 10c=3; ?/ie100 *1 e100=3",
        ),
        (
            "one right behind a return, inferred as the return's target; where that led to its own \
             return tells",
            "100 call 200, 200 ret, e100 iret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3; ?/200/ie100 *1 e100=3",
        ),
        (
            "… told",
            "100 call 200, 200 ret, told 10c e100, e100 iret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3; ?/ie100 *1 e100=3",
        ),
        (
            "a call through a register",
            "100 ind_call, 200 call 300, 300 ret, 20c ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3 20c=3; ?/200/300 *1 300=3",
        ),
        (
            "one right behind a jump through a register",
            "100 ind_jump, e100 iret, 300",
            "? *0 100=3 300=3; ?/ie100 *1 e100=3",
        ),
        (
            "one right behind a call through a register",
            "100 ind_call, e100 iret, 300 ret, 10c",
            "? *0 100=3 10c=3; ?/ie100 *1 e100=3; ?/300 *1 300=3",
        ),
        (
            "… and one right behind that",
            "100 ind_call, e100 iret, e200 iret, 300 ret, 10c",
            "? *0 100=3 10c=3; ?/ie100 *1 e100=3; ?/ie200 *1 e200=3; ?/300 *1 300=3",
        ),
        (
            "one behind another",
            "100 call 200, 200, e100 iret, e200 iret, 20c ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3 20c=3; ?/200/ie100 *1 e100=3; ?/200/ie200 *1 e200=3",
        ),
        (
            "one right behind the end of one from user space, and of a system call",
            "u100, e100 iret, e200 iret, u10c syscall, 1000 sysret, e100 iret, u118",
            "? *0 0=9; ?/ie100 *2 e100=6; ?/ie200 *1 e200=3; ?/s1000 *1 1000=3",
        ),
        (
            "jumps and returns within the entry text are none",
            "e100 ind_jump, e200 call e300, e300 ret, e20c",
            "?/ie100 *1 e100=3 e200=3 e20c=3; ?/ie100/e300 *1 e300=3",
        ),
        (
            "a conditional, and an interrupt behind it",
            "100 cond 300, e100 iret, 300",
            "? *0 100=3 300=3; ?/ie100 *1 e100=3",
        ),
        (
            "one behind a call, before the function began",
            "100 call 200, e100 iret, 200 ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=3; ?/200/ie100 *1 e100=3",
        ),
        (
            "nested",
            "100, e100, e200 iret, e10c iret, 10c",
            "? *0 100=3 10c=3; ?/ie100 *1 e100=3 e10c=3; ?/ie100/ie200 *1 e200=3",
        ),
        (
            "told: two at once",
            "100, told 10c e100, told e100 e200, e200 iret, e100 iret, 10c",
            "? *0 100=3 10c=3; ?/ie100 *1 e100=3; ?/ie100/ie200 *1 e200=3",
        ),
        (
            "a fault in the middle whose handler goes on at a fixup",
            "100 call 200, 200 ret left 204, e100 iret, 800 ret, 10c",
            "? *0 100=3 10c=3; ?/200 *1 200=2 800=3; ?/200/ie100 *1 e100=3",
        ),
        (
            "a handler that does not go back by `iret` but returns to a caller of before",
            "100 call 200, 200, e100 ret, 10c",
            // Nothing returns past an interrupt: the code that follows belongs to it.
            "? *0 100=3; ?/200 *1 200=3; ?/200/ie100 *1 10c=3 e100=3",
        ),
        (
            "from user space, and back",
            "u100, e100 call 200, 200 ret, e10c iret, u10c",
            "? *0 0=6; ?/ie100 *1 e100=3 e10c=3; ?/ie100/200 *1 200=3",
        ),
        (
            "an interrupt before anything was seen",
            "e100 call 200, 200 ret, e10c iret, u100",
            "? *0 0=3; ?/ie100 *1 e100=3 e10c=3; ?/ie100/200 *1 200=3",
        ),
        (
            "a system call",
            "u100 syscall, 1000 call 200, 200 ret, 100c sysret, u10c syscall, 1000",
            "? *0 0=6; ?/s1000 *2 1000=6 100c=3; ?/s1000/200 *1 200=3",
        ),
        (
            "one that ends by `iret`",
            "u100 syscall, 1000 iret, u10c syscall, 1000",
            "? *0 0=6; ?/s1000 *2 1000=6",
        ),
        (
            "… and an interrupt right behind it",
            "u100 syscall, 1000 iret, e100 iret, u10c",
            "? *0 0=6; ?/s1000 *1 1000=3; ?/ie100 *1 e100=3",
        ),
        (
            "`sync_core` within one, and an interrupt right behind it",
            "u100 syscall, 1000 call 200, 200 iret, e100 iret, 20c ret, 100c sysret, u10c",
            "? *0 0=6; ?/s1000 *1 1000=3 100c=3; ?/s1000/200 *1 200=3 20c=3; \
             ?/s1000/200/ie100 *1 e100=3",
        ),
        (
            "a function whose return is probed by a breakpoint",
            "100 call 200, 200 ret, 300 int, e100 iret, 10c call 200, 200 ret, 300 int, e100 iret, \
             118",
            "? *0 100=3 10c=3 118=3; ?/200 *1 200=3 300=3; ?/200/ie100 *1 e100=3; \
             ?/200 *1 200=3 300=3; ?/200/ie100 *1 e100=3",
        ),
        (
            "user code is one, whatever it calls",
            "u100 call u200, u200 ret, u10c syscall, 1000",
            "? *0 0=9; ?/s1000 *1 1000=3",
        ),
        (
            "left at an access to a device, which is done again outside of the block",
            "100 ret left 104, 108",
            "? *0 100=2 108=3",
        ),
        ("… or by the next block", "100 ret left 104, 104-108 ret, 300", "? *0 100=1 104=2 300=3"),
        ("`rep` goes on", "100, 108-108, 10c", "? *0 100=2 108=1 10c=3"),
    ];
    for (name, flow, expected) in cases {
        let counts = run(&steps(flow));
        assert_eq!(shown(&counts).join("; "), expected, "{name}");
        assert_eq!(counts.cut, 0, "{name}");
    }
}

#[test]
fn counts_too_deep_calls_at_their_caller() {
    let recursing = at(0x100, call(0x100));
    let mut profiler = Profiler::new(setup(), true);
    let mut begun = 0;
    for _ in 0..DEEPEST + 11 {
        profiler.block(&recursing, begun);
        begun = recursing.last;
    }
    let counts = profiler.finish(0, begun);
    assert_eq!(counts.cut, 10);
    let deepest = counts.blocks.last().unwrap();
    assert_eq!((counts.paths.len(), deepest.instructions, deepest.times), (DEEPEST + 1, 33, 11));
}

/// Vectors that lead nowhere interrupt forever, and nothing runs.
#[test]
fn does_not_store_endless_interrupts() {
    let mut profiler = Profiler::new(setup(), true);
    let mut recorder = crate::recorder::Recorder::new(16, 0);
    for _ in 0..100 * MOST_TOLD {
        profiler.discontinuity(K + ENTRY, K + ENTRY);
        recorder.discontinuity(K + ENTRY, K + ENTRY);
    }
    assert_eq!((profiler.told.len(), recorder.told()), (MOST_TOLD, MOST_TOLD));
}
