// SPDX-License-Identifier: MIT OR Apache-2.0
//! Judges a measurement: pass or fail.

use super::{Budget, kinds};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use tramplab_analysis::{
    branch::Model,
    compare::{self, Value},
};
use tramplab_model::{
    kinds::{Metric, Repeats, UnknownMetric, trigger::Cost},
    run::{Cell, Outcome, Tolerance},
};

/// A metric that a budget's `most` can bound. It must repeat from run to run, or within the
/// tolerance. Waste has a place of its own.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(rename = "BoundedMetric", extend("pattern" = pattern()))]
pub struct Bounded(Metric);

/// Not every name that it fits is one of a metric.
fn pattern() -> String {
    let of_attaching = "instructions|grace_periods|syscall_instructions|estimated_cycles";
    format!(r"^(attach\..+\.({of_attaching})|trigger\..+\.({}))$", costs().join("|"))
}

/// The costs of a hit that repeat. Estimated cycles do so within the tolerance.
fn costs() -> Vec<&'static str> {
    let repeats = |cost: &Cost| {
        cost.definition().metric.repeats == Repeats::Always || *cost == Cost::EstimatedCycles
    };
    Cost::ALL.into_iter().filter(repeats).map(Cost::name).collect()
}

/// `a, b or c`
fn alternatives(names: &[&str]) -> String {
    match names {
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
        [] => String::new(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBounded {
    #[error(transparent)]
    Unknown(#[from] UnknownMetric),
    #[error("`{0}` is bounded under `wasted:`, by row and filter")]
    Waste(Metric),
    #[error(
        "`{0}` has no budget, as it need not repeat: expected {costs} of a hit \
         (trigger.fentry.instructions), or instructions, grace periods or estimated cycles of \
         attaching or detaching (attach.fentry.1000.attach.instructions)",
        costs = alternatives(&costs())
    )]
    Moves(Metric),
}

impl Bounded {
    pub fn metric(&self) -> Metric {
        self.0
    }
}

impl TryFrom<Metric> for Bounded {
    type Error = NotBounded;

    fn try_from(metric: Metric) -> Result<Bounded, NotBounded> {
        match metric {
            Metric::LbrWaste(_) => Err(NotBounded::Waste(metric)),
            metric if metric.repeats() || metric.is_estimate() => Ok(Bounded(metric)),
            metric => Err(NotBounded::Moves(metric)),
        }
    }
}

impl FromStr for Bounded {
    type Err = NotBounded;

    fn from_str(name: &str) -> Result<Bounded, NotBounded> {
        name.parse::<Metric>()?.try_into()
    }
}

tramplab_protocol::by_text!(Bounded, NotBounded);

impl fmt::Display for Bounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Judges a cell by the budgets for its kernel. Budgets of waste hold for the architecture's first
/// modelled CPU. `tolerance` allows some per cent more for instructions of attaching and estimates.
pub fn judge(cell: &Cell, budgets: &[Budget], tolerance: Tolerance) -> Outcome {
    let model = Model::choose(None, cell.id.arch);
    let values = compare::values(cell, model);
    let mut reasons = kinds::reasons(cell, budgets);
    let bounds = budgets.iter().flat_map(|budget| &budget.most);
    for (bounded, &most) in bounds.filter(|(bounded, _)| bounded.metric().test() == cell.id.test) {
        let value =
            values.iter().find(|(metric, _)| *metric == bounded.metric()).map(|(_, value)| value);
        reasons.extend(over(bounded, value, most, tolerance));
    }
    if reasons.is_empty() { Outcome::Pass } else { Outcome::Fail { reasons } }
}

fn over(
    bounded: &Bounded,
    value: Option<&Value>,
    most: u64,
    tolerance: Tolerance,
) -> Option<String> {
    match value {
        Some(&Value::Count(count)) => {
            (u64::from(count) > most).then(|| format!("{bounded} is {count}, budget {most}"))
        }
        Some(&Value::InPhase { count, functions, repeats: true }) => {
            match bounded.metric().asked_for() {
                Some(asked) if asked != functions => Some(format!(
                    "{bounded} is of {functions} functions only, budget {most} of {asked}"
                )),
                _ => {
                    let percent = tolerance.exact_percent;
                    let beyond = count as f64 > most as f64 * (1.0 + percent / 100.0);
                    beyond.then(|| format!("{bounded} is {count}, budget {most} and {percent} %"))
                }
            }
        }
        Some(Value::InPhase { repeats: false, .. }) => Some(format!(
            "{bounded} was counted under the host's clock, where it does not repeat, budget {most}"
        )),
        // A missing measurement is not a pass.
        _ => Some(format!("{bounded} was not measured, budget {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tramplab_host::config;
    use tramplab_model::run::{Arch, CellId, Measurement};
    use tramplab_model::{kinds::trigger::EstimatedHit, profile::Estimate};
    use tramplab_testdata::stored;

    fn budget(text: &str) -> Budget {
        config::parse(text, Path::new("budget.yaml")).unwrap()
    }

    fn cell(kernel: &str, test: &str) -> Cell {
        let is_it =
            |id: &CellId| id.kernel == kernel && id.arch == Arch::X86_64 && id.test.name() == test;
        stored()
            .cells
            .into_iter()
            .find(|cell| is_it(&cell.id))
            .unwrap_or_else(|| panic!("no {kernel} {test}"))
    }

    /// Stored measurements pass within their budget. One more fails, and the reason names the
    /// budget.
    #[test]
    fn judges_stored_measurements_and_gives_reasons() {
        let table = [
            ("lbr_waste/fexit", "wasted: { fexit: { any: 9 } }", None),
            (
                "lbr_waste/fexit",
                "wasted: { fexit: { any: 8 } }",
                Some("fexit wastes 9 records in `any`, budget 8"),
            ),
            ("lbr_waste/fexit", "wasted: { fexit: { cond: 99 } }", Some("no record touches")),
            ("lbr_waste/fexit", "wasted: { fentry: { any: 0 } }", None),
            ("trigger/fexit", "most: { trigger.fexit.instructions: 190 }", None),
            (
                "trigger/fexit",
                "most: { trigger.fexit.instructions: 189 }",
                Some("trigger.fexit.instructions is 190, budget 189"),
            ),
            (
                "trigger/fexit",
                "most: { trigger.fexit.branches: 1 }",
                Some("trigger.fexit.branches is "),
            ),
            ("trigger/fexit", "most: { trigger.fexit+kprobe.instructions: 1 }", None),
            ("attach/fentry/10", "most: { attach.fentry.10.attach.instructions: 79122256 }", None),
            // The budget may be exceeded by the tolerance, and by no more.
            ("attach/fentry/10", "most: { attach.fentry.10.attach.instructions: 78800000 }", None),
            (
                "attach/fentry/10",
                "most: { attach.fentry.10.attach.instructions: 78000000 }",
                Some("budget 78000000 and 0.5 %"),
            ),
        ];
        for (test, text, reason) in table {
            // Reports find the metric of a number in the reason.
            let is_told = |reason: &str, words: &str| {
                let metric = compare::exceeded_metric(reason).map(|metric| metric.test().name());
                let is_number = !reason.contains("no record touches");
                metric.as_deref() == is_number.then_some(test) && reason.contains(words)
            };
            match (judge(&cell("6.12", test), &[budget(text)], Tolerance::default()), reason) {
                (Outcome::Pass, None) => {}
                (Outcome::Fail { reasons }, Some(words))
                    if reasons.len() == 1 && is_told(&reasons[0], words) => {}
                (outcome, _) => panic!("{test} {text}: {outcome:?}"),
            }
        }
    }

    #[test]
    fn tolerates_as_much_of_estimated_hits_as_of_attaching() {
        let sum = |instruction_cycles| Estimate {
            cpu: "zen4".to_owned(),
            instructions: 1,
            instruction_cycles,
            events: Vec::new(),
        };
        let mut cell = cell("6.12", "trigger/fexit");
        let Some(Measurement::Trigger(trigger)) = &mut cell.measurement else { panic!("{cell:?}") };
        let estimate =
            EstimatedHit { hits: 100, attached: sum(100_500), detached: sum(0), cold: None };
        trigger.cost.as_mut().unwrap().estimate = Some(Box::new(estimate));
        for (most, passes) in [(1005, true), (1001, true), (999, false)] {
            let budget = budget(&format!("most: {{ trigger.fexit.estimated_cycles: {most} }}"));
            let outcome = judge(&cell, &[budget], Tolerance::default());
            assert_eq!(outcome == Outcome::Pass, passes, "{most}: {outcome:?}");
        }
    }

    #[test]
    fn fails_if_not_measured_as_required() {
        let bound = budget("most: { attach.fentry.10.attach.instructions: 99999999999 }");
        let judge = |change: fn(&mut Cell)| {
            let mut cell = cell("6.12", "attach/fentry/10");
            change(&mut cell);
            match judge(&cell, std::slice::from_ref(&bound), Tolerance::default()) {
                Outcome::Fail { reasons } => reasons.join("; "),
                other => panic!("{other:?}"),
            }
        };
        fn attach(cell: &mut Cell) -> &mut tramplab_model::run::Attach {
            let Some(Measurement::Attach(attach)) = &mut cell.measurement else {
                panic!("no attach cell")
            };
            attach
        }
        assert!(judge(|cell| attach(cell).explained.clear()).contains("was not measured"));
        let fewer =
            judge(|cell| attach(cell).explained.iter_mut().for_each(|one| one.attached = 9));
        assert!(fewer.contains("is of 9 functions only"), "{fewer}");
        let free = judge(|cell| {
            attach(cell)
                .explained
                .iter_mut()
                .for_each(|one| one.clock = tramplab_model::run::Clock::Free);
        });
        assert!(free.contains("host's clock"), "{free}");
    }

    #[test]
    fn rejects_budgets_for_numbers_that_do_not_repeat() {
        for (name, words) in [
            ("lbr_waste.fexit.any", "wasted"),
            ("attach.fentry.10.attach", "need not repeat"),
            ("attach.fentry.10.detach.exact", "need not repeat"),
            ("attach.fentry.10.attach.instructions_of_all", "need not repeat"),
            ("trigger.fentry.time", "need not repeat"),
            ("trigger.fentry", "unknown metric"),
        ] {
            let text = format!("most: {{ {name}: 3 }}\n");
            let error =
                config::parse::<Budget>(&text, Path::new("b.yaml")).unwrap_err().to_string();
            assert!(error.starts_with("b.yaml:1:9: ") && error.contains(words), "{error}");
        }
    }
}
