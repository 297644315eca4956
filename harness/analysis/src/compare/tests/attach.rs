// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attach cells of the recorded run, changed.

use super::*;
use crate::profile::{Cost, Estimate, Function, Phase, Space, Summary, Totals, Unit};
use tramplab_model::{profile::EventCost, run::Clock};
use tramplab_protocol::{estimate::Event, message::Explain};

/// The recorded attach cells of base and head. The head's measurement is the base's with `change`
/// applied, so that nothing else differs.
fn with_a_changed_attach(change: impl Fn(&mut Attach)) -> Run {
    let mut run = recorded();
    let series = &mut run.series[0];
    series.steps.remove(1);
    let head = series.head().kernel.clone();
    let is_attach = |cell: &&Cell| matches!(cell.id.test, Test::Attach(_));
    let base = run.cells.iter().find(is_attach).expect("an attach cell").clone();
    assert_eq!(base.id.kernel, series.base().kernel);
    let mut changed = base.clone();
    changed.id.kernel = head;
    let Some(Measurement::Attach(attach)) = &mut changed.measurement else { panic!("no attach") };
    change(attach);
    run.cells = vec![base, changed];
    run
}

/// Changes all values behind the exact metrics by `changed`.
fn scale(attach: &mut Attach, changed: impl Fn(u64) -> u64) {
    for round in &mut attach.exact.as_mut().expect("the exact clock").rounds {
        for ns in [&mut round.load_ns, &mut round.attach_ns, &mut round.detach_ns] {
            *ns = changed(*ns);
        }
    }
    for summary in &mut attach.explained {
        summary.totals.task = changed(summary.totals.task);
    }
}

const EXACT: [&str; 5] = [
    "attach.kprobe_multi.10.load.exact",
    "attach.kprobe_multi.10.attach.exact",
    "attach.kprobe_multi.10.detach.exact",
    "attach.kprobe_multi.10.attach.instructions",
    "attach.kprobe_multi.10.detach.instructions",
];

#[test]
fn judges_exact_differences_beyond_tolerance_and_layout() {
    let per_mille = |n: u64| move |value: u64| value * n / 1000;
    type Change = Box<dyn Fn(u64) -> u64>;
    let waits = || Verdict::NotJudged("a grace period that is just missed costs another one");
    // Times to load, attach and detach; instructions to attach and detach.
    let all = |verdict: Verdict| [(); 5].map(|()| verdict.clone());
    let beyond = |verdict: Verdict| {
        let [load, attach, thread, detached] = [(); 4].map(|()| verdict.clone());
        [load, attach, waits(), thread, detached]
    };
    let table: [(&str, Change, [Verdict; 5]); 8] = [
        ("the same", Box::new(|value| value), all(SAME)),
        ("one more", Box::new(|value| value + 1), all(TOLERATED)),
        ("one less", Box::new(|value| value - 1), all(TOLERATED)),
        ("0.4 % more", Box::new(per_mille(1004)), all(TOLERATED)),
        ("0.6 % more", Box::new(per_mille(1006)), beyond(Verdict::Worse)),
        ("1 % more", Box::new(per_mille(1010)), beyond(Verdict::Worse)),
        ("twice", Box::new(per_mille(2000)), beyond(Verdict::Worse)),
        ("half", Box::new(per_mille(500)), beyond(Verdict::Better)),
    ];
    for (what, change, expected) in table {
        let mut run = with_a_changed_attach(|attach| scale(attach, &change));
        run.tolerance = Tolerance::default();
        let comparison = of_series(&run, whole);
        for (name, expected) in EXACT.iter().zip(&expected) {
            assert_eq!(verdict(&comparison, name).verdict, *expected, "{name}: {what}");
        }
        // The suite's tolerance decides.
        run.tolerance.exact_percent = 200.0;
        let comparison = of_series(&run, whole);
        for name in EXACT {
            let found = &verdict(&comparison, name).verdict;
            assert!([SAME, TOLERATED].contains(found), "{name}: {what}, {found}");
        }
    }
}

