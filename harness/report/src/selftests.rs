// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tables say of the tree's own tests.

use tramplab_analysis::spread::Spread;
use tramplab_model::table::Table;
use tramplab_model::{
    run::{Bench, Cell, Measurement, Outcome, Test, TreeTest},
    selftests::End,
};

/// Million hits per second: of all seconds of all boots.
pub fn rate(bench: &Bench) -> Option<Spread> {
    Spread::of(bench.boots.iter().flat_map(|boot| boot.hits.iter().copied()))
}

/// `subtests: 3 ok, 1 skipped, 1 denied`.
pub fn subtests(test: &TreeTest) -> String {
    let named = |end: End| test.subtests.iter().filter(|subtest| subtest.end == end).count();
    let count = |end: End| named(end) + test.left_out.of(end) as usize;
    let unnamed = test.left_out.sum() as usize;
    let parts = [
        (count(End::Ok), "ok"),
        (count(End::Fail), "failed"),
        (count(End::Skip), "skipped"),
        (test.denied.len(), "denied"),
        (unnamed, "of all not listed"),
    ];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if parts.is_empty() { "no subtests".to_owned() } else { format!("subtests: {}", parts.join(", ")) }
}

/// Of one kernel's cells.
pub fn tables(cells: &[&Cell]) -> Vec<Table> {
    [benchmarks(cells), tests(cells)].into_iter().flatten().collect()
}

fn benchmarks(cells: &[&Cell]) -> Option<Table> {
    let row = |cell: &&Cell| {
        let Test::Bench { benchmark } = cell.id.test else { return None };
        let rest = match &cell.measurement {
            Some(Measurement::Bench(bench)) => {
                let seconds: usize = bench.boots.iter().map(|boot| boot.hits.len()).sum();
                let rate = rate(bench).map_or_else(String::new, |rate| format!("{rate:.3}"));
                [bench.producers.to_string(), bench.boots.len().to_string(), seconds.to_string(), rate]
            }
            _ => [cell.outcome.name().to_owned(), String::new(), String::new(), String::new()],
        };
        Some([vec![benchmark.to_string()], rest.to_vec()].concat())
    };
    let rows: Vec<_> = cells.iter().filter_map(row).collect();
    (!rows.is_empty()).then(|| Table {
        caption: "The tree's bench, million hits per second of guest time, median (min..max) of all seconds"
            .to_owned(),
        header: ["benchmark", "producers", "boots", "seconds", "M hits/s"].map(str::to_owned).to_vec(),
        rows,
        notes: Vec::new(),
    })
}

fn tests(cells: &[&Cell]) -> Option<Table> {
    let row = |cell: &&Cell| {
        if !matches!(cell.id.test, Test::TestProgs { .. } | Test::Kselftest { .. }) {
            return None;
        }
        let said = match (&cell.measurement, &cell.outcome) {
            (Some(Measurement::TestProgs(test) | Measurement::Kselftest(test)), _) => subtests(test),
            (_, Outcome::Skip { reason }) => reason.clone(),
            _ => String::new(),
        };
        Some(vec![cell.id.test.name(), cell.outcome.name().to_owned(), said])
    };
    let rows: Vec<_> = cells.iter().filter_map(row).collect();
    (!rows.is_empty()).then(|| Table {
        caption: "The tree's own tests".to_owned(),
        header: ["test", "result", ""].map(str::to_owned).to_vec(),
        rows,
        notes: Vec::new(),
    })
}
