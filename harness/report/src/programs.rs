// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's programs, below the tables of cells that measure them.

use tramplab_model::{
    program::Program,
    run::{Cell, Kind, Run},
    text::{self, counted},
};

/// Digits of a hash that are shown.
const DIGITS: usize = 12;

/// A line for each program of the cells of a kind. Empty if they measure tramplab's own programs.
pub fn notes(run: &Run, kind: Kind, cells: &[&Cell]) -> Vec<String> {
    let is_measured = |program: &&Program| {
        let mut of_kind = cells.iter().map(|cell| &cell.id.test).filter(|test| test.kind() == kind);
        of_kind.any(|test| test.program() == Some(program.name))
    };
    let note = |program: &Program| {
        let Program { name, mechanism, file, sha256, instructions, .. } = program;
        let given = program.given();
        let sha256 = sha256.get(..DIGITS).unwrap_or(sha256);
        let size = counted(*instructions as usize, "BPF instruction");
        format!("{mechanism}={name} is of {file} (SHA-256 {sha256}…{given}): {size}.")
    };
    run.programs.iter().filter(is_measured).map(note).collect()
}

/// A line for each remark on the cells of a kind.
pub fn remarks(kind: Kind, cells: &[&Cell]) -> Vec<String> {
    let of_kind = cells.iter().filter(|cell| cell.id.test.kind() == kind);
    let all = of_kind.flat_map(|cell| cell.remarks.iter().map(move |remark| (cell, remark)));
    // The map's name is the object's.
    all.map(|(cell, remark)| text::line(&format!("{}: {remark}.", cell.id.test.name()))).collect()
}
