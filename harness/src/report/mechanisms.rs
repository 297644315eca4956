// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of all mechanisms on all kernels and architectures, `docs/mechanisms.md`.

use super::{
    content::{Document, View},
    markdown,
};
use crate::run::{Cell, Kernel, Machine, Outcome, Run};
use std::collections::{BTreeMap, BTreeSet};

/// What the page says before the numbers.
const HEAD: &str = "\
# Mechanisms by kernel and architecture

What every mechanism costs on every kernel that is shipped, on both architectures: branch records wasted, instructions and taken
branches of a hit of the empty program, time and instructions to attach to 1,000 functions (a link each, or one for all). All of it
is exact and repeats, but for an instruction or two of a hit on arm64 (branch-records.md says why); the times are those of the clock
that counts instructions. What the words mean:
[definitions.md](definitions.md), [branch-records.md](branch-records.md), [attach.md](attach.md).

This page is written by `cargo xtask mechanisms`, which runs the suite `mechanisms` and takes hours on two cores under TCG.
";

/// All as one; the first says where and since when. What keeps them apart, if something does.
pub fn joined(runs: Vec<Run>) -> Result<Option<Run>, String> {
    let mut runs = runs.into_iter();
    let Some(mut all) = runs.next() else { return Ok(None) };
    for run in runs {
        let apart = |what: &str| Err(format!("{} and {} do not go on one page: {what}", all.id, run.id));
        if run.suite.sha256 != all.suite.sha256 {
            return apart("they are of different suites");
        }
        let plugin = |run: &Run| run.machines.first().and_then(|machine| machine.plugin_sha256.clone());
        let is_other = |machine: &Machine| all.machine(machine.arch).is_some_and(|known| known != machine);
        if plugin(&run) != plugin(&all) || run.machines.iter().any(is_other) {
            return apart("they measured in different machines, or with another agent or plugin");
        }
        let is_other = |kernel: &Kernel| {
            let same_name = |known: &&Kernel| (&known.name, known.arch) == (&kernel.name, kernel.arch);
            all.kernels.iter().filter(same_name).any(|known| known != kernel)
        };
        if run.kernels.iter().any(is_other) {
            return apart("a kernel of one name is not the same in both");
        }
        // What is exact is the same each time, and so is a skip.
        let same = |a: &Cell, b: &Cell| a.outcome == b.outcome && a.measurement == b.measurement;
        let known = |cell: &Cell| all.cells.iter().find(|known| known.id == cell.id);
        if let Some(twice) = run.cells.iter().find(|cell| known(cell).is_some_and(|known| !same(known, cell)))
        {
            return apart(&format!("{} is in both, and not the same", twice.id.name()));
        }
        let cells: Vec<Cell> = run.cells.iter().filter(|cell| known(cell).is_none()).cloned().collect();
        let is_new = |machine: &Machine| all.machine(machine.arch).is_none();
        let machines: Vec<Machine> = run.machines.into_iter().filter(is_new).collect();
        all.machines.extend(machines);
        for kernel in run.kernels {
            if !all.kernels.contains(&kernel) {
                all.kernels.push(kernel);
            }
        }
        all.cells.extend(cells);
        all.interrupted |= run.interrupted;
    }
    Ok(Some(all))
}

/// What a page of this run would lack.
pub fn gap(run: &Run) -> Option<String> {
    let failed = run.cells.iter().filter(|cell| matches!(cell.outcome, Outcome::Error { .. })).count();
    let per_kernel = |kernel: &Kernel| run.cells_of(kernel.arch, &kernel.name).count();
    // Whatever kept it from that: an interrupt, a selection.
    let cells: BTreeSet<usize> = run.kernels.iter().map(per_kernel).collect();
    let gaps = [
        (failed > 0).then(|| format!("{failed} cells could not be measured")),
        (cells.len() > 1).then(|| "not every kernel was measured by every test".to_owned()),
        (run.kernels.len() < 2).then(|| "it is of one kernel".to_owned()),
    ];
    let gaps: Vec<String> = gaps.into_iter().flatten().collect();
    (!gaps.is_empty()).then(|| gaps.join(", and "))
}

