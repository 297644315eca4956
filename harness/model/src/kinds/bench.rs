// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench`: a benchmark of the tree's own `bench`.

use crate::tree_tests::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub const TEST_SYNTAX: &str = "bench/BENCHMARK";
pub const METRIC_SYNTAX: &str = "bench.BENCHMARK.rate";

super::one_parameter!("BenchTest", benchmark: Name);

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
