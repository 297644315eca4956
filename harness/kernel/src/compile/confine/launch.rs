// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts confined programs, and waits until everything that they started is gone.
//!
//! bubblewrap exits with the program that it runs. What that program left in the background is
//! killed, but still runs for a moment. It could then replace files that this program reads or
//! hands over. The sandbox's first process is the init of its process namespace: the kernel reports
//! its end only after that of all others.

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use serde::Deserialize;
use std::{
    io::{self, PipeReader},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    process::{Command, ExitStatus},
};
use tramplab_host::child::Group;

/// A program to start. Arguments can be added.
#[derive(Debug)]
pub struct Launch {
    pub command: Command,
    /// bubblewrap's `--info-fd`. None: not confined.
    info: Option<PipeReader>,
}

impl Launch {
    pub fn unconfined(command: Command) -> Launch {
        Launch { command, info: None }
    }

    pub(super) fn confined(command: Command, info: PipeReader) -> Launch {
        Launch { command, info: Some(info) }
    }

    /// Starts it in a process group of its own.
    pub fn start(mut self) -> io::Result<Running> {
        let group = Group::spawn(&mut self.command)?;
        // It holds the other end of the pipe, which would never end.
        drop(self.command);
        let sandbox = self.info.map(Sandbox::of).transpose()?.flatten();
        Ok(Running { group, _sandbox: sandbox })
    }
}

/// A running program. Dropping it kills the program and everything in its sandbox, and waits until
/// all are gone.
pub struct Running {
    // Dropped first: make gets time to stop its children.
    group: Group,
    _sandbox: Option<Sandbox>,
}

impl Running {
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.group.try_wait()
    }
}

/// A handle of the sandbox's first process.
struct Sandbox(OwnedFd);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Info {
    child_pid: libc::pid_t,
}

impl Sandbox {
    /// None if bubblewrap failed before it made the sandbox, or if the sandbox is gone.
    fn of(info: PipeReader) -> io::Result<Option<Sandbox>> {
        let mut infos = serde_json::Deserializer::from_reader(info).into_iter::<Info>();
        let Some(info) = infos.next() else { return Ok(None) };
        let process = info.map_err(io::Error::other)?.child_pid;
        // SAFETY: no memory is passed.
        let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        match Errno::result(handle) {
            // SAFETY: the kernel has just made the descriptor for us. It fits: it is a c_int.
            Ok(handle) => Ok(Some(Sandbox(unsafe { OwnedFd::from_raw_fd(handle as i32) }))),
            Err(Errno::ESRCH) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let information = std::ptr::null::<libc::siginfo_t>();
        let (handle, signal) = (self.0.as_raw_fd(), libc::SIGKILL);
        // SAFETY: a null pointer is allowed. bubblewrap's end has sent the signal already; this is
        // for a bubblewrap that could not.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle, signal, information, 0) };
        let mut handles = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        while poll(&mut handles, PollTimeout::NONE) == Err(Errno::EINTR) {}
    }
}
