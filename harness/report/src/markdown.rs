// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as GitHub Markdown, for cover letters, comments and step summaries.

use super::{
    comparison::{Verdicts, WHAT_CHANGED},
    content::Document,
    findings,
    outcomes::{Outcomes, WORSE},
    view::View,
};
use tramplab_model::table::Table;
use tramplab_model::{
    run::Run,
    text::{line, plain},
};

pub fn render(run: &Run, view: &View) -> String {
    let document = Document::new(run, view);
    let mut out = format!("# {}\n\n{}", text(&document.heading), pairs(&document.about));
    for series in &document.series {
        out += &format!("\n{}", found(&series.whole));
        for table in &series.walk {
            out += &format!("\n{}", self::table(table));
        }
        out += &shown(&series.whole);
    }
    out += &format!("\n{}", outcomes(&document.outcomes));
    if !document.comparison.is_empty() {
        out += "\n## All kernels\n";
    }
    for table in &document.comparison {
        out += &format!("\n{}", self::table(table));
    }
    for section in &document.sections {
        out += &format!("\n## {}\n\n{}", text(&section.heading), pairs(&section.about));
        for table in &section.tables {
            out += &format!("\n{}", self::table(table));
        }
        for listing in &section.listings {
            out += &format!("\n{}", details(&listing.caption, &listing.text));
        }
    }
    out
}

/// Lines of a brief report.
const BRIEF: usize = 150;

/// Renders a short report of a series: the verdict, the changes, the failures. `rest` names the
/// file with the whole report.
pub fn brief(run: &Run, view: &View, rest: &str) -> String {
    let document = Document::new(run, view);
    let mut brief = Brief { text: String::new(), room: BRIEF - 4, left_out: 0 };
    brief.add(format!("# {}\n\n{}", text(&document.heading), pairs(&document.about)));
    for series in &document.series {
        brief.add(format!("\n{}", verdict(&series.whole)));
    }
    let Outcomes { failures, errors, skips, allowed, .. } = &document.outcomes;
    brief.add(format!("\n{}", counts(&document.outcomes)));
    for series in &document.series {
        let first = findings::table(&series.whole.findings);
        first.iter().for_each(|shown| brief.add(format!("\n{}", cut(shown))));
        let changed = series.whole.tables.iter().filter(|table| table.caption == WHAT_CHANGED);
        changed.chain(&series.walk).for_each(|shown| brief.add(format!("\n{}", cut(shown))));
    }
    brief.add(outcomes_of(|only| only.worse.clone_from(&document.outcomes.worse)));
    for failure in failures {
        brief.add(outcomes_of(|only| only.failures.push(failure.clone())));
    }
    for error in errors {
        brief.add(outcomes_of(|only| only.errors.push(error.clone())));
    }
    for skip in skips {
        brief.add(outcomes_of(|only| only.skips.push(skip.clone())));
    }
    for warning in allowed {
        brief.add(outcomes_of(|only| only.allowed.push(warning.clone())));
    }
    for listing in document.series.iter().flat_map(|series| &series.whole.listings) {
        brief.add(format!("\n{}", details(&listing.caption, &listing.text)));
    }
    let Brief { text, left_out, .. } = brief;
    let left_out =
        if left_out > 0 { format!("{left_out} more parts, and all") } else { "All".to_owned() };
    format!("{text}\n{left_out} tables and listings: `{rest}`.\n")
}

/// A text with a limit of lines.
struct Brief {
    text: String,
    room: usize,
    left_out: usize,
}

impl Brief {
    /// Adds a part whole or not at all.
    fn add(&mut self, part: String) {
        let lines = part.lines().count();
        if lines > self.room {
            self.left_out += 1;
            return;
        }
        self.room -= lines;
        self.text += &part;
    }
}

/// Cuts a table to leave room for other parts.
fn cut(whole: &Table) -> String {
    const ROWS: usize = 50;
    let mut shown = whole.clone();
    let more = shown.rows.len().saturating_sub(ROWS);
    shown.rows.truncate(ROWS);
    shown.notes.extend((more > 0).then(|| format!("And {more} more.")));
    table(&shown)
}

