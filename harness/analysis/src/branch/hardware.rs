// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts waste in the CPU's own branch records, in the form that a trace gives.
//!
//! [`depth`] and [`hardware_waste`] first check that the records are the CPU's own.

use super::{
    Branch, Filter, Model, Symbols,
    capture::is_driver,
    hit,
    model::Seen,
    symbolic::digest,
    symbols::{PROGRAM, is_kernel},
    waste,
};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_model::run::{BranchSource, CapturePoint, LbrWaste, NamedRecord, Place, WasteCount};
use tramplab_protocol::{
    message::{CpuRecords, LbrWasteReply, Snapshot},
    trace::{Kind, Record},
};

/// The only model whose records KVM passes on to a guest.
pub const PASSED_ON: Model = Model::IntelLbr;

/// `PERF_SAMPLE_BRANCH_KERNEL` and `PERF_SAMPLE_BRANCH_TYPE_SAVE`, which adds each record's kind.
const KERNEL_WITH_TYPES: u64 = 1 << 1 | 1 << 16;

/// Returns the model of a waste: `asked` for a trace, [`PASSED_ON`] for hardware records.
pub fn model(waste: &LbrWaste, asked: Model) -> Model {
    match waste.source {
        BranchSource::Hardware => PASSED_ON,
        BranchSource::Virtual => asked,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HardwareError {
    #[error("the guest has no LBR: its kernel refuses an event with a branch stack ({0})")]
    Refused(String),
    #[error(
        "the guest has no LBR: no PMU in /sys/bus/event_source/devices has caps/branches, the \
         number of records it keeps"
    )]
    NoDepth,
    #[error(
        "the guest's helper returned {result} under an event with a branch stack (-2: no driver; \
         0: nothing recorded)"
    )]
    Result { result: i64 },
    #[error("the guest's helper returned {entries} records, and its CPU keeps {depth}")]
    Entries { entries: usize, depth: u32 },
    #[error(
        "the guest's records do not lead from its program into a PMU driver's snapshot function: \
         they are of other code"
    )]
    Elsewhere,
    #[error(
        "all {0} hits of filter {1} left no record: another user has the LBR (look for `fail to \
         passthrough LBR` in the host's log)"
    )]
    Empty(usize, Filter),
    #[error("the guest's reply has {found} snapshots of filter {filter}, expected {expected}")]
    Count { filter: Filter, found: usize, expected: usize },
}

/// Returns the `branch_sample_type` of each filter's event, in the order of [`Branch::ALL`].
pub fn events() -> Vec<u64> {
    Branch::ALL.iter().map(|branch| branch.perf_bit() | KERNEL_WITH_TYPES).collect()
}

/// Checks that the guest's kernel knows a branch stack and returned records from it; returns how
/// many records the CPU keeps. [`hardware_waste`] checks the function that took them.
pub fn depth(reply: &LbrWasteReply) -> Result<u32, HardwareError> {
    if let Some(refused) = &reply.pmu.refused {
        return Err(HardwareError::Refused(refused.clone()));
    }
    let depth = reply.pmu.depth.filter(|&depth| depth > 0).ok_or(HardwareError::NoDepth)?;
    if reply.snapshot_result <= 0 || reply.snapshot.iter().all(|&(from, _)| from == 0) {
        return Err(HardwareError::Result { result: reply.snapshot_result });
    }
    let entries = reply.snapshot.len();
    if entries > depth as usize {
        return Err(HardwareError::Entries { entries, depth });
    }
    Ok(depth)
}

/// Returns the kernel addresses in the reply, for the agent to resolve: ascending, each once.
pub fn addresses(reply: &LbrWasteReply) -> Vec<u64> {
    let entries =
        reply.hardware.iter().flat_map(|one| &one.snapshots).flat_map(|snapshot| &snapshot.entries);
    let addresses: BTreeSet<u64> = entries
        .flat_map(|&(from, to, _)| [from, to])
        .filter(|&address| is_kernel(address))
        .collect();
    addresses.into_iter().collect()
}

/// Counts the waste in the CPU's own records.
///
/// For each filter, the most frequent form of its hits counts, as for a trace.
pub fn hardware_waste(reply: &LbrWasteReply, symbols: &Symbols) -> Result<LbrWaste, HardwareError> {
    let depth = depth(reply)?;
    let mut points: Vec<CapturePoint> = Vec::new();
    let (mut interrupted_hits, mut agreeing_hits) = (0, reply.hits);
    for (branch, event) in Branch::ALL.into_iter().zip(events()) {
        let filter = Filter::of(branch);
        let hits = hits(reply, event, filter, depth, symbols)?;
        let clean: Vec<&Hit> = hits.iter().filter(|hit| !hit.interrupted).collect();
        let form = |hit: &Hit| hit.points.iter().map(|records| digest(records)).collect::<Vec<_>>();
        // If interrupts fell into all hits, count them with the interrupts' records.
        let looked_at = if clean.is_empty() { hits.iter().collect() } else { clean.clone() };
        let canonical = hit::most_frequent(&looked_at, form);
        let Some(first) = canonical.first() else {
            return Err(HardwareError::Count { filter, found: 0, expected: reply.points.len() });
        };
        if branch == Branch::Any {
            if !first.points.iter().all(|records| leads_into_driver(records)) {
                return Err(HardwareError::Elsewhere);
            }
            interrupted_hits = (hits.len() - clean.len()) as u32;
            points = first
                .points
                .iter()
                .zip(&reply.points)
                .map(|(records, &point)| CapturePoint {
                    point,
                    records: records.clone(),
                    by_filter: BTreeMap::new(),
                    digest: digest(records),
                    wasted: BTreeMap::new(),
                })
                .collect();
        }
        agreeing_hits = agreeing_hits.min(canonical.len() as u32);
        for (point, records) in points.iter_mut().zip(&first.points) {
            let seen: Vec<Seen> = records.iter().map(Seen::whole).collect();
            let count: WasteCount = waste::count_of(&seen, &reply.function);
            let counts = point.wasted.entry(PASSED_ON.name().to_owned()).or_default();
            counts.insert(branch.name().to_owned(), count);
            point.by_filter.insert(branch.name().to_owned(), records.clone());
        }
    }
    for point in &mut points {
        point.by_filter.remove(Branch::Any.name());
    }
    Ok(LbrWaste {
        source: BranchSource::Hardware,
        mechanism: reply.mechanism,
        function: reply.function.clone(),
        trigger: reply.trigger.clone(),
        snapshot_result: reply.snapshot_result,
        delivered: None,
        hits: reply.hits,
        interrupted_hits,
        agreeing_hits,
        depth: Some(depth),
        points,
    })
}

