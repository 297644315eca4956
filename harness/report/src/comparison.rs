// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a comparison before it is formatted.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

use super::{
    diff::{Sources, as_a_diff, side_by_side},
    findings::{self, Told},
    judged, kinds,
    parts::Listing,
    view::View,
};
use std::collections::BTreeMap;
use tramplab_analysis::compare::{
    self, Compared, Comparison, Difference, HeadOnly, Listings, Metric, Verdict,
};
use tramplab_model::table::Table;
use tramplab_model::{
    code::TextGrowth,
    run::{Built, ErrorKind, Kernel, Outcome, Run, Series, SeriesStep, Test},
    text::line,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdicts {
    /// The subject of the patch, or the title of the series.
    pub title: Option<String>,
    pub heading: String,
    /// `1 better, 0 worse, 40 same, …`.
    pub summary: String,
    /// Reasons against the comparison: attach tests of other functions, guests with other clock
    /// sources, and differences that the user told to overlook.
    pub overlooked: Vec<String>,
    /// The causes of what is better or worse.
    pub findings: Vec<Told>,
    /// A line for each test: `lbr_waste.fexit: any 12 -> 9, any_call 7 -> 5`.
    pub changed: Vec<String>,
    pub tables: Vec<Table>,
    /// Base and head side by side, if they differ.
    pub listings: Vec<Listing>,
    /// The same as diffs, which are narrow enough for a mail.
    pub records: Vec<Listing>,
}

pub fn verdicts(comparison: &Comparison, sources: Sources) -> Verdicts {
    let of_kinds = kinds::all().flat_map(|kind| kind.compared(comparison));
    let tables = change_table(comparison).into_iter().chain(of_kinds).chain(unmatched(comparison));
    let differing: Vec<&Listings> =
        comparison.listings.iter().filter(|listings| listings.differs()).collect();
    Verdicts {
        title: None,
        heading: format!("{} -> {}", comparison.base, comparison.head),
        summary: summary(comparison),
        overlooked: comparison
            .other_functions
            .iter()
            .map(other_functions)
            .chain(other_clocks(comparison))
            .collect(),
        tables: tables.collect(),
        findings: {
            let by = findings::of_settings(&comparison.settings);
            findings::told(&comparison.findings, &comparison.head, by.as_deref())
        },
        changed: changed(comparison),
        listings: differing
            .iter()
            .map(|listings| side_by_side(listings, comparison, sources))
            .collect(),
        records: differing
            .iter()
            .map(|listings| as_a_diff(listings, comparison, sources))
            .collect(),
    }
}

fn other_functions(test: &Test) -> String {
    format!(
        "{} attached to other functions on the base than on the head: see functions.txt of both \
         cells",
        test.name()
    )
}

/// Makes a sentence for each pair of clock sources. One snapshot of a bad guest affects every test.
fn other_clocks(comparison: &Comparison) -> Vec<String> {
    let mut tests: BTreeMap<&[String; 2], Vec<String>> = BTreeMap::new();
    for (test, clocks) in &comparison.other_clocks {
        tests.entry(clocks).or_default().push(test.name());
    }
    let sentence = |([base, head], names): (&[String; 2], Vec<String>)| {
        let (named, rest) = names.split_at(names.len().min(NAMED));
        let and = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        let named = named.join(", ");
        format!(
            "the clock source was {base} on the base and {head} on the head, so times are not \
             judged: {named}{and}"
        )
    };
    tests.into_iter().map(sentence).collect()
}

/// Tests named in a list that may be long.
const NAMED: usize = 3;

fn summary(comparison: &Comparison) -> String {
    let count = |verdict: Verdict| comparison.count(|found| *found == verdict);
    let lost = comparison.unmatched.iter().filter(|unmatched| unmatched.lost).count();
    let mut parts = if comparison.same_image { vec![SAME_IMAGE.to_owned()] } else { Vec::new() };
    if comparison.is_empty() {
        parts.push("nothing was compared".to_owned());
    } else {
        parts.extend([
            format!("{} better", count(Verdict::Better)),
            format!("{} worse", count(Verdict::Worse)),
            same(comparison),
        ]);
    }
    let not_judged = comparison.count(|verdict| matches!(verdict, Verdict::NotJudged(_)));
    for (count, what) in [
        (count(Verdict::NoDifferenceSeen), "no difference seen"),
        (not_judged, "not judged"),
        (lost, "cells measured on the base only"),
    ] {
        parts.extend((count > 0).then(|| format!("{count} {what}")));
    }
    parts.join(", ")
}

/// `24 same (3 within tolerance, 1 by layout)`.
fn same(comparison: &Comparison) -> String {
    let but = [(Difference::Tolerated, "within tolerance"), (Difference::Layout, "by layout")];
    let but = but.into_iter().filter_map(|(difference, what)| {
        let count = comparison.count(|found| *found == Verdict::Same(difference));
        (count > 0).then(|| format!("{count} {what}"))
    });
    let but = but.collect::<Vec<_>>().join(", ");
    let all = comparison.count(Verdict::is_same);
    if but.is_empty() { format!("{all} same") } else { format!("{all} same ({but})") }
}

/// With one image, no difference comes from the patches.
pub const SAME_IMAGE: &str =
    "the patches change nothing: both kernels are the same image, byte for byte";

/// The caption of the table of tests without a pair.
pub const NOT_COMPARED: &str = "Not compared: not measured on both sides";

/// The caption of the table of changes.
pub const WHAT_CHANGED: &str = "What changed";

/// The metrics that are better or worse.
fn changes(comparison: &Comparison) -> impl Iterator<Item = &Compared> {
    let is_changed =
        |compared: &&Compared| matches!(compared.verdict, Verdict::Better | Verdict::Worse);
    comparison.metrics.iter().filter(is_changed)
}

fn changed(comparison: &Comparison) -> Vec<String> {
    let mut tests: Vec<(String, Vec<String>)> = Vec::new();
    for compared in changes(comparison) {
        let name = compared.metric.to_string();
        let (test, number) = findings::parted(compared.metric, &name);
        let sides = format!("{number} {}", judged::sides(compared));
        match tests.last_mut().filter(|(of, _)| of == test) {
            Some((_, numbers)) => numbers.push(sides),
            None => tests.push((test.to_owned(), vec![sides])),
        }
    }
    tests.into_iter().map(|(test, numbers)| format!("{test}: {}", numbers.join(", "))).collect()
}

fn change_table(comparison: &Comparison) -> Option<Table> {
    let changed: Vec<Metric> = changes(comparison).map(|compared| compared.metric).collect();
    judged::table(WHAT_CHANGED, comparison, |metric| changed.contains(&metric)).if_filled()
}

fn unmatched(comparison: &Comparison) -> Option<Table> {
    let mut rows: Vec<_> = comparison
        .unmatched
        .iter()
        .map(|unmatched| {
            let head = short(&unmatched.head);
            let head = if unmatched.is_new { format!("{head} (new)") } else { head };
            vec![unmatched.test.name(), short(&unmatched.base), head]
        })
        .collect();
    let of_head =
        |one: &HeadOnly| vec![one.test.name(), "not in the run".to_owned(), short(&one.head)];
    rows.extend(comparison.head_only.iter().map(of_head));
    Table::new(NOT_COMPARED, ["test", "base", "head"], rows).if_filled()
}

/// Makes the tables of a walk: how each patch fared and what it causes, and every metric that
/// changed at a patch.
fn walk(run: &Run, series: &Series, comparisons: &[Comparison]) -> Vec<Table> {
    let patch = |(at, step): (usize, &SeriesStep)| {
        let subject = step.subject.as_deref().map_or("base", str::trim);
        let of_patch = at.checked_sub(1).and_then(|before| comparisons.get(before));
        let told =
            of_patch.map_or_else(Vec::new, |one| findings::told(&one.findings, &one.head, None));
        let findings = told.iter().map(Told::sentence);
        let findings = findings.collect::<Vec<_>>().join("; ");
        vec![step.patches.to_string(), subject.to_owned(), state(run, series, step), findings]
    };
    let rows = series.steps.iter().enumerate().map(patch);
    let mut tables = vec![Table::new("Patch by patch", ["#", "patch", "state", "findings"], rows)];
    let mut changed: Vec<Metric> = Vec::new();
    for compared in comparisons.iter().flat_map(|comparison| &comparison.metrics) {
        let differs = matches!(compared.verdict, Verdict::Better | Verdict::Worse);
        if differs && !changed.contains(&compared.metric) {
            changed.push(compared.metric);
        }
    }
    if changed.is_empty() {
        tables[0].notes.push("No metric changed.".to_owned());
        return tables;
    }
    // A step is the head of one comparison and the base of the next.
    let value = |metric: &Metric, step: usize| {
        let find = |index: usize| {
            comparisons.get(index)?.metrics.iter().find(|found| found.metric == *metric)
        };
        let as_head = step.checked_sub(1).and_then(find).map(|compared| compared.head.to_string());
        as_head.or_else(|| find(step).map(|compared| compared.base.to_string())).unwrap_or_default()
    };
    let row = |metric: &Metric| {
        let values = (0..series.steps.len()).map(|step| value(metric, step));
        std::iter::once(metric.to_string()).chain(values).collect()
    };
    let numbers = series.steps.iter().map(|step| format!("#{}", step.patches));
    let header = std::iter::once("metric".to_owned()).chain(numbers);
    tables.push(Table::new("What changed, patch by patch", header, changed.iter().map(row)));
    tables
}

/// The findings of a run's series, with the verdict by default.
pub fn findings_of(run: &Run) -> Vec<findings::OfSeries<'_>> {
    let all = of_run(run, &View::default()).into_iter();
    run.series.iter().zip(all.map(|one| one.whole.findings)).collect()
}

