// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures branch-record waste: attaches a capturing program and hits it while the recorder is
//! armed.

use crate::bpf::{self, Link, Misses};
use crate::buffers::Buffers;
use crate::capture::{Capture, RUNS};
use crate::delivering::Delivering;
use crate::hits;
use crate::known::Known;
use crate::link::Heartbeat;
use crate::measuring_cpu;
use crate::method::Method;
use crate::own::{self, Measured};
use crate::role;
use crate::tail_calls::Loaded;
use crate::trigger::{Hit, Recording, Trigger};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use tramplab_protocol::Mechanism;
use tramplab_protocol::message::{
    DriverHit, DriverRecords, GuestError, LbrWasteReply, LbrWasteRequest, Pmu,
};

/// A capturing program and its link. Dropping them detaches and removes them from kallsyms.
#[derive(Debug)]
pub struct Attached {
    _link: Link,
    _program: Loaded,
}

/// Runs the measurement. The program stays attached while the second value lives.
pub fn measure(
    request: &LbrWasteRequest,
    known: &Known,
    heartbeat: Option<&Heartbeat>,
) -> Result<(LbrWasteReply, Attached), GuestError> {
    let mechanism = request.mechanism;
    let own = request.program.as_ref();
    let measured = Measured::prepare(own)?;
    let named = request.function.as_deref();
    let Hit { method, target, trigger, function } =
        hits::prepare(mechanism, named, request.command.as_deref(), own, known, heartbeat)?;
    let pulls = trigger.pulls(request.hits);
    let capture = known.capture()?;
    let program = match &measured {
        Measured::Empty => Loaded::from(capture.load(method, &target)?),
        Measured::Own(_) => {
            measured.load(method, &target).map_err(|error| measured.refusal(&error))?
        }
    };
    let link = method.link(program.as_fd(), &target)?;
    let buffers = measured.buffers()?;
    // Only a machine with branch records has such an event. Without one the snapshot is an error.
    let kinds = request.events.first().copied().unwrap_or(bpf::ALL_BRANCHES);
    let branches = bpf::record_branches(measuring_cpu::get() as i32, kinds);
    let pmu = Pmu { depth: depth(), refused: branches.as_ref().err().map(ToString::to_string) };

    let delivering = match request.deliver {
        Some(cpu) => Some(Delivering::new(known.symbols()?, cpu, 0)?),
        None => None,
    };
    trigger.pull_all(request.warmup, &buffers)?;
    let (reset, read) = (|| capture.reset(), || capture.read());
    let recording = delivering.as_ref().map_or(Recording::Branches, Recording::Delivered);
    let record = || trigger.record(pulls, &buffers, heartbeat, recording, reset, read);
    let expected = u64::from(pulls * trigger.hits()) * mechanism.points().len() as u64;
    let mut after = record()?;
    // A guest's trace tells all of its hits. On a busy machine, others hit the function as well.
    if role::is_own_machine() {
        for _attempt in 0..attempts() {
            if after.runs == expected {
                break;
            }
            after = record()?;
        }
        if after.runs != expected {
            return Err(disturbed(&function.name, expected, after.runs));
        }
    }
    let missed = Misses::read(program.as_fd(), &link)?;
    // The kernel serves one of two events that want different branches.
    let of_driver = match branches {
        Ok(branches) if !request.events.is_empty() => {
            drop(branches);
            let other = capture.load(Method::new(Mechanism::RawTp, known.btf()?)?, &target)?;
            let each = |&kinds: &u64| {
                hits_under(kinds, &trigger, &function.name, request, capture, other.as_fd())
            };
            request.events.iter().map(each).collect::<Result<_, _>>()?
        }
        Ok(_) | Err(_) => Vec::new(),
    };
    let remarks = [measured.remarks(), missed.remarks()].concat();
    let symbol = match measured {
        Measured::Empty => None,
        Measured::Own(_) => Some(own::symbol(program.as_fd(), &known.names()?)?),
    };
    let newest = after.newest(1).pop();
    let reply = LbrWasteReply {
        mechanism,
        function,
        trigger: trigger.found(),
        points: mechanism.points().to_vec(),
        program: symbol,
        hits: pulls * trigger.hits(),
        runs: after.runs,
        snapshot_result: newest.as_ref().map_or(0, |snapshot| snapshot.result),
        snapshot: newest
            .map(|snapshot| snapshot.entries.into_iter().map(|(from, to, _)| (from, to)).collect())
            .unwrap_or_default(),
        pmu,
        of_driver,
        remarks,
    };
    Ok((reply, Attached { _link: link, _program: program }))
}

