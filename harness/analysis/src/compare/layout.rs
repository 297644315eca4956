// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far the layout of the code alone moves exact metrics. On one kernel they repeat bit for bit.
//! But even a function that nobody calls moves addresses, hash chains and names in kallsyms, and so
//! the cost of attaching.

use super::{Metric, Value, kinds, pair, pair_up, sides};
use crate::branch::Model;
use std::collections::BTreeMap;
use tramplab_model::run::{Run, Series};

/// The band of each metric: twice the largest difference between the tree's kernel and its
/// placebos, kernels with code that is never called. No band is below the [`kinds::layout_floor`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    bands: BTreeMap<Metric, u64>,
    /// If true, every difference counts.
    is_ignored: bool,
}

impl Layout {
    /// Measures the bands with the placebos of a series. Empty if the run has none.
    pub fn measured(run: &Run, series: &Series, model: Model) -> Layout {
        let mut bands: BTreeMap<Metric, u64> = BTreeMap::new();
        // Placebos are made of the tree, which is the head of a reversed series.
        let tree = if series.reverse { series.head() } else { series.base() };
        for placebo in &series.placebos {
            let [tree, moved] = sides(run, series.arch, &tree.kernel, placebo);
            for pair in pair_up(&tree, &moved) {
                for (metric, base, moved) in pair::values(&pair, model).unwrap_or_default() {
                    if let Some(apart) = apart(&base, &moved) {
                        let band = bands.entry(metric).or_default();
                        *band = apart.max(*band);
                    }
                }
            }
        }
        Layout { bands, is_ignored: false }
    }

    /// For callers that look for differences, not for costs.
    pub fn ignored() -> Layout {
        Layout { is_ignored: true, ..Layout::default() }
    }

    /// The band, in the metric's unit: nanoseconds of the exact clock, instructions, records.
    pub fn of(&self, metric: &Metric) -> u64 {
        if self.is_ignored {
            return 0;
        }
        // A few placebos do not find the largest move: a harmless head exceeds the largest of N
        // with a chance of 1 / (N + 1). No head exceeded twice the largest of six.
        let measured = self.bands.get(metric).copied().unwrap_or_default();
        kinds::layout_floor(metric).max(measured.saturating_mul(2))
    }
}

fn apart(base: &Value, moved: &Value) -> Option<u64> {
    match (base, moved) {
        (&Value::ExactTime(a), &Value::ExactTime(b)) => Some(a.abs_diff(b)),
        (
            &Value::InPhase { count: a, functions: of_a, .. },
            &Value::InPhase { count: b, functions: of_b, .. },
        ) => (of_a == of_b).then(|| a.abs_diff(b)),
        _ => Some(u64::from(base.count()?.abs_diff(moved.count()?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_stays_at_the_maximum() {
        let metric: Metric = "attach.kprobe_multi.10.attach.exact".parse().unwrap();
        for (moved, band) in [(u64::MAX, u64::MAX), (1000, 2000)] {
            let bands = [(metric, moved)].into();
            let layout = Layout { bands, ..Layout::default() };
            assert_eq!(layout.of(&metric), band);
        }
    }
}
