// SPDX-License-Identifier: MIT OR Apache-2.0
//! An interactive guest at the terminal, or a guest for one command whose output and exit code come
//! back. It runs a shell instead of the agent and measures nothing.

use super::{
    LAST_WORDS, Signal as FromGuest, Spec, VmError, backends,
    backends::Root,
    console::Console,
    process,
    process::{Process, Streams},
};
use nix::{
    sys::{
        signal::{self, SigHandler, Signal},
        termios::{self, SetArg, Termios},
    },
    unistd::{self, Pid},
};
use std::{
    ffi::OsString,
    fs,
    io::{self, IsTerminal, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tramplab_model::run::ErrorKind;

/// The guest's task.
pub enum Session<'a> {
    /// The guest owns the terminal until it powers off.
    Terminal,
    /// A command line for the guest's shell, with a deadline for the whole guest.
    Command { line: &'a str, within: Duration },
}

pub struct Shell<'a> {
    pub spec: &'a Spec,
    pub root: Root,
    /// Enables QEMU's gdb server. The guest waits until gdb lets it run.
    pub gdb: bool,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With the command's exit code, or 0 for a terminal.
    Exited(u8),
    /// Nobody reads the command's output any more.
    Unread,
    /// `stop` returned true.
    Stopped,
}

const POLL: Duration = Duration::from_millis(50);
const PORTS: [&str; 3] = ["out", "err", "exit"];
/// Bytes of an exit code with its line end. A guest may send anything.
const EXIT_CODE: usize = 8;
/// From the command's end to the machine's end.
const POWER_OFF: Duration = Duration::from_secs(10);

impl Shell<'_> {
    /// Runs the session. `tell` gets gdb's socket before anything runs. A true `stop` ends the
    /// session. Restores the terminal.
    pub fn run(
        &self,
        session: &Session,
        tell: &mut dyn FnMut(&Path),
        stop: &dyn Fn() -> bool,
    ) -> Result<End, VmError> {
        self.try_run(session, tell, stop).map_err(|error| match error.downcast::<VmError>() {
            Ok(error) => error,
            Err(error) => VmError::new(ErrorKind::Harness, error.to_string()),
        })
    }

    fn try_run(
        &self,
        session: &Session,
        tell: &mut dyn FnMut(&Path),
        stop: &dyn Fn() -> bool,
    ) -> io::Result<End> {
        let home = backends::short_folder()?;
        let at = |name: &str| home.path().join(name);
        let mut added: Vec<OsString> = Vec::new();
        let mut listeners = Vec::new();
        if let Session::Command { .. } = session {
            added.extend(backends::PORTS_DEVICE.map(OsString::from));
            for name in PORTS {
                let listener = UnixListener::bind(at(name))?;
                listener.set_nonblocking(true)?;
                listeners.push(listener);
                added.extend(backends::port(home.path(), name, &format!("tramplab.{name}")));
            }
        }
        if self.gdb {
            let server = format!("socket,id=gdb,path={},server=on,wait=off", at("gdb").display());
            added.extend(["-chardev".into(), server.into()]);
            added.extend(["-gdb", "chardev:gdb", "-S"].map(OsString::from));
            tell(&at("gdb"));
        }
        let line = match session {
            Session::Terminal => None,
            Session::Command { line, .. } => Some(reporting(line)),
        };
        let start = |streams| self.root.start(self.spec, line.as_deref(), &added, home, streams);
        match session {
            Session::Terminal => {
                let terminal = Terminal::take()?;
                let mut process = start(Streams::Terminal(terminal.settings.clone()))?;
                let ended = wait(&mut process, stop);
                // Before `terminal` takes the terminal back.
                process.kill();
                Ok(ended)
            }
            Session::Command { within, .. } => {
                let (console_host, console_guest) = process::pipe()?;
                let (sender, signals) = mpsc::sync_channel(1);
                // An error message shows the console's last lines.
                let nowhere = fs::File::options().write(true).open("/dev/null")?;
                let console =
                    Console::watch(console_host, nowhere, sender, self.spec.allow.clone())?;
                let process = start(Streams::Output(console_guest))?;
                let running = Running { process, console, signals, ports: Ports::default() };
                running.await_end(listeners, *within, stop).map_err(io::Error::other)
            }
        }
    }
}

