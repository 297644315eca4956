// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way in which a function that the user names is hit.

use serde::{Deserialize, Serialize};

/// The workload that hits a function: one of the agent's, found by trying them, or the user's
/// command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Triggered {
    /// Its name, such as `bpf(2)`, or the command.
    pub workload: String,
    /// How often it passes the function each time.
    pub hits: u32,
}

impl Triggered {
    /// The largest number of hits of one trigger. A reader names every hit's records.
    pub const MOST: u32 = 64;
    /// Guest seconds that a run of the user's command may take.
    pub const SECONDS: u32 = 3;

    /// The recorded runs of a command for so many triggers. A process takes hundreds of thousands
    /// of branches to start, and the recorder keeps a million. So one run that hits several times
    /// counts as several triggers, and there are two at most.
    pub fn runs(hits: u32, triggers: u32) -> u32 {
        triggers.div_ceil(hits.max(1)).min(2)
    }
}
