// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as plain text for a terminal or a file. The layout also cleans foreign text.

use super::{
    comparison::Verdicts, content::Document, findings::FINDINGS, outcomes::Outcomes,
    paragraph::wrapped, parts::Listing, view::View,
};
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, ContentLineStyle, LineStyle, TableStyle,
    Width,
};
use tramplab_model::table::Table;
use tramplab_model::{
    run::Run,
    text::{line, plain},
};

/// One line per row, so that twenty mechanisms fit a screen.
const GRID: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction('|'))
    .header_separator(LineStyle::none().fill('-').junction('+'))
    .content_lines(ContentLineStyle::none().junction('|'));

/// Properties of the terminal. The default fits a file or a pipe.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Headings and verdicts carry ANSI escapes.
    pub colour: bool,
    /// Columns. Wider tables have their cells broken over lines, captions and notes are wrapped.
    pub width: Option<u16>,
}

pub fn render(run: &Run, view: &View, style: Style) -> String {
    let document = Document::new(run, view);
    let mut out = style.bold(&line(&document.heading)) + "\n";
    out += &pairs(&document.about);
    for series in &document.series {
        out += &format!("\n{}", found(&series.whole, style));
        for table in &series.walk {
            out += &format!("\n{}", styled(table, style));
        }
        out += &shown(&series.whole, style);
    }
    for section in &document.sections {
        out += &format!("\n{}\n", style.bold(&line(&section.heading)));
        out += &pairs(&section.about);
        for table in &section.tables {
            out += &format!("\n{}", styled(table, style));
        }
        out.extend(section.listings.iter().map(listing));
    }
    if !document.comparison.is_empty() {
        out += &format!("\n{}\n", style.bold("All kernels"));
    }
    for table in &document.comparison {
        out += &format!("\n{}", styled(table, style));
    }
    out += &format!("\n{}", outcomes(&document.outcomes, style));
    // Print the verdict again at the end, because the first one has scrolled away.
    out.extend(document.series.iter().map(|series| verdict(&series.whole, style)));
    out
}

fn verdict(verdicts: &Verdicts, style: Style) -> String {
    format!("{}\n  {}\n", style.bold(&line(&verdicts.heading)), line(&verdicts.summary))
}

/// Renders a comparison alone.
pub fn render_verdicts(verdicts: &Verdicts, style: Style) -> String {
    found(verdicts, style) + &shown(verdicts, style)
}

/// The verdict and the findings.
fn found(verdicts: &Verdicts, style: Style) -> String {
    let mut out = verdict(verdicts, style);
    let although = style.yellow("compared although");
    out.extend(verdicts.overlooked.iter().map(|why| format!("  {although} {}\n", line(why))));
    for (index, told) in verdicts.findings.iter().enumerate() {
        let title = if index == 0 { style.bold(FINDINGS) + "\n" } else { String::new() };
        let lines = told.lines();
        let (head, rest) = lines.split_first().expect("a verdict");
        out += &format!("\n{title}{}", style.paragraph(head, ["  ", "    "]));
        out.extend(rest.iter().map(|text| style.paragraph(text, ["    ", "      "])));
    }
    out
}

/// The tables and listings.
fn shown(verdicts: &Verdicts, style: Style) -> String {
    let tables = verdicts.tables.iter().map(|table| format!("\n{}", styled(table, style)));
    tables.chain(verdicts.listings.iter().map(listing)).collect()
}

fn listing(listing: &Listing) -> String {
    format!("\n{}\n{}", line(&listing.caption), plain(&listing.text))
}

