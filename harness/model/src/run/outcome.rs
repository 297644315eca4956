// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a cell ends.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    Pass,
    /// Measured, and worse than its budget or base.
    Fail {
        reasons: Vec<String>,
    },
    /// Not measured.
    Error {
        kind: ErrorKind,
        message: String,
    },
    /// This kernel or host cannot.
    Skip {
        reason: String,
    },
}

/// Why nothing was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    Panic,
    Oops,
    RcuStall,
    HungTask,
    Lockup,
    /// The kernel found a bug of its own while it measured, and went on.
    Warning,
    /// The guest's agent stopped beating.
    Silence,
    /// The kernel could not be built.
    Build,
    /// The agent was never heard of.
    BootTimeout,
    /// The measurement took longer than its deadline.
    Timeout,
    /// QEMU ended by itself.
    QemuExit,
    /// QEMU could not be started, or refused its command line or plugin.
    QemuStart,
    /// The guest sent what is no message.
    Protocol,
    /// The guest's agent said that it failed, or gave up.
    Guest,
    /// The trace does not hold what it must.
    Trace,
    /// The harness itself: a file, a child, the disk.
    Harness,
}

impl ErrorKind {
    /// Said by the guest's kernel on its console.
    pub fn is_kernel_death(self) -> bool {
        use ErrorKind::{HungTask, Lockup, Oops, Panic, RcuStall, Warning};
        matches!(self, Panic | Oops | RcuStall | HungTask | Lockup | Warning)
    }

    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Panic => "panic",
            ErrorKind::Oops => "oops",
            ErrorKind::RcuStall => "RCU stall",
            ErrorKind::HungTask => "hung task",
            ErrorKind::Lockup => "lockup",
            ErrorKind::Warning => "warning",
            ErrorKind::Silence => "silence",
            ErrorKind::Build => "build",
            ErrorKind::BootTimeout => "boot time-out",
            ErrorKind::Timeout => "time-out",
            ErrorKind::QemuExit => "QEMU exit",
            ErrorKind::QemuStart => "QEMU start",
            ErrorKind::Protocol => "protocol",
            ErrorKind::Guest => "guest",
            ErrorKind::Trace => "trace",
            ErrorKind::Harness => "harness",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Outcome {
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Pass => "pass",
            Outcome::Fail { .. } => "fail",
            Outcome::Error { .. } => "error",
            Outcome::Skip { .. } => "skip",
        }
    }

    /// Why it did not pass, in as many lines as there are.
    pub fn reason(&self) -> Option<String> {
        match self {
            Outcome::Pass => None,
            Outcome::Fail { reasons } => Some(reasons.join("\n")),
            Outcome::Error { kind, message } => Some(format!("{kind}: {message}")),
            Outcome::Skip { reason } => Some(reason.clone()),
        }
    }
}
