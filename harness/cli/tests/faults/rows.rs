// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of faults. Rows with long waits come first.

use crate::{
    observed::{Ends, Observed},
    place::Part,
    scene::{Cause, flip_a_bit, truncate},
};
use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM};
use tramplab_model::run::{Backend, ErrorKind};

/// A fault and its expected result.
pub struct Row {
    pub fault: &'static str,
    /// The backend that starts the guests.
    pub vm: Backend,
    pub cause: Cause,
    pub ends: Ends,
}

/// The rows of every test run: one of each place where something goes wrong, none that waits long.
pub const SAMPLE: [&str; 12] = [
    "the kernel panics in mid-test",
    "the kernel warns and goes on",
    "frames: a bit is flipped",
    "QEMU is killed (SIGKILL)",
    "a snapshot has a bit flipped",
    "the cache is read-only",
    "the runs' disk fills up",
    "Ctrl-C (SIGINT)",
    "the harness is killed (SIGKILL); the next run cleans up",
    "standard descriptors are closed",
    "KVM is broken, and not asked for",
    "virtme-ng: the kernel panics",
];

impl Row {
    pub fn is_sampled(&self) -> bool {
        SAMPLE.contains(&self.fault)
    }

    /// Returns the difference from the expectation.
    pub fn wrong(&self, observed: &Observed) -> Option<String> {
        let kept = observed.kept;
        self.ends
            .differs(observed)
            .or_else(|| (!observed.left.is_empty()).then(|| "something was left behind".to_owned()))
            .or_else(|| (kept.results != kept.of).then(|| "not all results were kept".to_owned()))
    }
}

pub fn all() -> Vec<Row> {
    use Cause::{
        Cache, FullRuns, Guest, KernelArguments, Killed, Kvm, Mounts, Paused, Qemu, Shell,
        SignalTo, SignalToHarness, Snapshot, Twice, Vng,
    };
    use Ends::{Error, Overcome, Refused, Stopped};
    use ErrorKind::{
        BootTimeout, HungTask, Oops, Panic, Protocol, QemuExit, RcuStall, Silence, Trace, Warning,
    };
    let by_qemu = [
        // Silent guests.
        (
            "QEMU hangs from its start",
            Qemu(Some(HANGING)),
            Error(BootTimeout, "first word did not come"),
        ),
        (
            "the agent falls silent",
            Guest("silence"),
            Error(Silence, "neither heartbeat nor console line"),
        ),
        (
            "QEMU is stopped (SIGSTOP)",
            SignalTo(Part::Qemu, SIGSTOP),
            Error(Silence, "neither heartbeat"),
        ),
        // The kernel.
        ("RCU stall", Guest("rcu_stall"), Error(RcuStall, "detected stalls on CPUs/tasks")),
        (
            "the kernel panics at boot",
            KernelArguments("rdinit=/none init=/none"),
            Error(Panic, "Unable to mount root fs"),
        ),
        ("the kernel panics in mid-test", Guest("panic"), Error(Panic, "sysrq triggered crash")),
        ("the kernel oopses and goes on", Guest("oops"), Error(Oops, "NULL pointer dereference")),
        ("the kernel warns and goes on", Guest("warning"), Error(Warning, "fs/open.c")),
        ("hung task", Guest("hung_task"), Error(HungTask, "blocked for more than 1 seconds")),
        (
            "the guest is out of memory",
            Guest("out_of_memory"),
            Error(Panic, "System is deadlocked on memory"),
        ),
        // The agent and its link.
        ("the agent ends", Guest("exit_agent"), Error(Panic, "Attempted to kill init")),
        ("frames: bytes that are none", Guest("garbage_frame"), Error(Protocol, "more than the")),
        ("frames: a bit is flipped", Guest("corrupt_frame"), Error(Protocol, "checksum is wrong")),
        ("frames: one is cut", Guest("cut_frame"), Error(Protocol, "checksum is wrong")),
        ("frames: a flood", Guest("flood"), Error(Protocol, "expected the answer to request")),
        // QEMU.
        (
            "QEMU is killed (SIGKILL)",
            SignalTo(Part::Qemu, SIGKILL),
            Error(QemuExit, "signal: 9 (SIGKILL)"),
        ),
        ("QEMU is missing", Qemu(None), Refused(2, "No such file or directory")),
        ("QEMU is too old", Qemu(Some(OLD)), Refused(2, "it is QEMU 7.0.0, expected at least")),
        ("QEMU is built without plugins", Qemu(Some(PLAIN)), Refused(2, "without TCG plugins")),
        // Snapshots and the disk.
        ("a snapshot is truncated", Snapshot(truncate), Overcome("a snapshot was of no use")),
        (
            "a snapshot has a bit flipped",
            Snapshot(flip_a_bit),
            Overcome("a snapshot was of no use"),
        ),
        ("the cache is read-only", Cache(READ_ONLY), Refused(3, "failed to write to the cache")),
        ("the cache's disk is full", Cache(FULL), Refused(3, "no room is left there")),
        ("the runs' disk fills up", FullRuns, Error(Trace, "No space left on device")),
        // The harness.
        ("two runs at once", Twice, Overcome("both")),
        ("Ctrl-C (SIGINT)", SignalToHarness(SIGINT), Stopped(Some(130))),
        ("SIGTERM", SignalToHarness(SIGTERM), Stopped(Some(130))),
        ("the harness is killed (SIGKILL); the next run cleans up", Killed, Stopped(None)),
        ("SIGHUP", SignalToHarness(SIGHUP), Stopped(Some(130))),
        ("the harness is stopped for 45 seconds (SIGSTOP)", Paused(45), Overcome("2 pass")),
        // The environment of the command. `$DIR` is an empty folder.
        ("standard error is full", Shell("exec \"$@\" 2>/dev/full"), Overcome("2 pass")),
        ("standard descriptors are closed", Shell("exec \"$@\" <&- >&- 2>&-"), Overcome("")),
        (
            "an unknown locale",
            Shell("export LC_ALL=tr_TR.UTF-8 LANGUAGE=tr\nexec \"$@\""),
            Overcome("2 pass"),
        ),
        ("umask 077", Shell("umask 077\nexec \"$@\""), Overcome("2 pass")),
        ("64 descriptors", Shell("ulimit -n 64\nexec \"$@\""), Overcome("2 pass")),
        ("files may not grow", Shell(NO_FILE_GROWS), Refused(2, "ulimit -f")),
        ("TMPDIR is missing", Shell("export TMPDIR=/none\nexec \"$@\""), Overcome("2 pass")),
        (
            "TMPDIR is read-only",
            Mounts("mount -t tmpfs -o ro none \"$DIR\"\nexport TMPDIR=\"$DIR\""),
            Overcome("2 pass"),
        ),
        (
            "TMPDIR is full",
            Mounts(
                "mount -t tmpfs -o nr_blocks=1 none \"$DIR\"\necho > \"$DIR/full\"\nexport \
                 TMPDIR=\"$DIR\"",
            ),
            Overcome("2 pass"),
        ),
        (
            "the cache's path is not UTF-8",
            Shell("export TRAMPLAB_CACHE=\"$(printf '/tmp/\\377')\"\nexec \"$@\""),
            Refused(2, "expected a path in UTF-8"),
        ),
        (
            "the cache's path has a newline",
            Shell("export TRAMPLAB_CACHE='/tmp/a\nb'\nexec \"$@\""),
            Refused(2, "expected a path in UTF-8"),
        ),
        (
            "the path of the runs is not UTF-8",
            Shell(ODD_RUNS),
            Refused(2, "expected a path in UTF-8"),
        ),
        // KVM.
        ("KVM is broken, and asked for", Kvm("kvm"), Refused(3, "no guest runs under KVM here")),
        ("KVM is broken, and not asked for", Kvm("auto"), Overcome("using TCG")),
    ];
    // Other processes (vng, its shells, virtiofsd), and another init in the guest.
    let by_virtme_ng = [
        ("virtme-ng: the kernel panics", Guest("panic"), Error(Panic, "sysrq triggered crash")),
        // The other init powers off when its program ends, and virtme-ng ends.
        ("virtme-ng: the agent ends", Guest("exit_agent"), Error(QemuExit, "virtme-ng ended")),
        (
            "virtme-ng: QEMU is killed (SIGKILL)",
            SignalTo(Part::Qemu, SIGKILL),
            // virtme-ng sees QEMU's end and exits without a signal.
            Error(QemuExit, "virtme-ng ended with exit status"),
        ),
        (
            "virtme-ng: it is killed itself",
            SignalTo(Part::Vng, SIGKILL),
            Error(QemuExit, "SIGKILL"),
        ),
        ("virtme-ng: Ctrl-C (SIGINT)", SignalToHarness(SIGINT), Stopped(Some(130))),
        ("virtme-ng: the harness is killed", Killed, Stopped(None)),
        ("virtme-ng: it is too new", Vng(NEW), Refused(2, "expected at least 1.41 and below 2.0")),
    ];
    let of = |vm| move |(fault, cause, ends)| Row { fault, vm, cause, ends };
    let by_qemu = by_qemu.into_iter().map(of(Backend::Qemu));
    by_qemu.chain(by_virtme_ng.into_iter().map(of(Backend::VirtmeNg))).collect()
}

