// SPDX-License-Identifier: MIT OR Apache-2.0
//! The role of this process: it has a machine of its own, or runs on the user's.

use std::fs;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use tramplab_protocol::message::{ON_THIS_MACHINE, PROGRAM_WORD};

static OWN_MACHINE: AtomicBool = AtomicBool::new(false);

/// Returns true on the user's own machine, which must stay as it is.
pub fn is_own_machine() -> bool {
    OWN_MACHINE.load(Ordering::Relaxed)
}

/// The agent's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first process. The host made the whole root.
    Init,
    /// A program under another init, on a root with files of its own.
    Program,
    /// A program on the user's own machine, which must stay as it is. The descriptor is the link to
    /// the host.
    Machine(RawFd),
}

impl Role {
    pub fn of_this_process() -> Option<Role> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
        Role::of(&arguments, std::process::id(), &line)
    }

    /// Takes the role, for as long as this process lives.
    pub fn begin(self) {
        let is_own = matches!(self, Role::Machine(_));
        OWN_MACHINE.store(is_own, Ordering::Relaxed);
    }

    /// The user's word comes first: a container has a process 1 and the machine's command line.
    fn of(arguments: &[String], pid: u32, line: &str) -> Option<Role> {
        if let [word, socket] = arguments
            && word == ON_THIS_MACHINE
        {
            return socket.parse().ok().filter(|fd| *fd > libc::STDERR_FILENO).map(Role::Machine);
        }
        if pid == 1 {
            return Some(Role::Init);
        }
        line.split_ascii_whitespace().any(|word| word == PROGRAM_WORD).then_some(Role::Program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_over_no_machine_of_the_users() {
        let guest = "quiet tramplab.agent=program";
        for (arguments, pid, line, expected) in [
            (&[][..], 1, "", Some(Role::Init)),
            (&[], 7, guest, Some(Role::Program)),
            (&[], 7, "quiet", None),
            (&["on-this-machine", "3"], 7, "quiet", Some(Role::Machine(3))),
            (&["on-this-machine", "3"], 1, guest, Some(Role::Machine(3))),
            // No descriptor, or one of the standard streams.
            (&["on-this-machine", "x"], 1, guest, None),
            (&["on-this-machine", "2"], 1, guest, None),
            (&["on-this-machine"], 7, "quiet", None),
        ] {
            let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
            assert_eq!(Role::of(&arguments, pid, line), expected, "{arguments:?} {pid} {line}");
        }
    }
}
