// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commits of a kernel tree that runs measured, as git orders them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use tramplab_analysis::history::{Ancestry, ancestry::Between};
use tramplab_kernel::{KernelError, source::Local};

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
            .filter(|commit| tree.commit(commit).is_ok())
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
        let counts = self.0.ask(["rev-list", "--count", "--left-right", &range])?;
        let mut counts = counts.split_whitespace().map(|count| count.parse().unwrap_or(0));
        Ok(Between { older: counts.next().unwrap_or(0), newer: counts.next().unwrap_or(0) })
    }
}
