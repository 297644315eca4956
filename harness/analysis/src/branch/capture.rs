// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the capture points of a trace and checks its hits. `docs/branch-records.md` has the rules.

use super::{
    Symbols, hit,
    symbolic::{digest, form},
    symbols::{is_kernel, is_program},
    waste,
};
use std::{collections::BTreeMap, ops::Range};
use tramplab_model::run::{Arch, BranchSource, CapturePoint, LbrWaste, NamedRecord, Place};
use tramplab_protocol::{
    Point,
    message::{LbrWasteReply, Symbol},
    trace::{Kind, Record, Trace, VcpuTrace},
};

#[cfg(test)]
mod tests;

/// Records kept per capture point at most, unless the traced function is further back.
const KEPT: usize = 512;
/// Records searched for the traced function at most. No CPU keeps a tenth of this. Without a limit,
/// a guest that lies could have a million records named.
pub(super) const FURTHEST: usize = 1 << 14;

/// The helper as a function of its own, which programs call before 6.10.
const HELPER: &str = "bpf_get_branch_snapshot";
/// The helper's static call. It names the target of `#00` where the call is patched out.
const STATIC_CALL: &str = "perf_snapshot_branch_stack";
/// The target of the static call until a PMU driver sets it.
const NO_DRIVER: &str = "__static_call_return0";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    #[error("the guest asked for no hits or names no point at which the program runs")]
    Empty,
    #[error(
        "the program ran {runs} times while armed, expected {expected}: other code triggered it, \
         or a trigger missed{hint}"
    )]
    Runs { runs: u64, expected: u64, hint: &'static str },
    #[error(
        "{found} captures in the trace, expected {expected} ({hits} hits x {points} points){hint}"
    )]
    Count { found: usize, expected: u64, hits: u32, points: usize, hint: &'static str },
    #[error(
        "captures on vCPU {first} and on vCPU {second}: the guest's trigger is not bound to one CPU"
    )]
    Vcpus { first: u32, second: u32 },
    #[error("hit {hit} ({point}) has no record that touches {function} [{start:#x}, {end:#x})")]
    Untouched { hit: usize, point: Point, function: String, start: u64, end: u64 },
    #[error(
        "hit {hit}: {function} is entered again before its exit, so that entries and exits cannot \
         be paired: measure it by a mechanism that runs at one of them"
    )]
    Unpaired { hit: usize, function: String },
    #[error(
        "hit {hit}: {function} was entered {times} times before the program ran: the tracer calls \
         it too, so that its newest record is not the hit's"
    )]
    Reentered { hit: usize, function: String, times: usize },
    #[error(
        "{program} does not call bpf_get_branch_snapshot at a hit, so there is no capture point: \
         trigger and attach tests measure it, and the waste test without =PROGRAM counts the \
         records up to the mechanism's program"
    )]
    NoSnapshot { program: String },
    #[error(
        "{program} called bpf_get_branch_snapshot at {found} of {runs} runs at {point}: its waste \
         differs from hit to hit"
    )]
    Sometimes { program: String, point: Point, found: usize, runs: usize },
    #[error("{}", hit::all_interrupted(*hits))]
    Interrupted { hits: u32 },
}

impl CaptureError {
    /// True if it is due to the user's program: every trace has it.
    pub fn is_of_program(&self) -> bool {
        matches!(self, CaptureError::NoSnapshot { .. } | CaptureError::Sometimes { .. })
    }

    /// True if it is due to the function, which tracers call or which recurs: every trace has it.
    pub fn is_of_function(&self) -> bool {
        matches!(self, CaptureError::Unpaired { .. } | CaptureError::Reentered { .. })
    }
}

/// Counts the wasted records of one armed window of a guest.
pub fn lbr_waste(
    arch: Arch,
    trace: &Trace,
    symbols: &Symbols,
    reply: &LbrWasteReply,
) -> Result<LbrWaste, CaptureError> {
    let (clean, hits) = clean_hits(trace, symbols, reply)?;
    let hashed = hashed(&clean, &reply.function);
    let canonical = hit::most_frequent(&hashed.iter().collect::<Vec<_>>(), |hit| &hit.forms);
    // Report the most frequent way to the function.
    let usual = hit::most_frequent(&canonical, |hit| &hit.digests);
    let reported = usual.first().ok_or(CaptureError::Interrupted { hits })?;
    let points = reported.hit.captures.iter().zip(&reported.digests);
    let points = points.map(|(capture, digest)| CapturePoint {
        point: capture.point,
        wasted: waste::table(arch, &capture.records, &reply.function),
        digest: digest.clone(),
        records: capture.records.clone(),
        by_filter: BTreeMap::new(),
        traced: BTreeMap::new(),
    });
    Ok(LbrWaste {
        source: BranchSource::Virtual,
        family: None,
        mechanism: reply.mechanism,
        function: reply.function.clone(),
        trigger: reply.trigger.clone(),
        snapshot_result: reply.snapshot_result,
        delivered: None,
        hits,
        interrupted_hits: Some(hits - clean.len() as u32),
        agreeing_hits: canonical.len() as u32,
        depth: None,
        points: points.collect(),
    })
}

