// SPDX-License-Identifier: MIT OR Apache-2.0
//! Call-path profiles: where the instructions, samples or nanoseconds of a phase went. Pure.
//!
//! Whatever counted, a profile is one tree: per thread the functions on the kernel's stack, outermost first, each with
//! what was spent in itself.
//!
//! [`Profile::load`] reads one; [`Tree`] lays several over each other, as far as they are to be seen ([`Of`]); [`text`],
//! [`folded`], [`flame`] and [`diff`] render that.

pub mod count;
pub mod diff;
mod file;
pub mod flame;
pub mod folded;
#[cfg(test)]
pub mod tests;
pub mod text;
mod tree;
mod view;

pub use file::{How, ProfileError, Wrong};
pub use tree::{Frame, Names, Place, Spent, Tree};
pub use view::{Of, Subject};

use crate::run::Clock;
use serde::{Deserialize, Serialize};
use tramplab_protocol::message::{AGENT_NAME, AGENT_PID, Counter, Explain};

/// Raised when a field of the file changes its meaning.
pub const SCHEMA: u32 = 1;

/// One phase of one cell; the file `profile-PHASE-HOW.json` in the cell's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub schema: u32,
    /// The cell's name.
    pub cell: String,
    pub phase: Phase,
    pub unit: Unit,
    /// Of sampled profiles: the event, its period, and samples that were lost.
    pub sampling: Option<Sampling>,
    pub threads: Vec<Thread>,
    pub functions: Vec<Function>,
    /// Parents before their children.
    pub nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    pub event: String,
    pub period: u64,
    pub lost: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    pub command: String,
    /// 0: idle, or not known.
    pub pid: u32,
    /// The thread that attaches.
    pub measured: bool,
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

/// A function in its place on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Index of the caller; none at the bottom of a stack.
    pub parent: Option<u32>,
    /// Index into `threads`; the same as the parent's.
    pub thread: u32,
    /// Index into `functions`.
    pub function: u32,
    /// In an interrupt that came over the thread, and not work of its own.
    pub interrupt: bool,
    /// Spent in the function itself, in the profile's unit.
    pub own: u64,
    /// How often it was called; 0 where that is not known.
    pub calls: u64,
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
    /// The functions that cost the attaching thread most, its interrupts left out; by `own`, most first.
    pub functions: Vec<Cost>,
    /// Times off the CPU by stack, longest first; the longest ones. Only sampling sees them.
    pub waits: Vec<Waited>,
    /// All times off the CPU.
    pub waited_ns: u64,
    /// What `perf stat` would count of the attaching thread, where it was sampled: cycles and their like take a guest with a PMU.
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

impl Thread {
    /// The guest's first process, which attaches.
    pub fn agent() -> Thread {
        Thread { command: AGENT_NAME.to_owned(), pid: AGENT_PID, measured: true }
    }
}

impl Phase {
    pub const ALL: [Phase; 2] = [Phase::Attach, Phase::Detach];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Attach => "attach",
            Phase::Detach => "detach",
        }
    }
}
