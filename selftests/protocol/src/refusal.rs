// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers of a guest that did not measure.

use serde::{Deserialize, Serialize};

/// The reason why the guest did not measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum GuestError {
    /// This kernel cannot; the reason is the kernel's own. The cell becomes a `skip`.
    #[error("not supported by this kernel: {0}")]
    Unsupported(String),
    /// It should have worked. The cell becomes an `error`.
    #[error("{0}")]
    Failed(String),
    /// A user's program is rejected. The cell becomes an `error`, and keeps the log.
    #[error("{reason}")]
    Rejected {
        /// With the log's last lines.
        reason: String,
        by: By,
        /// The end of its log, of at most [`LONGEST_LOG`] bytes.
        log: String,
    },
}

/// The side that rejects a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// It cannot relocate the program for this kernel, or make its maps.
    Libbpf,
    Verifier,
}

/// Bytes of a log that the guest sends at most.
pub const LONGEST_LOG: usize = 1 << 20;

impl GuestError {
    pub fn failed(what: impl std::fmt::Display) -> GuestError {
        GuestError::Failed(what.to_string())
    }
}
