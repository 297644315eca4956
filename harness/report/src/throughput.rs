// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the timed rounds of a trigger cell say.

use tramplab_analysis::spread::Spread;
use tramplab_model::run::Trigger;

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

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_protocol::{Mechanism, message::Symbol};

    fn trigger(timed: u32, attached_ns: &[u64], detached_ns: &[u64]) -> Trigger {
        Trigger {
            mechanism: Mechanism::Fentry,
            function: Symbol { name: "traced".to_owned(), module: None, start: 1, end: 2 },
            cost: None,
            timed,
            attached_ns: attached_ns.to_vec(),
            detached_ns: detached_ns.to_vec(),
        }
    }

    #[test]
    fn rounds_are_taken_in_pairs() {
        let trigger = trigger(100, &[5000, 9000, 6000], &[4000, 4000, 7000]);
        assert_eq!(format!("{:.0}", overhead_ns(&trigger).unwrap()), "10 (-10..50)");
        assert_eq!(hits_per_second(&trigger).map(f64::round), Some(16_666_667.0));
    }

    #[test]
    fn no_rounds_are_no_numbers() {
        for trigger in [trigger(100, &[], &[]), trigger(100, &[0], &[0])] {
            assert_eq!(hits_per_second(&trigger), None);
        }
        assert_eq!(overhead_ns(&trigger(100, &[], &[])), None);
    }
}
