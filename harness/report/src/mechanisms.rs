// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of all mechanisms on all kernels and architectures, `docs/mechanisms.md`.

pub mod data;

use super::markdown;
use data::{
    AttachRow, Data, HitRow, KernelRow, Lost, MissingRow, Of, OfTest, TestKey, WasteRow,
    WholeHitRow,
};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_analysis::branch::Model;
use tramplab_model::{
    kinds::{lbr_waste, trigger::Cost},
    run::Arch,
    table::Table,
    text::counted,
};
use tramplab_protocol::Mechanism;

/// The page's text before the numbers.
const HEAD: &str = "\
# Mechanisms by kernel and architecture

`cargo xtask mechanisms` runs the suite `mechanisms` and writes this page. [Mechanisms as
data](mechanisms-data.md) describes the numbers for programs.

The tables show the cost of every mechanism on every shipped kernel, on both architectures:

- branch records wasted by `any` (other filters and useful records are only in the data),
- instructions, branches, reads, writes and mispredictions of one hit of the empty program, and its
  [estimated cycles](estimated-cycles.md) on a Zen 4,
- time and instructions to attach to 50 functions (one link each, or one link for all).

All numbers are exact and repeat. The times and the counts of hits use the clock that counts
instructions. [definitions.md](definitions.md), [branch-records.md](branch-records.md) and
[attach.md](attach.md) explain the terms.

