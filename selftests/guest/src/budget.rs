// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time budgets for phases with one link per function.

use nix::time::{ClockId, clock_gettime};

const SECOND: u64 = 1_000_000_000;

/// The monotonic clock, which times all measurements.
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * SECOND + t.tv_nsec() as u64)
}

/// Seconds of guest time for a phase. None means no limit.
#[derive(Clone, Copy, Debug)]
pub struct Budget(pub Option<u32>);

/// The end of a phase's budget.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<u64>);

impl Budget {
    pub fn from(self, now_ns: u64) -> Deadline {
        Deadline(self.0.map(|seconds| now_ns.saturating_add(u64::from(seconds) * SECOND)))
    }
}

impl Deadline {
    /// Returns true if a phase after `done` steps may continue. The first step is always allowed.
    pub fn allows(self, done: usize, now_ns: u64) -> bool {
        done == 0 || self.0.is_none_or(|end| now_ns < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_a_phase_with_its_budget_but_not_before_one_step() {
        for (seconds, step, expected) in [
            (None, 10 * SECOND, 5),
            (Some(10), SECOND, 5),
            (Some(3), SECOND, 3),
            (Some(3), SECOND + 1, 3),
            (Some(3), SECOND - 1, 4),
            (Some(1), 100 * SECOND, 1),
            (Some(0), SECOND, 1),
        ] {
            let start = 7;
            let deadline = Budget(seconds).from(start);
            let done = (0..5)
                .take_while(|done| deadline.allows(*done, start + *done as u64 * step))
                .count();
            assert_eq!(done, expected, "5 steps of {step} ns within {seconds:?} s");
        }
    }
}
