// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures again the cells of a run that ended as an error or have no result. The new run takes
//! over all other results, so it stands for the whole.

use crate::{
    command::VM_TEST,
    error::{Context, Error, Result},
    planned::Planned,
};
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::runs::{RunDir, running};
use tramplab_model::program::Program;
use tramplab_model::run::{self, Cell, CellId, ErrorKind, GivenOptions, Outcome, Run, Test};
use tramplab_model::text;
use tramplab_suite::{Plan, PlannedCell, cell, plan};

pub const RERUN: &str = "--rerun";

/// A run some of whose cells are to be measured again.
#[derive(Clone)]
pub struct Earlier {
    pub run: Run,
    pub folder: RunDir,
}

impl Earlier {
    /// Rejects a run that has no such cells, or whose command line is not known.
    pub fn load(path: &Path) -> Result<Earlier> {
        // `latest` names another run soon.
        let (run, folder) = (RunDir::load(path)?, RunDir::new(resolved(&RunDir::at(path))));
        let why = match () {
            () if running::is_going_on(&folder) => "is still running",
            () if run.joined.is_some() => "is a merged run; name one of its parts",
            () if !made_by_vm_test(&run) => "was not made by vm-test",
            () if run.interrupted && run.missing.is_empty() && run.cells.is_empty() => {
                "was interrupted before its cells were known; run all of it"
            }
            () if left(&run).is_empty() => "has a result of every cell; nothing is left to measure",
            () => return Ok(Earlier { run, folder }),
        };
        Err(Error::Usage(format!("{RERUN}: run {} {why}", run.id)))
    }

    /// The words of `vm-test` that made the run.
    pub fn words(&self) -> Vec<String> {
        let Run { options, command, .. } = &self.run;
        let of_command = || behind_vm_test(command).unwrap_or_default().to_vec();
        options.as_ref().map_or_else(of_command, GivenOptions::words)
    }

    /// The run's copy of an object file, by the file's own path. The file may have changed since.
    pub(crate) fn kept_program(&self, file: &Path) -> Option<PathBuf> {
        let is_it = |program: &&Program| Path::new(&program.file) == file;
        let program = self.run.programs.iter().find(is_it)?;
        // A stranger's run may have any text here.
        let is_digest = program.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| self.folder.program(&program.sha256))
    }

    /// Makes a plan go on with this run. Returns the jobs to run: those with a cell that is left.
    /// Fails if these would be measured differently.
    pub(crate) fn take_over(&self, planned: &mut Planned) -> Result<Vec<String>> {
        let left = left(&self.run);
        let then = self.check(planned, &left).map_err(|why| {
            Error::Usage(format!("{RERUN}: {} cannot go on here: {why}", self.run.id))
        })?;
        let is_left =
            |job: &&plan::Job| job.cells.iter().any(|planned| left.contains(&planned.id()));
        let jobs: Vec<&plan::Job> = planned.plan.jobs.iter().filter(is_left).collect();
        let again: HashSet<CellId> =
            jobs.iter().flat_map(|job| &job.cells).map(|cell| cell.id()).collect();
        let names = jobs.iter().map(|job| job.name.clone()).collect();
        let is_kept = |cell: &&Cell| {
            let is_planned = planned.plan.cells().any(|planned| planned.id() == cell.id);
            is_planned && !again.contains(&cell.id)
        };
        let kept: Vec<Cell> = self.run.cells.iter().filter(is_kept).cloned().collect();
        let folders: HashSet<PathBuf> =
            kept.iter().map(|cell| self.folder.cell(&cell.id)).collect();
        let is_wanted = |path: &Path| path.ancestors().any(|folder| folders.contains(folder));
        // A cell that another machine has begun begins anew.
        let begun = match planned.run.host == self.run.host {
            true => self.begun(jobs, &then),
            false => Vec::new(),
        };
        let is_begun = self.files_of(&begun);
        self.folder
            .bring("cells", &planned.run_dir, |path| is_wanted(path) || is_begun(path))
            .with_context(|| {
                format!("failed to copy the results of {}", self.folder.path().display())
            })?;
        let told = |(done, job): &(u32, &plan::Job)| {
            let boots = text::counted(*done as usize, "boot");
            format!("{}: goes on behind {boots} of run {}", job.name, self.run.id)
        };
        let told: Vec<String> = begun.iter().map(told).collect();
        let run = &mut planned.run;
        run.rest_of = Some(self.run.id.clone());
        run.shard.clone_from(&self.run.shard);
        run.notes.clone_from(&self.run.notes);
        run.notes.push(format!("goes on with run {}", self.run.id));
        run.notes.extend(self.attempts());
        run.notes.extend(told);
        run.cells.extend(kept);
        Ok(names)
    }

    /// The jobs that go on behind the boots of the run, and the number of these.
    fn begun<'a>(&self, jobs: Vec<&'a plan::Job>, then: &Plan) -> Vec<(u32, &'a plan::Job)> {
        let is_same = |job: &&plan::Job| job.cells.iter().all(|now| same(then, now));
        let begun = |job| Some((cell::begun(&self.folder, job)?.0, job));
        jobs.into_iter().filter(is_same).filter_map(begun).collect()
    }

    /// True for the files of the boots that such jobs keep.
    fn files_of(&self, begun: &[(u32, &plan::Job)]) -> impl Fn(&Path) -> bool {
        let (mut kept, mut ended): (HashSet<PathBuf>, HashSet<PathBuf>) = Default::default();
        for (done, job) in begun {
            for cell in &job.cells {
                let folder = self.folder.cell(&cell.id());
                // The boot that was interrupted is made again, also of cells that had ended.
                let names = ["cell.json", &cell::boot_folder(done + 1)];
                ended.extend(names.map(|name| folder.join(name)));
                kept.insert(folder);
            }
        }
        move |path| {
            let is_below = |set: &HashSet<PathBuf>| path.ancestors().any(|part| set.contains(part));
            is_below(&kept) && !is_below(&ended)
        }
    }

    /// Returns the plan of the run.
    fn check(&self, now: &Planned, left: &HashSet<CellId>) -> Result<Plan, String> {
        if let Some(why) = run::unlike(&self.run, &now.run) {
            return Err(why);
        }
        let then = Plan::load(&Plan::path(self.folder.path()))
            .map_err(|error| format!("its plan is lost: {error}"))?;
        for id in left {
            let Some(now) = now.plan.cells().find(|planned| planned.id() == *id) else {
                return Err(format!("there is no cell {} here", id.name()));
            };
            if !same(&then, now) {
                return Err(format!("{} would be measured otherwise than then", id.name()));
            }
        }
        Ok(then)
    }

    /// How the cells that are measured again ended before.
    fn attempts(&self) -> impl Iterator<Item = String> {
        self.run.cells.iter().filter(|cell| is_lost(cell)).map(|cell| {
            let (name, id) = (cell.id.name(), &self.run.id);
            let reason = cell.outcome.reason().unwrap_or_default();
            let line = reason.lines().next().unwrap_or_default().to_owned();
            format!("measured again: {name}, an error in run {id}: {line}")
        })
    }
}

