// SPDX-License-Identifier: MIT OR Apache-2.0
//! Branch listings in retsnoop's layout.

use super::{Filter, Model, model::Seen, symbols::is_kernel, waste};
use std::collections::HashSet;
use tramplab_model::{
    code::{SourceLine, SourceLines},
    run::{CapturePoint, Mispredicted, NamedRecord, Place, Predicted, TriggerPart, TriggerRecord},
    text,
};
use tramplab_protocol::{message::Symbol, trace::Kind};

/// One record of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// 0 is the newest: the transfer into the snapshot, or back from the tracer.
    pub index: usize,
    /// `symbol+0x4`.
    pub from: String,
    pub to: String,
    pub note: Note,
    /// Instructions since the record before, if counted.
    pub instructions: Option<u32>,
}

/// A remark about a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Note {
    #[default]
    None,
    /// Added by rule, not observed.
    Modelled,
    /// A CPU predicts another target.
    Mispredicted,
    /// It is no return.
    Indirect,
}

impl Note {
    /// None if there is nothing to remark.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Note::None => None,
            Note::Modelled => Some("(modelled)"),
            Note::Mispredicted => Some("(mispredicted)"),
            Note::Indirect => Some("(indirect)"),
        }
    }
}

/// Lists records newest first, up to the newest that touches the function, or all if none does.
pub fn lines(point: &CapturePoint, function: &Symbol, model: Model, filter: Filter) -> Vec<Line> {
    let seen: Vec<Seen> = waste::seen(point, model, filter, None);
    let shown = seen
        .iter()
        .position(|seen| waste::touches(seen, function))
        .map_or(seen.len(), |index| index + 1);
    let line = |(index, seen): (usize, &Seen)| Line {
        index,
        from: place(seen.from),
        to: place(seen.to),
        note: if seen.record.modelled { Note::Modelled } else { Note::None },
        instructions: None,
    };
    seen[..shown].iter().enumerate().map(line).collect()
}

/// Prints [`lines`] oldest first, with the source lines that are known. The last record is `[#00]`,
/// the transfer into the snapshot.
pub fn listing(
    point: &CapturePoint,
    function: &Symbol,
    model: Model,
    filter: Filter,
    sources: Option<&SourceLines>,
) -> String {
    let lines = lines(point, function, model, filter);
    let mut out = String::new();
    if waste::count_at(model, filter, point, function).wasted.is_none() {
        let what = match lines.len() {
            0 => "no other was recorded".to_owned(),
            all => format!("all {all} records follow"),
        };
        out += &format!("No {filter} record touches {}; {what}.\n", function.name);
    }
    out + &printed(&lines, sources)
}

/// Lists the branches of a hit outside the function, newest first: from the record that comes back
/// to the one that leaves the function, each with the number of instructions since the one before.
pub fn trigger_lines(part: &TriggerPart, predicted: Option<&Predicted>) -> Vec<Line> {
    let missed = predicted.iter().flat_map(|predicted| &predicted.mispredicted);
    let missed: HashSet<_> = missed.map(|missed| (&missed.from, &missed.to)).collect();
    let line = |(index, record): (usize, &TriggerRecord)| Line {
        index,
        from: place(Some(&record.from)),
        to: place(Some(&record.to)),
        note: match missed.contains(&(&record.from, &record.to)) {
            true => Note::Mispredicted,
            false => Note::None,
        },
        instructions: Some(record.instructions),
    };
    part.records.iter().rev().enumerate().map(line).collect()
}

/// Lists the mispredicted branches from a hit to the next, newest first. Leaves out addresses of
/// user space, which differ at each boot.
pub fn missed_lines(predicted: &Predicted) -> Vec<Line> {
    let named = |at: &Place| match at.symbol {
        None if !is_kernel(at.address) => "user space".to_owned(),
        _ => place(Some(at)),
    };
    let line = |(index, missed): (usize, &Mispredicted)| Line {
        index,
        from: named(&missed.from),
        to: named(&missed.to),
        note: if missed.kind == Kind::Ret { Note::None } else { Note::Indirect },
        instructions: None,
    };
    predicted.mispredicted.iter().rev().enumerate().map(line).collect()
}

/// A place of a record in lines of text: itself and its source line, then the functions that were
/// inlined there, outermost first.
pub fn with_sources(place: &str, sources: Option<&SourceLines>) -> Vec<(String, String)> {
    let known = sources.and_then(|sources| sources.get(place)).map_or(&[][..], Vec::as_slice);
    let Some((own, inlined)) = known.split_last() else {
        return vec![(place.to_owned(), String::new())];
    };
    let at = |line: &SourceLine| format!("{}:{}", line.file, line.line);
    // A part of a function that the compiler split has another name than the function.
    let source = match place.rsplit_once('+') {
        Some((name, _)) if name == own.function => format!("({})", at(own)),
        _ => format!("({} @ {})", own.function, at(own)),
    };
    let mut text = vec![(place.to_owned(), text::line(&source))];
    text.extend(inlined.iter().rev().map(|line| {
        let name = text::line(&format!(". {}", line.function));
        (name, text::line(&format!("({})", at(line))))
    }));
    text
}

