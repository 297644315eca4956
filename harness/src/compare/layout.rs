// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far exact metrics move with the layout of the code alone. They repeat bit for bit on one kernel; a function that nobody
//! calls still moves addresses, hash chains and the types of BTF, and with them what attaching executes.

use super::{Metric, Phase, Value, metric, pair_up, sides};
use crate::{
    branch::Model,
    run::{Run, Series},
};
use std::collections::BTreeMap;

/// The band of each metric: the largest difference between the tree's kernel and its placebos, kernels with code that is never called.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout(BTreeMap<Metric, u64>);

impl Layout {
    /// From the placebos of a series; empty where the run has none.
    pub fn measured(run: &Run, series: &Series, model: Model) -> Layout {
        let mut bands: BTreeMap<Metric, u64> = BTreeMap::new();
        // They are of the tree, which has the patches where the base is made by taking them out.
        let tree = if series.reverse { series.head() } else { series.base() };
        for placebo in &series.placebos {
            let [tree, moved] = sides(run, series.arch, &tree.kernel, placebo);
            for pair in pair_up(&tree, &moved) {
                for (metric, base, moved) in metric::of_both(&pair, model).unwrap_or_default() {
                    if let Some(apart) = apart(&base, &moved) {
                        let band = bands.entry(metric).or_default();
                        *band = apart.max(*band);
                    }
                }
            }
        }
        Layout(bands)
    }

    /// In the metric's own count: nanoseconds of the exact clock, instructions, records.
    pub fn of(&self, metric: &Metric) -> u64 {
        floor(metric).max(self.0.get(metric).copied().unwrap_or_default())
    }
}

/// A band that needs no placebo: below it a difference of this metric is never called a cost.
pub fn floor(metric: &Metric) -> u64 {
    match metric {
        Metric::ExactTime { phase: Phase::Load, .. } => 10_000,
        Metric::ExactTime { phase: Phase::Attach | Phase::Detach, .. } | Metric::Instructions { .. } => {
            10_000
        }
        _ => 0,
    }
}

fn apart(base: &Value, moved: &Value) -> Option<u64> {
    match (base, moved) {
        (&Value::ExactTime(a), &Value::ExactTime(b)) => Some(a.abs_diff(b)),
        (
            &Value::Instructions { count: a, functions: of_a, .. },
            &Value::Instructions { count: b, functions: of_b, .. },
        ) => (of_a == of_b).then(|| a.abs_diff(b)),
        _ => Some(u64::from(base.count()?.abs_diff(moved.count()?))),
    }
}
