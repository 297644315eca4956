// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that the command line brings, and their copies in the run's folder.

use crate::error::{Context, Error, Result};
use std::{fs, path::Path};
use tramplab_host::runs::RunDir;
use tramplab_suite::{
    Suite,
    program::{Kept, Program},
};

/// Reads each `FILE[:PROGRAM[,NAME=VALUE…]]`. A program that is there twice counts once.
pub fn read(given: &[String], kept: &Kept) -> Result<Vec<Program>> {
    let mut programs: Vec<Program> = Vec::new();
    for given in given {
        let program = Program::read(given, Path::new(""), kept)
            .map_err(|error| Error::Usage(format!("--program: {error}")))?;
        if !programs.contains(&program) {
            programs.push(program);
        }
    }
    Ok(programs)
}

/// The suite with these programs instead of the harness' own.
pub fn attached(suite: Suite, programs: &[Program]) -> Result<Suite> {
    let name = suite.name.clone();
    let suite = suite.attaching(programs).ok_or_else(|| {
        let of = |program: &Program| format!("{} ({})", program.name(), program.mechanism());
        let programs: Vec<String> = programs.iter().map(of).collect();
        Error::Usage(format!(
            "--program: the suite `{name}` has no lbr_waste, trigger or attach tests for {}; give \
             another --suite",
            programs.join(", ")
        ))
    })?;
    let measured = suite.programs();
    match programs.iter().find(|program| !measured.contains(program)) {
        None => Ok(suite),
        Some(left) => Err(Error::Usage(format!(
            "--program: no test of the suite `{name}` is for {}, the mechanism of {}; give another \
             --suite",
            left.mechanism(),
            left.name()
        ))),
    }
}

/// Rejects different programs of one name: their cells would have one name.
pub fn check_names(suite: &Suite) -> Result<()> {
    let programs = suite.programs();
    for (index, program) in programs.iter().enumerate() {
        if let Some(other) = programs[..index].iter().find(|other| other.name() == program.name()) {
            return Err(Error::Usage(format!(
                "{} and {} both have the program {}: measure them in two runs, and compare these \
                 with `compare --anyway`",
                other.facts.file,
                program.facts.file,
                program.name()
            )));
        }
    }
    Ok(())
}

/// Copies the object files into the run's folder, from which `--rerun` reads them.
pub fn keep(programs: &[&Program], run_dir: &RunDir) -> Result<()> {
    for program in programs {
        let path = run_dir.program(&program.facts.sha256);
        fs::create_dir_all(path.parent().expect("in the run's folder"))
            .and_then(|()| fs::write(&path, &program.sent.object.0))
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}
