// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the capture points of a trace and judges the hits. The rules: `docs/branch-records.md`.

use super::{
    Symbols, hit,
    symbolic::digest,
    symbols::{is_kernel, is_program},
    waste,
};
use std::collections::BTreeMap;
use tramplab_model::run::{Arch, BranchSource, CapturePoint, LbrWaste, NamedRecord, Place};
use tramplab_protocol::{
    Point,
    message::{LbrWasteReply, Symbol},
    trace::{Kind, Record, Trace, VcpuTrace},
};

/// Records kept per capture point, should the system call that triggered the hit be longer than that.
const KEPT: usize = 512;
/// And where the function is further away: no CPU has a tenth of it, and a guest that lies has names for a million records.
const FURTHEST: usize = 1 << 14;

/// The helper, as a function of its own: what programs call before 6.10.
const HELPER: &str = "bpf_get_branch_snapshot";
/// The static call that the helper makes; the target's name when it is patched out.
const STATIC_CALL: &str = "perf_snapshot_branch_stack";
/// What the static call resolves to as long as no PMU driver has set it.
const NO_DRIVER: &str = "__static_call_return0";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    #[error("the guest asked for no hits or names no point at which the program runs")]
    Empty,
    #[error(
        "the program ran {runs} times while armed, expected {expected}: something else triggered it, or a trigger missed"
    )]
    Runs { runs: u64, expected: u64 },
    #[error("{found} captures in the trace, expected {expected} ({hits} hits x {points} points){hint}")]
    Count { found: usize, expected: u64, hits: u32, points: usize, hint: &'static str },
    #[error("captures on vCPU {first} and on vCPU {second}: the guest's trigger is not bound to one CPU")]
    Vcpus { first: u32, second: u32 },
    #[error("hit {hit} ({point}) has no record that touches {function} [{start:#x}, {end:#x})")]
    Untouched { hit: usize, point: Point, function: String, start: u64, end: u64 },
    #[error("{}", hit::all_interrupted(*hits))]
    Interrupted { hits: u32 },
}

