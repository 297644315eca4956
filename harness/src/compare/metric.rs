// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of a pair of cells, each with a name.

use super::{Pair, Unmatched};
use crate::{
    branch::{Branch, Model},
    profile,
    run::{Attach, AttachBoot, Cell, Clock, LbrWaste, Measurement, Outcome, Row, Test, Tolerance, Trigger},
};
use std::{collections::BTreeSet, fmt};
use tramplab_protocol::{
    BesideSet, Functions, Mechanism,
    message::{AttachRound, Explain, Stopped},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// Of what a phase executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
                (!times.is_empty()).then(|| Value::PerHit(Value::median(&times)))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    Instructions { count: u64, functions: u32, repeats: bool },
    /// A time budget ended it: it is of another number of functions than was asked for.
    Stopped(Stopped),
    /// Nanoseconds: the median of one boot's rounds.
    PerHit(f64),
}

impl Value {
    /// The middle of the times.
    pub fn median(times: &[f64]) -> f64 {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n => f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]),
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
            Value::Times(times) => {
                let extreme =
                    |pick: fn(f64, f64) -> f64| times.iter().copied().reduce(pick).unwrap_or(f64::NAN);
                let (min, max) = (extreme(f64::min), extreme(f64::max));
                f.pad(&format!("{:.2} ms ({min:.2}..{max:.2})", Value::median(times)))
            }
        }
    }
}

impl Metric {
    pub fn is_time(&self) -> bool {
        matches!(self, Metric::Time { .. })
    }

    /// How much more an exact one may be.
    pub fn tolerated(&self, tolerance: Tolerance) -> u32 {
        match self {
            Metric::Trigger { .. } => tolerance.trigger,
            // Of the others a share is tolerated, not a number.
            Metric::Wasted { .. }
            | Metric::Time { .. }
            | Metric::ExactTime { .. }
            | Metric::Instructions { .. } => tolerance.wasted,
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
        }
    }
}

/// `lbr_waste.kretprobe_multi.any`, `attach.fentry.1000.detach`, `trigger.kprobe_multi.instructions`.
impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |name: &str| name.replace(['.', '/'], "_");
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
        };
        f.pad(&name)
    }
}

/// All that both cells measured; or, where one has nothing, how they ended. What neither has is nothing at all.
pub fn of(pair: &Pair, model: Model) -> Result<Vec<(Metric, Value, Value)>, Option<Unmatched>> {
    let head = pair.head.and_then(|head| head.measurement.as_ref());
    match (&pair.base.measurement, head) {
        (Some(Measurement::LbrWaste(base)), Some(Measurement::LbrWaste(head))) => {
            Ok(wasted(base, head, model))
        }
        (Some(Measurement::Attach(base)), Some(Measurement::Attach(head))) => {
            let Test::Attach { mechanism, functions } = pair.base.id.test else { return Err(None) };
            Ok(attach(mechanism, functions, base, head))
        }
        (Some(Measurement::Trigger(base)), Some(Measurement::Trigger(head))) => {
            let Test::Trigger { mechanism, beside } = pair.base.id.test else { return Err(None) };
            let metric = |cost: Cost| {
                let metric = Metric::Trigger { mechanism, beside, cost };
                Some((metric, cost.of(base)?, cost.of(head)?))
            };
            Ok(Cost::ALL.into_iter().filter_map(metric).collect())
        }
        _ => Err(unmatched(pair)),
    }
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
    Some(Unmatched { test: base.id.test.clone(), base: ending(base), head: ending(head), lost })
}

fn ending(cell: &Cell) -> String {
    match &cell.outcome {
        Outcome::Pass => "pass".to_owned(),
        Outcome::Fail { .. } => "fail".to_owned(),
        Outcome::Error { kind, message } => format!("error: {kind}: {message}"),
        Outcome::Skip { reason } => format!("skip: {reason}"),
    }
}

fn wasted(base: &LbrWaste, head: &LbrWaste, model: Model) -> Vec<(Metric, Value, Value)> {
    let mut metrics = Vec::new();
    for a in &base.points {
        let Some(b) = head.points.iter().find(|b| b.point == a.point) else { continue };
        for filter in Branch::ALL {
            let records = |point: &crate::run::CapturePoint| {
                let count = point.wasted.get(model.name()).and_then(|filters| filters.get(filter.name()));
                Value::Records(count.and_then(|count| count.wasted))
            };
            let row = Row { mechanism: base.mechanism, point: a.point };
            metrics.push((Metric::Wasted { row, filter }, records(a), records(b)));
        }
    }
    metrics
}

fn attach(
    mechanism: Mechanism,
    functions: Functions,
    base: &Attach,
    head: &Attach,
) -> Vec<(Metric, Value, Value)> {
    let mut metrics = Vec::new();
    let mut add = |metric, of: &dyn Fn(&Attach) -> Option<Value>| {
        if let (Some(base), Some(head)) = (of(base), of(head)) {
            metrics.push((metric, base, head));
        }
    };
    for phase in Phase::ALL {
        add(Metric::Time { mechanism, functions, phase }, &|side| times(side, phase));
    }
    for phase in Phase::ALL {
        add(Metric::ExactTime { mechanism, functions, phase }, &|side| exact_time(side, phase));
    }
    for whose in Whose::ALL {
        for phase in profile::Phase::ALL {
            let metric = Metric::Instructions { mechanism, functions, phase, whose };
            add(metric, &|side| instructions(side, phase, whose));
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
        Value::median(&rounds)
    };
    let times: Vec<f64> = attach.boots.iter().map(boot).collect();
    (!times.is_empty()).then_some(Value::Times(times))
}
