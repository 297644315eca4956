// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench`: a benchmark of the tree's own `bench`.

use crate::tree_tests::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

pub const TEST_SYNTAX: &str = "bench/BENCHMARK";
pub const METRIC_SYNTAX: &str = "bench.BENCHMARK.rate";

/// Its only metric takes the same parameters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BenchTest")]
pub struct Test {
    pub benchmark: Name,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        Some(Test { benchmark: name.parse().ok()? })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.benchmark.fmt(f)
    }
}

/// The measurement. Guests run one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bench {
    /// Threads that trigger.
    pub producers: u32,
    /// One entry for each guest.
    pub boots: Vec<BenchBoot>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchBoot {
    /// Million hits per second, one value for each second after the warm-up. All producers
    /// together.
    pub hits: Vec<f64>,
}
