// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--vm none`: asks before programs are attached on the user's own machine.

use super::Args;
use std::io::{self, IsTerminal, Write};
use tramplab_lab::{
    Error, Result,
    options::{Options, Until},
};
use tramplab_model::{run::Backend, text};
use tramplab_suite::PlannedCell;

/// Adds the question. Rejects flags that have no meaning there.
pub fn asking(args: &Args, options: Options) -> Result<Options> {
    let is_here = options.backends.this_machine.is_some();
    let has_guests = options.backends.guests.is_some();
    let useless = [
        (args.guests.yes, !is_here, "--yes answers the question of --vm none: remove it"),
        (
            args.call.keep,
            !has_guests,
            "--vm none has no guest that --keep could boot: remove --keep",
        ),
        (
            args.call.update_budgets,
            is_here,
            "budgets are of guests: remove --update-budgets or --vm none",
        ),
    ];
    if let Some((.., why)) = useless.iter().find(|(given, useless, _)| *given && *useless) {
        return Err(Error::usage(*why));
    }
    if !is_here {
        return Ok(options);
    }
    if options.until == Until::Measured && !args.guests.yes && !io::stdin().is_terminal() {
        return Err(Error::usage(
            "--vm none asks before it starts, and stdin is no terminal: see --list, and add --yes",
        ));
    }
    Ok(Options { ask: Some(if args.guests.yes { told } else { agreed }), ..options })
}

/// The cells that attach something here.
fn attaching<'a>(cells: &[&'a PlannedCell]) -> Vec<&'a PlannedCell> {
    let is_here = |cell: &&PlannedCell| cell.backend == Backend::None && cell.skip.is_none();
    cells.iter().copied().filter(is_here).collect()
}

fn told(cells: &[&PlannedCell], most: u32) -> Result<bool> {
    let measured = attaching(cells);
    if measured.is_empty() {
        return Ok(true);
    }
    eprintln!("on the kernel that runs on this machine, this attaches BPF programs for");
    measured.iter().for_each(|cell| eprintln!("  {}", cell.work.test().name()));
    let sampled = match measured.iter().any(|cell| cell.samples()) {
        true => " All threads on one CPU are sampled, and their switches traced.",
        false => "",
    };
    let most = match most {
        u32::MAX => "any number of functions".to_owned(),
        most => format!("at most {most} functions"),
    };
    eprintln!(
        "{}, one after the other, {most} at once. The programs are tramplab's own: they read the \
         CPU's branch records, or do nothing.{sampled} tramplab changes no setting of this \
         machine, and all is detached when the run ends, however it ends.",
        text::counted(measured.len(), "cell")
    );
    Ok(true)
}

fn agreed(cells: &[&PlannedCell], most: u32) -> Result<bool> {
    if attaching(cells).is_empty() {
        return Ok(true);
    }
    told(cells, most)?;
    eprint!("Continue? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
