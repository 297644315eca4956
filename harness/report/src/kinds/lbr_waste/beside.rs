// SPDX-License-Identifier: MIT OR Apache-2.0
//! The branch records of this machine beside those of its kernel in a guest.

use super::{Measured, MeasuredRow, rows};
use crate::{
    group::{Group, pairs_of_this_machine},
    view::View,
};
use tramplab_analysis::branch::{beside::beside, listing};
use tramplab_model::{run::Outcome, table::Table};

/// In place of a row that differs.
const SAME: &str = "the same records";

pub fn tables(groups: &[Group], view: &View) -> Vec<Table> {
    pairs_of_this_machine(groups).filter_map(|pair| table(pair, view)).collect()
}

/// True if both are whole and of one function. Guests alone may exceed a budget.
fn is_comparable(a: &Measured, b: &Measured) -> bool {
    let is_whole =
        |one: &Measured| matches!(one.cell.outcome, Outcome::Pass | Outcome::Fail { .. });
    is_whole(a) && is_whole(b) && a.waste.function.name == b.waste.function.name
}

fn table([here, guest]: [&Group; 2], view: &View) -> Option<Table> {
    let traced = rows(guest);
    let model = guest.model(view);
    let row = |MeasuredRow { name, measured, .. }: MeasuredRow| {
        let is_of_driver = |measured: &Measured| measured.waste.source.is_of_driver();
        let driver = measured.ok().filter(is_of_driver)?;
        let traced = traced.iter().find(|row| row.name == name)?.measured.ok();
        // The guest may have a driver's records, too (`--branches emulated`).
        let traced = traced.filter(|one| !is_of_driver(one) && is_comparable(one, &driver))?;
        let records = &driver.point().records;
        let Some(found) = beside(records, model, &traced.point().records) else {
            let why = "not compared: they do not lead into a driver, or nothing was traced";
            return Some(vec![name, String::new(), String::new(), why.to_owned(), String::new()]);
        };
        let all = records.len().saturating_sub(found.own);
        let differs = match (found.differs, found.untraced) {
            (None, 0) => [SAME.to_owned(), String::new()],
            (None, untraced) => [format!("{untraced} older ones were not traced"), String::new()],
            (Some([a, b]), _) => {
                let row = found.own.saturating_add(found.same);
                let line = |row, record| format!("#{row:02} {}", listing::ends(record));
                [line(row, a), line(found.same, b)]
            }
        };
        let counts = [found.own.to_string(), format!("{} of {all}", found.same)];
        Some([vec![name], counts.to_vec(), differs.to_vec()].concat())
    };
    let header = ["mechanism", "driver's own", "the same", "first that differs", "in the guest"];
    let notes =
        ["From the newest record on, with `any`. Behind the driver's own records, which no trace \
         has, each row is compared by symbol and offset of both ends; of the call into the driver, \
         for which a guest has a stub, only where it is from."
            .to_owned()];
    let caption = format!(
        "Branch records of this machine ({}) beside {} ({model})",
        here.kernel, guest.kernel
    );
    Table::new(caption, header, rows(here).into_iter().filter_map(row)).noted(notes).if_filled()
}
