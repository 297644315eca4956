// SPDX-License-Identifier: MIT OR Apache-2.0
//! Call-path profiles: where the instructions, samples or nanoseconds of a phase went.
//!
//! A profile is one tree, whatever was counted. Per thread it has the functions on the kernel's
//! stack, outermost first, each with the amount spent in itself.
//!
//! [`Profile::read`] reads a profile. [`Tree`] merges the parts of several that are to be shown
//! ([`Of`]). [`text`], [`folded`], [`firefox`], [`flame`] and [`diff`] render a tree.

pub mod count;
pub mod diff;
pub mod estimate;
mod file;
pub mod firefox;
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

pub use tramplab_model::profile::{
    Cost, Estimate, Function, Phase, Space, Summary, Totals, Unit, Waited,
};

use serde::{Deserialize, Serialize};
use tramplab_protocol::{
    estimate::Events,
    message::{AGENT_NAME, AGENT_PID},
};

/// The file's version. It increases when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// The profile of one phase of one cell: the file `profile-PHASE-HOW.json` in the cell's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub schema: u32,
    /// The cell's name.
    pub cell: String,
    pub phase: Phase,
    pub unit: Unit,
    /// Only in sampled profiles.
    pub sampling: Option<Sampling>,
    /// The modelled CPU. Only in estimated profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    pub threads: Vec<Thread>,
    pub functions: Vec<Function>,
    /// Parents before their children.
    pub nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    pub event: String,
    /// Events from one sample to the next.
    pub period: u64,
    /// Samples lost.
    pub lost: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    pub command: String,
    /// 0 for an idle or unknown thread.
    pub pid: u32,
    /// The thread that attaches.
    pub measured: bool,
}

/// A function at its place on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Index of the caller; `None` at the bottom of a stack.
    pub parent: Option<u32>,
    /// Index into `threads`; the same as the parent's.
    pub thread: u32,
    /// Index into `functions`.
    pub function: u32,
    /// The function ran in an interrupt of the thread and is not its own work.
    pub interrupt: bool,
    /// Amount spent in the function itself, in the profile's unit.
    pub own: u64,
    /// Calls of the function; 0 if unknown.
    pub calls: u64,
    /// Events of the modelled CPU in the function itself. Only in estimated profiles.
    #[serde(default, skip_serializing_if = "Events::is_empty")]
    pub events: Events,
}

impl Thread {
    /// Returns the guest's first process, which attaches.
    pub fn agent() -> Thread {
        Thread { command: AGENT_NAME.to_owned(), pid: AGENT_PID, measured: true }
    }
}
