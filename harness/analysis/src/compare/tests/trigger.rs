// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on hits of the recorded run that cost more or less.

use super::*;
use tramplab_model::{
    kinds::trigger::{self, EstimatedHit},
    profile::Estimate,
    run::{Mispredicted, Predicted},
};
use tramplab_protocol::trace;

/// Two runs with one fexit hit, the head's changed by `change`.
fn with_a_changed_hit(change: fn(&mut TriggerCost)) -> (Run, Run) {
    let stored = tramplab_testdata::stored();
    let mut base = recorded();
    let kernel = base.series[0].base().kernel.clone();
    let mut cell = stored
        .cells
        .into_iter()
        .find(|cell| cell.id.kernel == "6.12" && cell.id.test.name() == "trigger/fexit")
        .expect("a trigger cell");
    cell.id.kernel = kernel;
    base.cells = vec![cell.clone()];
    let mut head = base.clone();
    let Some(Measurement::Trigger(trigger)) = &mut head.cells[0].measurement else {
        panic!("no trigger")
    };
    change(trigger.cost.as_mut().expect("counted"));
    (base, head)
}

#[test]
fn judges_hits_and_lists_changed_records() {
    let dearer: fn(&mut TriggerCost) = |cost| {
        cost.parts[1].instructions += 2;
        cost.parts[1].records[3].instructions += 2;
    };
    let cheaper: fn(&mut TriggerCost) = |cost| {
        cost.parts[0].records.remove(2);
        cost.parts[0].instructions -= 4;
        cost.parts[0].branches -= 1;
    };
    let same: fn(&mut TriggerCost) = |_| {};
    type Case = (fn(&mut TriggerCost), [Verdict; 2], [usize; 3]);
    // Verdicts on instructions and branches. Numbers of removed, added and moved records.
    let table: [Case; 3] = [
        (same, [SAME, SAME], [0, 0, 0]),
        (dearer, [Verdict::Worse, SAME], [0, 0, 1]),
        (cheaper, [Verdict::Better, Verdict::Better], [1, 0, 0]),
    ];
    for (change, verdicts, sides) in table {
        let (base, head) = with_a_changed_hit(change);
        let pairs = pair_up(&[&base.cells[0]], &[&head.cells[0]]);
        let compare_with = |trigger| {
            let tolerance = Tolerance { trigger, ..Tolerance::default() };
            compare("a", "b", &pairs, MODEL, tolerance, Timing::Interleaved, &Layout::default())
        };
        let comparison = compare_with(0);
        for (name, expected) in
            ["trigger.fexit.instructions", "trigger.fexit.branches"].into_iter().zip(&verdicts)
        {
            let compared = verdict(&comparison, name);
            assert_eq!(compared.verdict, *expected, "{name}");
        }
        let name = "trigger.fexit.instructions";
        let tolerated = &compare_with(4);
        let expected = if verdicts[0] == SAME { SAME } else { TOLERATED };
        assert_eq!(verdict(tolerated, name).verdict, expected);
        // One boot proves nothing.
        assert!(matches!(
            verdict(&comparison, "trigger.fexit.time").verdict,
            Verdict::NotJudged(_)
        ));
        let found = [Side::Base, Side::Head, Side::Moved].map(|side| {
            let rows = comparison.listings.iter().flat_map(|listings| &listings.rows);
            rows.filter(|row| row.side() == side).count()
        });
        assert_eq!(found, sides);
    }
}

