// SPDX-License-Identifier: MIT OR Apache-2.0
//! The search: `git bisect`, in a bare repository that borrows the objects of the user's.
//!
//! So git decides on merges, on skipped commits, and on a good end that is no ancestor of the bad
//! one. The user's repository is only read; its checkout and its own bisection stay untouched. Only
//! the verdicts are kept: git takes them in order, and asks the same questions again.

use super::space::Space;
use crate::error::Result;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};
use tramplab_host::{
    ChildError,
    child::{self, Output},
};
use tramplab_kernel::git::{Borrowed, GitError, Repository};
use tramplab_model::name::is_commit_id;

/// The date of the first commit that stands for a patch, in seconds; git rejects small numbers.
const EPOCH: usize = 1_700_000_000;

/// The deadline of a git command, on a history as long as Linux' own.
const LIMIT: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("failed to read the history of {repository}: {source}")]
    Git { repository: String, source: Box<ChildError> },
    #[error(transparent)]
    Repository(#[from] GitError),
    #[error("failed to remove {}: {source}", folder.display())]
    Remove { folder: PathBuf, source: io::Error },
    /// git's own words.
    #[error("git cannot bisect this: {0}")]
    Refused(String),
}

impl SearchError {
    /// True if another request would succeed.
    pub fn is_usage(&self) -> bool {
        match self {
            SearchError::Refused(_) => true,
            SearchError::Repository(error) => error.is_usage(),
            SearchError::Git { .. } | SearchError::Remove { .. } => false,
        }
    }
}

/// The verdict on a tested commit, as git knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Good,
    Bad,
    Skip,
}

