// SPDX-License-Identifier: MIT OR Apache-2.0
//! `trigger`: the cost of a hit of a program, the empty one, a shipped one or a user's.

use super::{Definition, Place, Repeats, attached, plain};
use crate::{
    cpu::hangs_on_addresses,
    function::{AT, FunctionName},
    name::{Marked, split},
    profile::Estimate,
    program::ProgramName,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use tramplab_protocol::{BesideSet, Mechanism, Point, estimate::Event, message, trace};

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
    /// The user's program, or a shipped one. None: the empty one.
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
        let (name, function) = split(name, AT)?;
        let (mechanism, program, beside) = super::beside(name)?;
        Some(Test { mechanism, program, beside, function })
    }

    /// The name without the function.
    pub fn attached(self) -> String {
        self.beside.with(attached(self.mechanism, self.program))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}", self.attached(), Marked(AT, self.function)))
    }
}

/// `kprobe_multi.instructions`, `fentry+function_tracer.branches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metric {
    pub test: Test,
    pub cost: Cost,
}

/// One number of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    Instructions,
    Branches,
    /// Data accesses.
    Reads,
    Writes,
    /// From the hit to the next, in the predictors of a CPU.
    MispredictedReturns,
    MispredictedIndirect,
    /// Those of a warm hit with the program minus those without it, on the guest's CPU.
    EstimatedCycles,
    /// Time with the program minus time without it.
    Time,
}

/// All that names, judges and shows a cost.
#[derive(Clone, Copy, Debug)]
pub struct CostDefinition {
    cost: Cost,
    /// The last part of the metric's name, and the head of its column.
    pub name: &'static str,
    pub metric: Definition,
    count: Count,
    /// True if runs from before it was counted lack it.
    pub is_optional: bool,
    /// In a table's caption.
    pub title: &'static str,
    /// Costs with the same one share a table of all kernels.
    pub by_kernel: &'static str,
    /// The sentence in OpenMetrics.
    pub help: &'static str,
}

/// The way in which a cost is counted.
#[derive(Clone, Copy, Debug)]
enum Count {
    /// In each part of a hit.
    OfPart(fn(&TriggerPart) -> Option<u32>),
    /// From a hit to the next.
    OfHit(fn(&Predicted) -> u32),
    /// With the program and without it.
    OfEstimate(fn(&EstimatedHit) -> i64),
    /// It is a time.
    Not,
}

const INSTRUCTIONS: CostDefinition = CostDefinition {
    cost: Cost::Instructions,
    name: "instructions",
    metric: Definition::less_is_better("instructions", Repeats::Always),
    count: Count::OfPart(|part| Some(part.instructions)),
    is_optional: false,
    title: "instructions",
    by_kernel: "Instructions / branches",
    help: "Instructions of a hit, or of attaching and detaching.",
};
const READS: CostDefinition = CostDefinition {
    cost: Cost::Reads,
    name: "reads",
    metric: Definition::less_is_better("reads", Repeats::Always),
    count: Count::OfPart(|part| part.reads),
    is_optional: true,
    title: "data accesses",
    by_kernel: "Reads / writes",
    help: "Data reads of a hit.",
};

const MISPREDICTED_RETURNS: CostDefinition = CostDefinition {
    cost: Cost::MispredictedReturns,
    name: "mispredicted_returns",
    metric: Definition::less_is_better("mispredicted returns", Repeats::Always),
    count: Count::OfHit(|predicted| predicted.mispredicted_returns),
    is_optional: true,
    title: "mispredicted branches until the next hit",
    by_kernel: "Mispredicted returns / indirect branches",
    help: "Returns from a hit to the next that a return stack mispredicts.",
};

/// A definition for each cost, in the order of [`Cost`].
const TABLE: [CostDefinition; 8] = [
    INSTRUCTIONS,
    CostDefinition {
        cost: Cost::Branches,
        name: "branches",
        metric: Definition::less_is_better("branches", Repeats::Always),
        count: Count::OfPart(|part| Some(part.branches)),
        title: "taken branches",
        help: "Taken branches of a hit.",
        ..INSTRUCTIONS
    },
    READS,
    CostDefinition {
        cost: Cost::Writes,
        name: "writes",
        metric: Definition::less_is_better("writes", Repeats::Always),
        count: Count::OfPart(|part| part.writes),
        help: "Data writes of a hit.",
        ..READS
    },
    MISPREDICTED_RETURNS,
    CostDefinition {
        cost: Cost::MispredictedIndirect,
        name: "mispredicted_indirect",
        metric: Definition::less_is_better("mispredicted indirect branches", Repeats::Always),
        count: Count::OfHit(|predicted| predicted.mispredicted_indirect),
        help: "Indirect branches from a hit to the next with another target than the time before.",
        ..MISPREDICTED_RETURNS
    },
    CostDefinition {
        cost: Cost::EstimatedCycles,
        name: "estimated_cycles",
        // They depend on the addresses of code and data, which another kernel has elsewhere.
        metric: Definition::less_is_better("estimated cycles", Repeats::Nearly),
        count: Count::OfEstimate(EstimatedHit::cycles),
        is_optional: true,
        title: "estimated cycles",
        by_kernel: "Estimated cycles",
        help: "Estimated cycles of a warm hit on a modelled CPU.",
    },
    CostDefinition {
        cost: Cost::Time,
        name: "time",
        metric: Definition::less_is_better("ns", Repeats::InOneBoot),
        count: Count::Not,
        is_optional: false,
        title: "guest time with it less without",
        by_kernel: "",
        help: "Guest time.",
    },
];

