// SPDX-License-Identifier: MIT OR Apache-2.0
//! One guest: started, spoken to, watched for every way to die, and gone when its owner is.

pub mod accel;
pub mod branches;
mod console;
pub mod death;
mod fitness;
pub mod initramfs;
mod link;
mod machine;
mod monitor;
mod process;
pub mod shell;
pub mod snapshot;
mod virtme;
pub mod yardstick;

pub use death::Death;
pub use machine::{Spec, cpu_model};
pub use process::last_words;
pub use snapshot::Snapshots;
pub use virtme::Virtme;

use console::Console;
use link::Link;
use machine::{Ends, Start};
use monitor::Monitor;
use process::Qemu;
use serde::{Deserialize, Serialize};
use snapshot::{Kept, Saved};
use std::{
    fmt, fs,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tramplab_model::run::ErrorKind;
use tramplab_protocol::{
    frame::FrameError,
    message::{self, Command, Event, ExecRequest, Facts, GAVE_UP, GuestError, Request, Response},
};

/// How long each silence may last, on the host's clock.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From starting QEMU to the agent's first word.
    pub boot: Duration,
    /// Without a heartbeat and without a console line.
    pub silence: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        // A guest boots in 5 s under TCG and beats twice a second; a loaded CI machine is a few times slower.
        Deadlines { boot: Duration::from_secs(90), silence: Duration::from_secs(30) }
    }
}

/// After the first sign of death: the kernel goes on to print registers and the call trace.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// For a guest to look at itself.
const FACTS: Duration = Duration::from_secs(60);
/// Much to read; what takes even longer is read by those who need it.
const PREPARE: Duration = Duration::from_secs(300);
/// From a guest's memory on disk to the agent's answer.
const RESTORE: Duration = Duration::from_secs(30);
/// How often a waiting host looks whether QEMU still lives.
const TICK: Duration = Duration::from_millis(100);

/// Why there is no guest any more.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct VmError {
    pub kind: ErrorKind,
    pub message: String,
    pub console_tail: Vec<String>,
    /// The agent had been heard of.
    pub booted: bool,
}

/// What the threads that watch a guest report.
enum Signal {
    Death(Death),
    Event(Event),
    LinkBroken(FrameError),
    LinkEnded,
}

/// What a guest says first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ready {
    pub release: String,
    pub uptime: Duration,
}

const CONSOLE_LOG: &str = "console.log";
/// What happened around snapshots; there when something went wrong.
const SNAPSHOT_LOG: &str = "snapshot.log";

/// For whoever looks into the guest's folder. It is no part of the verdict, so a failure to write it is none either.
fn note(spec: &Spec, text: &str) {
    let log = fs::File::options().create(true).append(true).open(spec.dir.join(SNAPSHOT_LOG));
    let _ = log.and_then(|mut log| writeln!(log, "{text}"));
}

fn failed(kind: ErrorKind, action: &str) -> impl FnOnce(io::Error) -> VmError + use<> {
    let action = action.to_owned();
    move |error| VmError {
        kind,
        message: format!("failed to {action}: {error}"),
        console_tail: Vec::new(),
        booted: false,
    }
}

fn harness(action: &str) -> impl FnOnce(io::Error) -> VmError + use<> {
    failed(ErrorKind::Harness, action)
}

/// A running guest. Dropping it kills QEMU and reaps it.
pub struct Vm {
    // Dropped first: its end closes the guest's side of console and link, which ends their threads.
    qemu: Qemu,
    console: Console,
    link: Link,
    signals: Receiver<Signal>,
    silence: Duration,
    next_id: u64,
    boot_time: Duration,
    restored: bool,
    ready: Ready,
}