/// Finds what keeps base and head from being compared fully; the base's trouble comes first. A
/// verdict without this means little.
pub(super) fn trouble(run: &Run, series: &Series, steps: [&SeriesStep; 2]) -> Option<String> {
    steps.into_iter().find_map(|step| {
        let errors = run
            .cells_of(series.arch, &step.kernel)
            .any(|cell| matches!(cell.outcome, Outcome::Error { .. }));
        let failed = errors || step.built != Built::Yes;
        failed.then(|| match &step.built {
            Built::Failed { message } => {
                // The compiler's words stand behind the kernel's name.
                let own = format!("failed to build {}: ", step.kernel);
                let said = message.split_once(&own).map_or(message.as_str(), |(_, said)| said);
                format!("{} does not build ({})", step.kernel, short(said))
            }
            _ => format!("{}: {}", step.kernel, state(run, series, step)),
        })
    })
}

/// Describes how a step of the series fared, by the worst of its outcomes.
fn state(run: &Run, series: &Series, step: &SeriesStep) -> String {
    match step.built {
        Built::Failed { .. } => return "does not build".to_owned(),
        Built::NotReached => return "not reached".to_owned(),
        Built::Yes => {}
    }
    let outcomes = || run.cells_of(series.arch, &step.kernel).map(|cell| &cell.outcome);
    let errors: Vec<ErrorKind> = outcomes()
        .filter_map(|outcome| match outcome {
            Outcome::Error { kind, .. } => Some(*kind),
            _ => None,
        })
        .collect();
    let failures = outcomes().filter(|outcome| matches!(outcome, Outcome::Fail { .. })).count();
    let all = outcomes().count();
    match (errors.first(), failures, all) {
        (_, _, 0) => "not measured".to_owned(),
        (Some(kind), ..) => format!("{} of {all} cells: {kind}", errors.len()),
        (None, 0, _) => "pass".to_owned(),
        (None, failures, all) => format!("{failures} of {all} cells fail"),
    }
}

