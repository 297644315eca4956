// SPDX-License-Identifier: MIT OR Apache-2.0
//! The summary of a call-path profile that `run.json` keeps.

use crate::guest::Clock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};
use tramplab_protocol::{
    estimate::Event,
    message::{Counter, Explain, Places},
};

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
    JsonSchema,
    EnumString,
    IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[schemars(rename = "ProfilePhase")]
pub enum Phase {
    Attach,
    Detach,
}

/// The unit of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ProfileUnit")]
pub enum Unit {
    /// Every instruction, by the plugin.
    Instructions,
    /// Hits of the sampling clock.
    Samples,
    /// Time off the CPU.
    Nanoseconds,
    /// Instructions and events of a modelled CPU, weighed.
    EstimatedCycles,
}

#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ProfiledFunction")]
pub struct Function {
    pub name: String,
    pub space: Space,
}

/// The owner of the code: perf's "shared object".
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "CodeSpace")]
pub enum Space {
    Kernel,
    /// A module, as kallsyms names it. `bpf` for JITed programs and trampolines.
    Module(String),
    User,
}

/// The summary of one phase's profile in `run.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ProfileSummary")]
pub struct Summary {
    pub phase: Phase,
    pub how: Explain,
    /// The source of the guest's clock.
    pub clock: Clock,
    /// Number of rounds that were profiled together. All values below are their sum.
    pub rounds: u32,
    /// Functions attached to in each round.
    pub attached: u32,
    /// From before to after the phase, nanoseconds of the guest's monotonic clock.
    pub wall_ns: u64,
    /// CPU time of the attaching thread, by the scheduler's accounting, interrupts included. By the
    /// exact clock it can go by ticks (4 ms at HZ=250): use `totals` for short phases.
    pub cpu_ns: u64,
    /// The unit of `totals` and `functions`.
    pub unit: Unit,
    pub totals: Totals,
    /// The same by the guest's CPU. Empty unless the plugin counted on several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<OfCpu>,
    /// The attaching thread's 40 most expensive functions, without its interrupts. Sorted by `own`,
    /// highest first.
    pub functions: Vec<Cost>,
    /// The 20 longest times off the CPU by stack, longest first. Only sampling sees them.
    pub waits: Vec<Waited>,
    /// Sum of all times off the CPU. Of a sampled profile `wall_ns - cpu_ns - waited_ns` is the
    /// remainder.
    pub waited_ns: u64,
    /// Times that the attaching thread waited for an RCU grace period. Only exact profiles have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_periods: Option<u64>,
    /// Counters of the attaching thread, as `perf stat` would count them, if it was sampled. Cycles
    /// and similar events need a guest with a PMU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<Counter>,
    /// Where the functions are among ftrace's records. None of other targets, and in runs from
    /// before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Places>,
    /// The estimate's parts. Only estimated profiles have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Name of the full profile's file in the cell's folder.
    pub file: String,
}

/// The parts of the measured thread's estimated cycles, without its interrupts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EstimateOfPhase")]
pub struct Estimate {
    /// The modelled CPU.
    pub cpu: String,
    /// Instructions of the thread.
    pub instructions: u64,
    /// Estimated cycles of the instructions alone.
    pub instruction_cycles: u64,
    /// The events that happened.
    pub events: Vec<EventCost>,
}

impl Estimate {
    /// Estimated cycles of instructions and events.
    pub fn cycles(&self) -> u64 {
        let events = self.events.iter();
        events.fold(self.instruction_cycles, |sum, event| sum.saturating_add(event.cycles))
    }
}

/// How often an event happened, and what that cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventCost {
    pub event: Event,
    /// How often it happened.
    pub count: u64,
    /// Estimated cycles of all of them.
    pub cycles: u64,
}

/// A profile's sum, split by the thread that did the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// The attaching thread's.
    pub task: u64,
    /// Interrupts, whichever thread they interrupted.
    pub interrupts: u64,
    /// Other threads', including idle ones.
    pub others: u64,
}

/// A part of a profile's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OfCpu {
    /// The number of the guest's CPU.
    pub cpu: u32,
    pub totals: Totals,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FunctionCost")]
pub struct Cost {
    pub function: Function,
    /// Its own instructions or samples.
    pub own: u64,
    /// Including callees. A recursive function is counted once.
    pub total: u64,
}

/// Time off the CPU with one stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Waited {
    /// Names, innermost first.
    pub stack: Vec<String>,
    /// Nanoseconds, all waits together.
    pub ns: u64,
    /// Number of waits.
    pub count: u64,
}

impl Phase {
    pub const ALL: [Phase; 2] = [Phase::Attach, Phase::Detach];

    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Unit {
    /// The plural, as in headings.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Instructions => "instructions",
            Unit::Samples => "samples",
            Unit::Nanoseconds => "nanoseconds off the CPU",
            Unit::EstimatedCycles => "estimated cycles",
        }
    }
}