impl Vm {
    /// A guest that has said what it is: restored where one of the kind was kept, else booted, and kept for the next. The calling thread
    /// must outlive the guest: QEMU is told to die with it.
    pub fn start(spec: &Spec) -> Result<(Vm, Facts), VmError> {
        let booted = || {
            let mut vm = Vm::boot(spec)?;
            let facts = vm.facts()?;
            Ok((vm, facts))
        };
        let Some(snapshots) = Snapshots::of(spec) else { return booted() };
        if let Some(found) = Vm::restored_from(snapshots, spec) {
            return Ok(found);
        }
        let started = Instant::now();
        let (ours, theirs) = process::socket_pair().map_err(harness("create the monitor's socket pair"))?;
        let mut vm = Vm::begin(spec, None, Some(theirs), started)?;
        vm.hear(spec, started)?;
        let facts = vm.facts()?;
        if let Err(error) = vm.prepare(spec) {
            // The kernel's own end is its verdict, whatever it ended of.
            if error.kind.is_kernel_death() {
                return Err(error);
            }
            note(spec, &format!("no snapshot was kept, as the agent did not get ready for it: {error}"));
            drop(vm);
            return booted();
        }
        if let Some(flaw) = vm.flaw(spec, &facts) {
            note(spec, &format!("no snapshot was kept: {flaw}"));
            return Ok((vm, facts));
        }
        match snapshots.keep(spec, ours, (&vm.ready, &facts), &spec.dir.join(CONSOLE_LOG)) {
            // Another run keeps one: this guest is as it was.
            Ok(Kept::Untouched) => return Ok((vm, facts)),
            Ok(Kept::Saved) => {}
            Err(error) => note(spec, &format!("no snapshot was kept: {error}")),
        }
        // It stands still now, or nobody knows how it is. What is measured is a guest like those that come after it; of one that was
        // dying when it was saved all would be.
        vm.qemu.kill();
        if let Some(death) = vm.death_on_the_way() {
            snapshots.discard(spec);
            return Err(vm.died(death));
        }
        Vm::restored_from(snapshots, spec).map_or_else(booted, Ok)
    }

    /// Why this guest is not what each of its kind should be, if it is not.
    fn flaw(&self, spec: &Spec, facts: &Facts) -> Option<String> {
        let said = self.console.flaw().map(|line| format!("its kernel said: {line}"));
        said.or_else(|| {
            let clock_source = self.clock_source();
            fitness::unfit(spec, clock_source.as_deref().unwrap_or(&facts.clocksource), facts.cpus)
        })
    }

    /// Gives up the snapshot of a guest whose clock failed after it was restored: the next one's would as well.
    pub fn give_up_failed_clock(&self, spec: &Spec) {
        let clock = self.clock_source();
        let reason = clock.and_then(|name| fitness::unfit(spec, &name, spec.cpus));
        if let (true, Some(reason), Some(snapshots)) = (self.restored(), reason, &spec.snapshots) {
            snapshots.discard(spec);
            note(spec, &format!("the snapshot is given up: {reason}"));
        }
    }

    /// The clock source that the kernel switched to last, if its console said so.
    pub fn clock_source(&self) -> Option<String> {
        self.console.clock_source()
    }

