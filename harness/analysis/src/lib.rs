// SPDX-License-Identifier: MIT OR Apache-2.0
//! Analysis of traces, counts and stored cells. Pure: no process, no network, no git.
//!
//! - [`branch`] counts wasted branch records and the cost of a trigger in a trace.
//! - [`profile`] shows where the instructions of an attach went.
//! - [`compare`] judges head against base.
//! - [`history`] follows a metric over many runs.
//! - [`verdict`] judges a whole run.

pub mod branch;
pub mod compare;
pub mod history;
pub mod profile;
pub mod published;
pub mod spread;
pub mod verdict;
