// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways of real kernels, as `vm-test --suite waste --listing` prints them.

use super::*;
use crate::branch::{Branch, Filter, Model, waste::count};
use Mechanism::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tramplab_model::run::{Arch, CapturePoint, LbrWaste, Measurement, Run};

/// Debian's kernels of the cloud flavour, with QEMU 10.0.13.
const LISTINGS: &str = include_str!("../testdata/listings.txt");

/// Reads the listing under `title`, newest record first, and the function's symbol. Each symbol
/// gets addresses of its own. The kinds are not in a listing.
fn listed(title: &str) -> (Vec<NamedRecord>, Symbol) {
    let mut symbols = BTreeMap::new();
    let mut place = |text: &str| {
        let (symbol, offset) = text.split_once("+0x").expect("symbol+0xoffset");
        let page = symbols.len() as u64;
        let page = *symbols.entry(symbol.to_owned()).or_insert(page);
        let offset = u64::from_str_radix(offset, 16).unwrap();
        let is_bpf = ["bpf_prog_", "bpf_trampoline_"].iter().any(|name| symbol.starts_with(name));
        Place {
            address: 0xffff_ffff_8100_0000 + (page << 12) + offset,
            symbol: Some(symbol.to_owned()),
            module: is_bpf.then(|| "bpf".to_owned()),
            offset,
        }
    };
    let mut listing = LISTINGS.split("\n\n").map(str::lines).filter_map(|mut lines| {
        let (found, function) = lines.next()?.split_once(" of ")?;
        (found == title).then_some((lines, function))
    });
    let (lines, function) = listing.next().unwrap_or_else(|| panic!("no listing of {title}"));
    let record = |line: &str, place: &mut dyn FnMut(&str) -> Place| {
        let (from, to) = line.split_once("] ").unwrap().1.split_once(" -> ").unwrap();
        NamedRecord { from: place(from), to: place(to), kind: Kind::Call, modelled: false }
    };
    let mut records: Vec<_> = lines.map(|line| record(line, &mut place)).collect();
    records.reverse();
    let start = place(&format!("{function}+0x0")).address;
    let function = Symbol { name: function.to_owned(), module: None, start, end: start + 0x1000 };
    (records, function)
}

