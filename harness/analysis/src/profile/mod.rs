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

pub use tramplab_model::profile::{Cost, Function, Phase, Space, Summary, Totals, Unit, Waited};

use serde::{Deserialize, Serialize};
use tramplab_protocol::message::{AGENT_NAME, AGENT_PID};

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

impl Thread {
    /// The guest's first process, which attaches.
    pub fn agent() -> Thread {
        Thread { command: AGENT_NAME.to_owned(), pid: AGENT_PID, measured: true }
    }
}
