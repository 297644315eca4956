// SPDX-License-Identifier: MIT OR Apache-2.0
//! What runs: a suite (YAML) becomes a plan of cells; each cell is run by a process of its own.

mod attach;
pub mod baseline;
mod boots;
pub mod budget;
pub mod cell;
mod definition;
pub mod list;
pub mod plan;
pub mod selftests;

pub use definition::{Budget, Clocks, Experiment, Machine, Mechanisms, Suite, TestGroup, load};
pub use plan::{Emulator, Guest, Job, Plan, PlannedCell};
