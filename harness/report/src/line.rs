// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats one line per cell, printed as the cell ends.

use super::kinds;
use tramplab_model::{
    run::{Cell, Outcome},
    text::{line, plain},
};

/// `pass  x86_64/6.12/tcg/lbr_waste/fexit  5.2 s  wasted: any 8, any_return 4`.
pub fn cell_line(cell: &Cell) -> String {
    let seconds = cell.duration_ms as f64 / 1e3;
    let head = format!("{:<5} {:<52} {seconds:6.1} s", cell.outcome.name(), line(&cell.id.name()));
    let rest = match &cell.outcome {
        Outcome::Skip { reason } => reason.clone(),
        Outcome::Error { kind, message } => format!("{kind}: {message}"),
        Outcome::Fail { reasons } => reasons.join("; "),
        Outcome::Pass => kinds::of(cell.id.test.kind()).line(cell),
    };
    // Indent further lines, so that a guest's text cannot pass for another cell.
    let rest = plain(&rest).replace('\n', "\n      ");
    format!("{head}  {rest}").trim_end().to_owned()
}
