// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds the records of hits against QEMU's own log of the same hits.

use super::LIMIT;
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
    BesideSet, Mechanism,
    message::{Command, GuestError, Response, TriggerReply, TriggerRequest},
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

fn hit(
    vm: &mut Vm,
    mechanism: Mechanism,
    function: Option<&str>,
) -> Result<TriggerReply, GuestError> {
    let request = TriggerRequest {
        mechanism,
        program: None,
        function: function.map(str::to_owned),
        command: None,
        beside: BesideSet::default(),
        hits: 1,
        warmup: 0,
        timed: 1,
        rounds: 0,
        estimated: 0,
    };
    match vm.request(Command::Trigger(request), LIMIT).unwrap()? {
        Response::Trigger(reply) => Ok(*reply),
        other => panic!("{other:?}"),
    }
}

/// Leaves out the branches that a QEMU that reports no interrupts cannot tell: conditional ones
/// right before an interrupt. The recorder waits for the handler's return to see if they were taken.
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

/// One hit of each mechanism.
fn hits_agree_with_the_log(arch: Arch) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("monitor");
    let mut spec = spec(arch, dir.path());
    let monitor = format!("unix:{},server,nowait", socket.display());
    spec.qemu.arguments = ["-monitor", &monitor].map(OsString::from).into();
    let mut vm = Vm::boot(&spec).unwrap();
    let mut monitor = Monitor::connect(&socket);
    let mut reader = qemu_log::Reader::new(arch);
    let whole = Mechanism::KERNEL.into_iter().chain(Mechanism::USER);
    let whole = whole.map(|mechanism| (mechanism, None));
    let probed = ["user_nop", "user_step", "user_ret"];
    let probed = probed.map(|function| (Mechanism::Uprobe, Some(function)));
    let (mut number, mut compared) = (0, 0);
    for (mechanism, function) in whole.chain(probed) {
        let what = format!("{mechanism} {}", function.unwrap_or_default());
        // The agent reads some tables only once: before the log begins.
        match hit(&mut vm, mechanism, function) {
            Ok(_) => number += 1,
            Err(GuestError::Unsupported(why)) => {
                println!("{what}: {why}");
                continue;
            }
            Err(error) => panic!("{what}: {error}"),
        }
        // The time that the agent needs for a hit and all before it, and the part of it without a
        // log, which would take minutes.
        let (mut whole, mut part) = (Duration::ZERO, 0.0);
        loop {
            let file = trace::file_name(dir.path(), number);
            number += 1;
            let log = dir.path().join("log");
            monitor.ask(&format!("logfile {}", log.display()));
            let began = Instant::now();
            let (reply, seen) = thread::scope(|scope| {
                let hit = scope.spawn(|| hit(&mut vm, mechanism, function).unwrap());
                thread::sleep(whole.mul_f64(part));
                if !whole.is_zero() {
                    monitor.ask(&format!("log {}", qemu_log::ITEMS));
                }
                // Behind the hit the agent reads all symbols.
                while !file.exists() && !hit.is_finished() {
                    thread::sleep(Duration::from_millis(1));
                }
                let seen = began.elapsed();
                monitor.ask("log none");
                (hit.join().unwrap(), seen)
            });
            monitor.ask("logfile /dev/null");
            if whole.is_zero() {
                (whole, part) = (seen, PART);
                continue;
            }
            let trace = Trace::decode(&fs::read(&file).unwrap()).unwrap();
            let events = reader.read(BufReader::new(File::open(&log).unwrap()));
            fs::remove_file(&log).unwrap();
            let [vcpu] = &trace.vcpus[..] else { panic!("{what}: {} vCPUs", trace.vcpus.len()) };
            let records = vcpu.records.iter().map(|&record| Record { accesses: None, ..record });
            let (logged, records): (Vec<Record>, Vec<Record>) = match trace.discontinuities {
                true => (transfers(&events, true), records.collect()),
                false => (decidable(transfers(&events, false)), decidable(records)),
            };
            match compare(&logged, &records) {
                Ok(()) => println!("{what}: {} of {} records", records.len(), logged.len()),
                // The window may have begun before the log.
                Err(_) if part > 0.0 => {
                    part = 0.0;
                    continue;
                }
                Err(difference) => panic!("{what}: {difference}"),
            }
            // An interrupt may return to its start, too.
            let runs = vcpu.records.iter().filter(|record| record.to == reply.program.start);
            assert!(runs.count() >= reply.points.len(), "{what}");
            compared += 1;
            break;
        }
    }
    assert!(compared >= 20, "{compared}");
    vm.power_off(LIMIT).unwrap();
}

/// The part of the time before a hit that is not logged at first.
const PART: f64 = 0.8;

/// The transfers of a log, told or not of interrupts.
fn transfers(events: &[Event], told: bool) -> Vec<Record> {
    let is_block = |event: &Event| matches!(event, Event::Block(_));
    let known = events.split(|event| matches!(event, Event::Unknown));
    let parts = known.flat_map(|events| {
        let first = events.iter().position(is_block).unwrap_or(events.len());
        let transfers = qemu_log::transfers(&events[first..]);
        match told {
            true => transfers.iter().map(|transfer| transfer.record).collect(),
            false => qemu_log::without_being_told(&transfers),
        }
    });
    parts.collect()
}
