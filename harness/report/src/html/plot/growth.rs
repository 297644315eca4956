// SPDX-License-Identifier: MIT OR Apache-2.0
//! Growth with the number of functions: points and fitted lines, both axes logarithmic.

use super::{
    COLOURS, Shape,
    axis::{Axis, Tick},
    shortened,
};
use crate::scaling;

/// A quantity, and its values by number of functions.
#[derive(Clone, Debug, PartialEq)]
pub struct Grown {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

pub struct Growth {
    pub unit: &'static str,
    pub x: Vec<Tick>,
    pub y: Vec<Tick>,
    pub lines: Vec<Line>,
}

pub struct Line {
    pub number: usize,
    pub points: Vec<String>,
    /// From the smallest to the largest fitted size. None without a fit.
    pub fit: Option<[f64; 4]>,
    /// Where the legend has this line.
    pub legend: f64,
    pub mark: String,
    pub title: String,
    pub label: String,
}

pub const LEFT: f64 = 70.0;
pub const RIGHT: f64 = 500.0;
pub const TOP: f64 = 14.0;
pub const BOTTOM: f64 = 300.0;
pub const HEIGHT: f64 = BOTTOM + 44.0;
const LEGEND: f64 = 18.0;
const LABEL: usize = 50;

/// Draws those with at least two sizes, as many as there are colours. Returns the number of those
/// that it left out. None if nothing has two sizes.
pub fn growth(all: &[Grown], unit: &'static str) -> Option<(Growth, usize)> {
    let sizes = |grown: &&Grown| grown.points.iter().any(|(n, _)| *n != grown.points[0].0);
    let grown: Vec<&Grown> = all.iter().filter(sizes).collect();
    let drawn = &grown[..grown.len().min(COLOURS)];
    let points = || drawn.iter().flat_map(|grown| &grown.points);
    let x = Axis::log(points().map(|point| point.0), LEFT, RIGHT)?;
    let y = Axis::log(points().map(|point| point.1), BOTTOM, TOP)?;
    let line = |(number, grown): (usize, &&Grown)| {
        let shape = Shape::of(number);
        let fitted = scaling::large(&grown.points);
        let fit = scaling::fit(&fitted);
        let ends = fitted.iter().map(|point| point.0);
        let (least, most) =
            ends.fold((f64::INFINITY, 0.0), |(a, b): (f64, f64), n| (a.min(n), b.max(n)));
        let exponent =
            fit.map_or_else(String::new, |fit| format!(", exponent {:.2}", fit.exponent));
        let title = format!("{}{exponent}", grown.label);
        let legend = TOP + 6.0 + LEGEND * number as f64;
        Line {
            number,
            points: grown.points.iter().map(|&(n, v)| shape.path(x.at(n), y.at(v))).collect(),
            fit: fit.map(|fit| [x.at(least), y.at(fit.at(least)), x.at(most), y.at(fit.at(most))]),
            legend,
            mark: shape.path(RIGHT + 26.0, legend),
            label: shortened(&title, LABEL),
            title,
        }
    };
    let lines = drawn.iter().enumerate().map(line).collect();
    let growth = Growth { unit, x: x.ticks(), y: y.ticks(), lines };
    Some((growth, grown.len() - drawn.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(label: &str, points: &[(f64, f64)]) -> Grown {
        Grown { label: label.to_owned(), points: points.to_vec() }
    }

    #[test]
    fn the_fit_of_proportional_growth_goes_through_its_points() {
        let points = [(100.0, 2.0), (1000.0, 20.0), (10_000.0, 200.0)];
        let (growth, _) = growth(&[grown("fentry", &points)], "ms").unwrap();
        let line = &growth.lines[0];
        let [x0, y0, x1, y1] = line.fit.unwrap();
        assert_eq!((x0, y0, x1, y1), (LEFT, BOTTOM, RIGHT, TOP));
        assert_eq!(line.title, "fentry, exponent 1.00");
        assert_eq!(line.points[0], Shape::Circle.path(x0, y0));
        assert_eq!(line.points[2], Shape::Circle.path(x1, y1));
    }

    #[test]
    fn two_sizes_are_drawn_without_a_fit_and_one_size_not_at_all() {
        let two = grown("a", &[(10.0, 1.0), (100.0, 3.0)]);
        let one = grown("b", &[(10.0, 1.0), (10.0, 3.0)]);
        let (drawn, left_out) = growth(&[two, one.clone()], "ms").unwrap();
        assert_eq!((drawn.lines.len(), left_out), (1, 0));
        assert!(drawn.lines[0].fit.is_none() && drawn.lines[0].title == "a");
        assert!(growth(&[one], "ms").is_none());
        assert!(growth(&[], "ms").is_none());
    }

    #[test]
    fn has_a_colour_for_each_line() {
        let all = vec![grown("a", &[(10.0, 1.0), (100.0, 3.0)]); COLOURS + 2];
        let (growth, left_out) = growth(&all, "ms").unwrap();
        assert_eq!((growth.lines.len(), left_out), (COLOURS, 2));
        let numbers: Vec<usize> = growth.lines.iter().map(|line| line.number).collect();
        assert_eq!(numbers, Vec::from_iter(0..COLOURS));
    }
}
