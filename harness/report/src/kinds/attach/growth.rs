// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rounds of attach cells, and how their times and instructions grow with the number of
//! functions.

use super::attaches;
use crate::scaling;
use std::collections::BTreeMap;
use tramplab_analysis::{profile::Phase, spread::Spread};
use tramplab_model::{
    kinds::{attach, attached},
    program::ProgramName,
    run::{AttachBoot, Cell},
    table::Table,
};
use tramplab_protocol::{
    Mechanism,
    message::{AttachRound, Explain, Stopped},
};

/// Rounds of attaching or detaching by one clock.
pub struct Rounds {
    pub test: attach::Test,
    pub clock: &'static str,
    pub phase: &'static str,
    pub ns: Vec<u64>,
    /// The fewest functions that a guest attached to, if the time budget ended it before all.
    pub stopped: Option<u32>,
}

/// The rounds of each cell, for pictures.
pub fn rounds(cells: &[&Cell]) -> Vec<Rounds> {
    let mut all = Vec::new();
    for (test, measured) in attaches(cells) {
        let Ok(attach) = measured else { continue };
        let clocks: [(&str, &[AttachBoot]); 2] =
            [("host's", &attach.boots), ("exact", attach.exact.as_slice())];
        for phase in [attach::Phase::Attach, attach::Phase::Detach] {
            for (clock, boots) in clocks.iter().filter(|(_, boots)| !boots.is_empty()) {
                let ns = boots.iter().flat_map(|boot| &boot.rounds).map(|round| phase.ns(round));
                let ns = ns.collect();
                let stopped = boots.iter().filter_map(|boot| boot.stopped).filter_map(|stopped| {
                    let Stopped { wanted, attached, detached, .. } = stopped;
                    let reached = if phase == attach::Phase::Attach { attached } else { detached };
                    (reached < wanted).then_some(reached)
                });
                let (phase, stopped) = (phase.name(), stopped.min());
                all.push(Rounds { test, clock, phase, ns, stopped });
            }
        }
    }
    all
}

/// A quantity that grows with the number of functions.
pub type Quantity = (Mechanism, Option<ProgramName>, &'static str);

/// Numbers of functions, and a quantity's values for them.
pub type Points = Vec<(f64, f64)>;

/// True for a number of instructions; other quantities are times in ms.
pub fn is_instructions((.., of): &Quantity) -> bool {
    [ATTACH_INSTRUCTIONS, DETACH_INSTRUCTIONS].contains(of)
}

const ATTACH_INSTRUCTIONS: &str = "attach, instructions";
const DETACH_INSTRUCTIONS: &str = "detach, instructions";

/// All quantities by the number of functions.
pub fn by_size(cells: &[&Cell]) -> BTreeMap<Quantity, Points> {
    let mut series: BTreeMap<Quantity, Points> = BTreeMap::new();
    for (test, measured) in attaches(cells) {
        let attach::Test { mechanism, program, beside, functions, among } = test;
        // Functions that the user names are not like any others. Several links, or other tracers,
        // cost more.
        let is_alone = functions.links() == 1 && beside.is_empty();
        let (Ok(attach), None, true) = (measured, among, is_alone) else { continue };
        let mut add = |of, functions: u32, value: Option<f64>| {
            let point = value.map(|value| (f64::from(functions), value));
            series.entry((mechanism, program, of)).or_default().extend(point);
        };
        // A time budget may end boots at different numbers of functions: they have no common time.
        let one_number =
            attach.boots.iter().all(|boot| boot.functions == attach.boots[0].functions);
        if let Some(boot) = attach.boots.first().filter(|_| one_number) {
            let median = |phase| median(attach.rounds(), phase);
            add("attach, host's clock", boot.functions, median(attach::Phase::Attach));
            if boot.stopped.is_none_or(|stopped| stopped.detached == stopped.attached) {
                add("detach, host's clock", boot.functions, median(attach::Phase::Detach));
            }
        }
        if let Some(boot) = &attach.exact {
            let median = |phase| median(boot.rounds.iter(), phase);
            add("attach, exact clock", boot.functions, median(attach::Phase::Attach));
            if boot.stopped.is_none_or(|stopped| stopped.detached == stopped.attached) {
                add("detach, exact clock", boot.functions, median(attach::Phase::Detach));
            }
        }
        for summary in attach.explained.iter().filter(|summary| summary.how == Explain::Exact) {
            let of = match summary.phase {
                Phase::Attach => ATTACH_INSTRUCTIONS,
                Phase::Detach => DETACH_INSTRUCTIONS,
            };
            add(of, summary.attached, Some(summary.totals.task as f64));
        }
    }
    series
}

fn median<'a>(rounds: impl Iterator<Item = &'a AttachRound>, phase: attach::Phase) -> Option<f64> {
    Spread::of_ns(rounds.map(|round| phase.ns(round))).map(|spread| spread.median)
}

/// Exponents of growth with the number of functions, if there are enough sizes.
pub fn table(cells: &[&Cell]) -> Option<Table> {
    let row = |((mechanism, program, of), points): (Quantity, Points)| {
        let points = scaling::large(&points);
        let fit = scaling::fit(&points)?;
        let sizes = points.iter().map(|(n, _)| n.to_string()).collect::<Vec<_>>().join(", ");
        let exponent = format!("{:.2} ± {:.2}", fit.exponent, fit.error);
        let quality = format!("{:.3}", fit.r_squared);
        Some(vec![attached(mechanism, program), of.to_owned(), exponent, quality, sizes])
    };
    let note = "time ~ functions ^ exponent, by least squares of the logarithms over the sizes \
                named (from 100 on, where there are three): 1 grows in proportion, 0 not at all; ± \
                is the exponent's standard error.";
    let header = ["mechanism", "of", "exponent", "r²", "sizes"];
    let rows = by_size(cells).into_iter().filter_map(row);
    Table::new("How it grows with the number of functions", header, rows).noted([note]).if_filled()
}
