// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions in which an attaching thread executes more or fewer instructions than on the base, and
//! the grace periods for which it waits.

use super::{Pair, hunk::MOST, kinds, listing::PROGRAM};
use crate::branch::stable_name;
use std::collections::{BTreeSet, HashMap};
use tramplab_model::{
    profile::{Phase, Summary},
    run::{Cell, Measurement},
};
use tramplab_protocol::message::Explain;

/// Instructions or estimated cycles of the head without those of the base, by function, the largest
/// change first. A profile in `run.json` has its dearest functions only: a function that it lacks
/// had at most as many as its last one, so the change is at least this.
pub(super) fn by_function(pair: &Pair, phase: Phase, how: Explain) -> Vec<(String, i64)> {
    let explained = |cell| explained(cell, phase, how);
    let (base, Some(head)) = (explained(pair.base), pair.head) else { return Vec::new() };
    match (base, explained(head)) {
        (Some(base), Some(head)) if base.attached == head.attached => changes(base, head),
        _ => Vec::new(),
    }
}

/// Grace periods of the head without those of the base.
pub(super) fn grace_periods(pair: &Pair, phase: Phase) -> Option<i64> {
    let count = |cell| profiled(cell, phase)?.grace_periods;
    Some(difference(count(pair.base)?, count(pair.head?)?))
}

/// The change of all instructions.
pub(super) fn change(pair: &Pair, phase: Phase) -> Option<i64> {
    let task = |cell| Some(profiled(cell, phase)?.totals.task);
    Some(difference(task(pair.base)?, task(pair.head?)?))
}

/// The same in per cent of the base's.
pub(super) fn percent(pair: &Pair, phase: Phase) -> Option<f64> {
    let base = profiled(pair.base, phase)?.totals.task;
    let share = 100.0 * change(pair, phase)? as f64 / base as f64;
    Some(share).filter(|share| share.is_finite())
}

/// The functions that a cell's profile lists, with their instructions.
pub(super) fn of_cell(cell: &Cell, phase: Phase) -> impl Iterator<Item = (String, u64)> {
    profiled(cell, phase).into_iter().flat_map(own)
}

fn profiled(cell: &Cell, phase: Phase) -> Option<&Summary> {
    explained(cell, phase, Explain::Exact)
}

fn explained(cell: &Cell, phase: Phase, how: Explain) -> Option<&Summary> {
    let Some(Measurement::Attach(attach)) = &cell.measurement else { return None };
    kinds::explained(attach, phase, how)
}

fn changes(base: &Summary, head: &Summary) -> Vec<(String, i64)> {
    let [bases, heads] = [base, head].map(own);
    let [of_base, of_head] = [base, head].map(|summary| {
        let known = || summary.functions.iter().take(MOST).map(|cost| cost.own);
        let sum = known().fold(0, u64::saturating_add);
        if sum == summary.totals.task { 0 } else { known().min().unwrap_or(u64::MAX) }
    });
    let names: BTreeSet<&String> = bases.keys().chain(heads.keys()).collect();
    let change = |name: &String| match (bases.get(name), heads.get(name)) {
        (Some(&base), Some(&head)) => difference(base, head),
        (Some(&base), None) => difference(base, of_head.min(base)),
        (None, Some(&head)) => difference(of_base.min(head), head),
        (None, None) => 0,
    };
    let all = names.into_iter().map(|name| (name.clone(), change(name)));
    let mut all: Vec<_> = all.filter(|(_, change)| *change != 0).collect();
    all.sort_by_key(|(_, change)| std::cmp::Reverse(change.unsigned_abs()));
    all
}

/// Instructions by function. Functions of one name are not told apart, nor are the parts and copies
/// that a compiler makes of one: `f.part.0`, `f.isra.0`.
fn own(summary: &Summary) -> HashMap<String, u64> {
    let mut all: HashMap<String, u64> = HashMap::new();
    for cost in summary.functions.iter().take(MOST) {
        let name = stable_name(&cost.function.name);
        let name = if name.starts_with(PROGRAM) { PROGRAM } else { &name };
        let name = name.split_once('.').map_or(name, |(name, _)| name);
        let own = all.entry(name.to_owned()).or_default();
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
            places: None,
            estimate: None,
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
            // The compiler names parts and copies of one function, and a build its programs.
            (
                summary(30, &[("f", 20), ("f.part.0", 10)]),
                summary(35, &[("f.isra.0", 35)]),
                vec![("f", 5)],
            ),
            (
                summary(30, &[("bpf_prog_6deef7357e7b4530_x", 30)]),
                summary(31, &[("bpf_prog_0eef7357e7b45300_x", 31)]),
                vec![("bpf_prog_*", 1)],
            ),
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
