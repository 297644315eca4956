// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of a report.

use tramplab_model::table::Table;

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub heading: String,
    pub about: Vec<(&'static str, String)>,
    pub tables: Vec<Table>,
    pub listings: Vec<Listing>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub caption: String,
    pub text: String,
}
