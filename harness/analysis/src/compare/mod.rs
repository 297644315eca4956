// SPDX-License-Identifier: MIT OR Apache-2.0
//! Base against head: pure functions of stored cells. What better and worse mean: `docs/comparing.md`.
//!
//! [`metric`] takes the numbers out of a pair of cells, [`exact`] and [`timed`] judge them, [`layout`] knows how far they move
//! with the layout of the code alone, [`listing`] lays two branch listings beside each other, [`runs`] says whether two stored
//! runs can be compared at all.

pub mod exact;
pub mod layout;
pub mod listing;
pub mod metric;
pub mod runs;
#[cfg(test)]
pub mod tests;
mod timed;

pub use layout::Layout;
pub use listing::{Listings, Row, Side, Subject};
pub use metric::{Cost, Metric, Phase, UnknownMetric, Value, Whose};
use timed::Judged;
pub use timed::{Levels, Ratio, levels};

use crate::branch::Model;
use std::{cmp::Ordering, fmt};
use tramplab_model::run::{
    Accel, Arch, BranchSource, Cell, CellId, Outcome, Run, Series, Step, Test, Tolerance,
};

/// The same test on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub base: &'a Cell,
    /// None where the head's run has no such cell: it was not selected, or the run ended before it.
    pub head: Option<&'a Cell>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The kernels' names.
    pub base: String,
    pub head: String,
    /// Both kernels are one image, byte for byte.
    pub same_image: bool,
    pub model: Model,
    /// Whose records were counted.
    pub records: BranchSource,
    pub metrics: Vec<Compared>,
    /// Cells of which one side has no measurement.
    pub unmatched: Vec<Unmatched>,
    /// Tests of which the base has no cell. They judge nothing.
    pub head_only: Vec<HeadOnly>,
    /// Attach tests whose sides did not attach to the same functions.
    pub other_functions: Vec<Test>,
    /// Timed tests whose times are not judged, with the clock sources of base and head.
    pub other_clocks: Vec<(Test, [String; 2])>,
    /// Of every row measured on both sides, in `any`.
    pub listings: Vec<Listings>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    pub metric: Metric,
    pub base: Value,
    pub head: Value,
    pub verdict: Verdict,
    /// Of a time that was judged.
    pub ratio: Option<Ratio>,
}

/// A cell that was measured on one side at most.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmatched {
    pub test: Test,
    pub base: String,
    pub head: String,
    /// The head lost what the base has.
    pub lost: bool,
    /// A test that only the head's tree has, and that passed there.
    pub is_new: bool,
}

/// A test that the base's run did not select, or was interrupted before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadOnly {
    pub test: Test,
    pub head: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By more than is tolerated, and than layout explains.
    Better,
    /// The same the other way round: it fails the head's cell.
    Worse,
    Same(Difference),
    /// A time: its interval does not lie beyond what is tolerated.
    NoDifferenceSeen,
    NotJudged(&'static str),
}

/// How two numbers may differ and be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    None,
    /// No more than the suite tolerates.
    Tolerated,
    /// No more than code that is never called, or [`layout::floor`], moves it.
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

/// How the two sides' times were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Boot by boot, in one run.
    Interleaved,
    /// In runs of their own: whatever the host did meanwhile is in them.
    Apart,
}

