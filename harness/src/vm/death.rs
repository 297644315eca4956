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
