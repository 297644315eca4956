// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs host programs with a deadline, and kills those that exceed it.

use crate::given::{Given, PATIENCE};
use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        prctl,
        resource::{Resource, getrlimit},
        signal::{Signal, killpg},
    },
    unistd::Pid,
};
use std::{
    fs::File,
    io::{self, Read, Seek},
    os::unix::process::CommandExt,
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("failed to start `{command}`: {source}")]
    Start { command: String, source: io::Error },
    #[error("`{command}` did not end within {:.0} s", .limit.as_secs_f64())]
    Deadline { command: String, limit: Duration },
    #[error("`{command}` failed ({status}){}", after(.stderr))]
    Failed { command: String, status: ExitStatus, stderr: String },
}

fn after(stderr: &str) -> String {
    let text = stderr.trim_end();
    if text.is_empty() { String::new() } else { format!(":\n{text}") }
}

/// Marks every descriptor above standard error as close-on-exec. The caller of this program may
/// have left some open, and our children must not inherit them.
pub fn close_inherited() -> io::Result<()> {
    let above_standard_error = 3 as libc::c_uint;
    // A raw system call: some libc versions in use lack `close_range`.
    // SAFETY: the call takes no memory and closes nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            above_standard_error,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A program's output. Bytes that are not UTF-8 are replaced.
#[derive(Debug)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
}

/// Runs a program that must exit with status 0.
pub fn run(command: &mut Command, limit: Duration) -> Result<Output, ChildError> {
    run_watched(command, limit, &mut |_| Ok(()))
}

/// As [`run`]. Kills the program if `watch`, which is called again and again, returns an error.
pub fn run_watched<E: From<ChildError>>(
    command: &mut Command,
    limit: Duration,
    watch: &mut dyn FnMut(Pid) -> Result<(), E>,
) -> Result<Output, E> {
    let (status, output) = finish_watched(command, limit, watch)?;
    if status.success() {
        Ok(output)
    } else {
        Err(ChildError::Failed { command: shown(command), status, stderr: output.stderr }.into())
    }
}

/// Runs a program and returns its status.
pub fn finish(command: &mut Command, limit: Duration) -> Result<(ExitStatus, Output), ChildError> {
    finish_watched(command, limit, &mut |_| Ok(()))
}

fn finish_watched<E: From<ChildError>>(
    command: &mut Command,
    limit: Duration,
    watch: &mut dyn FnMut(Pid) -> Result<(), E>,
) -> Result<(ExitStatus, Output), E> {
    let error = |command: &Command, source| ChildError::Start { command: shown(command), source };
    // Use files, not pipes: a grandchild that outlives its parent can hold a pipe open forever.
    // Keep them in memory: a full disk would silently truncate the output.
    let memory =
        || Ok::<_, io::Error>(File::from(memfd_create(c"tramplab-output", MFdFlags::MFD_CLOEXEC)?));
    let files = memory().and_then(|out| {
        let err = memory()?;
        let clones = (out.try_clone()?, err.try_clone()?);
        Ok(((out, err), clones))
    });
    let ((out, err), (stdout, stderr)) = files.map_err(|source| error(command, source))?;
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).env("LC_ALL", "C");
    let status = wait_watched(command, limit, watch)?;
    let texts = written(out).and_then(|stdout| Ok(Output { stdout, stderr: written(err)? }));
    Ok((status, texts.map_err(|source| error(command, source))?))
}

/// Reads a child's output. Fails if the file size limit may have cut it: a write beyond the limit
/// fails, and the child may ignore that.
fn written(mut file: File) -> io::Result<String> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if file.metadata()?.len() >= limit {
        let why = "the file size limit (ulimit -f) cuts its output";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs a program with the caller's choice of standard streams.
pub fn wait(command: &mut Command, limit: Duration) -> Result<ExitStatus, ChildError> {
    wait_watched(command, limit, &mut |_| Ok(()))
}

fn wait_watched<E: From<ChildError>>(
    command: &mut Command,
    limit: Duration,
    watch: &mut dyn FnMut(Pid) -> Result<(), E>,
) -> Result<ExitStatus, E> {
    let error = |command: &Command, source| ChildError::Start { command: shown(command), source };
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
    }
    let mut child = command.spawn().map_err(|source| error(command, source))?;
    let process = Pid::from_raw(child.id().cast_signed());
    let mut time = Patience::new(process, limit);
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if !time.is_over() => {
                watch(process).inspect_err(|_| stop(&mut child))?;
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Ok(None) => {
                stop(&mut child);
                return Err(ChildError::Deadline { command: shown(command), limit }.into());
            }
            Err(source) => {
                stop(&mut child);
                return Err(error(command, source).into());
            }
        }
    }
}

/// A deadline in time that the machine gave to a process.
struct Patience {
    process: Pid,
    limit: Duration,
    began: Instant,
    /// Most programs end before it is needed.
    given: Option<Given>,
}

impl Patience {
    fn new(process: Pid, limit: Duration) -> Patience {
        Patience { process, limit, began: Instant::now(), given: None }
    }

    fn is_over(&mut self) -> bool {
        // This much counts in any case.
        let first = self.limit / 4;
        if self.began.elapsed() < first {
            return false;
        }
        let given = self.given.get_or_insert_with(|| Given::to(self.process)).elapsed();
        first + given >= self.limit || self.began.elapsed() >= self.limit * PATIENCE
    }
}

