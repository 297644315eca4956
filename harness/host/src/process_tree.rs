// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running processes and their descendants, from `/proc`. Those that have ended are left out.

use nix::unistd::Pid;
use std::{collections::HashMap, fs};

/// `root` and its descendants.
pub fn family(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for (process, parent) in processes() {
        children.entry(parent).or_default().push(process);
    }
    let mut family = vec![root];
    let mut next = 0;
    while let Some(process) = family.get(next) {
        family.extend(children.remove(process).unwrap_or_default());
        next += 1;
    }
    family
}

/// The direct children of a process.
pub fn children(of: Pid) -> Vec<Pid> {
    processes().filter(|&(_, parent)| parent == of).map(|(process, _)| process).collect()
}

/// The threads of a process.
pub fn threads(process: Pid) -> impl Iterator<Item = Pid> {
    numbers(&format!("/proc/{process}/task"))
}

/// All processes with their parents.
fn processes() -> impl Iterator<Item = (Pid, Pid)> {
    numbers("/proc").filter_map(|process| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        Some((process, parent(&stat)?))
    })
}

/// The parent of a process that has not ended. Its name, in brackets, may hold anything.
fn parent(stat: &str) -> Option<Pid> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let (state, rest) = rest.split_once(' ')?;
    let parent = rest.split(' ').next()?.parse().ok().map(Pid::from_raw)?;
    (state != "Z").then_some(parent)
}

/// The entries of a folder whose names are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = Pid> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(number).map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{child::Group, given::Given};
    use std::{process::Command, time::Duration};

    #[test]
    fn a_grandchild_is_family_and_no_child() {
        let mut shell = Command::new("sh");
        let shell = Group::spawn(shell.args(["-c", "sleep 600 & wait"])).unwrap();
        let long = Duration::from_secs(60);
        assert!(Given::to_us().wait(long, || family(shell.id()).len() == 2));
        let (us, sleep) = (nix::unistd::getpid(), family(shell.id())[1]);
        assert!(family(us).contains(&sleep));
        assert!(children(us).contains(&shell.id()) && !children(us).contains(&sleep));
        assert_eq!(threads(sleep).collect::<Vec<_>>(), [sleep]);
    }

    #[test]
    fn reads_the_parent_behind_any_name() {
        assert_eq!(parent("7 (a) b (c) S 3 7 7 0"), Some(Pid::from_raw(3)));
        assert_eq!(parent("7 (a"), None);
        assert_eq!(parent("7 (a) Z 3 7 7 0"), None);
    }
}
