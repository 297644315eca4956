// SPDX-License-Identifier: MIT OR Apache-2.0
//! What-if capture points: the records of a hit, had the kernel taken the snapshot earlier on the
//! way from the traced function to the program.

use super::{symbols, waste};
use tramplab_model::run::{NamedRecord, Place};
use tramplab_protocol::message::Symbol;

/// Code on that way. A snapshot is taken at its first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Whatever the traced function is left for: a BPF or ftrace trampoline, a breakpoint's
    /// handler, a return trampoline.
    Trampoline,
    /// `__bpf_prog_enter*`, which only BPF trampolines call.
    ProgEnter,
    /// The function that runs the programs of a kprobe, of a kprobe.multi link or of a tracepoint.
    ProgRun,
    /// The program. Its first call is the snapshot.
    Program,
}

/// The functions of [`Stage::ProgRun`], by the kernel's names. Later ones count only where the
/// compiler inlined all before them.
const RUNNERS: [&[&str]; 2] = [
    &["kprobe_multi_link_prog_run", "trace_call_bpf", "bpf_trace_run"],
    &["kprobe_multi_link_handler", "kprobe_multi_link_exit_handler"],
];

/// The target of the added record.
const SNAPSHOT: &str = "perf_snapshot_branch_stack";

impl Stage {
    pub const ALL: [Stage; 4] =
        [Stage::Trampoline, Stage::ProgEnter, Stage::ProgRun, Stage::Program];

    pub fn name(self) -> &'static str {
        match self {
            Stage::Trampoline => "trampoline",
            Stage::ProgEnter => "prog_enter",
            Stage::ProgRun => "prog_run",
            Stage::Program => "program",
        }
    }

    /// Finds the newest record that leads into the stage, on the way from the traced function.
    /// `records` are newest first.
    fn entry(self, records: &[NamedRecord], function: &Symbol) -> Option<usize> {
        let left = records.iter().position(|record| {
            waste::contains(function, &record.from) || waste::contains(function, &record.to)
        })?;
        let way = &records[..left];
        match self {
            Stage::Trampoline => Some(left),
            Stage::ProgEnter => way.iter().position(|r| enters(&r.to, &["__bpf_prog_enter"])),
            Stage::ProgRun => RUNNERS
                .iter()
                .find_map(|names| way.iter().position(|record| enters(&record.to, names))),
            Stage::Program => {
                way.iter().position(|r| enters_program(&r.to) && !is_program(&r.from))
            }
        }
    }
}

/// Returns the records of a snapshot at a stage, newest first: its own call, added by rule, and all
/// that led to the stage. `None` if the way does not pass the stage.
pub fn taken_at(
    stage: Stage,
    records: &[NamedRecord],
    function: &Symbol,
) -> Option<Vec<NamedRecord>> {
    let entry = stage.entry(records, function)?;
    let from = records[entry].to.clone();
    let to = Place { address: 0, symbol: Some(SNAPSHOT.to_owned()), module: None, offset: 0 };
    let kind = tramplab_protocol::trace::Kind::Call;
    let snapshot = NamedRecord { from, to, kind, modelled: true };
    Some([&[snapshot], &records[entry..]].concat())
}

/// True for the start of a function whose name begins so: compilers add `.isra.0` and the like, and
/// `bpf_trace_run` has a number of arguments.
fn enters(place: &Place, names: &[&str]) -> bool {
    let is_named = |symbol: &String| names.iter().any(|name| symbol.starts_with(name));
    place.offset == 0 && place.symbol.as_ref().is_some_and(is_named)
}

/// False for a helper's return into the program.
fn enters_program(place: &Place) -> bool {
    place.offset == 0 && is_program(place)
}

