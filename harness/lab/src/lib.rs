// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab: what a run needs of this machine, bisections and histories of stored runs.

pub mod bisect;
pub mod doctor;
pub mod history;
pub mod setup;
