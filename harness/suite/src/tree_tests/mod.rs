// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel tree's own tests in a guest: running them ([`exec`]), and reading their output.

pub mod bench;
pub(crate) mod exec;
pub mod ktap;
mod ran;
pub mod test_progs;

pub use ran::Ran;
pub(crate) use ran::failures;
