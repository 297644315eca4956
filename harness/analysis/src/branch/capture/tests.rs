// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small traces, made by hand.

use super::*;
use crate::branch::symbolic::{Symbolic, stable_name};
use Kind::*;
use tramplab_protocol::{
    Mechanism,
    message::{Pmu, Triggered},
};

const BASE: u64 = 0xffff_ffff_8100_0000;
/// Name, module; each is 0x1000 long, in this order from `BASE`.
const SYMBOLS: [(&str, Option<&str>); 12] = [
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
    ("__bpf_prog_enter_recur", None),
    ("bpf_early_snapshot_branch_stack", None),
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
    let index =
        SYMBOLS.iter().position(|(s, _)| s.starts_with(name)).expect("a symbol of the table");
    BASE + 0x1000 * index as u64 + offset
}

fn function() -> Symbol {
    symbols().find(at("traced", 0)).unwrap().clone()
}

fn r(kind: Kind, from: (&str, u64), to: (&str, u64)) -> Record {
    Record { from: at(from.0, from.1), to: at(to.0, to.1), kind, instructions: 1, accesses: None }
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
        trigger: None,
        mechanism,
        program: None,
        function: function(),
        hits,
        runs: u64::from(hits) * points.len() as u64,
        points,
        snapshot_result: -2,
        snapshot: vec![],
        pmu: Pmu::default(),
        of_driver: Vec::new(),
        remarks: Vec::new(),
    }
}

fn measure(
    records: Vec<Record>,
    mechanism: Mechanism,
    hits: u32,
) -> Result<LbrWaste, CaptureError> {
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

/// Searching anew from each of these entries would take days.
#[test]
fn finds_helpers_that_are_entered_and_never_left() {
    let entered = 1 << 20;
    let records = vec![r(Call, ("bpf_prog", 0x50), ("bpf_get_branch", 0)); entered];
    let found = snapshots(&records, &symbols());
    assert_eq!(found.len(), entered);
    assert!(found.iter().all(|snapshot| snapshot.modelled));
}

#[test]
fn stops_searching_further_back_than_any_cpu_sees() {
    let between = |records| {
        [&enter()[..5], &vec![r(Jump, ("sys", 0), ("sys", 8)); records], &hit(&inlined())[5..]]
            .concat()
    };
    assert_eq!(
        measure(between(FURTHEST - 10), Mechanism::Fentry, 1).map(|waste| waste.hits),
        Ok(1)
    );
    let far = measure(between(FURTHEST), Mechanism::Fentry, 1);
    assert!(matches!(far, Err(CaptureError::Untouched { .. })), "{far:?}");
}

/// Each kind of kernel: the branches of its snapshot, `#00`, and the `any` records wasted.
#[test]
fn finds_the_snapshot_on_every_kind_of_kernel() {
    let cpu_helper = [
        r(Call, ("bpf_prog", 0x20), ("bpf_get_smp", 0)),
        r(Ret, ("bpf_get_smp", 9), ("bpf_prog", 0x25)),
    ];
    let table: [(&str, Vec<Record>, &str, u32); 5] = [
        (
            "inlined, no driver",
            inlined(),
            "bpf_prog_*_capture+0x50 -> __static_call_return0+0x0",
            2,
        ),
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
        let waste =
            measure([hit(&middle), hit(&middle)].concat(), Mechanism::Fentry, 2).expect(what);
        assert_eq!(newest(&waste), first, "{what}");
        assert_eq!(waste.agreeing_hits, 2, "{what}");
        let point = &waste.points[0];
        assert_eq!(point.wasted["intel-lbr"]["any"].wasted, Some(wasted), "{what}");
        // The records go back to the system call, not into user space or the hit before.
        assert_eq!(point.records.last().unwrap().kind, Syscall, "{what}");
    }
}

/// The kernel takes the snapshot before the program runs. Its helper then only copies, or takes one
/// itself if there is none.
#[test]
fn finds_snapshots_that_the_kernel_takes_early() {
    let early = |from: &'static str| {
        [r(Call, (from, 4), ("bpf_early", 0)), r(Ret, ("bpf_early", 0x30), (from, 9))]
    };
    let entered = [
        &enter()[..5],
        &[r(Call, ("bpf_tramp", 0x20), ("__bpf_prog_enter", 0))],
        &early("__bpf_prog_enter"),
        &[r(Ret, ("__bpf_prog_enter", 0x40), ("bpf_tramp", 0x25)), enter()[5]],
    ]
    .concat();
    let copied = [
        r(Call, ("bpf_prog", 0x50), ("bpf_get_branch", 0)),
        r(Ret, ("bpf_get_branch", 0x36), ("bpf_prog", 0x55)),
    ];
    let helper = |middle: &[Record]| [&copied[..1], middle, &copied[1..]].concat();
    let kernels = "__bpf_prog_enter_recur+0x4 -> bpf_early_snapshot_branch_stack+0x0";
    type Row = (&'static str, Vec<Record>, Vec<Record>, &'static str, u32);
    let table: [Row; 4] = [
        ("copied", entered.clone(), copied.to_vec(), kernels, 2),
        (
            "none to copy",
            enter(),
            helper(&early("bpf_get_branch")),
            "bpf_get_branch_snapshot+0x4 -> bpf_early_snapshot_branch_stack+0x0",
            3,
        ),
        (
            "the helper ignores it",
            entered.clone(),
            helper(&early("bpf_get_branch")),
            "bpf_get_branch_snapshot+0x4 -> bpf_early_snapshot_branch_stack+0x0",
            7,
        ),
        (
            "the program ignores it",
            entered,
            inlined(),
            "bpf_prog_*_capture+0x50 -> __static_call_return0+0x0",
            6,
        ),
    ];
    for (what, before, middle, first, wasted) in table {
        let hit = [&before[..], &middle, &leave()].concat();
        let waste = measure([&hit[..], &hit].concat(), Mechanism::Fentry, 2).expect(what);
        assert_eq!(newest(&waste), first, "{what}");
        // The snapshot belongs to the run that asks for it, also if it was taken before the run.
        let own = measure_own([&hit[..], &hit].concat(), Mechanism::Fentry, 2).expect(what);
        assert_eq!(own.points, waste.points, "{what}");
        assert_eq!(waste.agreeing_hits, 2, "{what}");
        assert_eq!(waste.points[0].wasted["intel-lbr"]["any"].wasted, Some(wasted), "{what}");
    }
}

