// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of test: a cell's line, and the tables and listings of a kernel and of a comparison.
//! Each kind has a file.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

pub mod attach;
mod bench;
mod boot;
mod kselftest;
pub mod lbr_waste;
mod survive;
mod test_progs;
pub mod trigger;

use crate::{group::Group, parts::Listing, view::View};
use strum::EnumCount;
use tramplab_analysis::compare::Comparison;
use tramplab_model::{
    kinds::Kind,
    run::{Cell, Run},
    table::Table,
};

/// The parts of reports on a kind. A method that is left out adds nothing.
pub trait Report {
    /// The measurement of a cell that passed, in a line.
    fn line(&self, _cell: &Cell) -> String {
        String::new()
    }

    /// Tables of one kernel's cells.
    fn tables(&self, _run: &Run, _group: &Group, _view: &View) -> Vec<Table> {
        Vec::new()
    }

    /// Records of one kernel's cells, if the view asks for listings.
    fn listings(&self, _group: &Group, _view: &View) -> Vec<Listing> {
        Vec::new()
    }

    /// Tables with a column for each kernel.
    fn by_kernel(&self, _run: &Run, _groups: &[Group], _view: &View) -> Vec<Table> {
        Vec::new()
    }

    /// Tables of base against head.
    fn compared(&self, _comparison: &Comparison) -> Vec<Table> {
        Vec::new()
    }
}

/// The order of a report's tables.
pub const ORDER: [Kind; Kind::COUNT] = [
    Kind::LbrWaste,
    Kind::Trigger,
    Kind::Attach,
    Kind::Bench,
    Kind::TestProgs,
    Kind::Kselftest,
    Kind::Survive,
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
        Kind::Survive => &survive::Storms,
        Kind::Boot => &boot::Boot,
        Kind::Build | Kind::Fault => &Nothing,
    }
}

struct Nothing;

impl Report for Nothing {}
