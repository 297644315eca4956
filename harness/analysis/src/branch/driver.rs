// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts waste in the branch records that the guest's own driver handed over, in the form that a
//! trace gives: those of the CPU, or of one that the plugin plays.
//!
//! [`depth`] and [`driver_waste`] first check that they are a driver's.

use super::{
    Branch, Filter, Model, Symbols,
    capture::{FURTHEST, is_driver, snapshots},
    delivered::NO_DRIVER,
    hit,
    model::Seen,
    symbolic::{digest, form},
    symbols::{PROGRAM, is_kernel},
    waste,
};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_model::run::{BranchSource, CapturePoint, LbrWaste, NamedRecord, Place, WasteCount};
use tramplab_protocol::{
    message::{DriverHit, DriverRecords, LbrWasteReply, Snapshot, Symbol},
    trace::{Kind, Record, Trace, VcpuTrace},
};

/// The only model whose records KVM passes on to a guest.
pub const PASSED_ON: Model = Model::IntelLbr;

/// `PERF_SAMPLE_BRANCH_KERNEL` and `PERF_SAMPLE_BRANCH_TYPE_SAVE`, which adds each record's kind.
const KERNEL_WITH_TYPES: u64 = 1 << 1 | 1 << 16;

/// Returns the model of a waste: `asked` for a trace. Other records have their own.
pub fn model(waste: &LbrWaste, asked: Model) -> Model {
    match waste.source {
        BranchSource::Hardware => PASSED_ON,
        BranchSource::Emulated => {
            waste.family.as_deref().and_then(|family| family.parse().ok()).unwrap_or(asked)
        }
        BranchSource::Virtual => asked,
    }
}

/// Says whose records a report shows: the modelled CPU's, or those of a driver.
pub fn whose(source: Option<BranchSource>, model: Model) -> &'static str {
    match source.filter(|source| source.is_of_driver()) {
        Some(source) => source.name(),
        None => model.name(),
    }
}

/// The CPU whose records a driver hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// This machine's, passed on by KVM.
    Passed,
    /// One that the plugin plays.
    Played(Model),
}

impl Cpu {
    fn model(self) -> Model {
        match self {
            Cpu::Passed => PASSED_ON,
            Cpu::Played(model) => model,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    #[error("no branch records: the kernel refuses an event with a branch stack ({0})")]
    Refused(String),
    #[error(
        "no branch records: no PMU in /sys/bus/event_source/devices has caps/branches, the number \
         of records it keeps"
    )]
    NoDepth,
    #[error(
        "the kernel's helper returned {result} under an event with a branch stack (0: nothing \
         recorded)"
    )]
    Result { result: i64 },
    #[error("the kernel's helper returned {entries} records, and the CPU keeps {depth}")]
    Entries { entries: usize, depth: u32 },
    #[error(
        "the kernel has branch records and no driver that takes snapshots of them (its \
         helper returned -2)"
    )]
    NoSnapshots,
    #[error(
        "the records do not lead from the program into a PMU driver's snapshot function: \
         they are of other code"
    )]
    Elsewhere,
    #[error(
        "all {0} hits of filter {1} left no record: another user has the LBR (look for `fail to \
         passthrough LBR` in the host's log)"
    )]
    Empty(usize, Filter),
    #[error(
        "the emulated registers have other branch records than the trace: only the newest {same} \
         are equal"
    )]
    Differs { same: usize },
    #[error("an interrupt came shortly before the last hit's snapshot")]
    Interrupted,
    #[error("the guest's reply has {found} snapshots of filter {filter}, expected {expected}")]
    Count { filter: Filter, found: usize, expected: usize },
}

impl DriverError {
    /// True if the guest's kernel may be too old for the CPU's records. The driver for AMD's takes
    /// snapshots since 6.10; that for Intel's has done so as long as the helper exists.
    pub fn is_of_kernel(&self, model: Model) -> bool {
        model == Model::AmdLbrV2 && self.is_absence()
    }

    /// True if the machine has no branch records, or its kernel takes no snapshots of them.
    pub fn is_absence(&self) -> bool {
        use DriverError::{NoDepth, NoSnapshots, Refused};
        matches!(self, Refused(_) | NoDepth | NoSnapshots)
    }
}

