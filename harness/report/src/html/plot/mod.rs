// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pictures: pure functions from numbers to positions. The template draws them as SVG, and escapes
//! their texts.

pub mod axis;
pub mod bars;
pub mod course;
pub mod flame;
pub mod growth;
pub mod times;

use bars::Bars;
use course::Course;
use growth::Growth;
use times::Times;

pub enum Plot {
    Times(Times),
    Growth(Growth),
    Bars(Bars),
    Course(Course),
}

/// A picture with its caption. A table beside it has the same numbers.
pub struct Figure {
    pub caption: String,
    pub plot: Plot,
    /// The rest that the picture has no room for.
    pub notes: Vec<String>,
}

/// The width of every picture.
pub const WIDTH: f64 = 860.0;

/// Colours that colour-blind people tell apart: Okabe and Ito's, without yellow and black, which
/// vanish on a light or a dark page. `report.css` has a colour for each.
pub const COLOURS: usize = 7;

/// Shapes of points, so that no reader depends on colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Circle,
    Square,
    Diamond,
    Triangle,
}

impl Shape {
    pub fn of(index: usize) -> Shape {
        [Shape::Circle, Shape::Square, Shape::Diamond, Shape::Triangle][index % 4]
    }

    /// The path of a point at a position.
    pub fn path(self, x: f64, y: f64) -> String {
        let corners = |corners: &[(f64, f64)]| {
            let corner = |(dx, dy): &(f64, f64)| {
                format!("{},{}", axis::pixels(x + dx), axis::pixels(y + dy))
            };
            format!("M{}Z", corners.iter().map(corner).collect::<Vec<_>>().join("L"))
        };
        match self {
            Shape::Circle => {
                format!("M{},{y}a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", axis::pixels(x - 4.0))
            }
            Shape::Square => corners(&[(-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)]),
            Shape::Diamond => corners(&[(0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)]),
            Shape::Triangle => corners(&[(0.0, -4.5), (4.5, 4.0), (-4.5, 4.0)]),
        }
    }
}

/// A row's whole text: its test, and its kernel if the picture has several.
fn titled(label: &str, kernel: &str, several: bool) -> String {
    if several { format!("{label} · {kernel}") } else { label.to_owned() }
}

/// Shortens a label to the room beside a picture. The whole text is its title. Kernels often differ
/// at their ends, and tests at their beginnings: the middle goes.
pub fn shortened(label: &str, characters: usize) -> String {
    let all = label.chars().count();
    if all <= characters {
        return label.to_owned();
    }
    let end = (characters - 1) / 2;
    let front = label.chars().take(characters - 1 - end);
    front.chain(['…']).chain(label.chars().skip(all - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_surround_their_position() {
        assert_eq!(Shape::of(1).path(10.0, 20.0), "M6.5,16.5L13.5,16.5L13.5,23.5L6.5,23.5Z");
        assert_eq!(Shape::of(4), Shape::Circle);
        assert!(Shape::Circle.path(10.0, 20.0).starts_with("M6,20a4,4"));
    }

    #[test]
    fn shortens_by_characters() {
        assert_eq!(shortened("fentry", 6), "fentry");
        assert_eq!(shortened("fentrys", 6), "fen…ys");
        assert_eq!(shortened("ééééééé", 3), "é…é");
    }
}