/// Counts what one armed window of a guest wasted.
pub fn lbr_waste(
    arch: Arch,
    trace: &Trace,
    symbols: &Symbols,
    reply: &LbrWasteReply,
) -> Result<LbrWaste, CaptureError> {
    let clean = clean_hits(trace, symbols, reply)?;
    let formed = with_forms(&clean);
    let canonical = hit::most_frequent(&formed.iter().collect::<Vec<_>>(), |(_, digests)| digests);
    let (first, digests) = canonical.first().ok_or(CaptureError::Interrupted { hits: reply.hits })?;
    let points = first.captures.iter().zip(digests).map(|(capture, digest)| CapturePoint {
        point: capture.point,
        wasted: waste::table(arch, &capture.records, &reply.function),
        digest: digest.clone(),
        records: capture.records.clone(),
        by_filter: BTreeMap::new(),
    });
    Ok(LbrWaste {
        source: BranchSource::Virtual,
        mechanism: reply.mechanism,
        function: reply.function.clone(),
        snapshot_result: reply.snapshot_result,
        delivered: None,
        hits: reply.hits,
        interrupted_hits: reply.hits - clean.len() as u32,
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

impl Hit {
    fn digests(&self) -> Vec<String> {
        self.captures.iter().map(|c| digest(&c.records)).collect()
    }
}

/// Each with its form. Most are the same as the one before, to the last address, and so is what is made of them.
fn with_forms(hits: &[Hit]) -> Vec<(&Hit, Vec<String>)> {
    let mut formed: Vec<(&Hit, Vec<String>)> = Vec::with_capacity(hits.len());
    for hit in hits {
        let digests = match formed.last() {
            Some((before, digests)) if before.captures == hit.captures => digests.clone(),
            _ => hit.digests(),
        };
        formed.push((hit, digests));
    }
    formed
}

/// The hits into which no interrupt fell.
fn clean_hits(trace: &Trace, symbols: &Symbols, reply: &LbrWasteReply) -> Result<Vec<Hit>, CaptureError> {
    let points = reply.points.len();
    let expected = u64::from(reply.hits) * points as u64;
    if expected == 0 {
        return Err(CaptureError::Empty);
    }
    if reply.runs != expected {
        return Err(CaptureError::Runs { runs: reply.runs, expected });
    }
    let mut found: Option<(&VcpuTrace, Vec<Record>, Vec<Snapshot>)> = None;
    for vcpu in &trace.vcpus {
        let records = hit::with_targets(&vcpu.records, symbols);
        let snapshots = snapshots(&records, symbols);
        match &found {
            _ if snapshots.is_empty() => {}
            None => found = Some((vcpu, records, snapshots)),
            Some((first, ..)) => {
                return Err(CaptureError::Vcpus { first: first.index, second: vcpu.index });
            }
        }
    }
    let count = |found, hint| CaptureError::Count { found, expected, hits: reply.hits, points, hint };
    let Some((vcpu, records, snapshots)) = found else {
        return Err(count(0, "; no BPF program called the snapshot function"));
    };
    if snapshots.len() as u64 != expected {
        let dropped = vcpu.total > vcpu.records.len() as u64;
        let hint =
            if dropped { "; the recorder's ring was too small and dropped the oldest records" } else { "" };
        return Err(count(snapshots.len(), hint));
    }
    let mut hits = Vec::new();
    let mut previous_end = 0;
    for (number, group) in snapshots.chunks_exact(points).enumerate() {
        // Sought before the first point: a session's exit still belongs to the system call of its entry.
        let start = trigger(&records, previous_end, group[0].index);
        previous_end = group[points - 1].index + 1;
        // In all of the hit, and asked first: a handler may run more branches than are looked at to find the function.
        if records[start..previous_end].iter().any(|r| hit::is_interrupt(r, symbols)) {
            continue;
        }
        let mut captures = Vec::new();
        for (snapshot, &point) in group.iter().zip(&reply.points) {
            let records = named(&records, start, snapshot, symbols, &reply.function);
            let function = &reply.function;
            let touched =
                |r: &NamedRecord| waste::contains(function, &r.from) || waste::contains(function, &r.to);
            if !records.iter().any(touched) {
                let (function, start, end) = (function.name.clone(), function.start, function.end);
                return Err(CaptureError::Untouched { hit: number, point, function, start, end });
            }
            captures.push(Capture { point, records });
        }
        hits.push(Hit { captures });
    }
    Ok(hits)
}

/// Where a trace is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Of the newest record seen, in the trace.
    pub index: usize,
    /// The static call was patched out: `#00` follows by rule.
    pub modelled: bool,
}

pub(super) fn snapshots(records: &[Record], symbols: &Symbols) -> Vec<Snapshot> {
    let (captures, helpers) = (symbols.starts(is_snapshot), symbols.starts(is_helper));
    let at = |is: &dyn Fn(&Record) -> bool| -> Vec<usize> {
        records.iter().enumerate().filter(|(_, record)| is(record)).map(|(index, _)| index).collect()
    };
    // Each looked through once, however many helpers are entered and never left.
    let is_one = |starts: &[u64], address: u64| starts.binary_search(&address).is_ok();
    let taken = at(&|record| is_one(&captures, record.to));
    let returns = at(&|r| r.kind == Kind::Ret && symbols.find(r.to).is_some_and(is_program));
    let next =
        |sorted: &[usize], index: usize| sorted.get(sorted.partition_point(|&at| at <= index)).copied();
    let mut found = Vec::new();
    let mut index = 0;
    while let Some(record) = records.get(index) {
        if is_call(record) && symbols.find(record.from).is_some_and(is_program) {
            if is_one(&captures, record.to) {
                found.push(Snapshot { index, modelled: false });
            } else if is_one(&helpers, record.to) {
                // The helper makes its static call before it branches, so that a call which left no record stands right behind its entry.
                let within =
                    next(&taken, index).filter(|&taken| next(&returns, index).is_none_or(|r| taken <= r));
                let snapshot = Snapshot { index: within.unwrap_or(index), modelled: within.is_none() };
                index = snapshot.index;
                found.push(snapshot);
            }
        }
        index += 1;
    }
    found
}

fn is_call(record: &Record) -> bool {
    matches!(record.kind, Kind::Call | Kind::IndCall)
}

fn is_helper(symbol: &Symbol) -> bool {
    symbol.module.is_none() && symbol.name == HELPER
}

/// A PMU driver's function, such as `intel_pmu_snapshot_arch_branch_stack` or `amd_pmu_v2_snapshot_branch_stack`, or
/// the stand-in. The stand-in has other callers, programs only this one.
fn is_snapshot(symbol: &Symbol) -> bool {
    symbol.name == NO_DRIVER || is_driver(&symbol.name)
}

pub(super) fn is_driver(name: &str) -> bool {
    // `__SCT__perf_snapshot_branch_stack` is the static call's trampoline, a step on the way.
    name.contains("_snapshot_") && name.ends_with("branch_stack") && !name.starts_with("__SC")
}

/// The index of the system call that triggered the hit: the newest between the last hit and this one, or where that
/// ended.
fn trigger(records: &[Record], previous_end: usize, capture: usize) -> usize {
    let from_user = |record: &Record| record.kind == Kind::Syscall && !is_kernel(record.from);
    records[previous_end..=capture].iter().rposition(from_user).map_or(previous_end, |i| previous_end + i)
}

/// The records from `start` to the snapshot, newest first.
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
        let target = Place { address: 0, symbol: Some(STATIC_CALL.to_owned()), module: None, offset: 0 };
        named.push(NamedRecord { from: helper, to: target, kind: Kind::Call, modelled: true });
    }
    let touches = |r: &Record| [r.from, r.to].iter().any(|a| (function.start..function.end).contains(a));
    let mut touched = false;
    for record in records[start..=snapshot.index].iter().rev() {
        if named.len() >= KEPT && touched || named.len() >= FURTHEST {
            break;
        }
        touched |= touches(record);
        named.push(NamedRecord {
            from: symbols.place(record.from),
            to: symbols.place(record.to),
            kind: record.kind,
            modelled: false,
        });
    }
    named
}

