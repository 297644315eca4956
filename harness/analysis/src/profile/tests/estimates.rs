// SPDX-License-Identifier: MIT OR Apache-2.0
//! Estimates of recorded-like profiles.

use super::{super::estimate::*, *};
use tramplab_model::cpu::{Cycles, MILLI};
use tramplab_protocol::estimate::Event;

/// Events other than mispredicted branches and misses of caches cost nothing.
pub fn cycles() -> Cycles {
    let (cache, tlb) = (r#"{"kib": 32, "ways": 8}"#, r#"{"entries": 64, "ways": 4}"#);
    serde_json::from_str(&format!(
        r#"{{
            "pipeline": {{"width": 4, "mispredicted": 20, "taken": 0, "source": ""}},
            "caches": {{
                "l1i": {cache}, "l1d": {cache}, "l2": {cache}, "l3": {cache},
                "l2_cycles": 10, "l3_cycles": 40, "memory_cycles": 200, "prefetch": "nothing",
                "source": ""
            }},
            "tlbs": {{
                "code": {tlb}, "data": {tlb}, "l2": {tlb},
                "l2_cycles": 0, "walk_cycles": 0, "source": ""
            }},
            "instructions": {{
                "atomic": 0, "fence": 0, "serializing": 0, "system_register": 0,
                "invalidation": 0, "exception": 0, "exception_return": 0,
                "system_call": 0, "system_call_return": 0, "source": ""
            }}
        }}"#
    ))
    .unwrap()
}

/// The attaching thread calls `f`; an interrupt and another thread have events of their own.
fn with_events() -> Profile {
    let mut profile = profile(
        &[(0, 0, "work", 10), (1, 0, "f", 3), (1, 0, "!irq", 100), (0, 1, "idle", 100)],
        Phase::Attach,
        Unit::Instructions,
    );
    let events = [
        vec![(Event::DataL2, 1)],
        vec![(Event::MispredictedReturn, 2), (Event::DataMemory, 1), (Event::Atomic, 9)],
        vec![(Event::MispredictedReturn, 100)],
        vec![(Event::DataL3, 100)],
    ];
    for (node, events) in profile.nodes.iter_mut().zip(events) {
        node.events = events.into_iter().collect();
    }
    profile
}

#[test]
fn weighs_instructions_and_events() {
    let (weighed, estimate) = weigh(with_events(), "zen9", &cycles());
    assert_eq!((weighed.unit, weighed.cpu.as_deref()), (Unit::EstimatedCycles, Some("zen9")));
    // 10 / 4 + 10; 3 / 4 + 2 * 20 + 200 and the half of before.
    let own: Vec<u64> = weighed.nodes.iter().map(|node| node.own).collect();
    assert_eq!(own, [12, 241, 2025, 4025]);
    // That of the parts below.
    assert_eq!(weighed.totals().task, 253);
    // The attaching thread's alone.
    assert_eq!((estimate.instructions, estimate.instruction_cycles), (13, 3));
    let events: Vec<_> =
        estimate.events.iter().map(|cost| (cost.event, cost.count, cost.cycles)).collect();
    let expected = [
        (Event::MispredictedReturn, 2, 40),
        (Event::DataL2, 1, 10),
        (Event::DataMemory, 1, 200),
        (Event::Atomic, 9, 0),
    ];
    assert_eq!(events, expected);
    let expected = [(Term::Data, 210), (Term::Returns, 40), (Term::Instructions, 3)];
    assert_eq!(terms(&estimate), expected);
}

#[test]
fn tells_the_events_of_each_function() {
    let (weighed, _) = weigh(with_events(), "zen9", &cycles());
    let told = |of| by_function(std::slice::from_ref(&weighed), of);
    let happened = |name: &str, own, times: &[(Term, u64)]| Happened {
        function: Function { name: name.to_owned(), space: Space::Kernel },
        own,
        times: times.to_vec(),
    };
    let expected = [
        happened("f", 241, &[(Term::Returns, 2), (Term::Data, 1), (Term::Atomic, 9)]),
        happened("work", 12, &[(Term::Data, 1)]),
    ];
    assert_eq!(told(Of::Task), expected);
    assert_eq!(told(Of::Interrupts), [happened("irq", 2025, &[(Term::Returns, 100)])]);
}

#[test]
fn counts_one_event_by_call_path() {
    let (weighed, _) = weigh(with_events(), "zen9", &cycles());
    let returns = only(Event::MispredictedReturn, weighed.clone());
    let own: Vec<u64> = returns.nodes.iter().map(|node| node.own).collect();
    assert_eq!(own, [0, 2, 100, 0]);
    assert_eq!(
        folded_of(&tree(&[only(Event::DataL2, weighed)], Of::All)),
        "tramplab-agent;work 1\n"
    );
}

#[test]
fn prints_the_cpu_and_the_events() {
    let (weighed, _) = weigh(with_events(), "zen9", &cycles());
    let subject = Subject::new(std::slice::from_ref(&weighed), Of::Task);
    let mut text = Vec::new();
    text::render(&subject, &tree(std::slice::from_ref(&weighed), Of::Task), 0.0, &mut text)
        .unwrap();
    text::events(&by_function(&[weighed], Of::Task), 0.0, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for line in ["# CPU:       zen9, modelled", "# 1: mispredicted returns"] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = text.lines().rev().skip(1).take(2).map(words).collect();
    assert_eq!(
        rows,
        [
            ["4.74%", "0", "1", "0", "work"].map(str::to_owned),
            ["95.26%", "2", "1", "9", "f"].map(str::to_owned),
        ]
    );
    let both = diff::table(&subject, &subject, &pair(Unit::EstimatedCycles).1);
    assert!(both.notes[1].ends_with("(zen9, modelled)"), "{:?}", both.notes);
}

/// A hostile guest counts what it likes.
#[test]
fn the_largest_counts_stay_the_largest() {
    let mut profile = with_events();
    for node in &mut profile.nodes {
        node.own = u64::MAX;
        node.events = Event::ALL.into_iter().map(|event| (event, u64::MAX)).collect();
    }
    let (weighed, estimate) = weigh(profile, "zen9", &cycles());
    assert_eq!(weighed.nodes[0].own, u64::MAX / MILLI);
    assert_eq!(terms(&estimate)[0].1, u64::MAX);
}
