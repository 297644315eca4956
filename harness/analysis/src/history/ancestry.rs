// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of commits. The caller asks git for it.

use std::collections::BTreeMap;

/// Commits in order: none comes before one of its ancestors.
#[derive(Clone, Debug, Default)]
pub struct Ancestry {
    /// Position and subject by commit id.
    commits: BTreeMap<String, (usize, String)>,
}

/// The numbers of commits that two commits have apart from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// Ancestors of the older commit only; 0 if it is an ancestor of the newer.
    pub older: u64,
    /// Ancestors of the newer commit only.
    pub newer: u64,
}

impl Ancestry {
    /// Takes ids and subjects of commits, in order.
    pub fn new(commits: impl IntoIterator<Item = (String, String)>) -> Ancestry {
        let placed = commits.into_iter().enumerate().map(|(at, (id, title))| (id, (at, title)));
        Ancestry { commits: placed.collect() }
    }

    pub fn position(&self, commit: &str) -> Option<usize> {
        self.commits.get(commit).map(|(at, _)| *at)
    }

    pub fn title(&self, commit: &str) -> Option<&str> {
        self.commits.get(commit).map(|(_, title)| title.as_str())
    }
}