/// A difference of twice the placebo's move is not a cost. One more is.
#[test]
fn treats_differences_within_the_placebo_band_as_layout() {
    let name = EXACT[1];
    for (more, expected) in [(0, LAYOUT), (1, Verdict::Worse)] {
        let moved = |value: u64| value * 11 / 10;
        let twice = |value: u64| value + 2 * (moved(value) - value) + more;
        let mut run = with_a_changed_attach(|attach| scale(attach, twice));
        run.tolerance = Tolerance::default();
        // The tree is the base.
        run.series[0].reverse = false;
        let series = run.series[0].clone();
        assert_eq!(verdict(&of_series(&run, whole), name).verdict, Verdict::Worse);
        let mut placebo = with_a_changed_attach(|attach| scale(attach, moved));
        let head = &series.head().kernel;
        let mut cells: Vec<Cell> =
            placebo.cells.drain(..).filter(|cell| cell.id.kernel == *head).collect();
        cells.iter_mut().for_each(|cell| cell.id.kernel = "placebo".to_owned());
        run.cells.extend(cells);
        run.series[0].placebos = vec!["placebo".to_owned()];
        assert_eq!(verdict(&of_series(&run, whole), name).verdict, expected, "{more}");
    }
}

/// Both sides' times are those of the budget, so the numbers of functions differ.
#[test]
fn does_not_judge_stopped_or_differently_sized_attaching() {
    let stopped = Stopped { wanted: 10, attached: 7, detached: 7, seconds: 1 };
    let run = with_a_changed_attach(|attach| {
        scale(attach, |value| value * 2);
        attach.boots[0].stopped = Some(stopped);
        attach.exact.as_mut().unwrap().stopped = Some(stopped);
        attach.explained.iter_mut().for_each(|summary| summary.attached = 7);
    });
    let comparison = of_series(&run, whole);
    let attaching = |compared: &&Compared| compared.metric.to_string().starts_with("attach.");
    let judged: Vec<_> = comparison.metrics.iter().filter(attaching).collect();
    assert_eq!(judged.len(), 10);
    for Compared { metric, verdict, .. } in judged {
        assert!(matches!(verdict, Verdict::NotJudged(_)), "{metric}: {verdict}");
    }
}

#[test]
fn fails_the_cell_if_attaching_costs_two_per_cent_more() {
    let mut run = with_a_changed_attach(|attach| scale(attach, |value| value * 102 / 100));
    judge(&mut run);
    let Outcome::Fail { reasons } = &run.cells[1].outcome else {
        panic!("{:?}", run.cells[1].outcome)
    };
    let metrics: Vec<&str> =
        reasons.iter().map(|reason| reason.split(' ').next().unwrap()).collect();
    // The wait of detaching may depend on one instruction.
    assert_eq!(metrics, [EXACT[0], EXACT[1], EXACT[3], EXACT[4]]);
    assert_eq!(run.cells[0].outcome, Outcome::Pass);
}

/// The host's clock sends interrupts at any time, which change the thread's work. Equal numbers are
/// still the same.
#[test]
fn does_not_judge_instructions_counted_under_the_hosts_clock() {
    let free =
        |summary: &mut crate::profile::Summary| summary.clock = tramplab_model::run::Clock::Free;
    for (more, expected) in
        [(0, SAME), (1_000_000, Verdict::NotJudged("counted under the host's clock"))]
    {
        let one_side = with_a_changed_attach(|attach| {
            scale(attach, |value| value + more);
            attach.explained.iter_mut().for_each(free);
        });
        let mut both_sides = one_side.clone();
        let Some(Measurement::Attach(base)) = &mut both_sides.cells[0].measurement else {
            panic!()
        };
        base.explained.iter_mut().for_each(free);
        for run in [one_side, both_sides] {
            let comparison = of_series(&run, whole);
            for name in &EXACT[3..] {
                let compared = verdict(&comparison, name);
                assert_eq!(compared.verdict, expected, "{name}");
            }
        }
    }
}

