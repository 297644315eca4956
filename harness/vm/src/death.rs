// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recognizes the console lines of a dying kernel and of a boot that went wrong. Nothing else reads
//! a console.

use tramplab_model::run::ErrorKind;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    pub kind: ErrorKind,
    /// The kernel's line without its time stamp.
    pub title: String,
}

/// Words that only a dying kernel prints. The first match wins: a panic may follow an oops.
const SIGNS: &[(&str, ErrorKind)] = &[
    // kernel/panic.c
    ("Kernel panic - not syncing", ErrorKind::Panic),
    // kernel/watchdog.c, kernel/watchdog_perf.c, kernel/workqueue.c
    ("BUG: soft lockup", ErrorKind::Lockup),
    ("hard LOCKUP on cpu", ErrorKind::Lockup),
    ("BUG: workqueue lockup", ErrorKind::Lockup),
    // kernel/rcu/tree_stall.h, kernel/rcu/tree_exp.h
    ("detected stalls on CPUs/tasks", ErrorKind::RcuStall),
    ("self-detected stall on CPU", ErrorKind::RcuStall),
    ("detected expedited stalls on CPUs/tasks", ErrorKind::RcuStall),
    // kernel/rcu/tasks.h: rcu_tasks, and rcu_tasks_trace, which BPF programs use.
    ("detected stalls on tasks", ErrorKind::RcuStall),
    // lib/bug.c, arch/x86/kernel/traps.c, arch/arm64/mm/fault.c: printed before the oops.
    ("kernel BUG at ", ErrorKind::Oops),
    ("PANIC: double fault", ErrorKind::Oops),
    ("Unable to handle kernel ", ErrorKind::Oops),
];

/// Recognizes the line of a kernel that dies, or whose state is corrupt.
pub fn detect(line: &str) -> Option<Death> {
    let title = without_time_stamp(line);
    let kind = match SIGNS.iter().find(|(sign, _)| title.contains(sign)) {
        Some(&(_, kind)) => kind,
        None if is_hung_task(title) => ErrorKind::HungTask,
        None if is_bug(title) || is_die(title) => ErrorKind::Oops,
        None => return None,
    };
    Some(Death { kind, title: title.to_owned() })
}

/// Recognizes a kernel bug after which the kernel goes on (lib/bug.c, kernel/panic.c, lib/ubsan.c):
///
/// - `WARNING: CPU: 0 PID: 1 at fs/open.c:1016 do_dentry_open+0x435/0x580`
/// - `WARNING: fs/open.c:1016 at do_dentry_open+0x435/0x580, CPU#0: init/1` since 6.18
/// - `UBSAN: shift-out-of-bounds in kernel/x.c:1:2`
/// - the reports of lockdep
///
/// A `WARNING:` without an address is a driver's advice.
pub fn warning(line: &str) -> Option<Death> {
    let line = without_time_stamp(line);
    // Another writer may have begun the line.
    let title = line.find("WARNING: ").map_or(line, |start| &line[start..]);
    let is_bug = match title.strip_prefix("WARNING: ") {
        Some(rest) => {
            title.contains(" at ") && title.contains("+0x")
                || LOCKDEP.iter().any(|sign| rest.starts_with(sign))
        }
        None => title.starts_with("UBSAN: "),
    };
    is_bug.then(|| Death { kind: ErrorKind::Warning, title: title.to_owned() })
}

/// Words of a kernel that distrusts its clock or missed its timer's interrupts.
const FLAWS: &[&str] = &[
    // arch/x86/kernel/tsc.c
    "Marking TSC unstable",
    "TSC found unstable",
    // kernel/time/clocksource.c
    "Marking clocksource ",
    // kernel/time/hrtimer.c
    "hrtimer: interrupt took ",
    // arch/x86/kernel/apic/apic.c
    "APIC timer disabled",
];

/// Recognizes a boot that went wrong in a way that other boots of the kernel may not: a
/// [`warning`], or a failed clock. The guest can be measured, but must not become a snapshot.
pub fn flaw(line: &str) -> Option<&str> {
    let title = without_time_stamp(line);
    let is_flaw = FLAWS.iter().any(|sign| title.contains(sign)) || warning(line).is_some();
    is_flaw.then_some(title)
}

/// The clock source that the kernel switches to (kernel/time/clocksource.c).
pub fn clock_source(line: &str) -> Option<&str> {
    without_time_stamp(line).strip_prefix("clocksource: Switched to clocksource ").map(str::trim)
}

