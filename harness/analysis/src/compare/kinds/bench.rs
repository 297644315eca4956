// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench`: rates of the tree's own benchmarks.

use super::super::{
    Judging, Timing, Value, Verdict,
    timed::{self, Judged},
    value::MIXED,
};
use crate::spread::median;
use std::cmp::Ordering;
use tramplab_model::{
    kinds::{Metric, bench},
    run::{Accel, Cell, Measurement},
};

pub fn values(test: bench::Test, cell: &Cell) -> Vec<(Metric, Value)> {
    let Some(Measurement::Bench(bench)) = &cell.measurement else { return Vec::new() };
    let rates = bench.boots.iter().map(|boot| median(&boot.hits)).collect();
    vec![(Metric::Bench(test), Value::Rates(rates, cell.id.accel))]
}

pub fn judge(base: &Value, head: &Value, how: Judging) -> Judged {
    let (Value::Rates(a, accel), Value::Rates(b, _)) = (base, head) else {
        return Judged::not(MIXED);
    };
    if *accel == Accel::Tcg {
        return Judged::not("throughput under TCG is the emulator's");
    }
    match how.timing {
        Timing::Interleaved if [a, b].iter().any(|rates| rates.contains(&0.0)) => {
            let idle = |rates: &[f64]| rates.iter().filter(|rate| **rate == 0.0).count();
            // There is no ratio to 0, so compare the number of idle guests: more idle guests are
            // worse.
            match idle(b).cmp(&idle(a)) {
                Ordering::Greater => Verdict::Worse.into(),
                Ordering::Less => Verdict::Better.into(),
                Ordering::Equal => {
                    Judged::not("as many guests of each side had no hit in most seconds")
                }
            }
        }
        // Judge the time of a hit: more is worse.
        Timing::Interleaved => {
            let [a, b] =
                [a, b].map(|rates| rates.iter().map(|rate| 1.0 / rate).collect::<Vec<_>>());
            timed::judge(&a, &b, how.alpha, how.tolerance.time_percent)
        }
        Timing::Apart => Judged::not(timed::APART),
    }
}
