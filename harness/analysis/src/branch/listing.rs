// SPDX-License-Identifier: MIT OR Apache-2.0
//! Branch listings in retsnoop's layout.

use super::{Filter, Model, model::Seen, waste};
use tramplab_model::{
    run::{CapturePoint, Place, TriggerPart, TriggerRecord},
    text,
};
use tramplab_protocol::message::Symbol;

/// One record of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// 0 is the newest: the transfer into the snapshot, or back from the tracer.
    pub index: usize,
    /// `symbol+0x4`.
    pub from: String,
    pub to: String,
    /// Added by rule, not observed.
    pub modelled: bool,
    /// Instructions since the record before, if counted.
    pub instructions: Option<u32>,
}

/// Lists records newest first, up to the newest that touches the function, or all if none does.
pub fn lines(point: &CapturePoint, function: &Symbol, model: Model, filter: Filter) -> Vec<Line> {
    let seen: Vec<Seen> = waste::seen(point, model, filter);
    let shown = seen
        .iter()
        .position(|seen| waste::touches(seen, function))
        .map_or(seen.len(), |index| index + 1);
    let line = |(index, seen): (usize, &Seen)| Line {
        index,
        from: place(seen.from),
        to: place(seen.to),
        modelled: seen.record.modelled,
        instructions: None,
    };
    seen[..shown].iter().enumerate().map(line).collect()
}

/// Prints [`lines`] oldest first. The last is `[#00]`, the transfer into the snapshot.
pub fn listing(point: &CapturePoint, function: &Symbol, model: Model, filter: Filter) -> String {
    let lines = lines(point, function, model, filter);
    let mut out = String::new();
    if waste::count_at(model, filter, point, function).wasted.is_none() {
        let what = match lines.len() {
            0 => "no other was recorded".to_owned(),
            all => format!("all {all} records follow"),
        };
        out += &format!("No {filter} record touches {}; {what}.\n", function.name);
    }
    out + &rows(&lines)
}

/// Lists the branches of a hit outside the function, newest first.
pub fn trigger_lines(part: &TriggerPart) -> Vec<Line> {
    let line = |(index, record): (usize, &TriggerRecord)| Line {
        index,
        from: place(Some(&record.from)),
        to: place(Some(&record.to)),
        modelled: false,
        instructions: Some(record.instructions),
    };
    part.records.iter().rev().enumerate().map(line).collect()
}

/// Prints [`trigger_lines`] oldest first, from the record that leaves the function to the one that
/// comes back, each with the number of instructions since the one before.
pub fn trigger_listing(part: &TriggerPart) -> String {
    rows(&trigger_lines(part))
}

/// Prints lines oldest first.
fn rows(lines: &[Line]) -> String {
    let widest = |column: fn(&Line) -> usize| lines.iter().map(column).max().unwrap_or(0);
    let (left, right) = (widest(|line| line.from.len()), widest(|line| line.to.len()));
    let mut out = String::new();
    for Line { index, from, to, modelled, instructions } in lines.iter().rev() {
        let count = instructions.map_or_else(String::new, |count| format!("{count:5}  "));
        let note = if *modelled { "  (modelled)" } else { "" };
        let row = format!("[#{index:02}] {count}{from:left$}  ->  {to:right$}{note}");
        out += row.trim_end();
        out.push('\n');
    }
    out
}

/// Names a place. The module is left out for BPF and ftrace, whose symbols show it by their names.
fn place(place: Option<&Place>) -> String {
    let Some(place) = place else { return "0x0".to_owned() };
    let Some(symbol) = &place.symbol else { return format!("{:#x}", place.address) };
    let module = place.module.as_deref().filter(|m| *m != "bpf" && !m.starts_with("__builtin__"));
    let module = module.map(|m| format!(" [{m}]")).unwrap_or_default();
    // Clean the text before its width is taken, and so that no line break makes two records of one.
    text::line(&format!("{symbol}+{:#x}{module}", place.offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::Branch;
    use std::collections::BTreeMap;
    use tramplab_model::run::NamedRecord;
    use tramplab_protocol::{Point, trace::Kind};

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    fn place(symbol: &str, module: Option<&str>, offset: u64) -> Place {
        // `traced` needs addresses of its own. One page per symbol is enough.
        let page = if symbol == "traced" { 0x1000 } else { 0x2000 };
        Place {
            address: KERNEL + page + offset,
            symbol: Some(symbol.to_owned()),
            module: module.map(str::to_owned),
            offset,
        }
    }

    fn point() -> CapturePoint {
        let program = |offset| place("bpf_prog_6deef7357e7b4530_capture", Some("bpf"), offset);
        let helper = || place("bpf_get_branch_snapshot", None, 0);
        let unknown = |address| Place { address, symbol: None, module: None, offset: 0 };
        let record = |kind, from, to| NamedRecord { from, to, kind, modelled: false };
        let mut modelled = record(Kind::Call, helper(), unknown(0));
        modelled.to.symbol = Some("perf_snapshot_branch_stack".to_owned());
        modelled.modelled = true;
        let records = vec![
            modelled,
            record(Kind::Call, program(0x4f), helper()),
            record(Kind::Jump, unknown(KERNEL + 0x9000), program(0)),
            record(Kind::Call, place("traced", None, 4), unknown(KERNEL + 0x9000)),
            record(
                Kind::Call,
                place("caller", Some("some_module"), 0x10),
                place("traced", None, 0),
            ),
            record(Kind::Syscall, unknown(0x40_1000), place("entry_SYSCALL_64", None, 0)),
        ];
        CapturePoint {
            point: Point::Entry,
            records,
            by_filter: BTreeMap::new(),
            digest: String::new(),
            wasted: BTreeMap::new(),
        }
    }

    fn traced() -> Symbol {
        Symbol {
            name: "traced".to_owned(),
            module: None,
            start: KERNEL + 0x1000,
            end: KERNEL + 0x1100,
        }
    }

    #[test]
    fn ends_at_the_traced_function() {
        insta::assert_snapshot!(listing(&point(), &traced(), Model::IntelLbr, Branch::Any.into()));
    }

    #[test]
    fn shows_everything_when_nothing_touches_the_function() {
        let elsewhere =
            Symbol { name: "elsewhere".to_owned(), module: None, start: 0x10, end: 0x20 };
        insta::assert_snapshot!(listing(
            &point(),
            &elsewhere,
            Model::Brbe,
            "any_call|cond".parse().unwrap()
        ));
    }

    #[test]
    fn says_that_a_filter_selects_nothing() {
        let text = listing(&point(), &traced(), Model::AmdLbrV2, Branch::Cond.into());
        assert_eq!(text, "No cond record touches traced; no other was recorded.\n");
    }
}
