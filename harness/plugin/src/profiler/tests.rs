// SPDX-License-Identifier: GPL-2.0-or-later

mod estimates;
mod threads;
mod ways;

use super::*;
use crate::flow::Tail;

/// The kernel's half of the address space, where the tests' short addresses lie.
const K: u64 = 1 << 63;
/// The entry of interrupts.
const ENTRY: u64 = 0xe000;
/// A handler, in the entry text.
const V: u64 = ENTRY + 0x100;
const SWITCH: u64 = 0x5000;

fn block(start: u64, last: u64, tail: Tail) -> Block {
    Block::new((start..=last).step_by(4).collect(), last + 4, tail)
}

/// A kernel block of three instructions: at 0x100, 0x104, 0x108.
fn at(start: u64, tail: Tail) -> Block {
    block(K + start, K + start + 8, tail)
}

/// A block of three instructions in user space.
fn user(start: u64, tail: Tail) -> Block {
    block(start, start + 8, tail)
}

const NEXT: Tail = Tail::Next { may_fault: false };
const RET: Tail = Tail::Indirect { kind: Kind::Ret };
const IRET: Tail = Tail::Indirect { kind: Kind::Iret };
const SYSCALL: Tail = Tail::Indirect { kind: Kind::Syscall };
const SYSRET: Tail = Tail::Indirect { kind: Kind::Sysret };
const JUMP_THERE: Tail = Tail::Indirect { kind: Kind::IndJump };

fn call(target: u64) -> Tail {
    Tail::Direct { kind: Kind::Call, target: K + target }
}

fn jump(target: u64) -> Tail {
    Tail::Direct { kind: Kind::Jump, target: K + target }
}

