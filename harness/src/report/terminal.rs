// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report for a terminal, or for a file: plain text. All that others chose is cleaned here, as it is laid out.

use super::{
    comparison::Verdicts,
    content::{Document, Listing, Outcomes, Table, View},
};
use crate::{
    run::Run,
    text::{line, plain},
};
use comfy_table::{CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, TableStyle};

/// One line per row: twenty mechanisms fit a screen.
const GRID: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction('|'))
    .header_separator(LineStyle::none().fill('-').junction('+'))
    .content_lines(ContentLineStyle::none().junction('|'));

/// With `colour`, headings and verdicts carry ANSI escapes; whether the terminal wants them, the caller knows.
pub fn render(run: &Run, view: &View, colour: bool) -> String {
    let document = Document::new(run, view);
    let style = Style { colour };
    let mut out = style.bold(&line(&document.heading)) + "\n";
    out += &pairs(&document.about);
    for series in &document.series {
        for table in &series.walk {
            out += &format!("\n{}", self::table(table));
        }
        out += &format!("\n{}", verdicts(&series.whole, style));
    }
    for section in &document.sections {
        out += &format!("\n{}\n", style.bold(&line(&section.heading)));
        out += &pairs(&section.about);
        for table in &section.tables {
            out += &format!("\n{}", self::table(table));
        }
        out.extend(section.listings.iter().map(listing));
    }
    if !document.comparison.is_empty() {
        out += &format!("\n{}\n", style.bold("All kernels"));
    }
    for table in &document.comparison {
        out += &format!("\n{}", self::table(table));
    }
    out += &format!("\n{}", outcomes(&document.outcomes, style));
    out
}

/// A comparison alone.
pub fn render_verdicts(verdicts: &Verdicts, colour: bool) -> String {
    self::verdicts(verdicts, Style { colour })
}

fn verdicts(verdicts: &Verdicts, style: Style) -> String {
    let mut out = format!("{}\n  {}\n", style.bold(&line(&verdicts.heading)), line(&verdicts.summary));
    let although = style.yellow("compared although");
    out.extend(verdicts.overlooked.iter().map(|why| format!("  {although} {}\n", line(why))));
    for table in &verdicts.tables {
        out += &format!("\n{}", self::table(table));
    }
    out.extend(verdicts.listings.iter().map(listing));
    out
}

fn listing(listing: &Listing) -> String {
    format!("\n{}\n{}", line(&listing.caption), plain(&listing.text))
}

fn pairs(pairs: &[(&'static str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    pairs.iter().map(|(name, value)| format!("  {:width$} {}\n", format!("{name}:"), line(value))).collect()
}

/// A table alone.
pub fn table(table: &Table) -> String {
    let mut grid = comfy_table::Table::new();
    // Neither the width nor the kind of the terminal may change what a report says.
    grid.force_no_tty().set_content_arrangement(ContentArrangement::Disabled).load_style(GRID);
    let row = |cells: &Vec<String>| cells.iter().map(|cell| line(cell)).collect::<Vec<_>>();
    grid.set_header(row(&table.header)).add_rows(table.rows.iter().map(row));
    for column in grid.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let rows: String = grid.lines().map(|row| row.trim_end().to_owned() + "\n").collect();
    let notes: String = table.notes.iter().map(|note| format!(" {}\n", line(note))).collect();
    format!("{}\n{rows}{notes}", line(&table.caption))
}

/// Of the last console lines, how many fit a terminal; `run.json` and the console's own log have more.
const CONSOLE_LINES: usize = 12;

fn outcomes(outcomes: &Outcomes, style: Style) -> String {
    let mut out = style.bold(&line(&outcomes.summary)) + "\n";
    out.extend(outcomes.lacks.iter().map(|said| format!("{}\n", line(said))));
    for (cell, reasons) in &outcomes.failures {
        out += &format!("{} {}\n", style.red("fail"), line(cell));
        out.extend(reasons.iter().map(|reason| format!("      {}\n", line(reason))));
    }
    for failed in &outcomes.errors {
        out += &format!("{} {}\n      {}\n", style.red("error"), line(&failed.cell), line(&failed.message));
        let skipped = failed.console.len().saturating_sub(CONSOLE_LINES);
        out.extend(
            failed.console[skipped..]
                .iter()
                .map(|said| format!("      | {}", line(said)).trim_end().to_owned() + "\n"),
        );
    }
    for (reason, cells) in &outcomes.skips {
        out += &format!("{} {}\n", style.yellow("skip"), line(reason));
        out.extend(cells.iter().map(|cell| format!("      {}\n", line(cell))));
    }
    out
}

#[derive(Clone, Copy)]
struct Style {
    colour: bool,
}

impl Style {
    fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
