// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask shell` on real guests: a command's output and exit code, a guest that dies, gdb's
//! server, the terminal, and branch records.

use crate::command::{tramplab, write_script};
use nix::{
    pty::openpty,
    sys::termios::{self, InputFlags, LocalFlags, OutputFlags},
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};
use tempfile::TempDir;
use tramplab_analysis::branch::{Filter, Model};
use tramplab_model::run::{Arch, NamedRecord, Place};
use tramplab_protocol::{
    message,
    trace::{self, Trace},
};

/// Temporary files go to a folder of their own, so that leftovers are seen.
fn shell(temporary: &TempDir) -> Command {
    let kernel = std::env::var_os("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let mut command = tramplab();
    command
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .args(["shell", "--accel", "tcg", "--kernel"])
        .arg(kernel);
    command
}

fn folder() -> TempDir {
    // Short enough for the path of a socket.
    tempfile::tempdir_in("/tmp").unwrap()
}

fn left_in(temporary: &TempDir) -> Vec<PathBuf> {
    fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn passes_on_output_and_exit_code_on_both_backends() {
    for vm in ["qemu", "virtme-ng"] {
        let temporary = folder();
        let line = "uname -n; echo apart >&2; cat; exit 7";
        let output = shell(&temporary).args(["--vm", vm, "--", line]).output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(7), "{vm}: {out}{err}");
        let name = if vm == "qemu" { "tramplab\n" } else { "virtme-ng\n" };
        assert_eq!(out, name, "{vm}: {err}");
        assert!(err.ends_with("apart\n") && !err.contains("[    0."), "{vm}: {err}");
        assert_eq!(left_in(&temporary), Vec::<PathBuf>::new(), "{vm}");
    }
}

/// The guest's command would block on a full pipe, or go on unseen.
#[test]
fn ends_the_command_when_its_output_cannot_be_written() {
    let temporary = folder();
    let mut child = shell(&temporary)
        .args(["--timeout", "120", "--", "echo a; while sleep 1; do echo b; done"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("a\n", Some(141)));

    // The same for standard error.
    let mut child = shell(&temporary)
        .args(["--timeout", "120", "--", "while sleep 1; do echo b >&2; done"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "b"));
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(141));

    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = shell(&temporary).args(["--", "uname -n"]).stdout(full).output().unwrap();
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("failed to write the command's output"), "{err}");
    assert!(!err.contains("[    0."), "the console is not at fault: {err}");
    assert_eq!(left_in(&temporary), [""; 0].map(PathBuf::from));
}

#[test]
fn dead_or_slow_guest_exits_3() {
    for (line, timeout, said) in [
        ("echo c > /proc/sysrq-trigger", "600", "sysrq triggered crash"),
        ("sleep 1000", "20", "the guest did not end within 20 s"),
    ] {
        let temporary = folder();
        let output = shell(&temporary).args(["--timeout", timeout, "--", line]).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(3), "{err}");
        // The error shows the kernel's last lines.
        assert!(err.contains(said) && err.contains("Run /init as init process"), "{err}");
        assert_eq!(left_in(&temporary), Vec::<PathBuf>::new(), "{line}");
    }
}

