// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of real kernels, and counts made by hand in their listings.
//!
//! The kernels are Debian's cloud images under QEMU 10.0. Each trace has two hits, armed by the
//! agent. The plugin recorded those of arm64. A throw-away recorder that shares nothing with the
//! plugin recorded the others, unless a comment says otherwise. `__softirqentry_text_end` in 6.12's
//! is the retpoline thunk: both names have one address.

use super::{
    Branch, CaptureError, DriverError, Filter, Model, Symbols,
    driver::{self, Cpu},
    driver_waste, lbr_waste, listing,
};
use serde::{Deserialize, de::DeserializeOwned};
use tramplab_model::run::{Arch, BranchSource, LbrWaste, NamedRecord};
use tramplab_protocol::{
    message::{DriverHit, DriverRecords, LbrWasteReply, Pmu, Snapshot, Symbol},
    trace::{Kind, Record, Trace, VcpuTrace},
};

#[derive(Deserialize)]
struct Recorded {
    #[serde(skip, default = "x86_64")]
    arch: Arch,
    kernel: String,
    reply: LbrWasteReply,
    symbols: Vec<Symbol>,
    /// Oldest first.
    records: Vec<(u64, u64, Kind)>,
}

fn x86_64() -> Arch {
    Arch::X86_64
}

