// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a measurement to pass or fail.

use super::Budget;
use crate::{
    branch::{Model, waste},
    run::{Arch, LbrWaste, Measurement, Outcome, Row},
};

/// Judges a measurement by the budgets that hold for its kernel. They are stated for the architecture's first modelled CPU.
pub fn judge(arch: Arch, measurement: &Measurement, budgets: &[Budget]) -> Outcome {
    let model = Model::choose(None, arch);
    let reasons: Vec<String> = match measurement {
        Measurement::LbrWaste(measured) => {
            budgets.iter().flat_map(|budget| over(model, measured, budget)).collect()
        }
        Measurement::Boot | Measurement::Attach(_) | Measurement::Trigger(_) => Vec::new(),
    };
    if reasons.is_empty() { Outcome::Pass } else { Outcome::Fail { reasons } }
}

fn over(model: Model, measured: &LbrWaste, budget: &Budget) -> Vec<String> {
    let mut reasons = Vec::new();
    for capture in &measured.points {
        let row = Row { mechanism: measured.mechanism, point: capture.point };
        for (&filter, &most) in budget.wasted.get(&row).into_iter().flatten() {
            match waste::count(model, filter, &capture.records, &measured.function).wasted {
                Some(n) if n <= most => {}
                Some(n) => reasons.push(format!("{row} wastes {n} records in `{filter}`, budget {most}")),
                None => reasons.push(format!(
                    "{row} in `{filter}`: no record touches {}, budget {most}",
                    measured.function.name
                )),
            }
        }
    }
    reasons
}
