// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest behaviour that a real kernel cannot show on demand. A shell in QEMU's place speaks over
//! the console and the link that QEMU would inherit. It replays real guests' output, or that of a
//! broken one.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tramplab_host::{QemuProgram, given::Given};
use tramplab_model::run::{Arch, Clock, ErrorKind};
use tramplab_protocol::{
    frame,
    message::{self, Command, Event, Facts, Response},
};
use tramplab_vm::{Deadlines, Snapshots, Spec, Vm, VmError};

/// Finds the sockets in QEMU's arguments and defines the guest's commands.
const GUEST: &str = r#"
cd "$0"
for argument; do
    case $argument in
        file,id=console,path=/dev/fd/*) console=${argument##*/} ;;
        socket,id=agent,fd=*) agent=${argument##*=} ;;
    esac
done
print() { cat "$@" >&"$console"; }
say() { cat "$@" >&"$agent"; }
hear() {
    length=$(head -c 4 <&"$agent" | od -An -tu4)
    head -c $((length + 4)) <&"$agent" > /dev/null
}
# Shares a CPU with a rival that has five times its weight.
starve() {
    cpus=$(awk '/^Cpus_allowed_list/ { split($2, cpus, /[-,]/); print cpus[1] }' /proc/self/status)
    taskset -cp "$cpus" $$ > /dev/null
    while :; do :; done &
    renice -n 7 $$ > /dev/null
}
# Works for a time, in hundredths of a second that the CPU gave.
work() {
    local stat begun
    read -ra stat < /proc/$$/stat
    begun=$((stat[13] + stat[14]))
    while ((stat[13] + stat[14] - begun < $1)); do read -ra stat < /proc/$$/stat; done
}
"#;

const LIMIT: Duration = Duration::from_secs(120);
const BEATS_AT_ONCE: usize = 1000;

fn spec(dir: &Path, guest: &str) -> Spec {
    let ready = |version| Event::Ready {
        version,
        release: "replayed".to_owned(),
        uptime_ns: 1_000_000_000,
    };
    let done = |id| Event::Reply { id, result: Ok(Response::Done) };
    let beat = frame::encode(&Event::Heartbeat { uptime_ns: 1 }).unwrap();
    let lines = "a console's line\n".repeat(1 << 16);
    for (name, bytes) in [
        ("ready", frame::encode(&ready(message::VERSION)).unwrap()),
        ("stranger", frame::encode(&ready(message::VERSION + 1)).unwrap()),
        (
            "facts",
            frame::encode(&Event::Reply { id: 1, result: Ok(Response::Facts(Box::new(facts()))) })
                .unwrap(),
        ),
        ("done-1", frame::encode(&done(1)).unwrap()),
        ("done-2", frame::encode(&done(2)).unwrap()),
        ("beats", beat.repeat(BEATS_AT_ONCE)),
        ("half", beat[..beat.len() / 2].to_vec()),
        ("endless", vec![0xff; 64]),
        ("lines", lines.into_bytes()),
        ("oops", include_bytes!("../../vm/src/testdata/6.12-null.log").to_vec()),
        ("panic", include_bytes!("../../vm/src/testdata/6.12-panic.log").to_vec()),
        ("lockup", b"watchdog: BUG: soft lockup - CPU#0 stuck for 24s! [init:1]\n".to_vec()),
    ] {
        fs::write(dir.join(name), bytes).unwrap();
    }
    let qemu = QemuProgram {
        program: "bash".into(),
        arguments: vec!["-c".into(), format!("{GUEST}\n{guest}").into(), dir.into()],
        environment: vec![],
    };
    Spec {
        memory_mib: 1,
        deadlines: Deadlines { boot: LIMIT, silence: Duration::from_secs(2) },
        ..Spec::new(qemu, Arch::X86_64, "none", dir)
    }
}

fn wait_for(file: &Path) {
    assert!(Given::to_us().wait(LIMIT, || file.exists()), "{} did not appear", file.display());
}

fn facts() -> Facts {
    let text = || "replayed".to_owned();
    Facts {
        release: text(),
        version: text(),
        machine: text(),
        cpus: 1,
        memory_kib: 1,
        clocksource: "tsc".to_owned(),
        btf_bytes: 1,
        ftrace_functions: 1,
        btf_functions: 1,
        mitigations: Vec::new(),
        cmdline: text(),
        not_taken: Vec::new(),
        missing: Vec::new(),
        conditions: Vec::new(),
    }
}

fn ask(vm: &mut Vm) -> Result<(), VmError> {
    vm.request(Command::Facts, LIMIT).map(|answer| assert_eq!(answer, Ok(Response::Done)))
}

/// Boots, asks once and powers off.
fn whole(spec: Spec) -> Result<(), VmError> {
    let mut vm = Vm::boot(&spec)?;
    ask(&mut vm)?;
    vm.power_off(LIMIT).map(drop)
}

fn asked(spec: Spec) -> Result<(), VmError> {
    ask(&mut Vm::boot(&spec)?)
}

fn kept(mut spec: Spec) -> Result<(), VmError> {
    spec.snapshots = Some(Snapshots { cache: spec.dir.join("cache"), contents: "this".to_owned() });
    Vm::start(&spec).map(drop)
}

/// Sends a request larger than a socket's buffer.
fn asked_much(spec: Spec) -> Result<(), VmError> {
    let addresses = vec![u64::MAX; 1 << 18];
    Vm::boot(&spec)?.request(Command::Resolve { addresses }, LIMIT).map(drop)
}

/// Like a busy host: asks only after the guest has said everything.
fn asked_late(spec: Spec) -> Result<(), VmError> {
    let said = spec.dir.join("said");
    let mut vm = Vm::boot(&spec)?;
    wait_for(&said);
    ask(&mut vm)
}

struct Case {
    name: &'static str,
    guest: &'static str,
    host: fn(Spec) -> Result<(), VmError>,
    /// The error's kind, and words of its message.
    ends: Result<(), (ErrorKind, &'static str)>,
}

const CASES: &[Case] = &[
    Case {
        name: "a healthy guest",
        guest: "print lines; say ready; hear; say beats done-1; hear; say done-2",
        host: whole,
        ends: Ok(()),
    },
    Case {
        name: "an oops between the last answer and the end voids what was answered",
        guest: "say ready; hear; say done-1; hear; say done-2; print oops",
        host: whole,
        ends: Err((
            ErrorKind::Oops,
            "BUG: kernel NULL pointer dereference, address: 0000000000000000",
        )),
    },
    Case {
        name: "QEMU fails at the end",
        guest: "say ready; hear; say done-1; hear; say done-2; echo 'out of luck' >&2; exit 3",
        host: whole,
        ends: Err((ErrorKind::QemuExit, "exit status: 3: out of luck")),
    },
    Case {
        name: "an oops while the guest prepares its snapshot is not retried",
        guest: "say ready; hear; say facts; hear; print oops",
        host: kept,
        ends: Err((
            ErrorKind::Oops,
            "BUG: kernel NULL pointer dereference, address: 0000000000000000",
        )),
    },
    Case {
        name: "an oops while the snapshot is taken is not retried",
        guest: "say ready; hear; say facts; hear; say done-2; sleep 0.5; print oops",
        host: kept,
        ends: Err((
            ErrorKind::Oops,
            "BUG: kernel NULL pointer dereference, address: 0000000000000000",
        )),
    },
    Case {
        name: "a guest whose clock failed at boot goes on without a snapshot",
        guest: "echo '[    0.9] tsc: Marking TSC unstable due to clocksource watchdog' >&$console; \
                say ready; hear; say facts; hear; say done-2; exec sleep 1000",
        host: |spec| {
            let dir = spec.dir.clone();
            kept(spec)?;
            let log = fs::read_to_string(dir.join("snapshot.log")).unwrap();
            assert!(
                log.contains("no snapshot was kept: its kernel said: tsc: Marking TSC unstable"),
                "{log}"
            );
            Ok(())
        },
        ends: Ok(()),
    },
    Case {
        name: "a guest that does not prepare its snapshot boots without one",
        guest: "say ready; hear; say facts; exec sleep 1000",
        host: kept,
        ends: Ok(()),
    },
    Case {
        name: "a guest that does not power off",
        guest: "say ready; hear; say done-1; hear; say done-2; exec sleep 1000",
        host: |spec| {
            let mut vm = Vm::boot(&spec)?;
            ask(&mut vm)?;
            vm.power_off(Duration::from_secs(1)).map(drop)
        },
        ends: Err((ErrorKind::Timeout, "did not power off")),
    },
    Case {
        name: "a panic while the agent is silent is a panic",
        guest: "say ready; hear; sleep 0.5; print panic; exec sleep 1000",
        host: asked,
        ends: Err((ErrorKind::Panic, "sysrq triggered crash")),
    },
    Case {
        name: "a panic that reboots is a panic, not an exit of QEMU",
        guest: "say ready; hear; print panic",
        host: asked,
        ends: Err((ErrorKind::Panic, "sysrq triggered crash")),
    },
    Case {
        name: "a panic before the agent's first word",
        guest: "print panic",
        host: asked,
        ends: Err((ErrorKind::Panic, "sysrq triggered crash")),
    },
    Case {
        name: "unread heartbeats block nothing",
        guest: "say ready; for i in {1..20}; do say beats; done; touch said; \
                hear; say done-1; exec sleep 1000",
        host: asked_late,
        ends: Ok(()),
    },
    Case {
        name: "an unread oops is kept, and the console is read on",
        guest: "say ready beats; print oops; print lines lines lines; touch said; exec sleep 1000",
        host: asked_late,
        ends: Err((ErrorKind::Oops, "NULL pointer dereference")),
    },
    Case {
        name: "heartbeats alone are no answer",
        guest: "say ready; while sleep 0.1; do say beats; done",
        host: |spec| Vm::boot(&spec)?.request(Command::Facts, Duration::from_secs(1)).map(drop),
        ends: Err((ErrorKind::Timeout, "did not come within")),
    },
    Case {
        name: "a busy console is no agent that answers",
        guest: "while sleep 0.1; do echo line >&$console; done",
        host: |mut spec| {
            spec.deadlines.boot = Duration::from_secs(1);
            asked(spec)
        },
        ends: Err((ErrorKind::BootTimeout, "first word")),
    },
    Case {
        name: "endless answers without a request",
        guest: "say ready; while say done-2; do :; done",
        host: asked,
        ends: Err((ErrorKind::Protocol, "expected the answer to request 1")),
    },
    Case {
        name: "an agent of another build",
        guest: "say stranger; exec sleep 1000",
        host: asked,
        ends: Err((ErrorKind::Protocol, "another build")),
    },
    Case {
        name: "a first message other than ready",
        guest: "say done-1; exec sleep 1000",
        host: asked,
        ends: Err((ErrorKind::Protocol, "began with")),
    },
    Case {
        name: "a frame without end",
        guest: "say ready; hear; say endless; exec sleep 1000",
        host: asked,
        ends: Err((ErrorKind::Protocol, "an invalid message")),
    },
    Case {
        name: "half a frame, then QEMU aborts",
        guest: "say ready; hear; say half; echo 'assertion failed' >&2; kill -ABRT $$",
        host: asked,
        ends: Err((ErrorKind::QemuExit, "signal: 6 (SIGABRT)")),
    },
    Case {
        name: "the link breaks, QEMU lives",
        guest: "say ready; hear; eval \"exec $agent>&-\"; exec sleep 1000",
        host: asked,
        ends: Err((ErrorKind::Protocol, "link ended")),
    },
    Case {
        name: "a guest that does not read",
        guest: "say ready; exec sleep 1000",
        host: asked_much,
        ends: Err((ErrorKind::Silence, "took no request")),
    },
    Case {
        name: "a guest that waits for nothing",
        guest: "say ready; hear; exec sleep 1000",
        host: asked,
        ends: Err((ErrorKind::Silence, "neither heartbeat nor console line for")),
    },
    Case {
        name: "a guest that spins",
        guest: "say ready; hear; while :; do :; done",
        host: asked,
        ends: Err((ErrorKind::Silence, "neither heartbeat nor console line for")),
    },
    Case {
        name: "a starved guest needs longer than its deadline",
        guest: "say ready; hear; starve; work 80; say done-1; exec sleep 1000",
        host: |mut spec| {
            spec.deadlines.silence = Duration::from_secs(3);
            let mut vm = Vm::boot(&spec)?;
            let began = Instant::now();
            ask(&mut vm)?;
            assert!(began.elapsed() > spec.deadlines.silence, "it was not starved");
            assert!(vm.starved() > Duration::from_secs(1), "{:?}", vm.starved());
            Ok(())
        },
        ends: Ok(()),
    },
    Case {
        name: "a lockup under the exact clock, which a starved host stops",
        guest: "say ready; hear; starve; work 20; print lockup; exec sleep 1000",
        host: |spec| asked(Spec { clock: Clock::Exact, ..spec }),
        ends: Err((ErrorKind::Lockup, "watchdog: BUG: soft lockup")),
    },
    Case {
        name: "a lockup of a starved guest proves nothing",
        guest: "say ready; hear; starve; work 20; print lockup; exec sleep 1000",
        host: asked,
        ends: Err((ErrorKind::Starved, "s: watchdog: BUG: soft lockup")),
    },
    Case {
        name: "a panic of a starved guest is a panic",
        guest: "say ready; hear; starve; work 20; print panic; exec sleep 1000",
        host: asked,
        ends: Err((ErrorKind::Panic, "sysrq triggered crash")),
    },
    Case {
        name: "QEMU refuses its command line",
        guest: "echo 'qemu: -frobnicate: invalid option' >&2; exit 1",
        host: asked,
        ends: Err((ErrorKind::QemuStart, "-frobnicate: invalid option")),
    },
    Case {
        name: "a kernel that only resets the machine",
        guest: "exit 0",
        host: asked,
        ends: Err((ErrorKind::QemuExit, "exit status: 0")),
    },
    Case {
        name: "noise on the console",
        guest: "head -c 3000000 /dev/urandom >&$console; \
                say ready; hear; say done-1; hear; say done-2",
        host: whole,
        ends: Ok(()),
    },
    Case {
        name: "no folder to write to",
        guest: "exit 0",
        host: |mut spec| {
            spec.dir.push("missing");
            asked(spec)
        },
        ends: Err((ErrorKind::Harness, "console.log")),
    },
];

#[test]
fn every_guest_gets_its_verdict() {
    let wrong: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> =
            CASES.iter().map(|case| (case.name, scope.spawn(|| wrong(case)))).collect();
        let ended = running.into_iter().map(|(name, case)| (name, case.join()));
        let wrong = ended.filter_map(|(name, end)| match end {
            Ok(why) => Some(format!("{name}: {}", why?)),
            Err(_) => Some(format!("{name}: it panicked")),
        });
        wrong.collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn wrong(case: &Case) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    match ((case.host)(spec(dir.path(), case.guest)), case.ends) {
        (Ok(()), Ok(())) => None,
        (Err(error), Err((kind, words))) if error.kind == kind && error.message.contains(words) => {
            None
        }
        (Err(error), _) => Some(format!("{error}; console: {:?}", error.console_tail.last())),
        (Ok(()), _) => Some("no error".to_owned()),
    }
}

/// The log is limited; the tail goes on to the last line.
#[test]
fn limits_the_log_of_an_endless_console() {
    let dir = tempfile::tempdir().unwrap();
    let guest = "say ready; for i in {1..20}; do print lines; done; \
                 echo last >&$console; touch said; exec sleep 1000";
    let vm = Vm::boot(&spec(dir.path(), guest)).unwrap();
    wait_for(&dir.path().join("said"));
    let read = || vm.console_tail().last().is_some_and(|line| line == "last");
    assert!(Given::to_us().wait(LIMIT, read), "the console was not read to its end");
    let written = fs::metadata(dir.path().join("console.log")).unwrap().len();
    assert!((16 << 20..17 << 20).contains(&written), "{written}");
}

/// A wrapper script without `exec` starts QEMU as its child.
#[test]
fn kills_the_children_of_qemu() {
    let dir = tempfile::tempdir().unwrap();
    let vm =
        Vm::boot(&spec(dir.path(), "say ready; sleep 1000 & echo $! > new; mv new said; wait"))
            .unwrap();
    wait_for(&dir.path().join("said"));
    let wrapped = fs::read_to_string(dir.path().join("said")).unwrap();
    let (wrapper, wrapped) = (vm.process_id(), format!("/proc/{}", wrapped.trim()));
    drop(vm);
    assert!(!Path::new(&format!("/proc/{wrapper}")).exists(), "it was not reaped");
    // It is killed with its group; its new parent may take a moment to reap it.
    let gone = || {
        let stat = fs::read_to_string(format!("{wrapped}/stat"));
        stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
    };
    assert!(Given::to_us().wait(LIMIT, gone), "{wrapped} is still there");
}
