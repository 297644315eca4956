// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result and the time of each test, written to a file as it ends.
//!
//! The first line names the tested sources: a resumed call skips what passed on the same ones.

use crate::error::{Context, Error, Result};
use camino::{Utf8Path, Utf8PathBuf};
use nextest_metadata::{RustBinaryId, TestCaseName};
use nextest_runner::{
    record::{ComputedRerunInfo, RerunTestSuiteInfo},
    reporter::events::{ReporterEvent, TestEventKind},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Write,
    path::Path,
    process::Command,
    time::Duration,
};
use tramplab_host::child;

const GIT_LIMIT: Duration = Duration::from_secs(60);
/// The first column of a test that passed, and of one that did not.
const PASS: &str = "pass";
const FAIL: &str = "fail";
/// The first column of a process that a test left.
const LEFT: &str = "left";
/// The first column of a step that is no test.
const STEP: &str = "step";

/// Lines of `RESULT <tab> SECONDS <tab> NAME`. A test's name is that of its binary and its own.
pub struct Journal {
    file: File,
    path: Utf8PathBuf,
    passed: Vec<(String, String)>,
    is_cancelled: bool,
}

impl Journal {
    /// Opens a journal. With `resume`, keeps what it has of the same sources.
    pub fn open(root: &Utf8Path, path: Utf8PathBuf, resume: bool) -> Result<Journal> {
        let (sources, kept) = match (sources(root), resume) {
            (Ok(sources), true) => {
                let sources = format!("sources {sources}");
                let kept = fs::read_to_string(&path).unwrap_or_default();
                let may_skip = kept.lines().next() == Some(&sources) && !has_left(&kept);
                (sources, if may_skip { kept } else { String::new() })
            }
            (Ok(sources), false) => (format!("sources {sources}"), String::new()),
            (Err(error), true) => {
                return Err(error).context("failed to resume: git must name the sources");
            }
            (Err(_), false) => ("sources unknown".to_owned(), String::new()),
        };
        // A killed process may have left half a line.
        let whole = kept.rfind('\n').map_or("", |end| &kept[..=end]);
        let passed = passed(whole);
        let text = if whole.is_empty() { format!("{sources}\n") } else { whole.to_owned() };
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(text.as_bytes())?;
            Ok::<_, std::io::Error>(file)
        };
        let file = write().with_context(|| format!("failed to write {path}"))?;
        Ok(Journal { file, path, passed, is_cancelled: false })
    }

    /// The tests that passed before, as nextest skips them.
    pub fn passed(&self) -> Option<ComputedRerunInfo> {
        let mut binaries: BTreeMap<&str, BTreeSet<TestCaseName>> = BTreeMap::new();
        for (binary, test) in &self.passed {
            binaries.entry(binary).or_default().insert(TestCaseName::new(test));
        }
        let mut info = ComputedRerunInfo { test_suites: Default::default() };
        for (binary, passing) in binaries {
            let binary_id = RustBinaryId::new(binary);
            let suite = RerunTestSuiteInfo { binary_id, passing, outstanding: BTreeSet::new() };
            info.test_suites.insert_unique(suite).expect("each binary once");
        }
        (!info.test_suites.is_empty()).then_some(info)
    }

    pub fn step(&mut self, name: &str, taken: Duration) {
        self.line(STEP, taken, name);
    }

    /// Notes a process that a test left. Nobody knows what else it did: nothing is skipped then.
    pub fn left(&mut self, command: &str) {
        self.line(LEFT, Duration::ZERO, command);
    }

    /// Returns true if a test passed whose name has one of these words, in a binary that has one
    /// of these beginnings.
    pub fn has_passed(&self, names: &[String], packages: &[&str]) -> bool {
        self.passed.iter().any(|(binary, test)| {
            let is_named = names.is_empty() || names.iter().any(|name| test.contains(name));
            let of = |package: &&str| {
                binary
                    .strip_prefix(package)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
            };
            is_named && (packages.is_empty() || packages.iter().any(of))
        })
    }

    /// Notes the test that has ended, if one has. A test that a signal stopped has no result.
    pub fn note(&mut self, event: &ReporterEvent<'_>) {
        let ReporterEvent::Test(event) = event else { return };
        match &event.kind {
            TestEventKind::RunBeginCancel { .. } => self.is_cancelled = true,
            TestEventKind::TestFinished { test_instance, run_statuses, .. } => {
                let last = run_statuses.last_status();
                let result = match last.result.is_success() {
                    true => PASS,
                    false if self.is_cancelled => return,
                    false => FAIL,
                };
                let name = format!("{} {}", test_instance.binary_id, test_instance.test_name);
                self.line(result, last.time_taken, &name);
            }
            _ => {}
        }
    }

    fn line(&mut self, result: &str, taken: Duration, name: &str) {
        // A full disk does not fail a test: only counts, times and `--resume` lose by it.
        let _ = writeln!(self.file, "{result}\t{:.1}\t{name}", taken.as_secs_f64());
    }

    /// The slowest tests and steps, with their seconds.
    pub fn slowest(&self, count: usize) -> Vec<(f64, String)> {
        slowest(&fs::read_to_string(&self.path).unwrap_or_default(), count)
    }
}

