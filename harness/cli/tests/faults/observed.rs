// SPDX-License-Identifier: MIT OR Apache-2.0
//! The expected and the observed result of a fault.

use std::time::Duration;
use tramplab_model::run::{ErrorKind, Outcome};

/// The expectation of a row.
#[derive(Clone, Copy, Debug)]
pub enum Ends {
    /// The cell has no measurement, for this reason, and the run exits with 3.
    Error(ErrorKind, &'static str),
    /// Nothing begins: the exit code, and a part of the error.
    Refused(i32, &'static str),
    /// The run is stopped and marked as interrupted; the exit code.
    Stopped(Option<i32>),
    /// The fault is reported with these words, and everything is measured as without it.
    Overcome(&'static str),
}

/// The observation.
#[derive(Clone, Debug)]
pub struct Observed {
    /// None if a signal ended it.
    pub code: Option<i32>,
    pub verdict: Verdict,
    /// From the fault to the verdict. For a fault inside a guest, from its cell's beginning.
    pub taken: Duration,
    /// Processes, sockets and files that should be gone.
    pub left: Vec<String>,
    pub kept: Kept,
    /// The command's output, for the message of a failing test.
    #[expect(dead_code, reason = "shown with the rest")]
    pub said: String,
}

#[derive(Clone, Debug)]
pub enum Verdict {
    /// The outcome of the cell with the fault.
    Cell(Outcome),
    /// There is no run; the error message.
    NoRun(String),
    /// `run.json` says that the run was interrupted.
    Interrupted,
    /// Every cell was measured, with these words. `the_same`: as without the fault.
    Measured { told: String, the_same: bool },
    /// Anything else.
    Unexpected(String),
}

/// Results of the other cells, and how many were due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub results: usize,
    pub of: usize,
}

impl Ends {
    /// Returns the difference from the expectation.
    pub fn differs(&self, observed: &Observed) -> Option<String> {
        let code = match (self, &observed.verdict) {
            (Ends::Error(kind, words), Verdict::Cell(Outcome::Error { kind: found, message })) => {
                // A machine that starved the guest twice.
                let is_doubted = *found == ErrorKind::Starved
                    && matches!(kind, ErrorKind::RcuStall | ErrorKind::HungTask);
                if (found != kind && !is_doubted) || !message.contains(words) {
                    return Some(format!("expected {kind} with {words:?}"));
                }
                Some(3)
            }
            (&Ends::Refused(code, words), Verdict::NoRun(said)) => {
                if !said.contains(words) {
                    return Some(format!("expected {words:?}"));
                }
                Some(code)
            }
            (&Ends::Stopped(code), Verdict::Interrupted) => code,
            (Ends::Overcome(words), Verdict::Measured { told, the_same }) => {
                if !the_same || !told.contains(words) {
                    return Some(format!(
                        "expected {words:?} and what is measured without the fault"
                    ));
                }
                Some(0)
            }
            _ => return Some(format!("expected {self:?}")),
        };
        (code != observed.code).then(|| format!("expected exit code {code:?}"))
    }
}
