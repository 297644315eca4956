// SPDX-License-Identifier: MIT OR Apache-2.0
//! `vm-test --rest-of RUN`: what an interrupted run left without a result, measured by itself.

use super::{UsageError, lab::Planned};
use anyhow::Result;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::runs::{RunDir, running};
use tramplab_model::run::Run;

const VM_TEST: &str = "vm-test";
const REST_OF: &str = "--rest-of";

/// A run of which it is known what it lacks.
pub struct Lacking {
    run: Run,
    folder: RunDir,
}

pub fn interrupted(path: &Path) -> Result<Lacking> {
    // What `latest` is now is another soon.
    let (run, folder) = (RunDir::load(path)?, RunDir::new(resolved(&RunDir::at(path))));
    let why = match () {
        () if running::is_going_on(&folder) => "still goes on",
        () if !is_of_vm_test(&run) => "was not made by vm-test: give the run that was interrupted itself",
        () if !run.interrupted => "was not interrupted: nothing is left of it",
        () if run.missing.is_empty() => {
            "was interrupted before it was known what it would measure: run all of it"
        }
        () => return Ok(Lacking { run, folder }),
    };
    Err(UsageError(format!("{REST_OF}: the run {} {why}", run.id)).into())
}

impl Lacking {
    /// Makes a plan that of its rest; the jobs that are left.
    pub fn jobs_in(&self, planned: &mut Planned) -> Result<Vec<String>, UsageError> {
        planned.make_rest_of(&self.run, &self.folder).map_err(|why| {
            UsageError(format!(
                "{REST_OF}: this is not the rest of {}: {why}; its suite, kernels and options were: {}",
                self.run.id,
                command_line(&self.run, &[])
            ))
        })
    }
}

/// How an interrupted run becomes whole.
pub fn tell(run: &Run, run_dir: &RunDir) {
    if !run.missing.is_empty() && is_of_vm_test(run) && !running::is_going_on(run_dir) {
        // By then `latest` is another.
        let folder = resolved(run_dir);
        eprintln!(
            "to measure what is missing: {}",
            command_line(run, &[REST_OF, &folder.display().to_string()])
        );
    }
}

/// How a rest becomes one run with what it is the rest of.
pub fn tell_of_merging(rest: &Run, rest_dir: &RunDir, of: &Lacking) {
    // It lacks something itself, or belongs together with other shards, which only their owner knows.
    if !rest.missing.is_empty() || rest.shard.is_some() {
        return;
    }
    let rest = resolved(rest_dir);
    match parts(of) {
        Ok(mut folders) => {
            folders.push(rest);
            let folders = folders.iter().map(|folder| folder.display().to_string());
            let words: Vec<String> =
                ["cargo", "xtask", "merge"].map(str::to_owned).into_iter().chain(folders).collect();
            eprintln!("to make one run of all its parts: {}", shell_words::join(words));
        }
        Err(id) => eprintln!(
            "to make one run of all its parts, `cargo xtask merge` takes {}, {} and what that is the rest of, {id}, which is not beside it",
            rest.display(),
            of.folder.path().display()
        ),
    }
}

/// The folders of a run and of what it is the rest of, oldest first; or which run is not beside them.
fn parts(of: &Lacking) -> Result<Vec<PathBuf>, String> {
    let mut folders = vec![of.folder.path().to_owned()];
    let mut before = of.run.rest_of.clone();
    while let Some(id) = before {
        let folder = folders[0].with_file_name(&id);
        let run = RunDir::load(&folder).ok().filter(|_| !folders.contains(&folder)).ok_or(id)?;
        before = run.rest_of;
        folders.insert(0, folder);
    }
    Ok(folders)
}

fn resolved(run_dir: &RunDir) -> PathBuf {
    // That of `run.json` is named by nothing.
    let path = if run_dir.path() == Path::new("") { Path::new(".") } else { run_dir.path() };
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn is_of_vm_test(run: &Run) -> bool {
    run.joined.is_none() && run.command.get(1).is_some_and(|command| command == VM_TEST)
}

/// As somebody typed it, with other words for what it was the rest of.
fn command_line(run: &Run, rest_of: &[&str]) -> String {
    let mut given = run.command.iter().skip(2).map(String::as_str);
    let mut words = [&["cargo", "xtask", VM_TEST], rest_of].concat();
    while let Some(word) = given.next() {
        if word == REST_OF {
            given.next();
        } else if !word.starts_with(REST_OF) {
            words.push(word);
        }
    }
    shell_words::join(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_rest_of_a_rest_are_all_named_or_none() {
        let recorded: Run = serde_json::from_str(include_str!("../../../testdata/run.json")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let lacking = |id: &str, rest_of: Option<&str>| {
            let run = Run { id: id.to_owned(), rest_of: rest_of.map(str::to_owned), ..recorded.clone() };
            let folder = RunDir::new(dir.path().join(id));
            fs::create_dir_all(folder.path()).unwrap();
            folder.save(&run).unwrap();
            Lacking { run, folder }
        };
        let folders = |ids: &[&str]| Vec::from_iter(ids.iter().map(|id| dir.path().join(id)));
        let (first, second) = (lacking("first", None), lacking("second", Some("first")));
        assert_eq!(parts(&first), Ok(folders(&["first"])));
        assert_eq!(parts(&second), Ok(folders(&["first", "second"])));
        assert_eq!(parts(&lacking("third", Some("second"))), Ok(folders(&["first", "second", "third"])));
        assert_eq!(parts(&lacking("moved", Some("elsewhere"))), Err("elsewhere".to_owned()));
        // By hand only.
        assert_eq!(parts(&lacking("own", Some("own"))), Err("own".to_owned()));
    }
}
