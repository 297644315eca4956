// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kselftest`: how programs of other folders of the tree's selftests ended.

use super::{Report, test_progs::subtests};
use tramplab_model::run::{Cell, Measurement};

/// The tables of `test_progs` show them.
pub struct Kselftest;

impl Report for Kselftest {
    fn line(&self, cell: &Cell) -> String {
        let Some(Measurement::Kselftest(test)) = &cell.measurement else { return String::new() };
        subtests(test)
    }
}
