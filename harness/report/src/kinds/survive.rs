// SPDX-License-Identifier: MIT OR Apache-2.0
//! `survive`: what storms did, what they left, and whether the kernel survived.

use super::Report;
use crate::{group::Group, judged, view::View};
use tramplab_analysis::compare::Comparison;
use tramplab_model::{
    kinds::Metric,
    run::{Cell, Measurement, Outcome, Run, Survive, Test},
    table::Table,
};
use tramplab_protocol::storm::{Attached, State, SurviveReply};

pub struct Storms;

impl Report for Storms {
    fn line(&self, cell: &Cell) -> String {
        let Some(survive) = measured(cell) else { return String::new() };
        match &survive.done {
            Some(done) => format!(
                "{} steps, {} links, {} runs, {} checks",
                done.steps,
                links(done),
                done.runs,
                done.checked
            ),
            None => String::new(),
        }
    }

    fn tables(&self, _run: &Run, group: &Group, _view: &View) -> Vec<Table> {
        let cells: Vec<&Cell> = group
            .cells
            .iter()
            .copied()
            .filter(|cell| matches!(cell.id.test, Test::Survive(_)))
            .collect();
        if cells.is_empty() {
            return Vec::new();
        }
        let mut tables = vec![storms(&cells)];
        tables.extend(mechanisms(&cells));
        tables
    }

    fn compared(&self, comparison: &Comparison) -> Vec<Table> {
        let is_own = |metric| matches!(metric, Metric::Survive(_));
        let table = judged::table("Storms, base -> head", comparison, is_own);
        table.if_filled().into_iter().collect()
    }
}

fn measured(cell: &Cell) -> Option<&Survive> {
    match &cell.measurement {
        Some(Measurement::Survive(survive)) => Some(survive),
        _ => None,
    }
}

/// The largest number stands for any larger sum.
fn sum<'a>(all: impl IntoIterator<Item = &'a Attached>, of: fn(&Attached) -> u64) -> u64 {
    all.into_iter().map(of).fold(0, u64::saturating_add)
}

fn links(done: &SurviveReply) -> u64 {
    sum(&done.attached, |one| one.links)
}

/// `15000 -> 20000 -> 20000`: before the storm, after its first time, at the end.
fn memory(states: &[State], of: impl Fn(&State) -> u64) -> String {
    let chosen = [states.first(), states.get(1), states.last()];
    let sizes: Vec<String> = chosen.into_iter().flatten().map(|s| of(s).to_string()).collect();
    sizes.join(" -> ")
}

fn storms(cells: &[&Cell]) -> Table {
    let header = [
        "storm",
        "result",
        "threads",
        "steps",
        "links",
        "refused",
        "runs",
        "checks",
        "killed",
        "modules",
        "slab KiB",
        "per-CPU KiB",
        "vmalloc KiB",
    ];
    let row = |cell: &&Cell| {
        let mut row = vec![cell.id.test.name(), cell.outcome.name().to_owned()];
        if let Some(Survive { threads, steps, done, .. }) = measured(cell) {
            row.push(threads.to_string());
            match done {
                Some(done) => {
                    let refused = sum(&done.attached, |one| one.refused);
                    row.push(done.steps.to_string());
                    let numbers = [links(done), refused, done.runs, done.checked, done.killed];
                    row.extend(numbers.map(|number| number.to_string()));
                    row.push(format!("{}/{}", done.loaded, done.unloaded));
                    row.push(memory(&done.states, |state| state.slab_kib));
                    row.push(memory(&done.states, |state| state.percpu_kib));
                    row.push(memory(&done.states, |state| state.vmalloc_kib));
                }
                None => row.push(format!("dies within {steps}")),
            }
        }
        if let Outcome::Skip { reason } = &cell.outcome {
            row.push(reason.clone());
        }
        row.resize(header.len(), String::new());
        row
    };
    let note =
        "modules: loaded/unloaded. Memory: before, after the storm's first time, at the end.";
    Table::new("Storms", header, cells.iter().map(row)).noted([note])
}

/// Links by mechanism, of all storms together.
fn mechanisms(cells: &[&Cell]) -> Option<Table> {
    let done = || cells.iter().filter_map(|cell| measured(cell)?.done.as_ref());
    let mut all: Vec<_> = done().flat_map(|done| &done.attached).collect();
    all.sort_by_key(|one| one.mechanism);
    let row = |of: &[&Attached]| {
        let links = sum(of.iter().copied(), |one| one.links);
        let refused = sum(of.iter().copied(), |one| one.refused);
        let reason = of.iter().find_map(|one| one.lacking.as_ref().or(one.reason.as_ref()));
        let reason = reason.cloned().unwrap_or_default();
        vec![of[0].mechanism.to_string(), links.to_string(), refused.to_string(), reason]
    };
    let rows = all.chunk_by(|a, b| a.mechanism == b.mechanism).map(row);
    let header = ["mechanism", "links", "refused", "the kernel's last reason"];
    Table::new("Links of storms", header, rows).if_filled()
}
