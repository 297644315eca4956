// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kselftest`: a program of another folder of the tree's selftests, which reports in KTAP.

use crate::tree_tests::Program;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

pub const TEST_SYNTAX: &str = "kselftest/FOLDER/PROGRAM";
pub const METRIC_SYNTAX: &str = "kselftest.FOLDER/PROGRAM.result";

/// Its only metric takes the same parameters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "KselftestTest")]
pub struct Test {
    pub program: Program,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        Some(Test { program: name.parse().ok()? })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}
