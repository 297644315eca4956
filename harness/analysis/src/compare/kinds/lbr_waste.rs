// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lbr_waste`: wasted branch records.

use super::super::{
    Listings, Pair, Value,
    listing::{self, Subject},
};
use crate::branch::{Filter, Model, driver, listing::lines, waste};
use tramplab_model::{
    kinds::{Metric, lbr_waste},
    run::{CapturePoint, Cell, LbrWaste, Measurement, Test},
};

pub fn values(test: lbr_waste::Test, cell: &Cell, model: Model) -> Vec<(Metric, Value)> {
    let Some(Measurement::LbrWaste(measured)) = &cell.measurement else { return Vec::new() };
    let mut values = Vec::new();
    for point in &measured.points {
        let row = test.row(point.point);
        for filter in Filter::measured() {
            let metric = Metric::LbrWaste(lbr_waste::Metric { row, filter });
            values.push((metric, counted(measured, point, filter, model)));
        }
    }
    values
}

/// Also by a union of filters that [`values`] leaves out.
pub fn value(cell: &Cell, metric: lbr_waste::Metric, model: Model) -> Option<Value> {
    let Some(Measurement::LbrWaste(measured)) = &cell.measurement else { return None };
    let point = measured.points.iter().find(|found| found.point == metric.row.point)?;
    let is_it = cell.id.test == Test::LbrWaste(metric.test());
    is_it.then(|| counted(measured, point, metric.filter, model))
}

fn counted(measured: &LbrWaste, point: &CapturePoint, filter: Filter, model: Model) -> Value {
    let model = driver::model(measured, model);
    Value::Records(waste::counted(model, filter, point, &measured.function).wasted)
}

/// One listing for each capture point that both sides have, by one filter. It has at most the
/// `newest` records of each side.
pub fn listings(
    test: lbr_waste::Test,
    pair: &Pair,
    model: Model,
    filter: Filter,
    newest: usize,
) -> Vec<Listings> {
    let (Some(Measurement::LbrWaste(base)), Some(Measurement::LbrWaste(head))) =
        pair.measurements()
    else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for point in &base.points {
        let Some(partner) = head.points.iter().find(|partner| partner.point == point.point) else {
            continue;
        };
        all.push(Listings {
            subject: Subject::Waste(test.row(point.point)),
            rows: beside([(base, point), (head, partner)], model, filter, newest),
        });
    }
    all
}

fn beside(
    sides: [(&LbrWaste, &CapturePoint); 2],
    model: Model,
    filter: Filter,
    newest: usize,
) -> Vec<listing::ListingRow> {
    let [mut old, mut new] = sides.map(|(waste, point)| {
        let mut lines = lines(point, &waste.function, model, filter);
        lines.truncate(newest);
        lines.reverse();
        lines
    });
    // The transfer into the snapshot, record #00, is the same event on both sides.
    let last = match (old.last(), new.last()) {
        (Some(a), Some(b)) if (a.index, b.index) == (0, 0) => {
            Some(listing::ListingRow { base: old.pop(), head: new.pop() })
        }
        _ => None,
    };
    let mut rows = listing::align(&old, &new);
    rows.extend(last);
    rows
}