#[cfg(test)]
mod tests {
    use super::{
        super::symbolic::{Symbolic, stable_name},
        *,
    };
    use Kind::*;
    use tramplab_protocol::{Mechanism, message::Pmu};

    const BASE: u64 = 0xffff_ffff_8100_0000;
    /// Name, module; each is 0x1000 long, in this order from `BASE`.
    const SYMBOLS: [(&str, Option<&str>); 10] = [
        ("entry_SYSCALL_64", None),
        ("sys_probe", None),
        ("traced", None),
        ("bpf_trampoline_6442508829", Some("bpf")),
        ("bpf_prog_6deef7357e7b4530_capture", Some("bpf")),
        ("__static_call_return0", None),
        ("bpf_get_branch_snapshot", None),
        ("intel_pmu_snapshot_branch_stack", None),
        ("asm_sysvec_apic_timer_interrupt", None),
        ("bpf_get_smp_processor_id", None),
    ];
    const USER: u64 = 0x40_1000;

    fn symbols() -> Symbols {
        SYMBOLS
            .iter()
            .enumerate()
            .map(|(i, (name, module))| Symbol {
                name: (*name).to_owned(),
                module: module.map(str::to_owned),
                start: BASE + 0x1000 * i as u64,
                end: BASE + 0x1000 * (i as u64 + 1),
            })
            .collect()
    }

    /// The address of the symbol that begins with `name`; `user` for user space.
    fn at(name: &str, offset: u64) -> u64 {
        if name == "user" {
            return USER + offset;
        }
        let index = SYMBOLS.iter().position(|(s, _)| s.starts_with(name)).expect("a symbol of the table");
        BASE + 0x1000 * index as u64 + offset
    }

    fn function() -> Symbol {
        symbols().find(at("traced", 0)).unwrap().clone()
    }

    fn r(kind: Kind, from: (&str, u64), to: (&str, u64)) -> Record {
        Record { from: at(from.0, from.1), to: at(to.0, to.1), kind, instructions: 1 }
    }

    fn enter() -> Vec<Record> {
        vec![
            r(Jump, ("user", 0), ("user", 0x20)),
            r(Syscall, ("user", 0x28), ("entry", 0)),
            r(Call, ("entry", 0x80), ("sys", 0)),
            r(Call, ("sys", 0x10), ("traced", 0)),
            r(Call, ("traced", 4), ("bpf_tramp", 0)),
            r(Call, ("bpf_tramp", 0x40), ("bpf_prog", 0)),
        ]
    }

