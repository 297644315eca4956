// SPDX-License-Identifier: MIT OR Apache-2.0
//! The source of a page of `docs/`: stored runs, or a measurement.

use super::{complete, exit, look::Look, progress::Progress, vm_test};
use std::path::{Path, PathBuf};
use tramplab_host::runs::RunDir;
use tramplab_lab::{
    error::{Context, Result},
    measure::{Measured, measure},
    options::Options,
};
use tramplab_model::run::Run;

#[derive(clap::Args)]
pub struct Source {
    /// Install what is missing and fetch QEMU and Rust; then measure
    #[arg(long)]
    pub setup: bool,
    /// Take the numbers from these stored runs; measure nothing
    #[arg(
        long = "run",
        value_name = "RUN",
        conflicts_with = "setup",
        value_parser = complete::run(),
        add = complete::runs()
    )]
    runs: Vec<PathBuf>,
}

impl Source {
    /// The stored runs. Empty: measure.
    pub fn stored(&self) -> Result<Vec<Run>> {
        Ok(self
            .runs
            .iter()
            .map(|path| RunDir::load(path))
            .collect::<std::result::Result<_, _>>()?)
    }
}

/// The page as it was. None if there is none.
pub fn older(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("failed to read {}", path.display())),
    }
}

/// Measures for a page. `Err`: the exit code, if there is no whole run.
pub fn measured(options: &Options) -> Result<std::result::Result<Run, u8>> {
    let progress = Progress::new();
    let measured = measure(options, &|event| progress.show(event))?;
    drop(progress);
    Ok(match measured {
        Measured::Run { run, run_dir } => {
            vm_test::finish(&run, &run_dir, &Look::plain())?;
            // `--run` can still make a page of an interrupted run.
            if run.interrupted { Err(exit::INTERRUPTED) } else { Ok(*run) }
        }
        Measured::NotBuilt(_) => Err(exit::NO_MEASUREMENT),
        Measured::Listed(_) | Measured::Built => Err(exit::PASS),
    })
}
