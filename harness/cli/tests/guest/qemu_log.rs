// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds the records of hits against QEMU's own log of the same hits.

use super::{
    LIMIT,
    trigger::{ask, request},
};
use crate::machine::spec;
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tramplab_model::run::Arch;
use tramplab_protocol::{
    Mechanism,
    mechanism::Site,
    message::{GuestError, TriggerReply, TriggerRequest},
    trace::{self, Kind, Record, Trace},
};
use tramplab_testdata::{
    compare::difference,
    qemu_log::{self, Event},
};
use tramplab_vm::Vm;

on_each_arch!(hits_agree_with_the_log, ignore = "full: logs each instruction of minutes");

/// QEMU's monitor for people, which starts and ends the log while the guest runs.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn connect(path: &Path) -> Monitor {
        let mut monitor = Monitor(BufReader::new(UnixStream::connect(path).unwrap()));
        monitor.prompt();
        monitor
    }

    fn prompt(&mut self) {
        let mut seen = Vec::new();
        while !seen.ends_with(b"(qemu) ") {
            assert!(self.0.read_until(b' ', &mut seen).unwrap() > 0, "the monitor closed");
        }
    }

    fn ask(&mut self, command: &str) {
        writeln!(self.0.get_mut(), "{command}").unwrap();
        self.prompt();
    }
}

/// Leaves out the branches that a QEMU that reports no interrupts cannot tell: conditional ones
/// right before an interrupt. The recorder sees at the handler's return if they were taken.
fn decidable(records: impl IntoIterator<Item = Record>) -> Vec<Record> {
    let mut whole: Vec<Record> = Vec::new();
    for mut record in records {
        if record.kind == Kind::Interrupt {
            record.from = 0;
            let is_at_once = record.instructions == 0;
            if let Some(branch) = whole.pop_if(|last| is_at_once && last.kind == Kind::Cond) {
                record.instructions = branch.instructions;
            }
        }
        whole.push(record);
    }
    whole
}

/// Finds the records of a window among all transfers of a log, and compares them.
fn compare(logged: &[Record], records: &[Record]) -> Result<(), String> {
    // The first one ends a block that began before the window.
    let rest = &records[1..];
    let alike = |at: &usize| logged[*at..].iter().zip(rest).take_while(|(a, b)| a == b).count();
    let at = (0..logged.len()).max_by_key(alike).unwrap_or_default();
    let expected = &logged[at..(at + rest.len()).min(logged.len())];
    difference(expected, rest).map_or(Ok(()), Err)
}

/// The transfers of a log, as far as QEMU reports interrupts.
fn transfers(events: &[Event], is_told: bool) -> Vec<Record> {
    let parts = qemu_log::parts(events);
    let records = parts.iter().flat_map(|part| match is_told {
        true => part.iter().map(|transfer| transfer.record).collect(),
        false => qemu_log::without_being_told(part),
    });
    records.collect()
}

/// A guest whose instructions QEMU can log.
struct Logged<'a> {
    vm: &'a mut Vm,
    dir: &'a Path,
    monitor: Monitor,
    reader: qemu_log::Reader,
    traces: u64,
}

impl Logged<'_> {
    /// Makes one hit. The log begins after `delay`, and ends when the hit is over: behind it the
    /// agent reads all symbols, which would take minutes. Returns how long all up to the hit took.
    fn hit(
        &mut self,
        request: &TriggerRequest,
        delay: Option<Duration>,
    ) -> Result<(TriggerReply, Duration), GuestError> {
        let trace = trace::file_name(self.dir, self.traces);
        let began = Instant::now();
        let (vm, monitor) = (&mut *self.vm, &mut self.monitor);
        let (reply, taken) = thread::scope(|scope| {
            let hit = scope.spawn(|| ask(vm, request.clone()));
            if let Some(delay) = delay {
                thread::sleep(delay);
                monitor.ask(&format!("log {}", qemu_log::ITEMS));
            }
            while !trace.exists() && !hit.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            let taken = began.elapsed();
            monitor.ask("log none");
            (hit.join().unwrap(), taken)
        });
        let reply = reply?;
        self.traces += 1;
        Ok((reply, taken))
    }

    /// Compares the records of one hit with the log, which begins after `delay`.
    fn compare(&mut self, request: &TriggerRequest, delay: Duration) -> Result<(), String> {
        let log = self.dir.join("log");
        self.monitor.ask(&format!("logfile {}", log.display()));
        let trace = trace::file_name(self.dir, self.traces);
        let (reply, _) = self.hit(request, Some(delay)).unwrap();
        self.monitor.ask("logfile /dev/null");
        let events = self.reader.read(BufReader::new(File::open(&log).unwrap()));
        fs::remove_file(&log).unwrap();
        let trace = Trace::decode(&fs::read(trace).unwrap()).unwrap();
        let [vcpu] = &trace.vcpus[..] else { panic!("{} vCPUs", trace.vcpus.len()) };
        // A return from an interrupt may lead to its start, too. A program at tracepoints of system
        // calls runs for the agent's own, as well.
        let runs = vcpu.records.iter().filter(|record| record.to == reply.program.start);
        let entered = runs.clone().filter(|record| record.kind != Kind::Iret).count();
        let points = reply.points.len();
        assert!(points <= runs.count(), "{request:?}");
        let is_asked = request.mechanism.site() != Site::SyscallTracepoint;
        assert!(!is_asked || entered <= points, "{request:?}");
        let records = vcpu.records.iter().map(|&record| Record { accesses: None, ..record });
        let logged = transfers(&events, trace.discontinuities);
        let (logged, records) = match trace.discontinuities {
            true => (logged, records.collect()),
            false => (decidable(logged), decidable(records)),
        };
        println!("{} records, {} in the log", records.len(), logged.len());
        compare(&logged, &records)
    }
}

/// The part of the time before a hit that is not logged at first.
const PART: f64 = 0.8;

/// One hit of each mechanism.
fn hits_agree_with_the_log(arch: Arch) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("monitor");
    let mut spec = spec(arch, dir.path());
    let monitor = format!("unix:{},server,nowait", socket.display());
    spec.qemu.arguments = ["-monitor", &monitor].map(OsString::from).into();
    let mut vm = Vm::boot(&spec).unwrap();
    let mut guest = Logged {
        vm: &mut vm,
        dir: dir.path(),
        monitor: Monitor::connect(&socket),
        reader: qemu_log::Reader::new(arch),
        traces: 0,
    };
    let usual = Mechanism::KERNEL.into_iter().chain(Mechanism::USER);
    let usual = usual.map(|mechanism| (mechanism, None));
    let probed = ["user_nop", "user_step", "user_ret"];
    let probed = probed.map(|function| (Mechanism::Uprobe, Some(function)));
    let mut compared = 0;
    for (mechanism, function) in usual.chain(probed) {
        let one = request(mechanism, function);
        let one = TriggerRequest { hits: 1, warmup: 0, timed: 1, rounds: 0, ..one };
        println!("{mechanism} {}", function.unwrap_or_default());
        match guest.hit(&one, None) {
            Ok(_) => {}
            Err(GuestError::Unsupported(why)) => {
                println!("{why}");
                continue;
            }
            Err(error) => panic!("{mechanism}: {error}"),
        }
        // The agent reads some tables only at first.
        let (_, taken) = guest.hit(&one, None).unwrap();
        if guest.compare(&one, taken.mul_f64(PART)).is_err() {
            // The hit may have begun before the log.
            guest.compare(&one, Duration::ZERO).unwrap();
        }
        compared += 1;
    }
    assert!(compared >= 20, "{compared}");
    vm.power_off(LIMIT).unwrap();
}
