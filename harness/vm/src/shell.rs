// SPDX-License-Identifier: MIT OR Apache-2.0
//! An interactive guest at the terminal, or a guest for one command whose output and exit code come
//! back. It runs a shell instead of the agent and measures nothing.

use super::{
    LAST_WORDS, Signal as FromGuest, Spec, VmError,
    console::Console,
    machine, process,
    process::{Qemu, Streams},
    virtme,
};
use nix::{
    sys::{
        signal::{self, SigHandler, Signal},
        termios::{self, SetArg, Termios},
    },
    unistd::{self, Pid},
};
use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, IsTerminal, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tramplab_host::Vng;
use tramplab_model::run::{Arch, ErrorKind};

/// The guest's root.
#[derive(Clone, Debug)]
pub enum Root {
    /// A static busybox, and modules in their load order.
    Busybox { busybox: PathBuf, modules: Vec<PathBuf> },
    /// The host's files, by virtme-ng.
    Host(Vng),
}

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
            Err(error) => failure(ErrorKind::Harness, error.to_string(), Vec::new()),
        })
    }

    fn try_run(
        &self,
        session: &Session,
        tell: &mut dyn FnMut(&Path),
        stop: &dyn Fn() -> bool,
    ) -> io::Result<End> {
        let home = match &self.root {
            Root::Host(vng) => virtme::home(vng, &self.spec.kernel)?,
            Root::Busybox { .. } => virtme::short_folder()?,
        };
        let at = |name: &str| home.path().join(name);
        let mut added: Vec<OsString> = Vec::new();
        let mut listeners = Vec::new();
        if let Session::Command { .. } = session {
            added.extend(["-device".into(), "virtio-serial-pci,id=tramplab".into()]);
            for name in PORTS {
                let listener = UnixListener::bind(at(name))?;
                listener.set_nonblocking(true)?;
                listeners.push(listener);
                added.extend(virtme::port(home.path(), name, &format!("tramplab.{name}")));
            }
        }
        if self.gdb {
            let server = format!("socket,id=gdb,path={},server=on,wait=off", at("gdb").display());
            added.extend(["-chardev".into(), server.into()]);
            added.extend(["-gdb", "chardev:gdb", "-S"].map(OsString::from));
            tell(&at("gdb"));
        }
        let command = self.command(session, home.path(), &added)?;
        match session {
            Session::Terminal => {
                let terminal = Terminal::take()?;
                let mut qemu = Qemu::start_group(
                    &command,
                    home,
                    Streams::Terminal(terminal.settings.clone()),
                )?;
                let ended = wait(&mut qemu, stop);
                // Before `terminal` takes the terminal back.
                qemu.kill();
                Ok(ended)
            }
            Session::Command { within, .. } => {
                let (console_host, console_guest) = process::pipe()?;
                let (sender, signals) = mpsc::sync_channel(1);
                // An error message shows the console's last lines.
                let nowhere = fs::File::options().write(true).open("/dev/null")?;
                let console =
                    Console::watch(console_host, nowhere, sender, self.spec.allow.clone())?;
                let qemu = Qemu::start_group(&command, home, Streams::Output(console_guest))?;
                let running = Running { qemu, console, signals, ports: Ports::default() };
                running.await_end(listeners, *within, stop).map_err(io::Error::other)
            }
        }
    }

    fn command(&self, session: &Session, home: &Path, added: &[OsString]) -> io::Result<Command> {
        let spec = self.spec;
        let line = match session {
            Session::Terminal => None,
            Session::Command { line, .. } => Some(reporting(line)),
        };
        let (busybox, modules) = match &self.root {
            Root::Busybox { busybox, modules } => (busybox, modules),
            Root::Host(vng) => {
                virtme::write_script(home, spec, added)?;
                let mut command = vng.command(home);
                command.args(virtme::arguments(spec, home, line.map(OsString::from)));
                command.current_dir(env::current_dir()?);
                return Ok(command);
            }
        };
        let initrd = home.join("initramfs.cpio");
        super::initramfs::build_shell(
            &init(spec.arch, line.as_deref()),
            busybox,
            modules,
            &initrd,
        )?;
        let mut argv = machine::bare(spec);
        let mut add = |words: &[&str]| argv.extend(words.iter().map(OsString::from));
        let mut kernel_line = machine::command_line(spec.arch, &spec.append);
        match session {
            Session::Terminal => {
                // Ctrl-A X ends QEMU, Ctrl-A C opens its monitor, Ctrl-C goes to the guest.
                add(&["-chardev", "stdio,id=console,mux=on,signal=off", "-mon", "chardev=console"]);
                kernel_line.push_str(" quiet");
            }
            Session::Command { .. } => add(&["-chardev", "file,id=console,path=/dev/fd/1"]),
        }
        add(&["-serial", "chardev:console"]);
        argv.extend(added.iter().cloned());
        argv.extend(machine::boot(spec, &initrd, &kernel_line));
        let mut command = Command::new(&spec.qemu.program);
        command.args(&spec.qemu.arguments).args(argv).envs(spec.qemu.environment.iter().cloned());
        Ok(command)
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

/// The first process of a guest without an agent.
fn init(arch: Arch, line: Option<&str>) -> String {
    let console = arch.platform().console.name;
    let session = match line {
        Some(line) => line.to_owned(),
        None => {
            let (rows, columns) = window();
            format!(
                "echo; echo \"tramplab: $(uname -r); exit, or Ctrl-A X, ends it\"\n\
                 setsid sh -c 'exec </dev/{console} >/dev/{console} 2>&1; \
                 stty rows {rows} cols {columns}; exec sh'\n"
            )
        }
    };
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin HOME=/ TERM={term}\n\
         mount -t proc proc /proc; mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev 2>/dev/null\n\
         for kind in tracefs:tracing debugfs:debug; do \
         mount -t ${{kind%:*}} none /sys/kernel/${{kind#*:}} 2>/dev/null; done\n\
         mount -t bpf bpf /sys/fs/bpf 2>/dev/null\n\
         for module in /modules/*; do [ -e \"$module\" ] && insmod \"$module\"; done\n\
         hostname tramplab\n\
         {session}\
         poweroff -f\n",
        term = shell_words::quote(&env::var("TERM").unwrap_or_else(|_| "vt100".to_owned()))
    )
}

/// A guest that runs a command.
struct Running {
    qemu: Qemu,
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
            if let Some(status) = self.qemu.exited() {
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
        self.qemu.kill();
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
        self.qemu.kill();
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Ok(End::Unread);
        }
        // The console would blame the guest.
        let message = format!("failed to write the command's output: {error}");
        Err(failure(ErrorKind::Harness, message, Vec::new()))
    }

    fn dead(&mut self, kind: ErrorKind, message: String) -> VmError {
        self.qemu.kill();
        failure(kind, message, self.console.tail())
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

fn wait(qemu: &mut Qemu, stop: &dyn Fn() -> bool) -> End {
    loop {
        if qemu.exited().is_some() {
            return End::Exited(0);
        }
        if stop() {
            return End::Stopped;
        }
        thread::sleep(POLL);
    }
}

fn failure(kind: ErrorKind, message: String, console_tail: Vec<String>) -> VmError {
    VmError { kind, message, console_tail, booted: false, doubted: false, starved: Duration::ZERO }
}

/// The terminal's rows and columns.
fn window() -> (u16, u16) {
    // SAFETY: a structure of plain numbers may be zero.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid, and the call fills in that structure.
    let asked = unsafe { libc::ioctl(0, libc::TIOCGWINSZ, &mut size) };
    if asked == 0 && size.ws_row > 0 { (size.ws_row, size.ws_col) } else { (24, 80) }
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
