// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histories as tables and as JSON.

#[cfg(test)]
mod tests;

use crate::{compared, findings};
use serde_json::json;
use std::collections::BTreeMap;
use tramplab_analysis::history::ancestry::Between;
use tramplab_analysis::{
    compare::Value,
    history::{Found, History, Measurement, MetricRow, Step},
};
use tramplab_model::table::Table;
use tramplab_model::{called::called, text::line};

/// Facts from the source tree about the steps.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The tree's path, as the user gave it.
    pub tree: Option<String>,
    /// Counts of commits by the two commits of a step, the older first.
    pub between: BTreeMap<(String, String), Between>,
}

/// Makes the table of one history, with a line for each row and a note for each step.
pub fn table(history: &History, told: &Told) -> Table {
    let History { metric, rows, .. } = history;
    let with_titles = rows.iter().any(|row| row.kernel.title.is_some());
    let titles = with_titles.then(|| "subject".to_owned());
    let commits = rows.iter().any(|row| row.kernel.commit.is_some());
    let first = if commits { "commit" } else { "kernel" };
    let header = [first.to_owned()].into_iter().chain(titles);
    let header = header.chain(
        ["first run", "runs", metric.unit(), "change", "step", "otherwise"].map(str::to_owned),
    );
    let mut notes = Vec::new();
    let mut letters: Vec<&str> = Vec::new();
    for why in rows.iter().flat_map(|row| &row.otherwise) {
        if !letters.contains(&why.as_str()) {
            letters.push(why);
        }
    }
    let body = rows.iter().map(|row| {
        let marks: Vec<String> = letters
            .iter()
            .enumerate()
            .filter(|(_, why)| row.otherwise.iter().any(|other| other == *why))
            .map(|(index, _)| (index + 1).to_string())
            .collect();
        let title =
            with_titles.then(|| row.kernel.title.as_deref().map_or(String::new(), shortened));
        let cells = [row.kernel.label().to_owned()].into_iter().chain(title);
        cells
            .chain([
                row.started.clone(),
                row.runs.len().to_string(),
                text(row),
                change(row),
                step(row),
                marks.join(", "),
            ])
            .collect()
    });
    let body: Vec<Vec<String>> = body.collect();
    for (at, row) in rows.iter().enumerate() {
        let Some(step) = &row.step else { continue };
        let Described { text, causes, bisect } = described(history, at, step, told);
        let text = [text].into_iter().chain(causes).collect::<Vec<_>>().join("; ");
        notes.push(bisect.map_or(text.clone(), |command| format!("{text}: {command}")));
    }
    notes.extend(letters.iter().enumerate().map(|(index, why)| format!("{}: {}", index + 1, why)));
    Table {
        caption: format!("{metric} of {}", line_of(history)),
        header: header.collect(),
        rows: body,
        notes,
    }
}

/// Names the kernels of a history: `linux (x86_64, tcg; suite fixture)`.
pub(crate) fn line_of(history: &History) -> String {
    let line = &history.line;
    let accel = match line.of_driver {
        Some(source) => format!("{}, {}", line.accel.name(), source.name()),
        None => line.accel.name().to_owned(),
    };
    format!("{} ({}, {accel}; suite {})", line.kernel, line.arch, line.suite)
}

/// Makes a table of the histories that changed, with a line for each.
pub fn overview(histories: &[History]) -> Table {
    // A time changes with every run, so only its steps count.
    let changed = |history: &History| {
        let changed = |row: &MetricRow| row.change.is_some_and(|change| change != 0.0);
        !history.metric.is_by_hosts_clock() && history.rows.iter().any(changed)
    };
    let shown: Vec<&History> =
        histories.iter().filter(|history| changed(history) || steps(history) > 0).collect();
    let header =
        ["metric", "kernel", "arch", "suite", "rows", "first", "last", "change", "steps", "course"];
    let row = |history: &&History| {
        let line = &history.line;
        let names = [history.metric.to_string(), line.kernel.clone(), line.arch.to_string()];
        names.into_iter().chain([line.suite.clone()]).chain(whole(history)).collect()
    };
    let still = histories.len() - shown.len();
    let all = histories.len();
    let note = match histories.iter().any(|history| history.rows.len() > 1) {
        true => format!("{still} of {all} did not change. --metric NAME shows one in full."),
        false => {
            format!("{all} histories with one row each: runs of one kernel share it if they agree.")
        }
    };
    Table::new("What changed from run to run", header, shown.iter().map(row)).noted([note])
}

/// A history from end to end: rows, first and last number, change, steps, course.
pub(crate) fn whole(history: &History) -> [String; 6] {
    let values: Vec<&Value> = history.rows.iter().filter_map(MetricRow::value).collect();
    let shown = |value: Option<&&Value>| value.map_or(String::new(), ToString::to_string);
    let numbers: Vec<f64> = values.iter().filter_map(|value| value.number()).collect();
    [
        history.rows.len().to_string(),
        shown(values.first()),
        shown(values.last()),
        percent(numbers.first().copied(), numbers.last().map(|last| last - numbers[0])),
        steps(history).to_string(),
        course(&numbers),
    ]
}

pub(crate) fn steps(history: &History) -> usize {
    history.rows.iter().filter(|row| row.step.is_some()).count()
}

pub(crate) fn text(row: &MetricRow) -> String {
    match &row.value {
        Measurement::Value(value) => value.to_string(),
        Measurement::None(ending) => ending.clone(),
    }
}

pub(crate) fn change(row: &MetricRow) -> String {
    let before = row.change.and_then(|change| Some(row.value()?.number()? - change));
    percent(before, row.change)
}

