// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lays two branch listings side by side, with added and removed records.

use crate::branch::{
    listing::{Line, Note},
    stable_name,
};
use similar::{Algorithm, DiffTag, capture_diff_slices};
use std::fmt;
use tramplab_model::{kinds::trigger, run::WasteRow};
use tramplab_protocol::Point;

/// The subject of two listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A waste row. A comparison lists it with the filter `any`, which has the records of all.
    Waste(WasteRow),
    /// The code that a hit runs at one side of the function.
    Trigger(trigger::Test, Point),
}

/// `kprobe.session/exit`, `trigger of fexit, entry`.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Waste(row) => f.pad(&row.to_string()),
            Subject::Trigger(test, point) => f.pad(&format!("trigger of {test}, {point}")),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Listings {
    pub subject: Subject,
    /// Oldest first.
    pub rows: Vec<ListingRow>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ListingRow {
    pub base: Option<Line>,
    pub head: Option<Line>,
}

/// The side that has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Both,
    /// Both, but one end is in another function, as the old one was inlined, split or renamed. Or
    /// the code before the record is longer or shorter.
    Moved,
    /// Removed: only the base has it.
    Base,
    /// Added: only the head has it.
    Head,
}

impl ListingRow {
    pub fn side(&self) -> Side {
        match (&self.base, &self.head) {
            (Some(_), None) => Side::Base,
            (None, Some(_)) => Side::Head,
            (Some(base), Some(head))
                if key(base) != key(head) || base.instructions != head.instructions =>
            {
                Side::Moved
            }
            _ => Side::Both,
        }
    }
}

impl Listings {
    pub fn differs(&self) -> bool {
        self.rows.iter().any(|row| row.side() != Side::Both)
    }
}

/// Keys that match records of two builds. They ignore offsets and BTF ids, which change with every
/// build. The first key compares both ends. The others match leftover records between two such
/// matches by one end.
const KEYS: [fn(&Line) -> Key; 3] = [
    key,
    |line| Key { from: String::new(), ..key(line) },
    |line| Key { to: String::new(), ..key(line) },
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    from: String,
    to: String,
    modelled: bool,
}

fn key(line: &Line) -> Key {
    let function = |place: &str| {
        stable_name(place.rsplit_once('+').map_or(place, |(name, _)| name)).into_owned()
    };
    Key {
        from: function(&line.from),
        to: function(&line.to),
        modelled: line.note == Note::Modelled,
    }
}

/// The functions of both ends, by names that are the same in every build and for all mechanisms.
pub(super) fn functions(line: &Line) -> [String; 2] {
    let Key { from, to, .. } = key(line);
    [from, to].map(|name| if name.starts_with(PROGRAM) { PROGRAM.to_owned() } else { name })
}

/// Begins the stable names of programs, which end with that of the mechanism's own.
pub(super) const PROGRAM: &str = "bpf_prog_*";

/// Lays two listings beside each other, both oldest first.
pub(super) fn align(old: &[Line], new: &[Line]) -> Vec<ListingRow> {
    align_by(old, new, &KEYS)
}

fn align_by(old: &[Line], new: &[Line], keys: &[fn(&Line) -> Key]) -> Vec<ListingRow> {
    let went = |line: &Line| ListingRow { base: Some(line.clone()), head: None };
    let came = |line: &Line| ListingRow { base: None, head: Some(line.clone()) };
    let Some((key, weaker)) = keys.split_first() else {
        return old.iter().map(went).chain(new.iter().map(came)).collect();
    };
    let keys = |lines: &[Line]| lines.iter().map(key).collect::<Vec<_>>();
    let mut rows = Vec::new();
    for change in capture_diff_slices(Algorithm::Myers, &keys(old), &keys(new)) {
        let (tag, before, after) = change.as_tag_tuple();
        let (before, after) = (&old[before], &new[after]);
        if tag == DiffTag::Equal {
            let both = |(a, b): (&Line, &Line)| ListingRow {
                base: Some(a.clone()),
                head: Some(b.clone()),
            };
            rows.extend(before.iter().zip(after).map(both));
        } else {
            rows.extend(align_by(before, after, weaker));
        }
    }
    rows
}
