// SPDX-License-Identifier: MIT OR Apache-2.0
//! Base against head: pure functions of stored cells. `docs/comparing.md` defines better and worse.
//!
//! [`agreement`] compares the verdicts on one series in several configurations. [`kinds`] reads the
//! numbers of cells and judges them, with [`exact`] and [`timed`]. [`pair`] finds the two cells to
//! compare. [`findings`] tells the causes of what changed, made of the differences of two listings
//! ([`hunk`]). [`layout`] knows how far the layout of the code alone moves numbers. [`excess`]
//! splits a number into the parts of functions. [`growth()`] compares the sizes of functions,
//! [`code()`] the instructions of one. [`listing`] aligns two branch listings. [`runs`] tells why
//! two stored runs cannot be compared.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

mod agreement;
pub mod axes;
mod code;
pub mod exact;
mod excess;
mod findings;
mod growth;
mod hunk;
pub mod kinds;
pub mod layout;
pub mod listing;
mod pair;
pub mod runs;
#[cfg(test)]
pub mod tests;
mod timed;
mod value;
mod work;

pub use agreement::{Agreement, Direction, agreements, label};
pub use code::{CodeRow, code};
pub use excess::{exceeded_metric, parts};
pub use findings::{Cause, Finding, Share, Work};
pub use growth::growth;
pub use hunk::{Change, ChangeKind};
pub use kinds::{jump, per_hit, value, values};
pub use layout::Layout;
pub use listing::{ListingRow, Listings, Side, Subject};
pub use pair::{HeadOnly, Pair, Unmatched, ending, head_only, pair_across, pair_up};
use timed::Judged;
pub use timed::{Levels, Ratio, levels};
pub use tramplab_model::kinds::{Metric, UnknownMetric};
pub use value::{Ended, Value, Waiting};

use crate::branch::Model;
use runs::Differing;
use std::fmt;
use tramplab_model::code::TextGrowth;
use tramplab_model::run::{
    Arch, BranchSource, Cell, Outcome, Run, Series, SeriesStep, Test, Tolerance,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The kernels' names.
    pub base: String,
    pub head: String,
    /// Both kernels are one image, byte for byte.
    pub same_image: bool,
    pub model: Model,
    /// The source of the counted records.
    pub records: BranchSource,
    pub metrics: Vec<Compared>,
    /// Tests that were measured on one side at most.
    pub unmatched: Vec<Unmatched>,
    /// Tests without a cell on the base. They judge nothing.
    pub head_only: Vec<HeadOnly>,
    /// Attach tests whose sides did not attach to the same functions.
    pub other_functions: Vec<Test>,
    /// Timed tests whose times are not judged, with the clock sources of base and head.
    pub other_clocks: Vec<(Test, [String; 2])>,
    /// Listings of every row measured on both sides, with the filter `any`.
    pub listings: Vec<Listings>,
    /// The causes of what is better or worse.
    pub findings: Vec<Finding>,
    /// All in which the kernels differ, if the runs tell.
    pub settings: Vec<Differing>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    pub metric: Metric,
    pub base: Value,
    pub head: Value,
    pub verdict: Verdict,
    /// Set for a time that was judged.
    pub ratio: Option<Ratio>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Better by more than the tolerance, and by more than layout explains.
    Better,
    /// Worse in the same way. It fails the head's cell.
    Worse,
    Same(Difference),
    /// For a time: its interval is not beyond the tolerance.
    NoDifferenceSeen,
    NotJudged(&'static str),
}

/// The reason why two numbers count as the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    None,
    /// Not more than the suite tolerates.
    Tolerated,
    /// Not more than never-called code moves it, or than [`kinds::layout_floor`].
    Layout,
}

impl Verdict {
    pub fn is_same(&self) -> bool {
        matches!(self, Verdict::Same(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Better => f.pad("better"),
            Verdict::Worse => f.pad("worse"),
            Verdict::Same(Difference::None) => f.pad("same"),
            Verdict::Same(Difference::Tolerated) => f.pad("same (within tolerance)"),
            Verdict::Same(Difference::Layout) => f.pad("same (layout)"),
            Verdict::NoDifferenceSeen => f.pad("no difference seen"),
            Verdict::NotJudged(reason) => f.pad(&format!("not judged: {reason}")),
        }
    }
}

/// How the times of the two sides were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Boot by boot, in one run.
    Interleaved,
    /// In separate runs: the times include whatever the host did meanwhile.
    Apart,
}

/// The source of records, which is the same for all pairs. Other pairs are not compared, or the
/// report names the difference.
fn records(pairs: &[Pair]) -> BranchSource {
    let cells = pairs.iter().flat_map(|pair| std::iter::once(pair.base).chain(pair.head));
    let of_driver = cells.filter_map(Cell::branch_source).find(|source| source.is_of_driver());
    of_driver.unwrap_or(BranchSource::Virtual)
}

