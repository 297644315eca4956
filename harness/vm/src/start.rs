// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts guests: boots them, or restores them from snapshots.

use super::{
    Ready, Snapshots, Spec, Vm, VmError,
    backends::{Kept, Monitor, Saved, Start},
    brief::shown,
    console::Console,
    harness,
    link::{self, Link},
    process,
    time::GuestTime,
};
use std::{
    fs,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    sync::mpsc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tramplab_model::run::{Clock, ErrorKind};
use tramplab_protocol::{
    emulated,
    message::{self, Command, Event, Facts, Response},
};

/// For the agent to describe its guest.
const FACTS: Duration = Duration::from_secs(60);
/// Bytes of the description as JSON. That of a real guest has 2 KiB.
const MOST_FACTS: usize = 64 << 10;
/// For the agent to read ahead, which is much.
const PREPARE: Duration = Duration::from_secs(300);
/// From starting QEMU with a saved guest to the agent's answer.
const RESTORE: Duration = Duration::from_secs(30);

const CONSOLE_LOG: &str = "console.log";
/// Exists only if a snapshot was not kept or not usable.
const SNAPSHOT_LOG: &str = "snapshot.log";

/// Adds a line to the snapshot log. The log does not affect the result, so errors are ignored.
fn note(spec: &Spec, text: &str) {
    let log = fs::File::options().create(true).append(true).open(spec.dir.join(SNAPSHOT_LOG));
    let _ = log.and_then(|mut log| writeln!(log, "{text}"));
}

impl Vm {
    /// Restores a guest from a snapshot of its kind, or boots it and keeps a snapshot. Returns it
    /// with the agent's description. The calling thread must outlive the guest: QEMU dies with it.
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
        let (ours, theirs) =
            process::socket_pair().map_err(harness("create the monitor's socket pair"))?;
        let mut vm = Vm::begin(spec, None, Some(theirs), started)?;
        vm.hear(spec, started)?;
        let facts = vm.facts()?;
        if let Err(error) = vm.prepare(spec) {
            // A dead kernel is the result, whatever killed it.
            if error.kind.is_kernel_death() {
                return Err(error);
            }
            note(spec, &format!("no snapshot was kept: the agent did not read ahead: {error}"));
            drop(vm);
            return booted();
        }
        if let Some(flaw) = vm.flaw(spec, &facts) {
            note(spec, &format!("no snapshot was kept: {flaw}"));
            return Ok((vm, facts));
        }
        match snapshots.keep(spec, ours, (&vm.ready, &facts), &spec.dir.join(CONSOLE_LOG)) {
            // Another run keeps a snapshot. This guest is unchanged.
            Ok(Kept::Untouched) => return Ok((vm, facts)),
            Ok(Kept::Saved) => {}
            Err(error) => note(spec, &format!("no snapshot was kept: {error}")),
        }
        // The guest is paused or in an unknown state. Measure a restored one instead, like the
        // guests that follow. A guest that was dying when it was saved would make all of them die.
        vm.process.kill();
        if let Some(death) = vm.death_on_the_way() {
            snapshots.discard(spec);
            return Err(vm.died(death));
        }
        Vm::restored_from(snapshots, spec).map_or_else(booted, Ok)
    }

    /// Why this guest must not become a snapshot, if it must not.
    fn flaw(&self, spec: &Spec, facts: &Facts) -> Option<String> {
        let said = self.console.flaw().map(|line| format!("its kernel said: {line}"));
        said.or_else(|| {
            let clock_source = self.clock_source();
            unfit(spec, clock_source.as_deref().unwrap_or(&facts.clocksource), facts.cpus)
        })
    }

    /// Discards the snapshot of a restored guest whose clock has failed: that of the next would
    /// fail too.
    pub fn give_up_failed_clock(&self, spec: &Spec) {
        let clock = self.clock_source();
        let reason = clock.and_then(|name| unfit(spec, &name, spec.cpus));
        if let (true, Some(reason), Some(snapshots)) = (self.restored(), reason, &spec.snapshots) {
            snapshots.discard(spec);
            note(spec, &format!("the snapshot is discarded: {reason}"));
        }
    }

    /// Restores a guest. Returns None without a snapshot, and discards an unusable one: the caller
    /// then boots.
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
                note(spec, &format!("a snapshot was of no use and is discarded: {error}"));
            })
            .ok()
    }

    /// Asks the agent to describe its guest.
    pub fn facts(&mut self) -> Result<Facts, VmError> {
        match self.request(Command::Facts, FACTS)? {
            Ok(Response::Facts(facts)) => {
                let said = serde_json::to_vec(&facts).map_or(usize::MAX, |facts| facts.len());
                if said > MOST_FACTS {
                    let message = format!(
                        "the agent described the guest in {said} bytes, more than {MOST_FACTS}"
                    );
                    return Err(self.dead(ErrorKind::Protocol, message));
                }
                Ok(*facts)
            }
            Ok(other) => {
                let message = format!("the agent described the guest by {}", shown(&other));
                Err(self.dead(ErrorKind::Protocol, message))
            }
            Err(error) => Err(self.dead(ErrorKind::Guest, error.to_string())),
        }
    }

    /// Has the agent read ahead what restored guests then need not read.
    fn prepare(&mut self, spec: &Spec) -> Result<(), VmError> {
        match self.request(Command::Prepare, PREPARE)? {
            Ok(Response::Done) => {}
            Ok(other) => {
                let message = format!("the agent answered Prepare by {}", shown(&other));
                return Err(self.dead(ErrorKind::Protocol, message));
            }
            // A command that needs the missing part reports it.
            Err(error) => {
                note(spec, &format!("kept, but the agent did not read all ahead: {error}"))
            }
        }
        Ok(())
    }

    /// Starts QEMU and waits for the agent's first message. The calling thread must outlive the
    /// guest.
    pub fn boot(spec: &Spec) -> Result<Vm, VmError> {
        let started = Instant::now();
        let mut vm = Vm::begin(spec, None, None, started)?;
        vm.hear(spec, started)?;
        Ok(vm)
    }

    /// Starts QEMU with a saved guest's state, and tells the agent the time and a random seed.
    fn restore(spec: &Spec, saved: &Saved) -> Result<Vm, VmError> {
        let started = Instant::now();
        let (ours, theirs) =
            process::socket_pair().map_err(harness("create the monitor's socket pair"))?;
        let mut vm = Vm::begin(spec, Some(saved), Some(theirs), started)?;
        vm.console.mind_warnings();
        vm.silence = RESTORE;
        vm.ready = saved.ready.clone();
        let restored = Monitor::open(ours).and_then(|mut monitor| monitor.restore(&saved.state));
        if let Err(error) = restored {
            // A dying QEMU closes its monitor shortly before it exits.
            return Err(vm.link_failed(ErrorKind::QemuStart, &error.to_string()));
        }
        let mut seed = [0; 32];
        fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut seed))
            .map_err(harness("read random numbers"))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Silence counts from here: the agent could not speak before.
        vm.link.heard();
        let awake = Command::Awake { realtime_ns: now.as_nanos() as u64, seed };
        vm.request(awake, RESTORE)?
            .map_err(|error| vm.dead(ErrorKind::Guest, error.to_string()))?;
        vm.restored = true;
        vm.boot_time = started.elapsed();
        vm.silence = spec.deadlines.silence;
        Ok(vm)
    }

    /// Starts QEMU and the threads that watch the guest.
    fn begin(
        spec: &Spec,
        saved: Option<&Saved>,
        monitor: Option<OwnedFd>,
        started: Instant,
    ) -> Result<Vm, VmError> {
        let (sender, signals) = mpsc::sync_channel(link::QUEUE);
        let (console_host, console_guest) =
            process::pipe().map_err(harness("create the console's pipe"))?;
        let (_, mut console_log) = spec.create(CONSOLE_LOG)?;
        let registers = emulated::registers(&spec.dir);
        let put = match saved.filter(|_| spec.played.is_some()) {
            Some(saved) => fs::write(&registers, &saved.registers),
            // Those of a guest that booted here before.
            None => fs::remove_file(&registers).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
        };
        put.map_err(harness(&format!("prepare {}", registers.display())))?;
        let start = match saved {
            None => Start::Boot,
            Some(saved) => {
                // The restored guest does not print its boot again. Ignore a full disk.
                let _ = fs::File::open(&saved.console)
                    .and_then(|mut printed| io::copy(&mut printed, &mut console_log))
                    .and_then(|_| writeln!(console_log, "-- restored from a snapshot --"));
                Start::Restore
            }
        };
        let console = Console::watch(console_host, console_log, sender.clone(), spec.allow.clone())
            .map_err(harness("watch the console"))?;
        let (process, link_host) =
            spec.launcher.launch(spec, start, console_guest, monitor).map_err(|error| VmError {
                // It may say why.
                console_tail: console.tail(),
                ..error
            })?;
        let link = Link::open(link_host, sender).map_err(harness("open the agent's link"))?;
        let mut time = GuestTime::of(process.id());
        let heard = (started, time.now());
        Ok(Vm {
            process,
            console,
            link,
            signals,
            time,
            heard,
            silence: spec.deadlines.boot,
            exact: spec.clock == Clock::Exact,
            next_id: 1,
            boot_time: Duration::ZERO,
            restored: false,
            ready: Ready::default(),
        })
    }

    /// Waits for the agent's first message.
    fn hear(&mut self, spec: &Spec, started: Instant) -> Result<(), VmError> {
        let (began, boot) = (self.time.now(), spec.deadlines.boot);
        let event =
            self.next_event(began, boot, ErrorKind::BootTimeout, "the agent's first word")?;
        match event {
            Event::Ready { version: message::VERSION, release, uptime_ns } => {
                self.ready = Ready { release, uptime: Duration::from_nanos(uptime_ns) };
            }
            Event::Ready { version, .. } => {
                let ours = message::VERSION;
                let message = format!(
                    "the agent speaks protocol {version}, the host {ours}: the initramfs is from \
                     another build"
                );
                return Err(self.dead(ErrorKind::Protocol, message));
            }
            other => {
                let message = format!("the agent began with {}", shown(&other));
                return Err(self.dead(ErrorKind::Protocol, message));
            }
        }
        self.boot_time = started.elapsed();
        self.silence = spec.deadlines.silence;
        if !spec.launcher.features().agent_on_console {
            self.console.mind_warnings();
        }
        Ok(())
    }
}

/// Why a guest with this clock source and number of CPUs is not typical of its kind, if it is not.
fn unfit(spec: &Spec, clock_source: &str, cpus: u32) -> Option<String> {
    let best = spec.arch.platform().clocks;
    if !best.contains(&clock_source) {
        return Some(format!("its clock source is {clock_source}, not {}", best[0]));
    }
    (cpus != spec.cpus).then(|| format!("it runs on {cpus} CPUs, not on {}", spec.cpus))
}
