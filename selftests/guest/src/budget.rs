// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a phase with a link per function may take.

use nix::time::{ClockId, clock_gettime};

const SECOND: u64 = 1_000_000_000;

/// The monotonic clock: what all times of a measurement are taken with.
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.tv_sec() as u64 * SECOND + t.tv_nsec() as u64)
}

/// Seconds of guest time for a phase; none is for ever.
#[derive(Clone, Copy, Debug)]
pub struct Budget(pub Option<u32>);

/// When a phase's budget will have been used up.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<u64>);

impl Budget {
    pub fn from(self, now_ns: u64) -> Deadline {
        Deadline(self.0.map(|seconds| now_ns.saturating_add(u64::from(seconds) * SECOND)))
    }
}

impl Deadline {
    /// Whether a phase that has done so many steps may go on; the first step it always may.
    pub fn allows(self, done: usize, now_ns: u64) -> bool {
        done == 0 || self.0.is_none_or(|end| now_ns < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_when_its_time_is_up_and_never_with_nothing() {
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
            let done = (0..5).take_while(|done| deadline.allows(*done, start + *done as u64 * step)).count();
            assert_eq!(done, expected, "5 steps of {step} ns within {seconds:?} s");
        }
    }
}
