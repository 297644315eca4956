// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histories: a metric over many stored runs, and its steps. Rows are commits if the kernels are
//! commits, else runs.
//!
//! [`ancestry`] has the order of commits, `step` finds the steps. [`of`] is a pure function of the
//! runs and that order.

pub mod ancestry;
mod step;
#[cfg(test)]
mod tests;

pub use ancestry::Ancestry;
pub use step::Step;

use crate::{
    branch::Model,
    compare::{
        Finding, Layout, Metric, Timing, Value, compare,
        kinds::layout_floor,
        pair_up,
        runs::{Measured, differences},
        value, values,
    },
};
use std::collections::{BTreeMap, BTreeSet};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};
use tramplab_model::name::{is_commit_id, is_name_char};
use tramplab_model::run::{
    Accel, Arch, BranchSource, Cell, Kernel, Machine, Outcome, Run, Test, Tolerance,
};
use tramplab_model::text;

/// A selection of histories.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Empty for all metrics.
    pub metrics: Vec<Metric>,
    /// A kernel's name, or the part of it that kernels of one repository share.
    pub kernel: Option<String>,
    pub arch: Option<Arch>,
    /// The CPU model of waste. If it does not fit the architecture, its default is used.
    pub model: Option<Model>,
    /// The present. A run that starts later is of a machine with a wrong clock: no history is
    /// forgotten because of it.
    pub now: Option<OffsetDateTime>,
}

/// Nobody mends a metric that nobody measures any more.
pub const FORGOTTEN: Duration = Duration::days(30);

/// One metric of one line of kernels.
#[derive(Clone, Debug)]
pub struct History {
    pub metric: Metric,
    pub line: Line,
    /// Oldest first.
    pub rows: Vec<MetricRow>,
    /// The row of the step that the newest row revealed.
    newest: Option<usize>,
}

/// The kernels whose numbers one history compares: they follow each other, in equal guests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The kernel's name, without the commit of a repository's commits.
    pub kernel: String,
    pub arch: Arch,
    pub accel: Accel,
    pub suite: String,
    /// The guests' machine: `1 CPU, 1024 MiB, -cpu max`, and additions to the command line.
    pub guest: String,
    /// The source of wasted records that a driver handed over.
    pub of_driver: Option<BranchSource>,
}

impl History {
    /// Returns the step that the newest row revealed. An exact step shows at once. A step of times
    /// shows only after as many rows as their scatter requires. None if no run has measured the
    /// metric for [`FORGOTTEN`].
    pub fn newest_step(&self) -> Option<&Step> {
        self.rows[self.newest?].step.as_ref()
    }
}

/// One state of the kernel, and the consecutive runs that measured the same of it.
#[derive(Clone, Debug)]
pub struct MetricRow {
    pub kernel: State,
    /// Ids of the runs.
    pub runs: Vec<String>,
    /// Start of the first run.
    pub started: String,
    pub value: Measurement,
    /// Difference to the last number before, in the metric's unit.
    pub change: Option<f64>,
    pub step: Option<Step>,
    /// Differences to the row before that may have changed the number; each is a sentence.
    pub otherwise: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Measurement {
    Value(Value),
    /// How the cell, or the build of its kernel, ended instead of measuring.
    None(String),
}

impl MetricRow {
    pub fn value(&self) -> Option<&Value> {
        match &self.value {
            Measurement::Value(value) => Some(value),
            Measurement::None(_) => None,
        }
    }
}

/// The measured kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub commit: Option<String>,
    /// The commit's subject, if the tree is known.
    pub title: Option<String>,
    /// The output of `uname -r`, else the kernel's source.
    pub release: String,
    pub image_sha256: Option<String>,
}

impl State {
    /// Tells if both have the same sources or the same image.
    fn is(&self, other: &State) -> bool {
        match (&self.commit, &other.commit) {
            (Some(a), Some(b)) => a == b,
            (None, None) => {
                self.image_sha256 == other.image_sha256 && self.release == other.release
            }
            _ => false,
        }
    }

