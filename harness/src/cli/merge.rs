// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask merge RUN RUN…`: the runs of several shards, or of several kernels, as one.

use super::{
    UsageError, lab,
    report::{self as report_cli, Look},
    repository, vm_test,
};
use anyhow::{Context, Result};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tramplab::run::{self, RunDir};
use walkdir::WalkDir;

#[derive(clap::Args)]
pub struct Args {
    /// Runs of one suite, by the same tramplab, on the same kernels: folders, or their run.json
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// How many there must be: with fewer nothing is a pass [default: as many as are given]
    #[arg(long, value_name = "N")]
    expect: Option<usize>,
    /// Where the run is put together [default: a new folder in runs/ of the repository]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    #[command(flatten)]
    look: Look,
}

pub fn merge(args: &Args) -> Result<u8> {
    let parts = args.runs.iter().map(|path| RunDir::load(path)).collect::<Result<Vec<_>, _>>()?;
    let expected = args.expect.unwrap_or(parts.len());
    if parts.len() > expected {
        let message =
            format!("{} runs are given, and {expected} expected: which one is too many?", parts.len());
        return Err(UsageError(message).into());
    }
    let joined = run::join(parts, expected).map_err(|apart| UsageError(apart.to_string()))?;
    let run = joined.expect("clap asks for one at least");
    let kernels = run.kernels.iter().map(|kernel| kernel.arch);
    report_cli::check_model(args.look.model, kernels)?;
    let run_dir = match &args.into {
        Some(folder) => empty(folder)?,
        None => lab::new_run_dir(&repository().join("runs"), "")?,
    };
    // A folder that was given has the same name each time.
    let id = if args.into.is_some() { lab::new_id() } else { run_dir.id() };
    for part in &args.runs {
        // Consoles, profiles, configurations: what the cells refer to.
        bring(RunDir::at(part).path(), run_dir.path())?;
    }
    let run = run::Run { id, command: std::env::args().collect(), ..run };
    run_dir.save(&run)?;
    vm_test::finish(&run, &run_dir, &args.look)
}

/// A folder that nothing is mixed with.
fn empty(folder: &Path) -> Result<RunDir> {
    fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let read = fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    if read.count() > 0 {
        let message = format!("{} is not empty: give --into a folder of its own", folder.display());
        return Err(UsageError(message).into());
    }
    Ok(RunDir::new(fs::canonicalize(folder)?))
}

/// The files of a run's cells and kernels. Each cell is one run's; what is said of a kernel all say.
fn bring(from: &Path, into: &Path) -> Result<()> {
    for folder in ["cells", "kernels"] {
        let from_folder = from.join(folder);
        if !from_folder.is_dir() {
            continue;
        }
        for entry in WalkDir::new(&from_folder).follow_root_links(false) {
            let entry = entry.with_context(|| format!("failed to read {}", from_folder.display()))?;
            let to = into.join(entry.path().strip_prefix(from).expect("found below it"));
            let done: io::Result<()> = if entry.file_type().is_dir() {
                fs::create_dir_all(&to)
            } else if entry.file_type().is_file() {
                fs::copy(entry.path(), &to).map(drop)
            } else {
                // A run has neither links nor devices; an artefact of somebody's might.
                Ok(())
            };
            done.with_context(|| format!("failed to copy {} to {}", entry.path().display(), to.display()))?;
        }
    }
    Ok(())
}