/// Compares two kernels' cells. `model` is the CPU whose counts are compared.
pub fn compare(
    base: &str,
    head: &str,
    pairs: &[Pair],
    model: Model,
    tolerance: Tolerance,
    timing: Timing,
    layout: &Layout,
) -> Comparison {
    let mut metrics = Vec::new();
    let mut unmatched = Vec::new();
    let mut other_functions = Vec::new();
    let mut other_clocks = Vec::new();
    let mut listings = Vec::new();
    let (mut jumping, mut hanging, mut other_cpus) = (Vec::new(), Vec::new(), Vec::new());
    let of_hits: Vec<(Metric, u64)> = pairs.iter().filter_map(kinds::layout_of_hit).collect();
    for pair in pairs {
        jumping.extend(kinds::jumping(pair));
        hanging.extend(kinds::hanging(pair, tolerance.exact_percent));
        other_cpus.extend(kinds::is_of_other_cpu(pair).then(|| pair.base.id.test.clone()));
        match pair::values(pair, model) {
            Ok(found) => {
                let is_timed = found.iter().any(|(metric, ..)| metric.is_by_hosts_clock());
                let clocks = pair::other_clocks(pair).filter(|_| is_timed);
                other_clocks.extend(clocks.map(|clocks| (pair.base.id.test.clone(), clocks)));
                metrics.extend(found);
            }
            Err(without) => unmatched.extend(without.map(|without| *without)),
        }
        if kinds::has_other_functions(pair) {
            other_functions.push(pair.base.id.test.clone());
        }
        listings.extend(kinds::listings(pair, model));
    }
    let has_other_clock = |metric: Metric| {
        metric.is_by_hosts_clock() && other_clocks.iter().any(|(test, _)| *test == metric.test())
    };
    let is_judged_time = |metric: Metric| metric.is_time() && !has_other_clock(metric);
    let times = metrics.iter().filter(|(metric, ..)| is_judged_time(*metric)).count();
    let alpha = timed::ALPHA / times.max(1) as f64;
    let metrics: Vec<Compared> = metrics
        .into_iter()
        .map(|(metric, base, head)| {
            let of_hit = of_hits.iter().find(|(of, _)| *of == metric).map_or(0, |(_, band)| *band);
            let layout = layout.of(&metric).max(of_hit);
            let how = Judging { alpha, tolerance, timing, layout };
            let Judged { verdict, ratio } = match () {
                () if has_other_clock(metric) => {
                    Judged::not("the guests had different clock sources")
                }
                () if jumping.contains(&metric) => Judged::not("its rounds jump by grace periods"),
                () => kinds::judge(metric, &base, &head, how),
            };
            let is_of_other_cpu = metric.is_estimate() && other_cpus.contains(&metric.test());
            let verdict = verdict.unless(is_of_other_cpu, OTHER_CPU);
            let verdict = verdict.unless(hanging.contains(&metric), HANGS);
            Compared { metric, base, head, verdict, ratio }
        })
        .collect();
    let [base, head] = [base, head].map(str::to_owned);
    let findings = findings::of(&metrics, pairs, &listings, model);
    Comparison {
        base,
        head,
        same_image: false,
        model,
        records: records(pairs),
        metrics,
        unmatched,
        head_only: Vec::new(),
        other_functions,
        other_clocks,
        listings,
        findings,
        settings: Vec::new(),
    }
}

/// The reasons why an estimate is not judged.
const OTHER_CPU: &str = "estimated for another CPU";
const HANGS: &str = "it hangs on one number of the CPU: half or half as much again reverses it";

/// Returns true if a time of these two cells seems better or worse by their boots so far, so that
/// more boots should decide.
pub fn seem_to_differ(base: &Cell, head: &Cell, tolerance: Tolerance) -> bool {
    let pair = Pair { base, head: Some(head) };
    let model = Model::choose(None, base.id.arch);
    let how = Judging { alpha: timed::DOUBT, tolerance, timing: Timing::Interleaved, layout: 0 };
    let jumping = kinds::jumping(&pair);
    let seems = |(metric, base, head): (Metric, Value, Value)| {
        let verdict = kinds::judge(metric, &base, &head, how).verdict;
        let is_judged = metric.is_time() && !jumping.contains(&metric);
        is_judged && matches!(verdict, Verdict::Better | Verdict::Worse)
    };
    pair::other_clocks(&pair).is_none()
        && pair::values(&pair, model).unwrap_or_default().into_iter().any(seems)
}

/// The parameters to judge a pair.
#[derive(Clone, Copy)]
struct Judging {
    /// Chance of calling a time different when it is not.
    alpha: f64,
    tolerance: Tolerance,
    timing: Timing,
    /// How far the metric moves with the layout of the code.
    layout: u64,
}

impl Comparison {
    /// Names causes where no record tells one: functions of the hit that another build resized, or
    /// all in which the kernels differ.
    pub fn explain(&mut self, pairs: &[Pair], text: Option<&TextGrowth>, settings: Vec<Differing>) {
        if let Some(text) = text {
            findings::explain_by_size(&mut self.findings, pairs, &self.listings, text);
        }
        for finding in &mut self.findings {
            if finding.cause == Cause::Unknown && !settings.is_empty() {
                finding.cause = Cause::Settings(settings.clone());
            }
        }
        self.settings = settings;
    }

