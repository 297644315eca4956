// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds mistakes in a suite, and in its budgets for the kernels of a run.

use super::PlannedCell;
use crate::{Suite, kinds::Work};
use std::collections::BTreeSet;
use tramplab_kernel::compile::TreeTests;
use tramplab_model::{kinds::Metric, run::Test};

/// Tests that none of the `trees` has: their names must be wrong.
pub fn unknown_tests(suite: &Suite, trees: &[&TreeTests]) -> Vec<Test> {
    if trees.is_empty() {
        return Vec::new();
    }
    let is_known = |work: &Work| trees.iter().any(|tree| work.kind().is_in(tree));
    suite.work(false).filter(|work| !is_known(work)).map(|work| work.test()).collect()
}

/// The reason why a group of the suite cannot be measured on any kernel.
pub fn misfit(suite: &Suite) -> Option<String> {
    suite.tests.iter().find_map(|group| group.group().misfit())
}

/// The name of a test that two groups name with different parameters.
pub fn contradiction(suite: &Suite) -> Option<String> {
    let all: Vec<Work> = suite.work(false).collect();
    let differs = |(index, work): (usize, &Work)| {
        let other = all[..index].iter().find(|earlier| earlier.test() == work.test())?;
        (other != work).then(|| work.test().name())
    };
    all.iter().enumerate().find_map(differs)
}

/// Kernels that budgets name, and that neither the suite nor this run has.
pub fn other_kernels<'a>(suite: &'a Suite, cells: &[PlannedCell]) -> BTreeSet<&'a str> {
    let named = suite.budgets.iter().flat_map(|budget| budget.kernels.iter().flatten());
    let is_run = |name: &str| cells.iter().any(|cell| cell.kernel == name);
    named
        .map(String::as_str)
        .filter(|name| !suite.kernels.contains(name) && !is_run(name))
        .collect()
}

/// Budgets of kernels that the run does not have, or of numbers that it does not measure, for
/// instance under KVM. [`load`](crate::load) rejects budgets of tests that the suite lacks.
pub fn idle_budgets(suite: &Suite, cells: &[PlannedCell]) -> Vec<String> {
    let known = |name: &String| {
        cells.iter().any(|cell| &cell.kernel == name) || suite.kernels.contains(name)
    };
    let mut idle = Vec::new();
    for budget in &suite.budgets {
        for name in budget.kernels.iter().flatten().filter(|name| !known(name)) {
            idle.push(format!("a budget names kernel `{name}`, which the suite does not run"));
        }
        // A budget without `kernels` is of guests that boot as no CPU, which have no estimate.
        let holds = |cell: &PlannedCell, metric: &Metric| {
            let mut bounds = cell.budgets.iter().flat_map(|budget| budget.most.keys());
            !metric.is_estimate() || bounds.any(|bounded| bounded.metric() == *metric)
        };
        let is_measured = |metric: Metric| {
            cells.iter().any(|cell| cell.measures(&metric) && holds(cell, &metric))
        };
        for bounded in budget.most.keys().filter(|bounded| !is_measured(bounded.metric())) {
            let how = match bounded.metric() {
                of if of.is_estimate() => {
                    " with `estimated: true`, or of attaching with `clock: exact` (or both) and \
                     `explain: [estimated]`, on a CPU (--model), under TCG, and in the budget \
                     `kernels:` with the kernel as that CPU, such as 6.12+zen4"
                }
                Metric::Attach(_) => {
                    " with `clock: exact` (or both) and `explain: [exact]` under TCG"
                }
                _ => " under TCG",
            };
            idle.push(format!(
                "a budget names `{bounded}`, which this run does not measure; it takes a test{how}"
            ));
        }
    }
    idle
}
