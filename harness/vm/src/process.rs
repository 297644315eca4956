// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU as a child: it dies with the thread that started it, and is reaped with its owner. So is virtme-ng, which starts QEMU
//! and virtiofsd itself, with all that it started.

use nix::{
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::{self, Signal},
        socket::{AddressFamily, SockFlag, SockType, socketpair},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tramplab_host::QemuProgram;

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
    owned: Owned,
}

/// What there is beside the child.
enum Owned {
    Log(PathBuf),
    /// Its process group has others in it.
    Group(Option<Group>),
}

/// Where a group's standard streams go.
pub enum Streams {
    /// Nothing comes in, all comes out of one.
    Output(OwnedFd),
    /// To the terminal, which is the group's as long as it runs; with its settings, as `stty` writes them.
    Terminal(String),
}

/// What virtme-ng starts with, and all that it leaves.
struct Group {
    /// Where virtiofsd's sockets are, and whatever else.
    home: TempDir,
    /// Its guard (see [`GUARD`]) reads the other end.
    alive: io::PipeWriter,
}

/// `sh` with this as its program runs its arguments, as the same process, beside a guard that waits for the end of a pipe. That
/// end comes with the harness, however it dies: PR_SET_PDEATHSIG would reach the first of virtme-ng's processes only. Then the
/// guard removes virtme-ng's folder, puts the terminal in order and kills the group, itself included.
const GUARD: &str = "guard=$1 terminal=$2; shift 2; { cat <\"/dev/fd/$guard\"; rm -rf -- \"$TMPDIR\"; \
                     [ -z \"$terminal\" ] || stty \"$terminal\" </dev/tty; kill -KILL 0; } </dev/null >/dev/null 2>&1 & \
                     exec \"$@\"";
/// How long killed processes may take to be gone.
const REAPING: Duration = Duration::from_secs(5);
/// Addresses that QEMU may have beside its guest's memory: it has 1.5 GiB, most of it untouched, and the plugin's tables can be 1 GiB. Whatever a
/// guest brings it to, it then ends, and not the host.
const OWN_MEMORY: u64 = 6 << 30;
/// And for each CPU: a thread's stack, its heap, and what the plugin keeps of it, more than once while it is written.
const CPU_MEMORY: u64 = 256 << 20;
/// Bytes of any one of its files beside the guest's memory, which is one when it is saved.
const OWN_FILES: u64 = 1 << 30;
/// Of a log, that its last line is looked for in.
const LAST_WORDS: u64 = 16 << 10;
/// What virtme-ng ends with when the guest ended and no script did.
const NO_SCRIPT: i32 = 255;

impl Qemu {
    /// `inherited` keep their numbers in the child and are closed here.
    pub fn start(
        qemu: &QemuProgram,
        arguments: &[OsString],
        (log, output): (PathBuf, fs::File),
        inherited: Vec<OwnedFd>,
        (memory_mib, cpus): (u32, u32),
    ) -> io::Result<Qemu> {
        let numbers: Vec<RawFd> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
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
        let memory = u64::from(memory_mib) << 20;
        let limits = [
            limit(Resource::RLIMIT_AS, memory + OWN_MEMORY + u64::from(cpus) * CPU_MEMORY)?,
            limit(Resource::RLIMIT_FSIZE, memory + OWN_FILES)?,
        ];
        // SAFETY: only async-signal-safe calls: prctl, getppid, setrlimit, fcntl.
        unsafe {
            command.pre_exec(move || {
                prctl::set_pdeathsig(Signal::SIGKILL)?;
                for (resource, limit) in limits {
                    setrlimit(resource, limit, limit)?;
                }
                if nix::unistd::getppid().as_raw() as u32 != parent {
                    return Err(io::Error::other("the harness is gone"));
                }
                for &number in &numbers {
                    if libc::fcntl(number, libc::F_SETFD, 0) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let child = command.spawn()?;
        Ok(Qemu { child, owned: Owned::Log(log) })
    }

    /// Runs virtme-ng, or another program that starts others, with `home` for all temporary files.
    pub fn start_group(command: &Command, home: TempDir, streams: Streams) -> io::Result<Qemu> {
        // Whoever loses its parent becomes our child, so that it can be reaped.
        prctl::set_child_subreaper(true)?;
        let (guard, alive) = io::pipe()?;
        let mut guarded = Command::new("/bin/sh");
        let number = guard.as_raw_fd();
        let (terminal, is_terminal) = match &streams {
            Streams::Output(_) => ("", false),
            Streams::Terminal(settings) => (settings.as_str(), true),
        };
        guarded.args(["-c", GUARD, "sh", &number.to_string(), terminal]);
        guarded.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(name, value),
                None => guarded.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            guarded.current_dir(folder);
        }
        if let Streams::Output(output) = streams {
            guarded.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        }
        // SAFETY: only async-signal-safe calls: fcntl, signal, tcsetpgrp, getpid.
        unsafe {
            guarded.pre_exec(move || {
                if libc::fcntl(number, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
                if is_terminal {
                    // Whoever takes the terminal without having it would be stopped.
                    libc::signal(libc::SIGTTOU, libc::SIG_IGN);
                    libc::tcsetpgrp(0, libc::getpid());
                    libc::signal(libc::SIGTTOU, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        let child = guarded.env("TMPDIR", home.path()).process_group(0).spawn()?;
        Ok(Qemu { child, owned: Owned::Group(Some(Group { home, alive })) })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn name(&self) -> &'static str {
        if self.has_log() { "QEMU" } else { "virtme-ng" }
    }

    /// Whether what it says itself is apart from the console.
    pub fn has_log(&self) -> bool {
        matches!(self.owned, Owned::Log(_))
    }

    /// Whether that is how it ends when its guest was switched off.
    pub fn is_good_end(&self, status: &ExitStatus) -> bool {
        status.success() || (!self.has_log() && status.code() == Some(NO_SCRIPT))
    }

    /// The last line it wrote itself, where that is known.
    pub fn last_words(&self) -> Option<String> {
        let Owned::Log(log) = &self.owned else { return None };
        Some(last_words(log).unwrap_or_default())
    }

    pub fn kill(&mut self) {
        if let Owned::Group(group) = &mut self.owned {
            // While the guard lives the group's number is ours, also when its first process has ended.
            if let Some(Group { home, alive }) = group.take() {
                end_group(Pid::from_raw(self.child.id() as i32), &mut self.child);
                drop(home);
                drop(alive);
            }
            return;
        }
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

/// No more than this machine allows anyway.
fn limit(resource: Resource, wanted: u64) -> io::Result<(Resource, u64)> {
    let (_, hard) = getrlimit(resource)?;
    Ok((resource, wanted.min(hard)))
}

/// The last line that a QEMU wrote itself.
pub fn last_words(log: &Path) -> Option<String> {
    let text = end_of(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
}

/// A guest can have QEMU complain without end.
fn end_of(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(log)?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(LAST_WORDS)))?;
    let mut bytes = Vec::new();
    file.take(LAST_WORDS).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Kills a process group and reaps who is in it.
fn end_group(group: Pid, first: &mut Child) {
    let _ = signal::killpg(group, Signal::SIGKILL);
    let _ = first.wait();
    let until = Instant::now() + REAPING;
    while Instant::now() < until {
        match waitpid(Pid::from_raw(-group.as_raw()), Some(WaitPidFlag::WNOHANG)) {
            // Killed, and not gone yet: or, where it has no parent but us, still on the way here.
            Ok(WaitStatus::StillAlive) => thread::sleep(Duration::from_millis(5)),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}