#[test]
fn guest_waits_for_gdb() {
    let temporary = folder();
    let mut child = shell(&temporary)
        .args(["--gdb", "--", "cat /proc/cmdline"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .find(|line| line.starts_with("gdb vmlinux -ex 'target remote "))
        .unwrap();
    let socket = line.rsplit_once(' ').unwrap().1.trim_end_matches('\'').to_owned();
    let mut gdb = (0..100)
        .find_map(|_| {
            thread::sleep(Duration::from_millis(100));
            UnixStream::connect(&socket).ok()
        })
        .unwrap();
    let mut ask = |packet: &str| {
        gdb.write_all(format!("+{packet}").as_bytes()).unwrap();
        // The acknowledgement may come alone; an answer ends with its checksum.
        let (mut answer, mut part) = (String::new(), [0; 512]);
        while answer.rsplit_once('#').is_none_or(|(_, sum)| sum.len() != 2) {
            let length = gdb.read(&mut part).unwrap();
            assert_ne!(length, 0, "{answer}");
            answer += &String::from_utf8_lossy(&part[..length]);
        }
        answer
    };
    // gdb's connection stops any guest. This one is before its first instruction: `rip`, behind 16
    // registers of eight bytes, is that of a reset.
    let stopped = ask("$?#3f");
    assert!(stopped.contains("$T05"), "{stopped}");
    let registers = ask("$g#67");
    let values = registers.split_once('$').unwrap().1;
    assert_eq!(&values[256..272], "f0ff000000000000", "{registers}");
    assert!(child.try_wait().unwrap().is_none());
    // The guest runs once gdb detaches.
    ask("$D#44");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(texts(&output).0.contains("nokaslr"), "{output:?}");
}

#[test]
fn delivers_the_traces_records_under_the_filter_of_the_programs_event() {
    delivers_the_traces_records(&delivering());
}

/// QEMU then throws its translated code away all the time, also between snapshots.
#[test]
#[ignore = "full: takes minutes"]
fn delivers_the_traces_records_with_little_room_for_translated_code() {
    let folder = tempfile::tempdir().unwrap();
    delivers_the_traces_records(little_room(folder.path()).as_os_str());
}

/// Makes a QEMU whose memory for translated code is always full.
fn little_room(folder: &Path) -> PathBuf {
    let qemu = folder.join("qemu-system-x86_64");
    let text = format!(
        "#!/bin/sh\n\
         for word; do shift; set -- \"$@\" \"${{word%,accel=tcg}}\"; done\n\
         case \"$*\" in *-kernel*) set -- \"$@\" -accel tcg,tb-size=1;; esac\n\
         exec '{}' \"$@\"\n",
        Path::new(&delivering()).display()
    );
    write_script(&qemu, &text);
    qemu
}

/// Compares the records of another program than tramplab's with the plugin's trace.
fn delivers_the_traces_records(qemu: &OsStr) {
    let temporary = folder();
    // The guest sees the host's files, but has a /tmp of its own.
    let programs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = takes_snapshots(programs.path());
    let line = format!("{}; exit 7", program.display());
    let (traces, kept) = (temporary.path().to_owned(), programs.path().join("trace"));
    let ended = Arc::new(AtomicBool::new(false));
    let keeper = {
        let (ended, kept) = (Arc::clone(&ended), kept.clone());
        // The trace goes with the guest.
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                for folder in fs::read_dir(&traces).unwrap().flatten() {
                    let _ = fs::copy(trace::file_name(&folder.path(), 0), &kept);
                }
                thread::sleep(Duration::from_millis(20));
            }
        })
    };
    let output = shell(&temporary)
        .env("TRAMPLAB_QEMU_X86_64", qemu)
        .args(["--deliver-records", "--", &line])
        .output()
        .unwrap();
    ended.store(true, Ordering::Relaxed);
    keeper.join().unwrap();
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(7), "{out}{err}");
    assert_eq!(left_in(&temporary), Vec::<PathBuf>::new());

    let trace = Trace::decode(&fs::read(kept).unwrap()).unwrap();
    let mut newest_first: Vec<NamedRecord> = trace.vcpus[0].records.iter().map(unnamed).collect();
    newest_first.reverse();
    let mut lines = out.lines();
    let mut events = Vec::new();
    let mut snapshots = Vec::new();
    while let Some(line) = lines.next() {
        let Some(snapshot) = line.strip_prefix("snapshot ") else {
            events.push(line);
            continue;
        };
        let (filter, bytes) = snapshot.split_once(' ').unwrap();
        // 32 records of 24 bytes.
        assert_eq!(bytes, "768", "{filter}: {out}");
        let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let records: Vec<(u64, u64)> = lines
            .by_ref()
            .take(32)
            .map(|line| line.split_once(' ').map(|(from, to)| (hex(from), hex(to))).unwrap())
            .filter(|&record| record != (0, 0))
            .collect();
        let filter: Filter = filter.parse().unwrap();
        let model = Model::choose(None, Arch::X86_64);
        let is_from = |position: &usize| {
            let shown = model.snapshot(filter, Some(32), &newest_first[*position..]);
            shown.map(|seen| (seen.record.from.address, seen.record.to.address)).eq(records.clone())
        };
        assert!(records.len() > 16, "{filter}: {out}");
        let from: Vec<usize> = (0..newest_first.len()).filter(is_from).collect();
        assert!(!from.is_empty(), "{filter}: not among {} records: {out}", newest_first.len());
        snapshots.push((filter, from[0]));
    }
    let missing = nix::errno::Errno::ENOENT as i32;
    let refused = ["sampling", "call_stack", "user"].map(|name| format!("event {name} {missing}"));
    let opened = ["any_return", "cond|call"].map(|name| format!("event {name} 0"));
    assert_eq!(events, [&refused[..], &opened].concat());
    assert_eq!(snapshots.len(), 4);
    assert!(snapshots.is_sorted_by(|(_, earlier), (_, later)| earlier > later), "{snapshots:?}");
}

