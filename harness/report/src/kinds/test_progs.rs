// SPDX-License-Identifier: MIT OR Apache-2.0
//! `test_progs`: how the tree's own tests ended. Its tables show `kselftest` as well.

use super::Report;
use crate::{group::Group, judged, view::View};
use tramplab_analysis::compare::{Comparison, Metric};
use tramplab_model::{
    run::{Cell, Measurement, Outcome, Run, Test, TreeTest},
    table::Table,
    tree_tests::End,
};

pub struct TestProgs;

impl Report for TestProgs {
    fn line(&self, cell: &Cell) -> String {
        let Some(Measurement::TestProgs(test)) = &cell.measurement else { return String::new() };
        subtests(test)
    }

    fn tables(&self, _run: &Run, group: &Group, _view: &View) -> Vec<Table> {
        let row = |cell: &&Cell| {
            if !matches!(cell.id.test, Test::TestProgs(_) | Test::Kselftest(_)) {
                return None;
            }
            let said = match (&cell.measurement, &cell.outcome) {
                (Some(Measurement::TestProgs(test) | Measurement::Kselftest(test)), _) => {
                    subtests(test)
                }
                (_, Outcome::Skip { reason }) => reason.clone(),
                _ => String::new(),
            };
            Some(vec![cell.id.test.name(), cell.outcome.name().to_owned(), said])
        };
        let rows = group.cells.iter().filter_map(row);
        let table = Table::new("The tree's own tests", ["test", "result", ""], rows);
        table.if_filled().into_iter().collect()
    }

    /// All of the tree's own tests, with `bench` and `kselftest`.
    fn compared(&self, comparison: &Comparison) -> Vec<Table> {
        let is_own = |metric: Metric| metric.test().is_of_the_tree();
        let table = judged::table("The tree's own tests, base -> head", comparison, is_own);
        let note = "Rates: median (min..max) over boots of each boot's median second.";
        table.noted([note]).if_filled().into_iter().collect()
    }
}

/// `subtests: 3 ok, 1 skipped, 1 denied`.
pub fn subtests(test: &TreeTest) -> String {
    let named = |end: End| test.subtests.iter().filter(|subtest| subtest.end == end).count();
    let count = |end: End| named(end).saturating_add(test.left_out.of(end) as usize);
    let unnamed = test.left_out.sum() as usize;
    let parts = [
        (count(End::Ok), "ok"),
        (count(End::Fail), "failed"),
        (count(End::Skip), "skipped"),
        (test.denied.len(), "denied"),
        (unnamed, "of all not listed"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if parts.is_empty() {
        "no subtests".to_owned()
    } else {
        format!("subtests: {}", parts.join(", "))
    }
}
