// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of commits, as their repository has it.

use crate::kernel::{KernelError, source::Local};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Commits, the older first: none stands before one of its ancestors.
pub struct Ancestry {
    tree: Local,
    /// Place and subject.
    commits: BTreeMap<String, (usize, String)>,
}

/// How many commits two have for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// Only of the older one: 0 where it is an ancestor.
    pub older: u64,
    pub newer: u64,
}

impl Ancestry {
    /// Of those of the commits that the repository has.
    pub fn of(tree: &Path, commits: &BTreeSet<String>) -> Result<Ancestry, KernelError> {
        let tree = Local::open(tree)?;
        let known: Vec<&str> =
            commits.iter().map(String::as_str).filter(|commit| tree.commit(commit).is_ok()).collect();
        let mut order = BTreeMap::new();
        if !known.is_empty() {
            // What all have in common need not be walked: a kernel has a million commits.
            let common = tree.ask(["merge-base", "--octopus"].into_iter().chain(known.iter().copied()));
            let common = common.unwrap_or_default();
            let before: Vec<String> = common.lines().map(|base| format!("{}^@", base.trim())).collect();
            let walk = ["rev-list", "--topo-order", "--reverse"].into_iter().chain(known.iter().copied());
            let listed = tree.ask(walk.chain(["--not"]).chain(before.iter().map(String::as_str)))?;
            let titles = tree.ask(
                ["log", "--no-walk=unsorted", "--format=%H %s"].into_iter().chain(known.iter().copied()),
            )?;
            let titles: BTreeMap<&str, &str> =
                titles.lines().filter_map(|line| line.split_once(' ')).collect();
            let ours = listed.lines().filter(|commit| known.contains(commit));
            order = ours
                .enumerate()
                .map(|(at, id)| (id.to_owned(), (at, titles.get(id).unwrap_or(&"").to_string())))
                .collect();
        }
        Ok(Ancestry { tree, commits: order })
    }

    pub fn position(&self, commit: &str) -> Option<usize> {
        self.commits.get(commit).map(|(at, _)| *at)
    }

    pub fn title(&self, commit: &str) -> Option<&str> {
        self.commits.get(commit).map(|(_, title)| title.as_str())
    }

    pub fn between(&self, older: &str, newer: &str) -> Result<Between, KernelError> {
        let range = format!("{older}...{newer}");
        let counts = self.tree.ask(["rev-list", "--count", "--left-right", &range])?;
        let mut counts = counts.split_whitespace().map(|count| count.parse().unwrap_or(0));
        Ok(Between { older: counts.next().unwrap_or(0), newer: counts.next().unwrap_or(0) })
    }
}
