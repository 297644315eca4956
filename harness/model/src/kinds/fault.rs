// SPDX-License-Identifier: MIT OR Apache-2.0
//! `fault`: a guest made to fail on purpose, to test the harness.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use tramplab_protocol::message::Fault;

/// `panic`, `rcu_stall`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FaultTest")]
pub struct Test {
    pub fault: Fault,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        Some(Test { fault: serde_json::from_value(name.into()).ok()? })
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}