enum Step {
    /// A block runs to its last instruction.
    Whole(Block),
    /// The block is left at this instruction.
    Left(Block, u64),
    Told(u64, u64),
    /// A switch from one thread to another, in the block that just started.
    Switch(u32, u32),
}
use Step::{Left, Switch, Told, Whole};

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
                *begun = K + at;
            }
            Told(from, to) => profiler.discontinuity(K + from, K + to),
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
    let stop = |start| Whole(at(start, NEXT));
    type Case = (&'static str, Vec<Step>, &'static [&'static str]);
    let cases: Vec<Case> = vec![
        (
            "a call and its return",
            vec![Whole(at(0x100, call(0x200))), Whole(at(0x200, RET)), stop(0x10c)],
            &["? *0 100=3 10c=3", "?/200 *1 200=3"],
        ),
        (
            "a return from no interrupt, to behind itself (`sync_core`), in a handler",
            vec![
                Whole(at(0x100, NEXT)),
                Whole(at(V, call(0x700))),
                Whole(at(0x700, IRET)),
                Whole(at(0x70c, RET)),
                Whole(at(V + 12, IRET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/ie100 *1 e100=3 e10c=3", "?/ie100/700 *1 700=3 70c=3"],
        ),
        (
            "twice from one place, once from another",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(0x10c, jump(0x100))),
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(0x10c, call(0x200))),
                stop(0x200),
            ],
            &["? *0 100=6 10c=6", "?/200 *2 200=6", "?/200 *1 200=3"],
        ),
        (
            "a tail jump: its return is the caller's",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, jump(0x300))),
                Whole(at(0x300, call(0x400))),
                Whole(at(0x400, RET)),
                Whole(at(0x30c, RET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/200 *1 200=3 300=3 30c=3", "?/200/400 *1 400=3"],
        ),
        (
            "recursion",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, call(0x200))),
                Whole(at(0x200, call(0x200))),
                Whole(block(K + 0x200, K + 0x200, RET)),
                Whole(at(0x20c, RET)),
                Whole(at(0x20c, RET)),
                stop(0x10c),
            ],
            &[
                "? *0 100=3 10c=3",
                "?/200 *1 200=3 20c=3",
                "?/200/200 *1 200=3 20c=3",
                "?/200/200/200 *1 200=1",
            ],
        ),
        (
            "`fexit`: the function returns to the trampoline, which returns to the function's \
             caller",
            vec![
                Whole(at(0x100, call(0x200))),
                // The function's entry calls the trampoline, which calls the code after that entry.
                Whole(at(0x200, call(0x900))),
                Whole(at(0x900, call(0x20c))),
                Whole(at(0x20c, RET)),
                // The trampoline drops its return to the function.
                Whole(at(0x90c, RET)),
                stop(0x10c),
            ],
            &[
                "? *0 100=3 10c=3",
                "?/200 *1 200=3",
                "?/200/900 *1 900=3 90c=3",
                "?/200/900/20c *1 20c=3",
            ],
        ),
        (
            "kretprobe: the return address was replaced, and what runs there returns to the real \
             caller",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(0x900, call(0xa00))),
                Whole(at(0xa00, RET)),
                Whole(at(0x90c, RET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/200 *1 200=3 900=3 90c=3", "?/200/a00 *1 a00=3"],
        ),
        (
            "a return over several frames",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, call(0x300))),
                Whole(at(0x300, call(0x400))),
                Whole(at(0x400, RET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/200 *1 200=3", "?/200/300 *1 300=3", "?/200/300/400 *1 400=3"],
        ),
        (
            "a return from what was called before anything was seen",
            vec![Whole(at(0x200, RET)), Whole(at(0x10c, call(0x300))), stop(0x300)],
            &["? *0 10c=3 200=3", "?/300 *1 300=3"],
        ),
        (
            "an interrupt that was inferred",
            vec![
                Whole(at(0x100, NEXT)),
                Whole(at(V, call(0x700))),
                Whole(at(0x700, RET)),
                Whole(at(V + 12, IRET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/ie100 *1 e100=3 e10c=3", "?/ie100/700 *1 700=3"],
        ),
        (
            "one that QEMU told of",
            vec![Whole(at(0x100, NEXT)), Told(0x10c, V), Whole(at(V, IRET)), stop(0x10c)],
            &["? *0 100=3 10c=3", "?/ie100 *1 e100=3"],
        ),
        (
            "one right behind a return, inferred as the return's target; where that led to its own \
             return tells",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(V, IRET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/200 *1 200=3", "?/200/ie100 *1 e100=3"],
        ),
        (
            "… told",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, RET)),
                Told(0x10c, V),
                Whole(at(V, IRET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/200 *1 200=3", "?/ie100 *1 e100=3"],
        ),
        (
            "one right behind a jump through a register",
            vec![Whole(at(0x100, JUMP_THERE)), Whole(at(V, IRET)), stop(0x300)],
            &["? *0 100=3 300=3", "?/ie100 *1 e100=3"],
        ),
        (
            "one right behind a call through a register",
            vec![
                Whole(at(0x100, Tail::Indirect { kind: Kind::IndCall })),
                Whole(at(V, IRET)),
                Whole(at(0x300, RET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/ie100 *1 e100=3", "?/300 *1 300=3"],
        ),
        (
            "… and one right behind that",
            vec![
                Whole(at(0x100, Tail::Indirect { kind: Kind::IndCall })),
                Whole(at(V, IRET)),
                Whole(at(V + 0x100, IRET)),
                Whole(at(0x300, RET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/ie100 *1 e100=3", "?/ie200 *1 e200=3", "?/300 *1 300=3"],
        ),
        (
            "one behind another",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, NEXT)),
                Whole(at(V, IRET)),
                Whole(at(V + 0x100, IRET)),
                Whole(at(0x20c, RET)),
                stop(0x10c),
            ],
            &[
                "? *0 100=3 10c=3",
                "?/200 *1 200=3 20c=3",
                "?/200/ie100 *1 e100=3",
                "?/200/ie200 *1 e200=3",
            ],
        ),
        (
            "one right behind the end of one from user space, and of a system call",
            vec![
                Whole(user(0x100, NEXT)),
                Whole(at(V, IRET)),
                Whole(at(V + 0x100, IRET)),
                Whole(user(0x10c, SYSCALL)),
                Whole(at(0x1000, SYSRET)),
                Whole(at(V, IRET)),
                Whole(user(0x118, NEXT)),
            ],
            &["? *0 0=9", "?/ie100 *2 e100=6", "?/ie200 *1 e200=3", "?/s1000 *1 1000=3"],
        ),
        (
            "jumps and returns within the entry text are none",
            vec![
                Whole(at(V, JUMP_THERE)),
                Whole(at(V + 0x100, call(V + 0x200))),
                Whole(at(V + 0x200, RET)),
                stop(V + 0x10c),
            ],
            &["?/ie100 *1 e100=3 e200=3 e20c=3", "?/ie100/e300 *1 e300=3"],
        ),
        (
            "a conditional, and an interrupt behind it",
            vec![
                Whole(at(0x100, Tail::Cond { target: K + 0x300 })),
                Whole(at(V, IRET)),
                stop(0x300),
            ],
            &["? *0 100=3 300=3", "?/ie100 *1 e100=3"],
        ),
        (
            "one behind a call, before the function began",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(V, IRET)),
                Whole(at(0x200, RET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/200 *1 200=3", "?/200/ie100 *1 e100=3"],
        ),
        (
            "nested",
            vec![
                Whole(at(0x100, NEXT)),
                Whole(at(V, NEXT)),
                Whole(at(V + 0x100, IRET)),
                Whole(at(V + 12, IRET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/ie100 *1 e100=3 e10c=3", "?/ie100/ie200 *1 e200=3"],
        ),
        (
            "told: two at once",
            vec![
                Whole(at(0x100, NEXT)),
                Told(0x10c, V),
                Told(V, V + 0x100),
                Whole(at(V + 0x100, IRET)),
                Whole(at(V, IRET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/ie100 *1 e100=3", "?/ie100/ie200 *1 e200=3"],
        ),
        (
            "a fault in the middle whose handler goes on at a fixup",
            vec![
                Whole(at(0x100, call(0x200))),
                Left(at(0x200, RET), 0x204),
                Whole(at(V, IRET)),
                Whole(at(0x800, RET)),
                stop(0x10c),
            ],
            &["? *0 100=3 10c=3", "?/200 *1 200=2 800=3", "?/200/ie100 *1 e100=3"],
        ),
        (
            "a handler that does not go back by `iret` but returns to a caller of before",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, NEXT)),
                Whole(at(V, RET)),
                stop(0x10c),
            ],
            // Nothing returns past an interrupt: the code that follows belongs to it.
            &["? *0 100=3", "?/200 *1 200=3", "?/200/ie100 *1 10c=3 e100=3"],
        ),
        (
            "from user space, and back",
            vec![
                Whole(user(0x100, NEXT)),
                Whole(at(V, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(V + 12, IRET)),
                Whole(user(0x10c, NEXT)),
            ],
            &["? *0 0=6", "?/ie100 *1 e100=3 e10c=3", "?/ie100/200 *1 200=3"],
        ),
        (
            "an interrupt before anything was seen",
            vec![
                Whole(at(V, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(V + 12, IRET)),
                Whole(user(0x100, NEXT)),
            ],
            &["? *0 0=3", "?/ie100 *1 e100=3 e10c=3", "?/ie100/200 *1 200=3"],
        ),
        (
            "a system call",
            vec![
                Whole(user(0x100, SYSCALL)),
                Whole(at(0x1000, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(0x100c, SYSRET)),
                Whole(user(0x10c, SYSCALL)),
                stop(0x1000),
            ],
            &["? *0 0=6", "?/s1000 *2 1000=6 100c=3", "?/s1000/200 *1 200=3"],
        ),
        (
            "one that ends by `iret`",
            vec![
                Whole(user(0x100, SYSCALL)),
                Whole(at(0x1000, IRET)),
                Whole(user(0x10c, SYSCALL)),
                stop(0x1000),
            ],
            &["? *0 0=6", "?/s1000 *2 1000=6"],
        ),
        (
            "… and an interrupt right behind it",
            vec![
                Whole(user(0x100, SYSCALL)),
                Whole(at(0x1000, IRET)),
                Whole(at(V, IRET)),
                Whole(user(0x10c, NEXT)),
            ],
            &["? *0 0=6", "?/s1000 *1 1000=3", "?/ie100 *1 e100=3"],
        ),
        (
            "`sync_core` within one, and an interrupt right behind it",
            vec![
                Whole(user(0x100, SYSCALL)),
                Whole(at(0x1000, call(0x200))),
                Whole(at(0x200, IRET)),
                Whole(at(V, IRET)),
                Whole(at(0x20c, RET)),
                Whole(at(0x100c, SYSRET)),
                Whole(user(0x10c, NEXT)),
            ],
            &[
                "? *0 0=6",
                "?/s1000 *1 1000=3 100c=3",
                "?/s1000/200 *1 200=3 20c=3",
                "?/s1000/200/ie100 *1 e100=3",
            ],
        ),
        (
            "a function whose return is probed by a breakpoint",
            vec![
                Whole(at(0x100, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(0x300, Tail::Indirect { kind: Kind::Int })),
                Whole(at(V, IRET)),
                Whole(at(0x10c, call(0x200))),
                Whole(at(0x200, RET)),
                Whole(at(0x300, Tail::Indirect { kind: Kind::Int })),
                Whole(at(V, IRET)),
                Whole(at(0x118, NEXT)),
            ],
            &[
                "? *0 100=3 10c=3 118=3",
                "?/200 *1 200=3 300=3",
                "?/200/ie100 *1 e100=3",
                "?/200 *1 200=3 300=3",
                "?/200/ie100 *1 e100=3",
            ],
        ),
        (
            "user code is one, whatever it calls",
            vec![
                Whole(user(0x100, Tail::Direct { kind: Kind::Call, target: 0x200 })),
                Whole(user(0x200, RET)),
                Whole(user(0x10c, SYSCALL)),
                stop(0x1000),
            ],
            &["? *0 0=9", "?/s1000 *1 1000=3"],
        ),
        (
            "left at an access to a device, which is done again outside of the block",
            vec![Left(at(0x100, RET), 0x104), stop(0x108)],
            &["? *0 100=2 108=3"],
        ),
        (
            "… or by the next block",
            vec![Left(at(0x100, RET), 0x104), Whole(block(K + 0x104, K + 0x108, RET)), stop(0x300)],
            &["? *0 100=1 104=2 300=3"],
        ),
        (
            "`rep` goes on",
            vec![Whole(at(0x100, NEXT)), Whole(block(K + 0x108, K + 0x108, NEXT)), stop(0x10c)],
            &["? *0 100=2 108=1 10c=3"],
        ),
    ];
    for (name, steps, expected) in cases {
        let counts = run(&steps);
        assert_eq!(shown(&counts), expected, "{name}");
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
        profiler.discontinuity(K + V, K + V);
        recorder.discontinuity(K + V, K + V);
    }
    assert_eq!((profiler.told.len(), recorder.told()), (MOST_TOLD, MOST_TOLD));
}
