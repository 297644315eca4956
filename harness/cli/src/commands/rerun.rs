// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of a run whose cells are measured again, and the command that does it.

use super::vm_test;
use clap::Parser;
use tramplab_host::runs::{RunDir, running};
use tramplab_lab::{
    error::{Error, Result},
    rerun::{Earlier, RERUN, is_of_vm_test, left, rejected, resolved},
};
use tramplab_model::{called::called, run::Run, text::counted};

/// Prints how to measure the cells of a run that were not measured.
pub fn tell(run: &Run, run_dir: &RunDir) {
    let rejected = rejected(run);
    let left = left(run).len().saturating_sub(rejected);
    let can_go_on = run.joined.is_none() && is_of_vm_test(run) && !running::is_going_on(run_dir);
    if rejected > 0 {
        // `--rerun` reads the run's copy of the program.
        let cells = counted(rejected, "cell");
        eprintln!("to measure {cells} of rejected programs: change the programs and run all again");
    }
    if left == 0 || !can_go_on {
        return;
    }
    let folder = resolved(run_dir).display().to_string();
    let words = ["vm-test", RERUN, &folder];
    let cells = counted(left, "cell");
    eprintln!("to measure {cells} without a result: {} {}", called(), shell_words::join(words));
}

/// The options of an earlier run.
pub fn args(earlier: &Earlier) -> Result<vm_test::Args> {
    let words = ["vm-test"].into_iter().chain(earlier.words().iter().map(String::as_str));
    vm_test::Alone::try_parse_from(words).map(|alone| alone.args).map_err(|error| {
        Error::Usage(format!(
            "{RERUN}: this tramplab does not understand the command line of run {}: {error}",
            earlier.run.id
        ))
    })
}