/// Hits that are tried again, at most, because the program ran more or less often than it should.
fn attempts() -> u32 {
    if role::is_own_machine() { 100 } else { 5 }
}

/// The program's count includes hits of other tasks. Sorting them out before the snapshot would
/// cost records, and after it they have overwritten it.
fn disturbed(function: &str, expected: u64, runs: u64) -> GuestError {
    GuestError::failed(format!(
        "the program ran {runs} times, not {expected}, in the last of {} attempts: other tasks hit \
         {function} as well; stop them, or measure it in a guest (--vm qemu)",
        attempts() + 1
    ))
}

fn too_many(points: usize, own_machine: bool) -> GuestError {
    let way = match own_machine {
        true => "measure it in a guest (--vm qemu)",
        false => "count virtual records (--branches virtual)",
    };
    GuestError::failed(format!(
        "a trigger runs the program {points} times, and the driver's records of {RUNS} runs are \
         kept: {way}"
    ))
}

/// The driver's records of each hit. Every hit gets a new event, so that the ring begins empty.
/// `other` is a capturing program that needs no hit.
fn hits_under(
    branch_sample_type: u64,
    trigger: &Trigger,
    function: &str,
    request: &LbrWasteRequest,
    capture: &Capture,
    other: BorrowedFd<'_>,
) -> Result<DriverRecords, GuestError> {
    let points = request.mechanism.points().len() * trigger.hits() as usize;
    if points > RUNS {
        return Err(too_many(points, role::is_own_machine()));
    }
    let record = |kinds| bpf::record_branches(measuring_cpu::get() as i32, kinds);
    let warm = record(branch_sample_type)?;
    trigger.pull_all(request.warmup, &Buffers::default())?;
    drop(warm);
    let mut hits = Vec::new();
    for _hit in 0..trigger.pulls(request.hits) {
        let mut attempt = 0;
        let (before, after) = loop {
            let full = record(bpf::ALL_BRANCHES)?;
            bpf::test_run(other)?;
            drop(full);
            let _branches = record(branch_sample_type)?;
            let before = capture.read().newest(1).pop();
            capture.reset();
            trigger.pull()?;
            let after = capture.read();
            // Other code may hit the user's function as well.
            match before {
                Some(before) if after.runs == points as u64 => break (before, after),
                _ if attempt == attempts() && role::is_own_machine() => {
                    return Err(disturbed(function, points as u64, after.runs));
                }
                _ if attempt == attempts() => {
                    return Err(GuestError::failed(format!(
                        "a hit ran the program {} times, not {points}",
                        after.runs
                    )));
                }
                _ => attempt += 1,
            }
        };
        if after.cpu as usize != measuring_cpu::get() {
            return Err(GuestError::failed(format!(
                "a hit was on CPU {}, not {}",
                after.cpu,
                measuring_cpu::get()
            )));
        }
        hits.push(DriverHit { before, snapshots: after.newest(points) });
    }
    Ok(DriverRecords { branch_sample_type, hits })
}

/// Records of the PMU that keeps most: cores may differ.
fn depth() -> Option<u32> {
    let devices = fs::read_dir("/sys/bus/event_source/devices").ok()?.flatten();
    let cpus = devices.filter(|device| device.file_name().to_string_lossy().starts_with("cpu"));
    cpus.filter_map(|cpu| {
        fs::read_to_string(cpu.path().join("caps/branches")).ok()?.trim().parse().ok()
    })
    .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_function_and_the_way_out() {
        let texts = [
            (disturbed("vfs_read", 1, 7), ["vfs_read as well", "--vm qemu"]),
            (too_many(99, true), ["99 times", "(--vm qemu)"]),
            (too_many(99, false), ["99 times", "(--branches virtual)"]),
        ];
        for (error, words) in texts {
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }
}
