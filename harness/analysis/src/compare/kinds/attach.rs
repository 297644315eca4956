// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attach`: attach times, and the instructions of attaching.

use super::super::{
    Judging, Pair, Timing, Value, Verdict, exact,
    timed::{self, Judged},
    value::{MIXED, Waiting},
};
use crate::{
    profile::{
        self, Summary,
        estimate::{Term, terms},
    },
    spread::median,
};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_model::{
    kinds::{
        Metric,
        attach::{self, Number, Phase, SystemCalls, Whose},
    },
    run::{Attach, AttachBoot, Cell, Clock, Measurement, Test},
};
use tramplab_protocol::{mechanism::Way, message::Explain};

pub fn values(test: attach::Test, cell: &Cell) -> Vec<(Metric, Value)> {
    let Some(Measurement::Attach(measured)) = &cell.measurement else { return Vec::new() };
    let times = Phase::ALL.map(|phase| (Number::Time(phase), times(measured, phase)));
    let exact = Phase::ALL.map(|phase| (Number::ExactTime(phase), exact_time(measured, phase)));
    let counted = Whose::ALL.into_iter().flat_map(|whose| {
        profile::Phase::ALL.map(|phase| {
            (Number::Instructions { phase, whose }, instructions(measured, phase, whose))
        })
    });
    let waits = profile::Phase::ALL
        .map(|phase| (Number::GracePeriods(phase), grace_periods(measured, phase)));
    let system_calls = [(Number::SystemCalls, system_calls(measured))];
    let estimated = profile::Phase::ALL
        .map(|phase| (Number::EstimatedCycles(phase), estimated_cycles(measured, phase)));
    let all = times.into_iter().chain(exact).chain(counted).chain(waits).chain(system_calls);
    all.chain(estimated)
        .filter_map(|(number, value)| {
            Some((Metric::Attach(attach::Metric { test, number }), value?))
        })
        .collect()
}

pub fn judge(metric: attach::Metric, base: &Value, head: &Value, how: Judging) -> Judged {
    let Judging { alpha, tolerance, timing, layout } = how;
    match (base, head) {
        (Value::Stopped(_), _) | (_, Value::Stopped(_)) => Judged::not("a time budget ended it"),
        (Value::Times(a), Value::Times(b)) => match timing {
            Timing::Interleaved => timed::judge(a, b, alpha, tolerance.time_percent),
            Timing::Apart => Judged::not(timed::APART),
        },
        (&Value::ExactTime(a), &Value::ExactTime(b)) => {
            exact::share(a, b, tolerance.exact_percent, layout).into()
        }
        (&Value::Waiting(a), &Value::Waiting(b)) => waiting(a, b, how),
        (&Value::Waiting(a), &Value::ExactTime(b)) => waiting(a, Waiting::exactly(b), how),
        (&Value::ExactTime(a), &Value::Waiting(b)) => waiting(Waiting::exactly(a), b, how),
        (
            &Value::InPhase { count: a, functions: of_a, repeats: a_repeats },
            &Value::InPhase { count: b, functions: of_b, repeats: b_repeats },
        ) => {
            if of_a != of_b {
                return Judged::not("of another number of functions");
            }
            if a != b && !(a_repeats && b_repeats) {
                return Judged::not("counted under the host's clock");
            }
            let is_estimate = matches!(metric.number, Number::EstimatedCycles(_));
            let layout = if is_estimate { layout.saturating_add(a / ESTIMATE) } else { layout };
            let verdict = exact::share(a, b, tolerance.exact_percent, layout);
            verdict.unless(metric.number.has_idle_loop(), "the idle loop is in it").into()
        }
        _ => Judged::not(MIXED),
    }
}

fn waiting(base: Waiting, head: Waiting, how: Judging) -> Judged {
    let judged = || exact::share(base.median, head.median, how.tolerance.exact_percent, how.layout);
    match (base.level(), head.level()) {
        // Nobody counted: what no round of the other side took is a difference.
        _ if !base.is_known && !head.is_known && base.is_apart(head) => judged().into(),
        _ if base.is_known != head.is_known => {
            Judged::not("one side waits for grace periods, which are counted beside it")
        }
        (Some(_), Some(_)) => judged().unless(true, MISSED).into(),
        _ => Judged::not(MISSED),
    }
}

