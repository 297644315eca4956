// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of the kernel tree's own tests.

use crate::selftests::{End, Subtest};
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
    /// In the order in which they ran.
    pub subtests: Vec<Subtest>,
    /// Patterns of subtests that were not run, by a deny list.
    pub denied: Vec<String>,
    /// What the test said of its failures.
    pub failures: Vec<String>,
}
