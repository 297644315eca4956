// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a kernel says on its console that it is dead or dying. The only thing that is read from a console.

use crate::run::ErrorKind;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    pub kind: ErrorKind,
    /// The kernel's line, without its time stamp.
    pub title: String,
}

/// First match wins: a lockup's line also says `BUG:`, and an oops may be followed by a panic.
const SIGNS: &[(&str, ErrorKind)] = &[
    // kernel/panic.c
    ("Kernel panic - not syncing", ErrorKind::Panic),
    // kernel/watchdog.c, kernel/watchdog_perf.c
    ("BUG: soft lockup", ErrorKind::Lockup),
    ("hard LOCKUP on cpu", ErrorKind::Lockup),
    // kernel/rcu/tree_stall.h, kernel/rcu/tasks.h
    ("detected stalls on CPUs/tasks", ErrorKind::RcuStall),
    ("self-detected stall on CPU", ErrorKind::RcuStall),
    ("detected expedited stalls on CPUs/tasks", ErrorKind::RcuStall),
    ("rcu_tasks detected stalls on tasks", ErrorKind::RcuStall),
    // arch/x86/mm/fault.c, arch/x86/kernel/{traps,dumpstack}.c, lib/bug.c, arch/arm64/mm/fault.c
    ("BUG: unable to handle", ErrorKind::Oops),
    ("BUG: kernel NULL pointer dereference", ErrorKind::Oops),
    ("kernel BUG at ", ErrorKind::Oops),
    ("general protection fault", ErrorKind::Oops),
    ("Unable to handle kernel ", ErrorKind::Oops),
    ("Internal error: ", ErrorKind::Oops),
    ("Oops: ", ErrorKind::Oops),
];

pub fn detect(line: &str) -> Option<Death> {
    let title = without_time_stamp(line);
    let sign = SIGNS.iter().find(|(sign, _)| title.contains(sign)).map(|&(_, kind)| kind);
    // kernel/hung_task.c: `INFO: task NAME:PID blocked for more than N seconds.`
    let hung = || {
        (title.contains("INFO: task ") && title.contains(" blocked for more than "))
            .then_some(ErrorKind::HungTask)
    };
    let kind = sign.or_else(hung)?;
    Some(Death { kind, title: title.to_owned() })
}

/// `[    1.234567] text`, or with CONFIG_PRINTK_CALLER `[    1.234567][    T1] text`.
fn without_time_stamp(mut line: &str) -> &str {
    while let Some((stamp, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        if !stamp.trim().starts_with(|c: char| c.is_ascii_digit() || c == 'T' || c == 'C') {
            break;
        }
        line = rest;
    }
    line.trim_start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_death(log: &str) -> Option<(ErrorKind, String)> {
        log.lines().find_map(detect).map(|death| (death.kind, death.title))
    }

    /// Consoles of real guests, recorded by this harness.
    #[test]
    fn recorded_consoles() {
        for (name, log, expected) in [
            ("6.1 lives", include_str!("testdata/6.1-lives.log"), None),
            ("7.3 lives", include_str!("testdata/7.3-lives.log"), None),
            (
                "6.12 sysrq",
                include_str!("testdata/6.12-panic.log"),
                Some((ErrorKind::Panic, "Kernel panic - not syncing: sysrq triggered crash")),
            ),
            (
                "6.12 without init",
                include_str!("testdata/6.12-exit_agent.log"),
                Some((
                    ErrorKind::Panic,
                    "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
                )),
            ),
            (
                "6.12 RCU",
                include_str!("testdata/6.12-rcu_stall.log"),
                Some((ErrorKind::RcuStall, "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:")),
            ),
        ] {
            let found = first_death(log);
            assert_eq!(found.as_ref().map(|(kind, title)| (*kind, title.as_str())), expected, "{name}");
        }
    }

    /// Lines as the kernel's sources print them, for deaths that no guest here died.
    #[test]
    fn lines_of_the_sources() {
        for (line, kind) in [
            (
                "[   28.4] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [tramplab-agent:1]",
                Some(ErrorKind::Lockup),
            ),
            ("[   10.0][    C1] watchdog: Watchdog detected hard LOCKUP on cpu 1", Some(ErrorKind::Lockup)),
            (
                "[  242.1] INFO: task kworker/0:1:12 blocked for more than 120 seconds.",
                Some(ErrorKind::HungTask),
            ),
            (
                "[    5.0] BUG: kernel NULL pointer dereference, address: 0000000000000010",
                Some(ErrorKind::Oops),
            ),
            (
                "[    5.0] BUG: unable to handle page fault for address: ffffc90000a8f000",
                Some(ErrorKind::Oops),
            ),
            (
                "[    5.0] Oops: general protection fault, probably for non-canonical address",
                Some(ErrorKind::Oops),
            ),
            ("[    5.0] kernel BUG at mm/slub.c:435!", Some(ErrorKind::Oops)),
            (
                "[    5.0] Unable to handle kernel NULL pointer dereference at virtual address 0",
                Some(ErrorKind::Oops),
            ),
            ("[    5.0] Internal error: Oops: 0000000096000004 [#1] SMP", Some(ErrorKind::Oops)),
            ("[   9.9] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", Some(ErrorKind::RcuStall)),
            ("[   9.9] INFO: rcu_tasks detected stalls on tasks:", Some(ErrorKind::RcuStall)),
            // A warning is no death, nor is a command line that speaks of one.
            ("[    5.0] WARNING: CPU: 0 PID: 1 at kernel/trace/ftrace.c:1 ftrace_bug+0x1/0x2", None),
            ("[    0.0] Kernel command line: console=ttyS0 panic=-1 oops=panic", None),
            ("[    1.0] Freeing unused kernel image (initmem) memory: 3940K", None),
        ] {
            assert_eq!(detect(line).map(|death| death.kind), kind, "{line}");
        }
    }
}