fn has_left(journal: &str) -> bool {
    journal.lines().any(|line| line.split('\t').next() == Some(LEFT))
}

/// The binaries and names of the tests that passed.
fn passed(journal: &str) -> Vec<(String, String)> {
    let lines = journal.lines().filter_map(|line| line.strip_prefix(PASS)?.strip_prefix('\t'));
    let names = lines.filter_map(|line| line.split_once('\t')?.1.split_once(' '));
    names.map(|(binary, test)| (binary.to_owned(), test.to_owned())).collect()
}

fn slowest(journal: &str, count: usize) -> Vec<(f64, String)> {
    let read = |line: &str| {
        let (_, rest) = line.split_once('\t')?;
        let (seconds, name) = rest.split_once('\t')?;
        Some((seconds.parse().ok()?, name.to_owned()))
    };
    let mut all: Vec<(f64, String)> = journal.lines().filter_map(read).collect();
    all.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    all.truncate(count);
    all
}

/// Git's id of all files that it does not ignore, uncommitted ones included.
fn sources(root: &Utf8Path) -> Result<String> {
    let own = tempfile::tempdir()?;
    // Leave index and objects of the user's repository as they are.
    let mine = own.path().join("objects");
    fs::create_dir(&mine)?;
    let run = |words: &[&str], variables: &[(&str, &Path)]| {
        let mut git = Command::new("git");
        git.args(words).current_dir(root).envs(variables.iter().copied());
        Ok::<_, Error>(child::run(&mut git, GIT_LIMIT)?.stdout.trim().to_owned())
    };
    let theirs = root.join(run(&["rev-parse", "--git-path", "objects"], &[])?);
    let theirs = fs::canonicalize(theirs)?;
    let index = own.path().join("index");
    let variables = [
        ("GIT_INDEX_FILE", &*index),
        ("GIT_OBJECT_DIRECTORY", &*mine),
        ("GIT_ALTERNATE_OBJECT_DIRECTORIES", &*theirs),
    ];
    run(&["add", "--all"], &variables)?;
    run(&["write-tree"], &variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_from_whole_lines_of_the_same_sources() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap();
        tramplab_testdata::git::run(root.as_std_path(), &["init", "--quiet"]);
        fs::write(root.join("a.rs"), "1").unwrap();
        let open = |resume| Journal::open(root, root.join("journal"), resume).unwrap();
        fs::write(root.join(".gitignore"), "journal").unwrap();
        assert!(open(true).passed().is_none());
        let mut journal = open(false);
        journal.line(PASS, Duration::from_millis(1500), "a::b c::d, seed 1");
        journal.line(FAIL, Duration::from_secs(2), "a::b c::e");
        journal.step("build", Duration::from_secs(3));
        assert_eq!(journal.slowest(2), [(3.0, "build".to_owned()), (2.0, "a::b c::e".to_owned())]);
        write!(journal.file, "pass\t1.0\ta::b c::ha").unwrap();
        let journal = open(true);
        assert_eq!(journal.passed, [("a::b".to_owned(), "c::d, seed 1".to_owned())]);
        let info = journal.passed().unwrap();
        let suite = info.test_suites.get(&RustBinaryId::new("a::b")).unwrap();
        assert!(suite.passing.contains(&TestCaseName::new("c::d, seed 1")));
        // A process was left.
        open(true).left("sleep 600");
        assert!(open(true).passed().is_none());
        open(false).line(PASS, Duration::ZERO, "a::b c::d");
        let journal = open(true);
        for (names, packages, expected) in [
            (vec![], vec![], true),
            (vec!["::d".to_owned()], vec!["a"], true),
            (vec!["typo".to_owned()], vec![], false),
            (vec![], vec!["b"], false),
        ] {
            assert_eq!(journal.has_passed(&names, &packages), expected, "{names:?} {packages:?}");
        }
        // Not committed, and changed.
        fs::write(root.join("a.rs"), "2").unwrap();
        assert!(open(true).passed().is_none());
        fs::remove_dir_all(root.join(".git")).unwrap();
        Journal::open(root, root.join("journal"), false).unwrap();
        let path = root.join("journal");
        assert!(Journal::open(root, path, true).is_err(), "nobody knows what has changed");
    }
}