/// The same mechanism alone and beside another tracer: two tests, each compared with itself.
#[test]
fn compares_tests_with_others_beside_separately() {
    let (mut base, mut head) = with_a_changed_hit(|_| {});
    for run in [&mut base, &mut head] {
        let mut beside = run.cells[0].clone();
        let Test::Trigger(trigger::Test { beside: set, .. }) = &mut beside.id.test else {
            panic!("no trigger")
        };
        *set = BesideSet::of([Beside::FunctionTracer]).unwrap();
        run.cells.push(beside);
    }
    let Some(Measurement::Trigger(trigger)) = &mut head.cells[1].measurement else {
        panic!("no trigger")
    };
    trigger.cost.as_mut().unwrap().parts[0].instructions += 1;
    let pairs =
        pair_up(&base.cells.iter().collect::<Vec<_>>(), &head.cells.iter().collect::<Vec<_>>());
    let comparison = interleaved(&pairs);
    for (name, expected) in [
        ("trigger.fexit.instructions", SAME),
        ("trigger.fexit+function_tracer.instructions", Verdict::Worse),
    ] {
        let compared = verdict(&comparison, name);
        assert_eq!(compared.verdict, expected, "{name}");
        assert_eq!(
            format!("trigger/{}", name.split('.').nth(1).unwrap()),
            compared.metric.test().name()
        );
    }
    let subjects: Vec<String> =
        comparison.listings.iter().map(|one| one.subject.to_string()).collect();
    let expected = [
        "fexit, entry",
        "fexit, exit",
        "fexit+function_tracer, entry",
        "fexit+function_tracer, exit",
    ];
    assert_eq!(subjects, expected.map(|of| format!("trigger of {of}")));
}

#[test]
fn compares_only_times_if_one_side_was_not_counted() {
    let (base, mut head) = with_a_changed_hit(|_| {});
    let Some(Measurement::Trigger(trigger)) = &mut head.cells[0].measurement else {
        panic!("no trigger")
    };
    trigger.cost = None;
    let pairs = pair_up(&[&base.cells[0]], &[&head.cells[0]]);
    let comparison = interleaved(&pairs);
    let names: Vec<String> =
        comparison.metrics.iter().map(|compared| compared.metric.to_string()).collect();
    assert_eq!(names, ["trigger.fexit.time"]);
}

fn estimated(cycles: u64) -> Option<Box<EstimatedHit>> {
    let sum = |instruction_cycles| Estimate {
        cpu: "zen4".to_owned(),
        instructions: instruction_cycles,
        instruction_cycles,
        events: Vec::new(),
    };
    let (attached, detached) = (sum(cycles * 100), sum(0));
    Some(Box::new(EstimatedHit { hits: 100, attached, detached, cold: None }))
}

#[test]
fn tolerates_half_a_per_cent_of_estimated_cycles() {
    for (cycles, expected) in [
        (1000, SAME),
        (1005, TOLERATED),
        (995, TOLERATED),
        (1006, Verdict::Worse),
        (994, Verdict::Better),
    ] {
        let (mut base, mut head) = with_a_changed_hit(|_| {});
        for (run, cycles) in [(&mut base, 1000), (&mut head, cycles)] {
            let Some(Measurement::Trigger(trigger)) = &mut run.cells[0].measurement else {
                panic!("no trigger")
            };
            trigger.cost.as_mut().unwrap().estimate = estimated(cycles);
        }
        let pairs = pair_up(&[&base.cells[0]], &[&head.cells[0]]);
        let comparison = interleaved(&pairs);
        let compared = verdict(&comparison, "trigger.fexit.estimated_cycles");
        assert_eq!(compared.verdict, expected, "{cycles}");
        assert_eq!(verdict(&comparison, "trigger.fexit.instructions").verdict, SAME);
    }
}

/// Estimates of two CPUs say nothing of the kernels.
#[test]
fn does_not_judge_estimates_of_different_cpus() {
    let (mut base, mut head) = with_a_changed_hit(|_| {});
    for (run, cycles, cpu) in [(&mut base, 1000, "zen3"), (&mut head, 2000, "zen4")] {
        let mut hit = estimated(cycles).unwrap();
        hit.attached.cpu = cpu.to_owned();
        let Some(Measurement::Trigger(trigger)) = &mut run.cells[0].measurement else {
            panic!("no trigger")
        };
        trigger.cost.as_mut().unwrap().estimate = Some(hit);
    }
    let comparison = interleaved(&pair_up(&[&base.cells[0]], &[&head.cells[0]]));
    let found = &verdict(&comparison, "trigger.fexit.estimated_cycles").verdict;
    assert_eq!(*found, Verdict::NotJudged("estimated for another CPU"));
    assert_eq!(comparison.findings, []);
}

