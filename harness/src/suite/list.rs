// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cells of a plan as libtest-mimic trials: what nextest lists and runs.

use super::{Plan, PlannedCell, cell, plan::PLAN_ENV};
use crate::run::Outcome;
use libtest_mimic::{Arguments, Failed, Trial};
use std::{path::PathBuf, process::ExitCode, sync::Arc};

/// The `main` of the cells' test binary.
pub fn main() -> ExitCode {
    // A harness that is killed takes its cells along, and they their guests. Failing only loses that.
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    let arguments = Arguments::from_args();
    let trials = match std::env::var_os(PLAN_ENV).map(PathBuf::from) {
        // A plain `cargo test` of the workspace: there is no plan, and so no cell.
        None => Vec::new(),
        Some(path) => match Plan::load(&path) {
            Ok(plan) => trials(plan),
            Err(error) => {
                eprintln!("error: failed to read the plan {}: {error}", path.display());
                return ExitCode::from(2);
            }
        },
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(plan: Plan) -> Vec<Trial> {
    let plan = Arc::new(plan);
    plan.cells
        .iter()
        .map(|planned| {
            let (shared, cell) = (Arc::clone(&plan), planned.clone());
            Trial::test(planned.id.name(), move || run(&shared, &cell))
        })
        .collect()
}

/// Only pass or fail crosses the process boundary; the result itself is the cell's file.
fn run(plan: &Plan, planned: &PlannedCell) -> Result<(), Failed> {
    let result = cell::run_and_save(plan, planned)?;
    match result.outcome {
        Outcome::Pass | Outcome::Skip { .. } => Ok(()),
        Outcome::Fail { reasons } => Err(reasons.join("; ").into()),
        Outcome::Error { kind, message } => Err(format!("{kind}: {message}").into()),
    }
}