#[test]
fn ignores_calls_that_are_no_capture() {
    let foreign = [
        // The kernel, a trampoline, and a program that calls another helper or enters the
        // middle of the function.
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
fn matches_drivers_but_not_the_functions_before_them() {
    let is =
        |name: &str| is_snapshot(&Symbol { name: name.to_owned(), module: None, start: 0, end: 1 });
    for driver in [
        "intel_pmu_snapshot_branch_stack",
        "intel_pmu_snapshot_arch_branch_stack",
        "amd_pmu_v2_snapshot_branch_stack",
        "__static_call_return0",
    ] {
        assert!(is(driver), "{driver}");
    }
    for other in [
        "__SCT__perf_snapshot_branch_stack",
        "bpf_get_branch_snapshot",
        "perf_prepare_branch_stack",
    ] {
        assert!(!is(other), "{other}");
    }
}

#[test]
fn captures_a_session_at_both_ends_of_each_hit() {
    let exit = [
        r(Ret, ("bpf_prog", 0x90), ("bpf_tramp", 0x45)),
        r(Call, ("bpf_tramp", 0x50), ("traced", 9)),
        r(Ret, ("traced", 0x30), ("bpf_tramp", 0x55)),
        r(Call, ("bpf_tramp", 0x70), ("bpf_prog", 0)),
    ];
    let middle = [&inlined()[..], &exit, &inlined()].concat();
    let waste =
        measure([hit(&middle), hit(&middle), hit(&middle)].concat(), Mechanism::Fsession, 3)
            .unwrap();
    let points: Vec<_> = waste.points.iter().map(|p| (p.point, p.records.len())).collect();
    // The exit's records include the entry's. Both begin with the system call.
    assert_eq!(points, [(Point::Entry, 6), (Point::Exit, 12)]);
    assert_eq!(waste.points[1].wasted["amd-lbrv2"]["any_return"].wasted, Some(0));
    assert_eq!(waste.agreeing_hits, 3);
}

/// A program of the user's, which counts no runs.
fn measure_own(
    records: Vec<Record>,
    mechanism: Mechanism,
    hits: u32,
) -> Result<LbrWaste, CaptureError> {
    let program = symbols().find(at("bpf_prog", 0)).cloned();
    let reply = LbrWasteReply { program, runs: 0, ..reply(mechanism, hits) };
    lbr_waste(Arch::X86_64, &trace(records), &symbols(), &reply)
}

#[test]
fn counts_a_users_program_up_to_its_first_snapshot() {
    let twice = [inlined(), inlined()].concat();
    let own = measure_own([hit(&twice), hit(&twice)].concat(), Mechanism::Fentry, 2).unwrap();
    let once = [hit(&inlined()), hit(&inlined())].concat();
    assert_eq!(own.points, measure(once, Mechanism::Fentry, 2).unwrap().points);
    assert_eq!((own.hits, own.agreeing_hits), (2, 2));
    // An interrupt at the program's first instruction returns there, which is no run.
    let handler = [
        r(Interrupt, ("bpf_prog", 0), ("asm_sysvec", 0)),
        r(Iret, ("asm_sysvec", 0x80), ("bpf_prog", 0)),
    ];
    let late = hit(&[&handler[..], &inlined()].concat());
    let own = measure_own([late, hit(&inlined())].concat(), Mechanism::Fentry, 2).unwrap();
    assert_eq!((own.hits, own.interrupted_hits, own.agreeing_hits), (2, Some(1), 1));
}

#[test]
fn takes_the_points_at_which_a_users_program_takes_a_snapshot() {
    let session = |entry: &[Record], exit: &[Record]| {
        let between = [
            r(Ret, ("bpf_prog", 0x90), ("bpf_tramp", 0x45)),
            r(Call, ("bpf_tramp", 0x50), ("traced", 9)),
            r(Ret, ("traced", 0x30), ("bpf_tramp", 0x55)),
            r(Call, ("bpf_tramp", 0x70), ("bpf_prog", 0)),
        ];
        hit(&[entry, &between, exit].concat())
    };
    let (taken, none) = (inlined(), Vec::new());
    let of = |hits: [Vec<Record>; 2]| {
        let waste = measure_own(hits.concat(), Mechanism::Fsession, 2)?;
        Ok(waste.points.iter().map(|point| point.point).collect::<Vec<_>>())
    };
    let (both, exit) = (session(&taken, &taken), session(&none, &taken));
    assert_eq!(of([both.clone(), both.clone()]), Ok(vec![Point::Entry, Point::Exit]));
    assert_eq!(of([exit.clone(), exit.clone()]), Ok(vec![Point::Exit]));
    let (program, point) = ("capture".to_owned(), Point::Entry);
    assert_eq!(
        of([both, exit]),
        Err(CaptureError::Sometimes { program: program.clone(), point, found: 1, runs: 2 })
    );
    let neither = session(&none, &none);
    assert_eq!(of([neither.clone(), neither]), Err(CaptureError::NoSnapshot { program }));
    // A session program that asks for no exit.
    let entry = [hit(&taken), hit(&taken)];
    let hint = "; a session's program that returns 1 at the entry does not run at the exit";
    assert_eq!(of(entry), Err(CaptureError::Runs { runs: 2, expected: 4, hint }));
}

#[test]
fn skips_interrupted_hits_and_takes_the_most_frequent_form() {
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
        measure([a.clone(), b.clone(), c.clone(), c.clone()].concat(), Mechanism::Fentry, 4)
            .unwrap();
    assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (Some(1), 2));
    assert_eq!(waste.points[0].wasted["intel-lbr"]["any"].wasted, Some(2));

    let waste = measure([b.clone(), c.clone()].concat(), Mechanism::Fentry, 2).unwrap();
    assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (Some(0), 1));
    assert_eq!(waste.points[0].wasted["intel-lbr"]["any"].wasted, Some(3), "the first of a tie");

    let error = measure([a.clone(), a].concat(), Mechanism::Fentry, 2).unwrap_err();
    assert_eq!(error, CaptureError::Interrupted { hits: 2 });

    // Another way to the function, but the same from there on.
    let mut d = c.clone();
    d.insert(2, r(Cond, ("entry", 0x40), ("entry", 0x48)));
    let usual = measure(c.clone(), Mechanism::Fentry, 1).unwrap();
    let waste = measure([d, c.clone(), c].concat(), Mechanism::Fentry, 3).unwrap();
    assert_eq!(waste.agreeing_hits, 3);
    assert_eq!(waste.points[0].digest, usual.points[0].digest, "of the way that most took");
}

