// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports: pure functions of a [`tramplab_model::run::Run`]. An old run renders without a VM.
//!
//! [`content`] decides what a report says; [`terminal`], [`markdown`] and [`html`] lay it out.
//! [`junit`] and [`github`] are for CI systems, [`mail`] for mailing lists,
//! [`benchstat`], [`benchmarks`] and [`openmetrics`] for tools that compare or follow numbers.
//! [`brstack`] prints branch records as perf does. [`review`] answers b4 from stored runs,
//! [`timeline`] shows where a run's time went.
//! The JSON report is `run.json` itself: `docs/run-json.md`.

pub mod benchmarks;
pub mod benchstat;
mod booted;
pub mod brstack;
pub mod compared;
pub mod comparison;
mod configurations;
pub mod content;
mod diff;
pub mod disassembly;
#[cfg(test)]
mod docs;
mod findings;
pub mod github;
mod group;
pub mod history;
pub mod html;
pub mod json;
mod judged;
pub mod junit;
mod kinds;
#[cfg(test)]
mod letter;
mod line;
pub mod mail;
pub mod markdown;
pub mod mechanisms;
mod numbers;
pub mod openmetrics;
mod outcomes;
mod paragraph;
mod parts;
mod programs;
pub mod published;
pub mod review;
mod scaling;
pub mod terminal;
#[cfg(test)]
pub mod tests;
pub mod timeline;
mod useful;
mod view;

pub use line::cell_line;
pub use outcomes::why;
pub use view::View;