/// Returns the `branch_sample_type` of each filter's event, in the order of [`Branch::ALL`].
pub fn events() -> Vec<u64> {
    Branch::ALL.iter().map(|branch| branch.perf_bit() | KERNEL_WITH_TYPES).collect()
}

/// Checks that the guest's kernel knows a branch stack and returned records from it; returns how
/// many records the CPU keeps. [`driver_waste`] checks the function that took them.
pub fn depth(reply: &LbrWasteReply) -> Result<u32, DriverError> {
    if let Some(refused) = &reply.pmu.refused {
        return Err(DriverError::Refused(refused.clone()));
    }
    let depth = reply.pmu.depth.filter(|&depth| depth > 0).ok_or(DriverError::NoDepth)?;
    if reply.snapshot_result == NO_DRIVER {
        return Err(DriverError::NoSnapshots);
    }
    if reply.snapshot_result <= 0 || reply.snapshot.iter().all(|&(from, _)| from == 0) {
        return Err(DriverError::Result { result: reply.snapshot_result });
    }
    let entries = reply.snapshot.len();
    if entries > depth as usize {
        return Err(DriverError::Entries { entries, depth });
    }
    Ok(depth)
}

/// Returns the kernel addresses in the reply, for the agent to resolve: ascending, each once.
pub fn addresses(reply: &LbrWasteReply) -> Vec<u64> {
    let entries = reply.of_driver.iter().flat_map(|one| &one.hits).flat_map(|hit| &hit.snapshots);
    let entries = entries.flat_map(|snapshot| &snapshot.entries);
    let addresses: BTreeSet<u64> = entries
        .flat_map(|&(from, to, _)| [from, to])
        .filter(|&address| is_kernel(address))
        .collect();
    addresses.into_iter().collect()
}

