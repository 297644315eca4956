// SPDX-License-Identifier: MIT OR Apache-2.0
//! Axes: from values to positions in a picture.

/// A range of values, and the positions of its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// With a tick every step.
    Linear {
        step: f64,
    },
    Log,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    pub at: f64,
    pub label: String,
}

/// More ticks than this are thinned out.
const TICKS: usize = 8;

/// Most steps of a linear axis.
const STEPS: f64 = 5.0;

impl Axis {
    /// Makes a logarithmic axis with round ends. Values that are not above 0 lie at its low end.
    /// None if no value is above 0.
    pub fn log(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Option<Axis> {
        let positive = values.into_iter().filter(|value| *value > 0.0 && value.is_finite());
        let (least, most) = range(positive)?;
        let low = steps(least).take_while(|step| *step <= least).last()?;
        let high = steps(most).find(|step| *step >= most && *step > low)?;
        Some(Axis { scale: Scale::Log, low, high, from, to })
    }

    /// Makes a linear axis from 0 to a round value.
    pub fn from_zero(most: f64, from: f64, to: f64) -> Axis {
        let most = most.max(1.0);
        let step = steps(most / STEPS).find(|step| *step >= most / STEPS).unwrap_or(most);
        let high = (most / step).ceil() * step;
        Axis { scale: Scale::Linear { step }, low: 0.0, high, from, to }
    }

    /// Makes a linear axis with round ends around the values. It need not start at 0. Its step is
    /// at least `least`. None if there is no value.
    pub fn around(
        values: impl IntoIterator<Item = f64>,
        least: f64,
        from: f64,
        to: f64,
    ) -> Option<Axis> {
        let (lowest, highest) = range(values.into_iter().filter(|value| value.is_finite()))?;
        // Differences of much less than a per cent would otherwise fill the picture.
        let widest = lowest.abs().max(highest.abs());
        let span = (highest - lowest).max(widest / 100.0);
        let middle = lowest / 2.0 + highest / 2.0;
        let wanted = (span / STEPS).max(least);
        let wanted = if wanted > 0.0 { wanted } else { 1.0 };
        let step = steps(wanted).find(|step| *step >= wanted)?;
        let mut low = ((middle - span / 2.0) / step).floor() * step;
        let mut high = ((middle + span / 2.0) / step).ceil() * step;
        // Points do not lie on the edge.
        if lowest <= low {
            low -= step;
        }
        if highest >= high {
            high += step;
        }
        let low = if lowest >= 0.0 { low.max(0.0) } else { low };
        Some(Axis { scale: Scale::Linear { step }, low, high, from, to })
    }

    /// The position of a value. A value outside of the axis lies at its nearer end.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear { .. } => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        // The logarithm of 0 is below all, that of less than 0 no number.
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        pixels(self.from + share * (self.to - self.from))
    }

    pub fn ticks(&self) -> Vec<Tick> {
        let values = match self.scale {
            Scale::Linear { step } => {
                let ticks = ((self.high - self.low) / step).round() as u32;
                let first = (self.low / step).round();
                (0..=ticks).map(|tick| rounded((first + f64::from(tick)) * step, step)).collect()
            }
            Scale::Log => {
                let all: Vec<f64> = steps(self.low).take_while(|step| *step <= self.high).collect();
                thinned(all.into_iter().filter(|step| *step >= self.low).collect())
            }
        };
        values.into_iter().map(|value| Tick { at: self.at(value), label: label(value) }).collect()
    }
}

/// The least and the greatest of the values.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((value.min(least), value.max(most))),
    })
}

/// Removes the noise of binary fractions: 3 * 0.1 is not 0.3.
fn rounded(value: f64, step: f64) -> f64 {
    let decimals = (-step.log10().floor()).clamp(0.0, 300.0) as usize;
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

/// Leaves only powers of ten, and of these every n-th, if there are too many.
fn thinned(ticks: Vec<f64>) -> Vec<f64> {
    if ticks.len() <= TICKS {
        return ticks;
    }
    let powers: Vec<f64> =
        ticks.into_iter().filter(|tick| format!("{tick:e}").starts_with("1e")).collect();
    let every = powers.len().div_ceil(TICKS).max(1);
    powers.into_iter().step_by(every).collect()
}

/// Round values (1, 2, 5 times a power of ten), from below `value` to beyond all that is measured.
fn steps(value: f64) -> impl Iterator<Item = f64> {
    let first = value.log10().floor() as i32;
    // Through text, as 2e-2 is not 2.0 * 10f64.powi(-2).
    let step = |power: i32| [1, 2, 5].map(|digit| format!("{digit}e{power}").parse::<f64>());
    (first.saturating_sub(1)..=first.saturating_add(40)).flat_map(step).flatten()
}

fn label(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        _ if (1e-3..1e6).contains(&value.abs()) => format!("{value}"),
        _ => format!("{value:e}"),
    }
}