/// The kernel's own driver serves a program that knows nothing of tramplab, event by event.
#[test]
fn emulated_records_reach_a_program_by_the_kernels_driver() {
    emulated_records_reach_a_program(&delivering(), "1");
}

/// The blocks of discarded code go while the ring needs them. With more than 16 CPUs QEMU moves
/// what the plugin keeps for each.
#[test]
#[ignore = "full: takes minutes"]
fn emulated_records_reach_a_program_with_little_room_and_with_many_cpus() {
    let folder = tempfile::tempdir().unwrap();
    emulated_records_reach_a_program(little_room(folder.path()).as_os_str(), "1");
    emulated_records_reach_a_program(&delivering(), "18");
}

fn emulated_records_reach_a_program(qemu: &OsStr, cpus: &str) {
    let temporary = folder();
    let programs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = takes_snapshots(programs.path());
    let driver = "grep -w intel_pmu_snapshot_branch_stack /proc/kallsyms";
    let line =
        format!("{} open; {driver}; dmesg | grep -c 'Oops\\|BUG:'; exit 7", program.display());
    let output = shell(&temporary)
        .env("TRAMPLAB_QEMU_X86_64", qemu)
        .args(["--cpus", cpus, "--model", "skylake", "--branches", "emulated"])
        .args(["--vm", "virtme-ng", "--", &line])
        .output()
        .unwrap();
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(7), "{out}{err}");
    assert!(err.contains("no cycles"), "{err}");
    assert_eq!(left_in(&temporary), Vec::<PathBuf>::new());

    let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
    let is_driver = |line: &&str| line.ends_with("intel_pmu_snapshot_branch_stack");
    let entry = out.lines().find(is_driver).unwrap().split(' ').next().map(hex).unwrap();
    let mut found = Vec::new();
    let mut lines = out.lines();
    while let Some(line) = lines.next() {
        let Some(snapshot) = line.strip_prefix("snapshot ") else { continue };
        let records: Vec<(u64, u64)> = lines
            .by_ref()
            .take(32)
            .map(|line| line.split_once(' ').map(|(from, to)| (hex(from), hex(to))).unwrap())
            .collect();
        // The driver's own five are newer than the transfer into it.
        let into = records.iter().position(|&(_, to)| to == entry);
        found.push((snapshot, into));
    }
    assert_eq!(found.len(), 15, "{out}");
    // After an interrupt at the driver's entry the transfer is too old.
    found.retain(|&(name, into)| into.is_some() || name == "any_return 768");
    found.dedup();
    // Three of the five are calls.
    let expected = [("any 768", Some(5)), ("any_return 768", None), ("cond|call 768", Some(3))];
    assert_eq!(found, expected, "{out}");
    assert!(out.lines().any(|line| line == "0"), "{out}");
}

