// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--vm none`: asks before programs are attached on the user's own machine.

use super::Args;
use std::io::{self, IsTerminal, Write};
use tramplab_lab::{
    Error, Result,
    measure::{Measured, measure},
    options::{Options, Until},
};
use tramplab_model::{run::Backend, text};

/// Rejects flags that have no meaning there, and a run that the user does not agree to.
pub fn check(args: &Args, options: &Options) -> Result<()> {
    let is_here = options.backend == Backend::None;
    let useless = [
        (args.guests.yes, !is_here, "--yes answers the question of --vm none: remove it"),
        (args.call.keep, is_here, "--vm none has no guest that --keep could boot: remove --keep"),
        (
            args.call.update_budgets,
            is_here,
            "budgets are of guests: remove --update-budgets or --vm none",
        ),
    ];
    if let Some((.., why)) = useless.iter().find(|(given, useless, _)| *given && *useless) {
        return Err(Error::usage(*why));
    }
    if !is_here || options.until != Until::Measured {
        return Ok(());
    }
    let listed = Options { until: Until::Listed, ..options.clone() };
    let Measured::Listed(listed) = measure(&listed, &|_| {})? else {
        unreachable!("cells are only listed")
    };
    eprintln!("on the kernel that runs on this machine, this attaches BPF programs for");
    listed.jobs.iter().for_each(|job| eprintln!("  {job}"));
    eprintln!(
        "{}; at most 100 functions at once. The programs count their runs and read the CPU's \
         branch records, nothing else. No setting of this machine changes, and all is detached \
         when the run ends, however it ends.",
        text::counted(listed.cells, "cell")
    );
    match args.guests.yes || agreed()? {
        true => Ok(()),
        false => Err(Error::usage("not started, and nothing was attached")),
    }
}

fn agreed() -> Result<bool> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(Error::usage(
            "--vm none asks before it starts, and stdin is no terminal: add --yes",
        ));
    }
    eprint!("Continue? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
