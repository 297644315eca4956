// SPDX-License-Identifier: MIT OR Apache-2.0
//! Median, minimum and maximum of repeated measurements.

use statrs::statistics::{Data, Median};
use std::fmt;

/// Returns the median: the mean of the middle two for an even count, NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    Data::new(values.to_vec()).median()
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub n: usize,
}

impl Spread {
    /// Returns `None` for no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let values: Vec<f64> = values.into_iter().collect();
        let min = values.iter().copied().reduce(f64::min)?;
        let max = values.iter().copied().reduce(f64::max)?;
        Some(Spread { median: median(&values), min, max, n: values.len() })
    }

    /// Converts nanoseconds to milliseconds.
    pub fn of_ns(values: impl IntoIterator<Item = u64>) -> Option<Spread> {
        Spread::of(values.into_iter().map(|ns| ns as f64 / 1e6))
    }
}

impl Spread {
    /// `min..max`, where the median is no level.
    pub fn range(self) -> String {
        format!("{:.2}..{:.2}", self.min, self.max)
    }
}

/// Prints `median (min..max)`, or only the median of a single value. The default is two decimals.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { median, min, max, n } = *self;
        let digits = f.precision().unwrap_or(2);
        match n {
            1 => write!(f, "{median:.digits$}"),
            _ => write!(f, "{median:.digits$} ({min:.digits$}..{max:.digits$})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_median_and_extremes() {
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
        assert!(median(&[]).is_nan());
        assert_eq!(format!("{:.0}", Spread::of([3.6, 1.0]).unwrap()), "2 (1..4)");
    }
}