#[test]
fn finds_interrupts_by_their_entry_anywhere_in_a_hit() {
    let handler = |n: usize| {
        let mut records = vec![r(Ret, ("bpf_prog", 0x10), ("asm_sysvec", 0))];
        records.extend(vec![r(Cond, ("asm_sysvec", 0x30), ("asm_sysvec", 0x28)); n]);
        records.push(r(Iret, ("asm_sysvec", 0x80), ("sys", 0x11)));
        records
    };
    // Recorded as a return, and with a handler longer than `KEPT` or `FURTHEST`.
    for (before, length) in [(3, 1), (3, 1000), (5, FURTHEST)] {
        let late = [&enter()[..before], &handler(length), &enter()[before..], &inlined(), &leave()]
            .concat();
        let waste =
            measure([late.clone(), hit(&inlined())].concat(), Mechanism::Fentry, 2).unwrap();
        assert_eq!(
            (waste.interrupted_hits, waste.agreeing_hits),
            (Some(1), 1),
            "{before} {length}"
        );
        let error = measure(late, Mechanism::Fentry, 1).unwrap_err();
        assert_eq!(error, CaptureError::Interrupted { hits: 1 }, "{before} {length}");
    }
    // A kprobe works by a breakpoint. A branch into the middle of a handler is no entry.
    let breakpoint = [&[r(Int, ("bpf_prog", 0x10), ("asm_sysvec", 0))], &inlined()[..]].concat();
    let inside = [&[r(Ret, ("sys", 0x10), ("asm_sysvec", 0xf))], &inlined()[..]].concat();
    for middle in [breakpoint, inside] {
        assert_eq!(measure(hit(&middle), Mechanism::Fentry, 1).unwrap().interrupted_hits, Some(0));
    }
}