/// Runs a program on the output of another; both must exit with status 0. The other one ends when
/// nobody reads its output.
pub fn pipe(from: &mut Command, to: &mut Command, limit: Duration) -> Result<(), ChildError> {
    let error = |command: &Command, source| ChildError::Start { command: shown(command), source };
    from.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut writer = from.spawn().map_err(|source| error(from, source))?;
    to.stdin(writer.stdout.take().expect("is piped")).stdout(Stdio::null()).stderr(Stdio::null());
    let read = wait(to, limit);
    // The command holds the pipe's end for another start.
    to.stdin(Stdio::null());
    let written = writer.wait().map_err(|source| error(from, source))?;
    for (command, status) in [(&*to, read?), (&*from, written)] {
        if !status.success() {
            let (command, stderr) = (shown(command), String::new());
            return Err(ChildError::Failed { command, status, stderr });
        }
    }
    Ok(())
}

/// Kills and reaps a child. Leaves one that may not be killed (sudo's) after two seconds.
fn stop(child: &mut Child) {
    let _ = child.kill();
    for _ in 0..100 {
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(20)),
            _ => return,
        }
    }
}

/// A program in its own process group. Dropping it kills the group and reaps the program.
pub struct Group {
    child: Child,
    ended: bool,
}

/// The time that a program like make gets to stop its children itself.
const GRACE: Duration = Duration::from_secs(3);

impl Group {
    pub fn spawn(command: &mut Command) -> io::Result<Group> {
        command.process_group(0);
        let parent = nix::unistd::getpid();
        // SAFETY: between fork and exec only prctl and getppid are called, which are
        // async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // SIGTERM, not SIGKILL: make then stops its children. bubblewrap dies of it and
                // kills everything inside.
                prctl::set_pdeathsig(Signal::SIGTERM)?;
                if nix::unistd::getppid() != parent {
                    return Err(io::Error::other("the parent has died"));
                }
                Ok(())
            });
        }
        Ok(Group { child: command.spawn()?, ended: false })
    }

    /// The program's process.
    pub fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Its standard output, if that is a pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its standard error, likewise.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.ended |= status.is_some();
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = self.id();
        if !self.ended {
            let _ = killpg(group, Signal::SIGTERM);
            let end = Instant::now() + GRACE;
            while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(10));
            }
        }
        // Also after success: kill what it left in the background. The group's number stays taken
        // while a member lives.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    shell_words::join(words.map(|word| word.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn returns_output_or_failure() {
        let long = Duration::from_secs(60);
        let output = run(&mut sh("echo out; echo err >&2"), long).unwrap();
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));

        let error = run(&mut sh("echo why >&2; exit 3"), long).unwrap_err().to_string();
        assert_eq!(error, "`sh -c 'echo why >&2; exit 3'` failed (exit status: 3):\nwhy");

        let error = run(&mut Command::new("tramplab-no-such-program"), long).unwrap_err();
        assert!(matches!(error, ChildError::Start { .. }), "{error}");
    }

    /// Works for less than its deadline, and takes longer on a CPU with a rival.
    #[test]
    fn waits_for_a_starved_child() {
        if !crate::given::can_tell() {
            return eprintln!("not run: this kernel has no CONFIG_SCHED_INFO");
        }
        let _rival = crate::given::tests::spinner();
        let mut command = Command::new("taskset");
        let work = "renice -n $(($(nice) + 7)) $$; until read -ra now < /proc/$$/stat; \
                    ((now[13] + now[14] > 90)); do :; done";
        command.args(["-c", &crate::given::tests::first_cpu(), "bash", "-c", work]);
        let (began, limit) = (Instant::now(), Duration::from_secs(3));
        run(&mut command, limit).unwrap();
        assert!(began.elapsed() > limit, "it was not starved: {:?}", began.elapsed());
    }

    #[test]
    fn a_pipe_fails_with_either_program() {
        let long = Duration::from_secs(60);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let save = || sh(&format!("cat > {}", file.display()));
        pipe(&mut sh("echo out"), &mut save(), long).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "out\n");
        for (from, to) in [("echo out; exit 2", "cat"), ("echo out", "cat; exit 2")] {
            let error = pipe(&mut sh(from), &mut sh(to), long).unwrap_err();
            assert!(matches!(error, ChildError::Failed { .. }), "{error}");
        }
        // At the deadline both end, even if one never stops writing.
        let error = pipe(&mut Command::new("yes"), &mut sh("exec sleep 600"), long / 200);
        assert!(matches!(error, Err(ChildError::Deadline { .. })), "{error:?}");
    }

    #[test]
    fn kills_a_child_at_the_deadline_even_if_a_grandchild_keeps_the_output_open() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 600 & echo $$ $! > {}; wait", pid.display());
        let mut command = sh(&script);
        let error = finish(&mut command, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, ChildError::Deadline { .. }), "{error}");
        let pids = std::fs::read_to_string(&pid).unwrap();
        let (child, grandchild) = pids.trim().split_once(' ').unwrap();
        assert!(!std::path::Path::new("/proc").join(child).exists(), "{child} still there");
        let grandchild = Pid::from_raw(grandchild.parse().unwrap());
        nix::sys::signal::kill(grandchild, Signal::SIGKILL).unwrap();
    }
}
