// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rest of an interrupted run: its cells without a result, measured by another run.

use crate::{
    error::{Error, Result},
    lab::Planned,
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::runs::{RunDir, running};
use tramplab_model::run::Run;

pub const REST_OF: &str = "--rest-of";

/// An interrupted run whose missing cells are known.
pub struct Interrupted {
    pub run: Run,
    pub folder: RunDir,
}

impl Interrupted {
    /// Rejects a run that has no rest.
    pub fn load(path: &Path) -> Result<Interrupted> {
        // `latest` names another run soon.
        let (run, folder) = (RunDir::load(path)?, RunDir::new(resolved(&RunDir::at(path))));
        let why = match () {
            () if running::is_going_on(&folder) => "is still running".to_owned(),
            () if run.joined.is_some() => {
                "is a merged run; name the interrupted run itself".to_owned()
            }
            () if run.command.get(1).is_none_or(|command| command != "vm-test") => {
                "was not made by vm-test".to_owned()
            }
            () if !run.interrupted => "was not interrupted; it has no missing cells".to_owned(),
            () if run.rest_of.is_some() => {
                format!(
                    "is itself a rest; name the first run, {}",
                    run.rest_of.as_deref().unwrap_or_default()
                )
            }
            () if run.missing.is_empty() => {
                "was interrupted before its cells were known; run all of it".to_owned()
            }
            () => return Ok(Interrupted { run, folder }),
        };
        Err(Error::Usage(format!("{REST_OF}: run {} {why}", run.id)))
    }

    /// Turns a plan into the rest of this run. Returns the jobs that are left.
    pub fn jobs_in(&self, planned: &mut Planned) -> Result<Vec<String>, String> {
        planned.make_rest_of(&self.run, &self.folder)
    }
}

/// The folder without links and relative parts.
pub fn resolved(run_dir: &RunDir) -> PathBuf {
    // The folder of a bare `run.json` has an empty path.
    let path = if run_dir.path() == Path::new("") { Path::new(".") } else { run_dir.path() };
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The words of `vm-test` that made a run, without an earlier `--rest-of`.
pub fn words(run: &Run) -> impl Iterator<Item = &str> {
    let mut typed = run.command.iter().skip(2).map(String::as_str);
    std::iter::from_fn(move || {
        loop {
            match typed.next()? {
                REST_OF => typed.next(),
                word if word.starts_with(REST_OF) => None,
                word => return Some(word),
            };
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::run::Joined;
    use tramplab_testdata::stored;

    #[test]
    fn rejects_runs_without_a_rest_of_their_own() {
        type Change = fn(&mut Run);
        let table: [(Change, Option<&str>); 6] = [
            (|_| (), None),
            (|run| run.rest_of = Some("first".to_owned()), Some("name the first run, first")),
            (|run| run.interrupted = false, Some("was not interrupted")),
            (|run| run.missing.clear(), Some("before its cells were known")),
            (|run| run.command[1] = "bisect".to_owned(), Some("was not made by vm-test")),
            (
                |run| {
                    run.command[1] = "merge".to_owned();
                    run.joined = Some(Joined { runs: Vec::new(), expected: 2 });
                },
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
            change(&mut run);
            if !run.interrupted {
                run.missing.clear();
            }
            run_dir.save(&run).unwrap();
            let error = Interrupted::load(folder.path()).err().map(|error| error.told());
            match expected {
                None => assert_eq!(error, None),
                Some(words) => {
                    assert!(error.as_ref().is_some_and(|e| e.contains(words)), "{error:?}")
                }
            }
        }
    }

    #[test]
    fn leaves_an_earlier_rest_of_out_of_the_words() {
        for typed in [
            "tramplab vm-test --suite a --rest-of x -j 1",
            "tramplab vm-test --suite a --rest-of=x -j 1",
        ] {
            let command = typed.split(' ').map(str::to_owned).collect();
            let run = Run { command, ..stored() };
            assert_eq!(words(&run).collect::<Vec<_>>(), ["--suite", "a", "-j", "1"], "{typed}");
        }
    }
}
