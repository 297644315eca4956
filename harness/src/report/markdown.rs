// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as GitHub Markdown, for cover letters, comments and step summaries.

use super::{
    comparison::Verdicts,
    content::{Document, Outcomes, Table, View},
};
use crate::run::Run;

pub fn render(run: &Run, view: &View) -> String {
    let document = Document::new(run, view);
    let mut out = format!("# {}\n\n{}", text(&document.heading), pairs(&document.about));
    for series in &document.series {
        for table in &series.walk {
            out += &format!("\n{}", self::table(table));
        }
        out += &format!("\n{}", render_verdicts(&series.whole));
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

/// A comparison alone: what a cover letter needs.
pub fn render_verdicts(verdicts: &Verdicts) -> String {
    let mut out = format!("## {}\n\n**{}**\n", text(&verdicts.heading), text(&verdicts.summary));
    out.extend(verdicts.overlooked.iter().map(|why| format!("\n- compared although {}\n", text(why))));
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

/// A table alone.
pub fn table(table: &Table) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = format!("### {}\n\n", text(&table.caption));
    out += &row(table.header.iter().map(|cell| text(cell)).collect());
    out += &row((0..table.header.len()).map(|i| if i == 0 { "---" } else { "---:" }.to_owned()).collect());
    out.extend(table.rows.iter().map(|cells| row(cells.iter().map(|cell| text(cell)).collect())));
    if !table.notes.is_empty() {
        out.push('\n');
        out.extend(table.notes.iter().map(|note| format!("{}\n", text(note))));
    }
    out
}

fn outcomes(outcomes: &Outcomes) -> String {
    let mut out = format!("**{}**\n", text(&outcomes.summary));
    out.extend(outcomes.lacks.iter().map(|said| format!("\n{said}\n")));
    for (cell, reasons) in &outcomes.failures {
        out += &format!("\n- fail: `{cell}`\n");
        out.extend(reasons.iter().map(|reason| format!("  - {}\n", text(reason))));
    }
    for failed in &outcomes.errors {
        out += &format!("\n- error: `{}`: {}\n", failed.cell, text(&failed.message));
        if !failed.console.is_empty() {
            out += &format!("\n{}", details("What it said last", &failed.console.join("\n")));
        }
    }
    for (reason, cells) in &outcomes.skips {
        let caption = format!("{} skipped: {reason}", cells.len());
        out += &format!("\n{}", details(&caption, &cells.join("\n")));
    }
    out
}

/// Folded away. The fence is longer than any the text holds.
fn details(caption: &str, body: &str) -> String {
    let longest = body.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    let body = body.trim_end();
    format!("<details><summary>{}</summary>\n\n{fence}\n{body}\n{fence}\n\n</details>\n", html(caption))
}

fn html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Nothing in `text` is taken for mark-up. An underscore inside a word is none.
pub fn text(text: &str) -> String {
    html(text).chars().fold(String::new(), |mut out, c| {
        if matches!(c, '|' | '*' | '`' | '\\' | '[' | ']' | '#' | '~') {
            out.push('\\');
        }
        out.push(c);
        out
    })
}
