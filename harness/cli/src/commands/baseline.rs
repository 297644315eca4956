// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--update-budgets`: what a run measured becomes its suite's budgets.

use super::{exit, link, output::print};
use std::{fs, path::Path};
use tramplab_host::cache::write_whole;
use tramplab_lab::{
    error::{Context, Error, Result},
    kernels::is_known,
};
use tramplab_model::{run::Run, text::clean};
use tramplab_suite::baseline;

/// Writes the budgets into the suite's file, and shows what has changed of it.
pub fn update(run: &Run, suite: &Path) -> Result<u8> {
    let before = fs::read_to_string(suite).map_err(|error| {
        let path = suite.display();
        Error::Usage(format!(
            "failed to read {path}, the suite whose budgets are to be written: \
                              {error}; name it: --update-budgets=SUITE"
        ))
    })?;
    let (after, left_out) = match baseline::updated(&before, suite, run, &is_known) {
        Ok(updated) => updated,
        Err(error) if run.interrupted => {
            eprintln!("{} stays as it was: {error}", suite.display());
            return Ok(exit::INTERRUPTED);
        }
        Err(error) if error.is_without_measurement() => {
            eprintln!("{} stays as it was: {error}", suite.display());
            return Ok(exit::NO_MEASUREMENT);
        }
        Err(error) => return Err(error.into()),
    };
    if !left_out.is_empty() {
        eprintln!(
            "left out: {}; {} lacks the test, or its `kernels:` and kernels/ lack the kernel",
            left_out.join(", "),
            suite.display()
        );
    }
    if before == after {
        eprintln!("{} needs no change", suite.display());
        return Ok(exit::PASS);
    }
    // It is the user's own file, and a link to it stays one.
    fs::canonicalize(suite)
        .and_then(|path| write_whole(&path, after.as_bytes()))
        .with_context(|| format!("failed to write {}", suite.display()))?;
    print(clean(&baseline::diff(&before, &after, suite)).as_bytes())?;
    link::tell("written:", suite);
    Ok(exit::PASS)
}