    /// None where there is no snapshot, or one that is of no use, which then goes: a guest that boots owes nothing to it.
    fn restored_from(snapshots: &Snapshots, spec: &Spec) -> Option<(Vm, Facts)> {
        let result = match snapshots.find(spec) {
            Ok(None) => return None,
            Ok(Some(saved)) => {
                Vm::restore(spec, &saved).map(|vm| (vm, saved.facts)).map_err(|e| e.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        result
            .map_err(|error| {
                snapshots.discard(spec);
                note(spec, &format!("a snapshot was of no use, and is given up: {error}"));
            })
            .ok()
    }

    /// What the guest says that it is.
    pub fn facts(&mut self) -> Result<Facts, VmError> {
        match self.request(Command::Facts, FACTS)? {
            Ok(Response::Facts(facts)) => {
                let said = serde_json::to_vec(&facts).map_or(usize::MAX, |facts| facts.len());
                if said > MOST_FACTS {
                    let message =
                        format!("the agent said what it is by {said} bytes, more than {MOST_FACTS}");
                    return Err(self.dead(ErrorKind::Protocol, message));
                }
                Ok(facts)
            }
            Ok(other) => {
                Err(self.dead(ErrorKind::Protocol, format!("the agent said what it is by {}", shown(&other))))
            }
            Err(error) => Err(self.dead(ErrorKind::Guest, error.to_string())),
        }
    }

    /// Has the agent read what those that are restored need not read again.
    fn prepare(&mut self, spec: &Spec) -> Result<(), VmError> {
        match self.request(Command::Prepare, PREPARE)? {
            Ok(Response::Done) => {}
            Ok(other) => {
                let message = format!("the agent got ready by {}", shown(&other));
                return Err(self.dead(ErrorKind::Protocol, message));
            }
            // Whoever needs what is missing finds that out.
            Err(error) => note(spec, &format!("kept, but not all is read beforehand: {error}")),
        }
        Ok(())
    }

    /// Starts QEMU and waits for the agent. The calling thread must outlive the guest.
    pub fn boot(spec: &Spec) -> Result<Vm, VmError> {
        let started = Instant::now();
        let mut vm = Vm::begin(spec, None, None, started)?;
        vm.hear(spec, started)?;
        Ok(vm)
    }

    /// Starts QEMU with a saved guest's state, and tells the guest what it cannot know.
    fn restore(spec: &Spec, saved: &Saved) -> Result<Vm, VmError> {
        let started = Instant::now();
        let (ours, theirs) = process::socket_pair().map_err(harness("create the monitor's socket pair"))?;
        let mut vm = Vm::begin(spec, Some(saved), Some(theirs), started)?;
        vm.console.mind_warnings();
        vm.silence = RESTORE;
        vm.ready = saved.ready.clone();
        let restored = Monitor::open(ours).and_then(|mut monitor| monitor.restore(&saved.state));
        if let Err(error) = restored {
            // A QEMU that ends closes its monitor a little before it is gone.
            return Err(vm.link_failed(ErrorKind::QemuStart, &error.to_string()));
        }
        let mut seed = [0; 32];
        fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut seed))
            .map_err(harness("read random numbers"))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The agent could not speak before.
        vm.link.heard();
        let awake = Command::Awake { realtime_ns: now.as_nanos() as u64, seed };
        vm.request(awake, RESTORE)?.map_err(|error| vm.dead(ErrorKind::Guest, error.to_string()))?;
        vm.restored = true;
        vm.boot_time = started.elapsed();
        vm.silence = spec.deadlines.silence;
        Ok(vm)
    }

    /// A guest that has said nothing yet.
    fn begin(
        spec: &Spec,
        saved: Option<&Saved>,
        monitor: Option<OwnedFd>,
        started: Instant,
    ) -> Result<Vm, VmError> {
        let (sender, signals) = mpsc::sync_channel(link::QUEUE);
        let (console_host, console_guest) = process::pipe().map_err(harness("create the console's pipe"))?;
        let create = |name| {
            let path = spec.dir.join(name);
            let file = fs::File::create(&path).map_err(harness(&format!("create {}", path.display())))?;
            Ok((path, file))
        };
        let (_, mut console_log) = create(CONSOLE_LOG)?;
        let start = match saved {
            None => Start::Boot,
            Some(saved) => {
                // What it had printed is not printed again. A full disk must not matter here.
                let _ = fs::File::open(&saved.console)
                    .and_then(|mut printed| io::copy(&mut printed, &mut console_log))
                    .and_then(|_| writeln!(console_log, "-- restored from a snapshot --"));
                Start::Restore
            }
        };
        let console = Console::watch(console_host, console_log, sender.clone())
            .map_err(harness("watch the console"))?;
        let (qemu, link_host) = match &spec.virtme {
            None => {
                let (link_host, link_guest) =
                    process::socket_pair().map_err(harness("create the agent's socket pair"))?;
                let qemu_log = create("qemu.log")?;
                let ends = Ends { console: &console_guest, link: &link_guest, monitor: monitor.as_ref() };
                let argv = machine::arguments(spec, &ends, start);
                let program = spec.qemu.program.display();
                let inherited = [console_guest, link_guest].into_iter().chain(monitor).collect();
                let qemu = Qemu::start(&spec.qemu, &argv, qemu_log, inherited, (spec.memory_mib, spec.cpus))
                    .map_err(failed(ErrorKind::QemuStart, &format!("start {program}")))?;
                (qemu, link_host)
            }
            Some(virtme) => {
                let tail = || console.tail();
                virtme::start(spec, virtme, console_guest, started + spec.deadlines.boot).map_err(
                    |error| VmError {
                        kind: ErrorKind::QemuStart,
                        message: format!("failed to start {}: {error}", virtme.vng.program.display()),
                        console_tail: tail(),
                        booted: false,
                    },
                )?
            }
        };
        let link = Link::open(link_host, sender).map_err(harness("open the agent's link"))?;
        Ok(Vm {
            qemu,
            console,
            link,
            signals,
            silence: spec.deadlines.boot,
            next_id: 1,
            boot_time: Duration::ZERO,
            restored: false,
            ready: Ready::default(),
        })
    }

    /// Waits for the agent's first word.
    fn hear(&mut self, spec: &Spec, started: Instant) -> Result<(), VmError> {
        let event =
            self.next_event(started + spec.deadlines.boot, ErrorKind::BootTimeout, "the agent's first word")?;
        match event {
            Event::Ready { version: message::VERSION, release, uptime_ns } => {
                self.ready = Ready { release, uptime: Duration::from_nanos(uptime_ns) };
            }
            Event::Ready { version, .. } => {
                let ours = message::VERSION;
                return Err(self.dead(
                    ErrorKind::Protocol,
                    format!("the agent speaks protocol {version}, the host {ours}: the initramfs is from another build"),
                ));
            }
            other => {
                return Err(self.dead(ErrorKind::Protocol, format!("the agent began with {}", shown(&other))));
            }
        }
        self.boot_time = started.elapsed();
        self.silence = spec.deadlines.silence;
        if spec.virtme.is_some() {
            // Of its console the agent knows nothing.
            self.console.mind_warnings();
        }
        Ok(())
    }

    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// From starting QEMU to the agent's first word.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Whether that was from a snapshot.
    pub fn restored(&self) -> bool {
        self.restored
    }

    /// The console's last lines.
    pub fn console_tail(&self) -> Vec<String> {
        self.console.tail()
    }

    pub fn process_id(&self) -> u32 {
        self.qemu.id()
    }

    /// Sends a request and waits for its answer. After an outer error the guest is gone.
    pub fn request(
        &mut self,
        command: Command,
        within: Duration,
    ) -> Result<Result<Response, GuestError>, VmError> {
        self.request_with_output(command, within, None)
    }

    /// Has a program run; `said` gets what it prints, line by line. What the guest sends is bounded by the time alone.
    pub fn exec(
        &mut self,
        program: ExecRequest,
        within: Duration,
        said: &mut dyn FnMut(&str),
    ) -> Result<Result<Response, GuestError>, VmError> {
        self.request_with_output(Command::Exec(program), within, Some(said))
    }

    fn request_with_output(
        &mut self,
        command: Command,
        within: Duration,
        mut said: Option<&mut dyn FnMut(&str)>,
    ) -> Result<Result<Response, GuestError>, VmError> {
        let id = self.next_id;
        self.next_id += 1;
        let now = Instant::now();
        let deadline = now + within;
        match self.link.send(&Request { id, command }, now + within.min(self.silence)) {
            Ok(()) => {}
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                let waited = now.elapsed().as_secs();
                return Err(self
                    .link_failed(ErrorKind::Silence, &format!("the guest took no request for {waited} s")));
            }
            Err(error) => {
                let message = format!("failed to send a request: {error}");
                return Err(self.link_failed(ErrorKind::Protocol, &message));
            }
        }
        loop {
            match self.next_event(deadline, ErrorKind::Timeout, "the answer to a request")? {
                Event::Reply { id: answered, result } if answered == id => return Ok(result),
                Event::Output { id: of, text } if of == id && said.is_some() && Instant::now() < deadline => {
                    said.as_mut().expect("asked before")(&text);
                }
                other => {
                    let message = format!("expected the answer to request {id}, got {}", shown(&other));
                    return Err(self.dead(ErrorKind::Protocol, message));
                }
            }
        }
    }