    fn leave() -> Vec<Record> {
        vec![
            r(Ret, ("bpf_prog", 0x90), ("bpf_tramp", 0x45)),
            r(Ret, ("bpf_tramp", 0x60), ("traced", 9)),
            r(Ret, ("traced", 0x30), ("sys", 0x15)),
            r(Ret, ("sys", 0x30), ("entry", 0x85)),
            r(Sysret, ("entry", 0x100), ("user", 0x2a)),
        ]
    }

    /// 6.10 and later: the program itself calls the static call's target.
    fn inlined() -> Vec<Record> {
        vec![r(Call, ("bpf_prog", 0x50), ("__static", 0)), r(Ret, ("__static", 5), ("bpf_prog", 0x55))]
    }

    fn hit(middle: &[Record]) -> Vec<Record> {
        [&enter()[..], middle, &leave()[..]].concat()
    }

    fn trace(records: Vec<Record>) -> Trace {
        let total = records.len() as u64;
        let idle = VcpuTrace { index: 0, total: 1, records: vec![r(Ret, ("sys", 0), ("entry", 0))] };
        Trace { discontinuities: true, vcpus: vec![idle, VcpuTrace { index: 1, total, records }] }
    }

    fn reply(mechanism: Mechanism, hits: u32) -> LbrWasteReply {
        let points = mechanism.points().to_vec();
        LbrWasteReply {
            mechanism,
            function: function(),
            hits,
            runs: u64::from(hits) * points.len() as u64,
            points,
            snapshot_result: -2,
            snapshot: vec![],
            pmu: Pmu::default(),
            hardware: Vec::new(),
        }
    }

    fn measure(records: Vec<Record>, mechanism: Mechanism, hits: u32) -> Result<LbrWaste, CaptureError> {
        lbr_waste(Arch::X86_64, &trace(records), &symbols(), &reply(mechanism, hits))
    }

    fn newest(waste: &LbrWaste) -> String {
        let record = &waste.points[0].records[0];
        format!(
            "{} -> {}{}",
            Symbolic(&record.from),
            Symbolic(&record.to),
            if record.modelled { " *" } else { "" }
        )
    }

    /// As [`a_guest_may_have_an_interrupt_behind_every_record`](super::super::hit) has it.
    #[test]
    fn a_guest_may_enter_the_helper_and_never_leave_it() {
        let entered = 1 << 20;
        let records = vec![r(Call, ("bpf_prog", 0x50), ("bpf_get_branch", 0)); entered];
        let found = snapshots(&records, &symbols());
        assert_eq!(found.len(), entered);
        assert!(found.iter().all(|snapshot| snapshot.modelled));
    }

    #[test]
    fn a_function_that_is_further_away_than_any_cpu_sees_is_not_looked_for() {
        let between = |records| {
            [&enter()[..5], &vec![r(Jump, ("sys", 0), ("sys", 8)); records], &hit(&inlined())[5..]].concat()
        };
        assert_eq!(measure(between(FURTHEST - 10), Mechanism::Fentry, 1).map(|waste| waste.hits), Ok(1));
        let far = measure(between(FURTHEST), Mechanism::Fentry, 1);
        assert!(matches!(far, Err(CaptureError::Untouched { .. })), "{far:?}");
    }

