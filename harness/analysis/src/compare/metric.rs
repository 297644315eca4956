// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of a pair of cells, each with a name.

use super::{Pair, Unmatched};
use crate::{
    branch::{Branch, Model, hardware},
    profile,
    spread::median,
};
use std::{collections::BTreeSet, fmt, str::FromStr};
use tramplab_model::{
    run::{
        Accel, Attach, AttachBoot, CLOCKS_APART, Cell, Clock, LbrWaste, Measurement, Outcome, Row, Test,
        Tolerance, TreeTest, Trigger,
    },
    selftests::{End, Name, Program, is_absent},
};
use tramplab_protocol::{
    Beside, BesideSet, Functions, Mechanism,
    message::{AttachRound, Explain, Stopped},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    Wasted {
        row: Row,
        filter: Branch,
    },
    Time {
        mechanism: Mechanism,
        functions: Functions,
        phase: Phase,
    },
    /// By the exact clock.
    ExactTime {
        mechanism: Mechanism,
        functions: Functions,
        phase: Phase,
    },
    Instructions {
        mechanism: Mechanism,
        functions: Functions,
        phase: profile::Phase,
        whose: Whose,
    },
    Trigger {
        mechanism: Mechanism,
        beside: BesideSet,
        cost: Cost,
    },
    /// Of the tree's own `bench`.
    Bench {
        benchmark: Name,
    },
    /// How a test of the tree's own `test_progs` ended.
    TestProgs {
        test: Name,
    },
    /// The same of a program of another folder.
    Kselftest {
        program: Program,
    },
}

/// Of what a phase executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// The attaching thread's, its interrupts left out.
    Thread,
    /// Everybody's: what a patch hands to a worker is in it, and the idle loop.
    All,
}

impl Whose {
    pub const ALL: [Whose; 2] = [Whose::Thread, Whose::All];
}

/// Of what a hit costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    Instructions,
    Branches,
    /// Longer with the program than without.
    Time,
}

impl Cost {
    pub const ALL: [Cost; 3] = [Cost::Instructions, Cost::Branches, Cost::Time];

