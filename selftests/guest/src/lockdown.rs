// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's lockdown, which forbids kprobes and tracefs to root too (kernel_lockdown(7)).

use crate::changes;
use std::fs;
use std::path::Path;

const SECURITY: &str = "/sys/kernel/security";
pub const FILE: &str = "/sys/kernel/security/lockdown";

/// A call that the lockdown forbids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel is locked down ({level}) and does not permit it")]
pub struct Lockdown {
    /// `confidentiality`.
    level: String,
}

impl Lockdown {
    /// Explains an EPERM. None if the kernel is not locked down. The file system with the answer is
    /// mounted only now: another mount would change the memory of every guest.
    pub fn of(errno: i32) -> Option<Lockdown> {
        if errno != libc::EPERM {
            return None;
        }
        if std::process::id() == 1 && !Path::new(FILE).exists() {
            // A kernel without it is not locked down.
            let _ = changes::mount("securityfs", SECURITY, "securityfs");
        }
        Lockdown::parse(&fs::read_to_string(FILE).ok()?)
    }

    /// Parses `none [integrity] confidentiality`. Only `confidentiality` forbids kprobes, tracefs
    /// and reading the kernel's memory (include/linux/security.h): under `integrity` an EPERM has
    /// another reason.
    pub fn parse(states: &str) -> Option<Lockdown> {
        let level = level(states)?.to_owned();
        (level == "confidentiality").then_some(Lockdown { level })
    }
}

/// The current level.
pub fn level(states: &str) -> Option<&str> {
    let current = |word: &'_ str| word.starts_with('[') && word.ends_with(']');
    states.split_whitespace().find(|word| current(word)).map(|word| word.trim_matches(['[', ']']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_level() {
        let level = |states: &str| Lockdown::parse(states).map(|lockdown| lockdown.level);
        for (states, expected) in [
            ("[none] integrity confidentiality\n", None),
            ("none [integrity] confidentiality\n", None),
            ("none integrity [confidentiality]\n", Some("confidentiality")),
            ("", None),
            ("none", None),
        ] {
            assert_eq!(level(states).as_deref(), expected, "{states}");
        }
        assert_eq!(Lockdown::of(libc::EACCES), None);
    }
}
