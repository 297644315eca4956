// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints of users' programs: their ids, by which perf opens their events, and hits of them.

use crate::bpf::BpfError;
use crate::found;
use crate::holder;
use crate::kallsyms::nearest;
use crate::known::Known;
use crate::link::Heartbeat;
use crate::method::{Method, Target};
use crate::names::did_you_mean;
use crate::trigger::{self, Hit, Trigger};
use crate::workload::Workload;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tramplab_protocol::Mechanism;
use tramplab_protocol::mechanism::Site;
use tramplab_protocol::message::GuestError;

const EVENTS: &str = "/sys/kernel/tracing/events";

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

/// Prepares hits of the tracepoint in a program's section.
pub fn prepare(
    mechanism: Mechanism,
    section: &str,
    command: Option<&str>,
    known: &Known,
    heartbeat: Option<&Heartbeat>,
) -> Result<Hit, GuestError> {
    let btf = known.btf()?;
    let method = Method::new(mechanism, btf)?;
    let event = of_section(section);
    let name = match mechanism.site() {
        Site::Event => of_event(section),
        _ => event,
    };
    let btf_id = btf.tracepoint(name);
    let (is_there, all) = match mechanism.site() {
        Site::Event => (exists(Path::new(EVENTS), section), events(Path::new(EVENTS))),
        _ => (btf_id.is_some(), btf.tracepoints().map(|(name, _)| name.to_owned()).collect()),
    };
    if !is_there {
        return Err(GuestError::Unsupported(absent(section, &all)));
    }
    let target = Target { name: event.to_owned(), btf_id: btf_id.unwrap_or(0), btf: 0, address: 0 };
    method.probe(&target)?;
    let workloads = match command {
        Some(line) => vec![Workload::command(line)?],
        None => Workload::all(trigger::runner(known), None),
    };
    let found = found::find(&target, workloads, method, known, heartbeat)?;
    let function = holder::find(name, &found.workload, known)?;
    Ok(Hit { method, target, trigger: Trigger::Found(found), function })
}

/// The tracepoint of an event. All events of system calls share two.
fn of_event(section: &str) -> &str {
    let is_of = |prefix: &&str| {
        section.strip_prefix("syscalls/").is_some_and(|name| name.starts_with(*prefix))
    };
    match ["sys_enter", "sys_exit"].into_iter().find(is_of) {
        Some(all) => all,
        None => of_section(section),
    }
}

/// True if tracefs has the event: of the system that the section names, if it names one.
fn exists(events: &Path, section: &str) -> bool {
    match section.contains('/') {
        true => events.join(section).join("id").exists(),
        false => id_in(events, section).is_ok(),
    }
}

/// All events: `task/task_rename`.
fn events(events: &Path) -> Vec<String> {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let of_system = |system: fs::DirEntry| {
        let of = name(&system);
        folders(&system.path()).map(|event| format!("{of}/{}", name(&event))).collect::<Vec<_>>()
    };
    folders(events).flat_map(of_system).collect()
}

fn absent(section: &str, all: &[String]) -> String {
    let meant = did_you_mean(nearest(section, all.iter().map(String::as_str)));
    let of_syscalls =
        section.starts_with("syscalls/") && !all.iter().any(|name| name.starts_with("syscalls/"));
    let option = match of_syscalls {
        true => " (requires the option FTRACE_SYSCALLS)",
        false => "",
    };
    format!("the kernel has no tracepoint {section}{meant}{option}")
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
        for (section, expected) in [
            (
                "task/task_renam",
                "the kernel has no tracepoint task/task_renam; did you mean task/task_rename?",
            ),
            ("task/none", "the kernel has no tracepoint task/none"),
            (
                "syscalls/x",
                "the kernel has no tracepoint syscalls/x (requires the option FTRACE_SYSCALLS)",
            ),
        ] {
            assert_eq!(absent(section, &all), expected);
        }
    }

    #[test]
    fn events_of_system_calls_share_tracepoints() {
        for (section, expected) in [
            ("syscalls/sys_enter_openat", "sys_enter"),
            ("syscalls/sys_exit_read", "sys_exit"),
            ("raw_syscalls/sys_enter", "sys_enter"),
            ("sched/sched_switch", "sched_switch"),
            ("task_rename", "task_rename"),
        ] {
            assert_eq!(of_event(section), expected);
        }
    }
}