    /// Powers the guest off, and kills it if it does not. An error may concern what came before: a kernel that was
    /// dying while it answered has said so by now, since the console has been read to its end.
    pub fn power_off(mut self, within: Duration) -> Result<(), VmError> {
        let deadline = Instant::now() + within;
        self.request(Command::PowerOff, within)?
            .map_err(|error| self.dead(ErrorKind::Guest, error.to_string()))?;
        while Instant::now() < deadline {
            if let Some(status) = self.qemu.exited() {
                return match self.death_on_the_way() {
                    Some(death) => Err(self.died(death)),
                    None if self.qemu.is_good_end(&status) => Ok(()),
                    None => Err(self.qemu_exited(&status)),
                };
            }
            thread::sleep(TICK / 50);
        }
        Err(self.dead(ErrorKind::Timeout, format!("the guest did not power off within {within:?}")))
    }

    /// The next frame but heartbeats.
    fn next_event(&mut self, deadline: Instant, late: ErrorKind, what: &str) -> Result<Event, VmError> {
        let waiting_since = Instant::now();
        loop {
            match self.signals.recv_timeout(TICK) {
                Ok(Signal::Event(event)) => return Ok(event),
                Ok(Signal::Death(death)) => return Err(self.died(death)),
                Ok(Signal::LinkBroken(error)) => {
                    let message = format!("the agent sent what is no message: {error}");
                    return Err(self.link_failed(ErrorKind::Protocol, &message));
                }
                Ok(Signal::LinkEnded) => {
                    return Err(self.link_failed(ErrorKind::Protocol, "the agent's link ended"));
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(status) = self.qemu.exited() {
                        return Err(self.qemu_exited(&status));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.link_failed(ErrorKind::Protocol, "the guest's links ended"));
                }
            }
            let now = Instant::now();
            if now > deadline {
                let waited = waiting_since.elapsed().as_secs();
                return Err(self.dead(late, format!("{what} did not come within {waited} s")));
            }
            let quiet = now.duration_since(self.link.last_frame().max(self.console.last_line()));
            if quiet > self.silence {
                let message = format!("neither heartbeat nor console line for {} s", quiet.as_secs());
                return Err(self.dead(ErrorKind::Silence, message));
            }
        }
    }

