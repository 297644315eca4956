// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table as Markdown.

use crate::{
    NotRun, Seen,
    observed::{Observed, Verdict},
    place::PREFIX,
};
use std::fmt::Write;

/// Characters of a cell.
const MOST: usize = 110;

/// The names of the rows in docs/faults.md.
pub fn documented() -> Vec<&'static str> {
    let lines = include_str!("../../../../docs/faults.md").lines();
    let rows = lines.skip_while(|line| !line.starts_with("| fault |")).skip(2);
    rows.map_while(|row| row.strip_prefix("| ")?.split_once(" |")).map(|(name, _)| name).collect()
}

pub fn markdown(names: &[&str], seen: &Seen) -> String {
    let mut out = String::from(
        "| fault | verdict | seconds | left behind | results kept |\n|---|---|---:|---|---|\n",
    );
    for (number, name) in names.iter().enumerate() {
        let _ = match seen.get(&number) {
            None => continue,
            Some(Err(NotRun(why))) => writeln!(out, "| {name} | not run: {} | | | |", cell(why)),
            Some(Ok(observed)) => row(&mut out, name, observed),
        };
    }
    out
}

fn row(out: &mut String, name: &str, observed: &Observed) -> std::fmt::Result {
    let Observed { taken, left, kept, .. } = observed;
    let left = if left.is_empty() { "nothing".to_owned() } else { cell(&left.join(", ")) };
    let kept =
        if kept.of == 0 { "-".to_owned() } else { format!("{} of {}", kept.results, kept.of) };
    writeln!(
        out,
        "| {name} | {} | {:.1} | {left} | {kept} |",
        cell(&verdict(observed)),
        taken.as_secs_f64()
    )
}

fn verdict(observed: &Observed) -> String {
    let code = observed.code.map_or("killed".to_owned(), |code| format!("exit code {code}"));
    match &observed.verdict {
        Verdict::Cell(outcome) => {
            let reason = outcome.reason().unwrap_or_default();
            format!("{}, {reason}", outcome.name())
        }
        Verdict::NoRun(error) => format!("refused, {code}: {error}"),
        Verdict::Interrupted => format!("interrupted, {code}"),
        Verdict::Measured { told, the_same } => {
            let told =
                told.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            let what = if *the_same {
                "measured as without the fault"
            } else {
                "measured, and not the same"
            };
            format!("{what}. {told}")
        }
        Verdict::Unexpected(what) => format!("{what}, {code}"),
    }
}

/// Makes a table's cell: one short line, bars escaped, paths relative to the row's folder.
fn cell(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().replace('|', "\\|");
    let line = line.split(' ').map(plain).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST) {
        None => line,
        Some((at, _)) => format!("{}…", &line[..at]),
    }
}

fn plain(word: &str) -> &str {
    let inside = word.split_once(PREFIX).and_then(|(_, after)| Some(after.split_once('/')?.1));
    inside.unwrap_or(word)
}