    /// Returns the shortened commit, else the release.
    pub fn label(&self) -> &str {
        self.commit.as_deref().map_or(&self.release, |commit| commit.get(..12).unwrap_or(commit))
    }
}

/// The histories found, and the kernels that could not be used.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub histories: Vec<History>,
    /// Each is a sentence.
    pub left_out: Vec<String>,
}

/// One cell, or a kernel that failed to build.
#[derive(Clone, Copy)]
struct Sample<'a> {
    run: &'a Run,
    kernel: &'a Kernel,
    /// `None` if the kernel was not built.
    cell: Option<&'a Cell>,
}

/// Returns the commits that kernels of the runs are.
pub fn commits(runs: &[Run]) -> BTreeSet<String> {
    runs.iter().flat_map(|run| &run.kernels).filter_map(commit).map(str::to_owned).collect()
}

/// Makes every history of the runs that the query selects.
pub fn of(runs: &[Run], ancestry: Option<&Ancestry>, query: &Query) -> Found {
    let mut left_out = BTreeSet::new();
    let mut kernels: Vec<(&Run, &Kernel)> =
        runs.iter().flat_map(|run| run.kernels.iter().map(move |kernel| (run, kernel))).collect();
    kernels.retain(|(_, kernel)| {
        let is_named = |name: &String| *name == kernel.name || *name == line_of(kernel);
        query.arch.is_none_or(|arch| arch == kernel.arch)
            && query.kernel.as_ref().is_none_or(is_named)
    });
    if let Some(ancestry) = ancestry {
        kernels.retain(|(run, kernel)| match commit(kernel) {
            Some(commit) if ancestry.position(commit).is_none() => {
                left_out.insert(format!(
                    "{} of run {}: the tree has no commit {commit}",
                    kernel.name, run.id
                ));
                false
            }
            _ => true,
        });
    }
    let position = |kernel: &Kernel| ancestry.and_then(|known| known.position(commit(kernel)?));
    // The sort is stable: runs of one commit stay in their order.
    kernels.sort_by(|(a, _), (b, _)| a.started.cmp(&b.started));
    kernels.sort_by_key(|(_, kernel)| position(kernel));

    let mut groups: BTreeMap<(Line, Test), Vec<Sample>> = BTreeMap::new();
    for &(run, kernel) in &kernels {
        for cell in run.cells_of(kernel.arch, &kernel.name) {
            if matches!(cell.id.test, Test::Build | Test::Fault { .. }) {
                continue;
            }
            let line = line(run, kernel, cell.id.accel, &cell.id.test);
            let group = groups.entry((line, cell.id.test.clone())).or_default();
            group.push(Sample { run, kernel, cell: Some(cell) });
        }
    }
    let is_past = |time: &OffsetDateTime| query.now.is_none_or(|now| *time <= now);
    let now = runs.iter().filter_map(started).filter(is_past).max();
    let mut histories = Vec::new();
    for ((line, test), samples) in groups {
        let samples = with_failed_builds(samples, &line, &test, &kernels);
        histories.extend(of_group(&line, &test, &samples, ancestry, query, now));
    }
    Found { histories, left_out: left_out.into_iter().collect() }
}

fn started(run: &Run) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(&run.started, &Rfc3339).ok()
}

/// Adds the line's kernels that failed to build. They have no cells but get rows.
fn with_failed_builds<'a>(
    samples: Vec<Sample<'a>>,
    line: &Line,
    test: &Test,
    kernels: &[(&'a Run, &'a Kernel)],
) -> Vec<Sample<'a>> {
    let measured =
        |kernel: &Kernel| samples.iter().find(|sample| std::ptr::eq(sample.kernel, kernel));
    let sample = |&(run, kernel): &(&'a Run, &'a Kernel)| {
        let is_of_line = || self::line(run, kernel, line.accel, test) == *line;
        let failed = || build_error(run, kernel).is_some() && is_of_line();
        measured(kernel).copied().or_else(|| failed().then_some(Sample { run, kernel, cell: None }))
    };
    kernels.iter().filter_map(sample).collect()
}

