// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring of branch records in the text of `perf script -F brstacksym`
//! (`perf_sample__fprintf_brstacksym`, `tools/perf/builtin-script.c`).

use super::{Filter, Model, model::Seen, waste};
use tramplab_model::{
    run::{CapturePoint, Place},
    text,
};
use tramplab_protocol::trace::Kind;

/// Makes the line of a sample: the records that the ring hands over, newest first. Neither a
/// prediction nor cycles nor a transaction is known.
pub fn line(point: &CapturePoint, model: Model, filter: Filter) -> String {
    let record = |seen: &Seen| {
        format!("{}/{}/-/-/-/0/{}/- ", place(seen.from), place(seen.to), name(seen.record.kind))
    };
    waste::seen(point, model, filter, Some(model.depth())).iter().map(record).collect()
}

/// perf splits records at spaces and their fields at slashes.
fn place(place: Option<&Place>) -> String {
    let known = place.and_then(|place| Some((place.symbol.as_ref()?, place.offset)));
    let Some((symbol, offset)) = known else { return "[unknown]".to_owned() };
    let symbol = text::line(symbol).replace(['/', ' '], "_");
    format!("{symbol}+{offset:#x}")
}

/// perf's names (`branch_type_name`, `tools/perf/util/branch.c`), for the types that x86's drivers
/// give (`branch_map`, `arch/x86/events/utils.c`). These have none for software interrupts. BRBE's
/// driver also tells some exceptions apart.
fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Cond => "COND",
        Kind::Jump => "UNCOND",
        Kind::IndJump => "IND",
        Kind::Call => "CALL",
        Kind::IndCall => "IND_CALL",
        Kind::Ret => "RET",
        Kind::Syscall => "SYSCALL",
        Kind::Sysret => "SYSRET",
        Kind::Iret => "ERET",
        Kind::Int => "",
        Kind::Interrupt => "IRQ",
    }
}