    /// What the snapshot looks like on a kernel, what `#00` is then, and how many `any` records are wasted.
    #[test]
    fn the_snapshot_is_found_on_every_kind_of_kernel() {
        let cpu_helper =
            [r(Call, ("bpf_prog", 0x20), ("bpf_get_smp", 0)), r(Ret, ("bpf_get_smp", 9), ("bpf_prog", 0x25))];
        let table: [(&str, Vec<Record>, &str, u32); 5] = [
            ("inlined, no driver", inlined(), "bpf_prog_*_capture+0x50 -> __static_call_return0+0x0", 2),
            (
                "inlined, driver",
                vec![
                    r(Call, ("bpf_prog", 0x50), ("intel", 0)),
                    r(Cond, ("intel", 0x70), ("intel", 0x90)),
                    r(Ret, ("intel", 0xa0), ("bpf_prog", 0x55)),
                ],
                "bpf_prog_*_capture+0x50 -> intel_pmu_snapshot_branch_stack+0x0",
                2,
            ),
            (
                "helper, no driver",
                vec![
                    r(Call, ("bpf_prog", 0x50), ("bpf_get_branch", 0)),
                    r(Cond, ("bpf_get_branch", 0x20), ("bpf_get_branch", 0x30)),
                    r(Ret, ("bpf_get_branch", 0x36), ("bpf_prog", 0x55)),
                ],
                "bpf_get_branch_snapshot+0x0 -> perf_snapshot_branch_stack+0x0 *",
                3,
            ),
            (
                "helper, driver",
                vec![
                    r(Call, ("bpf_prog", 0x50), ("bpf_get_branch", 0)),
                    r(Call, ("bpf_get_branch", 0x12), ("intel", 0)),
                    r(Ret, ("intel", 0xa0), ("bpf_get_branch", 0x17)),
                    r(Ret, ("bpf_get_branch", 0x36), ("bpf_prog", 0x55)),
                ],
                "bpf_get_branch_snapshot+0x12 -> intel_pmu_snapshot_branch_stack+0x0",
                3,
            ),
            (
                "the processor's number asked for by a call",
                [&cpu_helper[..], &inlined()].concat(),
                "bpf_prog_*_capture+0x50 -> __static_call_return0+0x0",
                4,
            ),
        ];
        for (what, middle, first, wasted) in table {
            let waste = measure([hit(&middle), hit(&middle)].concat(), Mechanism::Fentry, 2).expect(what);
            assert_eq!(newest(&waste), first, "{what}");
            assert_eq!(waste.agreeing_hits, 2, "{what}");
            let point = &waste.points[0];
            assert_eq!(point.wasted["intel-lbr"]["any"].wasted, Some(wasted), "{what}");
            // Back to the system call, not into user space or the hit before.
            assert_eq!(point.records.last().unwrap().kind, Syscall, "{what}");
        }
    }

    #[test]
    fn only_programs_capture() {
        let foreign = [
            // The kernel, a trampoline, a program that calls another helper or jumps into the middle of the function.
            r(Call, ("sys", 0x20), ("__static", 0)),
            r(Call, ("bpf_tramp", 0x20), ("__static", 0)),
            r(Call, ("bpf_prog", 0x20), ("bpf_get_smp", 0)),
            r(Call, ("bpf_prog", 0x20), ("__static", 4)),
            r(Call, ("sys", 0x20), ("bpf_get_branch", 0)),
            r(Ret, ("bpf_prog", 0x20), ("__static", 0)),
        ];
        for record in foreign {
            assert_eq!(snapshots(&[record], &symbols()), [], "{record:?}");
            let error = measure(hit(&[record]), Mechanism::Fentry, 1).unwrap_err();
            assert!(error.to_string().contains("no BPF program called"), "{error}");
        }
    }

