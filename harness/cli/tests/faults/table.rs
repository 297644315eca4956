// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table as Markdown.

use crate::{
    NotRun,
    observed::{Observed, Verdict},
    place::PREFIX,
};

/// Characters of a cell.
const MOST: usize = 110;

/// The names of the rows in docs/faults.md.
pub fn documented() -> Vec<&'static str> {
    let lines = include_str!("../../../../docs/faults.md").lines();
    let rows = lines.skip_while(|line| !line.starts_with("| fault |")).skip(2);
    rows.map_while(|row| row.strip_prefix("| ")?.split_once(" |")).map(|(name, _)| name).collect()
}

/// A row of the table.
pub fn row(name: &str, result: &Result<Observed, NotRun>) -> String {
    let observed = match result {
        Err(NotRun(why)) => return format!("| {name} | not run: {} | | | |\n", cell(why)),
        Ok(observed) => observed,
    };
    let Observed { taken, left, kept, .. } = observed;
    let left = if left.is_empty() { "nothing".to_owned() } else { cell(&left.join(", ")) };
    let kept =
        if kept.of == 0 { "-".to_owned() } else { format!("{} of {}", kept.results, kept.of) };
    let (verdict, taken) = (cell(&verdict(observed)), taken.as_secs_f64());
    format!("| {name} | {verdict} | {taken:.1} | {left} | {kept} |\n")
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
