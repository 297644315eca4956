// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two branch listings side by side, with the records that came and went.

use super::Pair;
use crate::{
    branch::{Branch, Filter, Model, capture::stable_name, listing, listing::Line},
    run::{CapturePoint, LbrWaste, Measurement, Row as WasteRow},
};
use similar::{Algorithm, DiffTag, capture_diff_slices};

/// One waste row's listings.
#[derive(Clone, Debug, PartialEq)]
pub struct Listings {
    pub row: WasteRow,
    pub filter: Filter,
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
            _ => Side::Both,
        }
    }
}

impl Listings {
    pub fn differs(&self) -> bool {
        self.rows.iter().any(|row| row.side() != Side::Both)
    }
}

/// `any` for every capture point that both sides have, and another filter where only that shows a difference.
pub fn side_by_side(pair: &Pair, model: Model) -> Vec<Listings> {
    let (Some(Measurement::LbrWaste(base)), Some(Measurement::LbrWaste(head))) =
        (&pair.base.measurement, &pair.head.measurement)
    else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for point in &base.points {
        let Some(partner) = head.points.iter().find(|partner| partner.point == point.point) else { continue };
        let row = WasteRow { mechanism: base.mechanism, point: point.point };
        all.push(beside((base, point), (head, partner), row, model, Branch::Any.into()));
    }
    all
}

/// Both listings for one filter.
pub fn beside(
    (base, base_point): (&LbrWaste, &CapturePoint),
    (head, head_point): (&LbrWaste, &CapturePoint),
    row: WasteRow,
    model: Model,
    filter: Filter,
) -> Listings {
    let mut old = listing::lines(base_point, &base.function, model, filter);
    let mut new = listing::lines(head_point, &head.function, model, filter);
    old.reverse();
    new.reverse();
    let keys = |lines: &[Line]| lines.iter().map(key).collect::<Vec<_>>();
    let mut rows = Vec::new();
    let one = |lines: &[Line], index: usize| Some(lines[index].clone());
    for change in capture_diff_slices(Algorithm::Myers, &keys(&old), &keys(&new)) {
        let (tag, before, after) = change.as_tag_tuple();
        if tag == DiffTag::Equal {
            rows.extend(before.zip(after).map(|(a, b)| Row { base: one(&old, a), head: one(&new, b) }));
        } else {
            rows.extend(before.map(|a| Row { base: one(&old, a), head: None }));
            rows.extend(after.map(|b| Row { base: None, head: one(&new, b) }));
        }
    }
    Listings { row, filter, rows }
}

/// What makes two records the same although the code around them was built anew: offsets move, BTF ids are given anew.
fn key(line: &Line) -> (String, String, bool) {
    let function = |place: &str| {
        let name = place.rsplit_once('+').map_or(place, |(name, _)| name);
        stable_name(name)
    };
    (function(&line.from), function(&line.to), line.modelled)
}
