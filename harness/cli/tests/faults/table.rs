// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table as Markdown.

use crate::{
    NotRun, Seen,
    observed::{Observed, Verdict},
    place::PREFIX,
};
use std::fmt::Write;

/// Of what was said.
const MOST: usize = 110;

pub fn markdown(names: &[&str], seen: &Seen) -> String {
    let mut out =
        String::from("| fault | verdict | seconds | left behind | results kept |\n|---|---|---:|---|---|\n");
    for (number, name) in names.iter().enumerate() {
        let _ = match seen.get(&number) {
            None => writeln!(out, "| {name} | not run: not selected | | | |"),
            Some(Err(NotRun(why))) => writeln!(out, "| {name} | not run: {} | | | |", cell(why)),
            Some(Ok(observed)) => row(&mut out, name, observed),
        };
    }
    out
}

fn row(out: &mut String, name: &str, observed: &Observed) -> std::fmt::Result {
    let Observed { taken, left, kept, .. } = observed;
    let left = if left.is_empty() { "nothing".to_owned() } else { cell(&left.join(", ")) };
    let kept = if kept.of == 0 { "-".to_owned() } else { format!("{} of {}", kept.results, kept.of) };
    writeln!(out, "| {name} | {} | {:.1} | {left} | {kept} |", cell(&verdict(observed)), taken.as_secs_f64())
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
            let told = told.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            let what = if *the_same { "measured as without the fault" } else { "measured, and not the same" };
            format!("{what}. {told}")
        }
        Verdict::Unexpected(what) => format!("{what}, {code}"),
    }
}

/// Short, on one line, with no bar of its own, and of the rows' folders, which are called otherwise each time, only what is in them.
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
