// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts QEMU with a tampered link to the agent. The test's own binary stands in for QEMU.

use crate::injection::{How, Injection, MOST, Side, Tampering, Wrong};
use nix::{
    sys::{
        prctl,
        signal::{self, Signal},
        socket::{AddressFamily, Shutdown, SockFlag, SockType, shutdown, socketpair},
    },
    unistd::{Pid, dup2_raw},
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, BorrowedFd, RawFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::Duration,
};

/// The first argument of the binary in QEMU's place. QEMU's path and arguments follow.
pub const IN_PLACE_OF_QEMU: &str = "in-place-of-qemu";
/// Names a folder with a file for each tampering, `0`, `1`… Each guest takes the next one.
pub const FOLDER: &str = "TRAMPLAB_FAULTS_WIRE";
/// The extension of a file for each tampering that took place.
const HAPPENED: &str = "happened";
const DELAY: Duration = Duration::from_secs(2);

pub fn write(folder: &Path, tamperings: impl Iterator<Item = Tampering>) -> io::Result<()> {
    for (number, tampering) in tamperings.enumerate() {
        serde_json::to_writer(File::create(folder.join(number.to_string()))?, &tampering)?;
    }
    Ok(())
}

/// Returns the injections whose tampering took place.
pub fn happened(folder: &Path, injections: &[Injection]) -> Vec<Injection> {
    let wires = injections.iter().filter(|injection| matches!(injection.wrong, Wrong::Wire(_)));
    let happened =
        |(number, _): &(usize, &Injection)| folder.join(format!("{number}.{HAPPENED}")).exists();
    wires.enumerate().filter(happened).map(|(_, injection)| *injection).collect()
}

/// Runs QEMU, and ends as QEMU does.
pub fn in_place_of_qemu(words: &[OsString]) -> ExitCode {
    let (qemu, arguments) = words.split_first().expect("QEMU's path");
    let mut command = Command::new(qemu);
    command.args(arguments);
    let taken = link(arguments).and_then(|link| Some((link, take()?)));
    let Some((link, (tampering, happened))) = taken else {
        panic!("failed to start QEMU: {}", command.exec());
    };
    // SAFETY: the cell gave this descriptor to QEMU, and so to this process.
    let cell = unsafe { BorrowedFd::borrow_raw(link) }.try_clone_to_owned();
    let cell = cell.expect("an open descriptor");
    let (ours, qemus) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
            .expect("a socket");
    // SAFETY: nothing else uses the number, which QEMU inherits.
    let qemus = unsafe { dup2_raw(&qemus, link) }.expect("a descriptor");
    // SAFETY: prctl is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)) };
    let mut child = command.spawn().expect("QEMU starts");
    drop(qemus);
    let (cell, agent) = (UnixStream::from(cell), UnixStream::from(ours));
    for to in [Side::Agent, Side::Cell] {
        let (cell, agent) = (cell.try_clone().unwrap(), agent.try_clone().unwrap());
        let (from, into) = match to {
            Side::Agent => (cell, agent),
            Side::Cell => (agent, cell),
        };
        let tampering = (tampering.to == to).then(|| (tampering, happened.clone()));
        thread::spawn(move || {
            let _ = relay(&from, &into, tampering);
            // The end of one stream is the other's.
            let _ = shutdown(into.as_raw_fd(), Shutdown::Write);
        });
    }
    let status = child.wait().expect("QEMU was started");
    if let Some(signal) = status.signal() {
        let _ = signal::kill(Pid::this(), Signal::try_from(signal).expect("a signal"));
    }
    ExitCode::from(status.code().unwrap_or(1) as u8)
}

/// The number of the descriptor with the link to the agent.
fn link(arguments: &[OsString]) -> Option<RawFd> {
    let is_it = |word: &OsString| {
        word.to_str()?.strip_prefix("socket,id=agent,fd=").map(|number| number.parse().unwrap())
    };
    arguments.iter().find_map(is_it)
}

/// Takes the next tampering, and the file that says that it happened.
fn take() -> Option<(Tampering, PathBuf)> {
    let folder = PathBuf::from(std::env::var_os(FOLDER)?);
    (0..MOST).find_map(|number| {
        let (file, taken) =
            (folder.join(number.to_string()), folder.join(format!("{number}.taken")));
        // Another guest may take it first.
        fs::rename(&file, &taken).ok()?;
        let tampering = serde_json::from_slice(&fs::read(&taken).ok()?).expect("a tampering");
        Some((tampering, folder.join(format!("{number}.{HAPPENED}"))))
    })
}

fn relay(
    mut from: &UnixStream,
    mut into: &UnixStream,
    tampering: Option<(Tampering, PathBuf)>,
) -> io::Result<()> {
    let mut buffer = [0; 4096];
    let mut passed: u64 = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let bytes = &mut buffer[..count];
        let at = tampering.as_ref().and_then(|(tampering, happened)| {
            let at = usize::try_from(tampering.at.checked_sub(passed)?).ok()?;
            (at < count).then_some((at, tampering.how, happened))
        });
        passed += count as u64;
        let Some((at, how, happened)) = at else {
            into.write_all(bytes)?;
            continue;
        };
        File::create(happened)?;
        into.write_all(&bytes[..at])?;
        match how {
            How::Close => return Ok(()),
            How::Drop => into.write_all(&bytes[at + 1..])?,
            How::Repeat => {
                into.write_all(&bytes[at..=at])?;
                into.write_all(&bytes[at..])?;
            }
            How::FlipBit => {
                bytes[at] ^= 1;
                into.write_all(&bytes[at..])?;
            }
            How::Delay => {
                thread::sleep(DELAY);
                into.write_all(&bytes[at..])?;
            }
        }
    }
}