/// One conditional branch that met another in its set explains no more than its own cycles.
#[test]
fn estimates_do_not_move_by_what_hangs_on_addresses() {
    use tramplab_model::profile::EventCost;
    use tramplab_protocol::estimate::Event;
    let hit = |instruction_cycles, event, cycles: u64| {
        let mut hit = estimated(instruction_cycles).unwrap();
        // A tenth of a cycle less is of others.
        let cycles = (100 * cycles).saturating_sub(10);
        hit.attached.events = vec![EventCost { event, count: 1, cycles }];
        hit.attached.instruction_cycles += 10;
        Some(hit)
    };
    for (event, instructions, expected) in [
        (Event::MispredictedConditional, 1000, Verdict::Same(Difference::Layout)),
        (Event::DataL2, 1000, Verdict::Same(Difference::Layout)),
        (Event::DataL2, 1005, Verdict::Same(Difference::Layout)),
        (Event::DataL2, 1006, Verdict::Worse),
        (Event::MispredictedReturn, 1000, Verdict::Worse),
    ] {
        let (mut base, mut head) = with_a_changed_hit(|_| {});
        let sides = [(&mut base, hit(1000, event, 0)), (&mut head, hit(instructions, event, 13))];
        for (run, estimate) in sides {
            let Some(Measurement::Trigger(trigger)) = &mut run.cells[0].measurement else {
                panic!("no trigger")
            };
            trigger.cost.as_mut().unwrap().estimate = estimate;
        }
        let pairs = pair_up(&[&base.cells[0]], &[&head.cells[0]]);
        let comparison = interleaved(&pairs);
        let compared = verdict(&comparison, "trigger.fexit.estimated_cycles");
        assert_eq!(compared.verdict, expected, "{event:?} {instructions}");
    }
}

/// A misprediction more, and the cycles that it costs.
#[test]
fn explains_estimated_cycles_by_mispredicted_returns() {
    let (mut base, mut head) = with_a_changed_hit(|_| {});
    let [base_hit, head_hit] = [&mut base, &mut head].map(|run| {
        let Some(Measurement::Trigger(trigger)) = &mut run.cells[0].measurement else {
            panic!("no trigger")
        };
        trigger.cost.as_mut().unwrap()
    });
    let first = head_hit.parts[0].records[0].clone();
    let predicted = |all: &[Mispredicted]| Predicted {
        depth: 16,
        hits: 8,
        returns: 9,
        mispredicted_returns: all.len() as u32,
        indirect: 0,
        mispredicted_indirect: 0,
        mispredicted: all.to_vec(),
    };
    let missed = Mispredicted { from: first.to, to: first.from, kind: trace::Kind::Ret };
    (base_hit.predicted, base_hit.estimate) = (Some(predicted(&[])), estimated(100));
    (head_hit.predicted, head_hit.estimate) = (Some(predicted(&[missed])), estimated(113));
    let pairs = pair_up(&[&base.cells[0]], &[&head.cells[0]]);
    let comparison = interleaved(&pairs);
    let [finding] = &comparison.findings[..] else { panic!("{:#?}", comparison.findings) };
    assert!(matches!(finding.cause, Cause::Code(_)), "{finding:#?}");
    let moved: Vec<(String, Option<i64>)> =
        finding.moved.iter().map(|share| (share.metric.to_string(), share.change)).collect();
    let expected =
        [("trigger.fexit.mispredicted_returns", 1), ("trigger.fexit.estimated_cycles", 13)];
    assert_eq!(moved, expected.map(|(name, change)| (name.to_owned(), Some(change))));
    use crate::profile::estimate::Term;
    let terms: Vec<_> = finding.moved.iter().map(|share| share.terms.clone()).collect();
    assert_eq!(terms, [vec![], vec![(Term::Instructions, 13)]]);
}
