// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page as data, which the templates in `templates/` lay out. All its texts are cleaned and
//! bounded; the templates escape them.

use super::{
    plot::{
        Figure, Plot, WIDTH, bars, course,
        flame::{FRAME, Flame},
        growth, times,
    },
    records::Records,
    rings::Rings,
    room::{self, first, shown},
    style::Frame,
};
use askama::Template;
use tramplab_analysis::verdict::Verdict;
use tramplab_model::{table::Table, text};

#[derive(Template)]
#[template(path = "report.html")]
pub struct Page {
    pub frame: Frame,
    pub sentence: String,
    pub verdict: Verdict,
    /// `12 cells: 9 pass, …`.
    pub summary: String,
    /// Missing parts of the run.
    pub lacks: Vec<String>,
    pub about: Vec<(String, String)>,
    pub rings: Vec<Rings>,
    pub changes: Vec<Changes>,
    pub switches: Option<Switches>,
    pub chapters: Vec<Chapter>,
    pub endings: Endings,
    /// Parts that found no room.
    pub left_out: usize,
}

impl Page {
    /// The verdict's word. The command's exit code says the same.
    fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Pass => "Passed",
            Verdict::Fail => "Failed",
            Verdict::NoMeasurement => "Not measured",
            Verdict::Interrupted => "Interrupted",
        }
    }

    fn class(&self) -> &'static str {
        match self.verdict {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::NoMeasurement | Verdict::Interrupted => "error",
        }
    }
}

/// The controls of the page.
pub struct Switches {
    pub models: Vec<Choice>,
    pub filters: Vec<Choice>,
    pub depths: Vec<Choice>,
}

pub struct Choice {
    pub value: String,
    pub chosen: bool,
}

/// A series on one architecture.
pub struct Changes {
    pub heading: String,
    /// By model: models that judge the same share one.
    pub judged: Vec<Judged>,
    /// How each patch fared.
    pub walk: Vec<Grid>,
    /// The metrics that changed, patch by patch.
    pub walked: Vec<Grid>,
}

impl Changes {
    fn is_told(&self) -> bool {
        self.judged.iter().any(|judged| !judged.findings.is_empty())
    }
}

pub struct Judged {
    pub models: String,
    pub hidden: bool,
    pub summary: String,
    pub overlooked: Vec<String>,
    pub findings: Vec<Finding>,
    pub tables: Vec<Grid>,
}

/// A cause and all that it moves.
pub struct Finding {
    pub verdict: &'static str,
    pub patch: String,
    pub causes: Vec<String>,
    pub moved: Vec<String>,
}

impl Finding {
    pub fn size(&self) -> usize {
        let text = |text: &String| 30 + room::size(text);
        let texts = self.causes.iter().chain(&self.moved);
        300 + room::size(&self.patch) + texts.map(text).sum::<usize>()
    }
}

/// All about one kind of test.
pub struct Chapter {
    pub id: &'static str,
    pub title: &'static str,
    /// The reader's choices change it.
    pub switched: bool,
    pub figures: Vec<Figure>,
    pub flames: Vec<Flame>,
    pub parts: Vec<Part>,
    pub listings: Vec<Listed>,
}

/// One kernel's tables, or those of several side by side.
pub struct Part {
    pub heading: String,
    pub about: Vec<(String, String)>,
    pub open: bool,
    /// By model.
    pub blocks: Vec<Block>,
}

pub struct Block {
    pub models: String,
    pub hidden: bool,
    pub tables: Vec<Grid>,
}

/// The listings of one kernel, or of base and head.
pub struct Listed {
    pub heading: String,
    pub records: Vec<Records>,
}

impl Chapter {
    fn is_paired(&self) -> bool {
        self.listings.iter().flat_map(|listed| &listed.records).any(|records| records.paired)
    }
}

/// The cells that did not pass, and those with a warning.
pub struct Endings {
    pub failures: Vec<(String, Vec<String>)>,
    pub more_failures: usize,
    pub errors: Vec<Failed>,
    pub more_errors: usize,
    /// Cells by a line that counts them and has their reason.
    pub skips: Vec<(String, Vec<String>)>,
    pub allowed: Vec<(String, Vec<String>)>,
}

impl Endings {
    fn is_empty(&self) -> bool {
        let Endings { failures, errors, skips, allowed, .. } = self;
        failures.is_empty() && errors.is_empty() && skips.is_empty() && allowed.is_empty()
    }
}

pub struct Failed {
    pub heading: String,
    pub message: String,
    pub others: Vec<String>,
    /// The console's last lines.
    pub console: String,
}