/// kernel/locking/lockdep.c
const LOCKDEP: &[&str] = &[
    "possible circular locking dependency detected",
    "possible recursive locking detected",
    "possible irq lock inversion dependency detected",
    "inconsistent lock state",
    "suspicious RCU usage",
    "bad unlock balance detected",
    "bad contention detected",
    "held lock freed",
    "lock held when returning to user space",
    "Nested lock was not taken",
    "HARDIRQ-safe -> HARDIRQ-unsafe lock order detected",
    "SOFTIRQ-safe -> SOFTIRQ-unsafe lock order detected",
];

/// Recognizes a kernel bug: a bad access, corrupt memory, a misused lock. After it no measurement
/// is valid, even if the kernel goes on. mm/slub.c prints `BUG kmalloc-64 (Not tainted): Redzone
/// overwritten`. Inside a line the word may come from a user.
fn is_bug(title: &str) -> bool {
    let is_slubs = title.starts_with("BUG ") && title.contains(" (") && title.contains("): ");
    is_slubs || title.starts_with("BUG: ") || title.starts_with("[ BUG: ")
}

/// Recognizes a line of kernel/hung_task.c: `INFO: task NAME:PID blocked for more than N seconds.`
fn is_hung_task(title: &str) -> bool {
    title.contains("INFO: task ")
        && title.contains(" blocked ")
        && title.contains(" for more than ")
}

/// Recognizes the head of every oops: `NAME: 0000 [#1] PREEMPT SMP`, with many names
/// (arch/x86/kernel/dumpstack.c, arch/arm64/kernel/traps.c). Some names also occur in messages
/// about processes: `traps: a[9] general protection fault ip:…`.
fn is_die(title: &str) -> bool {
    let counted = |rest: &str| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && rest[digits..].starts_with(']')
    };
    title.split_once(" [#").is_some_and(|(_, rest)| counted(rest))
}

