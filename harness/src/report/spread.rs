// SPDX-License-Identifier: MIT OR Apache-2.0
//! Median and extremes of timed rounds.

use std::fmt;

/// Milliseconds, of nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub n: usize,
}

impl Spread {
    /// `None` of nothing.
    pub fn of_ns(values: impl IntoIterator<Item = u64>) -> Option<Spread> {
        let mut values: Vec<u64> = values.into_iter().collect();
        values.sort_unstable();
        let (&min, &max) = (values.first()?, values.last()?);
        let n = values.len();
        let middle = &values[(n - 1) / 2..=n / 2];
        let ms = |ns: f64| ns / 1e6;
        let median = ms(middle.iter().map(|&v| v as f64).sum::<f64>() / middle.len() as f64);
        Some(Spread { median, min: ms(min as f64), max: ms(max as f64), n })
    }
}

/// `median (min..max)`; one value has no spread.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { median, min, max, n } = *self;
        match n {
            1 => write!(f, "{median:.2}"),
            _ => write!(f, "{median:.2} ({min:.2}..{max:.2})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_extremes() {
        let table: [(&[u64], &str); 4] = [
            (&[1_234_567], "1.23"),
            (&[3_000_000, 1_000_000, 2_000_000], "2.00 (1.00..3.00)"),
            (&[4_000_000, 1_000_000, 2_000_000, 3_000_000], "2.50 (1.00..4.00)"),
            (&[u64::MAX, 0], "9223372036854.78 (0.00..18446744073709.55)"),
        ];
        for (values, printed) in table {
            assert_eq!(Spread::of_ns(values.iter().copied()).unwrap().to_string(), printed);
        }
        assert_eq!(Spread::of_ns([]), None);
    }
}
