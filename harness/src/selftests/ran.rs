// SPDX-License-Identifier: MIT OR Apache-2.0
//! How one of the tree's own tests ended, whichever way it said so.

use serde::{Deserialize, Serialize};

/// By its own word, the better first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Ok,
    Skip,
    Fail,
}

impl End {
    pub fn name(self) -> &'static str {
        match self {
            End::Ok => "ok",
            End::Skip => "skip",
            End::Fail => "fail",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subtest {
    pub name: String,
    pub end: End,
}

/// A test that ran to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub end: End,
    /// In the order in which they ended.
    pub subtests: Vec<Subtest>,
    /// What it said of its failures, from the first on.
    pub failures: Vec<String>,
}

/// Failures that are kept of one test.
pub(super) const FAILURES: usize = 20;
