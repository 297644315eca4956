// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables that maintainers ask for in a commit's message: the cost of each hit, and the
//! functions of each attaching, before and after.

use std::collections::BTreeMap;
use tramplab_analysis::{
    compare::{self, Comparison, Metric, Verdict, pair_up},
    profile::{Function, Summary},
};
use tramplab_model::{
    kinds::{attach, trigger::Cost},
    run::{Cell, Measurement, Run, Series, Test},
    table::Table,
};
use tramplab_protocol::message::Explain;

/// The costs of a hit that are told.
const COSTS: [Cost; 3] = [Cost::Instructions, Cost::MispredictedReturns, Cost::EstimatedCycles];
/// Functions of a profile that are told.
const FUNCTIONS: usize = 10;

pub fn tables(run: &Run, series: &Series) -> Vec<Table> {
    let comparison = compare::whole(run, series, None);
    hits(&comparison).into_iter().chain(profiles(run, series, &comparison)).collect()
}

/// Every hit that both sides measured. None without one, and without the costs that none has.
fn hits(comparison: &Comparison) -> Option<Table> {
    let mut tests: BTreeMap<String, [String; COSTS.len()]> = BTreeMap::new();
    for compared in &comparison.metrics {
        let Metric::Trigger(metric) = compared.metric else { continue };
        let Some(at) = COSTS.iter().position(|cost| *cost == metric.cost) else { continue };
        let row = tests.entry(metric.test.to_string()).or_default();
        row[at] = format!("{} -> {}", compared.base, compared.head);
    }
    let is_told = |at: &usize| tests.values().any(|row| !row[*at].is_empty());
    let told: Vec<usize> = (0..COSTS.len()).filter(is_told).collect();
    let title = |at: &usize| COSTS[*at].definition().title.to_owned();
    let header = ["hit".to_owned()].into_iter().chain(told.iter().map(title));
    let rows = tests.iter().map(|(test, row)| {
        let cells = told.iter().map(|at| row[*at].clone());
        [test.clone()].into_iter().chain(cells).collect()
    });
    Table::new("A hit, before and after", header, rows).if_filled()
}

/// A table for each counted or estimated profile that both sides have, of tests that changed.
fn profiles(run: &Run, series: &Series, comparison: &Comparison) -> Vec<Table> {
    let is_changed = |test: attach::Test| {
        comparison.metrics.iter().any(|one| {
            one.metric.test() == Test::Attach(test)
                && matches!(one.verdict, Verdict::Better | Verdict::Worse)
        })
    };
    let [old, new] = [series.base(), series.head()]
        .map(|step| run.cells_of(series.arch, &step.kernel).collect::<Vec<_>>());
    let mut tables = Vec::new();
    for pair in pair_up(&old, &new) {
        let (Some(head), Test::Attach(test)) = (pair.head, &pair.base.id.test) else { continue };
        if !is_changed(*test) {
            continue;
        }
        for before in summaries(pair.base) {
            let is_same = |after: &&Summary| (after.phase, after.how) == (before.phase, before.how);
            let Some(after) = summaries(head).find(is_same) else { continue };
            tables.extend(profile(&test.to_string(), before, after));
        }
    }
    tables
}

fn summaries(cell: &Cell) -> impl Iterator<Item = &Summary> {
    let attach = match &cell.measurement {
        Some(Measurement::Attach(attach)) => Some(attach),
        _ => None,
    };
    let all = attach.into_iter().flat_map(|attach| &attach.explained);
    all.filter(|summary| matches!(summary.how, Explain::Exact | Explain::Estimated))
}

fn profile(test: &str, before: &Summary, after: &Summary) -> Option<Table> {
    let mut functions: BTreeMap<&Function, [Option<u64>; 2]> = BTreeMap::new();
    for (side, summary) in [before, after].into_iter().enumerate() {
        for cost in &summary.functions {
            functions.entry(&cost.function).or_default()[side] = Some(cost.own);
        }
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|(_, sides)| std::cmp::Reverse(sides.iter().flatten().max().copied()));
    // A profile in run.json has its dearest functions only.
    let shown = |own: Option<u64>| own.map_or_else(|| "less".to_owned(), |own| own.to_string());
    let row = |(function, sides): (&Function, [Option<u64>; 2])| {
        [function.name.clone()].into_iter().chain(sides.map(shown)).collect()
    };
    let whole = [before, after].map(|summary| summary.totals.task.to_string());
    let whole = ["all".to_owned()].into_iter().chain(whole).collect();
    let unit = match before.how {
        Explain::Estimated => "estimated cycles",
        _ => "instructions",
    };
    let rows = [whole].into_iter().chain(functions.into_iter().take(FUNCTIONS).map(row));
    let caption = format!("{} of {test}, {unit} of the thread", before.phase.name());
    Table::new(caption, ["function", "before", "after"], rows).if_filled()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_testdata::{call_ops, each_alone};

    #[test]
    fn a_hit_has_all_its_costs_that_were_counted() {
        let run = call_ops();
        let [hits] = &tables(&run, &run.series[0])[..] else { panic!("one table") };
        assert_eq!(hits.caption, "A hit, before and after");
        let row = hits.rows.iter().find(|row| row[0] == "kprobe.multi+function_tracer:1");
        assert_eq!(row.unwrap()[..2], ["kprobe.multi+function_tracer:1", "438 -> 299"]);
        assert!(hits.rows.iter().all(|row| row.len() == hits.header.len()));
    }

    #[test]
    fn a_phase_that_changed_has_its_functions_the_dearest_first() {
        let all = each_alone();
        let run = all.iter().find(|run| run.series[0].name == "single-direct-ops").unwrap();
        let all = tables(run, &run.series[0]);
        let caption = "attach of fentry/100, instructions of the thread";
        let table = all.iter().find(|table| table.caption == caption).unwrap();
        assert_eq!(table.header, ["function", "before", "after"]);
        assert_eq!(table.rows[0][0], "all");
        let number = |row: &Vec<String>, at: usize| row[at].parse::<u64>().unwrap_or_default();
        let [base, head] = [1, 2].map(|at| number(&table.rows[0], at));
        assert_eq!(head - base, 256_924_470);
        let dearest: Vec<u64> =
            table.rows[1..].iter().map(|row| number(row, 1).max(number(row, 2))).collect();
        assert!(dearest.len() == FUNCTIONS && dearest.is_sorted_by(|a, b| a >= b), "{dearest:?}");
        let lookup = table.rows.iter().find(|row| row[0] == "ftrace_lookup_ip").unwrap();
        assert_eq!(number(lookup, 2) - number(lookup, 1), 189_513_788);
    }
}
