// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of two listings that differ, one behind the other.

use super::{ListingRow, Side, listing::functions};
use crate::branch::listing::Line;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashSet;

/// Rows of a listing that are looked at. An honest one has a hundred.
pub(super) const MOST: usize = 512;

/// A part of the code that a hit runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Change {
    #[serde(rename = "change")]
    pub kind: ChangeKind,
    /// It goes to a function's first byte.
    pub is_call: bool,
    /// Functions, without offsets; of a program `bpf_prog_*`.
    pub from: String,
    pub to: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ChangeKind {
    /// A record that only the head has.
    Came,
    /// A record that only the base has.
    Went,
    /// The code before a record is longer or shorter.
    Resized,
    /// `from` was a function that `to` called. It is a part of it now, or left out.
    Inlined,
    /// `to` is a function that `from` calls. It was a part of it before, or is new.
    Outlined,
    /// The head mispredicts the branch, the base did not.
    Mispredicted,
    /// The base mispredicted the branch, the head does not.
    Predicted,
}

/// Equal for changes that one cause brings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CauseKey(ChangeKind, String, String);

#[derive(Clone, Debug, Default)]
pub(super) struct Hunk {
    pub changes: Vec<Change>,
    /// Records of the head without those of the base.
    pub records: i64,
    pub instructions: i64,
}

pub(super) fn hunks(rows: &[ListingRow]) -> Vec<Hunk> {
    if rows.len() > 2 * MOST {
        return Vec::new();
    }
    let differs = |row: &ListingRow| row.side() != Side::Both;
    let runs = rows.chunk_by(|one, other| differs(one) == differs(other));
    let calls = Calls::of(rows);
    runs.filter(|rows| differs(&rows[0])).map(|rows| Hunk::of(rows, &calls)).collect()
}

impl Hunk {
    fn of(rows: &[ListingRow], calls: &Calls) -> Hunk {
        let mut hunk = Hunk::default();
        let mut resized = Vec::new();
        for row in rows {
            match of_row(row) {
                [Some(went), Some(came)] if (&went.from, &went.to) == (&came.from, &came.to) => {
                    resized.push(Change { kind: ChangeKind::Resized, ..came });
                }
                changes => changes.into_iter().flatten().for_each(|one| hunk.add(one)),
            }
            let [base, head] = [&row.base, &row.head].map(|line| {
                line.as_ref().map_or([0; 2], |line| [1, line.instructions.unwrap_or(0).into()])
            });
            hunk.records = hunk.records.saturating_add(head[0]).saturating_sub(base[0]);
            hunk.instructions = hunk.instructions.saturating_add(head[1]).saturating_sub(base[1]);
        }
        hunk.fold(calls);
        // Beside records that came or went, other code is longer or shorter by them.
        if hunk.changes.is_empty() {
            hunk.changes = resized;
        }
        hunk
    }

    /// A record that only changed its place neither came nor went.
    fn add(&mut self, change: Change) {
        let is_opposite = |other: &Change| {
            (&other.from, &other.to) == (&change.from, &change.to) && other.kind != change.kind
        };
        match self.changes.iter().position(is_opposite) {
            Some(at) => drop(self.changes.remove(at)),
            None => self.changes.push(change),
        }
    }

    /// Two records are one if they differ in a function that only one side has, below its caller.
    fn fold(&mut self, calls: &Calls) {
        let mut left: Vec<Change> = Vec::new();
        for change in std::mem::take(&mut self.changes) {
            let found = left.iter().enumerate().find_map(|(at, other)| {
                let (went, came) = match (other.kind, change.kind) {
                    (ChangeKind::Went, ChangeKind::Came) => (other, &change),
                    (ChangeKind::Came, ChangeKind::Went) => (&change, other),
                    _ => return None,
                };
                Some((at, calls.folded(went, came)?))
            });
            match found {
                Some((at, folded)) if left.contains(&folded) => drop(left.remove(at)),
                Some((at, folded)) => left[at] = folded,
                None => left.push(change),
            }
        }
        self.changes = left;
    }
}

fn of_row(ListingRow { base, head }: &ListingRow) -> [Option<Change>; 2] {
    let changed = |line: &Line, kind| {
        let [from, to] = functions(line);
        Change { kind, is_call: is_call(line), from, to }
    };
    [
        base.as_ref().map(|line| changed(line, ChangeKind::Went)),
        head.as_ref().map(|line| changed(line, ChangeKind::Came)),
    ]
}

/// A return goes to no first byte.
fn is_call(line: &Line) -> bool {
    line.to.ends_with("+0x0")
}

/// The functions of the base and of the head, and their calls.
struct Calls {
    functions: [HashSet<String>; 2],
    calls: [HashSet<[String; 2]>; 2],
}

impl Calls {
    fn of(rows: &[ListingRow]) -> Calls {
        let call = |line: &Line| {
            let [from, to] = functions(line);
            if is_call(line) { [from, to] } else { [to, from] }
        };
        let base = rows.iter().filter_map(|row| row.base.as_ref()).map(call);
        let head = rows.iter().filter_map(|row| row.head.as_ref()).map(call);
        let calls: [HashSet<[String; 2]>; 2] = [base.collect(), head.collect()];
        let functions =
            [&calls[0], &calls[1]].map(|calls| calls.iter().flatten().cloned().collect());
        Calls { functions, calls }
    }