Kernels with `+zen4` in their names booted [as a Zen 4](branch-records.md#cpus) boots. The others
booted with `mitigations=off`, as no machine does.
";

/// Describes what the data lack; `None` if they are complete.
fn gap(data: &Data) -> Option<String> {
    let measured = data.tests();
    let tests = Mechanism::KERNEL.into_iter().flat_map(|it| Of::ALL.map(|of| (it, of)));
    let tests: Vec<(Mechanism, Of)> = tests.collect();
    let absent = |KernelRow { kernel, arch, .. }: &KernelRow| {
        let is_absent = |(mechanism, of): &&(Mechanism, Of)| {
            !measured.contains(&(kernel.clone(), *arch, *mechanism, *of))
        };
        let name = |(mechanism, of): &(Mechanism, Of)| {
            format!("{} of {mechanism} on {kernel} {arch}", of.name())
        };
        tests.iter().filter(is_absent).map(name).collect::<Vec<_>>()
    };
    let absent: Vec<String> = data.kernels.iter().flat_map(absent).collect();
    let absent = absent
        .first()
        .map(|first| format!("{} not measured, such as {first}", counted(absent.len(), "test")));
    let failed = data.missing.iter().filter(|row| row.outcome == Lost::Error).count();
    let failed = (failed > 0).then(|| format!("{} could not be measured", counted(failed, "test")));
    let gaps: Vec<String> = absent.into_iter().chain(failed).collect();
    (!gaps.is_empty()).then(|| gaps.join(", and "))
}

pub fn render(data: &Data) -> String {
    let measured = format!("Measured by {} on {}.", data.runs.join(", "), data.machines.join(", "));
    let mut out = format!("{HEAD}\n{}\n", markdown::text(&measured));
    if let Some(gap) = &data.incomplete {
        let gap = format!("Incomplete: {gap}. Numbers that were not measured are left blank.");
        out += &format!("\n**{}**\n", markdown::text(&gap));
    }
    out += "\n";
    for KernelRow { kernel, arch, source, .. } in &data.kernels {
        out += &format!("- {}\n", markdown::text(&format!("{kernel} {arch}: {source}")));
    }
    for table in tables(data) {
        out += &format!("\n{}", markdown::table(&table));
    }
    out += "\n### Skipped and failed, with the reason\n\n";
    for (reason, kernels) in reasons(data) {
        let of_one = |(kernel, tests): (String, BTreeSet<String>)| {
            format!("{kernel} ({})", Vec::from_iter(tests).join(", "))
        };
        let kernels = Vec::from_iter(kernels.into_iter().map(of_one)).join("; ");
        out += &format!("- {}\n", markdown::text(&format!("{reason}: {kernels}")));
    }
    out
}

fn tables(data: &Data) -> [Table; 7] {
    let mut models = BTreeSet::new();
    let mut wasted = Fields::lost(data, Of::Waste);
    for row in &data.waste {
        let model = Model::choose(None, row.arch).name();
        if (&*row.filter, &*row.model) == ("any", model) {
            let WasteRow { mechanism, point, .. } = *row;
            let name = lbr_waste::WasteRow { mechanism, point, program: None, function: None };
            wasted.set(row, &name.to_string(), number(row.wasted));
            models.insert(model);
        }
    }
    let mut parts: BTreeMap<TestKey, [u32; 2]> = BTreeMap::new();
    for row in &data.hits {
        let sum = parts.entry(row.key()).or_default();
        *sum = [sum[0].saturating_add(row.instructions), sum[1].saturating_add(row.branches)];
    }
    let counts = |row: &HitRow| parts[&row.key()].map(|count| count.to_string()).join(" / ");
    let both = |a: Option<u32>, b| a.zip(b).map_or(NONE.to_owned(), |(a, b)| format!("{a} / {b}"));
    let of_hits = |caption: Cost, value: &dyn Fn(&WholeHitRow) -> String| {
        let fields = Fields::of(data, Of::Hits, &data.whole_hits, value);
        fields.table(data, &format!("{} of a hit by kernel", caption.definition().by_kernel))
    };
    let attach = |caption, value: &dyn Fn(&AttachRow) -> String| {
        Fields::of(data, Of::Attach, &data.attach, value).table(data, caption)
    };
    let models = Vec::from_iter(models).join(", ");
    [
        wasted.table(data, &format!("Wasted branch records by kernel (any; {models})")),
        Fields::of(data, Of::Hits, &data.hits, &counts)
            .table(data, "Instructions / branches of a hit by kernel"),
        of_hits(Cost::Reads, &|row| both(row.reads, row.writes)),
        of_hits(Cost::MispredictedReturns, &|row| {
            both(row.mispredicted_returns, row.mispredicted_indirect)
        }),
        of_hits(Cost::EstimatedCycles, &|row| number(row.estimated_cycles)),
        attach("Median time to attach to 50 functions by kernel, ms by the exact clock", &|row| {
            format!("{:.2}", row.attach_ns as f64 / 1e6)
        }),
        attach("Instructions of the attaching thread to attach, by kernel", &|row| {
            number(row.instructions)
        }),
    ]
}

/// Stands for a number that was not counted.
const NONE: &str = "-";

fn number(number: Option<impl ToString>) -> String {
    number.map_or(NONE.to_owned(), |number| number.to_string())
}

/// The fields of a table: by mechanism and name of the row, then by kernel.
struct Fields(BTreeMap<(Mechanism, String), BTreeMap<(String, Arch), String>>);

impl Fields {
    /// Those of tests without numbers.
    fn lost(data: &Data, of: Of) -> Fields {
        let mut fields = Fields(BTreeMap::new());
        for row in data.missing.iter().filter(|row| row.of == of) {
            let lost = match row.outcome {
                Lost::Skip => "skip",
                Lost::Error => "error",
            };
            fields.set(row, row.mechanism.name(), lost.to_owned());
        }
        fields
    }

    fn of<R: OfTest>(data: &Data, of: Of, rows: &[R], value: &dyn Fn(&R) -> String) -> Fields {
        let mut fields = Fields::lost(data, of);
        for row in rows {
            fields.set(row, row.key().2.name(), value(row));
        }
        fields
    }

    fn set(&mut self, row: &impl OfTest, name: &str, value: String) {
        let (kernel, arch, mechanism, _) = row.key();
        self.0.entry((mechanism, name.to_owned())).or_default().insert((kernel, arch), value);
    }

    fn table(self, data: &Data, caption: &str) -> Table {
        let columns: Vec<(String, Arch)> =
            data.kernels.iter().map(|row| (row.kernel.clone(), row.arch)).collect();
        let header = columns.iter().map(|(kernel, arch)| format!("{kernel} {arch}"));
        let rows = self.0.into_iter().map(|((_, name), mut fields)| {
            let fields = columns.iter().map(|column| fields.remove(column).unwrap_or_default());
            [name].into_iter().chain(fields).collect()
        });
        Table::new(caption, ["mechanism".to_owned()].into_iter().chain(header), rows)
    }
}

/// Groups tests without a number by reason and kernel: the mechanisms skipped, and the tests that
/// failed.
fn reasons(data: &Data) -> BTreeMap<&str, BTreeMap<String, BTreeSet<String>>> {
    let mut reasons: BTreeMap<&str, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for MissingRow { kernel, arch, mechanism, of, outcome, reason } in &data.missing {
        let test = match outcome {
            Lost::Skip => mechanism.to_string(),
            Lost::Error => format!("{} of {mechanism}", of.name()),
        };
        let kernels = reasons.entry(reason).or_default();
        kernels.entry(format!("{kernel} {arch}")).or_default().insert(test);
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::{data::data, *};
    use crate::tests::two_architectures as whole;
    use tramplab_model::{
        kinds::Kind,
        run::{Cell, CellId, ErrorKind, Outcome, Run},
    };

    /// The same run, split by what the cell is of.
    fn split(is_first: fn(&CellId) -> bool) -> [Run; 2] {
        [true, false].map(|first| {
            let mut run = whole();
            run.id = format!("run-{first}");
            run.cells.retain(|cell| is_first(&cell.id) == first);
            run.kernels = run.kernels_with_cells().cloned().collect();
            run.machines.retain(|machine| run.kernels.iter().any(|it| it.arch == machine.arch));
            run
        })
    }

    #[test]
    fn a_part_replaces_its_own_numbers_and_no_others() {
        let cases: [fn(&CellId) -> bool; 2] =
            [|id| id.arch == Arch::X86_64, |id| id.test.name() == "lbr_waste/fexit"];
        for is_first in cases {
            let [first, second] = split(is_first).map(|run| data(&run));
            assert_ne!(first.waste.len() * second.waste.len(), 0);
            let all = first.clone().update(second.clone()).unwrap();
            assert_eq!(all.runs, ["run-true", "run-false"]);
            let expected = data(&whole());
            let mut shown = all.clone();
            shown.runs.clone_from(&expected.runs);
            assert_eq!(render(&shown), render(&expected));
            assert_eq!((&all.waste, &all.missing), (&expected.waste, &expected.missing));
            // Numbers of another agent, or of another tramplab.
            let mut newer = second;
            newer.waste[0].wasted = Some(99);
            let updated = all.update(newer).unwrap();
            assert_eq!(updated.waste.len(), expected.waste.len());
            let is_new = |row: &&WasteRow| row.wasted == Some(99);
            assert_eq!(updated.waste.iter().filter(is_new).count(), 1);
        }
        let mut other = data(&whole());
        other.kernels[0].source = "debian 7.2.14".to_owned();
        let error = data(&whole()).update(other).unwrap_err();
        assert!(error.starts_with("7.2 ") && error.ends_with("and is debian 7.2.14"), "{error}");
    }

    #[test]
    fn the_page_has_a_row_for_each_mechanism_and_the_reasons() {
        let page = render(&data(&whole()));
        for words in [
            "| fexit | 6 | 5 |",
            "| fexit.multi | 6 | skip |",
            "- 7.2 arm64: debian linux-binary-7.2",
            "- the kernel is built without CONFIG_HAVE_SINGLE_FTRACE_DIRECT_OPS: 7.2 arm64 \
             (fexit.multi)",
        ] {
            assert!(page.contains(words), "{words} is missing in: {page}");
        }
    }

    #[test]
    fn tells_what_a_page_lacks() {
        let mut run = whole();
        let of_kernel = Mechanism::KERNEL.len() * Of::ALL.len();
        let absent = run.kernels.len() * of_kernel - run.cells.len();
        let words = format!("{absent} tests not measured, such as waste of fentry on 7.2 x86_64");
        assert_eq!(data(&run).incomplete(), Some(&*words));
        assert!(render(&data(&run)).contains(&format!("**Incomplete: {words}. ")));
        let cells: Vec<Cell> = run.cells.drain(..).collect();
        for kernel in &run.kernels {
            let (kernel, arch) = (&kernel.name, kernel.arch);
            for mechanism in Mechanism::KERNEL {
                for of in ["lbr_waste/{}", "trigger/{}", "attach/{}/50"] {
                    let test = of.replace("{}", mechanism.name()).parse().unwrap();
                    let id = CellId { kernel: kernel.clone(), arch, test, ..cells[0].id.clone() };
                    let reason = "no such attach type".to_owned();
                    run.cells.push(Cell::without_result(id, Outcome::Skip { reason }));
                }
            }
        }
        assert_eq!(data(&run).incomplete(), None);
        assert!(!render(&data(&run)).contains("Incomplete"));
        let message = String::new();
        run.cells[0].outcome = Outcome::Error { kind: ErrorKind::Panic, message };
        assert_eq!(data(&run).incomplete(), Some("1 test could not be measured"));
        run.cells.retain(|cell| cell.id.test.kind() != Kind::Attach);
        let kinds = data(&run).incomplete().unwrap().to_owned();
        assert!(kinds.contains("such as attach of fentry"), "{kinds}");
    }
}