/// Reads a recorded trace.
pub fn read<R: DeserializeOwned>(name: &str) -> R {
    let path = format!("{}/src/branch/testdata/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Moves an address of the kernel, as KASLR does at the next boot.
pub fn shift(address: &mut u64) {
    if super::symbols::is_kernel(*address) {
        *address -= 0x40_0000;
    }
}

impl Recorded {
    fn read(name: &str) -> Recorded {
        Recorded { arch: arch(name), ..read(name) }
    }

    fn measure(&self) -> Result<LbrWaste, CaptureError> {
        let records = self
            .records
            .iter()
            .map(|&(from, to, kind)| Record { from, to, kind, instructions: 1, accesses: None })
            .collect();
        let total = self.records.len() as u64;
        let trace =
            Trace { discontinuities: false, vcpus: vec![VcpuTrace { index: 0, total, records }] };
        let symbols: Symbols = self.symbols.iter().cloned().collect();
        lbr_waste(self.arch, &trace, &symbols, &self.reply)
    }
}

type Counts = [(&'static str, Option<u32>); 4];

/// File; for each point the wasted records by filter.
const COUNTED: [(&str, &[Counts]); 12] = [
    (
        "6.1-fexit",
        &[[("any", Some(11)), ("any_call", Some(7)), ("any_return", Some(4)), ("cond", None)]],
    ),
    (
        "6.12-fentry",
        &[[("any", Some(9)), ("any_call", Some(5)), ("any_return", None), ("cond", None)]],
    ),
    (
        "6.12-fexit",
        &[[("any", Some(9)), ("any_call", Some(5)), ("any_return", Some(3)), ("ind_jump", None)]],
    ),
    (
        "6.12-kprobe.multi",
        &[[("any", Some(16)), ("any_call", Some(9)), ("any_return", None), ("call", Some(9))]],
    ),
    (
        "6.12-kretprobe.multi",
        &[[("any", Some(22)), ("any_call", Some(15)), ("any_return", Some(5)), ("call", Some(15))]],
    ),
    // Without retpolines, three of the calls are indirect, with one record each.
    (
        "6.12-mitigations-off-kretprobe.multi",
        &[[("any", Some(16)), ("any_call", Some(12)), ("any_return", Some(2)), ("call", Some(9))]],
    ),
    (
        "7.2-fexit",
        &[[("any", Some(6)), ("any_call", Some(4)), ("any_return", Some(2)), ("ind_call", None)]],
    ),
    (
        "7.2-fsession",
        &[
            [("any", Some(11)), ("any_call", Some(6)), ("any_return", None), ("call", Some(6))],
            [("any", Some(6)), ("any_call", Some(4)), ("any_return", Some(2)), ("call", Some(4))],
        ],
    ),
    // From here on arm64, without the records between the hits. All pass through `ftrace_caller`.
    (
        "7.2-arm64-fentry",
        &[[("any", Some(7)), ("any_call", Some(3)), ("any_return", None), ("call", Some(1))]],
    ),
    (
        "6.12-arm64-fexit",
        &[[("any", Some(6)), ("any_call", Some(5)), ("any_return", Some(2)), ("call", Some(2))]],
    ),
    // The breakpoint is an exception and counts as one.
    (
        "7.2-arm64-kprobe",
        &[[("any", Some(27)), ("any_call", Some(12)), ("any_return", None), ("call", Some(9))]],
    ),
    // The helper returns at once on arm64. The analysis counted these, nobody by hand.
    (
        "6.1-arm64-kprobe",
        &[[("any", Some(34)), ("any_call", Some(17)), ("any_return", None), ("call", Some(11))]],
    ),
];

/// Takes the architecture from the file's name.
fn arch(name: &str) -> Arch {
    if name.contains("-arm64-") { Arch::Arm64 } else { Arch::X86_64 }
}

#[test]
fn agrees_with_counts_made_by_hand() {
    for (name, points) in COUNTED {
        let waste = Recorded::read(name).measure().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (Some(0), 2), "{name}");
        assert_eq!(waste.points.len(), points.len(), "{name}");
        for (point, counts) in waste.points.iter().zip(points) {
            for model in Model::of(arch(name)) {
                for (filter, wasted) in counts {
                    let what = format!("{name} {} {model} {filter}", point.point);
                    let counted = point.wasted[model.name()][*filter];
                    assert_eq!(counted.wasted, *wasted, "{what}");
                    // bpf_fentry_test1 has no branch within itself.
                    assert_eq!(counted.wasted_selftest, None, "{what}");
                }
            }
        }
    }
}

#[test]
fn prints_the_listings_counted_by_hand() {
    let mut text = String::new();
    for (name, _) in COUNTED {
        let recorded = Recorded::read(name);
        let waste = recorded.measure().unwrap();
        for point in &waste.points {
            text += &format!("{name} ({}), {}\n", recorded.kernel, point.point);
            let model = Model::choose(None, recorded.arch);
            text += &listing(point, &waste.function, model, "any".parse::<Filter>().unwrap(), None);
            text.push('\n');
        }
    }
    insta::assert_snapshot!(text);
}

/// The plugin recorded it. The timer interrupted the second `prctl`, before the traced function.
#[test]
fn skips_an_interrupted_hit() {
    let mut recorded = Recorded::read("6.1-raw_tp-interrupted");
    let interrupted = |r: &Recorded| {
        let waste = r.measure().unwrap();
        (
            waste.interrupted_hits,
            waste.agreeing_hits,
            waste.points[0].wasted["intel-lbr"]["any"].wasted,
        )
    };
    assert_eq!(interrupted(&recorded), (Some(1), 1, Some(10)));
    // A QEMU that reports no interrupts may record a return instead. Its target shows what it is.
    for record in &mut recorded.records {
        if record.2 == Kind::Interrupt {
            record.2 = Kind::Ret;
        }
    }
    assert_eq!(interrupted(&recorded), (Some(1), 1, Some(10)));
}

/// 6.12, 7.2, and 6.12 without mitigations differ in the code between the function and the program.
#[test]
fn digests_differ_where_the_code_does() {
    let digest = |name: &str| Recorded::read(name).measure().unwrap().points[0].digest.clone();
    let mut digests: Vec<String> = COUNTED.map(|(name, _)| digest(name)).to_vec();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), COUNTED.len());
}

#[test]
fn notices_a_lost_record() {
    for (name, _) in COUNTED {
        let mut recorded = Recorded::read(name);
        let is_call_of_program = |from: u64, to: u64, symbols: &[Symbol]| {
            let of = |address| symbols.iter().find(|s| (s.start..s.end).contains(&address));
            of(to).is_some_and(|s| s.name.starts_with("bpf_prog_") && s.start == to)
                && of(from).is_some_and(|s| !s.name.starts_with("bpf_prog_"))
        };
        let symbols = recorded.symbols.clone();
        let at = recorded
            .records
            .iter()
            // The first one may be that of the program that calls the function.
            .rposition(|&(from, to, _)| is_call_of_program(from, to, &symbols));
        recorded.records.remove(at.expect("a call of the program"));
        let waste = recorded.measure().unwrap();
        assert_eq!(waste.agreeing_hits, 1, "{name}: the two hits no longer agree");

        let mut recorded = Recorded::read(name);
        recorded.records.truncate(recorded.records.len() / 2);
        assert!(matches!(recorded.measure(), Err(CaptureError::Count { .. })), "{name}");
    }
}

#[test]
fn a_moved_kernel_gives_the_same_digest() {
    for (name, _) in COUNTED {
        let recorded = Recorded::read(name);
        let mut moved = Recorded::read(name);

        for symbol in moved.symbols.iter_mut().chain([&mut moved.reply.function]) {
            shift(&mut symbol.start);
            shift(&mut symbol.end);
        }
        for (from, to, _) in &mut moved.records {
            shift(from);
            shift(to);
        }
        let (here, there) = (recorded.measure().unwrap(), moved.measure().unwrap());
        for (a, b) in here.points.iter().zip(&there.points) {
            assert_ne!(a.records[1].from.address, b.records[1].from.address);
            assert_eq!((&a.digest, &a.wasted), (&b.digest, &b.wasted), "{name}");
        }
    }
}

const DEPTH: u32 = 32;

/// The entries behind the records that the driver kept: copies of the last moved record, or zeroes.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Copies,
    Zeroes,
    /// The entries of the snapshot before.
    Stale,
}