impl Mark {
    pub fn name(self) -> &'static str {
        match self {
            Mark::Good => "good",
            Mark::Bad => "bad",
            Mark::Skip => "skip",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Test {
        commit: String,
        /// `5 revisions left to test after this (roughly 3 steps)`.
        left: String,
    },
    /// The first bad commit.
    Found(String),
    /// The first bad commit is one of these; all but one were skipped.
    OnlySkipped(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub id: String,
    pub subject: String,
    /// `A U Thor <author@example.org>`.
    pub author: String,
    pub date: String,
    pub parents: Vec<String>,
}

/// A history to search.
#[derive(Debug)]
pub struct History {
    borrowed: Borrowed,
    /// For messages.
    what: String,
    /// The ends and verdicts that git knows already.
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    /// Good and bad.
    ends: [String; 2],
    verdicts: Vec<(String, Mark)>,
}

impl Told {
    /// True if git needs only the rest of these verdicts, and there is a rest.
    fn goes_on(&self, ends: &[String; 2], verdicts: &[(String, Mark)]) -> bool {
        self.ends == *ends
            && verdicts.starts_with(&self.verdicts)
            && verdicts.len() > self.verdicts.len()
    }
}

/// Removes an earlier repository: git is told all verdicts anew, and a stranger's bisection may
/// have any configuration and links there.
fn make_room(folder: &Path) -> Result<(), SearchError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(SearchError::Remove { folder: folder.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

impl History {
    /// The history of a repository on this machine.
    pub fn of_repository(repository: &Path, folder: &Path) -> Result<History, SearchError> {
        let repository = Repository::open(repository)?;
        make_room(folder)?;
        let borrowed = Borrowed::objects(&repository, folder)?;
        Ok(History { borrowed, what: repository.folder.display().to_string(), told: None })
    }

    /// One commit for each patch of a series, on a first one without patches; also returns their
    /// ids. The same series gives the same commits.
    pub fn of_series(
        name: &str,
        subjects: &[String],
        folder: &Path,
    ) -> Result<(History, Vec<String>), SearchError> {
        let what = format!("the series {name}");
        make_room(folder)?;
        let borrowed = Borrowed::nothing(folder, what.clone(), "sha1")?;
        let history = History { borrowed, what, told: None };
        let tree = history.line(history.git().args(["mktree"]))?;
        let mut commits: Vec<String> = Vec::new();
        let messages = std::iter::once("The kernel without the series".to_owned())
            .chain(subjects.iter().cloned());
        for (number, message) in messages.enumerate() {
            let mut command = history.git();
            for who in ["AUTHOR", "COMMITTER"] {
                command.env(format!("GIT_{who}_NAME"), "tramplab");
                command.env(format!("GIT_{who}_EMAIL"), "tramplab@example.org");
                command.env(format!("GIT_{who}_DATE"), format!("{} +0000", EPOCH + number));
            }
            command.args(["commit-tree", &tree, "-m", &message]);
            if let Some(parent) = commits.last() {
                command.args(["-p", parent]);
            }
            commits.push(history.line(&mut command)?);
        }
        Ok((history, commits))
    }

    fn git(&self) -> Command {
        self.borrowed.command()
    }

    fn run(&self, command: &mut Command) -> Result<Output, SearchError> {
        child::run(command, LIMIT).map_err(|source| self.failed(source))
    }

    fn finish(&self, command: &mut Command) -> Result<(ExitStatus, Output), SearchError> {
        child::finish(command, LIMIT).map_err(|source| self.failed(source))
    }

    /// A command that prints one line.
    fn line(&self, command: &mut Command) -> Result<String, SearchError> {
        Ok(self.run(command)?.stdout.trim_end_matches('\n').to_owned())
    }

    fn failed(&self, source: ChildError) -> SearchError {
        SearchError::Git { repository: self.what.clone(), source: Box::new(source) }
    }
}

impl Space for History {
    fn next(&mut self, good: &str, bad: &str, verdicts: &[(String, Mark)]) -> Result<Next> {
        let tested = verdicts.iter().map(|(commit, _)| commit.as_str());
        [good, bad].into_iter().chain(tested).try_for_each(require_id)?;
        let ends = [good, bad].map(str::to_owned);
        let mut words = String::new();
        let mut tell = |history: &History, arguments: &[&str]| -> Result<(), SearchError> {
            let (_, output) = history.finish(history.git().arg("bisect").args(arguments))?;
            words = format!("{}{}", output.stdout, output.stderr);
            Ok(())
        };
        let told = match self.told.take() {
            Some(told) if told.goes_on(&ends, verdicts) => told.verdicts.len(),
            _ => {
                self.run(self.git().args(["update-ref", "--no-deref", "HEAD", bad]))?;
                tell(self, &["start", "--no-checkout", bad, good])?;
                0
            }
        };
        // In order: git's next question depends on all earlier ones.
        for (commit, mark) in &verdicts[told..] {
            tell(self, &[mark.name(), commit])?;
        }
        self.told = Some(Told { ends, verdicts: verdicts.to_vec() });
        let log = self.borrowed.folder.join("BISECT_LOG");
        let said = fs::read_to_string(&log).unwrap_or_default();
        let ids = |comment: &str| -> Vec<String> {
            let id = |line: &str| {
                Some(line.strip_prefix(comment)?.strip_prefix(": [")?.split_once(']')?.0.to_owned())
            };
            said.lines().filter_map(id).collect()
        };
        if let Some(commit) = ids("# first bad commit").pop() {
            return Ok(Next::Found(commit));
        }
        let candidates = ids("# possible first bad commit");
        if !candidates.is_empty() {
            return Ok(Next::OnlySkipped(candidates));
        }
        let (status, next) =
            self.finish(self.git().args(["rev-parse", "--verify", "--quiet", "BISECT_HEAD"]))?;
        let commit = next.stdout.trim();
        // git refuses a bad merge base, and says why.
        let is_known =
            verdicts.iter().any(|(known, _)| known == commit) || [good, bad].contains(&commit);
        if !status.success() || is_known {
            return Err(SearchError::Refused(words.trim().to_owned()).into());
        }
        let left = words
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("Bisecting: "))
            .unwrap_or_default();
        Ok(Next::Test { commit: commit.to_owned(), left: left.to_owned() })
    }

    fn commit(&self, id: &str) -> Result<Commit> {
        require_id(id)?;
        let mut command = self.git();
        command.args(["log", "-1", "--no-show-signature", "--date=iso-strict"]);
        command.args(["--format=%H%x00%s%x00%an <%ae>%x00%ad%x00%P", id]);
        let output = self.run(&mut command)?;
        let mut fields = output.stdout.trim_end_matches('\n').split('\0').map(str::to_owned);
        let mut field = || fields.next().unwrap_or_default();
        Ok(Commit {
            id: field(),
            subject: field(),
            author: field(),
            date: field(),
            parents: field().split_whitespace().map(str::to_owned).collect(),
        })
    }

    fn stat(&self, id: &str) -> Result<String> {
        require_id(id)?;
        let mut command = self.git();
        command.args(["show", "--no-show-signature", "--format=", "--stat", "--first-parent", id]);
        Ok(self.run(&mut command)?.stdout)
    }

    fn noun(&self) -> &'static str {
        "commits"
    }

    fn headline(&mut self, _: &str, _: [&str; 2], _: &[(String, Mark)]) -> Result<Option<String>> {
        Ok(None)
    }
}

/// The stored state of a bisection may be a stranger's: git would take `--output=FILE` for an
/// option.
fn require_id(text: &str) -> Result<(), SearchError> {
    if is_commit_id(text) {
        return Ok(());
    }
    let text = text.escape_debug();
    Err(SearchError::Refused(format!("expected the whole id of a commit, got `{text}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// A repository with real commits: `a - b - c - d - e - m - f`, and `b - s - t - m`.
    struct Made {
        dir: tempfile::TempDir,
        commits: Vec<(&'static str, String)>,
    }

    impl Made {
        fn new() -> Made {
            Made::with_hash("sha1")
        }

        fn with_hash(name: &str) -> Made {
            let dir = tempfile::tempdir().unwrap();
            let mut made = Made { dir, commits: Vec::new() };
            made.git(&[
                "init",
                "--quiet",
                "--initial-branch=main",
                &format!("--object-format={name}"),
            ]);
            for name in ["a", "b"] {
                made.commit(name);
            }
            made.git(&["branch", "side"]);
            for name in ["c", "d", "e"] {
                made.commit(name);
            }
            made.git(&["checkout", "--quiet", "side"]);
            for name in ["s", "t"] {
                made.commit(name);
            }
            made.git(&["checkout", "--quiet", "main"]);
            made.git(&["merge", "--quiet", "--no-ff", "-m", "m", "side"]);
            made.keep("m");
            made.commit("f");
            made
        }

        fn git(&self, words: &[&str]) -> String {
            let mut command = tramplab_testdata::git::command(self.dir.path());
            for who in ["AUTHOR", "COMMITTER"] {
                command
                    .env(format!("GIT_{who}_NAME"), "t")
                    .env(format!("GIT_{who}_EMAIL"), "t@example.org");
                command.env(format!("GIT_{who}_DATE"), "1700000000 +0000");
            }
            tramplab_testdata::git::output(command.args(words))
        }

        fn commit(&mut self, name: &'static str) {
            fs::write(self.dir.path().join(name), name).unwrap();
            self.git(&["add", "."]);
            self.git(&["commit", "--quiet", "-m", name]);
            self.keep(name);
        }

        fn keep(&mut self, name: &'static str) {
            let id = self.git(&["rev-parse", "HEAD"]);
            self.commits.push((name, id));
        }

        fn id(&self, name: &str) -> String {
            self.commits.iter().find(|(known, _)| *known == name).unwrap().1.clone()
        }

        fn name(&self, id: &str) -> &'static str {
            self.commits.iter().find(|(_, known)| known == id).unwrap().0
        }

        /// Answers git until it is done: the commits tested, in order, and the end.
        fn search(
            &self,
            good: &str,
            bad: &str,
            answer: impl Fn(&str) -> Mark,
        ) -> (Vec<&'static str>, Next) {
            let scratch = tempfile::tempdir().unwrap();
            let mut history =
                History::of_repository(self.dir.path(), &scratch.path().join("git")).unwrap();
            let mut verdicts = Vec::new();
            loop {
                match history.next(&self.id(good), &self.id(bad), &verdicts).unwrap() {
                    Next::Test { commit, left } => {
                        assert!(
                            left.contains("left to test") || left.contains("merge base"),
                            "{left}"
                        );
                        verdicts.push((commit.clone(), answer(self.name(&commit))));
                    }
                    end => return (verdicts.iter().map(|(id, _)| self.name(id)).collect(), end),
                }
                assert!(verdicts.len() < 9);
            }
        }
    }

    /// The user's repository may have either of git's hashes.
    #[test]
    fn a_repository_of_long_ids_is_searched_too() {
        let made = Made::with_hash("sha256");
        assert_eq!(made.id("a").len(), 64);
        assert_eq!(made.search("a", "f", after("s")).1, Next::Found(made.id("s")));
    }

    /// Bad: what has the commit `first` among its ancestors or is it.
    fn after(first: &str) -> impl Fn(&str) -> Mark {
        let bad: &[&str] = match first {
            "b" => &["b", "c", "d", "e", "s", "t", "m", "f"],
            "d" => &["d", "e", "m", "f"],
            "s" => &["s", "t", "m", "f"],
            "m" => &["m", "f"],
            "f" => &["f"],
            other => panic!("{other}"),
        };
        move |name| if bad.contains(&name) { Mark::Bad } else { Mark::Good }
    }

    #[test]
    fn every_commit_is_found_on_whichever_branch() {
        let made = Made::new();
        for first in ["b", "d", "s", "m", "f"] {
            let (tested, end) = made.search("a", "f", after(first));
            assert_eq!(end, Next::Found(made.id(first)), "{first}: {tested:?}");
            assert!(tested.len() <= 4, "{tested:?}");
        }
        // One step from end to end: nothing is left to test.
        assert_eq!(
            made.search("m", "f", |_| panic!("nothing to test")),
            (vec![], Next::Found(made.id("f")))
        );
    }

    #[test]
    fn what_is_skipped_is_never_the_culprit_unless_nothing_else_is_left() {
        let made = Made::new();
        let skipping = |skipped: &'static [&str], first: &'static str| {
            move |name: &str| if skipped.contains(&name) { Mark::Skip } else { after(first)(name) }
        };
        let (tested, end) = made.search("a", "f", skipping(&["c", "e", "t"], "s"));
        assert_eq!(end, Next::Found(made.id("s")), "{tested:?}");
        // d is bad and b good; c between them cannot be tested.
        let (_, end) = made.search("b", "e", skipping(&["c"], "d"));
        let Next::OnlySkipped(candidates) = end else { panic!("{end:?}") };
        let mut names: Vec<_> = candidates.iter().map(|id| made.name(id)).collect();
        names.sort_unstable();
        assert_eq!(names, ["c", "d"]);
    }

    /// `git bisect run` by hand in the user's own tree tests the same commits and finds the same.
    #[test]
    fn git_by_hand_tests_the_same_commits() {
        let made = Made::new();
        let (tested, end) = made.search("a", "f", after("s"));
        made.git(&["bisect", "start", &made.id("f"), &made.id("a")]);
        // Bad: has the file `s`.
        let said = made.git(&["bisect", "run", "sh", "-c", "! test -e s"]);
        let log = made.git(&["bisect", "log"]);
        let by_hand: Vec<&str> = log
            .lines()
            .filter_map(|line| {
                made.commits.iter().find(|(_, id)| {
                    line == format!("git bisect good {id}")
                        || line == format!("git bisect bad {id}")
                })
            })
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(by_hand, tested, "{log}");
        let Next::Found(found) = end else { panic!("{end:?}") };
        assert!(said.contains(&format!("{found} is the first bad commit")), "{said}");
    }

    /// After an interruption git is told everything at once, and asks what it would have asked.
    #[test]
    fn a_search_that_is_taken_up_again_asks_the_same() {
        let made = Made::new();
        let (tested, _) = made.search("a", "f", after("s"));
        let verdicts: Vec<_> =
            tested.iter().map(|name| (made.id(name), after("s")(name))).collect();
        for known in 0..=tested.len() {
            let scratch = tempfile::tempdir().unwrap();
            let mut history =
                History::of_repository(made.dir.path(), &scratch.path().join("git")).unwrap();
            let next = history.next(&made.id("a"), &made.id("f"), &verdicts[..known]).unwrap();
            match (next, tested.get(known)) {
                (Next::Test { commit, .. }, Some(name)) => assert_eq!(made.name(&commit), *name),
                (Next::Found(commit), None) => assert_eq!(commit, made.id("s")),
                (next, _) => panic!("after {known}: {next:?}"),
            }
        }
    }

    #[test]
    fn takes_no_id_of_a_stored_state_for_an_option() {
        let made = Made::new();
        let scratch = tempfile::tempdir().unwrap();
        let mut history =
            History::of_repository(made.dir.path(), &scratch.path().join("git")).unwrap();
        let output = scratch.path().join("output");
        let (option, good, bad) =
            (format!("--output={}", output.display()), made.id("a"), made.id("f"));
        for asked in [
            history.commit(&option).map(drop),
            history.stat(&option).map(drop),
            history.next(&option, &bad, &[]).map(drop),
            history.next(&good, &option, &[]).map(drop),
            history.next(&good, &bad, &[(option.clone(), Mark::Good)]).map(drop),
        ] {
            assert!(matches!(asked, Err(Error::Search(SearchError::Refused(_)))), "{asked:?}");
        }
        assert!(!output.exists());
    }

    #[test]
    fn the_users_repository_is_only_read() {
        let made = Made::new();
        fs::write(made.dir.path().join("a"), "being edited").unwrap();
        made.git(&["bisect", "start", &made.id("e"), &made.id("a")]);
        let state = || {
            let refs = made.git(&["for-each-ref"]);
            (
                refs,
                made.git(&["status", "--short"]),
                made.git(&["bisect", "log"]),
                made.git(&["rev-parse", "HEAD"]),
            )
        };
        let before = state();
        assert_eq!(made.search("a", "f", after("d")).1, Next::Found(made.id("d")));
        assert_eq!(state(), before);
    }

    #[test]
    fn ends_the_wrong_way_round_are_gits_to_refuse() {
        let made = Made::new();
        let scratch = tempfile::tempdir().unwrap();
        let mut history =
            History::of_repository(made.dir.path(), &scratch.path().join("git")).unwrap();
        let asked = history.next(&made.id("f"), &made.id("a"), &[]);
        assert!(matches!(&asked, Err(Error::Search(error)) if error.is_usage()), "{asked:?}");
        // Two branches: what they have in common is tested first, and one that is bad is the end.
        let base = made.id("b");
        let [e, t] = ["e", "t"].map(|name| made.id(name));
        let Next::Test { commit, .. } = history.next(&e, &t, &[]).unwrap() else { panic!() };
        assert_eq!(commit, base);
        assert_eq!(
            history.next(&e, &t, &[(base.clone(), Mark::Good)]).unwrap(),
            Next::Test {
                commit: made.id("s"),
                left: "0 revisions left to test after this (roughly 0 steps)".to_owned(),
            }
        );
        let error = history.next(&e, &t, &[(base.clone(), Mark::Bad)]).unwrap_err().to_string();
        assert!(error.contains("merge base") && error.contains(&base), "{error}");
    }

    #[test]
    fn nothing_in_an_earlier_folder_is_used_or_leads_out() {
        let made = Made::new();
        let scratch = tempfile::tempdir().unwrap();
        let (victim, git) = (scratch.path().join("victim"), scratch.path().join("git"));
        for series in [false, true] {
            fs::write(&victim, "mine").unwrap();
            let _ = fs::remove_dir_all(&git);
            fs::create_dir_all(git.join("objects/info")).unwrap();
            fs::write(git.join("config"), "[core]\nbare = true\n[planted]\nx = 1\n").unwrap();
            std::os::unix::fs::symlink(&victim, git.join("objects/info/alternates")).unwrap();
            match series {
                true => drop(History::of_series("s", &["p".to_owned()], &git).unwrap()),
                false => drop(History::of_repository(made.dir.path(), &git).unwrap()),
            }
            assert_eq!(fs::read_to_string(&victim).unwrap(), "mine", "{series}");
            assert!(!fs::read_to_string(git.join("config")).unwrap().contains("planted"));
        }
        // The folder itself may be a link to somebody's repository.
        let other = scratch.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::remove_dir_all(&git).unwrap();
        std::os::unix::fs::symlink(&other, &git).unwrap();
        drop(History::of_repository(made.dir.path(), &git).unwrap());
        assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    }

    #[test]
    fn a_commit_is_described() {
        let made = Made::new();
        let scratch = tempfile::tempdir().unwrap();
        let history = History::of_repository(made.dir.path(), &scratch.path().join("git")).unwrap();
        let commit = history.commit(&made.id("m")).unwrap();
        assert_eq!((commit.subject.as_str(), commit.author.as_str()), ("m", "t <t@example.org>"));
        assert_eq!(commit.parents, [made.id("e"), made.id("t")]);
        assert!(
            history.stat(&made.id("c")).unwrap().contains("c | 1 +"),
            "{}",
            history.stat(&made.id("c")).unwrap()
        );
    }

    #[test]
    fn a_series_is_a_history_of_its_own() {
        let scratch = tempfile::tempdir().unwrap();
        let subjects: Vec<String> = (1..=5).map(|n| format!("bpf: Change {n}")).collect();
        let (mut history, commits) =
            History::of_series("s", &subjects, &scratch.path().join("git")).unwrap();
        assert_eq!(commits.len(), 6);
        assert_eq!(history.commit(&commits[3]).unwrap().subject, "bpf: Change 3");
        let mut verdicts = Vec::new();
        let found = loop {
            match history.next(&commits[0], &commits[5], &verdicts).unwrap() {
                Next::Test { commit, .. } => {
                    let at = commits.iter().position(|known| *known == commit).unwrap();
                    verdicts.push((commit, if at >= 4 { Mark::Bad } else { Mark::Good }));
                }
                end => break end,
            }
        };
        assert_eq!(found, Next::Found(commits[4].clone()));
        // Again, as after an interruption: the same commits.
        let again = History::of_series("s", &subjects, &scratch.path().join("git")).unwrap().1;
        assert_eq!(again, commits);
    }
}
