// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask mechanisms`: writes `docs/mechanisms.md` anew.

use super::{code_of_run, exit, progress::Progress, report::Look, typed, vm_test};
use std::path::PathBuf;
use tramplab_analysis::verdict::verdict;
use tramplab_host::runs::RunDir;
use tramplab_lab::{
    error::{Context, Error, Result},
    measure::{Measured, Options, measure},
    repository,
};
use tramplab_model::run::{self, Accel, Arch, Run};
use tramplab_report::mechanisms as page;
use tramplab_vm::accel;

const SUITE: &str = "mechanisms";

#[derive(clap::Args)]
pub struct Args {
    /// Install what is missing and fetch QEMU and Rust; then measure
    #[arg(long)]
    setup: bool,
    /// Write the page of these stored runs of the suite; measure nothing
    #[arg(long = "run", value_name = "RUN", conflicts_with = "setup")]
    runs: Vec<PathBuf>,
    /// Write the page to this file [default: docs/mechanisms.md, if all cells were measured]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn mechanisms(args: &Args) -> Result<u8> {
    let stored = args.runs.iter().map(|path| RunDir::load(path)).collect::<Result<Vec<_>, _>>()?;
    if let Some(run) = stored.iter().find(|run| run.suite.name != SUITE) {
        let message =
            format!("{} is a run of the suite {}: the page is of {SUITE}", run.id, run.suite.name);
        return Err(Error::Usage(message));
    }
    let parts = stored.len();
    let run = match run::join(stored, parts).map_err(|apart| Error::Usage(apart.to_string()))? {
        Some(run) => run,
        None => match measured(args.setup)? {
            Ok(run) => run,
            Err(code) => return Ok(code),
        },
    };
    let path = match (&args.output, page::gap(&run)) {
        (Some(path), _) => path.clone(),
        (None, None) => repository().join("docs/mechanisms.md"),
        (None, Some(gap)) => {
            eprintln!(
                "docs/mechanisms.md stays as it was: {gap}; with --run and -o a page is written \
                 all the same"
            );
            return Ok(exit::NO_MEASUREMENT);
        }
    };
    std::fs::write(&path, page::render(&run))
        .with_context(|| format!("failed to write {}", path.display()))?;
    eprintln!("written: {}", path.display());
    Ok(code_of_run(verdict(&run)))
}

/// Measures the suite on all architectures. `Err`: the exit code, if there is no run for a page.
fn measured(setup: bool) -> Result<Result<Run, u8>> {
    let options = Options {
        arches: Arch::ALL.into(),
        // Only TCG has exact counts.
        accel: accel::Request::Only(Accel::Tcg),
        setup,
        ..Options::of_suite(SUITE, typed::with_absolute_paths(typed::words()))
    };
    let progress = Progress::new();
    let measured = measure(&options, &|event| progress.show(event))?;
    drop(progress);
    Ok(match measured {
        Measured::Run { run, run_dir, .. } => {
            vm_test::finish(&run, &run_dir, &Look::plain())?;
            // `--run` can still make a page of an interrupted run.
            if run.interrupted { Err(exit::INTERRUPTED) } else { Ok(*run) }
        }
        Measured::NotBuilt(_) => Err(exit::NO_MEASUREMENT),
        Measured::Listed(_) | Measured::Built => Err(exit::PASS),
    })
}