/// One trigger: a capture per point at which the program runs.
struct Hit {
    captures: Vec<Capture>,
}

#[derive(PartialEq)]
struct Capture {
    point: Point,
    /// Newest first.
    records: Vec<NamedRecord>,
}

struct Hashed<'a> {
    hit: &'a Hit,
    /// Of each point, by which hits are compared.
    forms: Vec<String>,
    /// Of each point, with the way to the function.
    digests: Vec<String>,
}

/// Hashes hits. Most equal the one before to the last address: they take its hashes.
fn hashed<'a>(hits: &'a [Hit], function: &Symbol) -> Vec<Hashed<'a>> {
    let mut hashed: Vec<Hashed> = Vec::with_capacity(hits.len());
    for hit in hits {
        let captures = &hit.captures;
        let (forms, digests) = match hashed.last() {
            Some(before) if before.hit.captures == *captures => {
                (before.forms.clone(), before.digests.clone())
            }
            _ => captures.iter().map(|c| (form(&c.records, function), digest(&c.records))).unzip(),
        };
        hashed.push(Hashed { hit, forms, digests });
    }
    hashed
}

/// A run of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Index in the trace of a record by which the program was surely entered.
    entered: usize,
    /// Only a user's program may take none.
    snapshot: Option<Snapshot>,
}

/// Finds the runs of the program, oldest first.
fn runs(records: &[Record], symbols: &Symbols, program: Option<&Symbol>) -> Vec<Run> {
    let snapshots = snapshots(records, symbols);
    let Some(program) = program else {
        // The capturing program takes one snapshot at each run.
        let run = |snapshot: Snapshot| Run { entered: snapshot.index, snapshot: Some(snapshot) };
        return snapshots.into_iter().map(run).collect();
    };
    let enters = |&index: &usize| hit::enters(program, &records[index]);
    let entries: Vec<usize> = (0..records.len()).filter(enters).collect();
    let ends = entries.iter().skip(1).copied().chain([records.len()]);
    let run = |(&entered, end): (&usize, usize)| {
        let first = snapshots.partition_point(|snapshot| snapshot.call <= entered);
        let snapshot = snapshots.get(first).filter(|snapshot| snapshot.call < end);
        Run { entered, snapshot: snapshot.copied() }
    };
    entries.iter().zip(ends).map(run).collect()
}

/// Returns the records of the one vCPU that ran the program, and its runs, if they are complete.
///
/// Other code may also hit a function that the user names, perhaps while the recorder is being
/// armed. The trace must then have the hits that the agent made, and no more than the program
/// counted. A user's program counts nothing.
fn recorded_runs(
    trace: &Trace,
    symbols: &Symbols,
    reply: &LbrWasteReply,
) -> Result<(Vec<Record>, Vec<Run>), CaptureError> {
    let points = reply.points.len();
    let expected = u64::from(reply.hits) * points as u64;
    if expected == 0 {
        return Err(CaptureError::Empty);
    }
    let has_others = |runs| reply.trigger.is_some() && runs > expected;
    let wrong = |runs| {
        let hint = hit::hint_of_session(points, runs, expected);
        CaptureError::Runs { runs, expected, hint }
    };
    let check = |runs| match runs == expected || has_others(runs) {
        true => Ok(()),
        false => Err(wrong(runs)),
    };
    if reply.program.is_none() {
        check(reply.runs)?;
    }
    let mut found: Option<(&VcpuTrace, Vec<Record>, Vec<Run>)> = None;
    for vcpu in &trace.vcpus {
        let records = hit::with_targets(&vcpu.records, symbols);
        let runs = runs(&records, symbols, reply.program.as_ref());
        match &found {
            _ if runs.is_empty() => {}
            None => found = Some((vcpu, records, runs)),
            Some((first, ..)) => {
                return Err(CaptureError::Vcpus { first: first.index, second: vcpu.index });
            }
        }
    }
    let count =
        |found, hint| CaptureError::Count { found, expected, hits: reply.hits, points, hint };
    let Some((vcpu, records, runs)) = found else {
        return Err(match reply.program {
            None => count(0, "; no BPF program called the snapshot function"),
            Some(_) => wrong(0),
        });
    };
    let counted = match reply.program {
        None => reply.runs,
        Some(_) => runs.len() as u64,
    };
    // Without the oldest records, the hits that are left may be those of other code.
    let dropped = vcpu.has_dropped();
    let are_all = (expected..=counted).contains(&(runs.len() as u64))
        && runs.len().is_multiple_of(points)
        && !(has_others(counted) && dropped);
    if !are_all {
        check(counted)?;
        return Err(count(runs.len(), hit::hint(dropped)));
    }
    Ok((records, runs))
}

