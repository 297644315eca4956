// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of the kernel tree's own tests.

use crate::selftests::{End, LeftOut, Subtest};
use serde::{Deserialize, Serialize};

/// The tree's `bench`, run in one guest after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bench {
    pub producers: u32,
    pub boots: Vec<BenchBoot>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchBoot {
    /// Million hits per second, of each second after the warm-up; all producers together.
    pub hits: Vec<f64>,
}

/// A test of the tree's `test_progs`, or a program of another folder of its selftests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeTest {
    pub end: End,
    /// In the order in which they ran: the first of them.
    pub subtests: Vec<Subtest>,
    /// How many others there are.
    #[serde(default, skip_serializing_if = "LeftOut::is_none")]
    pub left_out: LeftOut,
    /// Patterns of subtests that were not run, by a deny list.
    pub denied: Vec<String>,
    /// What the test said of its failures.
    pub failures: Vec<String>,
}
