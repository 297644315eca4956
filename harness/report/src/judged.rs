// SPDX-License-Identifier: MIT OR Apache-2.0
//! A judged metric in a table.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

use crate::numbers;
use tramplab_analysis::{
    branch::driver,
    compare::{Compared, Comparison, Metric, Value},
};
use tramplab_model::table::Table;

/// Prints one number if both sides have the same.
pub fn sides(Compared { base, head, .. }: &Compared) -> String {
    if base == head { base.to_string() } else { format!("{base} -> {head}") }
}

/// The modelled CPU, or the source of a driver's records.
pub fn whose(comparison: &Comparison) -> &'static str {
    driver::whose(Some(comparison.records), comparison.model)
}

/// The judged metrics of a kind, without a row if there are none.
pub fn table(caption: &str, all: &Comparison, is_own: impl Fn(Metric) -> bool) -> Table {
    let own = all.metrics.iter().filter(|compared| is_own(compared.metric));
    Table::new(caption, ["metric", "base", "head", "change", "verdict"], own.map(judged))
}

/// A table row: a metric with its verdict, better or worse or not.
fn judged(compared: &Compared) -> Vec<String> {
    let [base, head] = [&compared.base, &compared.head].map(ToString::to_string);
    vec![compared.metric.to_string(), base, head, change(compared), compared.verdict.to_string()]
}

fn change(compared: &Compared) -> String {
    match (&compared.base, &compared.head, &compared.ratio) {
        (.., Some(ratio)) => ratio.to_string(),
        (Value::Records(Some(a)), Value::Records(Some(b)), _) => difference(*a, *b),
        (Value::Count(a), Value::Count(b), _) => difference(*a, *b),
        (Value::InPhase { count: a, .. }, Value::InPhase { count: b, .. }, _)
            if numbers::is_grace_periods(&compared.metric) =>
        {
            difference(*a, *b)
        }
        (Value::ExactTime(a), Value::ExactTime(b), _)
        | (Value::InPhase { count: a, .. }, Value::InPhase { count: b, .. }, _)
            if a != b && *a > 0 =>
        {
            format!("{:+.3} %", 100.0 * (*b as f64 - *a as f64) / *a as f64)
        }
        _ => String::new(),
    }
}

fn difference(before: impl Into<i128>, after: impl Into<i128>) -> String {
    format!("{:+}", after.into().saturating_sub(before.into()))
}