fn is_program(place: &Place) -> bool {
    place.module.as_deref() == Some("bpf")
        && place.symbol.as_ref().is_some_and(|symbol| symbol.starts_with(symbols::PROGRAM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::{Branch, Filter, Model, waste::count};
    use proptest::prelude::*;
    use tramplab_model::run::{Arch, LbrWaste, Measurement, Run};
    use tramplab_protocol::{Mechanism, Point};

    fn runs() -> Vec<Run> {
        ["run.json", "two-architectures.json", "lbr-helpers.json"]
            .map(|file| {
                let path = format!("{}/../testdata/{file}", env!("CARGO_MANIFEST_DIR"));
                serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
            })
            .into()
    }

    fn measured(runs: &[Run]) -> impl Iterator<Item = (&str, Arch, &LbrWaste)> {
        let cells = runs.iter().flat_map(|run| &run.cells);
        cells.filter_map(|cell| match &cell.measurement {
            Some(Measurement::LbrWaste(waste)) => Some((&*cell.id.kernel, cell.id.arch, waste)),
            _ => None,
        })
    }

    /// Counted by hand in the listings of the recorded runs.
    #[test]
    fn counts_what_an_earlier_snapshot_would_waste() {
        use Mechanism::*;
        let table = [
            // Stages in their order; `None` where the way does not pass one.
            ("6.1", Arch::X86_64, Fexit, Point::Exit, [Some(1), Some(2), None, Some(8)]),
            ("6.12", Arch::X86_64, Fentry, Point::Entry, [Some(1), Some(2), None, Some(9)]),
            ("7.2", Arch::X86_64, Fexit, Point::Exit, [Some(1), Some(2), None, Some(6)]),
            ("7.2", Arch::Arm64, Fexit, Point::Exit, [Some(1), Some(2), None, Some(5)]),
            (
                "6.12",
                Arch::X86_64,
                KprobeSession,
                Point::Entry,
                [Some(1), None, Some(14), Some(17)],
            ),
            ("6.12", Arch::X86_64, KprobeSession, Point::Exit, [Some(1), None, Some(12), Some(15)]),
            // `kprobe_multi_link_prog_run` is inlined.
            ("7.2", Arch::X86_64, KprobeMulti, Point::Entry, [Some(1), None, Some(7), Some(12)]),
            ("7.2", Arch::Arm64, KprobeMulti, Point::Entry, [Some(1), None, Some(8), Some(11)]),
        ];
        let runs = runs();
        for (kernel, arch, mechanism, point, expected) in table {
            let (_, _, waste) = measured(&runs)
                .find(|(name, of, waste)| {
                    (*name, *of, waste.mechanism) == (kernel, arch, mechanism)
                })
                .unwrap_or_else(|| panic!("{kernel} {mechanism}"));
            let capture = waste.points.iter().find(|capture| capture.point == point).unwrap();
            let model = Model::choose(None, arch);
            let wasted = Stage::ALL.map(|stage| {
                let records = taken_at(stage, &capture.records, &waste.function)?;
                count(model, Branch::Any.into(), &records, &waste.function).wasted
            });
            assert_eq!(wasted, expected, "{kernel} {arch} {mechanism}/{point}");
        }
    }

    #[test]
    fn finds_no_stage_without_the_function() {
        let runs = runs();
        let (_, _, waste) = measured(&runs).next().unwrap();
        let nowhere = Symbol { name: "f".to_owned(), module: None, start: 1, end: 2 };
        for stage in Stage::ALL {
            assert_eq!(taken_at(stage, &waste.points[0].records, &nowhere), None);
        }
    }

    proptest! {
        /// A later stage wastes as many, or more, whatever the filter and the CPU.
        #[test]
        fn later_stages_waste_no_less(
            filters in proptest::sample::subsequence(&Branch::ALL, 1..=Branch::ALL.len()),
        ) {
            let filter = filters.into_iter().map(Filter::of).reduce(Filter::or).unwrap();
            for (_, arch, waste) in measured(&runs()) {
                for (model, capture) in
                    Model::of(arch).flat_map(|model| waste.points.iter().map(move |p| (model, p)))
                {
                    let wasted = Stage::ALL.iter().filter_map(|&stage| {
                        let records = taken_at(stage, &capture.records, &waste.function)?;
                        count(model, filter, &records, &waste.function).wasted
                    });
                    prop_assert!(wasted.is_sorted());
                }
            }
        }
    }
}
