// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came of a fault, and what was to come of it.

use std::time::Duration;
use tramplab_model::run::{ErrorKind, Outcome};

/// What a row expects.
#[derive(Clone, Copy, Debug)]
pub enum Ends {
    /// The cell has no measurement, for this reason, and the run ends with 3.
    Error(ErrorKind, &'static str),
    /// Nothing begins; the exit code, and what is said.
    Refused(i32, &'static str),
    /// The run is stopped and known to be; the exit code.
    Stopped(Option<i32>),
    /// What is broken is told (these words), and everything is measured, as without the fault.
    Overcome(&'static str),
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Observed {
    /// None: by a signal.
    pub code: Option<i32>,
    pub verdict: Verdict,
    /// From the fault to the verdict; of a fault inside a guest, from its cell's beginning.
    pub taken: Duration,
    /// Processes, sockets and files that should not be there.
    pub left: Vec<String>,
    pub kept: Kept,
    /// What was said, for the message of a test that fails.
    #[expect(dead_code, reason = "shown with the rest")]
    pub said: String,
}

#[derive(Clone, Debug)]
pub enum Verdict {
    /// Of the cell with the fault.
    Cell(Outcome),
    /// There is no run; the error that was said.
    NoRun(String),
    /// What `run.json` says of the whole.
    Interrupted,
    /// Every cell was measured, by what words; whether as without the fault.
    Measured { told: String, the_same: bool },
    /// Something else.
    Unexpected(String),
}

/// Results beside the one with the fault: of those that there were to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub results: usize,
    pub of: usize,
}

impl Ends {
    /// Why this is not what was expected.
    pub fn differs(&self, observed: &Observed) -> Option<String> {
        let code = match (self, &observed.verdict) {
            (Ends::Error(kind, words), Verdict::Cell(Outcome::Error { kind: found, message })) => {
                if found != kind || !message.contains(words) {
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
                    return Some(format!("expected {words:?} and what is measured without the fault"));
                }
                Some(0)
            }
            _ => return Some(format!("expected {self:?}")),
        };
        (code != observed.code).then(|| format!("expected exit code {code:?}"))
    }
}
