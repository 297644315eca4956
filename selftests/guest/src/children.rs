// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's child processes.

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// Handles SIGCHLD while a program runs. The agent ignores it otherwise, which the program would
/// inherit and which hides the end of children.
pub struct Children;

impl Children {
    pub fn awaited() -> Children {
        // SAFETY: the default action installs no handler.
        let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
        Children
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) };
        // Reap orphans that ended meanwhile. From now on the kernel reaps.
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            if status == WaitStatus::StillAlive {
                break;
            }
        }
    }
}
