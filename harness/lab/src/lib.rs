// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab: from options to a run, kernels included; bisections; histories of stored runs.
//!
//! [`measure::measure`] is the main job. It tells [`event::Event`]s, which the command line shows
//! and [`recorder`] keeps, and prints nothing.

pub mod artifacts;
pub mod backend;
pub mod bisect;
pub mod cache_limit;
pub mod command;
pub mod cpus;
pub mod disassembly;
pub mod doctor;
pub mod error;
pub mod event;
mod functions;
pub mod guest_root;
pub mod history;
pub mod interrupt;
pub mod kernels;
pub mod lab;
mod lines;
pub mod listing;
pub mod measure;
pub mod nextest;
pub mod options;
pub mod place;
mod planned;
mod planning;
pub mod profiles;
mod programs;
pub mod recorder;
pub mod rerun;
pub mod run_dir;
pub mod scratch;
pub mod setup;
mod this_machine;

pub use error::{Error, Fault, Result};
pub use event::{Event, Tell};
pub use place::{Place, place};