    #[test]
    fn names_of_drivers_are_told_from_the_way_to_them() {
        let is = |name: &str| is_snapshot(&Symbol { name: name.to_owned(), module: None, start: 0, end: 1 });
        for driver in [
            "intel_pmu_snapshot_branch_stack",
            "intel_pmu_snapshot_arch_branch_stack",
            "amd_pmu_v2_snapshot_branch_stack",
            "__static_call_return0",
        ] {
            assert!(is(driver), "{driver}");
        }
        for other in
            ["__SCT__perf_snapshot_branch_stack", "bpf_get_branch_snapshot", "perf_prepare_branch_stack"]
        {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn a_session_is_captured_at_both_ends_of_each_hit() {
        let exit = [
            r(Ret, ("bpf_prog", 0x90), ("bpf_tramp", 0x45)),
            r(Call, ("bpf_tramp", 0x50), ("traced", 9)),
            r(Ret, ("traced", 0x30), ("bpf_tramp", 0x55)),
            r(Call, ("bpf_tramp", 0x70), ("bpf_prog", 0)),
        ];
        let middle = [&inlined()[..], &exit, &inlined()].concat();
        let waste =
            measure([hit(&middle), hit(&middle), hit(&middle)].concat(), Mechanism::Fsession, 3).unwrap();
        let points: Vec<_> = waste.points.iter().map(|p| (p.point, p.records.len())).collect();
        // The exit's records hold the entry's, and both begin with the system call.
        assert_eq!(points, [(Point::Entry, 6), (Point::Exit, 12)]);
        assert_eq!(waste.points[1].wasted["amd-lbrv2"]["any_return"].wasted, Some(0));
        assert_eq!(waste.agreeing_hits, 3);
    }

    #[test]
    fn interrupted_hits_are_set_aside_and_the_most_frequent_form_wins() {
        let interrupted = [
            &[
                r(Interrupt, ("bpf_prog", 0x10), ("asm_sysvec", 0)),
                r(Iret, ("asm_sysvec", 0x80), ("bpf_prog", 0x10)),
            ],
            &inlined()[..],
        ]
        .concat();
        let odd = [&[r(Cond, ("bpf_prog", 0x30), ("bpf_prog", 0x38))], &inlined()[..]].concat();
        let (a, b, c) = (hit(&interrupted), hit(&odd), hit(&inlined()));

        let waste =
            measure([a.clone(), b.clone(), c.clone(), c.clone()].concat(), Mechanism::Fentry, 4).unwrap();
        assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (1, 2));
        assert_eq!(waste.points[0].wasted["intel-lbr"]["any"].wasted, Some(2));

        let waste = measure([b.clone(), c.clone()].concat(), Mechanism::Fentry, 2).unwrap();
        assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (0, 1));
        assert_eq!(waste.points[0].wasted["intel-lbr"]["any"].wasted, Some(3), "of a tie, the first");

        let error = measure([a.clone(), a].concat(), Mechanism::Fentry, 2).unwrap_err();
        assert_eq!(error, CaptureError::Interrupted { hits: 2 });
    }