const _: () = assert!(Cost::Time as usize + 1 == TABLE.len(), "a cost has no definition");

impl Cost {
    pub const ALL: [Cost; TABLE.len()] = {
        let (mut all, mut at) = ([Cost::Instructions; TABLE.len()], 0);
        while at < all.len() {
            assert!(TABLE[at].cost as usize == at, "the table has another order");
            all[at] = TABLE[at].cost;
            at += 1;
        }
        all
    };

    /// True if it is counted from a hit to the next, and not in the parts of a hit.
    pub fn is_predicted(self) -> bool {
        matches!(self.definition().count, Count::OfHit(_))
    }

    /// Those that the plugin counts.
    pub fn counted() -> impl Iterator<Item = Cost> {
        let is_counted = |cost: &Cost| !matches!(cost.definition().count, Count::Not);
        Cost::ALL.into_iter().filter(is_counted)
    }

    pub fn definition(self) -> &'static CostDefinition {
        &TABLE[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.definition().name
    }

    /// None if it was not counted there.
    pub fn of_part(self, part: &TriggerPart) -> Option<u32> {
        match self.definition().count {
            Count::OfPart(count) => count(part),
            Count::OfHit(_) | Count::OfEstimate(_) | Count::Not => None,
        }
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
        let cost = Cost::ALL.into_iter().find(|known| known.name() == cost)?;
        Some(Metric { test: Test::parse(test)?, cost })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metric { test, cost } = self;
        write!(f, "{}{}.{}", plain(&test.attached()), Marked(AT, test.function), cost.name())
    }
}

/// The measurement of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    pub mechanism: Mechanism,
    /// The traced function.
    pub function: message::Symbol,
    /// The code of the user's program or the shipped one, without its other functions. None for the
    /// empty program, and in runs from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<message::Symbol>,
    /// The way in which the function was hit, if the test names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<message::Triggered>,
    /// The reason why no cycles were estimated, if the suite asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unestimated: Option<String>,
    /// The tracers attached to other functions meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<message::Others>,
    /// None under KVM: the plugin needs TCG.
    pub cost: Option<TriggerCost>,
    /// Number of hits in a timed round.
    pub timed: u32,
    /// Nanoseconds of each round with the program attached, by the guest's monotonic clock.
    pub attached_ns: Vec<u64>,
    /// The same without the program. The rounds alternate.
    pub detached_ns: Vec<u64>,
    /// perf counters over the timed hits, of the host's own CPU. Empty in a guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<message::HitCounter>,
}

/// Counts of hits without an interrupt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerCost {
    /// Recorded hits.
    pub hits: u32,
    /// Hits with an interrupt, which are left out.
    pub interrupted_hits: u32,
    /// Other hits of the reported form.
    pub agreeing_hits: u32,
    /// SHA-256 of the records of all parts, in symbolic form and with their instructions.
    pub digest: String,
    /// In execution order.
    pub parts: Vec<TriggerPart>,
    /// None in runs from before branches were predicted, of fewer than three triggers, of a user's
    /// command, and if interrupts fell into too many hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
    /// None unless the suite asks for it, and without a modelled CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Box<EstimatedHit>>,
}

/// The measured thread's cost on a modelled CPU, with the program and without it. Interrupts are
/// left out. Of both sums caches and predictors are warm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EstimatedHit {
    /// The hits in each of the two sums.
    pub hits: u32,
    /// The sum with the program attached.
    pub attached: Estimate,
    /// The sum of as many triggers without it. Tracers beside it are attached.
    pub detached: Estimate,
    /// Estimated cycles of one hit while caches and predictors are empty, with the program less
    /// without it. None if a trigger hits several times, and in runs from before it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<i64>,
}

impl EstimatedHit {
    /// Estimated cycles of a hit, rounded. What hangs on addresses counts only if it is more with
    /// the program: the rest of the loop may meet other lines and branches in its sets without it.
    pub fn cycles(&self) -> i64 {
        let instructions = i128::from(self.attached.instruction_cycles)
            .saturating_sub(self.detached.instruction_cycles.into());
        let others = self.more(|event| !hangs_on_addresses(event));
        self.each(instructions.saturating_add(others).saturating_add(self.by_layout()))
    }

    /// The events that hang on addresses, of all hits together.
    pub fn by_layout(&self) -> i128 {
        self.more(hangs_on_addresses).max(0)
    }

    /// Estimated cycles of events, with the program less without it.
    fn more(&self, counts: fn(Event) -> bool) -> i128 {
        let sum = |of: &Estimate| {
            let events = of.events.iter().filter(|of| counts(of.event));
            events.fold(0i128, |sum, of| sum.saturating_add(of.cycles.into()))
        };
        sum(&self.attached).saturating_sub(sum(&self.detached))
    }

