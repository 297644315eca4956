// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands of `cargo xtask`, one file each.

pub mod baseline;
pub mod bench;
pub mod bisect;
pub mod cache;
pub mod compare;
pub mod complete;
pub mod defaults;
pub mod doctor;
pub mod early;
pub mod given;
pub mod history;
pub mod kernels;
mod link;
mod look;
pub mod mechanisms;
pub mod merge;
pub mod messages;
mod options;
mod output;
pub mod package;
mod pages;
pub mod profile;
pub mod progress;
pub mod published;
pub mod report;
mod rerun;
pub mod schema;
pub mod shell;
pub mod source;
pub mod test;
mod values;
pub mod vm_test;

use tramplab_analysis::verdict::Verdict;
use tramplab_lab::{Fault, interrupt};

/// Exit codes, documented in docs/reports.md.
pub mod exit {
    /// Everything that ran passed, or was skipped with a reason.
    pub const PASS: u8 = 0;
    /// A measurement exceeds its budget or is worse than its base; or a test of the repository
    /// failed.
    pub const FAIL: u8 = 1;
    /// The command line, a suite or a manifest is wrong, or a program is missing.
    pub const USAGE: u8 = 2;
    /// At least one cell could not be measured.
    pub const NO_MEASUREMENT: u8 = 3;
    pub const INTERRUPTED: u8 = super::interrupt::INTERRUPTED;
}

/// The exit code of a command that failed.
pub fn code_of(fault: Fault) -> u8 {
    match fault {
        Fault::Users => exit::USAGE,
        Fault::Interrupt => exit::INTERRUPTED,
        Fault::Machines => exit::NO_MEASUREMENT,
    }
}

/// The exit code of a run.
pub fn code_of_run(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Pass => exit::PASS,
        Verdict::Fail => exit::FAIL,
        Verdict::NoMeasurement => exit::NO_MEASUREMENT,
        Verdict::Interrupted => exit::INTERRUPTED,
    }
}