/// The script that runs a command line and reports on the ports. It finds the ports in sysfs: a
/// guest may have no udev.
fn reporting(line: &str) -> String {
    format!(
        "port() {{ for p in /sys/class/virtio-ports/*; do \
         [ \"$(cat \"$p/name\")\" = \"tramplab.$1\" ] && echo \"/dev/${{p##*/}}\"; done; }}\n\
         n=0; while [ -z \"$(port exit)\" ] && [ $n -lt 200 ]; do sleep 0.1; n=$((n + 1)); done\n\
         (\n{line}\n) </dev/null >\"$(port out)\" 2>\"$(port err)\"\n\
         echo $? >\"$(port exit)\"\n"
    )
}

/// A guest that runs a command.
struct Running {
    process: Process,
    console: Console,
    signals: Receiver<FromGuest>,
    ports: Ports,
}

#[derive(Default)]
struct Ports {
    /// Threads that copy the command's output. They end with the error of a failed write.
    copies: Vec<JoinHandle<io::Result<()>>>,
    exit: Option<JoinHandle<Option<u8>>>,
}

impl Running {
    fn await_end(
        mut self,
        listeners: Vec<UnixListener>,
        within: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<End, VmError> {
        let deadline = Instant::now() + within;
        let mut waiting: Vec<(UnixListener, &str)> = listeners.into_iter().zip(PORTS).collect();
        let mut told: Option<Instant> = None;
        loop {
            if stop() {
                return Ok(End::Stopped);
            }
            waiting.retain(|(listener, name)| match listener.accept() {
                Ok((stream, _)) => {
                    self.ports.take(stream, name);
                    false
                }
                Err(_) => true,
            });
            if let Ok(FromGuest::Death(death)) = self.signals.try_recv() {
                thread::sleep(LAST_WORDS);
                return Err(self.dead(death.kind, death.title));
            }
            if let Err(error) = self.ports.ended_copies() {
                return self.unwritten(error);
            }
            if self.ports.exit.as_ref().is_some_and(JoinHandle::is_finished) {
                told.get_or_insert_with(Instant::now);
            }
            let late = told.is_some_and(|told| told.elapsed() > POWER_OFF);
            if let Some(status) = self.process.exited() {
                return self.ended(Some(status));
            } else if late {
                return self.ended(None);
            }
            if Instant::now() > deadline {
                let message = format!(
                    "the guest did not end within {} s, including its boot",
                    within.as_secs()
                );
                return Err(self.dead(ErrorKind::Timeout, message));
            }
            thread::sleep(POLL);
        }
    }

    /// The guest has ended, or has not ended in time and has no status.
    fn ended(mut self, status: Option<ExitStatus>) -> Result<End, VmError> {
        // This closes the ports.
        self.process.kill();
        let code = self.ports.exit.take().and_then(|exit| exit.join().ok().flatten());
        for copy in std::mem::take(&mut self.ports.copies) {
            if let Ok(Err(error)) = copy.join() {
                return self.unwritten(error);
            }
        }
        // The kernel's last lines may still be in the pipe.
        if let Ok(FromGuest::Death(death)) = self.signals.recv_timeout(LAST_WORDS)
            && code.is_none()
        {
            return Err(self.dead(death.kind, death.title));
        }
        match (code, status) {
            (Some(code), _) => Ok(End::Exited(code)),
            (None, status) => {
                let how = status.map_or_else(String::new, |status| format!(" with {status}"));
                // QEMU's own words are on the console, too.
                let said = self.console.tail().pop().map(|line| format!(": {line}"));
                let said = said.unwrap_or_default();
                let message = format!("the guest ended{how} before the command did{said}");
                Err(self.dead(ErrorKind::QemuExit, message))
            }
        }
    }

    /// The command's output cannot be written. If its reader has gone, that is no error.
    fn unwritten(&mut self, error: io::Error) -> Result<End, VmError> {
        self.process.kill();
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Ok(End::Unread);
        }
        // The console would blame the guest.
        let message = format!("failed to write the command's output: {error}");
        Err(VmError::new(ErrorKind::Harness, message))
    }

    fn dead(&mut self, kind: ErrorKind, message: String) -> VmError {
        self.process.kill();
        VmError { console_tail: self.console.tail(), ..VmError::new(kind, message) }
    }
}

