// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--update-budgets`: what a run measured becomes its suite's budgets.

use super::{UsageError, exit, report::print};
use anyhow::{Context, Result};
use std::{
    fs,
    io::{self, Write},
    path::Path,
};
use tempfile::NamedTempFile;
use tramplab::{run::Run, suite::baseline};

/// Writes the budgets into the suite's file, and shows what has changed of it.
pub fn update(run: &Run, suite: &Path) -> Result<u8> {
    let before = fs::read_to_string(suite).map_err(|error| {
        let path = suite.display();
        UsageError(format!("failed to read {path}, the suite whose budgets are to be written: {error}; name it: --update-budgets=SUITE"))
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
    replace(suite, &after).with_context(|| format!("failed to write {}", suite.display()))?;
    print(baseline::diff(&before, &after, suite).as_bytes())?;
    eprintln!("written: {}", suite.display());
    Ok(exit::PASS)
}

/// Whole or not at all: it is the user's own file. A link to it stays one, and so do its permissions.
fn replace(suite: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(suite)?;
    let mut file = NamedTempFile::new_in(path.parent().expect("a file is in a folder"))?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(fs::metadata(&path)?.permissions())?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    Ok(())
}
