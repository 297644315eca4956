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

impl Table {
    pub fn new(
        caption: impl Into<String>,
        header: impl IntoIterator<Item: Into<String>>,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Table {
        Table {
            caption: caption.into(),
            header: header.into_iter().map(Into::into).collect(),
            rows: rows.into_iter().collect(),
            notes: Vec::new(),
        }
    }

    pub fn noted(self, notes: impl IntoIterator<Item: Into<String>>) -> Table {
        Table { notes: notes.into_iter().map(Into::into).collect(), ..self }
    }

    /// None without a row.
    pub fn if_filled(self) -> Option<Table> {
        (!self.rows.is_empty()).then_some(self)
    }

    /// True for a column of numbers, which are aligned by their ends. The first column has names.
    pub fn is_numeric(&self, column: usize) -> bool {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        column > 0 && cells.filter(|cell| !cell.is_empty()).all(|cell| is_number(cell))
    }
}

/// True for a number, a share, a range, and for the words that stand for none.
fn is_number(cell: &str) -> bool {
    let is_word = matches!(cell, "-" | "=" | "skip" | "error" | "fail");
    is_word
        || cell
            .trim_start_matches(['-', '+', '~', '<', '≤', '≈', ' '])
            .starts_with(|c: char| c.is_ascii_digit())
}
