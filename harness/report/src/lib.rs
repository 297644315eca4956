// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports: pure functions of a [`tramplab_model::run::Run`], so that an old run renders again without a VM.
//!
//! [`content`] decides what is said; [`terminal`] and [`markdown`] only lay it out. [`junit`] is for CI systems, [`github`] for one
//! of them, [`mail`] for a mailing list.
//! The JSON report is `run.json` itself: `docs/run-json.md`.

mod attach;
pub mod comparison;
pub mod content;
#[cfg(test)]
mod docs;
pub mod github;
pub mod history;
pub mod junit;
pub mod kcidb;
mod line;
pub mod mail;
pub mod markdown;
pub mod mechanisms;
mod scaling;
mod selftests;
pub mod terminal;
#[cfg(test)]
pub mod tests;
mod throughput;

pub use content::{View, why};
pub use line::cell_line;