    pub fn name(self) -> &'static str {
        match self {
            Cost::Instructions => "instructions",
            Cost::Branches => "branches",
            Cost::Time => "time",
        }
    }

    /// None where it was not counted.
    fn of(self, trigger: &Trigger) -> Option<Value> {
        let exact = trigger.cost.as_ref();
        match self {
            Cost::Instructions => exact.map(|cost| Value::Count(cost.instructions())),
            Cost::Branches => exact.map(|cost| Value::Count(cost.branches())),
            Cost::Time => {
                let rounds = trigger.attached_ns.iter().zip(&trigger.detached_ns);
                let per_hit = |(&with, &without): (&u64, &u64)| {
                    (with as f64 - without as f64) / f64::from(trigger.timed)
                };
                let times: Vec<f64> = rounds.map(per_hit).collect();
                (!times.is_empty()).then(|| Value::PerHit(median(&times)))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Load,
    Attach,
    Detach,
}

impl Phase {
    pub const ALL: [Phase; 3] = [Phase::Load, Phase::Attach, Phase::Detach];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Attach => "attach",
            Phase::Detach => "detach",
        }
    }

    fn ns(self, round: &AttachRound) -> u64 {
        match self {
            Phase::Load => round.load_ns,
            Phase::Attach => round.attach_ns,
            Phase::Detach => round.detach_ns,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// None: no record touches the traced function.
    Records(Option<u32>),
    /// Milliseconds: the median of each boot's rounds, in the order of the boots.
    Times(Vec<f64>),
    /// Instructions, or branches, of a hit.
    Count(u32),
    /// Nanoseconds of the exact clock: the median of the rounds.
    ExactTime(u64),
    /// Of a phase that attached to so many functions; `repeats` where they were counted under the exact clock.
    Instructions {
        count: u64,
        functions: u32,
        repeats: bool,
    },
    /// A time budget ended it: it is of another number of functions than was asked for.
    Stopped(Stopped),
    /// Nanoseconds: the median of one boot's rounds.
    PerHit(f64),
    /// Million hits per second: the median of each boot's seconds, in the order of the boots.
    Rates(Vec<f64>, Accel),
    Ended(Ended),
}

/// How one of the tree's own tests ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub end: End,
    /// Its subtests that are ok.
    pub ok: BTreeSet<String>,
    /// Those of them that the run does not name.
    pub more: u32,
}

impl Ended {
    fn of(ran: &TreeTest) -> Ended {
        let ok = ran.subtests.iter().filter(|subtest| subtest.end == End::Ok);
        let ok = ok.map(|subtest| subtest.name.clone()).collect();
        Ended { end: ran.end, ok, more: ran.left_out.ok }
    }

    fn count(&self) -> usize {
        self.ok.len() + self.more as usize
    }

    /// A test may end well with fewer subtests that ran: one that was ok and is not, or is no more, is a loss.
    pub fn is_worse_than(&self, before: &Ended) -> bool {
        let has_lost = match (before.more, self.more) {
            (0, 0) => !before.ok.is_subset(&self.ok),
            // Which of them are named depends on how many there are.
            _ => self.count() < before.count(),
        };
        self.end > before.end || (self.end == before.end && has_lost)
    }
}

impl Value {
    /// Records, or of a hit its instructions or branches.
    pub fn count(&self) -> Option<u32> {
        match *self {
            Value::Records(records) => records,
            Value::Count(count) => Some(count),
            Value::Times(_)
            | Value::PerHit(_)
            | Value::ExactTime(_)
            | Value::Instructions { .. }
            | Value::Rates(..)
            | Value::Ended(_)
            | Value::Stopped(_) => None,
        }
    }

    /// In the metric's unit; none where there is no number.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Value::Records(records) => records.map(f64::from),
            Value::Count(count) => Some(f64::from(count)),
            Value::Times(ref times) => Some(median(times)),
            Value::PerHit(ns) => Some(ns),
            Value::ExactTime(ns) => Some(ns as f64 / 1e6),
            Value::Instructions { count, .. } => Some(count as f64),
            Value::Rates(ref rates, _) => Some(median(rates)),
            Value::Stopped(_) | Value::Ended(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Records(Some(records)) => f.pad(&records.to_string()),
            Value::Records(None) => f.pad("-"),
            Value::Count(count) => f.pad(&count.to_string()),
            Value::Instructions { count, .. } => f.pad(&count.to_string()),
            Value::Stopped(Stopped { wanted, attached, seconds, .. }) => {
                f.pad(&format!("{attached} of {wanted} in {seconds} s"))
            }
            Value::ExactTime(ns) => f.pad(&format!("{}.{:06} ms", ns / 1_000_000, ns % 1_000_000)),
            Value::PerHit(ns) => f.pad(&format!("{ns:.0} ns")),
            Value::Ended(ended) if ended.count() == 0 => f.pad(ended.end.name()),
            Value::Ended(ended) => f.pad(&format!("{} ({} ok)", ended.end.name(), ended.count())),
            Value::Rates(rates, _) => {
                let (min, max) = extremes(rates);
                f.pad(&format!("{:.3} M/s ({min:.3}..{max:.3})", median(rates)))
            }
            Value::Times(times) => {
                let (min, max) = extremes(times);
                f.pad(&format!("{:.2} ms ({min:.2}..{max:.2})", median(times)))
            }
        }
    }
}

fn extremes(times: &[f64]) -> (f64, f64) {
    let extreme = |pick: fn(f64, f64) -> f64| times.iter().copied().reduce(pick).unwrap_or(f64::NAN);
    (extreme(f64::min), extreme(f64::max))
}

impl Metric {
    pub fn is_time(&self) -> bool {
        matches!(self, Metric::Time { .. } | Metric::Bench { .. })
    }

    /// Whether the host's speed is in it.
    pub fn is_by_hosts_clock(&self) -> bool {
        matches!(self, Metric::Time { .. } | Metric::Bench { .. } | Metric::Trigger { cost: Cost::Time, .. })
    }

