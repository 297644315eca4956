// SPDX-License-Identifier: MIT OR Apache-2.0
//! The branch records of this machine beside those of its kernel in a guest.

use super::{Measured, MeasuredRow, rows};
use crate::{
    group::{Group, pairs_of_this_machine},
    view::View,
};
use tramplab_analysis::branch::{beside::beside, listing};
use tramplab_model::{run::Run, table::Table};

pub fn tables(run: &Run, groups: &[Group], view: &View) -> Vec<Table> {
    pairs_of_this_machine(run, groups).filter_map(|pair| table(pair, view)).collect()
}

fn table([here, guest]: [&Group; 2], view: &View) -> Option<Table> {
    let traced = rows(guest);
    let model = guest.model(view);
    let row = |MeasuredRow { name, measured, .. }: MeasuredRow| {
        let driver: Measured = measured.ok()?;
        let traced = traced.iter().find(|row| row.name == name)?.measured.ok()?;
        let found = beside(&driver.point().records, model, &traced.point().records)?;
        let differs = found.differs.map_or_else(
            || ["the same records".to_owned(), String::new()],
            |[a, b]| {
                let row = found.own.saturating_add(found.same);
                [format!("#{row:02} {}", listing::ends(a)), listing::ends(b)]
            },
        );
        let counts = [found.own, found.same].map(|count| count.to_string());
        Some([vec![name], counts.to_vec(), differs.to_vec()].concat())
    };
    let header = ["mechanism", "driver's own", "the same", "first that differs", "in the guest"];
    let notes =
        ["From the newest record on, with `any`. Behind the driver's own records, which no trace \
         has, each row is compared by symbol and offset of both ends."
            .to_owned()];
    let caption = format!(
        "Branch records of this machine ({}) beside {} ({model})",
        here.kernel, guest.kernel
    );
    Table::new(caption, header, rows(here).into_iter().filter_map(row)).noted(notes).if_filled()
}
