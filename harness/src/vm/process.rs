// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU as a child: it dies with the thread that started it, and is reaped with its owner.

use super::machine::QemuProgram;
use nix::{
    sys::{
        prctl,
        signal::{self, Signal},
        socket::{AddressFamily, SockFlag, SockType, socketpair},
    },
    unistd::Pid,
};
use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
};

/// The host's end, and the end that QEMU inherits. No name in the file system, so nothing is left behind.
pub fn socket_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (host, guest) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    Ok((host.into(), guest))
}

/// What a guest's console may say while nobody reads.
const PIPE_BYTES: i32 = 1 << 20;

/// The same in one direction, for the console. A socket is full after some hundred bytes that come one by one, and whether it is
/// depends on the host's mood: the guest would be told to wait, and no two boots would be the same.
pub fn pipe() -> io::Result<(io::PipeReader, OwnedFd)> {
    let (host, guest) = io::pipe()?;
    // What the system grants by itself will do, if not as well.
    let _ = nix::fcntl::fcntl(&guest, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    Ok((host, guest.into()))
}

pub struct Qemu {
    child: Child,
    log: PathBuf,
}

impl Qemu {
    /// `inherited` keep their numbers in the child and are closed here.
    pub fn start(
        qemu: &QemuProgram,
        arguments: &[OsString],
        (log, output): (PathBuf, fs::File),
        inherited: [OwnedFd; 2],
    ) -> io::Result<Qemu> {
        let numbers: [RawFd; 2] = inherited.each_ref().map(AsRawFd::as_raw_fd);
        let parent = std::process::id();
        let mut command = Command::new(&qemu.program);
        command
            .args(&qemu.arguments)
            .args(arguments)
            .envs(qemu.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Its own group: a Ctrl-C on the terminal is for us to handle, and our end is QEMU's.
            .process_group(0);
        // SAFETY: only async-signal-safe calls: prctl, getppid, fcntl.
        unsafe {
            command.pre_exec(move || {
                prctl::set_pdeathsig(Signal::SIGKILL)?;
                if nix::unistd::getppid().as_raw() as u32 != parent {
                    return Err(io::Error::other("the harness is gone"));
                }
                for number in numbers {
                    if libc::fcntl(number, libc::F_SETFD, 0) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let child = command.spawn()?;
        Ok(Qemu { child, log })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The last line it wrote itself.
    pub fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
    }

    pub fn kill(&mut self) {
        if self.exited().is_some() {
            return;
        }
        // The group, for a wrapper script that did not `exec`; its number is ours while the child is not reaped.
        let _ = signal::killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}