    pub fn unit(&self) -> &'static str {
        match self {
            Metric::Wasted { .. } => "records",
            Metric::Time { .. } | Metric::ExactTime { .. } => "ms",
            Metric::Instructions { .. } | Metric::Trigger { cost: Cost::Instructions, .. } => "instructions",
            Metric::Trigger { cost: Cost::Branches, .. } => "branches",
            Metric::Trigger { cost: Cost::Time, .. } => "ns",
            Metric::Bench { .. } => "M/s",
            Metric::TestProgs { .. } | Metric::Kselftest { .. } => "result",
        }
    }

    /// How much more an exact one may be.
    pub fn tolerated(&self, tolerance: Tolerance) -> u32 {
        match self {
            Metric::Trigger { .. } => tolerance.trigger,
            // Of the others a share is tolerated, not a number.
            Metric::Wasted { .. }
            | Metric::Time { .. }
            | Metric::ExactTime { .. }
            | Metric::Instructions { .. }
            | Metric::Bench { .. }
            | Metric::TestProgs { .. }
            | Metric::Kselftest { .. } => tolerance.wasted,
        }
    }

    /// The test that measures it.
    pub fn test(&self) -> Test {
        match *self {
            Metric::Wasted { row, .. } => Test::LbrWaste { mechanism: row.mechanism },
            Metric::Time { mechanism, functions, .. }
            | Metric::ExactTime { mechanism, functions, .. }
            | Metric::Instructions { mechanism, functions, .. } => Test::Attach { mechanism, functions },
            Metric::Trigger { mechanism, beside, .. } => Test::Trigger { mechanism, beside },
            Metric::Bench { benchmark } => Test::Bench { benchmark },
            Metric::TestProgs { test } => Test::TestProgs { test },
            Metric::Kselftest { program } => Test::Kselftest { program },
        }
    }
}

/// `lbr_waste.kretprobe_multi.any`, `attach.fentry.1000.detach`, `trigger.kprobe_multi.instructions`.
impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Metric::Wasted { row, filter } => {
                format!("lbr_waste.{}.{}", plain(&row.to_string()), filter.name())
            }
            Metric::Time { mechanism, functions, phase } => {
                format!("attach.{}.{functions}.{}", plain(mechanism.name()), phase.name())
            }
            Metric::ExactTime { mechanism, functions, phase } => {
                format!("attach.{}.{functions}.{}.exact", plain(mechanism.name()), phase.name())
            }
            Metric::Instructions { mechanism, functions, phase, whose } => {
                let whose = match whose {
                    Whose::Thread => "",
                    Whose::All => "_of_all",
                };
                format!("attach.{}.{functions}.{}.instructions{whose}", plain(mechanism.name()), phase.name())
            }
            Metric::Trigger { mechanism, beside, cost } => {
                format!("trigger.{}.{}", plain(&beside.with(*mechanism)), cost.name())
            }
            Metric::Bench { benchmark } => format!("bench.{benchmark}.rate"),
            Metric::TestProgs { test } => format!("test_progs.{test}.result"),
            Metric::Kselftest { program } => format!("kselftest.{program}.result"),
        };
        f.pad(&name)
    }
}

