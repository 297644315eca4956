// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table, before it is formatted for a terminal, Markdown or a mail.

/// The first column names the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub caption: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub notes: Vec<String>,
}