    #[test]
    fn an_interrupt_is_known_by_its_entry_and_wherever_it_fell() {
        let handler = |n: usize| {
            let mut records = vec![r(Ret, ("bpf_prog", 0x10), ("asm_sysvec", 0))];
            records.extend(vec![r(Cond, ("asm_sysvec", 0x30), ("asm_sysvec", 0x28)); n]);
            records.push(r(Iret, ("asm_sysvec", 0x80), ("sys", 0x11)));
            records
        };
        // Taken for a return, and with a handler longer than what is kept of the hit, or than the function is sought.
        for (before, length) in [(3, 1), (3, 1000), (5, FURTHEST)] {
            let late =
                [&enter()[..before], &handler(length), &enter()[before..], &inlined(), &leave()].concat();
            let waste = measure([late.clone(), hit(&inlined())].concat(), Mechanism::Fentry, 2).unwrap();
            assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (1, 1), "{before} {length}");
            let error = measure(late, Mechanism::Fentry, 1).unwrap_err();
            assert_eq!(error, CaptureError::Interrupted { hits: 1 }, "{before} {length}");
        }
        // A breakpoint is part of how a kprobe works; what goes on inside a handler is no entry.
        let breakpoint = [&[r(Int, ("bpf_prog", 0x10), ("asm_sysvec", 0))], &inlined()[..]].concat();
        let inside = [&[r(Ret, ("sys", 0x10), ("asm_sysvec", 0xf))], &inlined()[..]].concat();
        for middle in [breakpoint, inside] {
            assert_eq!(measure(hit(&middle), Mechanism::Fentry, 1).unwrap().interrupted_hits, 0);
        }
    }

    #[test]
    fn an_interrupt_in_user_space_spoils_nothing() {
        let tick =
            [r(Interrupt, ("user", 0x10), ("asm_sysvec", 0)), r(Iret, ("asm_sysvec", 0x80), ("user", 0x10))];
        let waste = measure([&tick[..], &hit(&inlined())].concat(), Mechanism::Fentry, 1).unwrap();
        assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (0, 1));
    }

    #[test]
    fn counts_that_disagree_are_errors() {
        let one = hit(&inlined());
        let expect = |records: Vec<Record>, mechanism, hits, text: &str| {
            let error = measure(records, mechanism, hits).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        expect(one.clone(), Mechanism::Fentry, 0, "no hits");
        expect(one.clone(), Mechanism::Fentry, 2, "1 captures in the trace, expected 2");
        expect(
            [one.clone(), one.clone()].concat(),
            Mechanism::Fentry,
            1,
            "2 captures in the trace, expected 1",
        );
        expect(one.clone(), Mechanism::Fsession, 1, "expected 2 (1 hits x 2 points)");

        let mut more = reply(Mechanism::Fentry, 1);
        more.runs = 2;
        let error = lbr_waste(Arch::X86_64, &trace(one.clone()), &symbols(), &more).unwrap_err();
        assert_eq!(error, CaptureError::Runs { runs: 2, expected: 1 });

        let mut dropped = trace(one.clone());
        dropped.vcpus[1].total += 1;
        let error = lbr_waste(Arch::X86_64, &dropped, &symbols(), &reply(Mechanism::Fentry, 2)).unwrap_err();
        assert!(error.to_string().contains("ring was too small"), "{error}");

        let mut both = trace(one.clone());
        both.vcpus[0].records = one.clone();
        let error = lbr_waste(Arch::X86_64, &both, &symbols(), &reply(Mechanism::Fentry, 1)).unwrap_err();
        assert_eq!(error, CaptureError::Vcpus { first: 0, second: 1 });

        let mut elsewhere = reply(Mechanism::Fentry, 1);
        elsewhere.function = symbols().find(at("bpf_get_smp", 0)).unwrap().clone();
        let error = lbr_waste(Arch::X86_64, &trace(one), &symbols(), &elsewhere).unwrap_err();
        assert!(matches!(error, CaptureError::Untouched { hit: 0, point: Point::Entry, .. }), "{error}");
    }

    #[test]
    fn a_long_system_call_is_cut_but_not_before_the_function() {
        let loops = |n| vec![r(Cond, ("bpf_prog", 0x30), ("bpf_prog", 0x28)); n];
        let before =
            [&enter()[..3], &vec![r(Cond, ("sys", 8), ("sys", 4)); 1000][..], &enter()[3..]].concat();
        let short = [&before[..], &inlined(), &leave()].concat();
        let waste = measure(short, Mechanism::Fentry, 1).unwrap();
        assert_eq!(waste.points[0].records.len(), KEPT);
        let long = [&enter()[..], &loops(600), &inlined(), &leave()].concat();
        let waste = measure(long, Mechanism::Fentry, 1).unwrap();
        assert_eq!(waste.points[0].wasted["intel-lbr"]["any"].wasted, Some(602));
        assert_eq!(waste.points[0].records.len(), 603);
    }

    #[test]
    fn digests_know_the_code_and_not_the_boot() {
        let records = &measure(hit(&inlined()), Mechanism::Fentry, 1).unwrap().points[0].records;
        let changed = |change: fn(&mut NamedRecord)| {
            let mut records = records.clone();
            records.iter_mut().for_each(change);
            digest(&records)
                != digest(&measure(hit(&inlined()), Mechanism::Fentry, 1).unwrap().points[0].records)
        };
        // KASLR, a new BTF id, another tag.
        assert!(!changed(|r| {
            if r.from.symbol.is_some() {
                r.from.address += 0x20_0000;
            }
        }));
        assert!(!changed(|r| {
            let symbol = r.to.symbol.as_deref();
            if symbol == Some("bpf_trampoline_6442508829") {
                r.to.symbol = Some("bpf_trampoline_10737534536_0".to_owned());
            } else if symbol == Some("bpf_prog_6deef7357e7b4530_capture") {
                r.to.symbol = Some("bpf_prog_0123456789abcdef_capture".to_owned());
            }
        }));
        // Another offset, another function, another kind, and a program of another name.
        assert!(changed(|r| r.from.offset += 1));
        assert!(changed(|r| r.to.symbol = Some("other".to_owned())));
        assert!(changed(|r| r.kind = Jump));
        assert!(changed(|r| {
            if r.to.symbol.as_deref() == Some("bpf_prog_6deef7357e7b4530_capture") {
                r.to.symbol = Some("bpf_prog_6deef7357e7b4530_captures".to_owned());
            }
        }));
        assert_eq!(stable_name("bpf_trampoline_enter"), "bpf_trampoline_enter");
        assert_eq!(stable_name("bpf_prog_run"), "bpf_prog_run");
    }
}