/// True if the cell was measured in the same way.
fn same(then: &Plan, now: &PlannedCell) -> bool {
    let then = then.cells().find(|planned| planned.id() == now.id());
    then.is_some_and(|then| then.measures_as(now))
}

/// The cells that ended as an error or have no result. A build that failed would fail again.
pub fn left(run: &Run) -> HashSet<CellId> {
    let lost = run.cells.iter().filter(|cell| is_lost(cell)).map(|cell| cell.id.clone());
    run.missing.iter().cloned().chain(lost).collect()
}

/// The cells whose program was rejected. To measure them again with the run's copy would not help.
pub fn rejected(run: &Run) -> usize {
    let is_rejected =
        |cell: &&Cell| matches!(cell.outcome, Outcome::Error { kind: ErrorKind::Program, .. });
    run.cells.iter().filter(is_rejected).count()
}

/// The cell `boot` beside others only says why they are lost.
fn is_lost(cell: &Cell) -> bool {
    matches!(cell.outcome, Outcome::Error { .. })
        && !matches!(cell.id.test, Test::Build | Test::Boot)
}

pub fn made_by_vm_test(run: &Run) -> bool {
    behind_vm_test(&run.command).is_some()
}

/// The words of a command line behind `vm-test`. `cargo xtask` stands before it, or a program.
fn behind_vm_test(line: &[String]) -> Option<&[String]> {
    let at = line.iter().take(3).position(|word| word == VM_TEST)?;
    (at > 0).then(|| &line[at + 1..])
}

/// The folder without links and relative parts.
pub fn resolved(run_dir: &RunDir) -> PathBuf {
    // The folder of a bare `run.json` has an empty path.
    let path = if run_dir.path() == Path::new("") { Path::new(".") } else { run_dir.path() };
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::run::Joined;
    use tramplab_testdata::stored;

    #[test]
    fn rejects_runs_with_nothing_to_measure_again() {
        type Change = fn(&mut Run);
        let error = || Outcome::Error { kind: ErrorKind::Panic, message: "died".to_owned() };
        let table: [(Change, Option<&str>); 6] = [
            (|_| (), None),
            (|run| run.missing.clear(), None),
            (|run| run.cells.retain(|cell| !is_lost(cell)), None),
            (
                |run| {
                    run.missing.clear();
                    run.cells.retain(|cell| !is_lost(cell));
                },
                Some("has a result of every cell; nothing is left to measure"),
            ),
            (|run| run.command[1] = "bisect".to_owned(), Some("was not made by vm-test")),
            (
                |run| run.joined = Some(Joined { runs: Vec::new(), expected: 2 }),
                Some("is a merged run"),
            ),
        ];
        for (change, expected) in table {
            let folder = tempfile::tempdir().unwrap();
            let run_dir = RunDir::new(folder.path());
            let mut run = stored();
            run.command = ["tramplab", "vm-test"].map(str::to_owned).to_vec();
            run.interrupted = true;
            run.missing = vec![run.cells.pop().expect("a cell").id];
            let last = run.cells.last_mut().expect("another cell");
            (last.outcome, last.measurement) = (error(), None);
            change(&mut run);
            run_dir.save(&run).unwrap();
            let error = Earlier::load(folder.path()).err().map(|error| error.told());
            match expected {
                None => assert_eq!(error, None),
                Some(words) => {
                    assert!(error.as_ref().is_some_and(|e| e.contains(words)), "{error:?}")
                }
            }
        }
    }
}
