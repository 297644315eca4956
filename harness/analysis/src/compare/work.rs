// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions in which an attaching thread executes more or fewer instructions than on the base, and
//! the grace periods for which it waits.

use super::Pair;
use std::collections::{BTreeMap, HashMap};
use tramplab_model::{
    profile::{Phase, Summary},
    run::{Cell, Measurement},
};
use tramplab_protocol::message::Explain;

/// Instructions of the head without those of the base, by function, the largest change first. A
/// profile in `run.json` has its dearest functions only: a function that it lacks had at most as
/// many instructions as its last one, so the change is at least this.
pub(super) fn by_function(pair: &Pair, phase: Phase) -> Vec<(String, i64)> {
    let (base, Some(head)) = (profiled(pair.base, phase), pair.head) else { return Vec::new() };
    match (base, profiled(head, phase)) {
        (Some(base), Some(head)) if base.attached == head.attached => changes(base, head),
        _ => Vec::new(),
    }
}

/// Grace periods of the head without those of the base.
pub(super) fn grace_periods(pair: &Pair, phase: Phase) -> Option<i64> {
    let count = |cell| profiled(cell, phase)?.grace_periods;
    Some(difference(count(pair.base)?, count(pair.head?)?))
}

fn profiled(cell: &Cell, phase: Phase) -> Option<&Summary> {
    let Some(Measurement::Attach(attach)) = &cell.measurement else { return None };
    attach.explained.iter().find(|one| one.phase == phase && one.how == Explain::Exact)
}

fn changes(base: &Summary, head: &Summary) -> Vec<(String, i64)> {
    let [bases, heads] = [base, head].map(own);
    let [of_base, of_head] = [(base, &bases), (head, &heads)].map(|(summary, known)| {
        let sum = known.values().fold(0u64, |sum, own| sum.saturating_add(*own));
        let least = known.values().min().copied().unwrap_or(u64::MAX);
        if sum == summary.totals.task { 0 } else { least }
    });
    let names: BTreeMap<&str, ()> =
        bases.keys().chain(heads.keys()).map(|&name| (name, ())).collect();
    let change = |name: &str| match (bases.get(name), heads.get(name)) {
        (Some(&base), Some(&head)) => difference(base, head),
        (Some(&base), None) => difference(base, of_head.min(base)),
        (None, Some(&head)) => difference(of_base.min(head), head),
        (None, None) => 0,
    };
    let all = names.into_keys().map(|name| (name.to_owned(), change(name)));
    let mut all: Vec<_> = all.filter(|(_, change)| *change != 0).collect();
    all.sort_by_key(|(_, change)| std::cmp::Reverse(change.unsigned_abs()));
    all
}

/// Instructions by function. Functions of one name are not told apart.
fn own(summary: &Summary) -> HashMap<&str, u64> {
    let mut all: HashMap<&str, u64> = HashMap::new();
    for cost in &summary.functions {
        let own = all.entry(&cost.function.name).or_default();
        *own = own.saturating_add(cost.own);
    }
    all
}

pub(super) fn difference(base: u64, head: u64) -> i64 {
    let change = i128::from(head).saturating_sub(base.into());
    i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::profile::{Cost, Function, Space, Totals, Unit};

    fn summary(task: u64, functions: &[(&str, u64)]) -> Summary {
        let cost = |&(name, own): &(&str, u64)| Cost {
            function: Function { name: name.to_owned(), space: Space::Kernel },
            own,
            total: own,
        };
        Summary {
            phase: Phase::Attach,
            how: Explain::Exact,
            clock: tramplab_model::run::Clock::Exact,
            rounds: 1,
            attached: 1,
            wall_ns: 0,
            cpu_ns: 0,
            unit: Unit::Instructions,
            totals: Totals { task, ..Totals::default() },
            cpus: Vec::new(),
            functions: functions.iter().map(cost).collect(),
            waits: Vec::new(),
            waited_ns: 0,
            counters: Vec::new(),
            grace_periods: None,
            file: String::new(),
        }
    }

    #[test]
    fn a_function_that_a_list_lacks_counts_with_what_the_list_proves() {
        for (base, head, expected) in [
            // Both lists are complete.
            (
                summary(30, &[("f", 20), ("g", 10)]),
                summary(45, &[("f", 20), ("h", 25)]),
                vec![("h", 25), ("g", -10)],
            ),
            // `g` may still have up to 25 instructions of the head, and `h` up to 10 of the base.
            (
                summary(90, &[("f", 20), ("g", 10)]),
                summary(100, &[("f", 20), ("h", 25)]),
                vec![("h", 15)],
            ),
            (summary(90, &[("f", 60)]), summary(40, &[("g", 9)]), vec![("f", -51)]),
            (summary(0, &[]), summary(0, &[]), vec![]),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(name, change)| (name.to_owned(), change)).collect();
            assert_eq!(changes(&base, &head), expected);
        }
    }

    #[test]
    fn hostile_numbers_saturate() {
        let all = [("f", u64::MAX), ("f", u64::MAX), ("g", 1)];
        let found = changes(&summary(1, &[("g", 1)]), &summary(u64::MAX, &all));
        assert_eq!(found, [("f".to_owned(), i64::MAX)]);
        assert_eq!(difference(u64::MAX, 0), i64::MIN);
    }
}
