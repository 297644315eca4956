// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of all mechanisms on all kernels and architectures, `docs/mechanisms.md`.

use super::{
    content::{Document, View},
    markdown,
};
use crate::run::{Outcome, Run};
use std::collections::{BTreeMap, BTreeSet};

/// What the page says before the numbers.
const HEAD: &str = "\
# Mechanisms by kernel and architecture

What every mechanism costs on every kernel that is shipped, on both architectures: branch records wasted, instructions and taken
branches of a hit of the empty program, time and instructions to attach to 1,000 functions (a link each, or one for all). All of it
is exact and repeats; the times are those of the clock that counts instructions. What the words mean:
[definitions.md](definitions.md), [branch-records.md](branch-records.md), [attach.md](attach.md).

This page is written by `cargo xtask mechanisms`, which runs the suite `mechanisms` and takes hours on two cores under TCG.
";

pub fn render(run: &Run) -> String {
    let document = Document::new(run, &View::default());
    let mut out = HEAD.to_owned();
    out += &format!("\nMeasured {}, {}.\n\n", &run.started, machines(run));
    for kernel in &run.kernels {
        out += &format!("- {} {}: {}\n", kernel.name, kernel.arch, kernel.source);
    }
    for table in &document.comparison {
        out += &format!("\n{}", markdown::table(table));
    }
    out += "\n### Skipped and failed, with the reason\n\n";
    for (reason, cells) in reasons(run) {
        let cells = Vec::from_iter(cells).join(", ");
        out += &format!("- {}: {cells}\n", markdown::text(&reason));
    }
    out
}

fn machines(run: &Run) -> String {
    let one = |machine: &crate::run::Machine| format!("{} on {}", machine.arch, machine.qemu);
    run.machines.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Why cells have no number, and which.
fn reasons(run: &Run) -> BTreeMap<String, BTreeSet<String>> {
    let mut reasons: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for cell in &run.cells {
        let reason = match &cell.outcome {
            Outcome::Pass => continue,
            Outcome::Skip { reason } => super::plain(reason),
            Outcome::Fail { reasons } => super::plain(&reasons.join("; ")),
            Outcome::Error { kind, message } => format!("error, {kind}: {}", super::plain(message)),
        };
        let line = reason.lines().next().unwrap_or_default().to_owned();
        reasons.entry(line).or_default().insert(format!("`{}`", cell.id.name()));
    }
    reasons
}
