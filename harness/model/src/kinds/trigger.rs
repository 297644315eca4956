// SPDX-License-Identifier: MIT OR Apache-2.0
//! `trigger`: the cost of a hit of a program, the empty one or a user's.

use super::{Place, attached, plain, programmed};
use crate::{
    function::{At, FunctionName},
    program::ProgramName,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{EnumString, IntoStaticStr};
use tramplab_protocol::{Beside, BesideSet, Mechanism, Point, message, trace};

pub const TEST_SYNTAX: &str = "trigger/MECHANISM[=PROGRAM][+BESIDE][@FUNCTION]";
pub const METRIC_SYNTAX: &str = "trigger.MECHANISM[=PROGRAM][+BESIDE][@FUNCTION].COST";

/// `fentry`, `fentry+7xfentry+kprobe.multi:1000+function_tracer`, `fentry=on_bpf@__sys_bpf`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TriggerTest")]
pub struct Test {
    pub mechanism: Mechanism,
    /// The user's program. None: the empty one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramName>,
    /// Other programs or tracers, on the same function or on others.
    #[serde(default, skip_serializing_if = "BesideSet::is_empty")]
    pub beside: BesideSet,
    /// The traced function. None: the kernel's own test function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionName>,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        let (name, function) = FunctionName::split(name)?;
        let mut parts = name.split('+');
        let (mechanism, program) = programmed(parts.next()?)?;
        let beside = parts.map(|part| Beside::parse(part, super::mechanism).ok());
        let beside = BesideSet::of(beside.collect::<Option<Vec<_>>>()?).ok()?;
        Some(Test { mechanism, program, beside, function })
    }

    /// The name without the function.
    pub fn attached(self) -> String {
        self.beside.with(attached(self.mechanism, self.program))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}", self.attached(), At(self.function)))
    }
}

/// `kprobe_multi.instructions`, `fentry+function_tracer.branches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metric {
    pub test: Test,
    pub cost: Cost,
}

/// One number of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Cost {
    Instructions,
    Branches,
    /// Data accesses.
    Reads,
    Writes,
    /// Time with the program minus time without it.
    Time,
}

impl Cost {
    pub const ALL: [Cost; 5] =
        [Cost::Instructions, Cost::Branches, Cost::Reads, Cost::Writes, Cost::Time];

    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Metric {
    /// All metrics of tests without anything beside.
    pub fn all_alone() -> impl Iterator<Item = Metric> {
        let beside = BesideSet::default();
        let alone = move |mechanism| Test { mechanism, program: None, beside, function: None };
        Mechanism::ALL.into_iter().flat_map(move |mechanism| {
            Cost::ALL.map(|cost| Metric { test: alone(mechanism), cost })
        })
    }

    pub fn parse(name: &str) -> Option<Metric> {
        let (test, cost) = name.rsplit_once('.')?;
        Some(Metric { test: Test::parse(test)?, cost: cost.parse().ok()? })
    }

    pub fn unit(&self) -> &'static str {
        match self.cost {
            Cost::Instructions => "instructions",
            Cost::Branches => "branches",
            Cost::Reads => "reads",
            Cost::Writes => "writes",
            Cost::Time => "ns",
        }
    }

    pub fn repeats(&self) -> bool {
        match self.cost {
            Cost::Instructions | Cost::Branches | Cost::Reads | Cost::Writes => true,
            Cost::Time => false,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metric { test, cost } = self;
        write!(f, "{}{}.{}", plain(&test.attached()), At(test.function), cost.name())
    }
}

/// The measurement of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    pub mechanism: Mechanism,
    pub function: message::Symbol,
    /// The way in which the function was hit, if the test names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<message::Triggered>,
    /// The tracers attached to other functions meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<message::Others>,
    /// None under KVM: the plugin needs TCG.
    pub cost: Option<TriggerCost>,
    /// Number of hits in a timed round. Then the guest nanoseconds of each round, with the
    /// program attached and without it.
    pub timed: u32,
    pub attached_ns: Vec<u64>,
    pub detached_ns: Vec<u64>,
}

/// Counts of hits without an interrupt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerCost {
    /// The same counts as in `lbr_waste`.
    pub hits: u32,
    pub interrupted_hits: u32,
    pub agreeing_hits: u32,
    /// SHA-256 of the records of all parts, in symbolic form and with their instructions.
    pub digest: String,
    /// In execution order.
    pub parts: Vec<TriggerPart>,
}

impl TriggerCost {
    pub fn instructions(&self) -> u32 {
        self.parts.iter().map(|part| part.instructions).fold(0, u32::saturating_add)
    }

    pub fn branches(&self) -> u32 {
        self.parts.iter().map(|part| part.branches).fold(0, u32::saturating_add)
    }

    /// None if they were not counted.
    pub fn reads(&self) -> Option<u32> {
        self.parts.iter().try_fold(0, |sum: u32, part| Some(sum.saturating_add(part.reads?)))
    }

    /// None if they were not counted.
    pub fn writes(&self) -> Option<u32> {
        self.parts.iter().try_fold(0, |sum: u32, part| Some(sum.saturating_add(part.writes?)))
    }

    pub fn part(&self, point: Point) -> Option<&TriggerPart> {
        self.parts.iter().find(|part| part.point == point)
    }
}

/// The code between the function's entry and its body (`entry`), or between its `ret` and its
/// caller (`exit`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerPart {
    pub point: Point,
    pub instructions: u32,
    /// Taken branches. The function's own `ret`, with which an exit part begins, is not counted.
    pub branches: u32,
    /// Data accesses. None in runs from before they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<u32>,
    /// Oldest first. The first record leaves the function; the last returns to it or to its caller.
    pub records: Vec<TriggerRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRecord {
    pub from: Place,
    pub to: Place,
    pub kind: trace::Kind,
    /// Instructions since the record before, this branch included. 0 for a part's first record,
    /// which the function itself executes.
    pub instructions: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_any_counts_stay_at_the_maximum() {
        let part = |point, count, reads| TriggerPart {
            point,
            instructions: count,
            branches: count,
            reads,
            writes: Some(count),
            records: Vec::new(),
        };
        let cost = |parts| TriggerCost {
            hits: 1,
            interrupted_hits: 0,
            agreeing_hits: 1,
            digest: String::new(),
            parts,
        };
        let sums = |cost: &TriggerCost| {
            (cost.instructions(), cost.branches(), cost.reads(), cost.writes())
        };
        let large = part(Point::Entry, u32::MAX, Some(u32::MAX));
        let small = part(Point::Exit, 2, Some(3));
        let most = u32::MAX;
        let both = cost(vec![large, small.clone()]);
        assert_eq!(sums(&both), (most, most, Some(most), Some(most)));
        assert_eq!(sums(&cost(vec![small.clone(), small.clone()])), (4, 4, Some(6), Some(4)));
        let uncounted = TriggerPart { reads: None, ..small.clone() };
        assert_eq!(sums(&cost(vec![small, uncounted])), (4, 4, None, Some(4)));
    }
}
