// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs QEMU as a child, a program that itself starts QEMU, or the agent on this machine. The child
//! dies with the thread that started it. Dropping its [`Process`] kills and reaps it, with all that
//! it started.

use super::Spec;
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

/// The host's end, and the end that QEMU inherits. Neither has a name that could be left behind.
pub fn socket_pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (host, guest) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    Ok((host.into(), guest))
}

/// Console output that the pipe holds while nobody reads.
const PIPE_BYTES: i32 = 1 << 20;

/// A pipe for the console. A socket can fill up after some hundred single bytes, which depends on
/// the host's timing. The guest would then wait, and boots would differ.
pub fn pipe() -> io::Result<(io::PipeReader, OwnedFd)> {
    let (host, guest) = io::pipe()?;
    // Ignore an error: the default size works too, but may fill up.
    let _ = nix::fcntl::fcntl(&guest, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    Ok((host, guest.into()))
}

/// The program that ends with its guest.
pub struct Program {
    /// For errors.
    pub name: &'static str,
    /// Its exit codes after the guest has powered off.
    pub powered_off: &'static [i32],
}

pub struct Process {
    child: Child,
    owned: Owned,
    program: &'static Program,
}

/// The child's other resources.
enum Owned {
    Nothing,
    Log(PathBuf),
    /// A process group with other programs. None once it has been killed.
    Group(Option<Group>),
}

/// A group's standard streams.
pub enum Streams {
    /// No input, and one file for all output.
    Output(OwnedFd),
    /// The terminal, which the group owns while it runs. Holds its settings in `stty`'s format.
    Terminal(String),
}

/// The resources of a process group.
struct Group {
    /// The folder of its temporary files and sockets.
    home: TempDir,
    /// The guard (see [`GUARD`]) reads the other end.
    alive: io::PipeWriter,
}

/// A script for `sh` that starts a guard in the background and then execs its arguments. The guard
/// waits for the end of a pipe, which comes when the harness dies in any way: PR_SET_PDEATHSIG
/// would reach only the group's first process. The guard then removes the group's folder,
/// restores the terminal and kills the group with itself.
const GUARD: &str = "guard=$1 terminal=$2; shift 2; \
                     { cat <\"/dev/fd/$guard\"; rm -rf -- \"$TMPDIR\"; \
                     [ -z \"$terminal\" ] || stty \"$terminal\" </dev/tty; \
                     kill -KILL 0; } </dev/null >/dev/null 2>&1 & \
                     exec \"$@\"";
/// The time that killed processes get to disappear.
const REAPING: Duration = Duration::from_secs(5);
/// Bytes of address space that QEMU may use beside its guest's memory. QEMU uses 1.5 GiB, most of
/// it untouched, and the plugin's tables up to 1 GiB. A guest that makes QEMU use more ends QEMU,
/// not the host.
const OWN_MEMORY: u64 = 6 << 30;
/// More bytes for each CPU: a thread's stack and heap, and several copies of the plugin's data.
const CPU_MEMORY: u64 = 256 << 20;
/// Bytes that any one of QEMU's files may have beside the guest's memory, which a snapshot holds.
const OWN_FILES: u64 = 1 << 30;
/// Bytes at the end of a log in which the last line is searched.
const LAST_WORDS: u64 = 16 << 10;

impl Process {
    /// Starts the guest's QEMU. The child inherits the descriptors `inherited` under their numbers;
    /// they are closed here.
    pub fn start(
        Spec { qemu, memory_mib, cpus, .. }: &Spec,
        arguments: &[OsString],
        (log, output): (PathBuf, fs::File),
        inherited: Vec<OwnedFd>,
        program: &'static Program,
    ) -> io::Result<Process> {
        let mut command = Command::new(&qemu.program);
        command
            .args(&qemu.arguments)
            .args(arguments)
            .envs(qemu.environment.iter().cloned())
            .stdout(output.try_clone()?)
            .stderr(output);
        let memory = u64::from(*memory_mib) << 20;
        let limits = [
            limit(Resource::RLIMIT_AS, memory + OWN_MEMORY + u64::from(*cpus) * CPU_MEMORY)?,
            limit(Resource::RLIMIT_FSIZE, memory + OWN_FILES)?,
        ];
        Process::spawn(command, limits.into(), inherited, Owned::Log(log), program)
    }

    /// Starts a program that measures this machine and prints on the console.
    pub fn start_here(
        mut command: Command,
        console: OwnedFd,
        inherited: Vec<OwnedFd>,
        program: &'static Program,
    ) -> io::Result<Process> {
        command.stdout(console.try_clone()?).stderr(console);
        Process::spawn(command, Vec::new(), inherited, Owned::Nothing, program)
    }

    fn spawn(
        mut command: Command,
        limits: Vec<(Resource, u64)>,
        inherited: Vec<OwnedFd>,
        owned: Owned,
        program: &'static Program,
    ) -> io::Result<Process> {
        let numbers: Vec<RawFd> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
        let parent = std::process::id();
        // Its own group: we handle Ctrl-C on the terminal, and the program ends when we do.
        command.stdin(Stdio::null()).process_group(0);
        // SAFETY: only async-signal-safe calls: prctl, getppid, setrlimit, fcntl.
        unsafe {
            command.pre_exec(move || {
                prctl::set_pdeathsig(Signal::SIGKILL)?;
                for &(resource, limit) in &limits {
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
        Ok(Process { child, owned, program })
    }

    /// Starts a program with children. `home` holds their temporary files.
    pub fn start_group(
        command: &Command,
        home: TempDir,
        streams: Streams,
        program: &'static Program,
    ) -> io::Result<Process> {
        // Orphans become our children, so that they can be reaped.
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
                    // Without this, taking the terminal from the background stops the process.
                    libc::signal(libc::SIGTTOU, libc::SIG_IGN);
                    libc::tcsetpgrp(0, libc::getpid());
                    libc::signal(libc::SIGTTOU, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        let child = guarded.env("TMPDIR", home.path()).process_group(0).spawn()?;
        Ok(Process { child, owned: Owned::Group(Some(Group { home, alive })), program })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn name(&self) -> &'static str {
        self.program.name
    }

    /// Returns true if its own output is separate from the console.
    pub fn has_log(&self) -> bool {
        matches!(self.owned, Owned::Log(_))
    }

    /// Returns true if it ends so when its guest powers off.
    pub fn is_good_end(&self, status: &ExitStatus) -> bool {
        status.code().is_some_and(|code| self.program.powered_off.contains(&code))
    }

    /// The last line of its own output. None if it has no log.
    pub fn last_words(&self) -> Option<String> {
        let Owned::Log(log) = &self.owned else { return None };
        Some(last_words(log).unwrap_or_default())
    }

    pub fn kill(&mut self) {
        if let Owned::Group(group) = &mut self.owned {
            // While the guard lives, the group keeps its number, even after its first process.
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
        // Kill the group, for a wrapper script that did not exec. The unreaped child keeps its
        // number.
        let _ = signal::killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A limit that does not exceed the machine's own.
fn limit(resource: Resource, wanted: u64) -> io::Result<(Resource, u64)> {
    let (_, hard) = getrlimit(resource)?;
    Ok((resource, wanted.min(hard)))
}

/// The last non-empty line of QEMU's log.
pub fn last_words(log: &Path) -> Option<String> {
    let text = end_of(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
}

/// Reads only the end: a guest can make QEMU print without end.
fn end_of(log: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(log)?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(end.saturating_sub(LAST_WORDS)))?;
    let mut bytes = Vec::new();
    file.take(LAST_WORDS).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Kills a process group and reaps its members.
fn end_group(group: Pid, first: &mut Child) {
    let _ = signal::killpg(group, Signal::SIGKILL);
    let _ = first.wait();
    let until = Instant::now() + REAPING;
    while Instant::now() < until {
        match waitpid(Pid::from_raw(-group.as_raw()), Some(WaitPidFlag::WNOHANG)) {
            // Killed but not gone yet, or not yet our child.
            Ok(WaitStatus::StillAlive) => thread::sleep(Duration::from_millis(5)),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}