    /// The way in which one record became the other: a function that only one side has is a part of
    /// its caller on the other side.
    fn folded(&self, went: &Change, came: &Change) -> Option<Change> {
        let (old, new) = match (went.from == came.from, went.to == came.to) {
            (false, true) => (&went.from, &came.from),
            (true, false) => (&went.to, &came.to),
            _ => return None,
        };
        let ([base, head], [base_calls, head_calls]) = (&self.functions, &self.calls);
        let (from, to) = (old.clone(), new.clone());
        if !head.contains(old) && base_calls.contains(&[to.clone(), from.clone()]) {
            Some(Change { kind: ChangeKind::Inlined, is_call: false, from, to })
        } else if !base.contains(new) && head_calls.contains(&[from.clone(), to.clone()]) {
            Some(Change { kind: ChangeKind::Outlined, is_call: false, from, to })
        } else {
            None
        }
    }
}

impl Change {
    /// The parts of one function in several callers have one cause.
    pub(super) fn cause(&self) -> CauseKey {
        let Change { kind, from, to, .. } = self;
        let (from, to) = match kind {
            ChangeKind::Inlined => (from.clone(), String::new()),
            ChangeKind::Outlined => (String::new(), to.clone()),
            _ => (from.clone(), to.clone()),
        };
        CauseKey(*kind, from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::listing::align;

    /// `f>g` is a call of `g`, `f/g` a return to it, `f>g:3` one with 3 instructions before it.
    fn lines(text: &str) -> Vec<Line> {
        let line = |(index, record): (usize, &str)| {
            let (ends, count) = record.split_once(':').unwrap_or((record, "0"));
            let (from, to) = ends.split_once(['>', '/']).unwrap();
            let offset = if ends.contains('>') { 0 } else { 7 };
            let (from, to) = (format!("{from}+0x9"), format!("{to}+{offset:#x}"));
            let instructions = Some(count.parse().unwrap());
            Line { index, from, to, note: Default::default(), instructions }
        };
        text.split_whitespace().enumerate().map(line).collect()
    }

    /// `+f>g`, `-f>g`, `~f>g`, `i:f>g`, `o:f>g` with the records and instructions that they add.
    fn told(base: &str, head: &str) -> Vec<(String, i64, i64)> {
        let told = |hunk: &Hunk| {
            let changes = hunk.changes.iter().map(|Change { kind, from, to, .. }| {
                let mark = match kind {
                    ChangeKind::Came => "+",
                    ChangeKind::Went => "-",
                    ChangeKind::Resized => "~",
                    ChangeKind::Inlined => "i:",
                    ChangeKind::Outlined => "o:",
                    ChangeKind::Mispredicted | ChangeKind::Predicted => "of no listing",
                };
                format!("{mark}{from}>{to}")
            });
            (changes.collect::<Vec<_>>().join(" "), hunk.records, hunk.instructions)
        };
        hunks(&align(&lines(base), &lines(head))).iter().map(told).collect()
    }

    #[test]
    fn finds_what_came_went_moved_grew_and_was_inlined() {
        for (base, head, expected) in [
            ("a>b b/a", "a>b b/a", vec![]),
            ("a>b b/a", "a>b b>c c/b b/a", vec![("+b>c +c>b", 2, 0)]),
            ("a>b:4 b/a:2", "a>b:4 b/a:7", vec![("~b>a", 0, 5)]),
            // The code around a new call is longer because of it.
            ("a>b b/a:9", "a>b b>c:5 c/b:3 b/a:6", vec![("+b>c +c>b", 2, 5)]),
            // Two places, which need not have one cause.
            ("a>b b/a", "x>a a>b b/a a>y", vec![("+x>a", 1, 0), ("+a>y", 1, 0)]),
            // `h` calls `p`, which calls `r`; then `p` is a part of `h`.
            ("h>p p>r r/p p/h", "h>r r/h", vec![("-h>p i:p>h -p>h", -2, 0)]),
            ("h>r r/h", "h>p p>r r/p p/h", vec![("+h>p o:h>p +p>h", 2, 0)]),
            // `p` is still called elsewhere in the hit.
            (
                "h>p p>r r/p p/h h>x x/h h>p p/h",
                "h>r r/h h>x x/h h>p p/h",
                vec![("-h>p -p>r +h>r -r>p -p>h +r>h", -2, 0)],
            ),
            // A filter keeps only calls, or only returns.
            ("h>p p>r", "h>r", vec![("-h>p i:p>h", -1, 0)]),
            ("r/p p/h", "r/h", vec![("i:p>h -p>h", -1, 0)]),
            // Another function is called, none is a part of another.
            ("h>p p/h", "h>q q/h", vec![("-h>p +h>q -p>h +q>h", 0, 0)]),
        ] {
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(changes, records, instructions)| (changes.to_owned(), records, instructions))
                .collect();
            assert_eq!(told(base, head), expected, "{base} -> {head}");
        }
    }

    #[test]
    fn what_went_and_came_in_one_place_did_neither() {
        let change = |kind, to: &str| {
            let (from, to) = ("f".to_owned(), to.to_owned());
            Change { kind, is_call: true, from, to }
        };
        let mut hunk = Hunk::default();
        for (kind, to) in [
            (ChangeKind::Went, "g"),
            (ChangeKind::Came, "h"),
            (ChangeKind::Came, "g"),
            (ChangeKind::Came, "h"),
        ] {
            hunk.add(change(kind, to));
        }
        assert_eq!(hunk.changes, ["h", "h"].map(|to| change(ChangeKind::Came, to)));
    }
}
