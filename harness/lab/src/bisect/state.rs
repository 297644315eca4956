// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a bisection, kept as `state.json` after each commit.

use super::{Mark, Reading};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tramplab_host::{cache::write_whole, regular, runs::MOST_BYTES};
use tramplab_kernel::compile::Means;
use tramplab_model::{
    cpu,
    name::short,
    run::{Arch, Machine},
};

/// Raised when a field changes its meaning; an older bisection is then begun anew.
pub const SCHEMA: u32 = 2;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub schema: u32,
    pub asked: Identity,
    /// The machine that was measured on; none before the first guest.
    pub machine: Option<Machine>,
    /// Toolchain and configuration of all kernels; `None` before the first.
    pub means: Option<Means>,
    /// In the order in which they were tested; the ends are the first.
    pub steps: Vec<TestedCommit>,
    /// None while there is something to test.
    pub end: Option<End>,
}

/// The identity of a bisection: an equal one continues it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// As [`super::Question`] shows itself.
    pub question: String,
    pub sources: Sources,
    /// Commits.
    pub good: String,
    pub bad: String,
    pub arch: Arch,
    /// `auto`, `kvm`, `tcg`.
    pub accel: String,
    /// Somebody else's `git bisect run` chooses the commits.
    pub by_hand: bool,
    /// The CPU as which guests boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<cpu::Named>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sources {
    Repository(PathBuf),
    /// Commits are of a history made for it.
    Series {
        name: String,
        sha256: String,
        kernel: String,
        digest: String,
    },
    /// Commits are configurations of one kernel.
    Configs {
        kernel: String,
        digest: String,
        /// SHA-256 of tramplab's own options, which both ends have.
        base_sha256: String,
    },
}

/// A commit that was tested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestedCommit {
    pub commit: String,
    pub subject: String,
    /// The kernel's name in the run.
    pub kernel: String,
    /// None of one that was not built.
    pub image_sha256: Option<String>,
    pub verdict: Verdict,
    /// None of one that gave nothing.
    pub reading: Option<Reading>,
    /// The message of a failure.
    pub said: Option<String>,
    /// The commit whose image is the same: nothing was booted.
    pub same_as: Option<String>,
    /// The run's folder, in the bisection's; none where nothing was booted.
    pub run: Option<String>,
}

impl TestedCommit {
    /// `bad   4d34f2212345  9       bpf: Jump once more`.
    pub(super) fn line(&self) -> String {
        let TestedCommit { commit, subject, verdict, reading, same_as, .. } = self;
        let value = reading.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        let mut line = format!("{:<4} {} {value:>8}  {subject}", verdict.name(), short(commit));
        if let Some(twin) = same_as {
            line += &format!(" [the image of {}]", short(twin));
        }
        if let Verdict::Skip(why) = verdict {
            line += &format!(" [{}]", first_line(why));
        }
        line
    }
}

pub(super) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Verdict {
    Good,
    Bad,
    /// Neither, and why.
    Skip(String),
}

impl Verdict {
    pub fn mark(&self) -> Mark {
        match self {
            Verdict::Good => Mark::Good,
            Verdict::Bad => Mark::Bad,
            Verdict::Skip(_) => Mark::Skip,
        }
    }

    pub fn name(&self) -> &'static str {
        self.mark().name()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum End {
    Found(Found),
    /// One of these: all but one could not be told.
    OnlySkipped(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    pub commit: String,
    /// The commit it was compared with; `None` if no commit before it could be measured.
    pub before: Option<String>,
}

impl State {
    pub fn new(asked: Identity) -> State {
        State { schema: SCHEMA, asked, machine: None, means: None, steps: Vec::new(), end: None }
    }

    pub fn step(&self, commit: &str) -> Option<&TestedCommit> {
        self.steps.iter().find(|step| step.commit == commit)
    }

    /// One that was measured, or found wanting, with this very image.
    pub fn with_image(&self, sha256: &str) -> Option<&TestedCommit> {
        let is_it = |step: &&TestedCommit| {
            step.image_sha256.as_deref() == Some(sha256) && step.same_as.is_none()
        };
        self.steps.iter().find(is_it)
    }

    /// The verdicts for git, without the ends, which it knows.
    pub fn marks(&self) -> Vec<(String, Mark)> {
        let ends = [&self.asked.good, &self.asked.bad];
        let others = self.steps.iter().filter(|step| !ends.contains(&&step.commit));
        others.map(|step| (step.commit.clone(), step.verdict.mark())).collect()
    }

    /// The step whose numbers a step has.
    pub fn measured<'a>(&'a self, step: &'a TestedCommit) -> &'a TestedCommit {
        step.same_as.as_deref().and_then(|commit| self.step(commit)).unwrap_or(step)
    }

    fn path(folder: &Path) -> PathBuf {
        folder.join("state.json")
    }

    /// Whole or not at all: whatever ends the program, the state before it is there.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        let mut json = serde_json::to_vec_pretty(self).expect("plain data");
        json.push(b'\n');
        write_whole(&State::path(folder), &json)
    }

    /// None of a folder that holds none, or one of another version.
    pub fn load(folder: &Path) -> Option<State> {
        // A stranger's folder: what is written there would follow its links.
        let is_link = |entry: io::Result<fs::DirEntry>| {
            entry.and_then(|entry| entry.file_type()).map_or(true, |kind| kind.is_symlink())
        };
        if fs::read_dir(folder).ok()?.any(is_link) {
            return None;
        }
        let bytes = regular::read(&State::path(folder), MOST_BYTES).ok()?;
        let state: State = serde_json::from_slice(&bytes).ok()?;
        // A stranger's folder: a run's name leads nowhere else.
        let stays = |run: &String| Path::new(run).file_name().is_some_and(|name| name == &**run);
        let is_own = state.steps.iter().all(|step| step.run.as_ref().is_none_or(stays));
        (state.schema == SCHEMA && is_own).then_some(state)
    }
}

/// The newest bisection in `runs` that was asked the same, and its folder.
pub fn find(runs: &Path, asked: &Identity) -> Option<(PathBuf, State)> {
    let folders = fs::read_dir(runs).ok()?.flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = folders
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
        })
        .collect();
    folders.sort();
    let load = |folder: PathBuf| State::load(&folder).map(|state| (folder, state));
    folders.into_iter().rev().filter_map(load).find(|(_, state)| state.asked == *asked)
}