/// A series on one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfSeries {
    /// Base against head.
    pub whole: Verdicts,
    /// Patch by patch, if the run walked the series.
    pub walk: Vec<Table>,
}

/// Makes the table of the functions whose sizes differ most.
fn text_growth(growth: &TextGrowth) -> Option<Table> {
    const MOST: usize = 10;
    let row = |name: &str, base: Option<u64>, head: Option<u64>, change: i128| {
        let [base, head] = [base, head].map(|size| size.map_or("-".to_owned(), |n| n.to_string()));
        vec![name.to_owned(), base, head, format!("{change:+}")]
    };
    let TextGrowth { base, head, grown, shrunk, new, gone, functions } = growth;
    let all = i128::from(*head).saturating_sub((*base).into());
    let mut rows = vec![row("all functions", Some(*base), Some(*head), all)];
    rows.extend(
        functions
            .iter()
            .take(MOST)
            .map(|one| row(&one.name, one.base, one.head, one.change().into())),
    );
    let counts = [*grown, *shrunk, *new, *gone].map(u64::from);
    let differ = counts.into_iter().fold(0, u64::saturating_add);
    let mut notes = vec![format!("{grown} grew, {shrunk} shrank, {new} new, {gone} gone.")];
    let rest = differ.saturating_sub(MOST as u64);
    notes.extend((rest > 0).then(|| format!("{rest} more differ less.")));
    let header = ["function", "base", "head", "change"];
    let table = || Table::new("Size of the functions in .text, in bytes", header, rows);
    (differ > 0).then(|| table().noted(notes))
}

