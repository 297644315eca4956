// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a kernel says on its console that it is dead or dying, or that its boot went wrong. Nothing else is read from a console.

use tramplab_model::run::ErrorKind;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    pub kind: ErrorKind,
    /// The kernel's line, without its time stamp.
    pub title: String,
}

/// Words that only a dying kernel prints. First match wins: an oops may be followed by a panic, on lines of their own.
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
    // kernel/rcu/tasks.h: rcu_tasks, and rcu_tasks_trace, which BPF programs wait for.
    ("detected stalls on tasks", ErrorKind::RcuStall),
    // lib/bug.c, arch/x86/kernel/traps.c, arch/arm64/mm/fault.c: each before the oops that it titles.
    ("kernel BUG at ", ErrorKind::Oops),
    ("PANIC: double fault", ErrorKind::Oops),
    ("Unable to handle kernel ", ErrorKind::Oops),
];

pub fn detect(line: &str) -> Option<Death> {
    let title = without_time_stamp(line);
    let sign = || SIGNS.iter().find(|(sign, _)| title.contains(sign)).map(|&(_, kind)| kind);
    let kind = sign().or_else(|| is_hung_task(title).then_some(ErrorKind::HungTask)).or_else(|| {
        // What the kernel calls a bug of its own (a bad access, memory corrupted, a lock misused) voids a measurement,
        // whether it goes on or not. Anywhere else in a line the word may be a user's.
        let is_bug = ["BUG: ", "[ BUG: "].iter().any(|head| title.starts_with(head)) || is_slubs(title);
        (is_bug || is_die(title)).then_some(ErrorKind::Oops)
    })?;
    Some(Death { kind, title: title.to_owned() })
}

