// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and judges the numbers of each kind of test. Each kind has a file.

mod attach;
mod bench;
mod kselftest;
mod lbr_waste;
mod survive;
mod test_progs;
mod trigger;

use super::{Ended, Judging, Listings, Pair, Value, exact, timed::Judged};
use crate::{
    branch::{Branch, Model},
    profile::estimate::Term,
};
pub(super) use attach::{explained, hanging, jumping};
pub use attach::{has_other_functions, jump, layout_floor};
pub use lbr_waste::listings as waste_listings;
use std::cmp::Reverse;
use tramplab_model::{
    kinds::{Metric, trigger::Cost},
    run::{Cell, Measurement, Test},
};
pub(super) use trigger::{layout_of as layout_of_hit, predictions};
pub use trigger::{listings as hit_listings, per_hit};

/// All numbers that a cell measured. `model` is the CPU whose waste is counted.
pub fn values(cell: &Cell, model: Model) -> Vec<(Metric, Value)> {
    match &cell.id.test {
        Test::LbrWaste(test) => lbr_waste::values(*test, cell, model),
        Test::Attach(test) => attach::values(*test, cell),
        Test::Trigger(test) => trigger::values(*test, cell),
        Test::Bench(test) => bench::values(*test, cell),
        Test::TestProgs(test) => test_progs::values(*test, cell),
        Test::Kselftest(test) => kselftest::values(*test, cell),
        Test::Survive(test) => survive::values(*test, cell),
        Test::Build | Test::Boot | Test::Fault(_) => Vec::new(),
    }
}

/// One number of a cell. Any union of branch filters is a metric, also those that [`values`] leaves
/// out.
pub fn value(cell: &Cell, metric: Metric, model: Model) -> Option<Value> {
    match metric {
        Metric::LbrWaste(metric) => lbr_waste::value(cell, metric, model),
        _ => values(cell, model).into_iter().find(|(of, _)| *of == metric).map(|(_, value)| value),
    }
}

/// Judges a head's number by its base's.
pub(super) fn judge(metric: Metric, base: &Value, head: &Value, how: Judging) -> Judged {
    match metric {
        Metric::Attach(metric) => attach::judge(metric, base, head, how),
        Metric::Bench(_) => bench::judge(base, head, how),
        Metric::Trigger(_) => trigger::judge(base, head, how),
        Metric::LbrWaste(_) => count(base, head, how.tolerance.wasted, how.layout),
        Metric::TestProgs(_) | Metric::Kselftest(_) | Metric::Survive(_) => {
            Ended::judge(base, head)
        }
    }
}

/// True if the sides estimate cycles of different CPUs.
pub(super) fn is_of_other_cpu(pair: &Pair) -> bool {
    let cpu = |measurement: Option<&Measurement>| -> Option<String> {
        let estimate = match measurement? {
            Measurement::Attach(attach) => {
                attach.explained.iter().find_map(|summary| summary.estimate.as_ref())?
            }
            Measurement::Trigger(trigger) => &trigger.cost.as_ref()?.estimate.as_ref()?.attached,
            _ => return None,
        };
        Some(estimate.cpu.clone())
    };
    let (base, head) = pair.measurements();
    matches!((cpu(base), cpu(head)), (Some(base), Some(head)) if base != head)
}

/// How far the terms of an estimate moved, the largest change first. Empty for other metrics.
pub(super) fn moved_terms(metric: Metric, pair: &Pair) -> Vec<(Term, i64)> {
    let terms = |measurement: Option<&Measurement>| match (metric, measurement?) {
        (Metric::Attach(metric), Measurement::Attach(attach)) => attach::terms_of(metric, attach),
        (Metric::Trigger(metric), Measurement::Trigger(trigger)) => {
            trigger::terms_of(trigger).filter(|_| metric.cost == Cost::EstimatedCycles)
        }
        _ => None,
    };
    let (base, head) = pair.measurements();
    let (Some(base), Some(head)) = (terms(base), terms(head)) else { return Vec::new() };
    let moved = |term: Term| {
        let [base, head] = [&base, &head].map(|all| all.get(&term).copied().unwrap_or_default());
        (term, head.saturating_sub(base))
    };
    let mut all: Vec<_> = Term::ALL.map(moved).into_iter().filter(|(_, by)| *by != 0).collect();
    all.sort_by_key(|(_, by)| Reverse(by.unsigned_abs()));
    all
}

/// Judges numbers that are the same at every run.
fn count(base: &Value, head: &Value, tolerated: u32, layout: u64) -> Judged {
    exact::count(base.count(), head.count(), tolerated, layout).into()
}

/// The branch listings of a pair, side by side; those of a waste cell with the filter `any`.
pub(super) fn listings(pair: &Pair, model: Model) -> Vec<Listings> {
    match &pair.base.id.test {
        Test::LbrWaste(test) => {
            lbr_waste::listings(*test, pair, model, Branch::Any.into(), usize::MAX)
        }
        Test::Trigger(test) => trigger::listings(*test, pair),
        Test::Attach(_)
        | Test::Bench(_)
        | Test::TestProgs(_)
        | Test::Kselftest(_)
        | Test::Survive(_)
        | Test::Build
        | Test::Boot
        | Test::Fault(_) => Vec::new(),
    }
}
