// SPDX-License-Identifier: MIT OR Apache-2.0
//! The summary of a call-path profile that `run.json` keeps.

use crate::run::Clock;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};
use tramplab_protocol::message::{Counter, Explain};

#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Phase {
    Attach,
    Detach,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Every instruction, by the plugin.
    Instructions,
    /// Hits of the sampling clock.
    Samples,
    /// Time off the CPU.
    Nanoseconds,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    pub name: String,
    pub space: Space,
}

/// Whose code it is: perf's "shared object".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Space {
    Kernel,
    /// As kallsyms names it: `bpf` for JITed programs and trampolines.
    Module(String),
    User,
}

/// What `run.json` keeps of a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    pub phase: Phase,
    pub how: Explain,
    pub clock: Clock,
    /// Rounds that were explained as one: all that follows is their sum.
    pub rounds: u32,
    /// Functions attached to in each.
    pub attached: u32,
    pub wall_ns: u64,
    /// By the scheduler's accounts of the attaching thread.
    pub cpu_ns: u64,
    pub unit: Unit,
    pub totals: Totals,
    /// The functions that cost the attaching thread most, its interrupts left out; by `own`, most
    /// first.
    pub functions: Vec<Cost>,
    /// Times off the CPU by stack, longest first; the longest ones. Only sampling sees them.
    pub waits: Vec<Waited>,
    /// All times off the CPU.
    pub waited_ns: u64,
    /// What `perf stat` would count of the attaching thread, where it was sampled: cycles and their
    /// like take a guest with a PMU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<Counter>,
    /// The whole profile, in the cell's folder.
    pub file: String,
}

/// A profile's sum, by whose work it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// The attaching thread's.
    pub task: u64,
    /// Interrupts, whomever they came over.
    pub interrupts: u64,
    /// Other threads', idle ones included.
    pub others: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    pub function: Function,
    pub own: u64,
    /// With all it called; a function that calls itself is counted once.
    pub total: u64,
}

/// Time off the CPU with one stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waited {
    /// Names, innermost first.
    pub stack: Vec<String>,
    pub ns: u64,
    pub count: u64,
}

impl Phase {
    pub const ALL: [Phase; 2] = [Phase::Attach, Phase::Detach];

    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Unit {
    /// As headings say it, in the plural.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Instructions => "instructions",
            Unit::Samples => "samples",
            Unit::Nanoseconds => "nanoseconds off the CPU",
        }
    }
}
