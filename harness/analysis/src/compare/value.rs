// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers that cells measure, in the shapes in which they are compared.

use super::{Difference, Verdict, timed::Judged};
use crate::spread::median;
use std::{collections::BTreeSet, fmt};
use tramplab_model::{
    run::{Accel, TreeTest},
    tree_tests::End,
};
use tramplab_protocol::message::Stopped;

/// Two values of one metric have different shapes only in a file that was edited.
pub(super) const MIXED: &str = "the sides measured it in different ways";

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// None if no record touches the traced function.
    Records(Option<u32>),
    /// Milliseconds: the median of each boot's rounds, in the order of the boots.
    Times(Vec<f64>),
    /// Instructions or branches of a hit.
    Count(u32),
    /// Nanoseconds of the exact clock: the median of the rounds.
    ExactTime(u64),
    /// The same of a phase in which the attaching thread waits for grace periods.
    Waiting(Waiting),
    /// Instructions or grace periods of a phase with this number of functions, or estimated cycles
    /// of a hit of one. They repeat under the exact clock.
    InPhase {
        count: u64,
        functions: u32,
        repeats: bool,
    },
    /// A time budget ended it before all functions were attached.
    Stopped(Stopped),
    /// Nanoseconds: the median of one boot's rounds.
    PerHit(f64),
    /// Million hits per second: the median of each boot's seconds, in the order of the boots.
    Rates(Vec<f64>, Accel),
    Ended(Ended),
}

/// Nanoseconds of the exact clock: the shortest, the median and the longest round. A wait that just
/// misses a grace period takes another one, so two rounds may lie far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub low: u64,
    pub median: u64,
    pub high: u64,
    /// False if it only seems so: nobody counted, and the rounds lie far apart.
    pub is_known: bool,
}

impl Waiting {
    /// None without rounds. Of two middle rounds the lower one, so that it was really measured.
    pub fn of(rounds: &[u64], is_known: bool) -> Option<Waiting> {
        let mut sorted = rounds.to_vec();
        sorted.sort_unstable();
        let median = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
        Some(Waiting { low: *sorted.first()?, median, high: *sorted.last()?, is_known })
    }

    /// A time without waits.
    pub(super) fn exactly(ns: u64) -> Waiting {
        Waiting { low: ns, median: ns, high: ns, is_known: false }
    }

    pub(super) fn is_apart(self, other: Waiting) -> bool {
        self.high < other.low || other.high < self.low
    }

    /// The median, unless the rounds lie more than a per cent apart: then it is no level.
    pub fn level(self) -> Option<u64> {
        (self.high.saturating_sub(self.low) <= self.low / 100).then_some(self.median)
    }
}

/// How one of the tree's own tests ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub end: End,
    /// Its subtests that are ok.
    pub ok: BTreeSet<String>,
    /// Number of further ok subtests, which the run does not name.
    pub more: u32,
}

impl Ended {
    pub(super) fn of(ran: &TreeTest) -> Ended {
        let ok = ran.subtests.iter().filter(|subtest| subtest.end == End::Ok);
        let ok = ok.map(|subtest| subtest.name.clone()).collect();
        Ended { end: ran.end, ok, more: ran.left_out.ok }
    }

    fn count(&self) -> usize {
        self.ok.len().saturating_add(self.more as usize)
    }

    /// A test may end as ok with fewer subtests. Losing one that was ok is worse.
    pub fn is_worse_than(&self, before: &Ended) -> bool {
        let has_lost = match (before.more, self.more) {
            (0, 0) => !before.ok.is_subset(&self.ok),
            // A run names only the first subtests: compare numbers.
            _ => self.count() < before.count(),
        };
        self.end > before.end || (self.end == before.end && has_lost)
    }
}

impl Ended {
    pub(super) fn judge(base: &Value, head: &Value) -> Judged {
        let (Value::Ended(a), Value::Ended(b)) = (base, head) else {
            return Judged::not(MIXED);
        };
        let verdict = match () {
            () if b.is_worse_than(a) => Verdict::Worse,
            () if a.is_worse_than(b) => Verdict::Better,
            () => Verdict::Same(Difference::None),
        };
        verdict.into()
    }
}

impl Value {
    /// Records of a trace; instructions or branches of a hit.
    pub fn count(&self) -> Option<u32> {
        match *self {
            Value::Records(records) => records,
            Value::Count(count) => Some(count),
            Value::Times(_)
            | Value::PerHit(_)
            | Value::ExactTime(_)
            | Value::Waiting(_)
            | Value::InPhase { .. }
            | Value::Rates(..)
            | Value::Ended(_)
            | Value::Stopped(_) => None,
        }
    }

    /// The number in the metric's unit. None if the value is not a number.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Value::Records(records) => records.map(f64::from),
            Value::Count(count) => Some(f64::from(count)),
            Value::Times(ref times) => Some(median(times)),
            Value::PerHit(ns) => Some(ns),
            Value::ExactTime(ns) => Some(ns as f64 / 1e6),
            Value::Waiting(waiting) => waiting.level().map(|ns| ns as f64 / 1e6),
            Value::InPhase { count, .. } => Some(count as f64),
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
            Value::InPhase { count, .. } => f.pad(&count.to_string()),
            Value::Stopped(Stopped { wanted, attached, seconds, .. }) => {
                f.pad(&format!("{attached} of {wanted} in {seconds} s"))
            }
            Value::ExactTime(ns) => f.pad(&format!("{} ms", ms(*ns))),
            Value::Waiting(waiting) => match waiting.level() {
                Some(ns) => f.pad(&format!("{} ms", ms(ns))),
                None => f.pad(&format!("{}..{} ms", ms(waiting.low), ms(waiting.high))),
            },
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

fn ms(ns: u64) -> String {
    format!("{}.{:06}", ns / 1_000_000, ns % 1_000_000)
}

fn extremes(times: &[f64]) -> (f64, f64) {
    let extreme =
        |pick: fn(f64, f64) -> f64| times.iter().copied().reduce(pick).unwrap_or(f64::NAN);
    (extreme(f64::min), extreme(f64::max))
}
