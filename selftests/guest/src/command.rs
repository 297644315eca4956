// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's command that hits a function: a line for the guest's shell. It runs on the measuring
//! CPU, as the agent does.

use crate::children::Children;
use crate::userspace;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Once;
use std::time::Duration;
use tramplab_protocol::message::{GuestError, SHELL, Triggered};

/// Bytes of its standard error in a message.
const SHOWN: u64 = 400;

/// Prepares the programs that a line or a script may name. Returns false in a guest without a
/// shell. A program that runs has its own name in `/proc/self/maps`, which ftracetest looks for, so
/// these are no symbolic links.
pub fn install() -> Result<bool, GuestError> {
    static ONCE: Once = Once::new();
    let mut installed = Ok(());
    let has_shell = Path::new(SHELL).exists();
    ONCE.call_once(|| {
        userspace::prepare();
        let line = Line {
            text: format!("{SHELL} --install /bin"),
            shell: SHELL,
            limit: Duration::from_secs(20),
        };
        installed = if has_shell { line.run() } else { Ok(()) };
    });
    installed.map(|()| has_shell)
}

/// A line for the shell.
#[derive(Clone, Debug)]
pub struct Line {
    text: String,
    shell: &'static str,
    limit: Duration,
}

impl Line {
    /// Prepares the programs that a line may name.
    pub fn new(text: &str) -> Result<Line, GuestError> {
        if !install()? {
            return Err(GuestError::Failed(format!("the guest has no {SHELL} for `{text}`")));
        }
        let limit = Duration::from_secs(Triggered::SECONDS.into());
        Ok(Line { text: text.to_owned(), shell: SHELL, limit })
    }

    /// Runs it to its end. It must succeed in time. Makes the same system calls each time, as they
    /// may be hits.
    pub fn run(&self) -> Result<(), GuestError> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            GuestError::Failed(format!("failed to {what} `{}`: {error}", self.text))
        };
        let errors = memfd_create(c"stderr", MFdFlags::MFD_CLOEXEC)
            .map_err(|errno| failed("keep the errors of", &errno))?;
        let errors = File::from(errors);
        let second = errors.try_clone().map_err(|error| failed("keep the errors of", &error))?;
        let _children = Children::awaited();
        let child = Command::new(self.shell)
            .args(["sh", "-c", &self.text])
            .env_clear()
            .env("PATH", "/bin")
            .env("HOME", "/root")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(second)
            .process_group(0)
            .spawn()
            .map_err(|error| failed("start", &error))?;
        let ended = self.ended(child).map_err(|error| failed("wait for", &error))?;
        match ended {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(GuestError::Failed(format!(
                "the trigger command `{}` {}{}",
                self.text,
                how(status),
                words(errors)
            ))),
            None => Err(GuestError::Failed(format!(
                "the trigger command `{}` did not end within {} s and was killed{}",
                self.text,
                self.limit.as_secs(),
                words(errors)
            ))),
        }
    }

    /// The status of a child with its own process group; none of one that had to be killed.
    fn ended(&self, mut child: Child) -> std::io::Result<Option<ExitStatus>> {
        let group = Pid::from_raw(child.id() as i32);
        // SAFETY: takes no memory.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, group.as_raw(), 0) };
        let in_time = match Errno::result(pidfd) {
            Ok(fd) => {
                // SAFETY: a fresh descriptor from the kernel, owned by nobody else.
                let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
                let mut ends = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
                let timeout = PollTimeout::try_from(self.limit).expect("a short time");
                poll(&mut ends, timeout).is_ok_and(|ready| ready > 0)
            }
            Err(_) => false,
        };
        // Also processes that it left behind.
        let _ = killpg(group, Signal::SIGKILL);
        let status = child.wait()?;
        Ok(in_time.then_some(status))
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(127), _) => "was not found (exit status 127)".to_owned(),
        (Some(code), _) => format!("failed (exit status {code})"),
        (None, signal) => format!("died of signal {}", signal.unwrap_or(0)),
    }
}

/// The beginning of what it wrote on standard error.
fn words(mut errors: File) -> String {
    let mut bytes = Vec::new();
    let _ = errors.rewind().and_then(|()| errors.take(SHOWN).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    match text.trim_end() {
        "" => String::new(),
        text => format!(": {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str, limit: Duration) -> Result<(), String> {
        let line = Line { text: text.to_owned(), shell: "/usr/bin/env", limit };
        line.run().map_err(|error| error.to_string())
    }

    #[test]
    fn tells_how_a_command_ended() {
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(50));
        assert_eq!(run("true; echo words", long), Ok(()));
        for (text, limit, expected) in [
            ("echo no >&2; exit 3", long, "`echo no >&2; exit 3` failed (exit status 3): no"),
            ("no-such-program", long, "was not found (exit status 127)"),
            ("kill -9 $$", long, "died of signal 9"),
            ("sleep 1000", short, "did not end within 0 s and was killed"),
            ("sleep 1000 & wait", short, "was killed"),
        ] {
            let error = run(text, limit).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
