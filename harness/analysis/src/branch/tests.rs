// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of real kernels (Debian's cloud images under QEMU 10.0, two hits each, armed by the agent), and what was
//! counted by hand in their listings. If nothing else is said they were recorded by a throw-away recorder that shares
//! nothing with the plugin; those of arm64 by the plugin.
//! `__softirqentry_text_end` in 6.12's is the retpoline thunk, by a name that stands at the same address.

use super::{
    Branch, CaptureError, Filter, HardwareError, Model, Symbols, hardware, hardware_waste, lbr_waste, listing,
};
use serde::Deserialize;
use tramplab_model::run::{Arch, BranchSource, LbrWaste, NamedRecord};
use tramplab_protocol::{
    message::{CpuRecords, LbrWasteReply, Pmu, Snapshot, Symbol},
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

impl Recorded {
    fn read(name: &str) -> Recorded {
        let path = format!("{}/src/branch/testdata/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let recorded: Recorded = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"));
        Recorded { arch: arch(name), ..recorded }
    }

    fn measure(&self) -> Result<LbrWaste, CaptureError> {
        let records =
            self.records.iter().map(|&(from, to, kind)| Record { from, to, kind, instructions: 1 }).collect();
        let total = self.records.len() as u64;
        let trace = Trace { discontinuities: false, vcpus: vec![VcpuTrace { index: 0, total, records }] };
        let symbols: Symbols = self.symbols.iter().cloned().collect();
        lbr_waste(self.arch, &trace, &symbols, &self.reply)
    }
}

