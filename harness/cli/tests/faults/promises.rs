// SPDX-License-Identifier: MIT OR Apache-2.0
//! The promises that hold after any fault: no false pass, no lost result, no unexplained end.

use crate::injection::{Injection, Target, Wrong};
use nix::sys::signal::Signal;
use std::{collections::BTreeMap, time::Duration};
use tramplab_model::run::{Cell, ErrorKind, Measurement, Outcome, Run};

/// The results and the duration of an undisturbed command.
#[derive(Clone)]
pub struct Undisturbed {
    /// By the cell's name.
    pub digests: BTreeMap<String, Vec<String>>,
    pub taken: Duration,
}

/// A command's end.
pub struct Ended {
    /// None if a signal ended it.
    pub code: Option<i32>,
    pub said: String,
    /// The faults that took place.
    pub happened: Vec<Injection>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The cell passed with other records than undisturbed.
    FalsePass(String),
    /// No fault explains the cell's outcome.
    Outcome(String, Outcome),
    /// The cell's result was reported, and is not in the run.
    Lost(String),
    /// Neither the cells nor the faults explain the exit code.
    Code { code: Option<i32>, all_pass: bool, interrupted: bool },
}

pub fn broken(ended: &Ended, run: Option<&Run>, undisturbed: &Undisturbed) -> Option<Broken> {
    let any = |is: fn(&Injection) -> bool| ended.happened.iter().any(is);
    let harmless = ended.happened.iter().all(Injection::is_harmless);
    let cells = run.map_or(&[][..], |run| &run.cells);
    for cell in cells {
        let name = cell.id.name();
        match &cell.outcome {
            Outcome::Pass if undisturbed.digests.get(&name) == Some(&digests(cell)) => {}
            Outcome::Pass => return Some(Broken::FalsePass(name)),
            Outcome::Error { .. } if !harmless => {}
            outcome => return Some(Broken::Outcome(name, outcome.clone())),
        }
    }
    for (name, outcome) in reported(&ended.said) {
        let kept = cells.iter().find(|cell| cell.id.name() == name);
        if kept.is_none_or(|cell| cell.outcome.name() != outcome) {
            return Some(Broken::Lost(name));
        }
    }
    let interrupted = run.is_none_or(|run| run.interrupted);
    let all_pass = !interrupted
        && cells.len() == undisturbed.digests.len()
        && cells.iter().all(|cell| cell.outcome == Outcome::Pass);
    let explained = match ended.code {
        Some(0) => all_pass,
        Some(3) => !harmless && !all_pass,
        Some(130) => any(Injection::may_interrupt) && interrupted,
        // Signals end the command at once while it has no run.
        None => any(Injection::may_kill_harness) || any(Injection::may_interrupt) && run.is_none(),
        // A limit on the size of files is the caller's.
        Some(2) => any(Injection::is_a_limit) && run.is_none(),
        Some(_) => false,
    };
    (!explained).then_some(Broken::Code { code: ended.code, all_pass, interrupted })
}

/// The digest of each capture point's records.
pub fn digests(cell: &Cell) -> Vec<String> {
    match &cell.measurement {
        Some(Measurement::LbrWaste(waste)) => {
            waste.points.iter().map(|point| point.digest.clone()).collect()
        }
        _ => Vec::new(),
    }
}

/// The cells whose result the command reported, with their outcomes.
fn reported(said: &str) -> Vec<(String, String)> {
    let events = said.lines().filter_map(|line| serde_json::from_str(line).ok());
    let ended = events.filter(|event: &serde_json::Value| event["event"] == "cell_finished");
    let text = |value: &serde_json::Value| value.as_str().expect("a string").to_owned();
    ended.map(|event| (text(&event["name"]), text(&event["outcome"]))).collect()
}

fn error() -> Outcome {
    Outcome::Error { kind: ErrorKind::QemuExit, message: String::new() }
}

/// Checks that each broken promise of a recorded run is found.
pub fn are_checked() -> Result<(), String> {
    type Change = fn(&mut Run);
    let good = tramplab_testdata::letter();
    let digests = good.cells.iter().map(|cell| (cell.id.name(), digests(cell))).collect();
    let undisturbed = Undisturbed { digests, taken: Duration::ZERO };
    let name = good.cells[0].id.name();
    let injection = |wrong| Injection { after: Duration::from_secs(1), wrong };
    let pause = injection(Wrong::Pause(Target::Qemu, Duration::from_secs(1)));
    let kill = injection(Wrong::Signal(Target::Qemu, Signal::SIGKILL));
    let interrupt = injection(Wrong::Signal(Target::Harness, Signal::SIGINT));
    let report = serde_json::json!({"event": "cell_finished", "name": name, "outcome": "pass"});
    let nothing: Change = |_| {};
    let loses: Change = |run| drop(run.cells.remove(0));
    let stops: Change = |run| run.interrupted = true;
    let fails: Change = |run| run.cells[0].outcome = error();
    let changes: Change = |run| {
        if let Some(Measurement::LbrWaste(waste)) = &mut run.cells[0].measurement {
            waste.points[0].digest.push('0');
        }
    };
    let code = |code, all_pass, interrupted| Some(Broken::Code { code, all_pass, interrupted });
    let rows = [
        (Some(0), &[][..], nothing, None),
        (Some(0), &[pause], nothing, None),
        (Some(0), &[kill], changes, Some(Broken::FalsePass(name.clone()))),
        (Some(3), &[kill], fails, Some(Broken::Lost(name.clone()))),
        (Some(3), &[pause], fails, Some(Broken::Outcome(name.clone(), error()))),
        (Some(130), &[interrupt], loses, Some(Broken::Lost(name.clone()))),
        (Some(130), &[interrupt], stops, None),
        (Some(130), &[kill], stops, code(Some(130), false, true)),
        (Some(0), &[interrupt], stops, code(Some(0), false, true)),
        (Some(3), &[kill], nothing, code(Some(3), true, false)),
        (Some(1), &[kill], nothing, code(Some(1), true, false)),
        (None, &[kill], stops, code(None, false, true)),
    ];
    for (number, (code, happened, change, expected)) in rows.into_iter().enumerate() {
        let mut run = good.clone();
        change(&mut run);
        let ended = Ended { code, said: report.to_string(), happened: happened.to_vec() };
        let found = broken(&ended, Some(&run), &undisturbed);
        if found != expected {
            return Err(format!("row {number}: expected {expected:?}, found {found:?}"));
        }
    }
    Ok(())
}