/// Prints lines oldest first, with the source lines that are known.
pub fn printed(lines: &[Line], sources: Option<&SourceLines>) -> String {
    let ends: Vec<[Vec<(String, String)>; 2]> = lines
        .iter()
        .map(|line| [&line.from, &line.to].map(|place| with_sources(place, sources)))
        .collect();
    let [left, right] = [0, 1].map(|side| Widths::of(ends.iter().flat_map(|ends| &ends[side])));
    let mut out = String::new();
    for (Line { index, note, instructions, .. }, [from, to]) in lines.iter().zip(&ends).rev() {
        let count = instructions.map_or_else(String::new, |count| format!("{count:5}  "));
        let note = note.text().map_or_else(String::new, |text| format!("  {text}"));
        let indent = " ".repeat(format!("[#{index:02}] {count}").len());
        for row in 0..from.len().max(to.len()) {
            let [from, to] = [left.pad(from.get(row)), right.pad(to.get(row))];
            let row = match row {
                0 => format!("[#{index:02}] {count}{from}  ->  {to}{note}"),
                _ => format!("{indent}{from}      {to}"),
            };
            out += row.trim_end();
            out.push('\n');
        }
    }
    out
}

/// The widths of a column of places and of the one with their source lines.
struct Widths {
    place: usize,
    source: usize,
}

impl Widths {
    fn of<'a>(texts: impl Iterator<Item = &'a (String, String)>) -> Widths {
        let widen = |widest: Widths, (place, source): &(String, String)| Widths {
            place: widest.place.max(place.len()),
            source: widest.source.max(source.len()),
        };
        texts.fold(Widths { place: 0, source: 0 }, widen)
    }

    fn pad(&self, text: Option<&(String, String)>) -> String {
        let (place, source) = text.map_or(("", ""), |(place, source)| (place, source));
        let place = format!("{place:width$}", width = self.place);
        match self.source {
            0 => place,
            width => format!("{place}  {source:width$}"),
        }
    }
}

/// `from -> to`, without source lines.
pub fn ends(record: &NamedRecord) -> String {
    [&record.from, &record.to].map(|end| place(Some(end))).join(" -> ")
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
            traced: BTreeMap::new(),
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
        insta::assert_snapshot!(listing(
            &point(),
            &traced(),
            Model::IntelLbr,
            Branch::Any.into(),
            None
        ));
    }

    #[test]
    fn shows_everything_when_nothing_touches_the_function() {
        let elsewhere =
            Symbol { name: "elsewhere".to_owned(), module: None, start: 0x10, end: 0x20 };
        insta::assert_snapshot!(listing(
            &point(),
            &elsewhere,
            Model::Brbe,
            "any_call|cond".parse().unwrap(),
            None
        ));
    }

    #[test]
    fn says_that_a_filter_selects_nothing() {
        let text = listing(&point(), &traced(), Model::AmdLbrV2, Branch::Cond.into(), None);
        assert_eq!(text, "No cond record touches traced; no other was recorded.\n");
    }

    #[test]
    fn shows_known_source_lines_and_inlined_functions() {
        let line = |function: &str, line| SourceLine {
            function: function.to_owned(),
            file: format!("kernel/{function}.c"),
            line,
        };
        let sources = SourceLines::from([
            ("traced+0x4".to_owned(), vec![line("inner", 7), line("outer", 5), line("traced", 3)]),
            // The symbol is a part of the function.
            ("bpf_get_branch_snapshot+0x0".to_owned(), vec![line("split", 1)]),
        ]);
        let with =
            |sources| listing(&point(), &traced(), Model::IntelLbr, Branch::Any.into(), sources);
        let text = with(Some(&sources));
        let rows: Vec<String> =
            text.lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            rows[..3],
            [
                "[#03] traced+0x4 (kernel/traced.c:3) -> 0xffffffff81009000",
                ". outer (kernel/outer.c:5)",
                ". inner (kernel/inner.c:7)",
            ]
        );
        let newest = "[#00] bpf_get_branch_snapshot+0x0 (split @ kernel/split.c:1) -> ";
        assert!(rows.last().unwrap().starts_with(newest), "{text}");
        // All arrows are in one column. Without lines the layout is the old one.
        let arrows = text.lines().filter_map(|row| row.find("  ->  "));
        assert_eq!(arrows.collect::<std::collections::BTreeSet<_>>().len(), 1, "{text}");
        assert_eq!(with(Some(&SourceLines::new())), with(None));
    }
}
