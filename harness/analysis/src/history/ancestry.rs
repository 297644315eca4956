// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of commits. Asking git for it is the caller's.

use std::collections::BTreeMap;

/// Commits, the older first: none stands before one of its ancestors.
#[derive(Clone, Debug, Default)]
pub struct Ancestry {
    /// Position and subject.
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
    /// Ids and subjects of commits, in their order.
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
