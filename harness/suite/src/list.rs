// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cells of a plan as libtest-mimic trials, which nextest lists and runs.

use super::{Plan, cell, plan::Job};
use libtest_mimic::{Arguments, Failed, Trial};
use std::{path::Path, process::ExitCode, sync::Arc};
use tramplab_model::run::Outcome;

/// The `main` of a cell's process.
pub fn main(plan: &Path) -> ExitCode {
    // If the harness is killed, kill this cell, which kills its guests. Without this call they only
    // live longer.
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    let arguments = Arguments::from_args();
    let trials = match Plan::names(plan) {
        Ok(plan) => trials(plan),
        Err(error) => {
            eprintln!("error: failed to read the plan {}: {error}", plan.display());
            return ExitCode::from(2);
        }
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(plan: Plan<String>) -> Vec<Trial> {
    let plan = Arc::new(plan);
    let trial = |(number, name): (usize, &String)| {
        let plan = Arc::clone(&plan);
        Trial::test(name.clone(), move || run(&plan, &plan.job(number)?))
    };
    plan.jobs.iter().enumerate().map(trial).collect()
}

/// Only pass or fail crosses the process boundary. The results are in the cells' files.
fn run(plan: &Plan<String>, job: &Job) -> Result<(), Failed> {
    let bad: Vec<String> = cell::run_and_save(plan, job)?
        .into_iter()
        .filter_map(|cell| match cell.outcome {
            Outcome::Pass | Outcome::Skip { .. } => None,
            Outcome::Fail { reasons } => Some(reasons.join("; ")),
            Outcome::Error { kind, message } => Some(format!("{kind}: {message}")),
        })
        .collect();
    if bad.is_empty() { Ok(()) } else { Err(bad.join("; ").into()) }
}
