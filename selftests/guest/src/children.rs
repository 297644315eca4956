// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's child processes.

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// Handles SIGCHLD while a program runs. The first process ignores it otherwise, which the program
/// would inherit and which hides the end of children.
pub struct Children {
    before: Option<SigHandler>,
}

impl Children {
    pub fn awaited() -> Children {
        // SAFETY: the default action installs no handler.
        Children { before: unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.ok() }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the agent installs no handler, so there was none before.
            let _ = unsafe { signal(Signal::SIGCHLD, before) };
        }
        // Reap orphans that ended meanwhile. From now on the kernel reaps.
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
    }
}