/// Begins the names of bisections' folders among runs.
pub const PREFIX: &str = "bisect-";

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Identity {
        Identity {
            question: "boot".to_owned(),
            sources: Sources::Repository("/linux".into()),
            good: "g".to_owned(),
            bad: "b".to_owned(),
            arch: Arch::X86_64,
            accel: "tcg".to_owned(),
            by_hand: false,
            model: None,
        }
    }

    fn step(commit: &str, image: &str, verdict: Verdict, same_as: Option<&str>) -> TestedCommit {
        TestedCommit {
            commit: commit.to_owned(),
            subject: String::new(),
            kernel: format!("linux-{commit}"),
            image_sha256: Some(image.to_owned()),
            verdict,
            reading: Some(Reading::Exact { number: Some(8), functions: None }),
            said: None,
            same_as: same_as.map(str::to_owned),
            run: None,
        }
    }

    fn state() -> State {
        let skip = Verdict::Skip("panic".to_owned());
        let steps = vec![
            step("g", "1", Verdict::Good, None),
            step("b", "2", Verdict::Bad, None),
            step("x", "1", Verdict::Good, Some("g")),
            step("y", "3", skip.clone(), None),
            step("z", "3", skip, Some("y")),
        ];
        State { steps, ..State::new(asked()) }
    }

    #[test]
    fn an_image_is_known_again_and_git_is_told_all_but_the_ends() {
        let state = state();
        // That which was measured, not that which was taken for it.
        assert_eq!(state.with_image("1").unwrap().commit, "g");
        assert_eq!(state.with_image("3").unwrap().commit, "y");
        assert_eq!(state.with_image("4"), None);
        assert_eq!(state.measured(state.step("x").unwrap()).commit, "g");
        assert_eq!(state.measured(state.step("b").unwrap()).commit, "b");
        let marks: Vec<_> =
            state.marks().into_iter().map(|(commit, mark)| format!("{commit} {mark:?}")).collect();
        assert_eq!(marks, ["x Good", "y Skip", "z Skip"]);
    }

    #[test]
    fn the_newest_that_was_asked_the_same_is_found_whatever_else_is_there() {
        let runs = tempfile::tempdir().unwrap();
        let save = |name: &str, state: &State| {
            let folder = runs.path().join(name);
            fs::create_dir(&folder).unwrap();
            state.save(&folder).unwrap();
        };
        assert_eq!(find(runs.path(), &asked()), None);
        assert_eq!(find(&runs.path().join("none"), &asked()), None);
        save("bisect-1", &State::new(asked()));
        save("bisect-2", &state());
        save("bisect-3", &State::new(Identity { bad: "c".to_owned(), ..asked() }));
        save("bisect-4", &State::new(Identity { by_hand: true, ..asked() }));
        save("bisect-5", &State { schema: SCHEMA + 1, ..state() });
        save("other-6", &state());
        let mut hostile = state();
        hostile.steps[0].run = Some("../../outside".to_owned());
        save("bisect-9", &hostile);
        // The next report would be written through the links.
        for (name, file) in [("bisect-91", "report.txt"), ("bisect-92", "suite.yaml")] {
            save(name, &state());
            std::os::unix::fs::symlink("/nonexistent", runs.path().join(name).join(file)).unwrap();
        }
        for (name, folder) in [("bisect-93", "steps"), ("bisect-94", "configs")] {
            save(name, &state());
            std::os::unix::fs::symlink(runs.path(), runs.path().join(name).join(folder)).unwrap();
        }
        fs::create_dir(runs.path().join("bisect-7")).unwrap();
        fs::create_dir(runs.path().join("bisect-8")).unwrap();
        fs::write(runs.path().join("bisect-8/state.json"), "{\"schema\": 1,").unwrap();
        assert_eq!(find(runs.path(), &asked()), Some((runs.path().join("bisect-2"), state())));
    }
}
