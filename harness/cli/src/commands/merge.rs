// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask merge RUN RUN…`: the runs of several shards, or of several kernels, as one.

use super::{complete, look::Look, vm_test};
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};
use tramplab_analysis::compare;
use tramplab_host::runs::RunDir;
use tramplab_lab::{
    command::CommandLine,
    cpus,
    error::{Context, Error, Result},
    place, run_dir,
};
use tramplab_model::{
    run::{self, CellId, Run},
    text,
};

#[derive(clap::Args)]
pub struct Args {
    /// Merge these runs of one suite, by the same tramplab, on the same kernels: folders, or their
    /// run.json
    #[arg(
        value_name = "RUN",
        required = true,
        value_parser = complete::run(),
        add = complete::runs()
    )]
    runs: Vec<PathBuf>,
    /// Expect N runs; with fewer, the result is not a pass [default: as many as are given]
    #[arg(long, value_name = "N")]
    expect: Option<usize>,
    /// Write the merged run into this folder [default: a new one where `vm-test` keeps runs]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    #[command(flatten)]
    look: Look,
}

pub fn merge(args: &Args, command: CommandLine) -> Result<u8> {
    let mut given =
        args.runs.iter().map(|path| RunDir::load(path)).collect::<Result<Vec<_>, _>>()?;
    // A killed run has no verdict yet.
    given.iter_mut().filter(|part| part.finished.is_none()).for_each(compare::judge);
    let (parts, superseded): (Vec<(&PathBuf, Run)>, Vec<_>) = args
        .runs
        .iter()
        .zip(given.iter().cloned())
        .partition(|(_, run)| !run::is_superseded(run, &given));
    let left_out: Vec<String> = superseded
        .iter()
        .map(|(_, run)| format!("run {} is left out: another run goes on with it", run.id))
        .collect();
    left_out.iter().for_each(|why| eprintln!("{}", text::line(why)));
    let (places, parts): (Vec<&PathBuf>, Vec<Run>) = parts.into_iter().unzip();
    let given = parts.len();
    let expected = args.expect.unwrap_or(given);
    if given > expected {
        let message = format!("{given} runs are given, --expect says {expected}");
        return Err(Error::Usage(message));
    }
    let measured: Vec<Vec<CellId>> = first_measured(&parts);
    let joined = run::join(parts, expected).map_err(|apart| Error::Usage(apart.to_string()))?;
    let run =
        joined.ok_or_else(|| Error::usage("each of these runs goes on with another of them"))?;
    cpus::of_report(&args.look.models, &[&run])?;
    let folder = match &args.into {
        Some(folder) => empty(folder)?,
        None => run_dir::new_run_dir(&place().runs()?, "")?,
    };
    // A given folder may have the same name each time.
    let id = if args.into.is_some() { run_dir::new_id() } else { folder.id() };
    copy_parts(&places, &measured, &folder).inspect_err(|_| run_dir::discard(&folder))?;
    let line = command.line();
    let mut run = run::Run { id, command: line, options: Some(command.options), ..run };
    run.notes.extend(left_out);
    folder.save(&run)?;
    if args.into.is_none() {
        run_dir::point_latest_at(&folder);
    }
    run_dir::note_newest(&folder, place().runs().ok().as_deref());
    vm_test::finish(&run, &folder, &args.look)
}

/// Copies what belongs to the cells of each run.
fn copy_parts(places: &[&PathBuf], measured: &[Vec<CellId>], folder: &RunDir) -> Result<()> {
    for (part, cells) in places.iter().zip(measured) {
        let from = RunDir::at(part);
        // Consoles and profiles belong to cells; an interrupted run also has leftovers of others.
        let folders: HashSet<PathBuf> = cells.iter().map(|id| from.cell(id)).collect();
        let is_wanted = |path: &Path| path.ancestors().any(|folder| folders.contains(folder));
        // All runs have the same configurations of kernels.
        from.bring("cells", folder, is_wanted)
            .and_then(|()| from.bring("kernels", folder, |_| true))
            .and_then(|()| from.bring("programs", folder, |_| true))
            .with_context(|| format!("failed to copy {}", from.path().display()))?;
    }
    Ok(())
}

/// Creates a folder, or takes an empty one.
fn empty(folder: &Path) -> Result<RunDir> {
    fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let read =
        fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    if read.count() > 0 {
        let message = format!("{} is not empty: give --into a folder of its own", folder.display());
        return Err(Error::Usage(message));
    }
    Ok(RunDir::new(fs::canonicalize(folder)?))
}

/// The cells of each run whose results the merged run takes: those that no earlier run has.
fn first_measured(parts: &[Run]) -> Vec<Vec<CellId>> {
    let mut seen = HashSet::new();
    let ids = |part: &Run| part.cells.iter().map(|cell| cell.id.clone()).collect::<Vec<_>>();
    parts
        .iter()
        .map(|part| ids(part).into_iter().filter(|id| seen.insert(id.name())).collect())
        .collect()
}
