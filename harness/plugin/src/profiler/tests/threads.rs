// SPDX-License-Identifier: GPL-2.0-or-later
//! Threads: each keeps its calls, on whichever vCPU it runs.

use super::*;

/// Steps of a thread switch: called from 0x100, it returns there in the next thread.
fn switching(from: u64, previous: u32, next: u32, back: u64) -> String {
    format!("{from:x} call {SWITCH:x}, {SWITCH:x} ret, switch {previous} {next}, {back:x}")
}

#[test]
fn follows_threads() {
    let there = switching(0x200, 1, 2, 0x30c);
    let back = switching(0x400, 2, 1, 0x20c);
    let again = switching(0x118, 1, 2, 0x40c);
    let flow = format!("100 call 200, {there}, 318 call 400, {back}, 218 ret, 10c, {again}");
    let counts = run(&steps(&flow));
    // The switching block belongs to the next thread, whose first return has no known caller.
    let expected = [
        "t1 *0 100=3 10c=3 118=3",
        "t1/200 *1 200=3 20c=3 218=3",
        "t1/200/5000 *1 5000=3",
        "t2 *0 30c=3 318=3 5000=3",
        "t2/400 *1 400=3 40c=3",
        "t2/400/5000 *1 5000=3",
        "t1/5000 *1",
    ];
    assert_eq!(shown(&counts), expected);
    let threads: Vec<_> =
        counts.threads.iter().map(|t| (t.command.as_str(), t.pid, t.measured)).collect();
    assert_eq!(threads, [("t1", 1, true), ("t2", 2, false)]);

    // A new thread in the memory of an ended one has none of its calls.
    let blocks = [at(0x100, call(0x200)), at(0x200, RET), at(0x300, NEXT)];
    let mut profiler = Profiler::new(setup(), true);
    let mut parked = Parking::default();
    profiler.block(&blocks[0], 0);
    profiler.block(&blocks[1], blocks[0].last);
    profiler.switch(&task(1), &task(2), &mut parked);
    profiler.switch(&task(2), &Task { pid: 9, command: "new".to_owned(), ..task(1) }, &mut parked);
    profiler.block(&blocks[2], blocks[1].last);
    let counts = profiler.finish(0, blocks[2].last);
    assert_eq!(shown(&counts), ["t1 *0 100=3", "t1/200 *1", "new *0 200=3 300=3"]);
    let pids: Vec<u32> = counts.threads.iter().map(|thread| thread.pid).collect();
    assert_eq!(pids, [1, 2, 9]);
}

#[test]
fn moves_a_thread_with_its_calls_to_another_cpu() {
    let mut parked = Parking::default();
    let away = steps(&format!("100 call 200, {}", switching(0x200, 1, 2, 0x90c)));
    let back = steps(&format!("{}, 218 ret, 10c", switching(0x600, 3, 1, 0x20c)));
    let (mut first, mut second) = (Profiler::new(setup(), true), Profiler::new(setup(), false));
    let (mut first_begun, mut second_begun) = (0, 0);
    feed(&mut first, &mut first_begun, &away, &mut parked);
    feed(&mut second, &mut second_begun, &back, &mut parked);
    let first = first.finish(0, first_begun);
    let second = second.finish(1, second_begun);
    assert_eq!(
        shown(&first),
        ["t1 *0 100=3", "t1/200 *1 200=3", "t1/200/5000 *1", "t2 *0 90c=3 5000=3"]
    );
    // Calls are counted where they were made.
    assert_eq!(
        shown(&second),
        [
            "t3 *0 600=3",
            "t3/5000 *1",
            "t1 *0 10c=3",
            "t1/200 *0 20c=3 218=3",
            "t1/200/5000 *0 5000=3"
        ]
    );
}

/// The guest decides how many threads there are, in its own memory.
#[test]
fn limits_made_up_threads_and_reports_it() {
    let mut profiler = Profiler::new(setup(), true);
    let mut parked = Parking::default();
    let threads = MOST_THREADS as u32 + 100;
    for number in 0..threads {
        profiler.switch(&task(number), &task(number + 1), &mut parked);
    }
    assert_eq!(parked.len(), MOST_THREADS);
    let counted = profiler.finish(0, 0);
    assert_eq!(counted.threads.len(), NAMED_THREADS + 1);
    assert!(counted.cut > 0, "nothing says that threads were left out");
}

/// A thousand workers do the same. Their paths are not a thousand times as many.
#[test]
fn many_threads_share_their_counts() {
    let work = |number: u32| {
        let switch = switching(0x600, number, number + 1, 0x60c);
        steps(&format!("{switch}, 60c call 700, 700 ret, 618"))
    };
    let counted = run(&(1..=1000).flat_map(work).collect::<Vec<Step>>());
    assert_eq!((counted.threads.len(), counted.cut), (NAMED_THREADS + 1, 0));
    let others = counted.threads.last().unwrap();
    assert_eq!((others.command.as_str(), others.pid, others.measured), (OTHERS, 0, false));
    assert!(counted.paths.len() < 10 * NAMED_THREADS, "{}", counted.paths.len());
    let shown = shown(&counted);
    let calls = |line: &String| line.split_once("/700 *")?.1.split(' ').next()?.parse::<u64>().ok();
    assert_eq!(shown.iter().filter_map(calls).sum::<u64>(), 1000, "{shown:?}");
}