#[test]
fn compares_exact_numbers_only_if_both_sides_have_them() {
    let exact = |change: fn(&mut Attach)| -> Vec<String> {
        let comparison = of_series(&with_a_changed_attach(change), whole);
        let names = comparison.metrics.iter().map(|compared| compared.metric.to_string());
        names.filter(|name| EXACT.contains(&name.as_str())).collect()
    };
    assert_eq!(exact(|_| {}), EXACT);
    assert_eq!(exact(|attach| attach.exact = None), EXACT[3..]);
    assert_eq!(exact(|attach| attach.explained.clear()), EXACT[..3]);
    assert_eq!(exact(|attach| attach.exact.as_mut().unwrap().rounds.clear()), EXACT[3..]);
    // Samples are not instructions.
    let sampled = |attach: &mut Attach| {
        attach.explained.iter_mut().for_each(|one| one.how = Explain::Sampled);
    };
    assert_eq!(exact(sampled), EXACT[..3]);
    // The exact numbers do not need the host's clock.
    assert_eq!(exact(|attach| attach.boots.clear()), EXACT);
}

#[test]
fn compares_the_median_round() {
    let run = with_a_changed_attach(|attach| {
        let rounds = &mut attach.exact.as_mut().unwrap().rounds;
        assert_eq!(rounds.len(), 3);
        let (first, last) = (rounds[0], rounds[2]);
        // Reorder the rounds, and make the longest even longer.
        rounds[0] = last;
        rounds[2] = first;
        let longest = rounds.iter_mut().max_by_key(|round| round.attach_ns).unwrap();
        longest.attach_ns += longest.attach_ns / 3;
    });
    let comparison = of_series(&run, whole);
    assert_eq!(verdict(&comparison, EXACT[1]).verdict, SAME);
}

#[test]
fn reports_other_functions_and_still_judges() {
    let every: fn(&mut Attach) = |attach| {
        let Attach { boots, exact, .. } = attach;
        boots.iter_mut().chain(exact).for_each(|boot| boot.list_sha256 = "0".repeat(64));
    };
    let one: fn(&mut Attach) = |attach| attach.boots[0].list_sha256 = "0".repeat(64);
    let only_exact: fn(&mut Attach) =
        |attach| attach.exact.as_mut().unwrap().list_sha256 = "0".repeat(64);
    for change in [every, one, only_exact] {
        let run = with_a_changed_attach(change);
        let comparison = of_series(&run, whole);
        assert_eq!(comparison.other_functions, [run.cells[0].id.test.clone()]);
        assert_eq!(verdict(&comparison, EXACT[0]).verdict, SAME);
    }
    assert_eq!(of_series(&with_a_changed_attach(|_| {}), whole).other_functions, []);
}

/// The recorded run, with another clock source in the head's guests.
fn with_other_clock(change: fn(&mut tramplab_model::run::Cell)) -> Run {
    let mut run = recorded();
    let head = run.series[0].head().kernel.clone();
    run.cells.iter_mut().filter(|cell| cell.id.kernel == head).for_each(change);
    run
}

#[test]
fn does_not_judge_times_by_different_clock_sources() {
    let hpet: fn(&mut tramplab_model::run::Cell) = |cell| {
        if let Some(guest) = &mut cell.guest {
            guest.clocksource = "hpet".to_owned();
        }
    };
    let both: fn(&mut tramplab_model::run::Cell) = |cell| cell.add_clock_source("hpet");
    for (change, clocks) in [(hpet, "hpet"), (both, "hpet, tsc")] {
        let run = with_other_clock(change);
        let comparison = of_series(&run, whole);
        for Compared { metric, verdict, .. } in &comparison.metrics {
            let refused = Verdict::NotJudged("the guests had different clock sources");
            assert_eq!(*verdict == refused, metric.is_by_hosts_clock(), "{metric}");
        }
        // A test without a time needs no report.
        let [(test, [base, head])] = &comparison.other_clocks[..] else { panic!("{comparison:?}") };
        assert_eq!(
            (test.name().as_str(), base.as_str(), head.as_str()),
            ("attach/kprobe.multi/10", "tsc", clocks)
        );
    }
    // It is the same counter, before and after its second calibration.
    assert_eq!(of_series(&recorded(), whole).other_clocks, []);
}

