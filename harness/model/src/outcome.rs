// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a cell ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    Pass,
    /// Measured, and worse than its budget or its base.
    Fail {
        reasons: Vec<String>,
    },
    /// Not measured.
    Error {
        kind: ErrorKind,
        message: String,
    },
    /// This kernel or this host does not support it.
    Skip {
        reason: String,
    },
}

/// The reason why nothing was measured.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Display, IntoStaticStr,
)]
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
    /// The kernel warned about a bug of its own while it measured, and went on.
    Warning,
    /// The guest's agent stopped sending heartbeats.
    Silence,
    /// The kernel could not be built.
    Build,
    /// The agent never sent a message.
    #[strum(serialize = "boot time-out")]
    BootTimeout,
    /// The measurement took longer than its deadline.
    #[strum(serialize = "time-out")]
    Timeout,
    /// The host gave the guest too little CPU time to tell what a deadline, or a watchdog of the
    /// kernel, means.
    #[strum(serialize = "starved host")]
    Starved,
    /// QEMU ended by itself.
    #[strum(serialize = "QEMU exit")]
    QemuExit,
    /// QEMU could not be started, or refused its command line or plugin.
    #[strum(serialize = "QEMU start")]
    QemuStart,
    /// The guest sent an invalid message.
    Protocol,
    /// The guest's agent reported a failure, or gave up.
    Guest,
    /// libbpf or the verifier rejected the user's program.
    Program,
    /// The trace lacks required records.
    Trace,
    /// The harness itself failed: a file, a child process, the disk.
    Harness,
}

impl ErrorKind {
    /// True if the guest's kernel reported it on its console.
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

    /// The reason why it did not pass, which may have several lines.
    pub fn reason(&self) -> Option<String> {
        match self {
            Outcome::Pass => None,
            Outcome::Fail { reasons } => Some(reasons.join("\n")),
            Outcome::Error { kind, message } => Some(format!("{kind}: {message}")),
            Outcome::Skip { reason } => Some(reason.clone()),
        }
    }
}
