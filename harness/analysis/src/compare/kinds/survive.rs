// SPDX-License-Identifier: MIT OR Apache-2.0
//! `survive`: the kernel survives a storm, or does not.

use super::super::{Value, value::Ended};
use std::collections::BTreeSet;
use tramplab_model::{
    kinds::{Metric, survive},
    run::{Cell, Measurement},
    tree_tests::End,
};

pub fn values(test: survive::Test, cell: &Cell) -> Vec<(Metric, Value)> {
    let Some(Measurement::Survive(storm)) = &cell.measurement else { return Vec::new() };
    let end = if storm.failures().is_empty() { End::Ok } else { End::Fail };
    let ended = Ended { end, ok: BTreeSet::new(), more: 0 };
    vec![(Metric::Survive(test), Value::Ended(ended))]
}