fn pairs(pairs: &[(&'static str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    pairs
        .iter()
        .map(|(name, value)| format!("  {:width$} {}\n", format!("{name}:"), line(value)))
        .collect()
}

/// Renders a table alone, for a file or a pipe.
pub fn table(table: &Table) -> String {
    styled(table, Style::default())
}

fn styled(table: &Table, style: Style) -> String {
    let caption = style.paragraph(&table.caption, ["", "  "]);
    let notes: String =
        table.notes.iter().map(|note| style.paragraph(note, [" ", "   "])).collect();
    if table.rows.is_empty() {
        return format!("{caption}{notes}");
    }
    let rows: String = laid_out(table, style.width)
        .lines()
        .map(|row| style.verdicts(row.trim_end()) + "\n")
        .collect();
    format!("{caption}{rows}{notes}")
}

/// The widest layout that fits, or the narrowest that there is.
fn laid_out(table: &Table, width: Option<u16>) -> comfy_table::Table {
    let fits = |grid: &comfy_table::Table| {
        let width = width.map_or(usize::MAX, usize::from);
        grid.lines().all(|row| row.trim_end().chars().count() <= width)
    };
    let plain = grid(table);
    let Some(width) = width.filter(|_| !fits(&plain)) else { return plain };
    let tight = fitted(table, width);
    if fits(&tight) {
        return tight;
    }
    let loose = with_loose_ranges(table).map(|table| fitted(&table, width));
    loose.filter(fits).unwrap_or(tight)
}

fn grid(table: &Table) -> comfy_table::Table {
    let mut grid = comfy_table::Table::new();
    // The caller describes the terminal, so that a report is the same text everywhere.
    grid.force_no_tty().load_style(GRID);
    grid.set_content_arrangement(ContentArrangement::Disabled);
    let row = |cells: &Vec<String>| cells.iter().map(|cell| line(cell)).collect::<Vec<_>>();
    grid.set_header(row(&table.header)).add_rows(table.rows.iter().map(row));
    for column in grid.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    grid
}

/// Makes a table as narrow as its values allow: removes padding, and breaks cells and headers over
/// lines. Values break only at spaces, to keep numbers whole. A table of long values therefore
/// stays wider than the terminal.
fn fitted(table: &Table, width: u16) -> comfy_table::Table {
    let mut grid = grid(table);
    grid.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    for (index, column) in grid.column_iter_mut().enumerate() {
        let values = table.rows.iter().filter_map(|row| row.get(index));
        let words =
            values.flat_map(|value| value.split(' ')).map(|word| line(word).chars().count());
        let longest = words.max().unwrap_or_default().max(NARROWEST);
        column.set_padding((0, 0)).set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(
            longest.try_into().unwrap_or(u16::MAX),
        )));
    }
    grid
}

/// Lets `1562.61..1626.22` break before its second number. None if there is no such range.
fn with_loose_ranges(table: &Table) -> Option<Table> {
    let mut table = table.clone();
    let mut is_loose = false;
    for cell in table.rows.iter_mut().flatten() {
        let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
        let ranges: Vec<usize> = cell.match_indices("..").map(|(at, _)| at).collect();
        for at in ranges.into_iter().rev() {
            let (before, after) = (&cell[..at], &cell[at + 2..]);
            if is_digit(before.chars().next_back())
                && is_digit(after.strip_prefix('-').unwrap_or(after).chars().next())
            {
                cell.insert(at + 2, ' ');
                is_loose = true;
            }
        }
    }
    is_loose.then_some(table)
}

/// Minimum width of a column, for headers broken over lines.
const NARROWEST: usize = 4;

/// Console lines that fit a terminal. `run.json`, `report.md` and the console's log have more.
const CONSOLE_LINES: usize = 12;

fn outcomes(outcomes: &Outcomes, style: Style) -> String {
    let mut out = String::new();
    for (cell, reasons) in &outcomes.failures {
        out += &format!("{} {}\n", style.red("fail"), line(cell));
        out.extend(reasons.iter().map(|reason| format!("      {}\n", line(reason))));
    }
    for failed in &outcomes.errors {
        out += &format!(
            "{} {}\n      {}\n",
            style.red("error"),
            line(&failed.heading()),
            line(&failed.message)
        );
        let skipped = failed.console.len().saturating_sub(CONSOLE_LINES);
        if skipped > 0 {
            out += &format!("      | … {skipped} more before: report.md\n");
        }
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
    for (warning, cells) in &outcomes.allowed {
        out += &format!("{} {}\n", style.yellow("allowed"), line(warning));
        out.extend(cells.iter().map(|cell| format!("      {}\n", line(cell))));
    }
    out.extend(outcomes.lacks.iter().map(|said| format!("{}\n", line(said))));
    out + &style.bold(&line(&outcomes.summary)) + "\n"
}

impl Style {
    /// Text behind the indents of its first line and of the others.
    fn paragraph(self, text: &str, [first, others]: [&str; 2]) -> String {
        match self.width {
            Some(width) => {
                let indent = |number, _: &str| if number == 0 { first } else { others };
                wrapped(text, width.into(), indent)
            }
            None => format!("{first}{}\n", line(text)),
        }
    }

    fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Colours the cells of a row that are outcomes or verdicts.
    fn verdicts(self, row: &str) -> String {
        let cell = |cell: &str| {
            let coloured = match cell.trim() {
                "pass" | "better" => self.green(cell.trim()),
                "fail" | "error" | "worse" => self.red(cell.trim()),
                "skip" => self.yellow(cell.trim()),
                _ => return cell.to_owned(),
            };
            cell.replacen(cell.trim(), &coloured, 1)
        };
        row.split('|').map(cell).collect::<Vec<_>>().join("|")
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
