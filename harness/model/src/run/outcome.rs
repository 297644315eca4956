// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a cell ends.

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[strum(serialize_all = "snake_case")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Display, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ErrorKind {
    Panic,
    Oops,
    #[strum(serialize = "RCU stall")]
    RcuStall,
    #[strum(serialize = "hung task")]
    HungTask,
    Lockup,
    /// The kernel found a bug of its own while it measured, and went on.
    Warning,
    /// The guest's agent stopped beating.
    Silence,
    /// The kernel could not be built.
    Build,
    /// The agent was never heard of.
    #[strum(serialize = "boot time-out")]
    BootTimeout,
    /// The measurement took longer than its deadline.
    #[strum(serialize = "time-out")]
    Timeout,
    /// QEMU ended by itself.
    #[strum(serialize = "QEMU exit")]
    QemuExit,
    /// QEMU could not be started, or refused its command line or plugin.
    #[strum(serialize = "QEMU start")]
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
        self.into()
    }
}

impl Outcome {
    pub fn name(&self) -> &'static str {
        self.into()
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
