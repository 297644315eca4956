// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the steps of a metric.
//!
//! An exact metric steps where it differs from the level, the number at the last step. A slow drift
//! is therefore found too. A time steps where the rows before and after differ by more than their
//! scatter.

use super::MetricRow;
use crate::compare::{Finding, Ratio, Value, Verdict, exact, levels};
use tramplab_model::run::Tolerance;

/// A step from the last row with a number to this row.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub worse: bool,
    /// Index of the row before the step.
    pub since: usize,
    /// Only for times: after divided by before.
    pub ratio: Option<Ratio>,
    /// The causes of the metric's change.
    pub findings: Vec<Finding>,
}

/// Rows needed on each side to estimate the scatter of times.
pub const FEWEST: usize = 4;

/// The chance of a false step in a stretch of times, divided among all places where one could be.
const ALPHA: f64 = 0.05;

/// Puts changes and steps into rows, which are oldest first. Returns the row of the step that the
/// newest row revealed, if any; of several, a worse one. `layout` is how far the metric moves with
/// the layout of the code alone.
pub fn mark(rows: &mut [MetricRow], tolerance: Tolerance, layout: u64) -> Option<usize> {
    let measured: Vec<usize> = (0..rows.len()).filter(|&row| rows[row].value().is_some()).collect();
    for pair in measured.windows(2) {
        let number = |row: usize| rows[row].value().and_then(Value::number);
        rows[pair[1]].change = Option::zip(number(pair[0]), number(pair[1])).map(|(a, b)| b - a);
    }
    mark_exact(rows, &measured, tolerance, layout);
    let times: Vec<(usize, f64)> =
        measured.iter().filter_map(|&row| Some((row, time(rows[row].value()?)?))).collect();
    let steps = |times: &[(usize, f64)]| {
        steps_of_times(
            &times.iter().map(|(_, time)| *time).collect::<Vec<_>>(),
            tolerance.time_percent,
        )
    };
    let found = steps(&times);
    for (at, ratio) in &found {
        let since = times[at - 1].0;
        let step =
            Step { worse: ratio.mean > 1.0, since, ratio: Some(*ratio), findings: Vec::new() };
        rows[times[*at].0].step = Some(step);
    }
    let newest = rows.len().checked_sub(1)?;
    if times.last().is_none_or(|(last, _)| *last != newest) {
        return rows[newest].step.is_some().then_some(newest);
    }
    // Near the limit, a step may come and go with each row. It is new when it first appears.
    let was_known = |step: &(usize, Ratio)| {
        let mut before = (step.0 + 1..times.len()).rev();
        before.any(|rows| steps(&times[..rows]).iter().any(|known| is_the_same(known, step)))
    };
    let new = found.iter().filter(|step| !was_known(step));
    new.max_by_key(|(_, ratio)| ratio.mean > 1.0).map(|(at, _)| times[*at].0)
}

/// Another row may move a step a little. Two different steps have [`FEWEST`] rows between them.
fn is_the_same((a, of_a): &(usize, Ratio), (b, of_b): &(usize, Ratio)) -> bool {
    a.abs_diff(*b) < FEWEST && (of_a.mean > 1.0) == (of_b.mean > 1.0)
}

fn time(value: &Value) -> Option<f64> {
    let time = match value {
        Value::Times(_) | Value::PerHit(_) => value.number()?,
        // The time of a hit. Under TCG it would be the emulator's.
        Value::Rates(_, accel) if accel.has_real_cpu() => value.number()?.recip(),
        _ => return None,
    };
    (time.is_finite() && time > 0.0).then_some(time)
}

fn mark_exact(rows: &mut [MetricRow], measured: &[usize], tolerance: Tolerance, layout: u64) {
    let mut level: Option<Value> = None;
    let mut since = 0;
    for &row in measured {
        let Some(value) = rows[row].value().cloned() else { continue };
        match level.as_ref().map(|level| differs(level, &value, tolerance, layout)) {
            Some(Compared::Same) => {}
            Some(Compared::Differs { worse }) => {
                rows[row].step = Some(Step { worse, since, ratio: None, findings: Vec::new() });
                level = Some(value);
            }
            Some(Compared::Not) | None => level = Some(value),
        }
        since = row;
    }
}

enum Compared {
    Same,
    Differs {
        worse: bool,
    },
    /// The values do not measure the same thing, or are not exact.
    Not,
}