/// The subject of the step's patch, or the title of the series if it has several.
pub(super) fn title(series: &Series, step: &SeriesStep, is_whole: bool) -> String {
    let patches = series.head().patches.max(series.base().patches);
    let subject = step.subject.clone().filter(|_| !is_whole || patches == 1);
    let title = subject.or_else(|| series.title.clone()).unwrap_or_else(|| series.name.clone());
    line(title.trim())
}

/// The findings of each patch if the run measured each, and those of all together that no patch
/// explains: of a metric that a patch in between has not.
fn by_patch(series: &Series, whole: &Comparison, walked: &[Comparison]) -> Vec<Told> {
    let all = series.head().patches.max(series.base().patches);
    let patch = |step: &SeriesStep| {
        let subject = step.subject.as_deref()?.trim();
        Some(format!("patch {}/{all} \"{subject}\"", step.patches))
    };
    if walked.is_empty() {
        return findings::told(
            &whole.findings,
            &whole.head,
            patch(series.head()).filter(|_| all == 1).as_deref(),
        );
    }
    let of_steps = series.steps.iter().skip(1).zip(walked);
    let mut told: Vec<Told> = of_steps
        .flat_map(|(step, one)| findings::told(&one.findings, &one.head, patch(step).as_deref()))
        .collect();
    let shares = walked.iter().flat_map(|step| &step.findings).flat_map(|finding| &finding.moved);
    let known: Vec<Metric> = shares.map(|share| share.metric).collect();
    let mut rest = whole.findings.clone();
    rest.iter_mut().for_each(|one| one.moved.retain(|share| !known.contains(&share.metric)));
    rest.retain(|finding| !finding.moved.is_empty());
    told.extend(findings::told(&rest, &whole.head, None));
    told
}

/// Makes the verdicts of a run's series.
pub fn of_run(run: &Run, view: &View) -> Vec<OfSeries> {
    let one = |series: &Series| {
        let base = run.kernel(series.arch, &series.base().kernel);
        let asked = view.model_of(base.and_then(Kernel::cpu));
        let lines =
            |step: &SeriesStep| run.lines_of(series.arch, &step.kernel).filter(|_| view.lines);
        let comparison = compare::whole(run, series, asked);
        let walked = match series.steps.len() {
            0..=2 => Vec::new(),
            _ => compare::walk(run, series, asked),
        };
        let sides = [series.base(), series.head()].map(lines);
        let mut whole = verdicts(&comparison, sides);
        whole.title = Some(title(series, series.head(), true));
        whole.findings = by_patch(series, &comparison, &walked);
        whole.tables.extend(series.text.as_ref().and_then(text_growth));
        if comparison.is_empty() && walked.iter().any(|step| !step.is_empty()) {
            let count = |verdict: Verdict| -> usize {
                let counts = walked.iter().map(|step| step.count(|found| *found == verdict));
                counts.fold(0, usize::saturating_add)
            };
            let (better, worse) = (count(Verdict::Better), count(Verdict::Worse));
            whole.summary = format!("patch by patch {better} better, {worse} worse");
        }
        if let Some(trouble) = trouble(run, series, [series.base(), series.head()]) {
            whole.summary = format!("{trouble}: {}", whole.summary);
        }
        let mut walk = if walked.is_empty() { Vec::new() } else { walk(run, series, &walked) };
        if run.series.len() > 1 {
            whole.heading += &format!(" ({})", series.arch);
            let base = &series.base().kernel;
            let titles = walk.iter_mut().map(|table| &mut table.caption);
            titles.for_each(|title| *title += &format!(" ({base}, {})", series.arch));
        }
        OfSeries { whole, walk }
    };
    run.series.iter().map(one).collect()
}

/// Shortens how a cell ended to a line. The outcomes have the whole text.
fn short(ending: &str) -> String {
    const WIDTH: usize = 72;
    let line = line(ending.trim().lines().next().unwrap_or_default());
    if line.chars().count() <= WIDTH {
        line
    } else {
        line.chars().take(WIDTH).chain(['…']).collect()
    }
}