#[test]
fn rejects_runs_timed_by_different_clock_sources() {
    let (base, head) = (
        recorded(),
        with_other_clock(|cell| {
            if cell.guest.is_some() && matches!(cell.id.test, Test::Attach(_)) {
                cell.add_clock_source("hpet");
            }
        }),
    );
    let of = |run: &Run| {
        let kernel = run.kernels.iter().find(|kernel| kernel.name == run.series[0].head().kernel);
        kernel.cloned().unwrap()
    };
    let (a, b) = (of(&base), of(&head));
    let side = |run, kernel| Measured { run, kernel, config: None };
    let (this, other) = (side(&base, &a), side(&head, &b));
    assert_eq!(obstacles(&this, &this), Vec::<String>::new());
    assert_eq!(
        obstacles(&this, &other),
        ["their guests had different clock sources: tsc and hpet, tsc"]
    );
    // Nothing was timed, so no number depends on the clock.
    let mut untimed = with_other_clock(|cell| cell.add_clock_source("hpet"));
    untimed.cells.retain(|cell| !matches!(cell.id.test, Test::Attach(_)));
    assert_eq!(obstacles(&this, &side(&untimed, &of(&untimed))), Vec::<String>::new());
}

/// Whoever waits for a grace period has no time of its own: the waits are counted.
#[test]
fn judges_waits_by_their_number() {
    let missed = Verdict::NotJudged("a grace period that is just missed costs another one");
    let one_side =
        Verdict::NotJudged("one side waits for grace periods, which are counted beside it");
    for (base, head, time, waits) in [
        (None, None, missed.clone(), None),
        (Some(200), Some(200), missed, Some(SAME)),
        (Some(200), Some(0), one_side.clone(), Some(Verdict::Better)),
        (Some(0), Some(1), one_side, Some(Verdict::Worse)),
        (Some(0), Some(0), Verdict::Better, Some(SAME)),
    ] {
        for (phase, name) in [(Phase::Attach, "attach"), (Phase::Detach, "detach")] {
            // Attaching is taken for work if nobody counted.
            if (phase, base) == (Phase::Attach, None) {
                continue;
            }
            let set = |attach: &mut Attach, number| {
                let of_phase = attach.explained.iter_mut().filter(|one| one.phase == phase);
                of_phase.for_each(|one| one.grace_periods = number);
            };
            let mut run = with_a_changed_attach(|attach| {
                scale(attach, |value| value / 2);
                set(attach, head);
            });
            set(attach_of(&mut run.cells[0]), base);
            let comparison = of_series(&run, whole);
            let of = |number: &str| {
                let name = format!("attach.kprobe_multi.10.{name}.{number}");
                comparison.metrics.iter().find(|one| one.metric.to_string() == name)
            };
            let case = format!("{name}: {base:?} -> {head:?}");
            assert_eq!(of("exact").unwrap().verdict, time, "{case}");
            assert_eq!(of("grace_periods").map(|one| one.verdict.clone()), waits, "{case}");
        }
    }
}

fn attach_of(cell: &mut Cell) -> &mut Attach {
    let Some(Measurement::Attach(attach)) = &mut cell.measurement else { panic!("no attach") };
    attach
}