/// A table.
#[derive(Clone, PartialEq, Eq)]
pub struct Grid {
    pub caption: String,
    pub header: Vec<Head>,
    pub rows: Vec<Vec<Field>>,
    pub notes: Vec<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Head {
    pub text: String,
    pub number: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Field {
    pub text: String,
    /// The class in the style sheet.
    pub class: &'static str,
}

/// Rows and columns of a table.
const ROWS: usize = 1000;
const COLUMNS: usize = 40;
const NOTES: usize = 50;
/// Longer texts are broken into lines.
const LONG: usize = 60;

impl Grid {
    pub fn new(table: Table) -> Grid {
        let columns = 0..table.header.len();
        let numbers: Vec<bool> = columns.map(|column| table.is_numeric(column)).collect();
        let Table { caption, header, rows, notes } = table;
        let (rows, more_rows) = first(rows, ROWS);
        let (header, more_columns) = first(header, COLUMNS);
        let (notes, more_notes) = first(notes, NOTES);
        let head =
            |(column, text): (usize, String)| Head { text: shown(&text), number: numbers[column] };
        let field = |(column, text): (usize, &String)| Field {
            text: shown(text),
            class: class(text, numbers[column]),
        };
        let rows = rows.iter().map(|row| row.iter().take(COLUMNS).enumerate().map(field).collect());
        let rows = rows.collect();
        let more = |count: usize, noun: &str| {
            (count > 0).then(|| format!("And {}.", text::counted(count, noun)))
        };
        Grid {
            caption: shown(&caption),
            header: header.into_iter().enumerate().map(head).collect(),
            rows,
            notes: notes
                .iter()
                .map(|note| shown(note))
                .chain(more(more_rows, "more row"))
                .chain(more(more_columns, "more column"))
                .chain(more(more_notes, "more note"))
                .collect(),
        }
    }

    pub fn size(&self) -> usize {
        let field = |field: &Field| 20 + room::size(&field.text);
        let row = |row: &Vec<Field>| 20 + row.iter().map(field).sum::<usize>();
        let head = self.header.iter().map(|head| 40 + room::size(&head.text)).sum::<usize>();
        let notes = self.notes.iter().map(|note| 20 + room::size(note)).sum::<usize>();
        200 + room::size(&self.caption) + head + notes + self.rows.iter().map(row).sum::<usize>()
    }
}

fn class(cell: &str, number: bool) -> &'static str {
    match cell {
        "better" => "better",
        "worse" | "WORSE" | "fail" | "error" => "worse",
        "skip" | "-" | "same" if number => "quiet n",
        "skip" | "-" | "same" => "quiet",
        _ if number => "n",
        _ if cell.chars().nth(LONG).is_some() => "long",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[&str]]) -> Grid {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        let header = rows[0].iter().map(|_| "head".to_owned()).collect();
        Grid::new(Table { caption: "Of".to_owned(), header, rows, notes: Vec::new() })
    }

    #[test]
    fn aligns_columns_of_numbers_and_marks_verdicts() {
        let grid = table(&[
            &["fexit", "12 -> 9", "-3", "better", "x 5"],
            &["10", "7 / 23", "", "worse", "5"],
        ]);
        let numbers: Vec<bool> = grid.header.iter().map(|head| head.number).collect();
        assert_eq!(numbers, [false, true, true, false, false]);
        let classes =
            |row: usize| grid.rows[row].iter().map(|field| field.class).collect::<Vec<_>>();
        assert_eq!(classes(0), ["", "n", "n", "better", ""]);
        assert_eq!(classes(1)[3], "worse");
    }

    #[test]
    fn a_table_has_a_limited_number_of_rows_and_columns() {
        let row = vec!["1"; COLUMNS + 2];
        let grid = table(&vec![&row[..]; ROWS + 5]);
        assert_eq!((grid.rows.len(), grid.rows[0].len()), (ROWS, COLUMNS));
        assert_eq!(grid.header.len(), COLUMNS);
        assert_eq!(grid.notes, ["And 5 more rows.", "And 2 more columns."]);
    }

    #[test]
    fn the_size_of_a_table_covers_its_markup() {
        let grid = table(&[&["<b>\"&'", "1", "better", ""], &["", "", "", ""]]);
        let html = Tables { tables: std::slice::from_ref(&grid) }.render().unwrap();
        assert!(html.len() <= grid.size(), "{} > {}: {html}", html.len(), grid.size());
    }

    #[derive(Template)]
    #[template(path = "tables.html")]
    struct Tables<'a> {
        tables: &'a [Grid],
    }
}
