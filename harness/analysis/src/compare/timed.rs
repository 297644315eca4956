// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides if two interleaved series of times differ, by a confidence interval of their ratio.

#![allow(clippy::disallowed_methods, reason = "sums of floating point do not overflow")]

use super::{Difference, Verdict};
use statrs::distribution::{ContinuousCDF, StudentsT};
use std::fmt;

/// Chance of calling any time of a comparison different when none is. It is divided among all times
/// (Bonferroni), so that large comparisons raise no more false alarms.
pub(super) const ALPHA: f64 = 0.01;

/// The same for one time, if more boots will decide.
pub(super) const DOUBT: f64 = 0.05;

/// With fewer pairs an interval says nothing.
const FEWEST: usize = 4;

/// Ratio of head to base: the geometric mean with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    /// Pairs of boots.
    pub n: usize,
}

/// `+1.8 % (-0.3 .. +4.0 %, n=6)`.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, low, high] = [self.mean, self.low, self.high].map(|ratio| 100.0 * (ratio - 1.0));
        f.pad(&format!("{mean:+.1} % ({low:+.1} .. {high:+.1} %, n={})", self.n))
    }
}

/// The reason why times of two runs are not judged.
pub const APART: &str = "the two runs were not interleaved";

pub struct Judged {
    pub verdict: Verdict,
    pub ratio: Option<Ratio>,
}

impl From<Verdict> for Judged {
    fn from(verdict: Verdict) -> Judged {
        Judged { verdict, ratio: None }
    }
}

impl Judged {
    pub fn not(reason: &'static str) -> Judged {
        Verdict::NotJudged(reason).into()
    }
}

/// Judges pairs of boots, as they alternated: if the host was slow for a while, both of a pair were
/// slow. `alpha` is the chance of calling them different when they are not.
pub(super) fn judge(base: &[f64], head: &[f64], alpha: f64, tolerated_percent: f64) -> Judged {
    if base.len() != head.len() {
        return Judged::not("the sides have not as many boots");
    }
    if base.len() < FEWEST {
        return Judged::not("fewer than 4 boots of each");
    }
    if base.iter().chain(head).any(|&time| !time.is_finite() || time <= 0.0) {
        return Judged::not("a time is not above 0");
    }
    let logs: Vec<f64> = base.iter().zip(head).map(|(base, head)| (head / base).ln()).collect();
    let ratio = Ratio::new(&logs, alpha);
    let most = 1.0 + tolerated_percent / 100.0;
    let verdict = match () {
        () if ratio.low > most => Verdict::Worse,
        () if ratio.high < 1.0 / most => Verdict::Better,
        () if ratio.low <= 1.0 && ratio.high >= 1.0 => Verdict::NoDifferenceSeen,
        // There is a difference, and its whole interval is tolerated.
        () if ratio.low >= 1.0 / most && ratio.high <= most => Verdict::Same(Difference::Tolerated),
        () => Verdict::NoDifferenceSeen,
    };
    Judged { verdict, ratio: Some(ratio) }
}

impl Ratio {
    /// Makes a ratio from logarithms of pairs. None if there are too few pairs.
    pub fn of_logs(logs: &[f64], alpha: f64) -> Option<Ratio> {
        (logs.len() >= FEWEST).then(|| Ratio::new(logs, alpha))
    }

    /// Student's t interval of the mean of the logarithms.
    fn new(logs: &[f64], alpha: f64) -> Ratio {
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let t = StudentsT::new(0.0, 1.0, n - 1.0)
            .expect("at least one degree of freedom")
            .inverse_cdf(1.0 - alpha / 2.0);
        let half = t * (variance / n).sqrt();
        let [mean, low, high] = [mean, mean - half, mean + half].map(f64::exp);
        Ratio { mean, low, high, n: logs.len() }
    }
}

/// Two levels of times that were not interleaved, and their distance relative to their scatter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// Ratio of after to before. `n` counts both.
    pub ratio: Ratio,
    pub t: f64,
}

