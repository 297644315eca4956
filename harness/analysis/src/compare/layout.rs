// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far exact metrics move with the layout of the code alone. They repeat bit for bit on one kernel; a function that nobody
//! calls still moves addresses, hash chains and the types of BTF, and with them what attaching executes.

use super::{Metric, Phase, Value, metric, pair_up, sides};
use crate::branch::Model;
use std::collections::BTreeMap;
use tramplab_model::run::{Run, Series};
use tramplab_protocol::Functions;

/// The band of each metric: the largest difference between the tree's kernel and its placebos, kernels with code that is never called.
/// No band is below the [`floor`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    bands: BTreeMap<Metric, u64>,
    /// No difference is one of layout.
    is_ignored: bool,
}

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
        Layout { bands, is_ignored: false }
    }

    /// For who asks what differs, and not whether it is a cost.
    pub fn ignored() -> Layout {
        Layout { is_ignored: true, ..Layout::default() }
    }

    /// In the metric's own count: nanoseconds of the exact clock, instructions, records.
    pub fn of(&self, metric: &Metric) -> u64 {
        if self.is_ignored {
            return 0;
        }
        // A few placebos do not find all that layout can do.
        floor(metric).max(self.bands.get(metric).copied().unwrap_or_default())
    }
}

/// Of loading a program that is checked against a function's type, by the exact clock. Code that nobody calls, of twenty
/// kinds, moved one's 100,500 ns on 6.12 by -2,515 to +4,585: its BTF is searched type by type. Twice as much is left out.
const LOAD_NS: u64 = 10_000;

/// A band that needs no placebo: below it a difference of this metric is never called a cost. Of the others, layout moves attaching
/// by a third of a per cent, which is within the tolerance, and waste and hits not at all.
pub fn floor(metric: &Metric) -> u64 {
    match *metric {
        Metric::ExactTime { mechanism, functions, phase: Phase::Load } if mechanism.program_per_target() => {
            match functions {
                Functions::Count(count) => LOAD_NS * u64::from(count.get()),
                // Nobody loads a program for each of forty thousand; those that do not fit are cut off by a budget of time.
                Functions::All => LOAD_NS,
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_has_a_floor_for_each_program() {
        for (name, expected) in [
            ("attach.fentry.1.load.exact", 10_000),
            ("attach.fentry.100.load.exact", 1_000_000),
            ("attach.kprobe_multi.100.load.exact", 0),
            ("attach.fentry.1.attach.exact", 0),
            ("attach.fentry.1.attach.instructions", 0),
            ("lbr_waste.fexit.any", 0),
            ("trigger.fexit.instructions", 0),
        ] {
            assert_eq!(floor(&name.parse().unwrap()), expected, "{name}");
        }
    }
}