fn takes_snapshots(folder: &Path) -> PathBuf {
    let program = folder.join("takes-snapshots");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/takes_snapshots.c");
    let made = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(source).status();
    assert!(made.unwrap().success());
    program
}

/// A program of the guest stops the plugin, and has it deliver to places of its own.
#[test]
#[ignore = "full: several guests"]
fn program_that_stops_the_delivery_is_told_of() {
    let programs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = programs.path().join("stops-the-plugin");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/stops_the_plugin.c");
    let made = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(source).status();
    assert!(made.unwrap().success());
    let ran = |places: &str| {
        let temporary = folder();
        let output = shell(&temporary)
            .env("TRAMPLAB_QEMU_X86_64", delivering())
            .args(["--deliver-records", "--", &format!("{} {places}", program.display())])
            .output()
            .unwrap();
        let (out, err) = texts(&output);
        assert!(out.contains("it lives"), "{out}{err}");
        assert_eq!(left_in(&temporary), Vec::<PathBuf>::new());
        (output.status.code(), err)
    };
    for places in ["", "0 0", "ffffffff81000000 ffffffff81000000", "7fffffffe000 dead"] {
        let (code, err) = ran(places);
        assert_eq!(code, Some(3), "{places}: {err}");
        assert!(err.contains("got no more records"), "{places}: {err}");
    }
}

fn delivering() -> std::ffi::OsString {
    std::env::var_os("TRAMPLAB_QEMU_DELIVERING_X86_64").expect("run `cargo xtask test`")
}

fn unnamed(record: &trace::Record) -> NamedRecord {
    let place = |address| Place { address, symbol: None, module: None, offset: 0 };
    let (from, to) = (place(record.from), place(record.to));
    NamedRecord { from, to, kind: record.kind, modelled: false }
}

/// The agent asks for a snapshot before it runs the command. Here no plugin answers.
#[test]
#[ignore = "full: several guests"]
fn runs_no_command_without_records() {
    let temporary = folder();
    let agent = std::env::var("TRAMPLAB_AGENT_X86_64").expect("run `cargo xtask test`");
    let filters = Model::choose(None, Arch::X86_64).deliverable().to_string();
    let words = [&*agent, message::DELIVER, &*filters, "echo", "it ran"];
    let output = shell(&temporary).args(["--vm", "virtme-ng", "--"]).args(words).output().unwrap();
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), &*out), (Some(2), ""), "{err}");
    assert!(err.contains("got no records (-2)") && err.contains("6.10"), "{err}");
    assert_eq!(left_in(&temporary), Vec::<PathBuf>::new());
}

#[test]
fn rejects_what_excludes_branch_records() {
    let folder = folder();
    let old = folder.path().join("qemu-system-x86_64");
    let qemu = std::env::var("TRAMPLAB_QEMU_X86_64").expect("run `cargo xtask test`");
    // Whatever version this machine has.
    let version = "[ \"$1\" = --version ] && exec echo 'QEMU emulator version 10.0.13'";
    write_script(&old, &format!("#!/bin/sh\n{version}\nexec {qemu} \"$@\"\n"));
    for (arguments, said) in [
        (&["--"][..], "needs a command"),
        (&["--vm", "qemu", "--", "true"], "remove --vm qemu"),
        (&["--accel", "kvm", "--", "true"], "remove --accel kvm"),
        (&["--gdb", "--", "true"], "cannot be used with"),
        (&["--", "true"], "from QEMU 10.1.0 on"),
    ] {
        rejected(&old, &[&["--deliver-records"], arguments].concat(), said);
    }
    for (arguments, said) in [
        (&["--", "true"][..], "--model zen4, golden-cove or skylake"),
        (&["--model", "zen3", "--", "true"], "its BRS samples branches"),
        (&["--model", "neoverse-n1", "--", "true"], "FEAT_BRBE"),
        (&["--model", "zen4", "--accel", "kvm", "--", "true"], "remove --accel kvm"),
        (&["--model", "zen4", "--cpu", "max", "--", "true"], "cannot be used with"),
        (&["--model", "zen4", "--deliver-records", "--", "true"], "cannot be used with"),
        (&["--model", "zen4", "--", "true"], "it is QEMU 10.0.13, expected at least 11.0.0"),
    ] {
        rejected(&old, &[&["--branches", "emulated"], arguments].concat(), said);
    }
    rejected(&old, &["--model", "neoverse-n1", "--", "true"], "add --arch arm64");
}

