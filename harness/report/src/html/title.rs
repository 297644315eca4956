// SPDX-License-Identifier: MIT OR Apache-2.0
//! The title of a run's page, and the sentence below it.

use crate::kinds;
use tramplab_model::{
    kinds::Kind,
    run::{Kernel, Run},
};

/// Kernels that a title names.
const NAMED: usize = 3;

/// `6.12-source + kprobe-multi-inline: waste (x86-64)`, or `6.12, 7.2: quick`.
pub fn title(run: &Run) -> String {
    let suite = &run.suite.name;
    // The kernel that a configuration or CPU is of.
    let of = |kernel: &'_ Kernel| {
        kernel.configuration.as_ref().map_or(kernel.name.clone(), |other| other.of.clone())
    };
    let Some(series) = run.series.first() else {
        return format!("{}: {suite}", named(run.kernels.iter().map(of)));
    };
    let bases = named(run.series.iter().map(|series| {
        let base = &series.base().kernel;
        let base = run.kernel(series.arch, base).map_or_else(|| base.clone(), of);
        // A base that only lacks the patches.
        base.strip_suffix(&format!("+{}.0", series.name)).map(str::to_owned).unwrap_or(base)
    }));
    let arches = named(run.series.iter().map(|series| series.arch.name().replace('_', "-")));
    format!("{bases} + {}: {suite} ({arches})", series.name)
}

/// The first names, each once, and the number of the others.
fn named(names: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    let (first, more) = all.split_at(all.len().min(NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    match first {
        [] => "No kernel".to_owned(),
        first => first.join(", ") + &more,
    }
}

/// Describes a run by its kinds of test.
pub fn sentence(run: &Run) -> String {
    let has = |kind: &Kind| run.cells.iter().any(|cell| cell.id.test.kind() == *kind);
    let does: Vec<&str> = kinds::ORDER.into_iter().filter(has).filter_map(does).collect();
    let kernels = match (&run.series[..], &run.kernels[..]) {
        ([_, ..], _) => "a kernel without and with a series of patches",
        (_, [_]) => "this kernel",
        _ => "these kernels",
    };
    let does = match &does[..] {
        [] => String::new(),
        [one] => format!(" and {one}"),
        [all @ .., last] => format!(", {} and {last}", all.join(", ")),
    };
    format!("tramplab boots {kernels} in guests{does}.")
}

/// Describes how tramplab measures a kind of test.
pub fn does(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::LbrWaste => "counts the branch records that a tracing program's snapshot wastes",
        Kind::Trigger => "counts the instructions of a hit",
        Kind::Attach => "times attaching and detaching",
        Kind::Bench => "runs the benchmarks of the kernel tree",
        Kind::TestProgs => "runs the kernel tree's test_progs",
        Kind::Kselftest => "runs the kernel tree's selftests",
        Kind::Survive => "runs storms of attaching and detaching",
        Kind::Boot | Kind::Build | Kind::Fault => return None,
    })
}
