// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of all mechanisms on all kernels and architectures, `docs/mechanisms.md`.

pub mod data;

use super::{content::Document, markdown, view::View};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_model::{
    run::{Kernel, Kind, Machine, Outcome, Run, Test},
    text::{counted, line},
};

/// The page's text before the numbers.
const HEAD: &str = "\
# Mechanisms by kernel and architecture

`cargo xtask mechanisms` writes this page. It runs the suite `mechanisms`, which takes an hour on
two cores under TCG. [Mechanisms as data](mechanisms-data.md) describes the numbers for programs.

The tables show the cost of every mechanism on every shipped kernel, on both architectures:

- branch records wasted by `any` (other filters and useful records are only in the data),
- instructions, taken branches and mispredicted returns of one hit of the empty program, and its
  [estimated cycles](estimated-cycles.md) on a Zen 4,
- time and instructions to attach to 50 functions (one link each, or one link for all).

All numbers are exact and repeat. The times and the counts of hits use the clock that counts
instructions. [definitions.md](definitions.md), [branch-records.md](branch-records.md) and
[attach.md](attach.md) explain the terms.

Kernels with `+zen4` in their names booted [as a Zen 4](branch-records.md#cpus) boots. The others
booted with `mitigations=off`, as no machine does.
";

/// The tests of the suite.
const KINDS: [Kind; 3] = [Kind::LbrWaste, Kind::Trigger, Kind::Attach];

/// Describes what a page of this run would lack; `None` if it is complete.
pub fn gap(run: &Run) -> Option<String> {
    let failed =
        run.cells.iter().filter(|cell| matches!(cell.outcome, Outcome::Error { .. })).count();
    let per_kernel = |kernel: &Kernel| run.cells_of(kernel.arch, &kernel.name).count();
    // An interrupt or a selection of cells may be the cause.
    let cells: BTreeSet<usize> = run.kernels.iter().map(per_kernel).collect();
    let has = |kind| run.cells.iter().any(|cell| cell.id.test.kind() == kind);
    let absent: Vec<&str> = KINDS.into_iter().filter(|&kind| !has(kind)).map(Kind::name).collect();
    let gaps = [
        (!absent.is_empty()).then(|| format!("the run has no {} tests", absent.join(" and "))),
        (failed > 0).then(|| format!("{} could not be measured", counted(failed, "cell"))),
        (cells.len() > 1).then(|| "not every test ran on every kernel".to_owned()),
        (run.kernels.len() < 2).then(|| "the run has fewer than two kernels".to_owned()),
    ];
    let gaps: Vec<String> = gaps.into_iter().flatten().collect();
    (!gaps.is_empty()).then(|| gaps.join(", and "))
}

pub fn render(run: &Run) -> String {
    let document = Document::new(run, &View::default());
    let mut out = HEAD.to_owned();
    out += &format!(
        "\nMeasured {}, {}.\n",
        markdown::text(&run.started),
        markdown::text(&machines(run))
    );
    if let Some(gap) = gap(run) {
        out +=
            &format!("\n**Incomplete: {gap}. Numbers that were not measured are left blank.**\n");
    }
    out += "\n";
    for kernel in &run.kernels {
        out += &format!(
            "- {}\n",
            markdown::text(&format!("{} {}: {}", kernel.name, kernel.arch, kernel.source))
        );
    }
    // Those of one kernel alone, booted in several ways, have a table for each filter.
    for table in document.comparison.iter().filter(|table| table.caption.contains("by kernel")) {
        out += &format!("\n{}", markdown::table(table));
    }
    out += "\n### Skipped and failed, with the reason\n\n";
    for (reason, kernels) in reasons(run) {
        let of_one = |(kernel, tests): (String, BTreeSet<String>)| {
            format!("{kernel} ({})", Vec::from_iter(tests).join(", "))
        };
        let kernels = Vec::from_iter(kernels.into_iter().map(of_one)).join("; ");
        out += &format!("- {}\n", markdown::text(&format!("{reason}: {kernels}")));
    }
    out
}

fn machines(run: &Run) -> String {
    let one = |machine: &Machine| format!("{} on {}", machine.arch, machine.programs());
    run.machines.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Groups cells without a number by reason and kernel: the mechanisms skipped, and the tests that
/// failed.
fn reasons(run: &Run) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut reasons: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for cell in &run.cells {
        let reason = match &cell.outcome {
            Outcome::Pass => continue,
            Outcome::Skip { reason } => reason.clone(),
            Outcome::Fail { reasons } => reasons.join("; "),
            Outcome::Error { kind, message } => format!("error, {kind}: {}", message),
        };
        let reason = line(reason.lines().next().unwrap_or_default());
        let mechanism =
            mechanism(&cell.id.test).filter(|_| matches!(cell.outcome, Outcome::Skip { .. }));
        let kernel = format!("{} {}", cell.id.kernel, cell.id.arch);
        let tests = reasons.entry(reason).or_default().entry(kernel).or_default();
        tests.insert(mechanism.unwrap_or_else(|| cell.id.test.name()));
    }
    reasons
}

/// With what is attached beside it.
fn mechanism(test: &Test) -> Option<String> {
    match test {
        Test::LbrWaste(test) => Some(test.to_string()),
        Test::Attach(test) => Some(test.beside.with(test.mechanism)),
        Test::Trigger(test) => Some(test.to_string()),
        Test::Build
        | Test::Boot
        | Test::Bench(_)
        | Test::TestProgs(_)
        | Test::Kselftest(_)
        | Test::Survive(_)
        | Test::Fault(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::two_architectures as whole;
    use tramplab_model::run::{Arch, Cell, CellId, ErrorKind, join};

    /// The gap's text, and a change that causes it.
    type Case = (&'static str, fn(&mut Run));

    /// The same run, split into one per architecture.
    fn parts() -> [Run; 2] {
        Arch::ALL.map(|arch| {
            let mut run = whole();
            run.id = format!("run-{arch}");
            run.machines.retain(|machine| machine.arch == arch);
            run.kernels.retain(|kernel| kernel.arch == arch);
            run.cells.retain(|cell| cell.id.arch == arch);
            run
        })
    }

    #[test]
    fn joins_runs_of_different_cells_into_a_page() {
        let [first, mut second] = parts();
        // A cell that both runs have appears once.
        second.cells.push(first.cells[0].clone());
        let all = join(vec![first, second], 2).unwrap().unwrap();
        assert_eq!((all.machines.len(), all.kernels.len(), all.cells.len()), (2, 2, 6));
        assert_eq!(gap(&all).as_deref(), Some("the run has no trigger and attach tests"));
        let page = render(&all);
        for words in [
            "| fexit | 6 | 5 |",
            "| fexit.multi | 6 | skip |",
            "- 7.2 arm64: debian linux-binary-7.2",
        ] {
            assert!(page.contains(words), "{words} is missing in: {page}");
        }
        let reason = "- the kernel is built without CONFIG_HAVE_SINGLE_FTRACE_DIRECT_OPS: \
                      7.2 arm64 (fexit.multi)";
        assert!(page.contains(reason), "{page}");
    }

    #[test]
    fn tells_what_a_page_lacks() {
        let cases: [Case; 3] = [
            ("1 cell could not be measured", |run| {
                let message = String::new();
                run.cells[0].outcome = Outcome::Error { kind: ErrorKind::Panic, message };
            }),
            ("not every test ran on every kernel", |run| {
                run.cells.pop();
            }),
            ("the run has fewer than two kernels", |run| *run = parts()[0].clone()),
        ];
        for (words, change) in cases {
            let mut run = whole();
            change(&mut run);
            let words = format!("the run has no trigger and attach tests, and {words}");
            assert_eq!(gap(&run), Some(words.clone()));
            assert!(render(&run).contains(&format!("**Incomplete: {words}")));
        }
    }

    #[test]
    fn a_run_of_every_kind_is_complete() {
        let mut run = whole();
        let (first, tests) = (run.cells[0].id.clone(), ["trigger/fentry", "attach/fentry/50"]);
        for (kernel, name) in run.kernels.iter().flat_map(|kernel| tests.map(|name| (kernel, name)))
        {
            let test = name.parse().unwrap();
            let id =
                CellId { kernel: kernel.name.clone(), arch: kernel.arch, test, ..first.clone() };
            run.cells.push(Cell::without_result(id, Outcome::Pass));
        }
        assert_eq!(gap(&run), None);
        assert!(!render(&run).contains("Incomplete"));
    }
}