/// The flags of `struct perf_branch_entry` as x86 fills them in: prediction, cycles, `type`.
fn flags(kind: Kind) -> u64 {
    let perf_type = match kind {
        Kind::Int => 0,
        Kind::Cond => 1,
        Kind::Jump => 2,
        Kind::IndJump => 3,
        Kind::Call => 4,
        Kind::IndCall => 5,
        Kind::Ret => 6,
        Kind::Syscall => 7,
        Kind::Sysret => 8,
        Kind::Iret => 11,
        Kind::Interrupt => 12,
    };
    0b10 | 0x123 << 4 | perf_type << 20
}

/// A full ring of other code, whose oldest record touches the traced function.
fn before(waste: &LbrWaste) -> Snapshot {
    const OTHER: u64 = 0xffff_ffff_f000_0000;
    let mut entries: Vec<_> = (0..u64::from(DEPTH))
        .map(|at| (OTHER + 16 * at, OTHER + 16 * at + 8, flags(Kind::Call)))
        .collect();
    entries[DEPTH as usize - 1].1 = waste.function.start;
    Snapshot { result: i64::from(DEPTH) * 24, entries }
}

/// Turns a trace into the reply of a guest whose CPU has a ring of `DEPTH` records.
fn as_the_cpu_would(recorded: &Recorded, tail: Tail) -> (LbrWaste, LbrWasteReply, Symbols) {
    let waste = recorded.measure().unwrap();
    let before = before(&waste);
    let of_driver =
        Branch::ALL.into_iter().zip(driver::events()).map(|(branch, branch_sample_type)| {
            let snapshots: Vec<Snapshot> = waste
                .points
                .iter()
                .map(|point| {
                    let kept =
                        Model::IntelLbr.snapshot(Filter::of(branch), Some(DEPTH), &point.records);
                    let mut entries: Vec<_> = kept
                        .map(|seen| {
                            (
                                seen.record.from.address,
                                seen.record.to.address,
                                flags(seen.record.kind),
                            )
                        })
                        .collect();
                    match (tail, entries.last()) {
                        (Tail::Stale, _) => {
                            entries.extend(&before.entries[entries.len()..]);
                        }
                        (Tail::Copies, Some(&last)) => entries.resize(DEPTH as usize, last),
                        _ => entries.resize(DEPTH as usize, (0, 0, 0)),
                    }
                    Snapshot { result: before.result, entries }
                })
                .collect();
            let hit = DriverHit { before: before.clone(), snapshots };
            DriverRecords { branch_sample_type, hits: vec![hit.clone(), hit] }
        });
    let of_driver: Vec<DriverRecords> = of_driver.collect();
    let last = of_driver[0].hits[1].snapshots.last().unwrap().clone();
    let reply = LbrWasteReply {
        hits: 2,
        snapshot_result: last.result,
        snapshot: last.entries.iter().map(|&(from, to, _)| (from, to)).collect(),
        pmu: Pmu { depth: Some(DEPTH), refused: None },
        of_driver,
        ..recorded.reply.clone()
    };
    // Replace the stand-in by a driver.
    let driver = |symbol: &Symbol| match symbol.name.as_str() {
        "__static_call_return0" => {
            Symbol { name: "intel_pmu_snapshot_branch_stack".to_owned(), ..symbol.clone() }
        }
        _ => symbol.clone(),
    };
    (waste, reply, recorded.symbols.iter().map(driver).collect())
}