fn differs(level: &Value, value: &Value, tolerance: Tolerance, layout: u64) -> Compared {
    let share = |a: u64, b: u64| match exact::share(a, b, tolerance.exact_percent, layout) {
        verdict if verdict.is_same() => Compared::Same,
        verdict => Compared::Differs { worse: verdict == Verdict::Worse },
    };
    match (level, value) {
        (Value::Records(a), Value::Records(b)) if a == b => Compared::Same,
        // A trace without the function is worse than any number.
        (Value::Records(a), Value::Records(b)) => {
            Compared::Differs { worse: b.is_none_or(|b| a.is_some_and(|a| b > a)) }
        }
        (Value::Count(a), Value::Count(b)) if a == b => Compared::Same,
        (Value::Count(a), Value::Count(b)) => Compared::Differs { worse: b > a },
        (&Value::ExactTime(a), &Value::ExactTime(b)) => share(a, b),
        (Value::Ended(a), Value::Ended(b)) if a == b => Compared::Same,
        (Value::Ended(a), Value::Ended(b)) => Compared::Differs { worse: b.is_worse_than(a) },
        (
            &Value::InPhase { count: a, functions: of_a, repeats: true },
            &Value::InPhase { count: b, functions: of_b, repeats: true },
        ) if of_a == of_b => share(a, b),
        _ => Compared::Not,
    }
}

/// Finds the places where a new level begins, with the ratio of the levels after and before.
fn steps_of_times(times: &[f64], tolerated_percent: f64) -> Vec<(usize, Ratio)> {
    let logs: Vec<f64> = times.iter().map(|time| time.ln()).collect();
    let mut places = Vec::new();
    places_in(&logs, 0, tolerated_percent, &mut places);
    // Other steps in its stretch may have moved a place. Search again between its neighbours.
    let bounds = [vec![0], places, vec![logs.len()]].concat();
    let again = |three: &[usize]| {
        let (at, ratio) = likeliest(&logs[three[0]..three[2]], tolerated_percent)?;
        Some((three[0] + at, ratio))
    };
    bounds.windows(3).filter_map(again).collect()
}

/// Adds the places in order; the stretch begins at `from`.
fn places_in(logs: &[f64], from: usize, tolerated_percent: f64, places: &mut Vec<usize>) {
    let Some((at, _)) = likeliest(logs, tolerated_percent) else { return };
    places_in(&logs[..at], from, tolerated_percent, places);
    places.push(from + at);
    places_in(&logs[at..], from + at, tolerated_percent, places);
}

/// Finds the likeliest place of one step in a stretch, if that is a step.
fn likeliest(logs: &[f64], tolerated_percent: f64) -> Option<(usize, Ratio)> {
    let places = FEWEST..(logs.len() + 1).saturating_sub(FEWEST);
    let alpha = ALPHA / places.len().max(1) as f64;
    let splits = places.filter_map(|at| Some((at, levels(&logs[..at], &logs[at..], alpha)?)));
    let (at, split) = splits.max_by(|(_, a), (_, b)| a.t.abs().total_cmp(&b.t.abs()))?;
    let tolerated = 1.0 + tolerated_percent / 100.0;
    let is_step = split.ratio.low > tolerated || split.ratio.high < 1.0 / tolerated;
    is_step.then_some((at, split.ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            let mut uniform = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
            };
            1.0 + 0.1 * (0..6).map(|_| uniform()).sum::<f64>()
        }
    }

    #[test]
    fn finds_rises_and_falls_of_a_time_only() {
        let mut noisy = noise(0x2545_f491_4f6c_dd1d);
        let mut level =
            |times: usize, of: f64| (0..times).map(|_| of * noisy()).collect::<Vec<_>>();
        let table = [
            ("up", [level(8, 10.0), level(8, 15.0)].concat(), vec![8]),
            (
                "up and down",
                [level(10, 10.0), level(10, 16.0), level(10, 10.0)].concat(),
                vec![10, 20],
            ),
            ("one slow run", [level(8, 10.0), vec![30.0], level(8, 10.0)].concat(), vec![]),
            ("too few after it", [level(9, 10.0), level(3, 20.0)].concat(), vec![]),
            ("within the tolerance", [level(9, 10.0), level(9, 10.3)].concat(), vec![]),
            ("nothing", level(30, 10.0), vec![]),
            ("hardly any", level(2, 10.0), vec![]),
            ("constant", vec![10.0; 12], vec![]),
        ];
        for (name, times, expected) in table {
            let steps = steps_of_times(&times, 5.0);
            assert_eq!(
                steps.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
                expected,
                "{name}: {steps:?}"
            );
        }
    }

    #[test]
    fn seldom_finds_a_step_in_a_level_time() {
        let mut noisy = noise(0x9e37_79b9_7f4a_7c15);
        let stretches = 400;
        let false_alarms = (0..stretches)
            .filter(|_| {
                let times: Vec<f64> = (0..20).map(|_| 10.0 * noisy()).collect();
                !steps_of_times(&times, 0.0).is_empty()
            })
            .count();
        assert!(false_alarms <= stretches / 20, "{false_alarms} of {stretches}");
    }
}
