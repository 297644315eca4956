// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric over runs: a line for each kernel, and a mark at each step.

use super::{
    COLOURS, Shape,
    axis::{Axis, Tick, pixels},
    shortened,
};

/// One kernel's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    pub label: String,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Where it lies among all that the picture shows.
    pub place: usize,
    /// None interrupts the line.
    pub number: Option<f64>,
    pub title: String,
    pub step: Option<Stepped>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Stepped {
    pub worse: bool,
    /// The number that the page gives the step.
    pub number: usize,
}

pub struct Course {
    pub x: Vec<Tick>,
    pub y: Vec<Tick>,
    pub lines: Vec<Line>,
    pub marks: Vec<Mark>,
    pub explained: String,
}

pub struct Line {
    pub number: usize,
    pub path: String,
    pub points: Vec<Point>,
    /// Where the legend has this line.
    pub legend: f64,
    pub mark: String,
    pub title: String,
    pub label: String,
}

pub struct Point {
    pub path: String,
    pub title: String,
}

pub struct Mark {
    pub x: f64,
    pub worse: bool,
    /// None if a neighbour's leaves no room.
    pub label: Option<String>,
    pub title: String,
}

pub const LEFT: f64 = 74.0;
pub const RIGHT: f64 = 640.0;
pub const TOP: f64 = 22.0;
pub const BOTTOM: f64 = 280.0;
pub const HEIGHT: f64 = BOTTOM + 44.0;
const LEGEND: f64 = 18.0;
const LABEL: usize = 24;
/// A line with more rows has points only at steps and at its end.
const POINTS: usize = 40;
const TICKS: usize = 5;
/// The room of a mark's label.
const MARK: f64 = 30.0;

/// Draws the lines that have a number, as many as there are colours. `places` are the labels
/// across; `unit` stands beside them. Returns the number of lines that it left out. None if there
/// is none.
pub fn course(all: &[Followed], places: &[String], unit: &str) -> Option<(Course, usize)> {
    let has_number = |one: &&Followed| one.rows.iter().any(|row| row.number.is_some());
    let followed: Vec<&Followed> = all.iter().filter(has_number).collect();
    let drawn = &followed[..followed.len().min(COLOURS)];
    let rows = || drawn.iter().flat_map(|followed| &followed.rows);
    let numbers = || rows().filter_map(|row| row.number);
    // Instructions and records have no fractions.
    let least = if numbers().all(|number| number.fract() == 0.0) { 1.0 } else { 0.0 };
    let y = Axis::around(numbers(), least, BOTTOM, TOP)?;
    let last = places.len().saturating_sub(1);
    let share = |place: usize| if last == 0 { 0.5 } else { place as f64 / last as f64 };
    let x = |place: usize| pixels(LEFT + 12.0 + share(place) * (RIGHT - LEFT - 24.0));
    let line = |(number, followed): (usize, &&Followed)| {
        let shape = Shape::of(number);
        let legend = TOP + 6.0 + LEGEND * number as f64;
        let measured = followed.rows.iter().filter_map(|row| Some((row, row.number?)));
        let newest = measured.clone().next_back().map(|(row, _)| row.place);
        let few = followed.rows.len() <= POINTS;
        let is_shown = |row: &Row| few || row.step.is_some() || Some(row.place) == newest;
        let points = measured.filter(|(row, _)| is_shown(row)).map(|(row, number)| Point {
            path: shape.path(x(row.place), y.at(number)),
            title: row.title.clone(),
        });
        Line {
            number,
            path: stairs(followed.rows.iter().map(|row| {
                let at = row.number.map(|number| y.at(number));
                (x(row.place), at)
            })),
            points: points.collect(),
            legend,
            mark: shape.path(RIGHT + 26.0, legend),
            label: shortened(&followed.label, LABEL),
            title: followed.label.clone(),
        }
    };
    let course = Course {
        x: ticks(places).map(|at| Tick { at: x(at), label: places[at].clone() }).collect(),
        y: y.ticks(),
        lines: drawn.iter().enumerate().map(line).collect(),
        marks: marks(rows(), x),
        explained: format!("across: runs; up: {unit}"),
    };
    Some((course, followed.len() - drawn.len()))
}