/// Names as in the tables of a comparison. What they are made of may also have the names that suites give it (`kprobe.multi`,
/// `kprobe.session/exit`); without a phase, instructions are those of attaching.
impl FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(name: &str) -> Result<Metric, UnknownMetric> {
        let unknown = || UnknownMetric { name: name.to_owned(), near: nearest(name) };
        let (kind, rest) = name.split_once('.').ok_or_else(unknown)?;
        let found = match kind {
            "lbr_waste" => {
                let (row, filter) = rest.rsplit_once('.').ok_or_else(unknown)?;
                let row = Row::all().find(|known| plain(&known.to_string()) == plain(row));
                let filter = Branch::ALL.into_iter().find(|known| known.name() == filter);
                row.zip(filter).map(|(row, filter)| Metric::Wasted { row, filter })
            }
            "attach" => attach_metric(rest),
            "trigger" => {
                let (what, cost) = rest.rsplit_once('.').ok_or_else(unknown)?;
                let mut parts = what.split('+');
                let measured = parts.next().and_then(mechanism);
                let beside: Option<BesideSet> = parts
                    .map(|part| Beside::all().find(|known| plain(known.name()) == plain(part)))
                    .collect();
                let cost = Cost::ALL.into_iter().find(|known| known.name() == cost);
                match (measured, beside, cost) {
                    (Some(mechanism), Some(beside), Some(cost)) => {
                        Some(Metric::Trigger { mechanism, beside, cost })
                    }
                    _ => None,
                }
            }
            "bench" => {
                let benchmark = rest.strip_suffix(".rate").and_then(|name| name.parse().ok());
                benchmark.map(|benchmark| Metric::Bench { benchmark })
            }
            "test_progs" => {
                let test = rest.strip_suffix(".result").and_then(|name| name.parse().ok());
                test.map(|test| Metric::TestProgs { test })
            }
            "kselftest" => {
                let program = rest.strip_suffix(".result").and_then(|name| name.parse().ok());
                program.map(|program| Metric::Kselftest { program })
            }
            _ => None,
        };
        found.ok_or_else(unknown)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown metric `{name}`{}; expected lbr_waste.ROW.FILTER, attach.MECHANISM.FUNCTIONS.PHASE (wall time), \
     attach.MECHANISM.FUNCTIONS.PHASE.exact (the exact clock), attach.MECHANISM.FUNCTIONS.[PHASE.]instructions, \
     trigger.MECHANISM.COST, bench.BENCHMARK.rate, test_progs.TEST.result, or kselftest.FOLDER/PROGRAM.result, \
     e.g. lbr_waste.kretprobe_multi.any, attach.fentry.1000.attach.instructions, trigger.fentry.branches",
    near.as_ref().map_or_else(String::new, |near| format!(", did you mean `{near}`?"))
)]
pub struct UnknownMetric {
    name: String,
    near: Option<String>,
}

/// Of the metrics that have one name each: the one that was most probably meant.
fn nearest(name: &str) -> Option<String> {
    let wasted = Row::all().flat_map(|row| Branch::ALL.map(|filter| Metric::Wasted { row, filter }));
    let costs = Mechanism::ALL.into_iter().flat_map(|mechanism| {
        Cost::ALL.map(|cost| Metric::Trigger { mechanism, beside: BesideSet::default(), cost })
    });
    let name = plain(name);
    let distance = |known: &str| strsim::damerau_levenshtein(&name, &plain(known));
    let known = wasted.chain(costs).map(|metric| metric.to_string());
    // A mechanism that has two rows may have been named as if it had one.
    let near =
        known.map(|known| (distance(&known).min(distance(&known.replace("_entry", ""))), known)).min()?;
    (near.0 <= SLIP).then_some(near.1)
}

/// Letters that a slip changes.
const SLIP: usize = 2;

/// Dots part a metric's name.
fn plain(name: &str) -> String {
    name.replace(['.', '/'], "_")
}

fn mechanism(name: &str) -> Option<Mechanism> {
    Mechanism::ALL.into_iter().find(|known| plain(known.name()) == plain(name))
}

/// `fentry.1000.attach`, `kprobe.multi.all.detach.exact`, `fentry.1000.instructions`.
fn attach_metric(name: &str) -> Option<Metric> {
    let words: Vec<&str> = name.split('.').collect();
    // A mechanism's own dots come before the number of functions.
    let (at, functions) = words.iter().enumerate().skip(1).find_map(|(at, word)| {
        let functions = serde_json::from_str(word).or_else(|_| serde_json::from_value((*word).into()));
        Some((at, functions.ok()?))
    })?;
    let mechanism = mechanism(&words[..at].join("."))?;
    let phase = |name: &str| Phase::ALL.into_iter().find(|known| known.name() == name);
    let profiled = |name: &str| profile::Phase::ALL.into_iter().find(|known| known.name() == name);
    let whose = |name: &str| match name {
        "instructions" => Some(Whose::Thread),
        "instructions_of_all" => Some(Whose::All),
        _ => None,
    };
    Some(match words[at + 1..] {
        [last] => match (phase(last), whose(last)) {
            (Some(phase), _) => Metric::Time { mechanism, functions, phase },
            (None, whose) => {
                let phase = profile::Phase::Attach;
                Metric::Instructions { mechanism, functions, phase, whose: whose? }
            }
        },
        [first, "exact"] => Metric::ExactTime { mechanism, functions, phase: phase(first)? },
        [first, last] => {
            Metric::Instructions { mechanism, functions, phase: profiled(first)?, whose: whose(last)? }
        }
        _ => return None,
    })
}

