// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the cells of a run ended.

use crate::{
    comparison,
    findings::{self, Told},
};
use std::collections::BTreeMap;
use tramplab_model::{
    run::{Allowed, Cell, CellId, Outcome, Run},
    text,
};

#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// `12 cells: 9 pass, 1 fail, 1 error, 1 skip`.
    pub summary: String,
    /// Missing parts of a run that was interrupted, or joined from too few runs.
    pub lacks: Vec<String>,
    pub failures: Vec<(String, Vec<String>)>,
    /// Cells that fail only by what the findings of the same report tell.
    pub worse: Vec<String>,
    pub errors: Vec<Failed>,
    /// Names of cells, by reason.
    pub skips: Vec<(String, Vec<String>)>,
    /// Names of cells, by the warning that the suite allows and its reason.
    pub allowed: Vec<(String, Vec<String>)>,
}

/// Cells that ended in the same error.
#[derive(Clone, Debug)]
pub struct Failed {
    /// At least one.
    pub cells: Vec<String>,
    pub message: String,
    /// The console of the first of them.
    pub console: Vec<String>,
}

impl Failed {
    /// `x86_64/6.12/tcg/lbr_waste/fexit and 12 more`.
    pub fn heading(&self) -> String {
        and_more(&self.cells)
    }
}

/// The first name, and the number of further names.
pub fn and_more(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// Why [`Outcomes::worse`] fail.
pub const WORSE: &str = "worse, as the findings say";

/// The cells in the run's order of kernels.
pub(crate) fn in_order(run: &Run) -> Vec<&Cell> {
    let order =
        |id: &CellId| run.kernels.iter().position(|k| k.name == id.kernel).unwrap_or(usize::MAX);
    let mut cells: Vec<&Cell> = run.cells.iter().collect();
    cells.sort_by(|a, b| (order(&a.id), &a.id).cmp(&(order(&b.id), &b.id)));
    cells
}

/// The reason why a run does not pass, in a line.
pub fn why(run: &Run) -> String {
    let Outcomes { summary, lacks, failures, errors, .. } = outcomes(run);
    let findings = comparison::findings_of(run);
    let told = findings.iter().flat_map(|(_, told)| told);
    let worse = told.filter(|told| !told.harmed.is_empty()).map(Told::sentence).next();
    let failed = || {
        let (cell, reasons) = failures.first()?;
        Some(format!("{cell}: {}", reasons.join("; ")))
    };
    let error = || errors.first().map(|error| format!("{}: {}", error.heading(), error.message));
    let first = worse.or_else(failed).or_else(error).map(|first| format!("first {first}"));
    let nothing = || Some("no number was measured, or none on both sides of a series".to_owned());
    let lacks = (!lacks.is_empty()).then(|| lacks.join(" "));
    let why = lacks.or(first).or_else(nothing).unwrap_or_default();
    text::line(&format!("{summary}; {why}"))
}

/// Adds a cell to those of the same reason.
fn add_cell(by_reason: &mut Vec<(String, Vec<String>)>, reason: String, cell: String) {
    match by_reason.iter_mut().find(|(known, _)| *known == reason) {
        Some((_, cells)) => cells.push(cell),
        None => by_reason.push((reason, vec![cell])),
    }
}

pub(crate) fn outcomes(run: &Run) -> Outcomes {
    outcomes_beside(run, &[])
}

/// The outcomes without reasons that `findings` tell.
pub(crate) fn outcomes_beside(run: &Run, findings: &[findings::OfSeries]) -> Outcomes {
    let mut worse = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut errors: Vec<(&Outcome, Failed)> = Vec::new();
    let mut skips = Vec::new();
    let mut allowed = Vec::new();
    for cell in in_order(run) {
        *counts.entry(cell.outcome.name()).or_default() += 1;
        let name = cell.id.name();
        match &cell.outcome {
            Outcome::Pass => {}
            Outcome::Fail { reasons } => match findings::untold(findings, &cell.id, reasons) {
                Some(reasons) => {
                    failures.push((name.clone(), findings::with_the_dearest(cell, reasons)));
                }
                None => worse.push(name.clone()),
            },
            Outcome::Error { kind, message } => {
                // A compiler or a verifier prints several lines. Show the rest in place of the
                // console.
                let (first, rest) = message.split_once('\n').unwrap_or((message, ""));
                let console = match rest.is_empty() {
                    true => cell.console_tail.clone(),
                    false => rest.lines().map(str::to_owned).collect(),
                };
                let message = format!("{kind}: {first}");
                match errors.iter_mut().find(|(known, _)| **known == cell.outcome) {
                    Some((_, known)) => known.cells.push(name.clone()),
                    None => errors.push((
                        &cell.outcome,
                        Failed { cells: vec![name.clone()], message, console },
                    )),
                }
            }
            Outcome::Skip { reason } => {
                add_cell(&mut skips, text::line(reason), name.clone());
            }
        }
        for Allowed { warning, reason } in &cell.allowed {
            add_cell(&mut allowed, text::line(&format!("{warning} ({reason})")), name.clone());
        }
    }
    let parts = ["pass", "fail", "error", "skip"].map(|outcome| {
        let count = counts.get(outcome).copied().unwrap_or_default();
        format!("{count} {outcome}")
    });
    Outcomes {
        summary: format!("{}: {}", text::counted(run.cells.len(), "cell"), parts.join(", ")),
        lacks: run.interruption().into_iter().chain(run.shortage()).collect(),
        failures,
        worse,
        errors: errors.into_iter().map(|(_, failed)| failed).collect(),
        skips,
        allowed,
    }
}
