// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as plain text for a terminal or a file. The layout also cleans foreign text.

use super::{
    comparison::{NOT_COMPARED, OfSeries, Verdicts, WHAT_CHANGED},
    content::{Document, PUBLISHED},
    findings::FINDINGS,
    outcomes::{Outcomes, WORSE, and_more},
    paragraph::wrapped,
    parts::Listing,
    view::View,
};
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, ContentLineStyle, LineStyle, TableStyle,
    Width,
};
use tramplab_model::table::Table;
use tramplab_model::{
    run::Run,
    text::{counted, line, plain},
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

/// Renders a run. That of a series is brief, unless the view asks for more.
pub fn render(run: &Run, view: &View, style: Style) -> String {
    let document = Document::new(run, view);
    if document.series.is_empty() || view.is_full() {
        whole(&document, style)
    } else {
        brief(&document, style)
    }
}

fn whole(document: &Document, style: Style) -> String {
    let (last, first) = published(document.about.clone());
    let mut out = style.bold(&line(&document.heading)) + "\n";
    out += &pairs(&first, style);
    for series in &document.series {
        out += &format!("\n{}{}", verdict(&series.whole, style), findings(&series.whole, style));
        for table in &series.walk {
            out += &format!("\n{}", styled(table, style));
        }
        out += &shown(&series.whole, style);
    }
    for section in &document.sections {
        out += &format!("\n{}\n", style.bold(&line(&section.heading)));
        out += &pairs(&section.about, style);
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
    out + &pairs(&last, style)
}

type Pairs = Vec<(&'static str, String)>;

/// Those of published numbers, which are the last word, and the others.
fn published(about: Pairs) -> (Pairs, Pairs) {
    about.into_iter().partition(|(name, _)| *name == PUBLISHED)
}

/// The first screen of a series' report. What one configuration has in common with the first is
/// not repeated.
fn brief(document: &Document, style: Style) -> String {
    let (last, mut about) = published(document.about_series());
    let (_, suite) = about.remove(0);
    let heading = format!("{}, suite {suite}", document.heading);
    let mut out = style.bold(&line(&heading)) + "\n" + &pairs(&about, style);
    for (at, OfSeries { whole, walk }) in document.series.iter().enumerate() {
        let same = document.series[..at].iter().map(|before| &before.whole);
        let mut same = same.filter(|before| {
            (&before.findings, &before.changed) == (&whole.findings, &whole.changed)
        });
        out += &format!("\n{}", verdict(whole, style));
        match same.next().filter(|_| !whole.findings.is_empty()) {
            Some(before) => out += &format!("  as {}\n", line(&before.heading)),
            None => {
                let patches = walk.first().map(|table| format!("\n{}", styled(table, style)));
                out.extend(patches);
                out +=
                    &(findings(whole, style) + &changed(whole, style) + &unmatched(whole, style));
            }
        }
    }
    let mut brief = document.outcomes.clone();
    let worse = and_more(&brief.worse);
    brief.worse = [worse].into_iter().filter(|cells| !cells.is_empty()).collect();
    for (reason, cells) in brief.skips.iter_mut().chain(&mut brief.allowed) {
        *reason = format!("{}: {reason}", counted(cells.len(), "cell"));
        cells.clear();
    }
    out += &format!("\n{}; {REST}\n", outcomes(&brief, style).trim_end());
    out + &pairs(&last, style)
}

/// Where a brief report's reader finds more.
const REST: &str = "--listing shows all tables and branch records";
/// Changed tests that a brief report names.
const CHANGED: usize = 12;

fn changed(verdicts: &Verdicts, style: Style) -> String {
    let Verdicts { changed, .. } = verdicts;
    if changed.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", style.bold(WHAT_CHANGED));
    let shown = changed.iter().take(CHANGED);
    out.extend(shown.map(|test| style.paragraph(test, ["  ", "    "])));
    let more = changed.len().saturating_sub(CHANGED);
    out + &(if more > 0 { format!("  and {more} more\n") } else { String::new() })
}

fn unmatched(verdicts: &Verdicts, style: Style) -> String {
    let table = verdicts.tables.iter().find(|table| table.caption == NOT_COMPARED);
    table.map_or_else(String::new, |table| format!("\n{}", styled(table, style)))
}

fn verdict(verdicts: &Verdicts, style: Style) -> String {
    let although = style.yellow("compared although");
    let overlooked = verdicts.overlooked.iter();
    let overlooked = overlooked.map(|why| format!("  {although} {}\n", line(why)));
    let head = format!("{}\n  {}\n", style.bold(&line(&verdicts.heading)), line(&verdicts.summary));
    head + &overlooked.collect::<String>()
}

/// Renders a comparison alone: with all tables and records, or briefly.
pub fn render_verdicts(verdicts: &Verdicts, is_full: bool, style: Style) -> String {
    let more = match is_full {
        true => shown(verdicts, style),
        false => {
            format!("{}{}\n{REST}\n", changed(verdicts, style), unmatched(verdicts, style))
        }
    };
    verdict(verdicts, style) + &findings(verdicts, style) + &more
}

fn findings(verdicts: &Verdicts, style: Style) -> String {
    let mut out = String::new();
    for (index, told) in verdicts.findings.iter().enumerate() {
        let title = if index == 0 { style.bold(FINDINGS) + "\n" } else { String::new() };
        let lines = told.lines();
        let (head, rest) = lines.split_first().expect("a verdict");
        let head = style.paragraph(head, ["  ", "    "]);
        let coloured = style.verdict(told.verdict);
        out += &format!(
            "{}{title}{}",
            if index == 0 { "\n" } else { "" },
            head.replacen(told.verdict, &coloured, 1)
        );
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

fn pairs(pairs: &[(&'static str, String)], style: Style) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    let [within, indent] = [" ".repeat(width + 3), "  ".to_owned()];
    let pair = |(name, value): &(&str, String)| {
        let name = format!("{name}:");
        // Spaces between name and value are a part of the first indent.
        let first = format!("{indent}{name:width$} ");
        style.paragraph(value, [&first, &within])
    };
    pairs.iter().map(pair).collect()
}

/// Renders a table without colour, in so many columns if it can.
pub(crate) fn within(table: &Table, columns: u16) -> String {
    styled(table, Style { colour: false, width: Some(columns) })
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
    let columns = grid.column_iter_mut().enumerate();
    for (_, column) in columns.filter(|(at, _)| table.is_numeric(*at)) {
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
    if !outcomes.worse.is_empty() {
        out += &format!("{} {WORSE}\n", style.red("fail"));
        out.extend(outcomes.worse.iter().map(|cell| format!("      {}\n", line(cell))));
    }
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
        out += &style.paragraph(&format!("skip {reason}"), ["", "  "]).replacen(
            "skip",
            &style.yellow("skip"),
            1,
        );
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
        let cell = |cell: &str| cell.replacen(cell.trim(), &self.verdict(cell.trim()), 1);
        row.split('|').map(cell).collect::<Vec<_>>().join("|")
    }

    fn verdict(self, word: &str) -> String {
        match word {
            "pass" | "better" => self.green(word),
            "fail" | "error" | "worse" => self.red(word),
            "skip" => self.yellow(word),
            _ => word.to_owned(),
        }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