fn outcomes_of(fill: impl FnOnce(&mut Outcomes)) -> String {
    let mut only = Outcomes::default();
    fill(&mut only);
    endings(&only)
}

fn verdict(verdicts: &Verdicts) -> String {
    let mut out = format!("## {}\n\n**{}**\n", text(&verdicts.heading), text(&verdicts.summary));
    out.extend(
        verdicts.overlooked.iter().map(|why| format!("\n- compared although {}\n", text(why))),
    );
    out
}

/// Renders a comparison alone, for a cover letter.
pub fn render_verdicts(verdicts: &Verdicts) -> String {
    found(verdicts) + &shown(verdicts)
}

/// The verdict and the findings.
fn found(verdicts: &Verdicts) -> String {
    let findings = findings::table(&verdicts.findings);
    let findings = findings.map_or_else(String::new, |found| format!("\n{}", table(&found)));
    verdict(verdicts) + &findings
}

/// The tables and listings.
fn shown(verdicts: &Verdicts) -> String {
    let mut out = String::new();
    for table in &verdicts.tables {
        out += &format!("\n{}", self::table(table));
    }
    for listing in &verdicts.listings {
        out += &format!("\n{}", details(&listing.caption, &listing.text));
    }
    out
}

fn pairs(pairs: &[(&'static str, String)]) -> String {
    pairs.iter().map(|(name, value)| format!("- {name}: {}\n", text(value))).collect()
}

/// Renders a table alone.
pub fn table(table: &Table) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = format!("### {}\n\n", text(&table.caption));
    if !table.rows.is_empty() {
        out += &row(table.header.iter().map(|cell| text(cell)).collect());
        out += &row((0..table.header.len())
            .map(|column| if table.is_numeric(column) { "---:" } else { "---" }.to_owned())
            .collect());
    }
    out.extend(table.rows.iter().map(|cells| row(cells.iter().map(|cell| text(cell)).collect())));
    if !table.notes.is_empty() {
        out.push('\n');
        out.extend(table.notes.iter().map(|note| format!("{}\n", paragraph(note))));
    }
    out
}

fn outcomes(outcomes: &Outcomes) -> String {
    counts(outcomes) + &endings(outcomes)
}

fn counts(outcomes: &Outcomes) -> String {
    let mut out = format!("**{}**\n", text(&outcomes.summary));
    out.extend(outcomes.lacks.iter().map(|said| format!("\n{}\n", paragraph(said))));
    out
}

/// Lists the cells that did not pass.
fn endings(outcomes: &Outcomes) -> String {
    let mut out = String::new();
    if !outcomes.worse.is_empty() {
        out += &format!("\n- fail: {WORSE}\n");
        out.extend(outcomes.worse.iter().map(|cell| format!("  - {}\n", cell_name(cell))));
    }
    for (cell, reasons) in &outcomes.failures {
        out += &format!("\n- fail: {}\n", cell_name(cell));
        out.extend(reasons.iter().map(|reason| format!("  - {}\n", paragraph(reason))));
    }
    for failed in &outcomes.errors {
        let [first, rest @ ..] = &failed.cells[..] else { continue };
        let more =
            if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        out += &format!("\n- error: {}{more}: {}\n", cell_name(first), text(&failed.message));
        if !rest.is_empty() {
            out += &format!("\n{}", details(&format!("The {} more", rest.len()), &rest.join("\n")));
        }
        if !failed.console.is_empty() {
            out +=
                &format!("\n{}", details("Last lines of the console", &failed.console.join("\n")));
        }
    }
    for (reason, cells) in &outcomes.skips {
        let caption = format!("{} skipped: {reason}", cells.len());
        out += &format!("\n{}", details(&caption, &cells.join("\n")));
    }
    for (warning, cells) in &outcomes.allowed {
        let caption = format!("{} with an allowed warning: {warning}", cells.len());
        out += &format!("\n{}", details(&caption, &cells.join("\n")));
    }
    out
}

fn cell_name(cell: &str) -> String {
    code(&line(cell))
}

/// Renders a folded part.
fn details(caption: &str, body: &str) -> String {
    let caption = words(&line(caption), html, |word| format!("<code>{}</code>", html(word)));
    format!("<details><summary>{caption}</summary>\n\n{}\n</details>\n", fenced(body.trim_end()))
}

/// Renders a block of code. Its fence is longer than any in the text.
pub fn fenced(body: &str) -> String {
    let body = plain(body);
    let fence = "`".repeat(3.max(longest_run(&body) + 1));
    let end = if body.ends_with('\n') { "" } else { "\n" };
    format!("{fence}\n{body}{end}{fence}\n")
}

/// Returns the length of the longest run of backticks.
fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// Escapes text for a line or a table's cell, so that no part of it is mark-up.
///
/// GitHub looks for mentions, issues, URLs, emoji and formulas after it has read the Markdown, when
/// backslashes and entities no longer protect the text. A mention sends a mail to a person. GitHub
/// only leaves code alone, so a word with one of these is written as code. Hashes of commits stay:
/// a link to a commit is harmless.
pub fn text(text: &str) -> String {
    words(&line(text), escaped, code)
}

/// Escapes text at the start of a block, so that the block is a paragraph.
fn paragraph(text: &str) -> String {
    let text = self::text(text.trim_start());
    // The mark of a list, or the line under a heading or a table's header.
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let mark = |c: char| matches!(c, '-' | '+' | '=' | ':' | ' ');
    let is_line = text.starts_with(['-', '=', ':', '+']) && text.chars().all(mark);
    let is_item = |at: usize, marks: [char; 2]| {
        let rest = text[at..].strip_prefix(marks);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    match digits {
        0 if is_line || is_item(0, ['-', '+']) => format!("\\{text}"),
        1.. if is_item(digits, ['.', ')']) => format!("{}\\{}", &text[..digits], &text[digits..]),
        _ => text,
    }
}

/// Escapes each word, or writes it as code. Bars separate words too: in a table a bar ends a cell
/// even in code.
fn words(line: &str, written: fn(&str) -> String, code: fn(&str) -> String) -> String {
    let parts = line.split_inclusive([' ', '|']).map(|part| {
        let word = part.trim_end_matches([' ', '|']);
        let word_as_it_is_written = if is_linked(word) { code(word) } else { written(word) };
        word_as_it_is_written + &written(&part[word.len()..])
    });
    parts.collect()
}

/// Tells if GitHub turns a word into a link, emoji or formula.
fn is_linked(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let number = |mark: &str| {
        let mut after = word.match_indices(mark).map(|(at, _)| &word[at + mark.len()..]);
        after.any(|rest| rest.starts_with(|c: char| c.is_ascii_digit() && c != '0'))
    };
    // Times and places in files are not emoji. Only two emoji have names made of digits.
    let is_emoji = |part: &str| {
        let of_emoji = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-');
        let is_number = part.chars().all(|c| c.is_ascii_digit());
        part.chars().all(of_emoji) && (!is_number || ["100", "1234"].contains(&part))
    };
    let mentions = word.trim_end_matches('@').contains('@');
    // Between two colons: neither the first part nor the last.
    let mut between = word.split(':').skip(1).collect::<Vec<_>>();
    between.pop();
    mentions
        || word.contains('$')
        || ["://", "www."].iter().any(|start| word.contains(start))
        || ["#", "gh-"].into_iter().any(number)
        || between.into_iter().any(is_emoji)
}

/// Writes a word as code. A space, which is not shown, separates a backtick at either end from the
/// fence.
fn code(word: &str) -> String {
    let fence = "`".repeat(longest_run(word) + 1);
    let space = if word.starts_with('`') || word.ends_with('`') { " " } else { "" };
    format!("{fence}{space}{word}{space}{fence}")
}

fn html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Escapes mark-up in a word. An underscore inside a word is not mark-up, nor is `!` before an
/// escaped bracket.
fn escaped(word: &str) -> String {
    let word = html(word);
    let inside = |at: usize| {
        let is_letter = |c: char| c.is_alphanumeric();
        word[..at].ends_with(is_letter) && word[at + 1..].starts_with(is_letter)
    };
    word.char_indices().fold(String::new(), |mut out, (at, c)| {
        let marks =
            matches!(c, '|' | '*' | '`' | '\\' | '[' | ']' | '#' | '~') || c == '_' && !inside(at);
        out.extend(marks.then_some('\\'));
        out.push(c);
        out
    })
}