/// Attaching waits on 6.1, and old runs did not count it.
#[test]
fn shows_rounds_that_jump_by_a_grace_period_as_a_range() {
    let jumping = [89_030_000, 188_420_000, 188_430_000];
    let set = |attach: &mut Attach, times: [u64; 3], counted: Option<u64>| {
        attach.explained.iter_mut().for_each(|one| one.grace_periods = counted);
        let rounds = &mut attach.exact.as_mut().unwrap().rounds;
        rounds.truncate(times.len());
        rounds.iter_mut().zip(times).for_each(|(round, ns)| round.attach_ns = ns);
    };
    for (base, counted, expected) in [
        ([90_000_000, 188_000_000, 91_000_000], None, None),
        ([90_000_000; 3], None, None),
        // No round of the base took as long as any of the head.
        ([7_000_000; 3], None, Some(Verdict::Worse)),
        ([7_000_000, 7_000_000, 14_000_000], None, Some(Verdict::Worse)),
        ([190_000_000, 400_000_000, 400_000_000], None, Some(Verdict::Better)),
        // Nothing waited, so an outlier is one.
        ([7_000_000; 3], Some(0), Some(Verdict::Worse)),
        ([90_000_000; 3], Some(0), Some(Verdict::Worse)),
    ] {
        let mut run = with_a_changed_attach(|attach| set(attach, jumping, counted));
        set(attach_of(&mut run.cells[0]), base, counted);
        let comparison = of_series(&run, whole);
        let attached = verdict(&comparison, EXACT[1]);
        if counted.is_none() {
            assert_eq!(attached.head.to_string(), "89.030000..188.430000 ms");
            assert_eq!(attached.head.number(), None);
        }
        match expected {
            Some(expected) => assert_eq!(attached.verdict, expected, "{base:?}"),
            None => assert!(matches!(attached.verdict, Verdict::NotJudged(_)), "{base:?}"),
        }
    }
}

/// More instructions, and fewer mispredicted returns by less than their cost is known.
#[test]
fn does_not_judge_estimates_that_hang_on_one_number() {
    let estimated = |base: &Summary, returns: u64, instructions: u64| Summary {
        how: Explain::Estimated,
        unit: Unit::EstimatedCycles,
        totals: Totals { task: returns + instructions, ..Totals::default() },
        estimate: Some(Estimate {
            cpu: "zen9".to_owned(),
            instructions: 4 * instructions,
            instruction_cycles: instructions,
            events: vec![EventCost {
                event: Event::MispredictedReturn,
                count: returns / 20,
                cycles: returns,
            }],
        }),
        ..base.clone()
    };
    let name = "attach.kprobe_multi.10.attach.estimated_cycles";
    for (returns, instructions, expected) in [
        (4000, 5800, None),
        (4000, 4500, Some(Verdict::Better)),
        (6000, 5800, Some(Verdict::Worse)),
        (6000, 4000, Some(Verdict::Same(Difference::None))),
        // Addresses alone move an estimate as much.
        (6000, 4150, Some(Verdict::Same(Difference::Layout))),
        (5850, 4000, Some(Verdict::Same(Difference::Layout))),
        (6000, 4160, Some(Verdict::Worse)),
    ] {
        let set = |attach: &mut Attach, returns, instructions| {
            let exact = attach.explained.iter().find(|one| one.phase == Phase::Attach);
            let exact = Summary { clock: Clock::Exact, ..exact.unwrap().clone() };
            attach.explained.push(estimated(&exact, returns, instructions));
        };
        let mut run = with_a_changed_attach(|attach| set(attach, returns, instructions));
        set(attach_of(&mut run.cells[0]), 6000, 4000);
        let compared = of_series(&run, whole);
        let found = &verdict(&compared, name).verdict;
        match expected {
            Some(expected) => assert_eq!(*found, expected, "{returns} {instructions}"),
            None => assert!(matches!(found, Verdict::NotJudged(_)), "{found:?}"),
        }
    }
}