    /// The link is gone: because the kernel died, because QEMU ended, or for no better reason than its own.
    fn link_failed(&mut self, kind: ErrorKind, message: &str) -> VmError {
        // virtme-ng ends after QEMU has.
        let until = Instant::now() + if self.qemu.has_log() { LAST_WORDS } else { LAST_WORDS * 6 };
        while Instant::now() < until {
            match self.signals.recv_timeout(TICK) {
                Ok(Signal::Death(death)) => return self.died(death),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                // QEMU closes its ends a little before it is gone.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK / 5),
            }
            if let Some(status) = self.qemu.exited() {
                return self.qemu_exited(&status);
            }
        }
        self.dead(kind, message.to_owned())
    }

    /// After QEMU's end: what the kernel said last may still be in the console's socket. Both threads end with it.
    fn death_on_the_way(&mut self) -> Option<Death> {
        while let Ok(signal) = self.signals.recv_timeout(LAST_WORDS) {
            if let Signal::Death(death) = signal {
                return Some(death);
            }
        }
        None
    }

    fn qemu_exited(&mut self, status: &std::process::ExitStatus) -> VmError {
        if let Some(death) = self.death_on_the_way() {
            return self.died(death);
        }
        let tail = self.console.tail();
        // Who gives up switches the machine off.
        let gave_up = || tail.iter().rev().find_map(|line| line.strip_prefix(GAVE_UP));
        if let Some(why) = self.qemu.is_good_end(status).then(gave_up).flatten() {
            return self.dead(ErrorKind::Guest, format!("the agent gave up: {why}"));
        }
        // What virtme-ng, QEMU and virtiofsd say themselves goes the way of the console there.
        let said = self.qemu.last_words().unwrap_or_else(|| {
            tail.iter().rev().find(|line| !line.trim().is_empty()).cloned().unwrap_or_default()
        });
        let kernel_ran = tail.iter().any(|line| self.qemu.has_log() || line.starts_with('['));
        let never_ran = self.boot_time.is_zero() && !kernel_ran && !status.success();
        let kind = if never_ran { ErrorKind::QemuStart } else { ErrorKind::QemuExit };
        let said = if said.is_empty() { "it said nothing".to_owned() } else { said };
        self.dead(kind, format!("{} ended with {status}: {said}", self.qemu.name()))
    }

    fn died(&mut self, death: Death) -> VmError {
        let until = Instant::now() + LAST_WORDS;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if let Err(RecvTimeoutError::Disconnected) = self.signals.recv_timeout(left.min(TICK)) {
                break;
            }
        }
        self.dead(death.kind, death.title)
    }

    fn dead(&mut self, kind: ErrorKind, message: String) -> VmError {
        self.qemu.kill();
        // A guest that has orders speaks on its console long before it does on its link.
        let booted = !self.boot_time.is_zero() || self.console.is_up();
        VmError { kind, message: brief(message), console_tail: self.console.tail(), booted }
    }
}

/// What a guest says of itself in words is kept in every form of the report: so much of it.
const BRIEF: usize = 8 << 10;
/// And in its facts, as JSON. A real guest's are 2 KiB.
const MOST_FACTS: usize = 64 << 10;

/// Of a message that does not fit, so much is shown.
const SHOWN: usize = 200;

/// The beginning of it. A message of megabytes is never written out.
pub fn shown(message: &impl fmt::Debug) -> String {
    struct Beginning(String);
    impl fmt::Write for Beginning {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = SHOWN.saturating_sub(self.0.len());
            self.0.push_str(&text[..text.floor_char_boundary(room)]);
            if text.len() < room { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut beginning = Beginning(String::new());
    // Its error is that there is no more room.
    let _ = fmt::write(&mut beginning, format_args!("{message:?}"));
    beginning.0
}

/// Without what goes beyond [`BRIEF`].
pub fn brief(mut text: String) -> String {
    if text.len() > BRIEF {
        text.truncate(text.floor_char_boundary(BRIEF));
        text.push('…');
    }
    text
}
