// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel tree's own tests in a guest: running them ([`run`]), and reading their output.

pub mod bench;
pub mod ktap;
mod ran;
pub(crate) mod run;
pub mod test_progs;

pub use ran::Ran;
