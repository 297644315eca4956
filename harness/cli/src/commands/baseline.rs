// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--update-budgets`: what a run measured becomes its suite's budgets.

use super::{exit, link, output::print};
use std::{fs, path::Path};
use tramplab_host::cache::write_whole;
use tramplab_lab::error::{Context, Error, Result};
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
    let after = match baseline::updated(&before, suite, run) {
        Ok(after) => after,
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
    if before == after {
        eprintln!("{} has these budgets already", suite.display());
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