/// How many functions an attach metric is to be of; none where that is not fixed.
pub fn asked_for(metric: &Metric) -> Option<u32> {
    match *metric {
        Metric::Time { functions: Functions::Count(count), .. }
        | Metric::ExactTime { functions: Functions::Count(count), .. }
        | Metric::Instructions { functions: Functions::Count(count), .. } => Some(count.get()),
        _ => None,
    }
}

/// All that a cell measured. `model` is the CPU whose waste it is.
pub fn of(cell: &Cell, model: Model) -> Vec<(Metric, Value)> {
    match (&cell.id.test, &cell.measurement) {
        (_, Some(Measurement::LbrWaste(waste))) => wasted(waste, model),
        (&Test::Attach { mechanism, functions }, Some(Measurement::Attach(measured))) => {
            attach(mechanism, functions, measured)
        }
        (&Test::Trigger { mechanism, beside }, Some(Measurement::Trigger(trigger))) => {
            let metric = |cost: Cost| Some((Metric::Trigger { mechanism, beside, cost }, cost.of(trigger)?));
            Cost::ALL.into_iter().filter_map(metric).collect()
        }
        (&Test::Bench { benchmark }, Some(Measurement::Bench(bench))) => {
            let rates = bench.boots.iter().map(|boot| median(&boot.hits)).collect();
            vec![(Metric::Bench { benchmark }, Value::Rates(rates, cell.id.accel))]
        }
        (&Test::TestProgs { test }, Some(Measurement::TestProgs(ran))) => {
            vec![(Metric::TestProgs { test }, Value::Ended(Ended::of(ran)))]
        }
        (&Test::Kselftest { program }, Some(Measurement::Kselftest(ran))) => {
            vec![(Metric::Kselftest { program }, Value::Ended(Ended::of(ran)))]
        }
        _ => Vec::new(),
    }
}

/// All that both cells measured; or, where one has nothing, how they ended. What neither has is nothing at all.
pub fn of_both(pair: &Pair, model: Model) -> Result<Vec<(Metric, Value, Value)>, Option<Unmatched>> {
    let Some(head) = pair.head.filter(|head| head.measurement.is_some() && pair.base.measurement.is_some())
    else {
        return Err(unmatched(pair));
    };
    let heads = of(head, model);
    let beside = |(metric, base): (Metric, Value)| {
        let (_, head) = heads.iter().find(|(other, _)| *other == metric)?;
        Some((metric, base, head.clone()))
    };
    Ok(of(pair.base, model).into_iter().filter_map(beside).collect())
}

/// Whether some of the functions that one side attached to are not the other's: one kernel lacks them, refuses them, or
/// was not done with them in time.
pub fn has_other_functions(pair: &Pair) -> bool {
    let lists = |cell: &Cell| match &cell.measurement {
        Some(Measurement::Attach(attach)) => {
            let guests = attach.boots.iter().chain(&attach.exact);
            Some(guests.map(|boot| boot.list_sha256.clone()).collect::<BTreeSet<_>>())
        }
        _ => None,
    };
    match (lists(pair.base), pair.head.and_then(lists)) {
        (Some(base), Some(head)) => base != head,
        _ => false,
    }
}

/// The clock sources of base and head, where times by them cannot be compared: they differ, or one side's guests had several.
pub fn other_clocks(pair: &Pair) -> Option<[String; 2]> {
    let clocks = [pair.base.clock_source()?, pair.head?.clock_source()?];
    let is_one = clocks[0] == clocks[1] && !clocks[0].contains(CLOCKS_APART);
    (!is_one).then(|| clocks.map(str::to_owned))
}

