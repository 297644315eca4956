// SPDX-License-Identifier: MIT OR Apache-2.0
//! `test_progs`: how tests of the tree's own `test_progs` ended.

use super::super::{Value, value::Ended};
use tramplab_model::{
    kinds::{Metric, test_progs},
    run::{Cell, Measurement},
};

pub fn values(test: test_progs::Test, cell: &Cell) -> Vec<(Metric, Value)> {
    let Some(Measurement::TestProgs(ran)) = &cell.measurement else { return Vec::new() };
    vec![(Metric::TestProgs(test), Value::Ended(Ended::of(ran)))]
}
