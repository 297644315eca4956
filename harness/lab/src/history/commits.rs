// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commits of a kernel tree that runs measured, as git orders them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use tramplab_analysis::history::{Ancestry, ancestry::Between};
use tramplab_kernel::{KernelError, source::Local};
use tramplab_model::name::is_commit_id;

/// A kernel tree that is asked for the order of commits.
pub struct Commits(Local);

impl Commits {
    pub fn open(tree: &Path) -> Result<Commits, KernelError> {
        Local::open(tree).map(Commits)
    }

    /// The order of those of the commits that the tree has.
    pub fn ancestry(&self, commits: &BTreeSet<String>) -> Result<Ancestry, KernelError> {
        let Commits(tree) = self;
        let known: Vec<&str> = commits
            .iter()
            .map(String::as_str)
            // Runs are a stranger's: git would take `--output=FILE` for an option.
            .filter(|commit| is_commit_id(commit) && tree.commit(commit).is_ok())
            .collect();
        if known.is_empty() {
            return Ok(Ancestry::default());
        }
        // The history that all share need not be walked: a kernel has a million commits.
        let common = tree.ask(["merge-base", "--octopus"].into_iter().chain(known.iter().copied()));
        let common = common.unwrap_or_default();
        let before: Vec<String> = common.lines().map(|base| format!("{}^@", base.trim())).collect();
        let walk =
            ["rev-list", "--topo-order", "--reverse"].into_iter().chain(known.iter().copied());
        let listed = tree.ask(walk.chain(["--not"]).chain(before.iter().map(String::as_str)))?;
        let titles = tree.ask(
            ["log", "--no-walk=unsorted", "--format=%H %s"]
                .into_iter()
                .chain(known.iter().copied()),
        )?;
        let titles: BTreeMap<&str, &str> =
            titles.lines().filter_map(|line| line.split_once(' ')).collect();
        let ours = listed.lines().filter(|commit| known.contains(commit));
        Ok(Ancestry::new(ours.map(|id| (id.to_owned(), titles.get(id).unwrap_or(&"").to_string()))))
    }

    pub fn between(&self, older: &str, newer: &str) -> Result<Between, KernelError> {
        let range = format!("{older}...{newer}");
        let counts =
            self.0.ask(["rev-list", "--count", "--left-right", "--end-of-options", &range])?;
        let mut counts = counts.split_whitespace().map(|count| count.parse().unwrap_or(0));
        Ok(Between { older: counts.next().unwrap_or(0), newer: counts.next().unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn takes_no_commit_of_a_run_for_an_option() {
        let folder = tempfile::tempdir().unwrap();
        let git = |words: &[&str]| tramplab_testdata::git::run(folder.path(), words);
        git(&["init", "--quiet"]);
        git(&["commit", "--quiet", "--allow-empty", "--message", "first"]);
        let id = git(&["rev-parse", "HEAD"]);
        let output = folder.path().join("output");
        let option = format!("--output={}", output.display());
        // A reference may have such a name.
        let reference = folder.path().join(".git/refs").join(&option[..]);
        fs::create_dir_all(reference.parent().unwrap()).unwrap();
        fs::write(reference, &id).unwrap();
        let commits = Commits::open(folder.path()).unwrap();
        let known = commits.ancestry(&[id.clone(), option.clone()].into()).unwrap();
        assert_eq!((known.position(&id), known.position(&option)), (Some(0), None));
        commits.between(&option, &id).unwrap_err();
        assert!(!output.exists());
        assert_eq!(commits.between(&id, &id).unwrap(), Between { older: 0, newer: 0 });
        // The trap works.
        git(&["rev-list", &option, &id]);
        assert!(output.exists());
    }
}