/// The same function adds a third of the instructions and nearly all estimated cycles.
#[test]
fn estimated_cycles_have_findings_of_their_own() {
    let profiled = |how, unit, own: [u64; 2]| {
        move |exact: &Summary| Summary {
            how,
            unit,
            clock: Clock::Exact,
            totals: Totals { task: own.iter().sum(), ..Totals::default() },
            functions: ["f", "g"]
                .into_iter()
                .zip(own)
                .map(|(name, own)| Cost {
                    function: Function { name: name.to_owned(), space: Space::Kernel },
                    own,
                    total: own,
                })
                .collect(),
            ..exact.clone()
        }
    };
    let set = |attach: &mut Attach, instructions, cycles| {
        let mut exact = attach.explained.iter().filter(|one| one.phase == Phase::Attach);
        let exact = exact.next().unwrap().clone();
        attach.explained = vec![
            profiled(Explain::Exact, Unit::Instructions, instructions)(&exact),
            profiled(Explain::Estimated, Unit::EstimatedCycles, cycles)(&exact),
        ];
    };
    let mut run =
        with_a_changed_attach(|attach| set(attach, [200_000, 300_000], [900_000, 110_000]));
    set(attach_of(&mut run.cells[0]), [100_000, 100_000], [100_000, 100_000]);
    let compared = of_series(&run, whole);
    let parts = |unit: &str| {
        let is_of = |metric: &Metric| metric.unit() == unit;
        let moved = |finding: &&Finding| finding.moved.iter().any(|one| is_of(&one.metric));
        let [finding] = &compared.findings.iter().filter(moved).collect::<Vec<_>>()[..] else {
            panic!("{:#?}", compared.findings)
        };
        assert!(
            finding.moved.iter().all(|one| one.metric.is_estimate() == (unit != "instructions"))
        );
        let Cause::Work(work) = &finding.cause else { panic!("{finding:?}") };
        work.iter().map(|one| (one.function.clone(), one.parts[0].1)).collect::<Vec<_>>()
    };
    let named = |all: [(&str, i64); 2]| all.map(|(name, adds)| (name.to_owned(), adds));
    assert_eq!(parts("instructions"), named([("g", 200_000), ("f", 100_000)]));
    assert_eq!(parts("estimated cycles"), named([("f", 800_000), ("g", 10_000)]));
}

#[test]
fn does_not_judge_times_of_the_hosts_clock_that_jump_by_grace_periods() {
    let name = "attach.kprobe_multi.10.detach";
    let jumps = || Verdict::NotJudged("its rounds jump by grace periods");
    let (often, seldom, none) = ([89, 188, 187], [88, 186, 90], [5, 6, 5]);
    for (counted, base, head, expected) in [
        (None, often, seldom, jumps()),
        (Some(1), often, seldom, jumps()),
        (Some(0), often, seldom, Verdict::Better),
        (None, often, none, Verdict::Better),
        (None, none, often, Verdict::Worse),
        (None, [200, 210, 190], [100, 99, 90], Verdict::Better),
    ] {
        let set = |attach: &mut Attach, ms: [u64; 3]| {
            attach.explained.iter_mut().for_each(|one| one.grace_periods = counted);
            let boot = attach.boots[0].clone();
            attach.boots = (0..6_u64)
                .map(|nth| {
                    let mut boot = boot.clone();
                    boot.rounds.truncate(1);
                    let mut round = boot.rounds.remove(0);
                    boot.rounds = ms
                        .map(|ms| {
                            round.detach_ns = ms * 1_000_000 + nth * 10_000;
                            round
                        })
                        .to_vec();
                    boot
                })
                .collect();
        };
        let mut run = with_a_changed_attach(|attach| set(attach, head));
        set(attach_of(&mut run.cells[0]), base);
        let compared = of_series(&run, whole);
        assert_eq!(verdict(&compared, name).verdict, expected, "{counted:?} {base:?} {head:?}");
    }
}
