// SPDX-License-Identifier: MIT OR Apache-2.0
//! Suites of tests: a suite (YAML) becomes a plan of cells. Each cell runs in its own process.

pub mod baseline;
pub mod binary;
mod boots;
pub mod budget;
pub mod cell;
mod definition;
mod guest;
mod kernels;
pub mod kinds;
pub mod list;
pub mod plan;
pub mod program;
mod symbols;
pub mod tree_tests;
mod yaml;

pub use definition::{Allowance, Budget, Experiment, Machine, Suite, load};
pub use kernels::Kernels;
pub use kinds::{
    Needs, TestGroup,
    attach::Clocks,
    targets::{TargetSet, functions_of_user},
};
pub use plan::{Emulator, Guest, Job, Plan, PlannedCell};
pub use yaml::Mechanisms;
