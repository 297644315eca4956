// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a measurement to pass or fail.

use super::Budget;
use crate::run::{CapturePoint, LbrWaste, Measurement, Outcome, Row};

/// The model budgets are stated for.
pub const MODEL: &str = "intel-lbr";

/// Judges a measurement by the budgets that hold for its kernel.
pub fn judge(measurement: &Measurement, budgets: &[Budget]) -> Outcome {
    let reasons: Vec<String> = match measurement {
        Measurement::LbrWaste(waste) => budgets.iter().flat_map(|budget| over(waste, budget)).collect(),
        Measurement::Attach(_) => Vec::new(),
    };
    if reasons.is_empty() { Outcome::Pass } else { Outcome::Fail { reasons } }
}

fn over(waste: &LbrWaste, budget: &Budget) -> Vec<String> {
    let mut reasons = Vec::new();
    for capture in &waste.points {
        let row = Row { mechanism: waste.mechanism, point: capture.point };
        for (filter, &most) in budget.wasted.get(&row).into_iter().flatten() {
            match wasted(capture, waste, filter) {
                Some(n) if n <= most => {}
                Some(n) => reasons.push(format!("{row} wastes {n} records in `{filter}`, budget {most}")),
                None => reasons.push(format!(
                    "{row} in `{filter}`: no record touches {}, budget {most}",
                    waste.function.name
                )),
            }
        }
    }
    reasons
}
