// SPDX-License-Identifier: MIT OR Apache-2.0
//! The role of this process: it has a machine of its own, or runs on the user's.

use std::fs;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use tramplab_protocol::message::{ON_THIS_MACHINE, PROGRAM_WORD};

/// Set on the user's own machine.
static LIMIT: OnceLock<u32> = OnceLock::new();

/// Returns true on the user's own machine, which must stay as it is.
pub fn is_own_machine() -> bool {
    most_here().is_some()
}

/// On the user's own machine, the functions and programs that may be attached at once.
pub fn most_here() -> Option<u32> {
    LIMIT.get().copied()
}

/// The agent's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first process. The host made the whole root.
    Init,
    /// A program under another init, on a root with files of its own.
    Program,
    /// A program on the user's own machine, which must stay as it is. `most` functions and programs
    /// may be attached at once.
    Machine { link: RawFd, most: u32 },
}

impl Role {
    pub fn of_this_process() -> Option<Role> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
        Role::of(&arguments, std::process::id(), &line)
    }

    /// Takes the role, for as long as this process lives.
    pub fn begin(self) {
        if let Role::Machine { most, .. } = self {
            LIMIT.set(most).expect("a process has one role");
        }
    }

    /// The user's word comes first: a container has a process 1 and the machine's command line.
    fn of(arguments: &[String], pid: u32, line: &str) -> Option<Role> {
        if arguments.first().is_some_and(|word| word == ON_THIS_MACHINE) {
            let [_, link, most] = arguments else { return None };
            let link = link.parse().ok().filter(|fd| *fd > libc::STDERR_FILENO)?;
            return Some(Role::Machine { link, most: most.parse().ok()? });
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
            (&["on-this-machine", "3", "9"], 7, "quiet", Some(Role::Machine { link: 3, most: 9 })),
            (&["on-this-machine", "3", "9"], 1, guest, Some(Role::Machine { link: 3, most: 9 })),
            // No descriptor, one of the standard streams, no limit.
            (&["on-this-machine", "x", "9"], 1, guest, None),
            (&["on-this-machine", "2", "9"], 1, guest, None),
            (&["on-this-machine", "3", "all"], 1, guest, None),
            (&["on-this-machine", "3"], 1, guest, None),
            (&["on-this-machine"], 1, guest, None),
        ] {
            let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
            assert_eq!(Role::of(&arguments, pid, line), expected, "{arguments:?} {pid} {line}");
        }
    }
}
