// SPDX-License-Identifier: MIT OR Apache-2.0
//! `trigger`: the cost of a hit of the empty program.

use super::super::{
    Change, ChangeKind, Judging, Listings, Pair, Value, exact,
    listing::{self, Subject},
    timed::Judged,
};
use crate::{
    branch::listing::{Note, missed_lines, trigger_lines},
    profile::estimate::{OfHits, Term, terms_of_hits},
    spread::median,
};
use std::collections::BTreeMap;
use tramplab_model::{
    kinds::{
        Metric,
        trigger::{self, Cost},
    },
    run::{Cell, Measurement, Test, Trigger, TriggerCost},
};
use tramplab_protocol::Point;

pub fn values(test: trigger::Test, cell: &Cell) -> Vec<(Metric, Value)> {
    let Some(Measurement::Trigger(trigger)) = &cell.measurement else { return Vec::new() };
    let one = |cost| Some((Metric::Trigger(trigger::Metric { test, cost }), value(cost, trigger)?));
    Cost::ALL.into_iter().filter_map(one).collect()
}

/// A hit's part of each round, with the program less without it. Empty if a round has no hit.
pub fn per_hit(attached: &[u64], detached: &[u64], hits: u32) -> Vec<f64> {
    let rounds = attached.iter().zip(detached).filter(|_| hits > 0);
    rounds.map(|(&with, &without)| (with as f64 - without as f64) / f64::from(hits)).collect()
}

/// None if it was not measured.
fn value(cost: Cost, trigger: &Trigger) -> Option<Value> {
    match cost {
        Cost::Time => {
            let times = per_hit(&trigger.attached_ns, &trigger.detached_ns, trigger.timed);
            (!times.is_empty()).then(|| Value::PerHit(median(&times)))
        }
        // The addresses of code decide which lines and branches share a set, so kernels differ by
        // more than what a hit costs.
        Cost::EstimatedCycles => {
            let cycles = trigger.cost.as_ref()?.count(cost)?;
            Some(Value::InPhase { count: cycles.into(), functions: 1, repeats: true })
        }
        counted => trigger.cost.as_ref()?.count(counted).map(Value::Count),
    }
}

/// How far the terms of a hit's estimate move that hang on addresses: in a warm hit a line or a
/// conditional branch that meets another one in its set, which another build undoes.
pub fn layout_of(pair: &Pair) -> Option<(Metric, u64)> {
    let Test::Trigger(test) = pair.base.id.test else { return None };
    let of_layout = |measurement: Option<&Measurement>| -> Option<f64> {
        let Some(Measurement::Trigger(trigger)) = measurement else { return None };
        let hit = trigger.cost.as_ref()?.estimate.as_ref()?;
        Some(hit.by_layout() as f64 / f64::from(hit.hits.max(1)))
    };
    let (base, head) = pair.measurements();
    // The estimates are rounded, so a part of a cycle may be a whole one.
    let moved = (of_layout(base)? - of_layout(head)?).abs().ceil() as u64;
    let metric = Metric::Trigger(trigger::Metric { test, cost: Cost::EstimatedCycles });
    Some((metric, moved))
}

/// The terms of a hit's estimate, if it has one.
pub fn terms_of(trigger: &Trigger) -> Option<BTreeMap<Term, i64>> {
    let hit = trigger.cost.as_ref()?.estimate.as_ref()?;
    let each = |(term, of): (Term, OfHits)| (term, hit.each(of.cycles.into()));
    Some(terms_of_hits(hit).into_iter().map(each).collect())
}

pub fn judge(base: &Value, head: &Value, how: Judging) -> Judged {
    match (base, head) {
        (Value::PerHit(_), _) => Judged::not("of one boot each"),
        (&Value::InPhase { count: a, .. }, &Value::InPhase { count: b, .. }) => {
            // Layout and tolerance may add up.
            let percent = how.tolerance.exact_percent;
            let tolerated = if how.layout > 0 { a as f64 * percent / 100.0 } else { 0.0 };
            let layout = how.layout.saturating_add(tolerated as u64);
            exact::share(a, b, percent, layout).into()
        }
        _ => super::count(base, head, how.tolerance.trigger, how.layout),
    }
}

/// One listing for each part of a hit that both sides have.
pub fn listings(test: trigger::Test, pair: &Pair) -> Vec<Listings> {
    let (Some(Measurement::Trigger(base)), Some(Measurement::Trigger(head))) = pair.measurements()
    else {
        return Vec::new();
    };
    let (Some(old), Some(new)) = (&base.cost, &head.cost) else { return Vec::new() };
    let beside = |point| {
        let lines =
            |cost: &TriggerCost| Some(trigger_lines(cost.part(point)?, cost.predicted.as_ref()));
        let [mut old, mut new] = [lines(old)?, lines(new)?];
        old.reverse();
        new.reverse();
        Some(Listings { subject: Subject::Trigger(test, point), rows: listing::align(&old, &new) })
    };
    [Point::Entry, Point::Exit].into_iter().filter_map(beside).collect()
}

/// The branches that one side mispredicts more often than the other, with how often.
pub fn predictions(pair: &Pair, is_indirect: bool) -> Vec<(Change, i64)> {
    let (Some(Measurement::Trigger(base)), Some(Measurement::Trigger(head))) = pair.measurements()
    else {
        return Vec::new();
    };
    let mut counts: BTreeMap<[String; 2], i64> = BTreeMap::new();
    for (side, adds) in [(base, -1), (head, 1)] {
        let predicted = side.cost.as_ref().and_then(|cost| cost.predicted.as_ref());
        let lines = predicted.map(missed_lines).unwrap_or_default();
        for line in lines.iter().filter(|line| (line.note == Note::Indirect) == is_indirect) {
            let count = counts.entry(listing::functions(line)).or_default();
            *count = count.saturating_add(adds);
        }
    }
    let change = |([from, to], count): ([String; 2], i64)| {
        let kind = if count > 0 { ChangeKind::Mispredicted } else { ChangeKind::Predicted };
        (Change { kind, is_call: false, from, to }, count)
    };
    counts.into_iter().filter(|(_, count)| *count != 0).map(change).collect()
}