/// Counts the records that the driver itself left before it stopped the ring: those newer than
/// the transfer into the driver.
pub fn of_the_driver(records: &[NamedRecord]) -> Option<usize> {
    let is_entry = |to: &Place| {
        to.offset == 0 && to.module.is_none() && to.symbol.as_deref().is_some_and(is_driver)
    };
    records.iter().position(|record| is_entry(&record.to))
}

/// One hit: the records of each point, newest first.
struct Hit {
    points: Vec<Vec<NamedRecord>>,
    interrupted: bool,
}

fn hits(
    reply: &LbrWasteReply,
    event: u64,
    filter: Filter,
    depth: u32,
    symbols: &Symbols,
) -> Result<Vec<Hit>, HardwareError> {
    let expected = reply.hits as usize * reply.points.len();
    let none = CpuRecords { branch_sample_type: event, snapshots: Vec::new() };
    let found = reply.hardware.iter().find(|one| one.branch_sample_type == event).unwrap_or(&none);
    if found.snapshots.len() != expected || expected == 0 {
        return Err(HardwareError::Count { filter, found: found.snapshots.len(), expected });
    }
    if let Some(&Snapshot { result, .. }) =
        found.snapshots.iter().find(|snapshot| snapshot.result < 0)
    {
        return Err(HardwareError::Result { result });
    }
    if let Some(snapshot) =
        found.snapshots.iter().find(|snapshot| snapshot.entries.len() > depth as usize)
    {
        return Err(HardwareError::Entries { entries: snapshot.entries.len(), depth });
    }
    // A filter may select nothing, as a hit need not have an indirect jump. `any` always selects.
    if filter == Filter::of(Branch::Any)
        && found.snapshots.iter().all(|snapshot| records(&snapshot.entries).is_empty())
    {
        return Err(HardwareError::Empty(reply.hits as usize, filter));
    }
    let hit = |snapshots: &[Snapshot]| {
        let points: Vec<Vec<Record>> = snapshots.iter().map(|s| records(&s.entries)).collect();
        let interrupted = points.iter().flatten().any(|record| hit::is_interrupt(record, symbols));
        let named = |records: &Vec<Record>| records.iter().map(|r| symbols.named(r)).collect();
        Hit { points: points.iter().map(named).collect(), interrupted }
    };
    Ok(found.snapshots.chunks_exact(reply.points.len()).map(hit).collect())
}

/// Checks that the program called a driver and not the stand-in: the plugin delivers records too.
/// Before 6.10 the helper stands between program and driver.
fn leads_into_driver(records: &[NamedRecord]) -> bool {
    let of_program = |from: &Place| {
        let is_program = |name: &str| name.starts_with(PROGRAM);
        from.module.as_deref() == Some("bpf") && from.symbol.as_deref().is_some_and(is_program)
    };
    of_the_driver(records)
        .is_some_and(|entry| records[entry..].iter().any(|record| of_program(&record.from)))
}

/// Returns the entries that are records. To drop one, the driver moves up those behind it, but it
/// returns as many entries as there are slots: zeroes, or copies of the last record, fill the end.
fn records(entries: &[(u64, u64, u64)]) -> Vec<Record> {
    let kept = entries.iter().take_while(|(from, ..)| *from != 0);
    let mut records: Vec<Record> = kept
        .map(|&(from, to, flags)| Record {
            from,
            to,
            kind: kind(flags),
            instructions: 0,
            accesses: None,
        })
        .collect();
    while let [.., before, last] = records[..]
        && before == last
    {
        records.pop();
    }
    records
}

/// Decodes `type`: four bits of the flags, behind `mispred`, `predicted`, `in_tx`, `abort` and
/// `cycles` (K `include/uapi/linux/perf_event.h`). Among the records that the kernel hands over,
/// only `int` has no type (K `arch/x86/events/utils.c`).
fn kind(flags: u64) -> Kind {
    match flags >> 20 & 0xf {
        1 => Kind::Cond,
        2 => Kind::Jump,
        3 => Kind::IndJump,
        4 => Kind::Call,
        5 => Kind::IndCall,
        6 => Kind::Ret,
        7 => Kind::Syscall,
        8 => Kind::Sysret,
        11 => Kind::Iret,
        12 => Kind::Interrupt,
        _ => Kind::Int,
    }
}