/// Counts the waste in a driver's records.
///
/// For each filter, the most frequent form of its hits counts, as for a trace.
pub fn driver_waste(
    cpu: Cpu,
    reply: &LbrWasteReply,
    symbols: &Symbols,
) -> Result<LbrWaste, DriverError> {
    let depth = depth(reply)?;
    let model = cpu.model();
    let mut points: Vec<CapturePoint> = Vec::new();
    let (mut interrupted_hits, mut agreeing_hits) = (None, reply.hits);
    for (branch, event) in Branch::ALL.into_iter().zip(events()) {
        let filter = Filter::of(branch);
        let hits = hits(reply, event, filter, depth, symbols)?;
        let clean: Vec<&Hit> = hits.iter().filter(|hit| !hit.interrupted).collect();
        // If interrupts fell into all hits, count them with the interrupts' records.
        let looked_at = if clean.is_empty() { hits.iter().collect() } else { clean.clone() };
        let canonical =
            hit::most_frequent(&looked_at, |hit| hit.each(|r| since_entry(r, &reply.function)));
        let usual = hit::most_frequent(&canonical, |hit| hit.each(digest));
        let Some(first) = usual.first() else {
            return Err(DriverError::Count { filter, found: 0, expected: reply.points.len() });
        };
        if branch == Branch::Any {
            if !first.points.iter().all(|records| leads_into_driver(records)) {
                return Err(DriverError::Elsewhere);
            }
            interrupted_hits = Some((hits.len() - clean.len()) as u32);
            points = first
                .points
                .iter()
                .zip(&reply.points)
                .map(|(records, &point)| CapturePoint {
                    point,
                    records: records.clone(),
                    by_filter: BTreeMap::new(),
                    traced: BTreeMap::new(),
                    digest: digest(records),
                    wasted: BTreeMap::new(),
                })
                .collect();
        }
        let mut touches = false;
        for (point, records) in points.iter_mut().zip(&first.points) {
            let seen: Vec<Seen> = records.iter().map(Seen::whole).collect();
            let count: WasteCount = waste::count_of(&seen, &reply.function);
            touches |= count.wasted.is_some();
            let counts = point.wasted.entry(model.name().to_owned()).or_default();
            counts.insert(branch.name().to_owned(), count);
            point.by_filter.insert(branch.name().to_owned(), records.clone());
        }
        // Without a record of the function, hits differ by what ran before them.
        if touches {
            agreeing_hits = agreeing_hits.min(canonical.len() as u32);
        }
    }
    for point in &mut points {
        point.by_filter.remove(Branch::Any.name());
    }
    let (source, family) = match cpu {
        Cpu::Passed => (BranchSource::Hardware, None),
        Cpu::Played(model) => (BranchSource::Emulated, Some(model.name().to_owned())),
    };
    Ok(LbrWaste {
        source,
        family,
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

/// Checks the records of the last traced hit, which a driver handed over under `filter`, against
/// the trace: every entry must be the trace's, in its order, back to the driver's last change of
/// the ring. At a context switch, for example, it stops and empties it. Returns the fewest branches
/// of the driver, whatever their kind, behind which the ring may have stopped.
pub fn check_emulated(
    model: Model,
    filter: Filter,
    trace: &Trace,
    symbols: &Symbols,
    reply: &LbrWasteReply,
) -> Result<usize, DriverError> {
    let last = |vcpu: &'_ VcpuTrace| Some(snapshots(&vcpu.records, symbols).pop()?.index);
    let of_vcpu = trace.vcpus.iter().find_map(|vcpu| Some((&vcpu.records, last(vcpu)?)));
    let (records, index) = of_vcpu.ok_or(DriverError::Elsewhere)?;
    let depth = depth(reply)?;
    let is_in = |address: u64, part: &str| {
        symbols.find(address).is_some_and(|symbol| symbol.name.contains(part))
    };
    let oldest = index.saturating_sub(FURTHEST);
    let changed = records[oldest..index].iter().rposition(|record| is_in(record.from, "_pmu_"));
    let since = changed.map_or(oldest, |last| oldest + last + 1);
    let records = &records[since..records.len().min(index + MOST_OWN)];
    // The driver decodes whatever instruction was interrupted, so its record may stay or not.
    if records.iter().any(|record| hit::is_interrupt(record, symbols)) {
        return Err(DriverError::Interrupted);
    }
    let newest_first: Vec<NamedRecord> =
        records.iter().rev().map(|record| symbols.named(record)).collect();
    // The ring stops at an instruction that writes an MSR: in the driver itself, or in a function
    // that it calls, some branches behind its entry.
    let entry = index - since;
    let stops = |own: &usize| *own == 0 || is_in(records[entry + own].to, "write_msr");
    let agreeing = (0..records.len() - entry).filter(stops).map(|own| {
        let newer = records.len() - 1 - (entry + own);
        let ring = model.snapshot(filter, Some(depth), &newest_first[newer..]);
        let ends = ring.map(|seen| (seen.record.from.address, seen.record.to.address));
        let expected: Vec<(u64, u64)> = ends.collect();
        let same = reply.snapshot.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        (expected.len().min(reply.snapshot.len()) - same, own, same)
    });
    match agreeing.min() {
        Some((0, own, same)) if same > 0 => Ok(own),
        best => Err(DriverError::Differs { same: best.map_or(0, |(.., same)| same) }),
    }
}

/// More branches than a driver has between its entry and the stop of the ring.
const MOST_OWN: usize = 16;

/// Adds the virtual counts of the same guest to emulated ones.
pub fn with_traced(mut waste: LbrWaste, traced: &LbrWaste) -> LbrWaste {
    for point in &mut waste.points {
        let same = traced.points.iter().find(|other| other.point == point.point);
        let model = point.wasted.keys().next();
        let counts = same.zip(model).and_then(|(same, model)| same.wasted.get(model));
        point.traced = counts.cloned().unwrap_or_default();
    }
    waste
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

impl Hit {
    fn new(points: &[Vec<Record>], function: &Symbol, symbols: &Symbols) -> Hit {
        let named = |records: &Vec<Record>| records.iter().map(|r| symbols.named(r)).collect();
        let interrupted = points.iter().any(|records| {
            let entry = records.iter().position(|record| record.to == function.start);
            let of_hit = &records[..entry.map_or(records.len(), |entry| entry + 1)];
            of_hit.iter().any(|record| shows_interrupt(record, symbols))
        });
        Hit { points: points.iter().map(named).collect(), interrupted }
    }

    /// Hashes each point's records.
    fn each(&self, hash: impl Fn(&[NamedRecord]) -> String) -> Vec<String> {
        self.points.iter().map(|records| hash(records)).collect()
    }
}

/// The [`form`] of records of any filter. Without a record that enters the function it ends with
/// the newest one that touches it: what is older ran before the hit.
fn since_entry(records: &[NamedRecord], function: &Symbol) -> String {
    let is_entry = |record: &NamedRecord| record.to.address == function.start;
    let touches = |record: &NamedRecord| waste::touches(&Seen::whole(record), function);
    match records.iter().position(touches).filter(|_| !records.iter().any(is_entry)) {
        Some(newest) => digest(&records[..=newest]),
        None => form(records, function),
    }
}

/// The driver drops the record that enters an interrupt of the kernel, as no branch instruction is
/// there. That of the handler's return stays.
fn shows_interrupt(record: &Record, symbols: &Symbols) -> bool {
    record.kind == Kind::Iret || hit::is_interrupt(record, symbols)
}

fn hits(
    reply: &LbrWasteReply,
    event: u64,
    filter: Filter,
    depth: u32,
    symbols: &Symbols,
) -> Result<Vec<Hit>, DriverError> {
    let expected = reply.hits as usize * reply.points.len();
    let none = DriverRecords { branch_sample_type: event, hits: Vec::new() };
    let found = reply.of_driver.iter().find(|one| one.branch_sample_type == event).unwrap_or(&none);
    let snapshots = || found.hits.iter().flat_map(|hit| &hit.snapshots);
    if snapshots().count() != expected || expected == 0 {
        return Err(DriverError::Count { filter, found: snapshots().count(), expected });
    }
    if let Some(&Snapshot { result, .. }) = snapshots().find(|snapshot| snapshot.result < 0) {
        return Err(DriverError::Result { result });
    }
    if let Some(snapshot) = snapshots().find(|snapshot| snapshot.entries.len() > depth as usize) {
        return Err(DriverError::Entries { entries: snapshot.entries.len(), depth });
    }
    let points: Vec<Vec<Record>> = found.hits.iter().flat_map(fresh).collect();
    // A filter may select nothing, as a hit need not have an indirect jump. `any` always selects.
    if filter == Filter::of(Branch::Any) && points.iter().all(Vec::is_empty) {
        return Err(DriverError::Empty(reply.hits as usize, filter));
    }
    let hits = points.chunks_exact(reply.points.len());
    Ok(hits.map(|points| Hit::new(points, &reply.function, symbols)).collect())
}

/// The records of each snapshot under one event, without the rest of the snapshot before.
fn fresh(hit: &DriverHit) -> Vec<Vec<Record>> {
    let mut before = &hit.before.entries;
    let mut has_records = false;
    let fresh = hit.snapshots.iter().map(|Snapshot { entries, .. }| {
        // Two hits alike may fill the ring alike.
        let is_again = has_records && entries == before;
        let records = records(entries, if is_again { &[] } else { before });
        has_records = !records.is_empty();
        before = entries;
        records
    });
    fresh.collect()
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

/// Returns the entries that are records.
///
/// The driver returns as many entries as the CPU keeps. Those of LbrExtV2 and Arch LBR count only
/// valid slots but copy all (K `amd_pmu_v2_snapshot_branch_stack`,
/// `intel_pmu_snapshot_arch_branch_stack`): behind a partly filled ring the entries of the snapshot
/// `before` are still there. To drop a record, a driver moves up those behind it: zeroes, or copies
/// of the last record, take its place.
fn records(entries: &[(u64, u64, u64)], before: &[(u64, u64, u64)]) -> Vec<Record> {
    let stale = match entries.len() == before.len() {
        true => entries.iter().rev().zip(before.iter().rev()).take_while(|(a, b)| a == b).count(),
        false => 0,
    };
    let kept = entries[..entries.len() - stale].iter().take_while(|(from, ..)| *from != 0);
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