    /// The part of one hit in a sum over all, rounded.
    pub fn each(&self, all: i128) -> i64 {
        let hits = i128::from(self.hits.max(1));
        let halves = all.saturating_mul(2).saturating_add(hits);
        let rounded = halves.div_euclid(hits.saturating_mul(2));
        i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
    }
}

/// The returns and the indirect branches from one hit to the next, user space included, in the
/// predictors of a CPU. If a trigger hits several times, from its first hit to that of the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// Entries of the CPU's return stack.
    pub depth: u32,
    /// The hits from which the counts are: those that agree.
    pub hits: u32,
    /// Returns, user space included.
    pub returns: u32,
    /// Those whose call is not on top of the return stack.
    pub mispredicted_returns: u32,
    /// Indirect jumps and calls.
    pub indirect: u32,
    /// Those with another target than the time before.
    pub mispredicted_indirect: u32,
    /// The mispredicted branches, oldest first, at most 256.
    pub mispredicted: Vec<Mispredicted>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mispredicted {
    pub from: Place,
    pub to: Place,
    pub kind: trace::Kind,
}

impl Predicted {
    /// The mispredicted branches that the list lacks, as it has an end.
    pub fn unlisted(&self) -> u64 {
        let all = self.mispredicted_returns.saturating_add(self.mispredicted_indirect);
        u64::from(all).saturating_sub(self.mispredicted.len() as u64)
    }
}

impl TriggerCost {
    /// The number of a hit. None if it was not counted.
    pub fn count(&self, cost: Cost) -> Option<u32> {
        match cost.definition().count {
            Count::OfHit(count) => return self.predicted.as_ref().map(count),
            Count::OfEstimate(cycles) => {
                // A hit that costs nothing may be estimated below it.
                let cycles = cycles(self.estimate.as_ref()?).max(0);
                return Some(u32::try_from(cycles).unwrap_or(u32::MAX));
            }
            Count::OfPart(_) | Count::Not => {}
        }
        let mut parts = self.parts.iter();
        parts.try_fold(0, |sum: u32, part| Some(sum.saturating_add(cost.of_part(part)?)))
    }

    pub fn instructions(&self) -> u32 {
        self.count(Cost::Instructions).unwrap_or_default()
    }

    pub fn branches(&self) -> u32 {
        self.count(Cost::Branches).unwrap_or_default()
    }

    pub fn reads(&self) -> Option<u32> {
        self.count(Cost::Reads)
    }

    pub fn writes(&self) -> Option<u32> {
        self.count(Cost::Writes)
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
    /// Instructions outside the traced function.
    pub instructions: u32,
    /// Taken branches, with the one that leaves the entry site. The function's own `ret`, with
    /// which an exit part begins, is not counted.
    pub branches: u32,
    /// Data accesses. None in runs from before they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<u32>,
    /// As `reads`.
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
    use crate::profile::EventCost;

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
            predicted: None,
            estimate: None,
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
    #[test]
    fn rounds_the_cycles_of_a_hit() {
        let event = |event, cycles| EventCost { event, count: 1, cycles };
        let sum = |instruction_cycles, cycles| Estimate {
            cpu: "zen4".to_owned(),
            instructions: 1,
            instruction_cycles,
            events: vec![event(Event::MispredictedReturn, cycles)],
        };
        let by_layout = |cycles: [u64; 2]| Estimate {
            events: vec![
                event(Event::MispredictedConditional, cycles[0]),
                event(Event::DataL2, cycles[1]),
            ],
            ..sum(100, 0)
        };
        let hit = |hits, attached, detached| EstimatedHit { hits, attached, detached, cold: None };
        for (hits, attached, detached, expected, counted) in [
            (100, sum(5000, 10_449), sum(4000, 1000), 104, 104),
            (100, sum(5000, 10_450), sum(4000, 1000), 105, 105),
            (100, sum(0, 51), sum(101, 0), 0, 0),
            (100, sum(0, 0), sum(151, 0), -2, 0),
            (1, sum(u64::MAX, 1), sum(0, 0), i64::MAX, u32::MAX),
            (0, sum(7, 0), sum(0, 0), 7, 7),
            // The loop mispredicts more without the program.
            (1, by_layout([0, 20]), by_layout([26, 0]), 0, 0),
            (1, by_layout([0, 30]), by_layout([26, 0]), 4, 4),
        ] {
            let hit = hit(hits, attached, detached);
            assert_eq!(hit.cycles(), expected, "{hit:?}");
            let mut cost = TriggerCost {
                hits: 1,
                interrupted_hits: 0,
                agreeing_hits: 1,
                digest: String::new(),
                parts: Vec::new(),
                predicted: None,
                estimate: None,
            };
            assert_eq!(cost.count(Cost::EstimatedCycles), None);
            cost.estimate = Some(Box::new(hit));
            assert_eq!(cost.count(Cost::EstimatedCycles), Some(counted));
        }
    }
}
