// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask shell` on real guests: a command's output and exit code, a guest that dies, gdb's
//! server, and the terminal.

mod command;

use command::tramplab;
use nix::{
    pty::openpty,
    sys::termios::{self, InputFlags, LocalFlags, OutputFlags},
};
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};
use tempfile::TempDir;

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
    // The guest is stopped before its first instruction.
    let stopped = ask("$?#3f");
    assert!(stopped.contains("$T05"), "{stopped}");
    assert!(child.try_wait().unwrap().is_none());
    // The guest runs once gdb detaches.
    ask("$D#44");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(texts(&output).0.contains("nokaslr"), "{output:?}");
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
            match shown.recv_timeout(Duration::from_secs(180)) {
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