/// The reason why a time with grace periods is not judged.
const MISSED: &str = "a grace period that is just missed costs another one";

/// The part of an estimate by which addresses alone move it: 1.6 per cent. Another agent, another
/// size of memory or other words on the command line moved those of one kernel by up to 0.8.
const ESTIMATE: u64 = 64;

/// Estimates that are better or worse only by what the base's largest term is said to cost: with
/// half of it, or half as much again, they would be the opposite, by more than the tolerance.
pub fn hanging(pair: &Pair, percent: f64) -> Vec<Metric> {
    let Test::Attach(test) = pair.base.id.test else { return Vec::new() };
    let estimate = |measurement: Option<&Measurement>, phase| match measurement {
        Some(Measurement::Attach(attach)) => {
            explained(attach, phase, Explain::Estimated)?.estimate.clone()
        }
        _ => None,
    };
    let hangs = |&phase: &profile::Phase| {
        let (base, head) = pair.measurements();
        let sides = [base, head].map(|side| Some(terms(&estimate(side, phase)?)));
        matches!(sides, [Some(base), Some(head)] if hangs_on_one_term(&base, &head, percent))
    };
    let metric =
        |phase| Metric::Attach(attach::Metric { test, number: Number::EstimatedCycles(phase) });
    profile::Phase::ALL.into_iter().filter(hangs).map(metric).collect()
}

fn hangs_on_one_term(base: &[(Term, u64)], head: &[(Term, u64)], percent: f64) -> bool {
    let Some(&(largest, _)) = base.first() else { return false };
    // Twice the cycles with half of the term's cost, and with half as much again.
    let weighed = |terms: &[(Term, u64)], times: u64| {
        terms.iter().fold(0_u64, |sum, &(term, cycles)| {
            let times = if term == largest { times } else { 2 };
            sum.saturating_add(cycles.saturating_mul(times))
        })
    };
    let judged =
        [1, 3].map(|times| exact::share(weighed(base, times), weighed(head, times), percent, 0));
    judged.contains(&Verdict::Better) && judged.contains(&Verdict::Worse)
}

/// Times by the host's clock that tell nothing: the attaching thread waits for grace periods,
/// rounds of one side jump, and the two sides share a range.
pub fn jumping(pair: &Pair) -> Vec<Metric> {
    let test = pair.base.id.test.clone();
    let (Test::Attach(test), Some(Measurement::Attach(base)), Some(Measurement::Attach(head))) =
        (test, pair.measurements().0, pair.measurements().1)
    else {
        return Vec::new();
    };
    let is_jumping = |phase: &Phase| {
        let sides = [base, head];
        let rounds = sides.map(|side| side.rounds().map(|round| phase.ns(round)).collect());
        let [a, b]: [Vec<u64>; 2] = rounds.map(without_extremes);
        sides.iter().any(|side| side.waits(*phase) || side.seems_to_wait(*phase))
            && [&a, &b].iter().any(|rounds| has_a_gap(rounds))
            && share_a_range(&a, &b)
    };
    let metric = |phase| Metric::Attach(attach::Metric { test, number: Number::Time(phase) });
    Phase::ALL.into_iter().filter(is_jumping).map(metric).collect()
}

/// True if rounds lie on two levels: two or more on each, and the upper one half as long again.
pub fn jump(rounds: &[u64]) -> bool {
    has_a_gap(&without_extremes(rounds.to_vec()))
}

fn has_a_gap(sorted: &[u64]) -> bool {
    sorted.windows(2).any(|pair| pair[1] > pair[0].saturating_add(pair[0] / 2))
}

fn share_a_range(a: &[u64], b: &[u64]) -> bool {
    a.first() <= b.last() && b.first() <= a.last()
}

/// Sorts rounds, and drops the shortest and the longest.
fn without_extremes(mut rounds: Vec<u64>) -> Vec<u64> {
    rounds.sort_unstable();
    rounds.pop();
    rounds.drain(..rounds.len().min(1));
    rounds
}