/// Formats a change as `+3.1 %`, or as `+1` for small whole numbers.
fn percent(before: Option<f64>, change: Option<f64>) -> String {
    match (before, change) {
        (_, Some(0.0)) => "=".to_owned(),
        (Some(before), Some(change)) if before.abs() < 1000.0 && change.fract() == 0.0 => {
            format!("{change:+}")
        }
        (Some(before), Some(change)) if before != 0.0 => {
            format!("{:+.2} %", 100.0 * change / before)
        }
        (_, Some(change)) => format!("{change:+}"),
        (_, None) => String::new(),
    }
}

fn step(row: &MetricRow) -> String {
    let word = |step: &Step| if step.worse { "WORSE" } else { "better" };
    row.step.as_ref().map_or(String::new(), |step| word(step).to_owned())
}

/// Causes of a step that are named.
pub(crate) const CAUSES: usize = 8;

/// A step in words.
pub(crate) struct Described {
    /// The values and the commits.
    pub text: String,
    /// As in the findings of a comparison.
    pub causes: Vec<String>,
    /// The command that finds the commit, for a step to the worse between known commits.
    pub bisect: Option<String>,
}

pub(crate) fn described(history: &History, at: usize, step: &Step, told: &Told) -> Described {
    let History { metric, line, rows, .. } = history;
    let (before, row) = (&rows[step.since], &rows[at]);
    let word = if step.worse { "worse" } else { "better" };
    let mut bisect = None;
    let what = match &step.ratio {
        Some(ratio) => format!("from here on {ratio}"),
        None => format!("{} -> {}", text(before), text(row)),
    };
    let mut out = format!("{word} at {}: {what}", row.kernel.label());
    match (&before.kernel.commit, &row.kernel.commit) {
        (Some(old), Some(new)) if old == new => {
            out += "; it is the same commit as before, so the kernel's code is not the cause"
        }
        (Some(old), Some(new)) => match told.between.get(&(old.clone(), new.clone())) {
            Some(Between { older: 0, newer: 1 }) => out += "; this commit caused it",
            Some(Between { older: 0, newer }) => {
                out += &format!("; {newer} commits since {}", before.kernel.label());
                if let (true, Some(tree)) = (step.worse, &told.tree) {
                    let metric = metric.to_string();
                    let words = [
                        "bisect",
                        "--tree",
                        tree,
                        "--good",
                        old,
                        "--bad",
                        new,
                        "--arch",
                        line.arch.name(),
                        "--metric",
                        &metric,
                    ];
                    bisect = Some(format!("{} {}", called(), shell_words::join(words)));
                }
            }
            Some(Between { older, .. }) => {
                out += &format!(
                    "; not on one line with {}, which has {older} commits of its own",
                    before.kernel.label()
                );
            }
            None => {}
        },
        _ if before.kernel.image_sha256.is_some()
            && before.kernel.image_sha256 == row.kernel.image_sha256 =>
        {
            out += "; it is the same image as before, so the kernel is not the cause";
        }
        _ => {}
    }
    let told = findings::told(&step.findings, row.kernel.label(), None);
    let mut causes: Vec<String> = told.into_iter().flat_map(|told| told.causes).collect();
    let more = causes.len().saturating_sub(CAUSES);
    causes.truncate(CAUSES);
    causes.extend((more > 0).then(|| format!("and {more} more")));
    Described { text: out, causes, bisect }
}

pub(crate) fn shortened(title: &str) -> String {
    let title = line(title);
    match title.char_indices().nth(50) {
        Some((end, _)) => format!("{}…", &title[..end]),
        None => title,
    }
}

/// Draws numbers as `▁▁▃█`, from the lowest to the highest.
fn course(numbers: &[f64]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let numbers = &numbers[numbers.len().saturating_sub(24)..];
    let (low, high) =
        numbers.iter().fold((f64::MAX, f64::MIN), |(low, high), &n| (low.min(n), high.max(n)));
    let level =
        |n: &f64| if high > low { ((n - low) / (high - low) * 7.0).round() as usize } else { 0 };
    numbers.iter().map(|number| LEVELS[level(number)]).collect()
}

/// Returns everything as JSON, for programs.
pub fn json(found: &Found, told: &Told) -> serde_json::Value {
    let row = |rows: &[MetricRow], row: &MetricRow| {
        let step = row.step.as_ref().map(|step| {
            let since = &rows[step.since];
            let commits = since.kernel.commit.clone().zip(row.kernel.commit.clone());
            let between = commits.and_then(|pair| told.between.get(&pair));
            json!({
                "worse": step.worse,
                "since": since.kernel.commit.as_ref().unwrap_or(&since.kernel.release),
                "ratio": step.ratio.map(|ratio| {
                    json!({"mean": ratio.mean, "low": ratio.low, "high": ratio.high})
                }),
                "commits": between.map(|between| between.newer),
                "findings": step.findings.iter().map(compared::finding).collect::<Vec<_>>(),
            })
        });
        json!({
            "commit": row.kernel.commit,
            "subject": row.kernel.title,
            "release": row.kernel.release,
            "started": row.started,
            "runs": row.runs,
            "value": row.value().and_then(Value::number),
            "text": text(row),
            "change": row.change,
            "step": step,
            "otherwise": row.otherwise,
        })
    };
    let history = |history: &History| {
        let line = &history.line;
        json!({
            "metric": history.metric.to_string(),
            "unit": history.metric.unit(),
            "kernel": line.kernel,
            "arch": line.arch,
            "accel": line.accel,
            "suite": line.suite,
            "guest": line.guest,
            "rows": history.rows.iter().map(|one| row(&history.rows, one)).collect::<Vec<_>>(),
        })
    };
    json!({
        "histories": found.histories.iter().map(history).collect::<Vec<_>>(),
        "left_out": found.left_out,
    })
}
