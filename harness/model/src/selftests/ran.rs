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

/// Subtests beyond those that are kept by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    pub ok: u32,
    pub skip: u32,
    pub fail: u32,
}

impl LeftOut {
    pub fn of(&self, end: End) -> u32 {
        match end {
            End::Ok => self.ok,
            End::Skip => self.skip,
            End::Fail => self.fail,
        }
    }

    pub fn sum(&self) -> u32 {
        self.ok + self.skip + self.fail
    }

    pub fn is_none(&self) -> bool {
        self.sum() == 0
    }
}
