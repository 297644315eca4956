// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moves of exact metrics by the layout of the code alone. Exact metrics repeat bit for bit on one kernel.
//! A function that nobody calls still moves addresses, hash chains and names in kallsyms, and so the cost
//! of attaching.

use super::{Metric, Phase, Value, metric, pair_up, sides};
use crate::{branch::Model, profile};
use std::collections::BTreeMap;
use tramplab_model::run::{Run, Series};
use tramplab_protocol::{Functions, Mechanism};

/// The band of each metric: twice the largest difference between the tree's kernel and its placebos, kernels
/// with code that is never called. No band is below the [`floor`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    bands: BTreeMap<Metric, u64>,
    /// True: every difference counts.
    is_ignored: bool,
}

impl Layout {
    /// The bands by the placebos of a series; empty if the run has none.
    pub fn measured(run: &Run, series: &Series, model: Model) -> Layout {
        let mut bands: BTreeMap<Metric, u64> = BTreeMap::new();
        // Placebos are made of the tree, which is the head of a reversed series.
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

    /// For callers that ask for differences, not for costs.
    pub fn ignored() -> Layout {
        Layout { is_ignored: true, ..Layout::default() }
    }

    /// The band, in the metric's unit: nanoseconds of the exact clock, instructions, records.
    pub fn of(&self, metric: &Metric) -> u64 {
        if self.is_ignored {
            return 0;
        }
        // A few placebos do not find the largest move: a harmless head exceeds the largest of N with a
        // chance of 1 / (N + 1). Twice the largest of six was never exceeded.
        floor(metric).max(2 * self.bands.get(metric).copied().unwrap_or_default())
    }
}

/// The floor of loading a program that is checked against a function's type, in nanoseconds of the exact
/// clock. The kernel looks the function up by name, and its search through kallsyms
/// (`get_symbol_offset` in kernel/kallsyms.c) walks up to 255 names at each step; each added symbol shifts
/// those walks. On 6.12, fifteen to twenty kinds of uncalled code moved one load by -2,515 to +4,585.
const LOAD: u64 = 10_000;
/// The floor of attaching a kprobe or kretprobe, which looks its function up about three times, in
/// nanoseconds and in instructions. The same kinds of code moved it by up to 16,768.
const KPROBE: u64 = 20_000;

/// A band that needs no placebo: a smaller difference of this metric is never called a cost. Layout moves
/// other attach metrics by a third of a per cent, which is within the tolerance, and waste and the cost of a
/// hit not at all.
pub fn floor(metric: &Metric) -> u64 {
    let (each, functions) = match *metric {
        Metric::ExactTime { mechanism, functions, phase: Phase::Load } if mechanism.program_per_target() => {
            (LOAD, functions)
        }
        Metric::ExactTime {
            mechanism: Mechanism::Kprobe | Mechanism::Kretprobe,
            functions,
            phase: Phase::Attach,
        }
        | Metric::Instructions {
            mechanism: Mechanism::Kprobe | Mechanism::Kretprobe,
            functions,
            phase: profile::Phase::Attach,
            ..
        } => (KPROBE, functions),
        _ => return 0,
    };
    match functions {
        Functions::Count(count) => each * u64::from(count.get()),
        // A program or probe for each of forty thousand functions does not fit into any time budget.
        Functions::All => each,
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
    fn gives_a_floor_to_lookups_by_name() {
        for (name, expected) in [
            ("attach.fentry.1.load.exact", 10_000),
            ("attach.fentry.100.load.exact", 1_000_000),
            ("attach.kprobe_multi.100.load.exact", 0),
            ("attach.fentry.1.attach.exact", 0),
            ("attach.kprobe.1.attach.exact", 20_000),
            ("attach.kretprobe.10.attach.instructions", 200_000),
            ("attach.kprobe.1.detach.instructions", 0),
            ("attach.kprobe_multi.100.attach.instructions", 0),
            ("attach.fentry.1.attach.instructions", 0),
            ("lbr_waste.fexit.any", 0),
            ("trigger.fexit.instructions", 0),
        ] {
            assert_eq!(floor(&name.parse().unwrap()), expected, "{name}");
        }
    }
}