#[test]
fn keeps_a_hit_behind_an_interrupt_in_user_space() {
    let tick = [
        r(Interrupt, ("user", 0x10), ("asm_sysvec", 0)),
        r(Iret, ("asm_sysvec", 0x80), ("user", 0x10)),
    ];
    let waste = measure([&tick[..], &hit(&inlined())].concat(), Mechanism::Fentry, 1).unwrap();
    assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (Some(0), 1));
}

#[test]
fn rejects_counts_that_disagree() {
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
    assert_eq!(error, CaptureError::Runs { runs: 2, expected: 1, hint: "" });
    // Other code may hit a function that the user names.
    let hits = |number: usize| trace(vec![one.clone(); number].concat());
    more.trigger = Some(Triggered { workload: "any".to_owned(), hits: 1 });
    for number in [1, 2] {
        let waste = lbr_waste(Arch::X86_64, &hits(number), &symbols(), &more).unwrap();
        assert_eq!((waste.hits as usize, waste.agreeing_hits as usize), (number, number));
    }
    let error = lbr_waste(Arch::X86_64, &hits(3), &symbols(), &more).unwrap_err();
    assert!(matches!(error, CaptureError::Count { found: 3, expected: 1, .. }), "{error}");
    // Without the oldest records, the agent's own hit may be missing.
    let mut cut = hits(1);
    cut.vcpus[1].total += 1;
    let error = lbr_waste(Arch::X86_64, &cut, &symbols(), &more).unwrap_err();
    assert!(matches!(error, CaptureError::Count { found: 1, .. }), "{error}");
    // A function that calls itself is entered twice before its first exit.
    let error = measure([one.clone(), one.clone()].concat(), Mechanism::Fsession, 1).unwrap_err();
    let unpaired = CaptureError::Unpaired { hit: 0, function: "traced".to_owned() };
    assert_eq!(error, unpaired);
    // The tracer calls the function itself, before the program: the newest record is of that call.
    let (enter, leave) = (enter(), leave());
    let own =
        [r(Call, ("bpf_tramp", 0x30), ("traced", 0)), r(Ret, ("traced", 9), ("bpf_tramp", 0x35))];
    let (before, program) = enter.split_at(enter.len() - 1);
    let records = [before, &own, program, &inlined(), &leave].concat();
    let error = lbr_waste(Arch::X86_64, &trace(records), &symbols(), &more).unwrap_err();
    let function = "traced".to_owned();
    assert_eq!(error, CaptureError::Reentered { hit: 0, function, times: 2 });
    // A system call before the hit's passes the function, and no program runs.
    let passed = [&before[..before.len() - 1], &leave[2..]].concat();
    let waste = lbr_waste(Arch::X86_64, &trace([passed, one.clone()].concat()), &symbols(), &more);
    assert_eq!(waste.unwrap().agreeing_hits, 1);
    more.runs = 0;
    let error = lbr_waste(Arch::X86_64, &hits(1), &symbols(), &more).unwrap_err();
    assert_eq!(error, CaptureError::Runs { runs: 0, expected: 1, hint: "" });

    let mut dropped = trace(one.clone());
    dropped.vcpus[1].total += 1;
    let error =
        lbr_waste(Arch::X86_64, &dropped, &symbols(), &reply(Mechanism::Fentry, 2)).unwrap_err();
    assert!(error.to_string().contains("ring was too small"), "{error}");

    let mut both = trace(one.clone());
    both.vcpus[0].records = one.clone();
    let error =
        lbr_waste(Arch::X86_64, &both, &symbols(), &reply(Mechanism::Fentry, 1)).unwrap_err();
    assert_eq!(error, CaptureError::Vcpus { first: 0, second: 1 });

    let mut elsewhere = reply(Mechanism::Fentry, 1);
    elsewhere.function = symbols().find(at("bpf_get_smp", 0)).unwrap().clone();
    let error = lbr_waste(Arch::X86_64, &trace(one), &symbols(), &elsewhere).unwrap_err();
    assert!(
        matches!(error, CaptureError::Untouched { hit: 0, point: Point::Entry, .. }),
        "{error}"
    );
}

#[test]
fn cuts_a_long_system_call_but_keeps_the_function() {
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
fn digests_depend_on_the_code_and_not_on_the_boot() {
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
    // Another offset, function and kind, and a program with another name.
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