pub fn render(run: &Run) -> String {
    let document = Document::new(run, &View::default());
    let mut out = HEAD.to_owned();
    out += &format!("\nMeasured {}, {}.\n", &run.started, machines(run));
    if let Some(gap) = gap(run) {
        out += &format!("\n**Not complete: {gap}; what was not measured is left blank.**\n");
    }
    out += "\n";
    for kernel in &run.kernels {
        out += &format!("- {} {}: {}\n", kernel.name, kernel.arch, kernel.source);
    }
    for table in &document.comparison {
        out += &format!("\n{}", markdown::table(table));
    }
    out += "\n### Skipped and failed, with the reason\n\n";
    for (reason, kernels) in reasons(run) {
        let of_one = |(kernel, tests): (String, BTreeSet<String>)| {
            format!("{kernel} ({})", Vec::from_iter(tests).join(", "))
        };
        let kernels = Vec::from_iter(kernels.into_iter().map(of_one)).join("; ");
        out += &format!("- {}: {kernels}\n", markdown::text(&reason));
    }
    out
}

fn machines(run: &Run) -> String {
    let one = |machine: &Machine| format!("{} on {}", machine.arch, machine.programs());
    run.machines.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Why cells have no number: by reason and kernel the mechanisms, or, of what went wrong, the tests.
fn reasons(run: &Run) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut reasons: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for cell in &run.cells {
        let reason = match &cell.outcome {
            Outcome::Pass => continue,
            Outcome::Skip { reason } => super::plain(reason),
            Outcome::Fail { reasons } => super::plain(&reasons.join("; ")),
            Outcome::Error { kind, message } => format!("error, {kind}: {}", super::plain(message)),
        };
        let line = reason.lines().next().unwrap_or_default().to_owned();
        let test = cell.id.test.name();
        let mechanism = test.split('/').nth(1).filter(|_| matches!(cell.outcome, Outcome::Skip { .. }));
        let kernel = format!("{} {}", cell.id.kernel, cell.id.arch);
        let tests = reasons.entry(line).or_default().entry(kernel).or_default();
        tests.insert(mechanism.unwrap_or(&test).to_owned());
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Arch, ErrorKind};

    fn whole() -> Run {
        serde_json::from_str(include_str!("testdata/two-architectures.json")).unwrap()
    }

    /// What is said, and what a run must be for that.
    type Case = (&'static str, fn(&mut Run));

    /// The same run, made on each architecture by itself.
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
    fn runs_of_different_cells_are_one_page() {
        let [first, mut second] = parts();
        // The same again is the same.
        second.cells.push(first.cells[0].clone());
        let all = joined(vec![first, second]).unwrap().unwrap();
        assert_eq!((all.machines.len(), all.kernels.len(), all.cells.len()), (2, 2, 6));
        assert_eq!(gap(&all), None);
        let page = render(&all);
        for words in
            ["| fexit | 6 | 5 |", "| fexit.multi | 6 | skip |", "- 7.2 arm64: debian linux-binary-7.2"]
        {
            assert!(page.contains(words), "{words} is missing in: {page}");
        }
        let reason =
            "- the kernel is built without CONFIG_HAVE_SINGLE_FTRACE_DIRECT_OPS: 7.2 arm64 (fexit.multi)";
        assert!(page.contains(reason) && !page.contains("Not complete"), "{page}");
        assert!(joined(Vec::new()).unwrap().is_none());
    }

    #[test]
    fn what_does_not_go_together_is_told() {
        let cases: [Case; 4] = [
            ("they are of different suites", |run| run.suite.sha256 = "0".repeat(64)),
            ("another agent or plugin", |run| run.machines[0].plugin_sha256 = Some("0".repeat(64))),
            ("is in both, and not the same", |run| {
                let outcome = Outcome::Skip { reason: String::new() };
                run.cells.push(Cell { outcome, ..parts()[0].cells[0].clone() });
            }),
            ("a kernel of one name is not the same", |run| {
                let kernel = parts()[0].kernels[0].clone();
                run.kernels.push(Kernel { image_sha256: None, ..kernel });
            }),
        ];
        for (words, change) in cases {
            let [first, mut second] = parts();
            change(&mut second);
            let error = joined(vec![first, second]).unwrap_err();
            assert!(
                error.contains(words) && error.starts_with("run-x86_64 and run-arm64 do not go"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_page_says_what_it_lacks() {
        let cases: [Case; 3] = [
            ("1 cells could not be measured", |run| {
                let message = String::new();
                run.cells[0].outcome = Outcome::Error { kind: ErrorKind::Panic, message };
            }),
            ("not every kernel was measured by every test", |run| {
                run.cells.pop();
            }),
            ("it is of one kernel", |run| *run = parts()[0].clone()),
        ];
        for (words, change) in cases {
            let mut run = whole();
            change(&mut run);
            assert_eq!(gap(&run).as_deref(), Some(words));
            assert!(render(&run).contains(&format!("**Not complete: {words}")));
        }
    }
}
