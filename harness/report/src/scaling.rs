// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fits a power law to growth with the number of functions: its exponent, and the quality of the
//! fit.

use statrs::statistics::Statistics;

/// `y = factor * n ^ exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    pub factor: f64,
    pub exponent: f64,
    /// The exponent's standard error.
    pub error: f64,
    pub r_squared: f64,
}

/// Fewer sizes always fit a line.
const FEWEST: usize = 3;

/// With fewer functions, one-time work is most of the cost.
const FROM: f64 = 100.0;

/// The points to fit: those from a hundred functions on, if they have enough sizes.
pub fn large(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let large: Vec<(f64, f64)> = points.iter().copied().filter(|(n, _)| *n >= FROM).collect();
    if sizes(&large) >= FEWEST { large } else { points.to_vec() }
}

fn sizes(points: &[(f64, f64)]) -> usize {
    let mut sizes: Vec<f64> = points.iter().map(|(n, _)| *n).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes.len()
}

/// Fits by least squares of the logarithms. None if there are fewer than three different sizes, or
/// if a value is not above 0.
pub fn fit(points: &[(f64, f64)]) -> Option<Fit> {
    if sizes(points) < FEWEST || points.iter().any(|(n, y)| !(*n > 0.0 && *y > 0.0)) {
        return None;
    }
    let logs = |of: fn(&(f64, f64)) -> f64| {
        points.iter().map(|point| of(point).ln()).collect::<Vec<f64>>()
    };
    let (x, y) = (logs(|point| point.0), logs(|point| point.1));
    let n = points.len() as f64;
    // Sums of squares about the means.
    let (xx, yy) = ((n - 1.0) * (&x).variance(), (n - 1.0) * (&y).variance());
    let exponent = (&x).covariance(&y) / (&x).variance();
    let intercept = (&y).mean() - exponent * (&x).mean();
    let residuals = x.iter().zip(&y).map(|(x, y)| y - intercept - exponent * x);
    let unexplained: f64 = residuals.map(|residual| residual * residual).sum();
    let error = (unexplained / (n - 2.0) / xx).sqrt();
    Some(Fit { factor: intercept.exp(), exponent, error, r_squared: 1.0 - unexplained / yy })
}

impl Fit {
    /// The fitted value for a number of functions.
    pub fn at(&self, n: f64) -> f64 {
        self.factor * n.powf(self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_a_textbook_fit() {
        // y = 3 n², exactly.
        let square = fit(&[(1.0, 3.0), (10.0, 300.0), (100.0, 30_000.0), (1000.0, 3e6)]).unwrap();
        assert!((square.exponent - 2.0).abs() < 1e-9 && square.r_squared > 0.999_999, "{square:?}");
        assert!((square.at(50.0) - 7500.0).abs() < 1e-6, "{square:?}");
        // ln n = 0, 1, 2; ln y = 0, 2, 1: slope 1/2, residuals -1/2, 1, -1/2; r² = 1 - 1.5/2; se =
        // sqrt(1.5/1/2).
        let e = std::f64::consts::E;
        let rough = fit(&[(1.0, 1.0), (e, e * e), (e * e, e)]).unwrap();
        for (value, expected) in
            [(rough.exponent, 0.5), (rough.r_squared, 0.25), (rough.error, 0.75_f64.sqrt())]
        {
            assert!((value - expected).abs() < 1e-9, "{rough:?}");
        }
    }

    #[test]
    fn leaves_out_small_sizes_if_enough_remain() {
        let points = [1.0, 10.0, 100.0, 1000.0, 10_000.0].map(|n| (n, 500.0 + n));
        assert_eq!(large(&points), points[2..]);
        assert_eq!(large(&points[..4]), points[..4]);
    }

    /// Expected values are from the package `linregress`, 0.5.4.
    #[test]
    fn fits_scattered_points_as_a_statistics_package_does() {
        let points =
            [(100.0, 0.42), (200.0, 0.81), (500.0, 2.3), (1e3, 4.1), (1e3, 4.6), (1e4, 57.0)];
        let fit = fit(&points).unwrap();
        for (value, expected) in [
            (fit.exponent, 1.067_427_321_646_949_9),
            (fit.error, 0.021_290_490_057_098_97),
            (fit.r_squared, 0.998_411_218_660_965),
        ] {
            assert!((value - expected).abs() < 1e-12, "{fit:?}");
        }
    }

    #[test]
    fn returns_none_without_an_exponent() {
        for points in [
            &[][..],
            &[(1.0, 1.0), (2.0, 2.0)],
            &[(1.0, 1.0), (2.0, 2.0), (2.0, 3.0)],
            &[(1.0, 1.0), (2.0, 0.0), (3.0, 3.0)],
            &[(0.0, 1.0), (2.0, 1.0), (3.0, 3.0)],
        ] {
            assert_eq!(fit(points), None, "{points:?}");
        }
    }
}
