// SPDX-License-Identifier: MIT OR Apache-2.0
//! `test_progs`: a test of the tree's own `test_progs`.

use crate::tree_tests::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

pub const TEST_SYNTAX: &str = "test_progs/TEST";
pub const METRIC_SYNTAX: &str = "test_progs.TEST.result";

/// Its only metric takes the same parameters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TestProgsTest")]
pub struct Test {
    pub test: Name,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        Some(Test { test: name.parse().ok()? })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.test.fmt(f)
    }
}
