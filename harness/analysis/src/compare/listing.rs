// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two branch listings side by side, with the records that came and went.

use crate::branch::{listing::Line, stable_name};
use similar::{Algorithm, DiffTag, capture_diff_slices};
use std::fmt;
use tramplab_model::{kinds::trigger, run::Row as WasteRow};
use tramplab_protocol::Point;

/// What two listings are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A waste row, in `any`: there every record of every other filter is.
    Waste(WasteRow),
    /// What a hit runs at one side of the function.
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
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub base: Option<Line>,
    pub head: Option<Line>,
}

/// Which side a record is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Both,
    /// Both, but one end is another function: what it was in has been inlined, split or renamed. Or
    /// the code that leads to it is longer or shorter.
    Moved,
    /// It went.
    Base,
    /// It came.
    Head,
}

impl Row {
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

/// What makes two records the same, although the code around them was built anew: offsets move, BTF
/// ids are given anew. First both ends; of what is left over between two such records, those that
/// still share one end belong together.
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
    Key { from: function(&line.from), to: function(&line.to), modelled: line.modelled }
}

/// Lays two listings beside each other, both oldest first.
pub(super) fn align(old: &[Line], new: &[Line]) -> Vec<Row> {
    align_by(old, new, &KEYS)
}

fn align_by(old: &[Line], new: &[Line], keys: &[fn(&Line) -> Key]) -> Vec<Row> {
    let went = |line: &Line| Row { base: Some(line.clone()), head: None };
    let came = |line: &Line| Row { base: None, head: Some(line.clone()) };
    let Some((key, weaker)) = keys.split_first() else {
        return old.iter().map(went).chain(new.iter().map(came)).collect();
    };
    let keys = |lines: &[Line]| lines.iter().map(key).collect::<Vec<_>>();
    let mut rows = Vec::new();
    for change in capture_diff_slices(Algorithm::Myers, &keys(old), &keys(new)) {
        let (tag, before, after) = change.as_tag_tuple();
        let (before, after) = (&old[before], &new[after]);
        if tag == DiffTag::Equal {
            let both =
                |(a, b): (&Line, &Line)| Row { base: Some(a.clone()), head: Some(b.clone()) };
            rows.extend(before.iter().zip(after).map(both));
        } else {
            rows.extend(align_by(before, after, weaker));
        }
    }
    rows
}