/// Rounds a position, which keeps the page short.
pub fn pixels(position: f64) -> f64 {
    (position * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn log_axis_has_round_ends_and_equal_steps() {
        let axis = Axis::log([0.3, 42.0], 0.0, 600.0).unwrap();
        assert_eq!(labels(axis), ["0.2", "0.5", "1", "2", "5", "10", "20", "50"]);
        assert_eq!((axis.at(0.2), axis.at(50.0)), (0.0, 600.0));
        // Equal ratios are equal distances.
        let steps = [axis.at(1.0) - axis.at(0.5), axis.at(10.0) - axis.at(5.0)];
        assert!((steps[0] - steps[1]).abs() < 0.2, "{steps:?}");
        assert_eq!(Axis::log([0.0, -1.0, f64::NAN], 0.0, 1.0), None);
    }

    #[test]
    fn one_value_has_an_axis_too() {
        let axis = Axis::log([10.0], 0.0, 100.0).unwrap();
        assert_eq!(labels(axis), ["10", "20"]);
    }

    #[test]
    fn long_axes_have_few_ticks() {
        let axis = Axis::log([1.0, 9e5], 0.0, 100.0).unwrap();
        assert_eq!(labels(axis), ["1", "10", "100", "1000", "10000", "100000", "1e6"]);
        let most = Axis::log([1e-300, f64::MAX], 0.0, 100.0);
        assert!(most.is_none_or(|axis| axis.ticks().len() <= TICKS));
        let wide = Axis::log([1e-9, u64::MAX as f64], 0.0, 100.0).unwrap();
        assert!(wide.ticks().len() <= TICKS, "{:?}", wide.ticks());
    }

    #[test]
    fn linear_axis_starts_at_zero() {
        let axis = Axis::from_zero(153.0, 100.0, 300.0);
        assert_eq!(labels(axis), ["0", "50", "100", "150", "200"]);
        assert_eq!((axis.at(0.0), axis.at(100.0), axis.at(1e9)), (100.0, 200.0, 300.0));
        assert_eq!(labels(Axis::from_zero(0.0, 0.0, 1.0)).last().unwrap(), "1");
    }

    #[test]
    fn an_axis_around_values_shows_small_differences() {
        let of = |values: &[f64], least| {
            Axis::around(values.iter().copied(), least, 100.0, 0.0).unwrap()
        };
        // Counts have no halves.
        assert_eq!(labels(of(&[9.0, 10.0], 1.0)), ["8", "9", "10", "11"]);
        assert_eq!(labels(of(&[0.0], 1.0)), ["0", "1"]);
        let close = of(&[3_539_800.0, 3_545_000.0], 1.0);
        assert_eq!(labels(close), ["3.52e6", "3.53e6", "3.54e6", "3.55e6", "3.56e6", "3.57e6"]);
        assert_eq!(labels(of(&[0.21, 0.42], 0.0)), ["0.2", "0.25", "0.3", "0.35", "0.4", "0.45"]);
        // The time of a hit is a difference, and may be negative.
        assert_eq!(labels(of(&[-20.0, 15.0], 0.0)), ["-30", "-20", "-10", "0", "10", "20"]);
        assert!(close.at(3_545_000.0) < close.at(3_539_800.0), "upwards");
        assert_eq!(Axis::around([f64::NAN], 1.0, 0.0, 1.0), None);
    }

    #[test]
    fn values_outside_lie_at_the_ends() {
        let axis = Axis::log([1.0, 10.0], 0.0, 100.0).unwrap();
        for (value, at) in [(0.0, 0.0), (-5.0, 0.0), (f64::NAN, 0.0), (f64::INFINITY, 100.0)] {
            assert_eq!(axis.at(value), at, "{value}");
        }
    }
}