/// A number holds until the next row: rows with the same number share one.
fn stairs(rows: impl Iterator<Item = (f64, Option<f64>)>) -> String {
    let mut path = String::new();
    let mut drawing = false;
    for (x, y) in rows {
        match y {
            Some(y) if drawing => path += &format!("H{x}V{y}"),
            Some(y) => path += &format!("M{x},{y}"),
            // Up to here the number was known.
            None if drawing => path += &format!("H{x}"),
            None => {}
        }
        drawing = y.is_some();
    }
    path
}

fn ticks(places: &[String]) -> impl Iterator<Item = usize> {
    let every = places.len().div_ceil(TICKS).max(1);
    (0..places.len()).step_by(every)
}

fn marks<'a>(rows: impl Iterator<Item = &'a Row>, x: impl Fn(usize) -> f64) -> Vec<Mark> {
    let mut steps: Vec<(&Row, &Stepped)> =
        rows.filter_map(|row| Some((row, row.step.as_ref()?))).collect();
    steps.sort_by_key(|(row, step)| (row.place, step.number));
    let mut labelled = f64::MIN;
    let mark = |(row, step): (&Row, &Stepped)| {
        let x = x(row.place);
        let is_room = x - labelled >= MARK;
        if is_room {
            labelled = x;
        }
        let arrow = if step.worse { '▲' } else { '▼' };
        Mark {
            x,
            worse: step.worse,
            label: is_room.then(|| format!("{arrow}{}", step.number)),
            title: row.title.clone(),
        }
    };
    steps.into_iter().map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(label: &str, numbers: &[Option<f64>]) -> Followed {
        let row = |(place, number): (usize, &Option<f64>)| Row {
            place,
            number: *number,
            title: format!("row {place}"),
            step: (*number == Some(10.0)).then_some(Stepped { worse: true, number: 1 }),
        };
        Followed { label: label.to_owned(), rows: numbers.iter().enumerate().map(row).collect() }
    }

    fn places(count: usize) -> Vec<String> {
        (0..count).map(|place| format!("day {place}")).collect()
    }

    #[test]
    fn a_number_holds_until_the_next_and_errors_interrupt_it() {
        let one = followed("7.2", &[Some(9.0), Some(10.0), None, Some(9.0)]);
        let (course, left_out) = course(&[one], &places(4), "records").unwrap();
        let labels: Vec<&str> = course.y.iter().map(|tick| tick.label.as_str()).collect();
        assert_eq!((labels, left_out), (vec!["8", "9", "10", "11"], 0));
        // Across the axis ends at 86 and 628, with 266 and 447 between; 9 and 10 are thirds of it
        // up.
        assert_eq!(course.lines[0].path, "M86,194H266.7V108H447.3M628,194");
        assert_eq!(course.lines[0].points.len(), 3);
        let [mark] = &course.marks[..] else { panic!() };
        assert_eq!((mark.x, mark.label.as_deref()), (266.7, Some("▲1")));
        assert_eq!(course.x[3], Tick { at: 628.0, label: "day 3".to_owned() });
    }

    #[test]
    fn long_lines_have_few_points_ticks_and_labels() {
        let numbers: Vec<Option<f64>> =
            (0..500).map(|at| Some(if at % 2 == 0 { 9.0 } else { 11.0 })).collect();
        let mut long = followed("7.2", &numbers);
        for at in [100, 101, 300] {
            long.rows[at].step = Some(Stepped { worse: false, number: at });
        }
        let (course, _) = course(&[long], &places(500), "records").unwrap();
        assert_eq!(course.lines[0].points.len(), 4);
        assert!(course.x.len() <= TICKS);
        let labels: Vec<Option<&str>> =
            course.marks.iter().map(|mark| mark.label.as_deref()).collect();
        assert_eq!(labels, [Some("▼100"), None, Some("▼300")]);
    }

    #[test]
    fn draws_what_has_numbers_as_far_as_colours_go() {
        let none = followed("6.1", &[None, None]);
        assert!(course(std::slice::from_ref(&none), &places(2), "ms").is_none());
        let many = vec![followed("7.2", &[Some(1.5)]); COLOURS + 2];
        let (course, left_out) = course(&[vec![none], many].concat(), &places(1), "ms").unwrap();
        assert_eq!((course.lines.len(), left_out), (COLOURS, 2));
    }
}
