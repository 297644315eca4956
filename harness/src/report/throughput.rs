// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the timed rounds of a trigger cell say.

use super::spread::Spread;
use crate::run::Trigger;

/// Nanoseconds that a hit takes longer with the program than without, round by round.
pub fn overhead_ns(trigger: &Trigger) -> Option<Spread> {
    let rounds = trigger.attached_ns.iter().zip(&trigger.detached_ns);
    Spread::of(rounds.map(|(&with, &without)| (with as f64 - without as f64) / f64::from(trigger.timed)))
}

/// Triggers per second with the program attached: the system call that makes each is part of it.
pub fn hits_per_second(trigger: &Trigger) -> Option<f64> {
    let ns = Spread::of(trigger.attached_ns.iter().map(|&ns| ns as f64))?.median;
    (ns > 0.0).then(|| f64::from(trigger.timed) * 1e9 / ns)
}