/// Welch's t interval of the difference of two means of logarithms. None if it is not defined.
pub fn levels(before: &[f64], after: &[f64], alpha: f64) -> Option<Levels> {
    let of = |logs: &[f64]| {
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        // The variance of the mean, and its degrees of freedom.
        (logs.len() > 1).then_some((mean, squares / (n - 1.0) / n, n - 1.0))
    };
    let ((a, of_a, free_a), (b, of_b, free_b)) = (of(before)?, of(after)?);
    let (difference, variance) = (b - a, of_a + of_b);
    let freedom = variance.powi(2) / (of_a.powi(2) / free_a + of_b.powi(2) / free_b);
    // The times do not scatter at all, so every difference is one.
    let freedom = if freedom.is_finite() { freedom } else { free_a + free_b };
    let half =
        StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(1.0 - alpha / 2.0) * variance.sqrt();
    let t = if difference == 0.0 { 0.0 } else { difference / variance.sqrt() };
    let [mean, low, high] = [difference, difference - half, difference + half].map(f64::exp);
    Some(Levels {
        ratio: Ratio { mean, low, high, n: before.len().saturating_add(after.len()) },
        t,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_a_textbook_interval() {
        // log ratios 0, 0.1, 0.2, 0.3: mean 0.15, s = 0.129099, t(3, 97.5 %) = 3.182446.
        let ratio = Ratio::new(&[0.0, 0.1, 0.2, 0.3], 0.05);
        let half = 3.182_446 * 0.129_099_4 / 2.0;
        for (value, log) in
            [(ratio.mean, 0.15), (ratio.low, 0.15 - half), (ratio.high, 0.15 + half)]
        {
            assert!((value.ln() - log).abs() < 1e-5, "{value} {log}");
        }
    }

    #[test]
    fn matches_a_textbook_interval_of_two_levels() {
        // Means 0.15 and 0.5, variances of the means 0.0166667 / 4 and 0.04 / 5: t = 3.1725, 6.79
        // degrees of freedom, t(97.5 %) = 2.380.
        let levels = levels(&[0.0, 0.1, 0.2, 0.3], &[0.3, 0.3, 0.5, 0.7, 0.7], 0.05).unwrap();
        assert!((levels.t - 3.1725).abs() < 1e-3, "{levels:?}");
        let half = (levels.ratio.high.ln() - levels.ratio.low.ln()) / 2.0;
        assert!((half - 2.380 * 0.110_32).abs() < 1e-3, "{half}");
        assert!((levels.ratio.mean.ln() - 0.35).abs() < 1e-9);
    }

    #[test]
    fn judges_by_interval_and_tolerance() {
        let base = [10.0, 11.0, 9.5, 10.2, 10.4, 9.9];
        let times =
            |factors: [f64; 6]| base.iter().zip(factors).map(|(b, f)| b * f).collect::<Vec<_>>();
        let noise = [1.01, 0.99, 1.02, 0.98, 1.0, 1.003];
        let tolerated = Verdict::Same(Difference::Tolerated);
        let quiet = |factor: f64| times(noise.map(|n: f64| n.powf(0.2) * factor));
        let table = [
            ("the same", times([1.0; 6]), 1, Verdict::NoDifferenceSeen),
            ("noise", times(noise), 1, Verdict::NoDifferenceSeen),
            ("3 % dearer", quiet(1.03), 1, tolerated.clone()),
            ("3 % cheaper", quiet(0.97), 1, tolerated),
            // Between 4.6 and 5.4 %: neither proved to be beyond the tolerance, nor within it.
            ("5 % dearer", quiet(1.05), 1, Verdict::NoDifferenceSeen),
            ("7 % dearer", quiet(1.07), 1, Verdict::Worse),
            ("30 % dearer", times(noise.map(|n| n * 1.3)), 1, Verdict::Worse),
            ("30 % dearer, among many", times(noise.map(|n| n * 1.3)), 100, Verdict::Worse),
            ("30 % cheaper", times(noise.map(|n| n * 0.7)), 1, Verdict::Better),
            (
                "once much dearer",
                times([1.0, 1.0, 1.0, 1.0, 1.0, 3.0]),
                1,
                Verdict::NoDifferenceSeen,
            ),
        ];
        for (name, head, among, verdict) in table {
            let judged = judge(&base, &head, 0.05 / f64::from(among), 5.0);
            assert_eq!(judged.verdict, verdict, "{name}: {:?}", judged.ratio);
        }
    }

    #[test]
    fn does_not_judge_too_few_or_invalid_times() {
        let table: [(&[f64], &[f64]); 4] = [
            (&[1.0, 1.0, 1.0], &[9.0, 9.0, 9.0]),
            (&[1.0; 4], &[9.0; 5]),
            (&[1.0; 4], &[9.0, 9.0, 9.0, 0.0]),
            (&[1.0; 4], &[9.0, 9.0, 9.0, f64::NAN]),
        ];
        for (base, head) in table {
            let judged = judge(base, head, ALPHA, 5.0);
            assert!(matches!(judged.verdict, Verdict::NotJudged(_)), "{base:?} {head:?}");
        }
    }

    /// Both sides have the same distribution: they are rarely called different, however many are
    /// judged together.
    #[test]
    fn rarely_calls_an_unchanged_kernel_different() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut noisy = || 10.0 * (1.0 + 0.3 * (0..6).map(|_| uniform() - 0.5).sum::<f64>());
        let comparisons = 400;
        let false_alarms = (0..comparisons)
            .filter(|_| {
                let differs = |_| {
                    let (a, b): (Vec<f64>, Vec<f64>) = (0..6).map(|_| (noisy(), noisy())).unzip();
                    judge(&a, &b, ALPHA / 20.0, 0.0).verdict != Verdict::NoDifferenceSeen
                };
                (0..20).any(differs)
            })
            .count();
        assert!(false_alarms <= comparisons / 20, "{false_alarms} of {comparisons}");
    }
}