fn build_error<'a>(run: &'a Run, kernel: &Kernel) -> Option<&'a Outcome> {
    let is_error =
        |cell: &&Cell| cell.id.test == Test::Build && matches!(cell.outcome, Outcome::Error { .. });
    run.cells_of(kernel.arch, &kernel.name).find(is_error).map(|cell| &cell.outcome)
}

/// Makes the histories of all metrics of one test.
fn of_group(
    line: &Line,
    test: &Test,
    samples: &[Sample],
    ancestry: Option<&Ancestry>,
    query: &Query,
    now: Option<OffsetDateTime>,
) -> Vec<History> {
    let model = Model::choose(query.model, line.arch);
    let wanted = |cell: &Cell| match &query.metrics[..] {
        [] => values(cell, model),
        named => {
            let of_test = named.iter().filter(|metric| metric.test() == *test);
            of_test.filter_map(|&metric| Some((metric, value(cell, metric, model)?))).collect()
        }
    };
    let values: Vec<Vec<(Metric, Value)>> =
        samples.iter().map(|sample| sample.cell.map_or_else(Vec::new, wanted)).collect();
    let mut metrics: Vec<Metric> = Vec::new();
    for (metric, _) in values.iter().flatten() {
        if !metrics.contains(metric) {
            metrics.push(*metric);
        }
    }
    let mut causes = Causes { samples, model, known: BTreeMap::new() };
    let mut history = |metric: Metric| {
        assert_eq!(metric.test(), *test);
        let mut rows: Vec<MetricRow> = Vec::new();
        // The first and the last sample of each row.
        let mut ends: Vec<[usize; 2]> = Vec::new();
        let mut before: Option<&Sample> = None;
        for (place, (sample, values)) in samples.iter().zip(&values).enumerate() {
            let found =
                values.iter().find(|(other, _)| *other == metric).map(|(_, value)| value.clone());
            // The cell measured other metrics: the suite had other parameters then.
            if found.is_none() && sample.cell.is_some_and(|cell| cell.measurement.is_some()) {
                continue;
            }
            let value = found.map_or_else(|| Measurement::None(ending(sample)), Measurement::Value);
            let kernel = state(sample, ancestry);
            let merged = rows
                .last_mut()
                .filter(|last| last.kernel.is(&kernel))
                .filter(|_| {
                    before.is_none_or(|before| {
                        other_clocks(before, sample, metric).is_none()
                            && of_user(before, test) == of_user(sample, test)
                    })
                })
                .and_then(|last| merge(&last.value, &value).map(|value| (last, value)));
            match merged {
                Some((last, value)) => {
                    last.value = value;
                    last.runs.push(sample.run.id.clone());
                    ends.last_mut().expect("of a row")[1] = place;
                }
                None => {
                    ends.push([place; 2]);
                    rows.push(MetricRow {
                        kernel,
                        runs: vec![sample.run.id.clone()],
                        started: sample.run.started.clone(),
                        value,
                        change: None,
                        step: None,
                        otherwise: before
                            .map_or_else(Vec::new, |before| otherwise(before, sample, metric)),
                    });
                }
            }
            before = Some(sample);
        }
        let tolerance = samples.last().expect("a group has a sample").run.tolerance;
        let newest = match metric {
            // As in a comparison, nothing judges it.
            Metric::Attach(metric) if metric.number.has_idle_loop() => None,
            _ => step::mark(&mut rows, tolerance, layout_floor(&metric)),
        };
        for (row, [first, _]) in rows.iter_mut().zip(&ends) {
            let Some(step) = &mut row.step else { continue };
            step.findings = causes.of(metric, [ends[step.since][1], *first]);
        }
        let measured = samples.iter().zip(&values);
        let measured = measured.filter(|(_, values)| values.iter().any(|(one, _)| *one == metric));
        let last = measured.filter_map(|(sample, _)| started(sample.run)).max();
        let is_forgotten = now.zip(last).is_some_and(|(now, last)| now - last > FORGOTTEN);
        let newest = newest.filter(|_| !is_forgotten);
        History { metric, line: line.clone(), rows, newest }
    };
    metrics.into_iter().map(&mut history).collect()
}

