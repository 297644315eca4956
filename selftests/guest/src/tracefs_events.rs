// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of tracefs: their ids, by which perf opens them.

use crate::bpf::BpfError;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

pub const EVENTS: &str = "/sys/kernel/tracing/events";

/// The ids so far.
static KNOWN: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Finds the id of `task_rename`. Each event is in the folder of its system: a first search takes
/// long, and must not be timed.
pub fn id(name: &str) -> Result<u64, BpfError> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(id) = known.get(name) {
        return Ok(*id);
    }
    let id = id_in(Path::new(EVENTS), name)?;
    known.insert(name.to_owned(), id);
    Ok(id)
}

fn id_in(events: &Path, name: &str) -> Result<u64, BpfError> {
    let failed = |error: std::io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        BpfError::new("find the tracepoint's id in tracefs", errno, "")
    };
    let systems = fs::read_dir(events).map_err(failed)?.flatten();
    let mut ids = systems.map(|system| system.path().join(name).join("id"));
    let Some(file) = ids.find(|file| file.exists()) else {
        return Err(failed(std::io::Error::from_raw_os_error(libc::ENOENT)));
    };
    let text = fs::read_to_string(file).map_err(failed)?;
    let malformed = |_| failed(std::io::Error::from_raw_os_error(libc::EINVAL));
    text.trim().parse().map_err(malformed)
}

/// The name of an event in `SEC("tp/task/task_rename")`.
pub fn of_section(target: &str) -> &str {
    target.rsplit('/').next().unwrap_or(target)
}

/// True if tracefs has the event: of the system that the section names, if it names one.
pub fn exists(events: &Path, section: &str) -> bool {
    match section.contains('/') {
        true => events.join(section).join("id").exists(),
        false => id_in(events, section).is_ok(),
    }
}

/// All events: `task/task_rename`.
pub fn events(events: &Path) -> Vec<String> {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let of_system = |system: fs::DirEntry| {
        let of = name(&system);
        folders(&system.path()).map(|event| format!("{of}/{}", name(&event))).collect::<Vec<_>>()
    };
    folders(events).flat_map(of_system).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_event_in_any_system() {
        let events = tempfile::tempdir().unwrap();
        for (event, id) in [("task/task_rename", "213\n"), ("sched/sched_switch", "x\n")] {
            let folder = events.path().join(event);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("id"), id).unwrap();
        }
        let id = |name| id_in(events.path(), of_section(name));
        assert_eq!(id("task/task_rename").ok(), Some(213));
        assert_eq!(id("task_rename").ok(), Some(213));
        for absent in ["task", "sched_switch", "no_such"] {
            assert!(id(absent).is_err(), "{absent}");
        }
        for (section, expected) in [
            ("task/task_rename", true),
            ("task_rename", true),
            ("sched/task_rename", false),
            ("task/none", false),
        ] {
            assert_eq!(exists(events.path(), section), expected, "{section}");
        }
        let mut all = self::events(events.path());
        all.sort_unstable();
        assert_eq!(all, ["sched/sched_switch", "task/task_rename"]);
    }
}