/// A bug of its own that the kernel goes on after: `WARNING: CPU: 0 PID: 1 at fs/open.c:1016 do_dentry_open+0x435/0x580`, since 6.18
/// `WARNING: fs/open.c:1016 at do_dentry_open+0x435/0x580, CPU#0: init/1` (lib/bug.c, kernel/panic.c). Without an address it is any
/// driver's advice. `UBSAN: shift-out-of-bounds in kernel/x.c:1:2` (lib/ubsan.c), and what lockdep says.
pub fn warning(line: &str) -> Option<Death> {
    let line = without_time_stamp(line);
    // Behind a line that somebody else has begun it is one all the same.
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

/// Words of a kernel that goes on with a clock that it does not trust, or that missed its timer's interrupts.
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

/// A sign that a boot went wrong and that other boots of the same kernel may not have: a [`warning`], or a clock that failed. The guest
/// can be measured, but is no model for others.
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

/// mm/slub.c: `BUG kmalloc-64 (Not tainted): Redzone overwritten`
fn is_slubs(title: &str) -> bool {
    title.starts_with("BUG ") && title.contains(" (") && title.contains("): ")
}

/// kernel/hung_task.c: `INFO: task NAME:PID blocked for more than N seconds.`
fn is_hung_task(title: &str) -> bool {
    title.contains("INFO: task ") && title.contains(" blocked ") && title.contains(" for more than ")
}

/// The head of every oops: `WHAT: 0000 [#1] PREEMPT SMP`. What it was has many names (arch/x86/kernel/dumpstack.c,
/// arch/arm64/kernel/traps.c), and some are also said of processes: `traps: a[9] general protection fault ip:…`.
fn is_die(title: &str) -> bool {
    let counted = |rest: &str| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0 && rest[digits..].starts_with(']')
    };
    title.split_once(" [#").is_some_and(|(_, rest)| counted(rest))
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

    /// Consoles of real guests, from a little before the death. Recorded by this harness where a fault of the agent
    /// caused it; else a debugger had overwritten a system call of the guest, or it had been starved of what it needs.
    #[test]
    fn recorded_consoles() {
        use ErrorKind::{HungTask, Lockup, Oops, Panic, RcuStall};
        let alive = None;
        let wrong: Vec<String> = [
            ("6.1-lives", include_str!("testdata/6.1-lives.log"), alive),
            ("7.3-lives", include_str!("testdata/7.3-lives.log"), alive),
            ("7.2-arm64-lives", include_str!("testdata/7.2-arm64-lives.log"), alive),
            ("7.2-arm64-panic", include_str!("testdata/7.2-arm64-panic.log"), Some((Panic, "Kernel panic - not syncing: sysrq triggered crash"))),
            ("6.12-arm64-rcu_stall", include_str!("testdata/6.12-arm64-rcu_stall.log"), Some((RcuStall, "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"))),
            ("6.12-panic", include_str!("testdata/6.12-panic.log"), Some((Panic, "Kernel panic - not syncing: sysrq triggered crash"))),
            ("6.12-exit_agent", include_str!("testdata/6.12-exit_agent.log"), Some((Panic, "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100"))),
            ("6.12-rcu_stall", include_str!("testdata/6.12-rcu_stall.log"), Some((RcuStall, "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"))),
            ("6.12-no-root", include_str!("testdata/6.12-no-root.log"), Some((Panic, "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)"))),
            ("6.12-init-crashes", include_str!("testdata/6.12-init-crashes.log"), Some((Panic, "Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b"))),
            ("6.12-out-of-memory", include_str!("testdata/6.12-out-of-memory.log"), Some((Panic, "Kernel panic - not syncing: Out of memory: compulsory panic_on_oom is enabled"))),
            ("6.12-init-out-of-memory", include_str!("testdata/6.12-init-out-of-memory.log"), Some((Panic, "Kernel panic - not syncing: System is deadlocked on memory"))),
            ("6.12-stack-protector", include_str!("testdata/6.12-stack-protector.log"), Some((Panic, "Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in: do_syscall_64+0x87/0x180"))),
            ("6.12-null", include_str!("testdata/6.12-null.log"), Some((Oops, "BUG: kernel NULL pointer dereference, address: 0000000000000000"))),
            ("6.12-page-fault", include_str!("testdata/6.12-page-fault.log"), Some((Oops, "BUG: unable to handle page fault for address: ffffffffdeadf000"))),
            ("6.12-protection-fault", include_str!("testdata/6.12-protection-fault.log"), Some((Oops, "Oops: general protection fault, probably for non-canonical address 0xdead000000000000: 0000 [#1] PREEMPT SMP NOPTI"))),
            ("6.12-int3", include_str!("testdata/6.12-int3.log"), Some((Oops, "Oops: int3: 0000 [#1] PREEMPT SMP NOPTI"))),
            ("6.1-int3", include_str!("testdata/6.1-int3.log"), Some((Oops, "int3: 0000 [#1] PREEMPT SMP NOPTI"))),
            ("6.1-divide", include_str!("testdata/6.1-divide.log"), Some((Oops, "divide error: 0000 [#1] PREEMPT SMP NOPTI"))),
            ("6.1-invalid-opcode", include_str!("testdata/6.1-invalid-opcode.log"), Some((Oops, "invalid opcode: 0000 [#1] PREEMPT SMP NOPTI"))),
            ("6.1-protection-fault", include_str!("testdata/6.1-protection-fault.log"), Some((Oops, "general protection fault, probably for non-canonical address 0xdead000000000000: 0000 [#1] PREEMPT SMP NOPTI"))),
            ("6.1-double-fault", include_str!("testdata/6.1-double-fault.log"), Some((Oops, "traps: PANIC: double fault, error_code: 0x0"))),
            ("6.1-null", include_str!("testdata/6.1-null.log"), Some((Oops, "BUG: kernel NULL pointer dereference, address: 0000000000000000"))),
            ("7.3-divide", include_str!("testdata/7.3-divide.log"), Some((Oops, "Oops: divide error: 0000 [#1] SMP NOPTI"))),
            ("7.3-bug", include_str!("testdata/7.3-bug.log"), Some((Oops, "kernel BUG at mm/usercopy.c:102!"))),
            ("6.12-soft-lockup", include_str!("testdata/6.12-soft-lockup.log"), Some((Lockup, "watchdog: BUG: soft lockup - CPU#0 stuck for 3s! [init:126]"))),
            ("7.3-rcu", include_str!("testdata/7.3-rcu.log"), Some((RcuStall, "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"))),
            ("6.1-hung-task", include_str!("testdata/6.1-hung-task.log"), Some((HungTask, "INFO: task init:86 blocked for more than 2 seconds."))),
            ("7.3-hung-task", include_str!("testdata/7.3-hung-task.log"), Some((HungTask, "INFO: task init:100 blocked for more than 2 seconds."))),
            ("6.1-warning", include_str!("testdata/6.1-warning.log"), alive),
            ("7.3-warning", include_str!("testdata/7.3-warning.log"), alive),
            ("6.12-process-protection-fault", include_str!("testdata/6.12-process-protection-fault.log"), alive),
            ("6.12-process-crash", include_str!("testdata/6.12-process-crash.log"), alive),
            ("6.12-dumps", include_str!("testdata/6.12-dumps.log"), alive),
        ]
        .into_iter()
        .filter_map(|(name, log, expected)| {
            let found = first_death(log);
            let same = found.as_ref().map(|(kind, title)| (*kind, title.as_str())) == expected;
            (!same).then(|| format!("{name}: expected {expected:?}, found {found:?}"))
        })
        .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// Lines as the kernel's sources print them, for what no guest here was brought to do.
    #[test]
    fn lines_of_the_sources() {
        for (line, kind) in [
            // No performance counters under TCG, no hard lockup.
            ("[   10.0][    C1] watchdog: Watchdog detected hard LOCKUP on cpu 1", Some(ErrorKind::Lockup)),
            (
                "[   31.2] BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!",
                Some(ErrorKind::Lockup),
            ),
            ("[   24.0] rcu: INFO: rcu_preempt self-detected stall on CPU", Some(ErrorKind::RcuStall)),
            // With rcu_normal_after_boot off, or after minutes.
            (
                "[    9.9] rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-.... } 5 jiffies s: 41 root: 0x2/.",
                Some(ErrorKind::RcuStall),
            ),
            ("[  609.9] INFO: rcu_tasks detected stalls on tasks:", Some(ErrorKind::RcuStall)),
            ("[  609.9] INFO: rcu_tasks_trace detected stalls on tasks:", Some(ErrorKind::RcuStall)),
            (
                "[    5.0][  T123] BUG: KASAN: slab-use-after-free in ftrace_set_hash+0x1/0x2",
                Some(ErrorKind::Oops),
            ),
            ("[    5.0] BUG: scheduling while atomic: tramplab-agent/1/0x00000002", Some(ErrorKind::Oops)),
            ("[    5.0] [ BUG: Invalid wait context ]", Some(ErrorKind::Oops)),
            ("[    5.0] BUG kmalloc-64 (Not tainted): Right Redzone overwritten", Some(ErrorKind::Oops)),
            // arm64
            (
                "[    5.0] Unable to handle kernel NULL pointer dereference at virtual address 0000000000000000",
                Some(ErrorKind::Oops),
            ),
            ("[    5.0] Internal error: Oops: 0000000096000004 [#1] SMP", Some(ErrorKind::Oops)),
            // A warning is no death, nor is a command line that speaks of one, nor other people's bugs.
            ("[    5.0] WARNING: CPU: 0 PID: 1 at kernel/trace/ftrace.c:1 ftrace_bug+0x1/0x2", None),
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
    fn a_warning_is_told_from_advice_and_from_death() {
        let first = |log: &str| log.lines().find_map(warning).map(|found| found.title);
        for (log, title) in [
            (include_str!("testdata/6.1-warning.log"), "WARNING: CPU: 0 PID: "),
            (
                include_str!("testdata/7.3-warning.log"),
                "WARNING: lib/refcount.c:28 at refcount_warn_saturate+0x59/0x90",
            ),
            (
                "[    9.1][  T91] WARNING: kernel/bpf/verifier.c:1 at do_check+0x10/0x20, CPU#0: test_progs/91",
                "WARNING: kernel/bpf/verifier.c:1 at ",
            ),
            ("half a line[    9.1] WARNING: CPU: 0 PID: 9 at a.c:1 f+0x1/0x2", "WARNING: CPU: 0 PID: 9 at "),
            ("[    9.1] WARNING: suspicious RCU usage", "WARNING: suspicious RCU usage"),
            ("[    1.0] UBSAN: shift-out-of-bounds in a.c:1:2", "UBSAN: shift-out-of-bounds in a.c:1:2"),
        ] {
            assert!(first(log).is_some_and(|found| found.starts_with(title)), "{title}");
        }
        for log in [
            include_str!("testdata/6.1-lives.log"),
            include_str!("testdata/7.3-lives.log"),
            include_str!("testdata/7.2-arm64-lives.log"),
            include_str!("testdata/6.12-panic.log"),
            "[    1.0] WARNING: Spectre v2 mitigation leaves CPU vulnerable",
            "[    1.0] WARNING: The mand mount option has been deprecated",
        ] {
            assert_eq!(first(log), None);
        }
    }

    #[test]
    fn a_boot_whose_clock_failed_is_flawed() {
        let first = |log: &str| log.lines().find_map(flaw).map(str::to_owned);
        for log in [
            "[    0.9] tsc: Marking TSC unstable due to clocksource watchdog",
            "[    0.0] tsc: Marking TSC unstable due to boot parameter",
            "[    1.9] clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable because the skew is too large:",
            "[    2.0][    T9] TSC found unstable after boot, most likely due to broken BIOS. Use 'tsc=unstable'.",
            "[    1.5] hrtimer: interrupt took 20331024 ns",
            "[    0.2] APIC timer disabled due to verification failure",
            include_str!("testdata/6.1-warning.log"),
        ] {
            assert!(first(log).is_some_and(|line| !line.starts_with('[')), "{log}");
        }
        for log in [
            include_str!("testdata/6.1-lives.log"),
            include_str!("testdata/7.3-lives.log"),
            include_str!("testdata/7.2-arm64-lives.log"),
        ] {
            assert_eq!(first(log), None);
        }
    }

    #[test]
    fn a_console_names_the_clock_source() {
        for (log, name) in [
            (include_str!("testdata/6.1-lives.log"), "tsc"),
            (include_str!("testdata/7.3-lives.log"), "tsc"),
            (include_str!("testdata/7.2-arm64-lives.log"), "arch_sys_counter"),
        ] {
            assert_eq!(log.lines().filter_map(clock_source).next_back(), Some(name));
        }
    }

    #[test]
    fn a_title_has_no_time_stamp() {
        for (line, title) in [
            ("[    1.234567] Kernel panic - not syncing: x", "Kernel panic - not syncing: x"),
            ("[    1.234567][    T1] Kernel panic - not syncing: x", "Kernel panic - not syncing: x"),
            ("[    1.234567][    C0] Kernel panic - not syncing: x", "Kernel panic - not syncing: x"),
            ("Kernel panic - not syncing: x", "Kernel panic - not syncing: x"),
            ("[drm] BUG: x", "[drm] BUG: x"),
        ] {
            assert_eq!(without_time_stamp(line), title);
        }
    }
}