fn rejected(qemu: &Path, arguments: &[&str], said: &str) {
    let mut command = tramplab();
    command.args(["shell", "--kernel"]);
    command.arg(std::env::var_os("TRAMPLAB_TEST_KERNEL_X86_64").unwrap());
    let output = command.env("TRAMPLAB_QEMU_X86_64", qemu).args(arguments).output().unwrap();
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {err}");
    assert!(err.contains(said), "{arguments:?}: {err}");
}

/// The kernel would cut its command line, and boot something else.
#[test]
fn rejects_a_line_that_virtme_ng_cannot_pass() {
    let temporary = folder();
    let long = format!("true {}", "x".repeat(700));
    let output = shell(&temporary).args(["--vm", "virtme-ng", "--", &long]).output().unwrap();
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("put the command into a script"), "{err}");
}

#[test]
fn requires_a_terminal() {
    for arguments in [&["shell"][..], &["vm-test", "--keep"]] {
        let output = tramplab().args(arguments).stdin(Stdio::null()).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("terminal"), "{err}");
    }
}

/// Like a person at a terminal: wait for the prompt, type a command and `exit`.
#[test]
fn lends_the_terminal_to_the_guest_and_restores_it() {
    let temporary = folder();
    let pty = openpty(None, None).unwrap();
    let before = termios::tcgetattr(&pty.slave).unwrap();
    let terminal = || Stdio::from(pty.slave.try_clone().unwrap());
    let mut command = shell(&temporary);
    command.stdin(terminal()).stdout(terminal()).stderr(terminal());
    // SAFETY: only async-signal-safe calls: setsid, ioctl.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            if nix::libc::ioctl(0, nix::libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let mut screen = File::from(pty.master.try_clone().unwrap());
    let mut keyboard = File::from(pty.master);
    let (sender, shown) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = [0; 256];
        while let Ok(length @ 1..) = screen.read(&mut bytes) {
            if sender.send(String::from_utf8_lossy(&bytes[..length]).into_owned()).is_err() {
                return;
            }
        }
    });
    let mut all = String::new();
    let mut until = |words: &str| {
        while !all.contains(words) {
            match shown.recv_timeout(Duration::from_mins(10)) {
                Ok(text) => all += &text,
                Err(error) => panic!("{error} before {words:?}: {all}"),
            }
        }
    };
    until("# ");
    // While the guest has the terminal, it echoes what is typed.
    let during = termios::tcgetattr(&pty.slave).unwrap();
    assert!(
        !during.local_flags.intersects(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
    );
    // The echo of the typed line does not contain the answer.
    keyboard.write_all(b"echo $((40 + 2))$(uname -n); exit\n").unwrap();
    until("42tramplab");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{all}");
    let after = termios::tcgetattr(&pty.slave).unwrap();
    let flags = |t: &termios::Termios| -> (InputFlags, OutputFlags, LocalFlags) {
        (t.input_flags, t.output_flags, t.local_flags)
    };
    assert_eq!(flags(&after), flags(&before));
    assert_eq!(left_in(&temporary), Vec::<PathBuf>::new());
}
