// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares hits of tracepoints in whatever function holds them.

use crate::found;
use crate::holder;
use crate::kallsyms::nearest;
use crate::known::Known;
use crate::link::Heartbeat;
use crate::method::Method;
use crate::names::did_you_mean;
use crate::target::Target;
use crate::tracefs_events::{EVENTS, events, exists, of_section};
use crate::trigger::{self, Hit, Trigger};
use crate::workload::Workload;
use std::path::Path;
use tramplab_protocol::Mechanism;
use tramplab_protocol::message::GuestError;

/// `section` names the tracepoint as a program's section does.
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
    let name = if mechanism.is_event() { of_event(section) } else { event };
    let btf_id = btf.tracepoint(name);
    let (is_there, all) = match mechanism.is_event() {
        true => (exists(Path::new(EVENTS), section), events(Path::new(EVENTS))),
        false => (btf_id.is_some(), btf.tracepoints().map(|(name, _)| name.to_owned()).collect()),
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
pub fn of_event(section: &str) -> &str {
    let name = of_section(section);
    let is_of = |all: &&str| name.strip_prefix(*all).is_some_and(|rest| rest.starts_with('_'));
    ["sys_enter", "sys_exit"].into_iter().find(is_of).unwrap_or(name)
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
    fn names_the_tracepoint_that_was_meant() {
        let all = ["sched/sched_switch", "task/task_rename"].map(str::to_owned);
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
            ("sys_enter_getpgid", "sys_enter"),
            ("raw_syscalls/sys_enter", "sys_enter"),
            ("sched/sched_switch", "sched_switch"),
            ("task_rename", "task_rename"),
        ] {
            assert_eq!(of_event(section), expected);
        }
    }
}