    /// Returns true if both sides have no number in common.
    pub fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    pub fn count(&self, wanted: impl Fn(&Verdict) -> bool) -> usize {
        self.metrics.iter().filter(|compared| wanted(&compared.verdict)).count()
    }
}

/// The cells of two kernels of one run.
fn sides<'a>(run: &'a Run, arch: Arch, base: &str, head: &str) -> [Vec<&'a Cell>; 2] {
    [base, head].map(|kernel| run.cells_of(arch, kernel).collect())
}

/// The CPU whose records are compared.
fn model_of(run: &Run, series: &Series, asked: Option<Model>) -> Model {
    run.kernel(series.arch, &series.base().kernel).map_or_else(
        || Model::choose(asked, series.arch),
        |kernel| Model::of_kernel(asked, run, kernel),
    )
}

/// Compares the base of a measured series with its head. `asked` is the CPU whose counts are
/// compared, if it fits.
pub fn whole(run: &Run, series: &Series, asked: Option<Model>) -> Comparison {
    let model = model_of(run, series, asked);
    between(
        run,
        series,
        [series.base(), series.head()],
        model,
        &Layout::measured(run, series, model),
    )
}

/// Compares each step of a measured series with the step before.
pub fn walk(run: &Run, series: &Series, asked: Option<Model>) -> Vec<Comparison> {
    let model = model_of(run, series, asked);
    let layout = Layout::measured(run, series, model);
    let pairs = series.steps.windows(2);
    pairs.map(|pair| between(run, series, [&pair[0], &pair[1]], model, &layout)).collect()
}

fn between(
    run: &Run,
    series: &Series,
    [base, head]: [&SeriesStep; 2],
    model: Model,
    layout: &Layout,
) -> Comparison {
    let [cells, heads] = sides(run, series.arch, &base.kernel, &head.kernel);
    let pairs = pair_up(&cells, &heads);
    let head_only = head_only(&pairs, &heads);
    let mut compared = compare(
        &base.kernel,
        &head.kernel,
        &pairs,
        model,
        run.tolerance,
        Timing::Interleaved,
        layout,
    );
    compared.explain(&pairs, growth_between(series, &base.kernel, &head.kernel), Vec::new());
    let [one, other] = [base, head].map(|step| image(run, series.arch, &step.kernel));
    Comparison { same_image: one.is_some() && one == other, head_only, ..compared }
}

/// How the code grew from one kernel to the other: known of a series' ends.
pub fn growth_between<'a>(series: &'a Series, base: &str, head: &str) -> Option<&'a TextGrowth> {
    let is_it = (series.base().kernel.as_str(), series.head().kernel.as_str()) == (base, head);
    series.text.as_ref().filter(|_| is_it)
}

/// The digest of a kernel's image, if it was built.
fn image<'a>(run: &'a Run, arch: Arch, name: &str) -> Option<&'a str> {
    run.kernel(arch, name)?.image_sha256.as_deref()
}

/// Fails the cells of the head that got worse or lost their measurement.
pub fn judge(run: &mut Run) {
    for series in run.series.clone() {
        judge_series(run, &series);
    }
}

/// In the reason of a cell that fails because a metric got worse.
const WORSE: &str = " is worse than on ";

/// The metric that got worse, if that is the reason of a failure.
pub fn worse_metric(reason: &str) -> Option<Metric> {
    reason.split_once(WORSE)?.0.parse().ok()
}

fn judge_series(run: &mut Run, series: &Series) {
    let mut comparisons = walk(run, series, None);
    if series.steps.len() > 2 {
        comparisons.push(whole(run, series, None));
    }
    let arch = series.arch;
    for Comparison { base, head, metrics, unmatched, .. } in comparisons {
        for Compared { metric, base: was, head: is, verdict, .. } in metrics {
            if verdict == Verdict::Worse {
                let reason = format!("{metric}{WORSE}{base}: {was} -> {is}");
                fail(run, arch, &head, &metric.test(), reason);
            }
        }
        for Unmatched { test, base: was, head: is, lost, .. } in unmatched {
            if lost {
                let reason = format!("{base} measures it ({was}), {head} does not: {is}");
                fail(run, arch, &head, &test, reason);
            }
        }
    }
}

fn fail(run: &mut Run, arch: Arch, kernel: &str, test: &Test, reason: String) {
    let is_this = |cell: &&mut Cell| {
        cell.id.arch == arch && cell.id.kernel == kernel && cell.id.test == *test
    };
    let Some(cell) = run.cells.iter_mut().find(is_this) else { return };
    match &mut cell.outcome {
        // A result that a rerun took over was judged before.
        Outcome::Fail { reasons } if reasons.contains(&reason) => {}
        Outcome::Fail { reasons } => reasons.push(reason),
        // An error is more than a failure: keep it.
        Outcome::Error { .. } => {}
        Outcome::Pass | Outcome::Skip { .. } => {
            cell.outcome = Outcome::Fail { reasons: vec![reason] }
        }
    }
}
