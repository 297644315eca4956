// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds source lines to a run: those of the places in its records and profiles.

use crate::event::{Event, Tell};
use std::{collections::BTreeSet, path::PathBuf};
use tramplab_kernel::vmlinux::{Vmlinux, VmlinuxError};
use tramplab_model::{
    code::{self, SourceLines},
    profile::Space,
    run::{Arch, Cell, KernelLines, Measurement, Place, Run},
};

/// A kernel's `vmlinux`.
pub struct Debug {
    pub kernel: String,
    pub arch: Arch,
    pub vmlinux: PathBuf,
}

/// Finds the lines of a run's kernels. A file that cannot be read is a warning: the numbers do not
/// need it.
pub fn add(run: &mut Run, all: &[Debug], tell: Tell) {
    run.lines.clear();
    for debug in all {
        match places_of(run, debug) {
            Ok(places) if places.is_empty() => {}
            Ok(places) => run.lines.push(KernelLines {
                kernel: debug.kernel.clone(),
                arch: debug.arch,
                places,
            }),
            Err(error) => {
                let line = format!("warning: no source lines of {}: {error}", debug.kernel);
                tell(Event::Line(&line));
            }
        }
    }
}

fn places_of(run: &Run, debug: &Debug) -> Result<SourceLines, VmlinuxError> {
    let cells: Vec<&Cell> = run.cells_of(debug.arch, &debug.kernel).collect();
    // Reading takes a second: not for a kernel that has only skips.
    if cells.iter().all(|cell| places(cell).is_empty() && functions(cell).is_empty()) {
        return Ok(SourceLines::new());
    }
    let vmlinux = Vmlinux::read(&debug.vmlinux)?;
    let mut wanted: BTreeSet<(&str, u64)> = BTreeSet::new();
    for cell in cells {
        wanted.extend(places(cell).into_iter().map(|(symbol, place)| (symbol, place.offset)));
        wanted.extend(functions(cell).into_iter().map(|function| (function, 0)));
    }
    let wanted: Vec<_> = wanted.into_iter().collect();
    let found = wanted.iter().zip(vmlinux.lines_of(&wanted)?);
    let found = found
        .filter(|(_, lines)| !lines.is_empty())
        .map(|(&(symbol, offset), lines)| (code::place(symbol, offset), lines))
        .collect();
    Ok(found)
}

/// The places of a cell that are in the kernel itself, with their symbols.
fn places(cell: &Cell) -> Vec<(&str, &Place)> {
    let all = cell.measurement.iter().flat_map(Measurement::places);
    all.filter(|place| place.module.is_none())
        .filter_map(|place| Some((place.symbol.as_deref()?, place)))
        .collect()
}

/// The kernel's functions in the summaries of a cell's profiles.
fn functions(cell: &Cell) -> Vec<&str> {
    let summaries = crate::profiles::summaries(cell).iter();
    let functions = summaries.flat_map(|summary| &summary.functions).map(|cost| &cost.function);
    functions.filter(|one| one.space == Space::Kernel).map(|one| one.name.as_str()).collect()
}
