// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading the runs of a history, and asking git for the order of their commits.

pub mod commits;
pub mod load;

pub use commits::Commits;
pub use load::load;
