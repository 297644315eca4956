// SPDX-License-Identifier: MIT OR Apache-2.0
//! Judges numbers that repeat. Every difference is real, so the only question is if it is a cost.

use super::{Difference, Verdict};

/// Judges large numbers, with a tolerance in per cent. `layout` is how far the layout of the code
/// alone moves the number.
pub fn share(base: u64, head: u64, tolerated_percent: f64, layout: u64) -> Verdict {
    let tolerated = base as f64 * tolerated_percent / 100.0;
    judge(base, head, |apart| apart as f64 <= tolerated, layout)
}

/// Judges records, instructions and branches. None is a trace in which no record touches the traced
/// function: losing it is worse than any number.
pub fn count(base: Option<u32>, head: Option<u32>, tolerated: u32, layout: u64) -> Verdict {
    match (base, head) {
        (Some(a), Some(b)) => judge(a.into(), b.into(), |apart| apart <= tolerated.into(), layout),
        (None, None) => Verdict::Same(Difference::None),
        (Some(_), None) => Verdict::Worse,
        (None, Some(_)) => Verdict::Better,
    }
}

fn judge(base: u64, head: u64, is_tolerated: impl Fn(u64) -> bool, layout: u64) -> Verdict {
    match base.abs_diff(head) {
        0 => Verdict::Same(Difference::None),
        apart if is_tolerated(apart) => Verdict::Same(Difference::Tolerated),
        apart if apart <= layout => Verdict::Same(Difference::Layout),
        _ if head < base => Verdict::Better,
        _ => Verdict::Worse,
    }
}

impl Verdict {
    /// Does not judge better or worse if the number includes more than the cost.
    pub(super) fn unless(self, has_more: bool, reason: &'static str) -> Verdict {
        match self {
            Verdict::Better | Verdict::Worse if has_more => Verdict::NotJudged(reason),
            verdict => verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_by_tolerance_then_by_layout() {
        use Difference::{Layout, None, Tolerated};
        for (base, head, layout, expected) in [
            (100_500, 100_500, 0, Verdict::Same(None)),
            (100_500, 101_505, 0, Verdict::Same(Tolerated)),
            (100_500, 99_495, 0, Verdict::Same(Tolerated)),
            // Measured on a kernel with a function that is never called.
            (100_500, 103_195, 0, Verdict::Worse),
            (100_500, 103_195, 2_694, Verdict::Worse),
            (100_500, 103_195, 2_695, Verdict::Same(Layout)),
            (103_195, 100_500, 2_695, Verdict::Same(Layout)),
            (103_195, 100_500, 2_694, Verdict::Better),
            (0, 1, 0, Verdict::Worse),
        ] {
            assert_eq!(share(base, head, 1.0, layout), expected, "{base} {head} {layout}");
        }
    }

    #[test]
    fn counts_every_difference_beyond_tolerance() {
        for (base, head, tolerated, expected) in [
            (Some(9), Some(10), 0, Verdict::Worse),
            (Some(9), Some(10), 1, Verdict::Same(Difference::Tolerated)),
            (Some(10), Some(9), 1, Verdict::Same(Difference::Tolerated)),
            (Some(10), Some(8), 1, Verdict::Better),
            (Some(10), None, 99, Verdict::Worse),
            (None, Some(10), 0, Verdict::Better),
            (None, None, 0, Verdict::Same(Difference::None)),
        ] {
            assert_eq!(count(base, head, tolerated, 0), expected, "{base:?} {head:?} {tolerated}");
        }
    }
}
