// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times with their spread: a row for each kernel and phase of a test, a point for each round, on a
//! logarithmic axis.

use super::{
    Shape,
    axis::{Axis, Tick, pixels},
    shortened, titled,
};
use tramplab_analysis::spread::Spread;

/// Rounds of one phase of one test on one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    pub label: String,
    pub kernel: String,
    /// The kernel's place among all, for its shape.
    pub number: usize,
    pub ms: Vec<f64>,
}

pub struct Times {
    pub height: f64,
    pub plotted: f64,
    pub ticks: Vec<Tick>,
    pub rows: Vec<Row>,
}

pub struct Row {
    pub y: f64,
    /// The label's whole text.
    pub title: String,
    pub label: String,
    pub number: usize,
    /// Every other test's rows have a background.
    pub striped: bool,
    pub points: Vec<String>,
    pub low: f64,
    pub high: f64,
    pub median: f64,
    /// `84.76 (83.62..102.65)`.
    pub value: String,
}

pub const LEFT: f64 = 330.0;
pub const RIGHT: f64 = 640.0;
const ROW: f64 = 22.0;
const TOP: f64 = 8.0;
const BELOW: f64 = 26.0;
const LABEL: usize = 48;

/// Rows and points of a row that are drawn.
const ROWS: usize = 120;
const POINTS: usize = 60;

/// Lays the rows out in their order. Returns the number of rows that it left out. None if there is
/// no time.
pub fn times(all: &[Timed]) -> Option<(Times, usize)> {
    let drawn = &all[..all.len().min(ROWS)];
    let axis = Axis::log(drawn.iter().flat_map(|timed| timed.ms.iter().copied()), LEFT, RIGHT)?;
    let several = drawn.iter().any(|timed| timed.kernel != drawn[0].kernel);
    let mut striped = false;
    let mut rows: Vec<Row> = Vec::new();
    let mut last: Option<&str> = None;
    for timed in drawn {
        let Some(spread) = Spread::of(timed.ms.iter().copied()) else { continue };
        striped ^= last.is_some_and(|last| last != timed.label);
        last = Some(&timed.label);
        let y = TOP + ROW * (rows.len() as f64 + 0.5);
        let title = titled(&timed.label, &timed.kernel, several);
        let shape = Shape::of(timed.number);
        rows.push(Row {
            y,
            label: shortened(&title, LABEL),
            title,
            number: timed.number % super::COLOURS,
            striped,
            points: timed.ms.iter().take(POINTS).map(|&ms| shape.path(axis.at(ms), y)).collect(),
            low: axis.at(spread.min),
            high: axis.at(spread.max),
            median: axis.at(spread.median),
            value: spread.to_string(),
        });
    }
    let plotted = TOP + ROW * rows.len() as f64;
    let times = Times { height: pixels(plotted + BELOW), plotted, ticks: axis.ticks(), rows };
    Some((times, all.len() - drawn.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(label: &str, kernel: &str, number: usize, ms: &[f64]) -> Timed {
        Timed { label: label.to_owned(), kernel: kernel.to_owned(), number, ms: ms.to_vec() }
    }

    #[test]
    fn a_row_has_its_rounds_its_median_and_its_ends() {
        let all = [
            timed("a", "6.1", 0, &[1.0, 2.0, 10.0]),
            timed("a", "6.12", 1, &[3.0]),
            timed("b", "6.1", 0, &[]),
            timed("c", "6.1", 0, &[5.0]),
        ];
        let (times, left_out) = times(&all).unwrap();
        assert_eq!((times.rows.len(), left_out), (3, 0));
        let [first, second, third] = &times.rows[..] else { panic!() };
        assert_eq!((first.low, first.high), (LEFT, RIGHT));
        assert!(first.low < first.median && first.median < first.high);
        assert_eq!((first.points.len(), second.points.len()), (3, 1));
        assert_eq!((second.low, second.high), (second.median, second.median));
        assert_eq!([first, second, third].map(|row| row.striped), [false, false, true]);
        assert_eq!((first.label.as_str(), first.value.as_str()), ("a · 6.1", "2.00 (1.00..10.00)"));
    }

    #[test]
    fn one_kernel_is_not_named_in_each_row() {
        let (times, _) = times(&[timed("a", "6.1", 0, &[1.0])]).unwrap();
        assert_eq!(times.rows[0].title, "a");
    }

    #[test]
    fn draws_a_limited_number_of_rows_and_points() {
        let rounds = vec![1.0; 1000];
        let all = vec![timed("a", "6.1", 0, &rounds); ROWS + 7];
        let (times, left_out) = times(&all).unwrap();
        assert_eq!((times.rows.len(), left_out), (ROWS, 7));
        assert_eq!(times.rows[0].points.len(), POINTS);
        assert!(super::times(&[timed("a", "6.1", 0, &[0.0])]).is_none());
    }
}