/// Traces with a call for a snapshot. Without a driver, kernels before 6.10 have none.
const OF_A_DRIVER: [&str; 6] = [
    "6.12-fentry",
    "6.12-fexit",
    "6.12-kprobe.multi",
    "6.12-kretprobe.multi",
    "7.2-fexit",
    "7.2-fsession",
];

#[test]
fn counts_hardware_records_like_the_trace_as_far_as_the_ring_goes() {
    for name in OF_A_DRIVER {
        for tail in [Tail::Copies, Tail::Zeroes, Tail::Stale] {
            let recorded = Recorded::read(name);
            let (trace, reply, symbols) = as_the_cpu_would(&recorded, tail);
            let found = driver_waste(Cpu::Passed, &reply, &symbols).unwrap();
            assert_eq!((found.source, found.depth), (BranchSource::Hardware, Some(DEPTH)));
            assert_eq!(
                (found.hits, found.agreeing_hits, found.interrupted_hits),
                (2, 2, Some(0)),
                "{name}"
            );
            for (point, of_trace) in found.points.iter().zip(&trace.points) {
                let seen = &point.wasted["intel-lbr"];
                assert_eq!((point.point, point.wasted.len(), seen.len()), (of_trace.point, 1, 7));
                for branch in Branch::ALL {
                    let (seen, full) =
                        (seen[branch.name()], of_trace.wasted["intel-lbr"][branch.name()]);
                    let held = Model::IntelLbr
                        .snapshot(Filter::of(branch), Some(DEPTH), &of_trace.records)
                        .count() as u32;
                    let within = |wasted: Option<u32>| wasted.filter(|&wasted| wasted < held);
                    assert_eq!(
                        seen.wasted,
                        within(full.wasted),
                        "{name} {} {tail:?}",
                        branch.name()
                    );
                    assert_eq!(
                        seen.wasted_selftest,
                        within(full.wasted_selftest),
                        "{name} {}",
                        branch.name()
                    );
                }
                let held = point.records.len();
                let bare = |records: &[NamedRecord]| -> Vec<_> {
                    records.iter().map(|r| (r.from.address, r.to.address, r.kind)).collect()
                };
                assert_eq!(
                    bare(&point.records),
                    bare(&of_trace.records[..held]),
                    "{name} {tail:?}"
                );
                assert_eq!(point.by_filter.len(), Branch::ALL.len() - 1);
                assert_eq!(driver::of_the_driver(&point.records), Some(0));
            }
        }
    }
}