/// The causes of steps, by the places of their samples.
struct Causes<'a> {
    samples: &'a [Sample<'a>],
    model: Model,
    known: BTreeMap<[usize; 2], Vec<Finding>>,
}

impl Causes<'_> {
    fn of(&mut self, metric: Metric, places: [usize; 2]) -> Vec<Finding> {
        let Causes { samples, model, known } = self;
        let all = known.entry(places).or_insert_with(|| {
            let [Some(base), Some(head)] = places.map(|place| samples[place].cell) else {
                return Vec::new();
            };
            let pairs = pair_up(&[base], &[head]);
            // A step is already known to be a change.
            let (tolerance, layout) = (Tolerance::NONE, Layout::ignored());
            compare("", "", &pairs, *model, tolerance, Timing::Apart, &layout).findings
        });
        let moves = |finding: &&Finding| finding.moved.iter().any(|share| share.metric == metric);
        let mut all: Vec<Finding> = all.iter().filter(moves).cloned().collect();
        all.iter_mut().for_each(|one| one.moved.retain(|share| share.metric == metric));
        all
    }
}

/// Merges two runs of one kernel into a row, if they measured the same value, or times, which are
/// then joined.
fn merge(a: &Measurement, b: &Measurement) -> Option<Measurement> {
    match (a, b) {
        (Measurement::Value(Value::Times(a)), Measurement::Value(Value::Times(b))) => {
            Some(Measurement::Value(Value::Times([&a[..], b].concat())))
        }
        (
            Measurement::Value(Value::Rates(a, accel)),
            Measurement::Value(Value::Rates(b, other)),
        ) if accel == other => Some(Measurement::Value(Value::Rates([&a[..], b].concat(), *accel))),
        (a, b) => (a == b).then(|| a.clone()),
    }
}

/// Tells why a sample has no number.
fn ending(sample: &Sample) -> String {
    let outcome = match sample.cell {
        Some(cell) => Some(&cell.outcome),
        None => build_error(sample.run, sample.kernel),
    };
    match outcome {
        Some(Outcome::Skip { .. }) => "skip".to_owned(),
        Some(Outcome::Error { .. }) if sample.cell.is_none() => "does not build".to_owned(),
        Some(Outcome::Error { kind, .. }) => format!("error: {kind}"),
        Some(Outcome::Pass | Outcome::Fail { .. }) | None => "not measured".to_owned(),
    }
}

/// Lists differences between two samples: those for which `compare` refuses, and for times also
/// the host.
fn otherwise(before: &Sample, now: &Sample, metric: Metric) -> Vec<String> {
    if std::ptr::eq(before.run, now.run) {
        return Vec::new();
    }
    let mut found = differences(&measured(before), &measured(now));
    found.extend(other_clocks(before, now, metric));
    if before.run.tramplab != now.run.tramplab {
        found.push(format!(
            "they were measured by tramplab {} and {}",
            before.run.tramplab, now.run.tramplab
        ));
    }
    let (a, b) = (&before.run.host, &now.run.host);
    if metric.is_by_hosts_clock() && (&a.cpu, a.cpus) != (&b.cpu, b.cpus) {
        found.push(format!(
            "they ran on different hosts: {} ({}) and {} ({})",
            a.cpu, a.cpus, b.cpu, b.cpus
        ));
    }
    found
}

/// Tells if times come from different clock sources: each time includes reading one.
fn other_clocks(before: &Sample, now: &Sample, metric: Metric) -> Option<String> {
    let [a, b] = [before, now].map(|sample| sample.cell.and_then(Cell::clock_source));
    let (a, b) = a.zip(b).filter(|(a, b)| metric.is_by_hosts_clock() && a != b)?;
    Some(format!("their guests had different clock sources: {a} and {b}"))
}

