// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench`: rates of the tree's own benchmarks.

use super::Report;
use crate::{group::Group, view::View};
use tramplab_analysis::spread::Spread;
use tramplab_model::{
    run::{Bench, Cell, Measurement, Run, Test},
    table::Table,
};

/// The table of `test_progs` compares them.
pub struct Benchmark;

impl Report for Benchmark {
    fn line(&self, cell: &Cell) -> String {
        let Some(Measurement::Bench(bench)) = &cell.measurement else { return String::new() };
        rate(bench).map_or_else(String::new, |rate| format!("{rate:.3} M hits/s"))
    }

    fn tables(&self, _run: &Run, group: &Group, _view: &View) -> Vec<Table> {
        let row = |cell: &&Cell| {
            let Test::Bench(test) = cell.id.test else { return None };
            let rest = match &cell.measurement {
                Some(Measurement::Bench(bench)) => {
                    let seconds = bench.boots.iter().flat_map(|boot| &boot.hits).count();
                    let rate = rate(bench).map_or_else(String::new, |rate| format!("{rate:.3}"));
                    let counts = [bench.producers as usize, bench.boots.len(), seconds];
                    let [producers, boots, seconds] = counts.map(|count| count.to_string());
                    [producers, boots, seconds, rate]
                }
                _ => [cell.outcome.name().to_owned(), String::new(), String::new(), String::new()],
            };
            Some([vec![test.to_string()], rest.to_vec()].concat())
        };
        let caption = "The tree's bench, million hits per second of guest time, median (min..max) \
                       of all seconds";
        let header = ["benchmark", "producers", "boots", "seconds", "M hits/s"];
        let rows = group.cells.iter().filter_map(row);
        Table::new(caption, header, rows).if_filled().into_iter().collect()
    }
}

/// Million hits per second, over all seconds of all boots.
fn rate(bench: &Bench) -> Option<Spread> {
    Spread::of(bench.boots.iter().flat_map(|boot| boot.hits.iter().copied()))
}
