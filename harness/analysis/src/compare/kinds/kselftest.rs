// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kselftest`: how programs of other folders of the tree's selftests ended.

use super::super::{Value, value::Ended};
use tramplab_model::{
    kinds::{Metric, kselftest},
    run::{Cell, Measurement},
};

pub fn values(test: kselftest::Test, cell: &Cell) -> Vec<(Metric, Value)> {
    let Some(Measurement::Kselftest(ran)) = &cell.measurement else { return Vec::new() };
    vec![(Metric::Kselftest(test), Value::Ended(Ended::of(ran)))]
}