/// Counted in the listings by hand: a snapshot at the end of row k of n leaves n - k + 1.
#[test]
fn counts_what_an_earlier_snapshot_would_waste() {
    // Stages in their order, then today. `None` where the way has no such stage.
    let ways = [
        ("6.12 x86_64 fentry", Fentry, [Some(1), Some(2), Some(8), Some(9)], 9),
        ("6.12 x86_64 fexit", Fexit, [Some(1), Some(2), Some(8), Some(9)], 9),
        ("6.12 x86_64 fmod_ret", FmodRet, [Some(1), Some(7), Some(13), Some(14)], 14),
        // ftrace's trampoline, as the function begins with ftrace's no-op.
        ("6.12 x86_64 kprobe", Kprobe, [Some(1), None, Some(10), Some(16)], 16),
        ("6.12 x86_64 kretprobe", Kretprobe, [Some(1), None, Some(11), Some(17)], 17),
        // `kprobe_multi_link_prog_run` is a function.
        ("6.12 x86_64 kprobe.multi", KprobeMulti, [Some(1), None, Some(9), Some(12)], 12),
        ("6.12 x86_64 kretprobe.multi", KretprobeMulti, [Some(1), None, Some(13), Some(16)], 16),
        (
            "6.12 x86_64 kprobe.session/entry",
            KprobeSession,
            [Some(1), None, Some(14), Some(17)],
            17,
        ),
        ("6.12 x86_64 kprobe.session/exit", KprobeSession, [Some(1), None, Some(12), Some(15)], 15),
        ("6.12 x86_64 tp_btf", TpBtf, [None, None, Some(2), Some(5)], 5),
        ("7.2 x86_64 fentry", Fentry, [Some(1), Some(2), Some(5), Some(6)], 6),
        ("7.2 x86_64 fsession/entry", Fsession, [Some(1), Some(7), Some(10), Some(11)], 11),
        ("7.2 x86_64 fsession/exit", Fsession, [Some(1), Some(2), Some(5), Some(6)], 6),
        ("7.2 x86_64 kprobe", Kprobe, [Some(1), None, Some(10), Some(13)], 13),
        ("7.2 x86_64 kretprobe", Kretprobe, [Some(1), None, Some(11), Some(14)], 14),
        // It is inlined, and its first call is `__rcu_read_lock`.
        ("7.2 x86_64 kprobe.multi", KprobeMulti, [Some(1), None, Some(9), Some(12)], 12),
        ("7.2 x86_64 kretprobe.multi", KretprobeMulti, [Some(1), None, Some(17), Some(20)], 20),
        ("7.2 x86_64 kprobe.session/entry", KprobeSession, [Some(1), None, Some(14), Some(17)], 17),
        ("7.2 x86_64 tp_btf", TpBtf, [None, None, Some(2), Some(6)], 6),
        // By way of `ftrace_caller`, as the trampoline is out of branch range.
        ("7.2 arm64 fentry", Fentry, [Some(3), Some(4), Some(6), Some(7)], 7),
        ("7.2 arm64 fexit", Fexit, [Some(1), Some(2), Some(4), Some(5)], 5),
        ("7.2 arm64 fmod_ret", FmodRet, [Some(3), Some(9), Some(11), Some(12)], 12),
        ("7.2 arm64 fsession/exit", Fsession, [Some(1), Some(2), Some(4), Some(5)], 5),
        // A breakpoint, which has no trampoline.
        ("7.2 arm64 kprobe", Kprobe, [None, None, Some(23), Some(27)], 27),
        ("7.2 arm64 kretprobe", Kretprobe, [Some(1), None, Some(27), Some(31)], 31),
        // It is inlined, and its first call is the program.
        ("7.2 arm64 kprobe.multi", KprobeMulti, [Some(1), None, Some(10), Some(11)], 11),
        ("7.2 arm64 kretprobe.multi", KretprobeMulti, [Some(1), None, Some(22), Some(23)], 23),
        ("7.2 arm64 tp_btf", TpBtf, [None, None, Some(3), Some(5)], 5),
    ];
    let any = Filter::of(Branch::Any);
    for (title, mechanism, expected, today) in ways {
        let (records, function) = listed(title);
        let wasted =
            |records: &[NamedRecord]| count(Model::IntelLbr, any, records, &function).wasted;
        assert_eq!(wasted(&records), Some(today), "{title}");
        let early =
            Stage::ALL.map(|stage| wasted(&taken_at(stage, mechanism, &records, &function)?));
        assert_eq!(early, expected, "{title}");
    }
}

#[test]
fn adds_the_call_of_the_snapshot() {
    let table = [
        ("6.12 x86_64 fexit", Fexit, Stage::Trampoline, "bpf_trampoline_6442506123", 0x31),
        ("6.12 x86_64 fexit", Fexit, Stage::ProgEnter, "__bpf_prog_enter_recur", 0),
        ("6.12 x86_64 fexit", Fexit, Stage::ProgRun, "bpf_trampoline_6442506123", 0x5f),
        ("6.12 x86_64 fexit", Fexit, Stage::Program, "bpf_prog_eeb94de06ade7ca4_capture_fexit", 0),
        ("7.2 x86_64 kprobe.multi", KprobeMulti, Stage::ProgRun, "kprobe_multi_link_handler", 0x7d),
        ("7.2 arm64 fentry", Fentry, Stage::Trampoline, "bpf_trampoline_6442519613", 0),
        ("7.2 x86_64 kretprobe.multi", KretprobeMulti, Stage::Trampoline, "return_to_handler", 0),
    ];
    for (title, mechanism, stage, symbol, offset) in table {
        let (mut records, function) = listed(title);
        records[0].kind = Kind::IndCall;
        let taken = taken_at(stage, mechanism, &records, &function).expect(title);
        let from = &taken[0].from;
        assert_eq!((from.symbol.as_deref(), from.offset), (Some(symbol), offset), "{title}");
        // As the program calls it today.
        assert_eq!((taken[0].kind, taken[0].modelled), (Kind::IndCall, true), "{title}");
        assert!(records.ends_with(&taken[1..]) && taken.len() <= records.len() + 1, "{title}");
    }
}