/// Of one comparison all are alike: of other pairs it does not come to one, or it is said that they are not.
fn records(pairs: &[Pair]) -> BranchSource {
    let cells = pairs.iter().flat_map(|pair| std::iter::once(pair.base).chain(pair.head));
    let is_hardware = |cell: &Cell| cell.branch_source() == Some(BranchSource::Hardware);
    if cells.into_iter().any(is_hardware) { BranchSource::Hardware } else { BranchSource::Virtual }
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
    for pair in pairs {
        match metric::of_both(pair, model) {
            Ok(found) => {
                let is_timed = found.iter().any(|(metric, ..)| metric.is_by_hosts_clock());
                let clocks = metric::other_clocks(pair).filter(|_| is_timed);
                other_clocks.extend(clocks.map(|clocks| (pair.base.id.test.clone(), clocks)));
                metrics.extend(found);
            }
            Err(without) => unmatched.extend(without),
        }
        if metric::has_other_functions(pair) {
            other_functions.push(pair.base.id.test.clone());
        }
        listings.extend(listing::side_by_side(pair, model));
    }
    let has_other_clock = |metric: Metric| {
        metric.is_by_hosts_clock() && other_clocks.iter().any(|(test, _)| *test == metric.test())
    };
    let is_judged_time = |metric: Metric| metric.is_time() && !has_other_clock(metric);
    let times = metrics.iter().filter(|(metric, ..)| is_judged_time(*metric)).count();
    let metrics = metrics
        .into_iter()
        .map(|(metric, base, head)| {
            let how = Judging { times, tolerance, timing, layout: layout.of(&metric) };
            let Judged { verdict, ratio } = match has_other_clock(metric) {
                true => Judged::not("the guests had different clock sources"),
                false => judge_pair(metric, &base, &head, how),
            };
            Compared { metric, base, head, verdict, ratio }
        })
        .collect();
    let [base, head] = [base, head].map(str::to_owned);
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
    }
}

/// By what a pair is judged.
#[derive(Clone, Copy)]
struct Judging {
    /// How many times are judged together.
    times: usize,
    tolerance: Tolerance,
    timing: Timing,
    /// How far the metric moves with the layout of the code.
    layout: u64,
}

fn judge_pair(metric: Metric, base: &Value, head: &Value, how: Judging) -> Judged {
    let Judging { times, tolerance, timing, layout } = how;
    let exactly = |verdict| Judged { verdict, ratio: None };
    match (base, head) {
        (Value::Stopped(_), _) | (_, Value::Stopped(_)) => Judged::not("a time budget ended it"),
        (Value::Times(a), Value::Times(b)) => match timing {
            Timing::Interleaved => timed::judge(a, b, times, tolerance.time_percent),
            Timing::Apart => Judged::not("the two runs were not interleaved"),
        },
        (&Value::ExactTime(a), &Value::ExactTime(b)) => {
            let verdict = exact::share(a, b, tolerance.exact_percent, layout);
            let waits = matches!(metric, Metric::ExactTime { phase: Phase::Detach, .. });
            exactly(verdict.unless(waits, "a grace period that is just missed costs another one"))
        }
        (
            &Value::Instructions { count: a, functions: of_a, repeats: a_repeats },
            &Value::Instructions { count: b, functions: of_b, repeats: b_repeats },
        ) => {
            if of_a != of_b {
                return Judged::not("of another number of functions");
            }
            if a != b && !(a_repeats && b_repeats) {
                return Judged::not("counted under the host's clock");
            }
            let is_idle = matches!(metric, Metric::Instructions { whose: Whose::All, .. });
            let verdict = exact::share(a, b, tolerance.exact_percent, layout);
            exactly(verdict.unless(is_idle, "the idle loop is in it"))
        }
        (Value::PerHit(_), _) => Judged::not("of one boot each"),
        (Value::Rates(_, Accel::Tcg), _) => Judged::not("throughput under TCG is the emulator's"),
        (Value::Rates(a, Accel::Kvm), Value::Rates(b, _)) => match timing {
            Timing::Interleaved if [a, b].iter().any(|rates| rates.contains(&0.0)) => {
                let idle = |rates: &[f64]| rates.iter().filter(|rate| **rate == 0.0).count();
                // No ratio says it: programs that run in fewer guests than before run worse.
                match idle(b).cmp(&idle(a)) {
                    Ordering::Greater => exactly(Verdict::Worse),
                    Ordering::Less => exactly(Verdict::Better),
                    Ordering::Equal => Judged::not("as many guests of each side had no hit in most seconds"),
                }
            }
            // As what a hit takes: more is worse.
            Timing::Interleaved => {
                let [a, b] = [a, b].map(|rates| rates.iter().map(|rate| 1.0 / rate).collect::<Vec<_>>());
                timed::judge(&a, &b, times, tolerance.time_percent)
            }
            Timing::Apart => Judged::not("the two runs were not interleaved"),
        },
        (Value::Ended(a), Value::Ended(b)) => exactly(match () {
            () if b.is_worse_than(a) => Verdict::Worse,
            () if a.is_worse_than(b) => Verdict::Better,
            () => Verdict::Same(Difference::None),
        }),
        _ => exactly(exact::count(base.count(), head.count(), metric.tolerated(tolerance), layout)),
    }
}