/// The text of `[    1.234567] text`, with CONFIG_PRINTK_CALLER of `[    1.234567][    T1] text`.
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
    use ErrorKind::{Lockup, Oops, RcuStall};
    use std::{collections::BTreeSet, fs};

    fn log(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/testdata");
        fs::read_to_string(format!("{folder}/{name}.log")).unwrap()
    }

    /// Consoles of real guests, from shortly before the death. A fault of the agent caused the
    /// death, or a debugger had overwritten a system call of the guest, or a resource was missing.
    #[test]
    fn recognizes_recorded_deaths() {
        let files = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/testdata")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let lines = names.filter_map(|file| {
            let name = file.strip_suffix(".log")?;
            Some(match log(name).lines().find_map(detect) {
                Some(Death { kind, title }) => format!("{name}: {kind:?}, {title}"),
                None => format!("{name}: lives"),
            })
        });
        insta::assert_snapshot!(Vec::from_iter(BTreeSet::from_iter(lines)).join("\n"));
    }

    /// Lines from the kernel's sources, for deaths that were not recorded.
    #[test]
    fn recognizes_lines_of_the_kernel_sources() {
        for (line, kind) in [
            // TCG has no performance counters and so detects no hard lockup.
            ("[   10.0][    C1] watchdog: Watchdog detected hard LOCKUP on cpu 1", Some(Lockup)),
            (
                "[   31.2] BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for \
                 31s!",
                Some(Lockup),
            ),
            ("[   24.0] rcu: INFO: rcu_preempt self-detected stall on CPU", Some(RcuStall)),
            // Printed with rcu_normal_after_boot off, or after minutes.
            (
                "[    9.9] rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: \
                 { 1-.... } 5 jiffies s: 41 root: 0x2/.",
                Some(RcuStall),
            ),
            ("[  609.9] INFO: rcu_tasks detected stalls on tasks:", Some(RcuStall)),
            ("[  609.9] INFO: rcu_tasks_trace detected stalls on tasks:", Some(RcuStall)),
            (
                "[    5.0][  T123] BUG: KASAN: slab-use-after-free in ftrace_set_hash+0x1/0x2",
                Some(Oops),
            ),
            ("[    5.0] BUG: scheduling while atomic: tramplab-agent/1/0x00000002", Some(Oops)),
            ("[    5.0] [ BUG: Invalid wait context ]", Some(Oops)),
            ("[    5.0] BUG kmalloc-64 (Not tainted): Right Redzone overwritten", Some(Oops)),
            // arm64
            (
                "[    5.0] Unable to handle kernel NULL pointer dereference at virtual address \
                 0000000000000000",
                Some(Oops),
            ),
            ("[    5.0] Internal error: Oops: 0000000096000004 [#1] SMP", Some(Oops)),
            // Not a death: a warning, a command line that names one, and the bugs of others.
            (
                "[    5.0] WARNING: CPU: 0 PID: 1 at kernel/trace/ftrace.c:1 ftrace_bug+0x1/0x2",
                None,
            ),
            ("[    0.0] Kernel command line: console=ttyS0 panic=-1 oops=panic", None),
            ("[    0.0] [Firmware Bug]: TSC doesn't count with P0 frequency!", None),
            ("[    0.4] ACPI BIOS Error (bug): Could not resolve symbol", None),
            ("[    0.4] rcu: Hierarchical RCU implementation.", None),
            ("[    1.0] Freeing unused kernel image (initmem) memory: 3940K", None),
            ("tramplab-agent: item [#1 of 2", None),
        ] {
            assert_eq!(detect(line).map(|death| death.kind), kind, "{line}");
        }
    }

    #[test]
    fn separates_warnings_from_advice_and_from_deaths() {
        let first = |log: &str| log.lines().find_map(warning).map(|found| found.title);
        for (log, title) in [
            (&*log("6.1-warning"), "WARNING: CPU: 0 PID: "),
            (
                &*log("7.3-warning"),
                "WARNING: lib/refcount.c:28 at refcount_warn_saturate+0x59/0x90",
            ),
            (
                "[    9.1][  T91] WARNING: kernel/bpf/verifier.c:1 at do_check+0x10/0x20, CPU#0: \
                 test_progs/91",
                "WARNING: kernel/bpf/verifier.c:1 at ",
            ),
            (
                "half a line[    9.1] WARNING: CPU: 0 PID: 9 at a.c:1 f+0x1/0x2",
                "WARNING: CPU: 0 PID: 9 at ",
            ),
            ("[    9.1] WARNING: suspicious RCU usage", "WARNING: suspicious RCU usage"),
            (
                "[    1.0] UBSAN: shift-out-of-bounds in a.c:1:2",
                "UBSAN: shift-out-of-bounds in a.c:1:2",
            ),
        ] {
            assert!(first(log).is_some_and(|found| found.starts_with(title)), "{title}");
        }
        for log in [
            &*log("6.1-lives"),
            &*log("7.3-lives"),
            &*log("7.2-arm64-lives"),
            &*log("6.12-panic"),
            "[    1.0] WARNING: Spectre v2 mitigation leaves CPU vulnerable",
            "[    1.0] WARNING: The mand mount option has been deprecated",
        ] {
            assert_eq!(first(log), None);
        }
    }

    #[test]
    fn finds_a_flaw_in_a_boot_with_a_failed_clock() {
        let first = |log: &str| log.lines().find_map(flaw).map(str::to_owned);
        for log in [
            "[    0.9] tsc: Marking TSC unstable due to clocksource watchdog",
            "[    0.0] tsc: Marking TSC unstable due to boot parameter",
            "[    1.9] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as \
             unstable because the skew is too large:",
            "[    2.0][    T9] TSC found unstable after boot, most likely due to broken BIOS. Use \
             'tsc=unstable'.",
            "[    1.5] hrtimer: interrupt took 20331024 ns",
            "[    0.2] APIC timer disabled due to verification failure",
            &*log("6.1-warning"),
        ] {
            assert!(first(log).is_some_and(|line| !line.starts_with('[')), "{log}");
        }
        for log in [&*log("6.1-lives"), &log("7.3-lives"), &log("7.2-arm64-lives")] {
            assert_eq!(first(log), None);
        }
    }

    #[test]
    fn reads_the_clock_source() {
        for (log, name) in [
            (&*log("6.1-lives"), "tsc"),
            (&*log("7.3-lives"), "tsc"),
            (&*log("7.2-arm64-lives"), "arch_sys_counter"),
        ] {
            assert_eq!(log.lines().filter_map(clock_source).next_back(), Some(name));
        }
    }

    #[test]
    fn removes_time_stamps() {
        for (line, title) in [
            ("[    1.234567] Kernel panic - not syncing: x", "Kernel panic - not syncing: x"),
            (
                "[    1.234567][    T1] Kernel panic - not syncing: x",
                "Kernel panic - not syncing: x",
            ),
            (
                "[    1.234567][    C0] Kernel panic - not syncing: x",
                "Kernel panic - not syncing: x",
            ),
            ("Kernel panic - not syncing: x", "Kernel panic - not syncing: x"),
            ("[drm] BUG: x", "[drm] BUG: x"),
        ] {
            assert_eq!(without_time_stamp(line), title);
        }
    }
}