/// Answers queries, and hangs instead of starting a guest.
const HANGING: &str = "case \"$*\" in *-kernel*) exec sleep 1000;; esac\nexec \"$REAL\" \"$@\"";
const OLD: &str = "case \"$1\" in --version) echo 'QEMU emulator version 7.0.0';; *) exec \
                   \"$REAL\" \"$@\";; esac";
const NEW: &str = "echo 'virtme-ng 2.0'";
/// Behaves like a QEMU configured with --disable-plugins: its help does not mention plugins, and
/// `-plugin` fails with `-plugin: invalid option`.
const PLAIN: &str = "case \"$*\" in -help) \"$REAL\" -help | grep -v -e -plugin;; \
                     *-plugin*) echo 'qemu-system-x86_64: -plugin: invalid option' >&2; exit 1;; \
                     *) exec \"$REAL\" \"$@\";; esac";

/// Replaces the folder of the runs on the command line.
const ODD_RUNS: &str = "for word; do\n  shift\n  [ \"$word\" = \"$RUNS\" ] && word=$(printf \
                        '/tmp/\\377')\n  set -- \"$@\" \"$word\"\ndone\nexec \"$@\"";
/// Limits only the harness, not the process that copies its output; keeps its exit code.
const NO_FILE_GROWS: &str = "exec 3>&1\ncode=$({ { (ulimit -f 0; exec \"$@\" 2>&1 3>&-); echo $? \
                             >&4; } | cat >&3; } 4>&1)\nexit $code";
/// `$CACHE` is an empty folder.
const READ_ONLY: &str = "mount --bind \"$CACHE\" \"$CACHE\"\nmount -o remount,bind,ro \"$CACHE\"";
const FULL: &str =
    "mount -t tmpfs -o size=64k none \"$CACHE\"\nhead -c 60k /dev/zero > \"$CACHE/all-there-is\"";
