// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flame graphs and differential ones, as SVG. Drawn by `inferno`, which is behind the feature `flamegraph`.

use super::{
    Frame, Function, Space, Subject, Tree,
    diff::{self, Scale},
};
use std::{
    cmp::Ordering,
    collections::HashMap,
    io::{self, Write},
};

#[derive(Debug, thiserror::Error)]
pub enum FlameError {
    #[error("there is nothing to draw: the profile has nothing of {0}")]
    Empty(&'static str),
    #[cfg(not(feature = "flamegraph"))]
    #[error("this tramplab was built without flame graphs: build it with `--features flamegraph`")]
    NotBuilt,
    #[error("failed to draw the flame graph: {0}")]
    Draw(#[from] io::Error),
}

/// Red, green and blue.
type Colour = [u8; 3];

const UNCHANGED: Colour = [250; 3];
const INTERRUPT: Colour = [90, 190, 200];
const BPF: Colour = [110, 200, 90];

/// All that is drawn beside the tree's shape.
#[cfg_attr(not(feature = "flamegraph"), expect(dead_code, reason = "nothing is drawn"))]
struct Picture {
    title: String,
    subtitle: String,
    unit: &'static str,
    /// Each frame's name and colour; without one it is drawn in a shade that its name chooses.
    frames: Vec<(String, Option<Colour>)>,
    /// The colour of what is no function: threads, and all of them.
    threads: Option<Colour>,
    /// The side that is as wide as it spent.
    side: usize,
}

pub fn render(subject: &Subject, tree: &Tree<1>, out: &mut impl Write) -> Result<(), FlameError> {
    if tree.total(0) == 0 {
        return Err(FlameError::Empty(subject.of.name()));
    }
    let colour = |frame: &Frame| match (&frame.function.space, frame.interrupt) {
        (_, true) => Some(INTERRUPT),
        (Space::Module(module), false) if module == "bpf" => Some(BPF),
        _ => None,
    };
    let picture = Picture {
        title: format!("{}: {}", subject.cell, subject.phases()),
        subtitle: format!("{}: {} {}", subject.of.name(), subject.total(), subject.unit.name()),
        unit: subject.unit.name(),
        frames: tree.frames.iter().map(|frame| (frame.label(), colour(frame))).collect(),
        threads: None,
        side: 0,
    };
    draw(tree, picture, out)
}

/// As wide as in the head. A frame is named and coloured by how much its function changed over all its call paths, as the
/// table says: a function whose caller was renamed or inlined would look new by its path. A picture of what is not
/// `comparable` says so.
pub fn render_difference(
    base: &Subject,
    head: &Subject,
    tree: &Tree<2>,
    comparable: bool,
    out: &mut impl Write,
) -> Result<(), FlameError> {
    if tree.total(1) == 0 {
        return Err(FlameError::Empty(head.of.name()));
    }
    let scale = Scale::new(head.unit, tree);
    let changes = diff::changes(tree, scale);
    let base_total = scale.base(tree.total(0));
    let largest = changes.first().map_or(0, |change| change.difference().unsigned_abs());
    let differences: HashMap<(&Function, bool), i128> =
        changes.iter().map(|change| ((&change.function, change.interrupt), change.difference())).collect();
    let frame = |frame: &Frame| {
        // inferno drops a mark that ends a name.
        let name = diff::name(&frame.function, if frame.interrupt { " [i]" } else { "" });
        let Some(&difference) = differences.get(&(&frame.function, frame.interrupt)) else {
            return (name, Some(UNCHANGED));
        };
        let share =
            diff::of_base(difference, base_total).map_or_else(String::new, |share| format!(" {share}"));
        (name + &share, Some(shade(difference, largest)))
    };
    let mut subtitle = format!("{}: {} {}", head.of.name(), head.total(), head.unit.name());
    subtitle += &format!(" against {}", base.total());
    subtitle.extend(scale.factor().map(|factor| format!(" times {factor:.3}")));
    subtitle += "; width: head; red: more in the function itself, blue: less; ";
    subtitle += &format!("{:.1} % of the base in call paths that the head lacks", diff::unmatched(tree)[0]);
    if !comparable {
        subtitle += "; NOT COMPARABLE";
    }
    let picture = Picture {
        title: format!("{} against {}: {}", head.cell, base.cell, head.phases()),
        subtitle,
        unit: head.unit.name(),
        frames: tree.frames.iter().map(frame).collect(),
        threads: Some(UNCHANGED),
        side: 1,
    };
    draw(tree, picture, out)
}

/// inferno's own scale: red is more, blue is less; the largest change is the darkest.
fn shade(difference: i128, largest: u128) -> Colour {
    let left = largest - difference.unsigned_abs();
    let pale = 100 + u8::try_from(left.saturating_mul(150) / largest.max(1)).unwrap_or(150);
    match difference.cmp(&0) {
        Ordering::Equal => UNCHANGED,
        Ordering::Greater => [255, pale, pale],
        Ordering::Less => [pale, pale, 255],
    }
}

#[cfg(not(feature = "flamegraph"))]
fn draw<const SIDES: usize>(_: &Tree<SIDES>, _: Picture, _: &mut impl Write) -> Result<(), FlameError> {
    Err(FlameError::NotBuilt)
}

#[cfg(feature = "flamegraph")]
use inferno_draw::draw;

#[cfg(feature = "flamegraph")]
mod inferno_draw {
    use super::{FlameError, Picture, Tree};
    use crate::profile::folded;
    use inferno::flamegraph::{
        Options, TextTruncateDirection,
        color::{Color, PaletteMap},
    };
    use std::io::Write;
    use tramplab_model::text::line;

    /// Of the whole: what is narrower is no pixel wide, and only makes the file large.
    const NARROWEST: f64 = 0.0001;

    pub fn draw<const SIDES: usize>(
        tree: &Tree<SIDES>,
        picture: Picture,
        out: &mut impl Write,
    ) -> Result<(), FlameError> {
        let tree = tree.pruned(NARROWEST);
        let (labels, colours): (Vec<String>, Vec<_>) = picture.frames.into_iter().unzip();
        let mut lines: Vec<String> = Vec::new();
        folded::stacks(&tree, &labels, |stack, own| {
            let own = own[picture.side];
            // A frame without width cannot be seen.
            lines.extend((own > 0).then(|| format!("{stack} {own}")));
            Ok(())
        })?;
        let mut palette = PaletteMap::default();
        let mut paint = |name: &str, colour: Option<[u8; 3]>| {
            if let Some([r, g, b]) = colour {
                palette.insert(name, Color { r, g, b });
            }
        };
        paint("", picture.threads);
        tree.frames.iter().for_each(|frame| paint(&frame.command, picture.threads));
        labels.iter().zip(colours).for_each(|(label, colour)| paint(label, colour));
        let mut options = Options::default();
        options.title = line(&picture.title);
        options.subtitle = Some(line(&picture.subtitle));
        options.count_name = picture.unit.to_owned();
        options.palette_map = Some(&mut palette);
        // The front of a kernel function's name tells what it is.
        options.text_truncate_direction = TextTruncateDirection::Right;
        // The same profile gives the same picture.
        options.deterministic = true;
        options.min_width = NARROWEST * 100.0;
        // Takes the lines in the order given, from the last: sorted as text, `f2` would come between `f` and `f;g`.
        options.flame_chart = true;
        inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str).rev(), out)?;
        Ok(())
    }
}