type Counts = [(&'static str, Option<u32>); 4];

/// File, and per point what is wasted by filter.
const COUNTED: [(&str, &[Counts]); 12] = [
    ("6.1-fexit", &[[("any", Some(11)), ("any_call", Some(7)), ("any_return", Some(4)), ("cond", None)]]),
    ("6.12-fentry", &[[("any", Some(9)), ("any_call", Some(5)), ("any_return", None), ("cond", None)]]),
    ("6.12-fexit", &[[("any", Some(9)), ("any_call", Some(5)), ("any_return", Some(3)), ("ind_jump", None)]]),
    (
        "6.12-kprobe.multi",
        &[[("any", Some(16)), ("any_call", Some(9)), ("any_return", None), ("call", Some(9))]],
    ),
    (
        "6.12-kretprobe.multi",
        &[[("any", Some(22)), ("any_call", Some(15)), ("any_return", Some(5)), ("call", Some(15))]],
    ),
    // Without retpolines three of the calls are indirect ones, of one record each.
    (
        "6.12-mitigations-off-kretprobe.multi",
        &[[("any", Some(16)), ("any_call", Some(12)), ("any_return", Some(2)), ("call", Some(9))]],
    ),
    ("7.2-fexit", &[[("any", Some(6)), ("any_call", Some(4)), ("any_return", Some(2)), ("ind_call", None)]]),
    (
        "7.2-fsession",
        &[
            [("any", Some(11)), ("any_call", Some(6)), ("any_return", None), ("call", Some(6))],
            [("any", Some(6)), ("any_call", Some(4)), ("any_return", Some(2)), ("call", Some(4))],
        ],
    ),
    // Of arm64, recorded by the plugin; what ran between the hits is cut out. `ftrace_caller` is always on the way.
    (
        "7.2-arm64-fentry",
        &[[("any", Some(7)), ("any_call", Some(3)), ("any_return", None), ("call", Some(1))]],
    ),
    (
        "6.12-arm64-fexit",
        &[[("any", Some(6)), ("any_call", Some(5)), ("any_return", Some(2)), ("call", Some(2))]],
    ),
    // By a breakpoint, which is an exception and counts as one.
    (
        "7.2-arm64-kprobe",
        &[[("any", Some(27)), ("any_call", Some(12)), ("any_return", None), ("call", Some(9))]],
    ),
    // The helper is a function that returns at once on arm64. Not counted by hand: what the analysis says.
    (
        "6.1-arm64-kprobe",
        &[[("any", Some(34)), ("any_call", Some(17)), ("any_return", None), ("call", Some(11))]],
    ),
];

/// By the file's name.
fn arch(name: &str) -> Arch {
    if name.contains("-arm64-") { Arch::Arm64 } else { Arch::X86_64 }
}

#[test]
fn counts_are_those_made_by_hand() {
    for (name, points) in COUNTED {
        let waste = Recorded::read(name).measure().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((waste.interrupted_hits, waste.agreeing_hits), (0, 2), "{name}");
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
fn the_listings_that_were_counted() {
    let mut text = String::new();
    for (name, _) in COUNTED {
        let recorded = Recorded::read(name);
        let waste = recorded.measure().unwrap();
        for point in &waste.points {
            text += &format!("{name} ({}), {}\n", recorded.kernel, point.point);
            let model = Model::choose(None, recorded.arch);
            text += &listing(point, &waste.function, model, "any".parse::<Filter>().unwrap());
            text.push('\n');
        }
    }
    insta::assert_snapshot!(text);
}

/// Recorded by the plugin: the timer's interrupt fell into the second `prctl`, before the traced function.
#[test]
fn an_interrupted_hit_is_set_aside() {
    let mut recorded = Recorded::read("6.1-raw_tp-interrupted");
    let interrupted = |r: &Recorded| {
        let waste = r.measure().unwrap();
        (waste.interrupted_hits, waste.agreeing_hits, waste.points[0].wasted["intel-lbr"]["any"].wasted)
    };
    assert_eq!(interrupted(&recorded), (1, 1, Some(10)));
    // As a QEMU that reports no interrupts may make it look: known by where it leads.
    for record in &mut recorded.records {
        if record.2 == Kind::Interrupt {
            record.2 = Kind::Ret;
        }
    }
    assert_eq!(interrupted(&recorded), (1, 1, Some(10)));
}

/// 7.2 is 6.12 with other code between the function and the program; 6.12 with and without mitigations likewise.
#[test]
fn digests_differ_where_the_code_does() {
    let digest = |name: &str| Recorded::read(name).measure().unwrap().points[0].digest.clone();
    let mut digests: Vec<String> = COUNTED.map(|(name, _)| digest(name)).to_vec();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), COUNTED.len());
}

#[test]
fn a_lost_record_is_noticed() {
    for (name, _) in COUNTED {
        let mut recorded = Recorded::read(name);
        let is_call_of_program = |from: u64, to: u64, symbols: &[Symbol]| {
            let of = |address| symbols.iter().find(|s| (s.start..s.end).contains(&address));
            of(to).is_some_and(|s| s.name.starts_with("bpf_prog_") && s.start == to)
                && of(from).is_some_and(|s| !s.name.starts_with("bpf_prog_"))
        };
        let symbols = recorded.symbols.clone();
        let at = recorded.records.iter().position(|&(from, to, _)| is_call_of_program(from, to, &symbols));
        recorded.records.remove(at.expect("a call of the program"));
        let waste = recorded.measure().unwrap();
        assert_eq!(waste.agreeing_hits, 1, "{name}: the two hits no longer agree");

        let mut recorded = Recorded::read(name);
        recorded.records.truncate(recorded.records.len() / 2);
        assert!(matches!(recorded.measure(), Err(CaptureError::Count { .. })), "{name}");
    }
}

/// The same records somewhere else, as KASLR puts them at the next boot.
#[test]
fn a_moved_kernel_gives_the_same_digest() {
    for (name, _) in COUNTED {
        let recorded = Recorded::read(name);
        let mut moved = Recorded::read(name);
        let shift = |address: &mut u64| {
            if super::symbols::is_kernel(*address) {
                *address -= 0x40_0000;
            }
        };
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

/// What is behind the records that the driver kept: copies of the last that it moved up, or nothing.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Copies,
    Zeroes,
}

/// `type` of `struct perf_branch_entry` as x86 fills it in, behind a prediction and some cycles.
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

/// The trace as a CPU with a ring of `DEPTH` and its driver would have handed it to the guest's program, hit by hit.
fn as_the_cpu_would(recorded: &Recorded, tail: Tail) -> (LbrWaste, LbrWasteReply, Symbols) {
    let waste = recorded.measure().unwrap();
    let hardware = Branch::ALL.into_iter().zip(hardware::events()).map(|(branch, branch_sample_type)| {
        let snapshots: Vec<Snapshot> = waste
            .points
            .iter()
            .map(|point| {
                let kept = Model::IntelLbr.snapshot(Filter::of(branch), Some(DEPTH), &point.records);
                let mut entries: Vec<_> = kept
                    .map(|seen| (seen.record.from.address, seen.record.to.address, flags(seen.record.kind)))
                    .collect();
                let end = match (tail, entries.last()) {
                    (Tail::Copies, Some(&last)) => last,
                    _ => (0, 0, 0),
                };
                entries.resize(DEPTH as usize, end);
                Snapshot { result: i64::from(DEPTH) * 24, entries }
            })
            .collect();
        CpuRecords { branch_sample_type, snapshots: [&snapshots[..], &snapshots].concat() }
    });
    let hardware: Vec<CpuRecords> = hardware.collect();
    let last = hardware[0].snapshots.last().unwrap();
    let reply = LbrWasteReply {
        hits: 2,
        snapshot_result: last.result,
        snapshot: last.entries.iter().map(|&(from, to, _)| (from, to)).collect(),
        pmu: Pmu { depth: Some(DEPTH), refused: None },
        hardware,
        ..recorded.reply.clone()
    };
    // A driver instead of what stands in for it.
    let driver = |symbol: &Symbol| match symbol.name.as_str() {
        "__static_call_return0" => {
            Symbol { name: "intel_pmu_snapshot_branch_stack".to_owned(), ..symbol.clone() }
        }
        _ => symbol.clone(),
    };
    (waste, reply, recorded.symbols.iter().map(driver).collect())
}

/// Those with a call for a snapshot: before 6.10 there is none without a driver.
const OF_A_DRIVER: [&str; 6] =
    ["6.12-fentry", "6.12-fexit", "6.12-kprobe.multi", "6.12-kretprobe.multi", "7.2-fexit", "7.2-fsession"];

#[test]
fn what_a_cpu_hands_over_counts_as_its_trace_does_as_far_as_the_ring_goes() {
    for name in OF_A_DRIVER {
        for tail in [Tail::Copies, Tail::Zeroes] {
            let recorded = Recorded::read(name);
            let (trace, reply, symbols) = as_the_cpu_would(&recorded, tail);
            let found = hardware_waste(&reply, &symbols).unwrap();
            assert_eq!((found.source, found.depth), (BranchSource::Hardware, Some(DEPTH)));
            assert_eq!((found.hits, found.agreeing_hits, found.interrupted_hits), (2, 2, 0), "{name}");
            for (point, of_trace) in found.points.iter().zip(&trace.points) {
                let seen = &point.wasted["intel-lbr"];
                assert_eq!((point.point, point.wasted.len(), seen.len()), (of_trace.point, 1, 7));
                for branch in Branch::ALL {
                    let (seen, full) = (seen[branch.name()], of_trace.wasted["intel-lbr"][branch.name()]);
                    let held = Model::IntelLbr
                        .snapshot(Filter::of(branch), Some(DEPTH), &of_trace.records)
                        .count() as u32;
                    let within = |wasted: Option<u32>| wasted.filter(|&wasted| wasted < held);
                    assert_eq!(seen.wasted, within(full.wasted), "{name} {} {tail:?}", branch.name());
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
                assert_eq!(bare(&point.records), bare(&of_trace.records[..held]), "{name} {tail:?}");
                assert_eq!(point.by_filter.len(), Branch::ALL.len() - 1);
                assert_eq!(hardware::of_the_driver(&point.records), Some(0));
            }
        }
    }
}

/// Whatever makes a guest's records not the CPU's is seen before one is counted.
#[test]
fn records_that_are_not_the_cpus_are_refused() {
    let (_, good, symbols) = as_the_cpu_would(&Recorded::read("6.12-fexit"), Tail::Copies);
    assert!(hardware_waste(&good, &symbols).is_ok());
    type Change = fn(&mut LbrWasteReply);
    let any = Filter::of(Branch::Any);
    let table: [(&str, Change, HardwareError); 10] = [
        (
            "records come, but the kernel knows of no PMU: the plugin's delivery",
            |reply| reply.pmu = Pmu { depth: None, refused: Some("ENOENT".to_owned()) },
            HardwareError::Refused("ENOENT".to_owned()),
        ),
        ("an event, and no depth", |reply| reply.pmu.depth = None, HardwareError::NoDepth),
        ("no driver", |reply| reply.snapshot_result = -2, HardwareError::Result { result: -2 }),
        (
            "nothing but zeroes",
            |reply| reply.snapshot.iter_mut().for_each(|entry| *entry = (0, 0)),
            HardwareError::Result { result: 768 },
        ),
        (
            "more than there are slots",
            |reply| reply.pmu.depth = Some(16),
            HardwareError::Entries { entries: 32, depth: 16 },
        ),
        (
            "more than there are slots, in one hit of one filter",
            |reply| reply.hardware[1].snapshots[1].entries.resize(33, (1, 2, 0)),
            HardwareError::Entries { entries: 33, depth: 32 },
        ),
        (
            "a hit is missing",
            |reply| drop(reply.hardware[0].snapshots.pop()),
            HardwareError::Count { filter: any, found: 1, expected: 2 },
        ),
        (
            "a filter is missing",
            |reply| drop(reply.hardware.pop()),
            HardwareError::Count { filter: Filter::of(Branch::Call), found: 0, expected: 2 },
        ),
        (
            "a hit that failed",
            |reply| reply.hardware[3].snapshots[1].result = -22,
            HardwareError::Result { result: -22 },
        ),
        (
            "somebody else has the LBR",
            |reply| reply.hardware[0].snapshots.iter_mut().for_each(|snapshot| snapshot.entries.clear()),
            HardwareError::Empty(2, any),
        ),
    ];
    for (what, change, error) in table {
        let mut reply = good.clone();
        change(&mut reply);
        assert_eq!(hardware_waste(&reply, &symbols).unwrap_err(), error, "{what}");
    }
    // The stand-in was called: whoever made the records, it was no driver.
    let symbols: Symbols = Recorded::read("6.12-fexit").symbols.into_iter().collect();
    assert_eq!(hardware_waste(&good, &symbols).unwrap_err(), HardwareError::Elsewhere);
}

#[test]
fn the_most_frequent_form_of_the_cpus_hits_counts() {
    let (_, mut reply, symbols) = as_the_cpu_would(&Recorded::read("6.12-fexit"), Tail::Copies);
    let usual = hardware_waste(&reply, &symbols).unwrap();
    reply.hits = 3;
    for one in &mut reply.hardware {
        let mut odd = one.snapshots[0].clone();
        // Something else ran in between.
        odd.entries.insert(1, (odd.entries[0].0, odd.entries[0].0, flags(Kind::Cond)));
        odd.entries.truncate(32);
        one.snapshots.insert(0, odd);
    }
    let found = hardware_waste(&reply, &symbols).unwrap();
    assert_eq!((found.hits, found.agreeing_hits), (3, 2));
    assert_eq!(found.points, usual.points);
    // One that an interrupt from user space fell into is set aside.
    let vector = Symbol {
        name: "asm_sysvec_apic_timer_interrupt".to_owned(),
        module: None,
        start: u64::MAX - 16,
        end: u64::MAX,
    };
    let symbols: Symbols = Recorded::read("6.12-fexit")
        .symbols
        .into_iter()
        .map(|symbol| match symbol.name.as_str() {
            "__static_call_return0" => {
                Symbol { name: "intel_pmu_snapshot_branch_stack".to_owned(), ..symbol }
            }
            _ => symbol,
        })
        .chain([vector])
        .collect();
    for snapshot in &mut reply.hardware[0].snapshots[1..] {
        snapshot.entries[20] = (0x40_1000, u64::MAX - 16, flags(Kind::Interrupt));
    }
    let found = hardware_waste(&reply, &symbols).unwrap();
    assert_eq!((found.interrupted_hits, found.agreeing_hits), (2, 1));
    assert_ne!(found.points[0].digest, usual.points[0].digest);
}

#[test]
fn what_is_resolved_is_every_kernel_address_once() {
    let (_, reply, _) = as_the_cpu_would(&Recorded::read("6.12-fexit"), Tail::Zeroes);
    let addresses = hardware::addresses(&reply);
    assert!(addresses.is_sorted_by(|a, b| a < b) && addresses.iter().all(|address| address >> 63 == 1));
    assert!(reply.snapshot.iter().all(|(from, _)| *from >> 63 == 0 || addresses.contains(from)));
}