/// The name that the source gives a program which kallsyms names `bpf_prog_TAG_NAME`.
fn named_in_c(symbol: &str) -> String {
    let name = symbol.strip_prefix("bpf_prog_").and_then(|rest| rest.split_once('_'));
    name.map_or(symbol, |(_, name)| name).to_owned()
}

/// Checks that runs at one point all take a snapshot, or none. A user's program of a session may
/// only take one at the exit.
fn check_snapshots(runs: &[Run], reply: &LbrWasteReply) -> Result<(), CaptureError> {
    let program = || reply.program.as_ref().map_or_else(String::new, |one| named_in_c(&one.name));
    let points = reply.points.iter().enumerate();
    for (index, &point) in points {
        let at = runs.iter().skip(index).step_by(reply.points.len());
        let (found, runs) = (at.clone().filter(|run| run.snapshot.is_some()).count(), at.len());
        if (1..runs).contains(&found) {
            return Err(CaptureError::Sometimes { program: program(), point, found, runs });
        }
    }
    match runs.iter().any(|run| run.snapshot.is_some()) {
        true => Ok(()),
        false => Err(CaptureError::NoSnapshot { program: program() }),
    }
}

/// Returns the hits without interrupts, and the number of all hits.
fn clean_hits(
    trace: &Trace,
    symbols: &Symbols,
    reply: &LbrWasteReply,
) -> Result<(Vec<Hit>, u32), CaptureError> {
    let (records, runs) = recorded_runs(trace, symbols, reply)?;
    let points = reply.points.len();
    check_snapshots(&runs, reply)?;
    let mut clean = Vec::new();
    let mut previous_end = 0;
    for (number, group) in runs.chunks_exact(points).enumerate() {
        let first = group[0].entered;
        // Search before the first point: a session's exit belongs to the system call of its entry.
        let start = trigger(&records, previous_end, first);
        let last = group[points - 1];
        let seen = last.snapshot.map_or(last.entered, |snapshot| snapshot.index);
        previous_end = seen.max(last.entered) + 1;
        // Check the whole hit first: a handler may run more branches than `FURTHEST`.
        if records[start..previous_end].iter().any(|r| hit::is_interrupt(r, symbols)) {
            continue;
        }
        let entered = |range: Range<usize>| {
            records[range].iter().filter(|record| record.to == reply.function.start).count()
        };
        let function = || reply.function.name.clone();
        if entered(first + 1..previous_end) > 0 {
            return Err(CaptureError::Unpaired { hit: number, function: function() });
        }
        // Only users name functions that tracers may call. System calls before the hit's, such as
        // the one behind the arming instruction, may pass the function, too.
        let times = entered(start..first + 1);
        if reply.trigger.is_some() && times > 1 {
            return Err(CaptureError::Reentered { hit: number, function: function(), times });
        }
        let mut captures = Vec::new();
        for (run, &point) in group.iter().zip(&reply.points) {
            let Some(snapshot) = run.snapshot else { continue };
            let records = named(&records, start, &snapshot, symbols, &reply.function);
            let function = &reply.function;
            let touched = |r: &NamedRecord| {
                waste::contains(function, &r.from) || waste::contains(function, &r.to)
            };
            if !records.iter().any(touched) {
                let (function, start, end) = (function.name.clone(), function.start, function.end);
                return Err(CaptureError::Untouched { hit: number, point, function, start, end });
            }
            captures.push(Capture { point, records });
        }
        clean.push(Hit { captures });
    }
    Ok((clean, (runs.len() / points) as u32))
}