/// True if the sides attached to different functions: one kernel lacks some, refuses some, or ran
/// out of time.
pub fn has_other_functions(pair: &Pair) -> bool {
    let (Some(Measurement::Attach(base)), Some(Measurement::Attach(head))) = pair.measurements()
    else {
        return false;
    };
    let lists = |attach: &Attach| {
        let guests = attach.boots.iter().chain(&attach.exact);
        guests.map(|boot| boot.list_sha256.clone()).collect::<BTreeSet<_>>()
    };
    lists(base) != lists(head)
}

/// The band for loading a program that is checked against a function's type, in nanoseconds of the
/// exact clock. The kernel looks the function up by name, and its search through kallsyms
/// (`get_symbol_offset` in kernel/kallsyms.c) walks up to 255 names at each step. Each added symbol
/// shifts those walks. On 6.12, fifteen to twenty kinds of uncalled code moved one load by -2,515
/// to +4,585.
const LOAD: u64 = 10_000;
/// The band for attaching a kprobe or kretprobe, in nanoseconds and in instructions. It looks its
/// function up about three times. The same kinds of code moved it by up to 16,768.
const KPROBE: u64 = 20_000;

/// The smallest band, even without a placebo: a smaller difference of this metric is never called a
/// cost. Layout moves other attach metrics by a third of a per cent, which is within the tolerance.
/// It does not move waste or the cost of a hit.
pub fn layout_floor(metric: &Metric) -> u64 {
    let Metric::Attach(attach::Metric { test, number }) = metric else { return 0 };
    let is_kprobe = test.mechanism.way() == Way::Kprobe;
    let each = match number {
        Number::ExactTime(Phase::Load) if test.mechanism.program_per_target() => LOAD,
        Number::ExactTime(Phase::Attach)
        | Number::Instructions { phase: profile::Phase::Attach, .. }
            if is_kprobe =>
        {
            KPROBE
        }
        _ => return 0,
    };
    // No time budget fits a program or probe for each of forty thousand functions.
    test.functions.count().map_or(each, |count| each.saturating_mul(count.get().into()))
}

/// The median round.
fn exact_time(attach: &Attach, phase: Phase) -> Option<Value> {
    let exact = attach.exact.as_ref()?;
    if let Some(stopped) = exact.stopped {
        return Some(Value::Stopped(stopped));
    }
    let times: Vec<u64> = exact.rounds.iter().map(|round| phase.ns(round)).collect();
    let is_known = attach.waits(phase);
    let rounds = Waiting::of(&times, is_known)?;
    Some(match is_known || attach.seems_to_wait(phase) {
        true => Value::Waiting(rounds),
        false => Value::ExactTime(rounds.median),
    })
}

/// The exact profile of a phase.
fn counted(attach: &Attach, phase: profile::Phase) -> Option<&Summary> {
    explained(attach, phase, Explain::Exact)
}

pub fn explained(attach: &Attach, phase: profile::Phase, how: Explain) -> Option<&Summary> {
    attach.explained.iter().find(|one| one.phase == phase && one.how == how)
}

fn estimated_cycles(attach: &Attach, phase: profile::Phase) -> Option<Value> {
    let summary = explained(attach, phase, Explain::Estimated)?;
    Some(in_phase(summary, summary.totals.task))
}

/// The terms of an estimate, if the metric is one.
pub fn terms_of(metric: attach::Metric, attach: &Attach) -> Option<BTreeMap<Term, i64>> {
    let Number::EstimatedCycles(phase) = metric.number else { return None };
    let estimate = explained(attach, phase, Explain::Estimated)?.estimate.as_ref()?;
    let signed = |(term, cycles)| (term, i64::try_from(cycles).unwrap_or(i64::MAX));
    Some(terms(estimate).into_iter().map(signed).collect())
}

fn in_phase(summary: &Summary, count: u64) -> Value {
    let repeats = summary.clock == Clock::Exact;
    Value::InPhase { count, functions: summary.attached, repeats }
}

fn grace_periods(attach: &Attach, phase: profile::Phase) -> Option<Value> {
    let summary = counted(attach, phase)?;
    Some(in_phase(summary, summary.grace_periods?))
}

