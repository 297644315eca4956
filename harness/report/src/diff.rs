// SPDX-License-Identifier: MIT OR Apache-2.0
//! Branch records of base and head: side by side, and as a diff.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

use crate::{judged::whose, parts::Listing};
use tramplab_analysis::{
    branch::listing::{Line, with_sources},
    compare::{Comparison, Listings, Side, Subject},
};
use tramplab_model::code::SourceLines;

/// The source lines to show of the base and of the head.
pub type Sources<'a> = [Option<&'a SourceLines>; 2];

/// Lays listings side by side. `-` marks a record of the base only, `+` one of the head only, `~`
/// one with another end.
pub fn side_by_side(listings: &Listings, comparison: &Comparison, sources: Sources) -> Listing {
    let rows: Vec<(&str, Vec<String>, Vec<String>)> = listings
        .rows
        .iter()
        .map(|row| {
            let mark = match row.side() {
                Side::Both => " ",
                Side::Moved => "~",
                Side::Base => "-",
                Side::Head => "+",
            };
            let text = |line: &Option<Line>, sources| {
                line.as_ref().map_or_else(Vec::new, |line| record(line, sources))
            };
            (mark, text(&row.base, sources[0]), text(&row.head, sources[1]))
        })
        .collect();
    let base = rows.iter().flat_map(|(_, base, _)| base);
    let width = base.map(String::len).max().unwrap_or(0).max(4);
    let mut out = format!("  {:width$} | head\n", "base");
    for (mark, base, head) in rows {
        for row in 0..base.len().max(head.len()) {
            let mark = if row == 0 { mark } else { " " };
            let [base, head] = [&base, &head].map(|side| side.get(row).map_or("", String::as_str));
            out += format!("{mark} {base:width$} | {head}").trim_end();
            out.push('\n');
        }
    }
    let moved = match listings.subject {
        Subject::Waste(_) => "from or to another function",
        Subject::Trigger(..) => "another function or count",
    };
    let marks = format!("base | head; - went, + came, ~ {moved}");
    Listing { caption: caption(listings, comparison, &marks), text: out }
}

/// Lays the head's records out as a diff, with different records of the base before them.
pub fn as_a_diff(listings: &Listings, comparison: &Comparison, sources: Sources) -> Listing {
    let mut out = String::new();
    for row in &listings.rows {
        let lines = match row.side() {
            Side::Both => [None, row.head.as_ref().map(|line| (' ', line, sources[1]))],
            Side::Moved | Side::Base | Side::Head => [
                row.base.as_ref().map(|line| ('-', line, sources[0])),
                row.head.as_ref().map(|line| ('+', line, sources[1])),
            ],
        };
        for (mark, line, sources) in lines.into_iter().flatten() {
            out.extend(record(line, sources).iter().map(|text| format!("{mark} {text}\n")));
        }
    }
    Listing { caption: caption(listings, comparison, "- base, + head"), text: out }
}

/// A record, and below it the source lines that are known of both ends.
fn record(line: &Line, sources: Option<&SourceLines>) -> Vec<String> {
    let note = line.note.text().map_or_else(String::new, |text| format!(" {text}"));
    let count = line.instructions.map_or_else(String::new, |count| format!("{count:4} "));
    let first = format!("[#{:02}] {count}{} -> {}{note}", line.index, line.from, line.to);
    let [from, to] = [&line.from, &line.to].map(|place| with_sources(place, sources));
    let source = |end: &[(String, String)], row: usize| match (row, end.get(row)) {
        (_, None) => String::new(),
        (0, Some((_, source))) => source.clone(),
        (_, Some((name, source))) => format!("{name} {source}"),
    };
    let below = (0..from.len().max(to.len())).filter_map(|row| {
        let [from, to] = [source(&from, row), source(&to, row)];
        let is_known = !from.is_empty() || !to.is_empty();
        is_known.then(|| format!("      {from} -> {to}").trim_end().to_owned())
    });
    std::iter::once(first).chain(below).collect()
}

fn caption(listings: &Listings, comparison: &Comparison, marks: &str) -> String {
    match listings.subject {
        Subject::Waste(row) => format!("{row}, any ({}): {marks}", whose(comparison)),
        trigger @ Subject::Trigger(..) => format!("{trigger}, instructions before each: {marks}"),
    }
}
