// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instructions of a function on the base and the head of a run's series.

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use tramplab_analysis::compare::{self, CodeRow};
use tramplab_host::Cache;
use tramplab_kernel::{
    compile,
    vmlinux::{Parts, Vmlinux},
};
use tramplab_model::run::{Arch, Cell, Measurement, Run, Series, SeriesStep};

/// A function, or a part that the compiler split from it.
pub struct Disassembled {
    pub name: String,
    /// The names of base and head.
    pub kernels: [String; 2],
    pub rows: Vec<CodeRow>,
    /// Offsets of the branches that hits mispredict, on base and head.
    pub mispredicted: [BTreeSet<u64>; 2],
}

/// Disassembles the function in each series of the run.
pub fn disassemble(run: &Run, cache: &Cache, function: &str) -> Result<Vec<Disassembled>> {
    if run.series.is_empty() {
        return Err(Error::usage(
            "--disassemble shows the base of a series beside its head, and the run has no series",
        ));
    }
    let mut all = Vec::new();
    let image = |series: &Series, step: &SeriesStep| {
        run.kernel(series.arch, &step.kernel)?.image_sha256.as_ref()
    };
    let mut seen = BTreeSet::new();
    // In another configuration only the guests may differ.
    let is_new = |series: &&Series| {
        let images = [series.base(), series.head()].map(|step| image(series, step));
        images.iter().any(Option::is_none) || seen.insert(images)
    };
    for series in run.series.iter().filter(is_new) {
        let [base, head] = [series.base(), series.head()]
            .map(|step| parts(run, cache, series.arch, step, function));
        all.extend(beside(run, base?, head?, series));
    }
    if all.is_empty() {
        return Err(Error::usage(format!(
            "no kernel of the run has code of a function {function}: expected a symbol of vmlinux, \
             not of a module; a function that is inlined everywhere has none"
        )));
    }
    Ok(all)
}

fn parts(run: &Run, cache: &Cache, arch: Arch, step: &SeriesStep, function: &str) -> Result<Parts> {
    let build = run.kernel(arch, &step.kernel).and_then(|kernel| kernel.build.as_ref());
    let vmlinux = build.and_then(|build| compile::cached_vmlinux(cache, &build.key));
    let path = vmlinux.ok_or_else(|| {
        Error::usage(format!(
            "the cache has no code of {}: measure the series again with vm-test --lines",
            step.kernel
        ))
    })?;
    Ok(Vmlinux::read(&path)?.disassemble(function, arch)?)
}

fn beside(run: &Run, base: Parts, head: Parts, series: &Series) -> Vec<Disassembled> {
    let names: BTreeSet<&String> = base.keys().chain(head.keys()).collect();
    let of = |parts: &Parts, name: &String| parts.get(name).cloned().unwrap_or_default();
    let one = |name: &String| Disassembled {
        name: name.clone(),
        kernels: [series.base(), series.head()].map(|step| step.kernel.clone()),
        rows: compare::code(&of(&base, name), &of(&head, name)),
        mispredicted: [series.base(), series.head()]
            .map(|step| mispredicted(run, series.arch, step, name)),
    };
    names.into_iter().map(one).collect()
}

fn mispredicted(run: &Run, arch: Arch, step: &SeriesStep, function: &str) -> BTreeSet<u64> {
    let cost = |cell: &Cell| match &cell.measurement {
        Some(Measurement::Trigger(trigger)) => trigger.cost.clone()?.predicted,
        _ => None,
    };
    let missed = run.cells_of(arch, &step.kernel).filter_map(cost).flat_map(|all| all.mispredicted);
    let places = missed.map(|missed| missed.from);
    let own =
        places.filter(|from| from.symbol.as_deref() == Some(function) && from.module.is_none());
    own.map(|from| from.offset).collect()
}