/// The user's program with its values, and the user's file that has the functions. Another one of
/// that name is another measurement.
fn of_user(sample: &Sample, test: &Test) -> [Option<String>; 2] {
    let run = sample.run;
    let program = test.program().and_then(|name| {
        let program = run.programs.iter().find(|program| program.name == name)?;
        Some(format!("{}{}", program.sha256, program.given()))
    });
    let binary = match test {
        Test::Attach(test) => run.binaries.iter().find(|binary| Some(binary.name) == test.among),
        _ => None,
    };
    [program, binary.map(|binary| binary.sha256.clone())]
}

/// Without the configuration: hashes show that configurations differ, `compare` shows the options.
fn measured<'a>(sample: &Sample<'a>) -> Measured<'a> {
    Measured { run: sample.run, kernel: sample.kernel, config: None }
}

fn state(sample: &Sample, ancestry: Option<&Ancestry>) -> State {
    let Sample { run, kernel, .. } = sample;
    let commit = commit(kernel).map(str::to_owned);
    let release = run.cells_of(kernel.arch, &kernel.name).find_map(|cell| cell.guest.as_ref());
    State {
        title: ancestry.and_then(|known| known.title(commit.as_deref()?)).map(str::to_owned),
        release: release.map_or_else(|| kernel.source.clone(), |guest| guest.release.clone()),
        image_sha256: kernel.image_sha256.clone(),
        commit,
    }
}

/// Returns the kernel's commit. Older files have it only in the text of the source, if at all.
fn commit(kernel: &Kernel) -> Option<&str> {
    let told = || kernel.source.strip_prefix("git ")?.rsplit(' ').next();
    kernel.commit.as_deref().or_else(|| told().filter(|word| is_commit_id(word)))
}

fn line(run: &Run, kernel: &Kernel, accel: Accel, test: &Test) -> Line {
    // A cell without a measurement has no source of its own.
    let of_driver = || {
        let same = (kernel.arch, accel);
        let cells = run.cells.iter().filter(|cell| (cell.id.arch, cell.id.accel) == same);
        cells.filter_map(Cell::branch_source).find(|source| source.is_of_driver())
    };
    let guest = |machine: &Machine| {
        let Machine { cpu, cpus, memory_mib, append, .. } = kernel.guest_on(machine);
        let size = vec![
            text::counted(cpus as usize, "CPU"),
            format!("{memory_mib} MiB"),
            format!("-cpu {cpu}"),
        ];
        [size, append].concat().join(", ")
    };
    Line {
        kernel: line_of(kernel),
        arch: kernel.arch,
        accel,
        suite: run.suite.name.clone(),
        // Runs of schema 1 have no machine.
        guest: run
            .machine(kernel.arch, accel)
            .map_or_else(|| "machine not recorded".to_owned(), guest),
        of_driver: matches!(test, Test::LbrWaste(_)).then(of_driver).flatten(),
    }
}

/// Returns `linux` for `linux-v6.12` and `linux-0123456789ab`, names that `--kernel git:../linux#…`
/// makes, and `linux+bpf_stats-on` for `linux-v6.12+bpf_stats-on`.
pub fn line_of(kernel: &Kernel) -> String {
    let Some(commit) = commit(kernel) else { return kernel.name.clone() };
    let of = kernel.configuration.as_ref().map_or(&kernel.name, |configuration| &configuration.of);
    let (name, settings) = match kernel.name.strip_prefix(of.as_str()) {
        Some(settings) => (of.as_str(), settings),
        None => (kernel.name.as_str(), ""),
    };
    let rest = kernel.source.strip_prefix("git ").unwrap_or_default();
    // `git REPOSITORY REFERENCE COMMIT`.
    let reference = rest.rsplit(' ').nth(1).unwrap_or_default();
    let fit: String = reference.chars().map(|c| if is_name_char(c) { c } else { '_' }).collect();
    let endings = [commit.get(..12).unwrap_or(commit), &fit];
    let ending = endings.into_iter().filter(|ending| !ending.is_empty());
    let stripped =
        |ending: &str| name.strip_suffix(ending)?.strip_suffix('-').filter(|rest| !rest.is_empty());
    format!("{}{settings}", ending.into_iter().find_map(stripped).unwrap_or(name))
}