impl Comparison {
    /// Whether there is any number that both sides have.
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

/// Cells of the same test, architecture and accelerator.
pub fn pair_up<'a>(base: &[&'a Cell], head: &[&'a Cell]) -> Vec<Pair<'a>> {
    let same =
        |a: &Cell, b: &Cell| (a.id.arch, a.id.accel, &a.id.test) == (b.id.arch, b.id.accel, &b.id.test);
    let partner = |a: &'a Cell| Pair { base: a, head: head.iter().copied().find(|b| same(a, b)) };
    base.iter().map(|&a| partner(a)).collect()
}

/// The cells of the head whose test the base has no cell of.
pub fn head_only(base: &[&Cell], head: &[&Cell]) -> Vec<HeadOnly> {
    let paired: Vec<&CellId> = pair_up(base, head).iter().filter_map(|pair| Some(&pair.head?.id)).collect();
    let alone = head.iter().filter(|cell| cell.id.test != Test::Build && !paired.contains(&&cell.id));
    alone.map(|cell| HeadOnly { test: cell.id.test.clone(), head: metric::ending(cell) }).collect()
}

/// Of a series that the run measured: base against head. `asked` is the CPU whose counts are compared, if it fits.
pub fn whole(run: &Run, series: &Series, asked: Option<Model>) -> Comparison {
    let model = Model::choose(asked, series.arch);
    between(run, series, [series.base(), series.head()], model, &Layout::measured(run, series, model))
}

/// Of a series that the run measured: each patch against what it is on.
pub fn walk(run: &Run, series: &Series, asked: Option<Model>) -> Vec<Comparison> {
    let model = Model::choose(asked, series.arch);
    let layout = Layout::measured(run, series, model);
    let pairs = series.steps.windows(2);
    pairs.map(|pair| between(run, series, [&pair[0], &pair[1]], model, &layout)).collect()
}

fn between(
    run: &Run,
    series: &Series,
    [base, head]: [&Step; 2],
    model: Model,
    layout: &Layout,
) -> Comparison {
    let [cells, heads] = sides(run, series.arch, &base.kernel, &head.kernel);
    let pairs = pair_up(&cells, &heads);
    let head_only = head_only(&cells, &heads);
    let compared =
        compare(&base.kernel, &head.kernel, &pairs, model, run.tolerance, Timing::Interleaved, layout);
    let [one, other] = [base, head].map(|step| image(run, series.arch, &step.kernel));
    Comparison { same_image: one.is_some() && one == other, head_only, ..compared }
}

/// The digest of a kernel's image, if it was built.
fn image<'a>(run: &'a Run, arch: Arch, name: &str) -> Option<&'a str> {
    let kernel = run.kernels.iter().find(|kernel| (kernel.arch, kernel.name.as_str()) == (arch, name))?;
    kernel.image_sha256.as_deref()
}

/// Turns what is worse, or lost, into failures of the cells that show it.
pub fn judge(run: &mut Run) {
    for series in run.series.clone() {
        judge_series(run, &series);
    }
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
                let reason = format!("{metric} is worse than on {base}: {was} -> {is}");
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
    let is_this =
        |cell: &&mut Cell| cell.id.arch == arch && cell.id.kernel == kernel && cell.id.test == *test;
    let Some(cell) = run.cells.iter_mut().find(is_this) else { return };
    match &mut cell.outcome {
        Outcome::Fail { reasons } => reasons.push(reason),
        // Not measured at all: more than a failure.
        Outcome::Error { .. } => {}
        Outcome::Pass | Outcome::Skip { .. } => cell.outcome = Outcome::Fail { reasons: vec![reason] },
    }
}