impl Ports {
    /// The first failed write of the copies that have ended.
    fn ended_copies(&mut self) -> io::Result<()> {
        let (ended, running) =
            std::mem::take(&mut self.copies).into_iter().partition(JoinHandle::is_finished);
        self.copies = running;
        let ended: Vec<JoinHandle<io::Result<()>>> = ended;
        ended.into_iter().try_for_each(|copy| copy.join().unwrap_or(Ok(())))
    }

    fn take(&mut self, mut stream: UnixStream, name: &str) {
        // The accepted socket may have inherited the non-blocking mode.
        let _ = stream.set_nonblocking(false);
        match name {
            "out" => {
                self.copies.push(thread::spawn(move || copy(&mut stream, &mut io::stdout())));
            }
            "err" => self.copies.push(thread::spawn(move || {
                match copy(&mut stream, &mut io::stderr()) {
                    // Nobody can be told that standard error is full. Drain it: the command would
                    // block.
                    Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                        io::copy(&mut stream, &mut io::sink()).map(drop)
                    }
                    ended => ended,
                }
            })),
            _ => {
                self.exit = Some(thread::spawn(move || {
                    let mut text = String::new();
                    let mut byte = [0];
                    while text.len() < EXIT_CODE
                        && !text.ends_with('\n')
                        && stream.read_exact(&mut byte).is_ok()
                    {
                        text.push(char::from(byte[0]));
                    }
                    text.trim().parse().ok()
                }));
            }
        }
    }
}

/// Copies until the guest closes its end.
fn copy(from: &mut UnixStream, to: &mut dyn Write) -> io::Result<()> {
    let mut bytes = [0; 8192];
    loop {
        match from.read(&mut bytes) {
            Ok(0) | Err(_) => return to.flush(),
            Ok(count) => to.write_all(&bytes[..count]).and_then(|()| to.flush())?,
        }
    }
}

fn wait(process: &mut Process, stop: &dyn Fn() -> bool) -> End {
    loop {
        if process.exited().is_some() {
            return End::Exited(0);
        }
        if stop() {
            return End::Stopped;
        }
        thread::sleep(POLL);
    }
}

/// The terminal's state. Dropping it restores the terminal.
struct Terminal {
    saved: Termios,
    group: Pid,
    /// The settings in `stty`'s format, for the guard.
    settings: String,
}

impl Terminal {
    fn take() -> io::Result<Terminal> {
        if !io::stdin().is_terminal() {
            return Err(io::Error::other("stdin is not a terminal"));
        }
        let settings = Command::new("stty").arg("-g").stdin(Stdio::inherit()).output()?;
        Ok(Terminal {
            saved: termios::tcgetattr(io::stdin())?,
            group: unistd::tcgetpgrp(io::stdin())?,
            settings: String::from_utf8_lossy(&settings.stdout).trim().to_owned(),
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Without this, taking the terminal back from the background stops the process.
        // SAFETY: ignoring a signal installs no handler.
        let before = unsafe { signal::signal(Signal::SIGTTOU, SigHandler::SigIgn) };
        let _ = unistd::tcsetpgrp(io::stdin(), self.group);
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.saved);
        if let Ok(before) = before {
            // SAFETY: this restores the previous handler.
            let _ = unsafe { signal::signal(Signal::SIGTTOU, before) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the script on the host, with files in place of the ports.
    #[test]
    fn reports_output_and_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        for (line, out, err, code) in [
            ("echo one; echo two >&2; exit 7", "one\n", "two\n", "7\n"),
            ("cat; false", "", "", "1\n"),
            ("echo 'it'\\''s' | tr i I", "It's\n", "", "0\n"),
        ] {
            for (number, name) in PORTS.iter().enumerate() {
                fs::create_dir_all(at(&format!("class/vport{number}"))).unwrap();
                fs::write(at(&format!("class/vport{number}/name")), format!("tramplab.{name}\n"))
                    .unwrap();
            }
            let script = reporting(line)
                .replace("/sys/class/virtio-ports", &at("class"))
                .replace("/dev/$", &format!("{}/$", folder.path().display()));
            let status = Command::new("/bin/sh").args(["-c", &script]).status().unwrap();
            assert!(status.success(), "{line}");
            let wrote =
                [0, 1, 2].map(|number| fs::read_to_string(at(&format!("vport{number}"))).unwrap());
            assert_eq!(wrote, [out, err, code], "{line}");
        }
    }
}