#[test]
fn finds_functions_that_the_compiler_renamed() {
    let (mut records, function) = listed("6.12 x86_64 kprobe.multi");
    for place in records.iter_mut().flat_map(|record| [&mut record.from, &mut record.to]) {
        if place.symbol.as_deref() == Some("kprobe_multi_link_prog_run") {
            place.symbol = Some("kprobe_multi_link_prog_run.isra.0".to_owned());
        }
    }
    let taken = taken_at(Stage::ProgRun, KprobeMulti, &records, &function).unwrap();
    assert_eq!(taken[0].from.symbol.as_deref(), Some("kprobe_multi_link_prog_run.isra.0"));
}

/// With retpolines the handler calls a thunk, which returns to the program.
#[test]
fn finds_an_inlined_prog_run_before_a_thunk() {
    let (mut records, function) = listed("7.2 arm64 kprobe.multi");
    let place = |symbol: &str, address: u64| Place {
        address,
        symbol: Some(symbol.to_owned()),
        module: None,
        offset: address & 0xfff,
    };
    let thunk = |offset: u64| place("__x86_indirect_thunk_array", 0xffff_ffff_9000_0000 + offset);
    let program = std::mem::replace(&mut records[1].to, thunk(0x20));
    records.insert(
        1,
        NamedRecord { from: thunk(0x2a), to: program, kind: Kind::Ret, modelled: false },
    );
    let taken = taken_at(Stage::ProgRun, KprobeMulti, &records, &function).unwrap();
    assert_eq!(taken[0].from.symbol.as_deref(), Some("kprobe_multi_link_handler"));
    assert_eq!(taken[1..], records[3..]);
}

#[test]
fn finds_no_stage_without_the_function_or_the_program() {
    let (records, function) = listed("6.12 x86_64 fentry");
    let nowhere = Symbol { name: "f".to_owned(), module: None, start: 1, end: 2 };
    for stage in Stage::ALL {
        assert_eq!(taken_at(stage, Fentry, &records, &nowhere), None);
        assert_eq!(taken_at(stage, Fentry, &records[2..], &function), None);
        assert_eq!(taken_at(stage, Fentry, &[], &function), None);
    }
}

fn points(runs: &[Run]) -> Vec<(Arch, &LbrWaste, &CapturePoint)> {
    let cells = runs.iter().flat_map(|run| &run.cells);
    cells
        .filter_map(|cell| match &cell.measurement {
            Some(Measurement::LbrWaste(waste)) => Some((cell.id.arch, waste)),
            _ => None,
        })
        .flat_map(|(arch, waste)| waste.points.iter().map(move |point| (arch, waste, point)))
        .collect()
}

proptest! {
    /// A later stage wastes as many or more, and today's snapshot the most, whatever the filter and
    /// the CPU. An earlier one loses no record of the function.
    #[test]
    fn later_stages_waste_no_less(
        branches in proptest::sample::subsequence(&Branch::ALL, 1..=Branch::ALL.len()),
    ) {
        let filter = branches.into_iter().map(Filter::of).reduce(Filter::or).unwrap();
        let runs = [
            tramplab_testdata::stored(),
            tramplab_testdata::series(),
            tramplab_testdata::two_architectures(),
        ];
        for (arch, waste, point) in points(&runs) {
            for model in Model::of(arch) {
                let count = |records: &[NamedRecord]| {
                    count(model, filter, records, &waste.function).wasted
                };
                let early = Stage::ALL.into_iter().filter_map(|stage| {
                    taken_at(stage, waste.mechanism, &point.records, &waste.function)
                });
                let mut wasted: Vec<_> = early.map(|records| count(&records)).collect();
                prop_assert!(wasted.len() >= 3);
                wasted.push(count(&point.records));
                prop_assert!(wasted.is_sorted(), "{wasted:?}");
                prop_assert!(
                    wasted.iter().all(|count| count.is_some() == wasted[0].is_some()),
                    "{wasted:?}"
                );
            }
        }
    }
}
