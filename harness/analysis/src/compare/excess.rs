// SPDX-License-Identifier: MIT OR Apache-2.0
//! Splits a cell's number into the parts of functions. They explain a number that exceeds its
//! budget, without a base.

use super::{Metric, Model, listing, work};
use crate::branch::listing::{lines, trigger_lines};
use std::{cmp::Reverse, collections::BTreeMap};
use tramplab_model::{
    kinds::{
        attach::{Number, Whose},
        lbr_waste,
        trigger::Cost,
    },
    run::{Cell, Measurement},
};

/// In the reason of a cell that exceeds a budget.
const BUDGET: &str = ", budget ";

/// The metric that exceeds its budget, if that is the reason of a failure.
pub fn exceeded_metric(reason: &str) -> Option<Metric> {
    let (number, _) = reason.split_once(BUDGET)?;
    match number.split_once(" wastes ") {
        Some((row, rest)) => {
            let filter = rest.split('`').nth(1)?.parse().ok()?;
            Some(Metric::LbrWaste(lbr_waste::Metric { row: row.parse().ok()?, filter }))
        }
        None => number.split_once(" is ")?.0.parse().ok(),
    }
}

/// The functions whose branches or instructions a metric counts, with their parts, the largest
/// first. Empty if the cell does not record them.
pub fn parts(cell: &Cell, metric: Metric) -> Vec<(String, u64)> {
    let mut parts: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |line: &_, count: u64| {
        let [from, _] = listing::functions(line);
        let part = parts.entry(from).or_default();
        *part = part.saturating_add(count);
    };
    match (metric, &cell.measurement) {
        (Metric::LbrWaste(of), Some(Measurement::LbrWaste(waste))) => {
            let mut points = waste.points.iter();
            let Some(point) = points.find(|point| of.test().row(point.point) == of.row) else {
                return Vec::new();
            };
            let model = Model::choose(None, cell.id.arch);
            // The last one touches the traced function.
            let all = lines(point, &waste.function, model, of.filter);
            all.split_last().iter().flat_map(|(_, wasted)| *wasted).for_each(|line| add(line, 1));
        }
        (Metric::Trigger(of), Some(Measurement::Trigger(trigger))) => {
            let all = trigger.cost.iter().flat_map(|cost| &cost.parts);
            for line in all.flat_map(|part| trigger_lines(part, None)) {
                match of.cost {
                    Cost::Instructions => add(&line, line.instructions.unwrap_or(0).into()),
                    Cost::Branches => add(&line, 1),
                    _ => {}
                }
            }
        }
        (Metric::Attach(of), _) => {
            if let Number::Instructions { phase, whose: Whose::Thread } = of.number {
                parts.extend(work::of_cell(cell, phase));
            }
        }
        _ => {}
    }
    let mut parts: Vec<(String, u64)> = parts.into_iter().filter(|(_, part)| *part > 0).collect();
    parts.sort_by_key(|(_, part)| Reverse(*part));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::value;
    use tramplab_testdata::{call_ops, series};

    #[test]
    fn names_the_functions_that_a_number_counts() {
        let enter = ("__bpf_prog_enter_recur", 3);
        for (run, reason, dearest) in [
            (series(), "fexit wastes 9 records in `any`, budget 8", enter),
            (series(), "fexit wastes 3 records in `any_return`, budget 2", (enter.0, 1)),
            (
                call_ops(),
                "trigger.kprobe_multi.instructions is 299, budget 8",
                ("fprobe_ftrace_entry", 117),
            ),
            (
                call_ops(),
                "trigger.kprobe_multi.branches is 20, budget 8",
                ("fprobe_ftrace_entry", 8),
            ),
            (
                series(),
                "attach.kprobe_multi.10.attach.instructions is 3539800, budget 2 and 1 %",
                ("ftrace_check_record", 1069212),
            ),
        ] {
            let metric = exceeded_metric(reason).unwrap();
            let head = &run.series[0].head().kernel;
            let mut cells = run.cells_of(run.series[0].arch, head);
            let cell = cells.find(|cell| cell.id.test == metric.test()).unwrap();
            let found = parts(cell, metric);
            assert_eq!((found[0].0.as_str(), found[0].1), dearest, "{reason}: {found:?}");
            // A profile lists the dearest functions only.
            let sum: u64 = found.iter().map(|(_, part)| part).sum();
            let is_listed = !matches!(metric, Metric::Attach(_));
            let whole = value(cell, metric, Model::choose(None, cell.id.arch)).unwrap();
            assert!(sum as f64 == whole.number().unwrap() || !is_listed, "{reason}: {found:?}");
        }
        for reason in [
            "fexit in `cond`: no record touches f, budget 1",
            "attach.fentry.10.attach.instructions was not measured, budget 2",
            "lbr_waste.fexit.any is worse than on x: 1 -> 2",
        ] {
            assert_eq!(exceeded_metric(reason), None, "{reason}");
        }
    }
}