#[test]
fn rejects_records_that_are_not_the_cpus() {
    let (_, good, symbols) = as_the_cpu_would(&Recorded::read("6.12-fexit"), Tail::Copies);
    assert!(driver_waste(Cpu::Passed, &good, &symbols).is_ok());
    type Change = fn(&mut LbrWasteReply);
    let any = Filter::of(Branch::Any);
    let table: [(&str, Change, DriverError); 10] = [
        (
            "records come, but the kernel knows of no PMU: the plugin's delivery",
            |reply| reply.pmu = Pmu { depth: None, refused: Some("ENOENT".to_owned()) },
            DriverError::Refused("ENOENT".to_owned()),
        ),
        ("an event, and no depth", |reply| reply.pmu.depth = None, DriverError::NoDepth),
        ("no driver", |reply| reply.snapshot_result = -2, DriverError::NoSnapshots),
        (
            "nothing but zeroes",
            |reply| reply.snapshot.iter_mut().for_each(|entry| *entry = (0, 0)),
            DriverError::Result { result: 768 },
        ),
        (
            "more than there are slots",
            |reply| reply.pmu.depth = Some(16),
            DriverError::Entries { entries: 32, depth: 16 },
        ),
        (
            "more than there are slots, in one hit of one filter",
            |reply| reply.of_driver[1].hits[1].snapshots[0].entries.resize(33, (1, 2, 0)),
            DriverError::Entries { entries: 33, depth: 32 },
        ),
        (
            "a hit is missing",
            |reply| drop(reply.of_driver[0].hits.pop()),
            DriverError::Count { filter: any, found: 1, expected: 2 },
        ),
        (
            "a filter is missing",
            |reply| drop(reply.of_driver.pop()),
            DriverError::Count { filter: Filter::of(Branch::Call), found: 0, expected: 2 },
        ),
        (
            "a hit that failed",
            |reply| reply.of_driver[3].hits[1].snapshots[0].result = -22,
            DriverError::Result { result: -22 },
        ),
        (
            "another user has the LBR",
            |reply| {
                let snapshots =
                    reply.of_driver[0].hits.iter_mut().flat_map(|hit| &mut hit.snapshots);
                snapshots.for_each(|snapshot| snapshot.entries.clear());
            },
            DriverError::Empty(2, any),
        ),
    ];
    for (what, change, error) in table {
        let mut reply = good.clone();
        change(&mut reply);
        assert_eq!(driver_waste(Cpu::Passed, &reply, &symbols).unwrap_err(), error, "{what}");
    }
    // The program called the stand-in, so no driver made the records.
    let symbols: Symbols = Recorded::read("6.12-fexit").symbols.into_iter().collect();
    assert_eq!(driver_waste(Cpu::Passed, &good, &symbols).unwrap_err(), DriverError::Elsewhere);
}

#[test]
fn counts_the_most_frequent_form_of_hardware_hits() {
    let (_, mut reply, symbols) = as_the_cpu_would(&Recorded::read("6.12-fexit"), Tail::Copies);
    let usual = driver_waste(Cpu::Passed, &reply, &symbols).unwrap();
    reply.hits = 3;
    for one in &mut reply.of_driver {
        let mut odd = one.hits[0].clone();
        // Other code ran in between.
        let entries = &mut odd.snapshots[0].entries;
        entries.insert(1, (entries[0].0, entries[0].0, flags(Kind::Cond)));
        entries.truncate(32);
        one.hits.insert(0, odd);
    }
    let found = driver_waste(Cpu::Passed, &reply, &symbols).unwrap();
    assert_eq!((found.hits, found.agreeing_hits), (3, 2));
    assert_eq!(found.points, usual.points);
    // Records before the function's entry do not tell hits apart.
    let other = (u64::MAX - 32, u64::MAX - 16, flags(Kind::Cond));
    for one in &mut reply.of_driver {
        *one.hits[2].snapshots[0].entries.last_mut().unwrap() = other;
    }
    assert_eq!(driver_waste(Cpu::Passed, &reply, &symbols).unwrap().agreeing_hits, 2);
    // The return of an interrupt's handler shows a hit to set aside, unless it came before.
    for (at, interrupted) in [(2, 2), (31, 0)] {
        let mut reply = reply.clone();
        for hit in &mut reply.of_driver[0].hits[1..] {
            hit.snapshots[0].entries[at] = (u64::MAX - 32, u64::MAX - 16, flags(Kind::Iret));
        }
        let found = driver_waste(Cpu::Passed, &reply, &symbols).unwrap();
        assert_eq!(found.interrupted_hits, Some(interrupted), "record {at}");
    }
}

#[test]
fn lists_each_kernel_address_of_hardware_records_once() {
    let (_, reply, _) = as_the_cpu_would(&Recorded::read("6.12-fexit"), Tail::Zeroes);
    let addresses = driver::addresses(&reply);
    assert!(
        addresses.is_sorted_by(|a, b| a < b) && addresses.iter().all(|address| address >> 63 == 1)
    );
    assert!(reply.snapshot.iter().all(|(from, _)| *from >> 63 == 0 || addresses.contains(from)));
}