/// A capture point of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Index in the trace of the newest record that the snapshot sees.
    pub index: usize,
    /// Index of the program's call for it. The kernel may have taken it before that.
    pub call: usize,
    /// The static call was patched out: `#00` is added by rule.
    pub modelled: bool,
}

/// Finds the capture points, oldest first.
pub(super) fn snapshots(records: &[Record], symbols: &Symbols) -> Vec<Snapshot> {
    let (captures, helpers) = (symbols.starts(is_snapshot), symbols.starts(is_helper));
    let drivers = symbols.starts(|symbol| is_driver(&symbol.name));
    let at = |is: &dyn Fn(&Record) -> bool| -> Vec<usize> {
        records
            .iter()
            .enumerate()
            .filter(|(_, record)| is(record))
            .map(|(index, _)| index)
            .collect()
    };
    // Search the records once each: a guest may enter many helpers and leave none.
    let is_one = |starts: &[u64], address: u64| starts.binary_search(&address).is_ok();
    let taken = at(&|record| is_one(&captures, record.to));
    let returns = at(&|r| r.kind == Kind::Ret && symbols.find(r.to).is_some_and(is_program));
    let next = |sorted: &[usize], index: usize| {
        sorted.get(sorted.partition_point(|&at| at <= index)).copied()
    };
    let mut found = Vec::new();
    // The kernel's own snapshot, which the next program's helper hands over.
    let mut early = None;
    let mut index = 0;
    while let Some(record) = records.get(index) {
        let by_program = symbols.find(record.from).is_some_and(is_program);
        if record.kind.is_call() && by_program {
            if is_one(&captures, record.to) {
                found.push(Snapshot { index, call: index, modelled: false });
                early = None;
            } else if is_one(&helpers, record.to) {
                // The helper makes its static call before it branches. A call that left no record
                // therefore stands right behind the helper's entry.
                let within = next(&taken, index)
                    .filter(|&taken| next(&returns, index).is_none_or(|r| taken <= r));
                let at = within.or(early.take());
                let modelled = at.is_none();
                found.push(Snapshot { index: at.unwrap_or(index), call: index, modelled });
                index = within.unwrap_or(index);
            }
        } else if record.kind.is_call() && is_one(&drivers, record.to) {
            early = Some(index);
        }
        index += 1;
    }
    found
}

fn is_helper(symbol: &Symbol) -> bool {
    symbol.module.is_none() && symbol.name == HELPER
}

/// Matches a PMU driver's function, such as `intel_pmu_snapshot_arch_branch_stack` or
/// `amd_pmu_v2_snapshot_branch_stack`, and the stand-in. Other code calls the stand-in too, but
/// programs call it only for a snapshot.
fn is_snapshot(symbol: &Symbol) -> bool {
    symbol.name == NO_DRIVER || is_driver(&symbol.name)
}

pub(super) fn is_driver(name: &str) -> bool {
    // `__SCT__perf_snapshot_branch_stack` is the static call's trampoline, not its target.
    name.contains("_snapshot_") && name.ends_with("branch_stack") && !name.starts_with("__SC")
}

/// Finds the system call that triggered a hit: the newest since the hit before. Returns
/// `previous_end`, where that hit ended, if there is none.
fn trigger(records: &[Record], previous_end: usize, capture: usize) -> usize {
    let from_user = |record: &Record| record.kind == Kind::Syscall && !is_kernel(record.from);
    records[previous_end..=capture]
        .iter()
        .rposition(from_user)
        .map_or(previous_end, |i| previous_end + i)
}

/// Names the records from `start` to the snapshot; newest first.
fn named(
    records: &[Record],
    start: usize,
    snapshot: &Snapshot,
    symbols: &Symbols,
    function: &Symbol,
) -> Vec<NamedRecord> {
    let mut named = Vec::new();
    if snapshot.modelled {
        let helper = symbols.place(records[snapshot.index].to);
        let target =
            Place { address: 0, symbol: Some(STATIC_CALL.to_owned()), module: None, offset: 0 };
        named.push(NamedRecord { from: helper, to: target, kind: Kind::Call, modelled: true });
    }
    let touches =
        |r: &Record| [r.from, r.to].iter().any(|a| (function.start..function.end).contains(a));
    let mut touched = false;
    for record in records[start..=snapshot.index].iter().rev() {
        if named.len() >= KEPT && touched || named.len() >= FURTHEST {
            break;
        }
        touched |= touches(record);
        named.push(symbols.named(record));
    }
    named
}