fn system_calls(attach: &Attach) -> Option<Value> {
    let SystemCalls { attached, functions, clock, .. } = attach.system_calls?;
    Some(Value::InPhase { count: attached, functions, repeats: clock == Clock::Exact })
}

fn instructions(attach: &Attach, phase: profile::Phase, whose: Whose) -> Option<Value> {
    let summary = counted(attach, phase)?;
    let profile::Totals { task, interrupts, others } = summary.totals;
    let count = match whose {
        Whose::Thread => task,
        Whose::All => task.saturating_add(interrupts).saturating_add(others),
    };
    Some(in_phase(summary, count))
}

fn times(attach: &Attach, phase: Phase) -> Option<Value> {
    if let Some(stopped) = attach.boots.iter().find_map(|boot| boot.stopped) {
        return Some(Value::Stopped(stopped));
    }
    let boot = |boot: &AttachBoot| {
        let rounds: Vec<f64> =
            boot.rounds.iter().map(|round| phase.ns(round) as f64 / 1e6).collect();
        median(&rounds)
    };
    let times: Vec<f64> = attach.boots.iter().map(boot).collect();
    (!times.is_empty()).then_some(Value::Times(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_rounds_on_two_levels() {
        for (rounds, expected) in [
            (&[89, 188, 189, 90][..], true),
            (&[89, 188, 90], false),
            (&[100, 120, 150, 180, 200], false),
            (&[u64::MAX, 1, u64::MAX, 1], true),
            (&[1], false),
            (&[], false),
        ] {
            assert_eq!(jump(rounds), expected, "{rounds:?}");
        }
    }

    #[test]
    fn a_change_that_one_number_reverses_hangs_on_it() {
        use Term::{Data, Instructions, Returns};
        let base = [(Returns, 6000), (Instructions, 4000)];
        for (head, expected) in [
            // Fewer returns for more instructions: better only if returns cost enough.
            (&[(Returns, 4000), (Instructions, 5800)][..], true),
            (&[(Returns, 4000), (Instructions, 4500)], false),
            (&[(Returns, 0), (Instructions, 5000)], false),
            // The other terms decide.
            (&[(Returns, 6000), (Instructions, 4500)], false),
            (&[(Returns, 6000), (Instructions, 4000)], false),
            (&[(Data, 9500)], true),
            // By less than the tolerance.
            (&[(Returns, 5980), (Instructions, 4018)], false),
            (&[], false),
        ] {
            assert_eq!(hangs_on_one_term(&base, head, 0.5), expected, "{head:?}");
        }
        assert!(!hangs_on_one_term(&[], &base, 0.5));
        let large = [(Returns, u64::MAX), (Data, u64::MAX)];
        assert!(!hangs_on_one_term(&large, &large, 0.5));
    }

    #[test]
    fn one_slow_round_is_no_common_range() {
        let fast = [&[5; 17][..], &[150]].concat();
        for (head, expected) in [(vec![100, 200, 100, 200], false), (vec![4, 5, 6, 200], true)] {
            let [a, b] = [fast.clone(), head].map(without_extremes);
            assert_eq!(share_a_range(&a, &b), expected, "{b:?}");
        }
    }

    #[test]
    fn gives_a_floor_to_lookups_by_name() {
        for (name, expected) in [
            ("attach.fentry.1.load.exact", 10_000),
            ("attach.fentry.100.load.exact", 1_000_000),
            ("attach.kprobe_multi.100.load.exact", 0),
            ("attach.fentry.1.attach.exact", 0),
            ("attach.kprobe.1.attach.exact", 20_000),
            ("attach.kretprobe.10.attach.instructions", 200_000),
            ("attach.kprobe.1.detach.instructions", 0),
            ("attach.kprobe_multi.100.attach.instructions", 0),
            ("attach.fentry.1.attach.instructions", 0),
            ("lbr_waste.fexit.any", 0),
            ("trigger.fexit.instructions", 0),
        ] {
            assert_eq!(layout_floor(&name.parse().unwrap()), expected, "{name}");
        }
    }
}
