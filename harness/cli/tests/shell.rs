// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask shell` on real guests: a command's output and code, a guest that dies, gdb's server, and the terminal.

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

/// With a folder of its own for temporary files: what is left behind is in it.
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
    // Short, so that it is taken for sockets.
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
fn a_command_has_its_output_and_its_code_on_either_backend() {
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

#[test]
fn a_guest_that_dies_or_takes_too_long_is_no_success() {
    for (line, timeout, said) in [
        ("echo c > /proc/sysrq-trigger", "600", "sysrq triggered crash"),
        ("sleep 1000", "20", "the guest did not end within 20 s"),
    ] {
        let temporary = folder();
        let output = shell(&temporary).args(["--timeout", timeout, "--", line]).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(3), "{err}");
        // With what the kernel said last.
        assert!(err.contains(said) && err.contains("Run /init as init process"), "{err}");
        assert_eq!(left_in(&temporary), Vec::<PathBuf>::new(), "{line}");
    }
}

#[test]
fn gdb_is_told_where_to_connect_and_the_guest_waits_for_it() {
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
    // Why it stands still; and where: at the first instruction of the processor, in the firmware.
    let stopped = ask("$?#3f");
    assert!(stopped.contains("$T05"), "{stopped}");
    assert!(child.try_wait().unwrap().is_none());
    // Detached, it runs.
    ask("$D#44");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(texts(&output).0.contains("nokaslr"), "{output:?}");
}

#[test]
fn without_a_terminal_nobody_is_waited_for() {
    for arguments in [&["shell"][..], &["vm-test", "--keep"]] {
        let output = tramplab().args(arguments).stdin(Stdio::null()).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("terminal"), "{err}");
    }
}

/// As a person would: at a terminal, with a prompt, a command that is typed, and `exit`.
#[test]
fn the_terminal_is_the_guests_and_then_as_it_was() {
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
    // While the guest has it, what is typed is the guest's to show.
    let during = termios::tcgetattr(&pty.slave).unwrap();
    assert!(!during.local_flags.intersects(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG));
    // The echo of what is typed does not have the answer in it.
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
