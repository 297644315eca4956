// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of test: a cell's line, and the tables and listings of a kernel and of a comparison. A file for each kind.

mod attach;
mod bench;
mod boot;
mod kselftest;
mod lbr_waste;
mod test_progs;
mod trigger;

use crate::{
    content::{Listing, View},
    group::Group,
};
use strum::EnumCount;
use tramplab_analysis::compare::Comparison;
use tramplab_model::{
    kinds::Kind,
    run::{Cell, Run},
    table::Table,
};

/// What a report says of a kind. A method that is left out says nothing.
pub trait Report {
    /// What a cell that passed measured, in a line.
    fn line(&self, _cell: &Cell) -> String {
        String::new()
    }

    /// One kernel's cells.
    fn tables(&self, _run: &Run, _group: &Group, _view: &View) -> Vec<Table> {
        Vec::new()
    }

    /// One kernel's records, where listings are asked for.
    fn listings(&self, _group: &Group, _view: &View) -> Vec<Listing> {
        Vec::new()
    }

    /// Kernels side by side.
    fn by_kernel(&self, _groups: &[Group], _view: &View) -> Vec<Table> {
        Vec::new()
    }

    /// Base against head.
    fn compared(&self, _comparison: &Comparison) -> Vec<Table> {
        Vec::new()
    }
}

/// In the order of a report's tables.
const ORDER: [Kind; Kind::COUNT] = [
    Kind::LbrWaste,
    Kind::Trigger,
    Kind::Attach,
    Kind::Bench,
    Kind::TestProgs,
    Kind::Kselftest,
    Kind::Boot,
    Kind::Build,
    Kind::Fault,
];

pub fn all() -> impl Iterator<Item = &'static dyn Report> {
    ORDER.into_iter().map(of)
}

pub fn of(kind: Kind) -> &'static dyn Report {
    match kind {
        Kind::LbrWaste => &lbr_waste::Waste,
        Kind::Attach => &attach::Attaching,
        Kind::Trigger => &trigger::Hit,
        Kind::Bench => &bench::Benchmark,
        Kind::TestProgs => &test_progs::TestProgs,
        Kind::Kselftest => &kselftest::Kselftest,
        Kind::Boot => &boot::Boot,
        Kind::Build | Kind::Fault => &Nothing,
    }
}

struct Nothing;

impl Report for Nothing {}