fn unmatched(pair: &Pair) -> Option<Unmatched> {
    let base = pair.base;
    let Some(head) = pair.head else {
        let head = "not in the run".to_owned();
        let measured = base.measurement.is_some();
        return measured.then(|| Unmatched {
            test: base.id.test.clone(),
            base: ending(base),
            head,
            lost: false,
            is_new: false,
        });
    };
    // Both built, or both lack the same: there is nothing to say.
    if matches!(
        (&base.outcome, &head.outcome),
        (Outcome::Pass, Outcome::Pass) | (Outcome::Skip { .. }, Outcome::Skip { .. })
    ) {
        return None;
    }
    let lost = base.measurement.is_some() && head.measurement.is_none();
    let is_new = base.id.test.is_of_the_tree()
        && matches!(&base.outcome, Outcome::Skip { reason } if is_absent(reason))
        && head.outcome == Outcome::Pass;
    Some(Unmatched { test: base.id.test.clone(), base: ending(base), head: ending(head), lost, is_new })
}

pub(super) fn ending(cell: &Cell) -> String {
    match &cell.outcome {
        Outcome::Pass => "pass".to_owned(),
        Outcome::Fail { .. } => "fail".to_owned(),
        Outcome::Error { kind, message } => format!("error: {kind}: {message}"),
        Outcome::Skip { reason } => format!("skip: {reason}"),
    }
}

fn wasted(waste: &LbrWaste, model: Model) -> Vec<(Metric, Value)> {
    let model = hardware::model(waste, model);
    let mut metrics = Vec::new();
    for point in &waste.points {
        let row = Row { mechanism: waste.mechanism, point: point.point };
        for filter in Branch::ALL {
            let count = point.wasted.get(model.name()).and_then(|filters| filters.get(filter.name()));
            let records = Value::Records(count.and_then(|count| count.wasted));
            metrics.push((Metric::Wasted { row, filter }, records));
        }
    }
    metrics
}

fn attach(mechanism: Mechanism, functions: Functions, measured: &Attach) -> Vec<(Metric, Value)> {
    let mut metrics = Vec::new();
    let mut add = |metric, value: Option<Value>| metrics.extend(value.map(|value| (metric, value)));
    for phase in Phase::ALL {
        add(Metric::Time { mechanism, functions, phase }, times(measured, phase));
    }
    for phase in Phase::ALL {
        add(Metric::ExactTime { mechanism, functions, phase }, exact_time(measured, phase));
    }
    for whose in Whose::ALL {
        for phase in profile::Phase::ALL {
            let metric = Metric::Instructions { mechanism, functions, phase, whose };
            add(metric, instructions(measured, phase, whose));
        }
    }
    metrics
}

/// The middle one; of two the lower: all are exact, and so is what is compared.
fn exact_time(attach: &Attach, phase: Phase) -> Option<Value> {
    let exact = attach.exact.as_ref()?;
    if let Some(stopped) = exact.stopped {
        return Some(Value::Stopped(stopped));
    }
    let mut times: Vec<u64> = exact.rounds.iter().map(|round| phase.ns(round)).collect();
    times.sort_unstable();
    times.get(times.len().checked_sub(1)? / 2).copied().map(Value::ExactTime)
}

fn instructions(attach: &Attach, phase: profile::Phase, whose: Whose) -> Option<Value> {
    let summary = attach.explained.iter().find(|one| one.phase == phase && one.how == Explain::Exact)?;
    let profile::Totals { task, interrupts, others } = summary.totals;
    let count = match whose {
        Whose::Thread => task,
        Whose::All => task.saturating_add(interrupts).saturating_add(others),
    };
    let repeats = summary.clock == Clock::Exact;
    Some(Value::Instructions { count, functions: summary.attached, repeats })
}

fn times(attach: &Attach, phase: Phase) -> Option<Value> {
    if let Some(stopped) = attach.boots.iter().find_map(|boot| boot.stopped) {
        return Some(Value::Stopped(stopped));
    }
    let boot = |boot: &AttachBoot| {
        let rounds: Vec<f64> = boot.rounds.iter().map(|round| phase.ns(round) as f64 / 1e6).collect();
        median(&rounds)
    };
    let times: Vec<f64> = attach.boots.iter().map(boot).collect();
    (!times.is_empty()).then_some(Value::Times(times))
}
