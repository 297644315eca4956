// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of one of the tree's own tests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// The test's own verdict, best first.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum End {
    Ok,
    Skip,
    Fail,
}

impl End {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subtest {
    pub name: String,
    pub end: End,
}

/// Number of subtests that are not kept by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
        self.ok.saturating_add(self.skip).saturating_add(self.fail)
    }

    pub fn is_none(&self) -> bool {
        self.sum() == 0
    }
}

/// A test of the tree's `test_progs`, or a program of another folder of its selftests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TreeTest {
    /// As the program says. One that skips itself leaves no measurement.
    pub end: End,
    /// The first 10,000 subtests, in execution order.
    pub subtests: Vec<Subtest>,
    /// Number of the other subtests.
    #[serde(default, skip_serializing_if = "LeftOut::is_none")]
    pub left_out: LeftOut,
    /// Patterns of subtests that a deny list excluded.
    pub denied: Vec<String>,
    /// The first 20 lines that the test printed about its failures.
    pub failures: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_any_counts_stays_at_the_maximum() {
        assert_eq!(LeftOut { ok: u32::MAX, skip: 1, fail: u32::MAX }.sum(), u32::MAX);
        assert_eq!(LeftOut { ok: 1, skip: 2, fail: 3 }.sum(), 6);
        assert!(!LeftOut { ok: 0, skip: 0, fail: 1 }.is_none());
    }
}
