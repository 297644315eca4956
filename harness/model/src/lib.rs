// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types behind `run.json`: what was measured, on which kernels, and how each cell ended. No
//! I/O.
//!
//! Every other crate of the harness uses these types. `docs/definitions.md` says what the numbers
//! mean.

pub mod arch;
pub mod called;
pub mod code;
pub mod cpu;
pub mod filter;
pub mod function;
mod guest;
pub mod kconfig;
pub mod kinds;
pub mod name;
mod outcome;
pub mod profile;
pub mod program;
pub mod published;
pub mod run;
pub mod table;
pub mod text;
pub mod tree_tests;
