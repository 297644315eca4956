// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flame graphs and differential flame graphs, as SVG. `inferno` draws them; it is behind the
//! feature `flamegraph`.

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
    #[error("nothing to draw: the profile has nothing of {0}")]
    Empty(&'static str),
    #[cfg(not(feature = "flamegraph"))]
    #[error("this tramplab has no flame graphs: build it with `--features flamegraph`")]
    NotBuilt,
    #[error("failed to draw the flame graph: {0}")]
    Draw(#[from] io::Error),
}

/// Red, green, blue.
type Colour = [u8; 3];

const UNCHANGED: Colour = [250; 3];
const INTERRUPT: Colour = [90, 190, 200];
const BPF: Colour = [110, 200, 90];

/// Everything to draw besides the tree's shape.
#[cfg_attr(not(feature = "flamegraph"), expect(dead_code, reason = "nothing is drawn"))]
struct Picture {
    title: String,
    subtitle: String,
    unit: &'static str,
    /// Each frame's name and colour. Without a colour, the name chooses a shade.
    frames: Vec<(String, Option<Colour>)>,
    /// The colour of threads and of the root.
    threads: Option<Colour>,
    /// The side that sets the widths.
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
        subtitle: format!("{}: {} {}", subject.of.name(), subject.total(), subject.counted),
        unit: subject.counted,
        frames: tree.frames.iter().map(|frame| (frame.label(), colour(frame))).collect(),
        threads: None,
        side: 0,
    };
    draw(tree, picture, out)
}

/// Draws the head's widths. Name and colour of a frame show how much its function changed over all
/// its call paths, as in the table: by its path, a function whose caller was renamed or inlined
/// would look new. The subtitle says if the profiles are not `comparable`.
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
    let differences: HashMap<(&Function, bool), i128> = changes
        .iter()
        .map(|change| ((&change.function, change.interrupt), change.difference()))
        .collect();
    let frame = |frame: &Frame| {
        // inferno drops the mark `_[i]` at the end of a name.
        let name = diff::name(&frame.function, if frame.interrupt { " [i]" } else { "" });
        let Some(&difference) = differences.get(&(&frame.function, frame.interrupt)) else {
            return (name, Some(UNCHANGED));
        };
        let share = diff::of_base(difference, base_total)
            .map_or_else(String::new, |share| format!(" {share}"));
        (name + &share, Some(shade(difference, largest)))
    };
    let mut subtitle = format!("{}: {} {}", head.of.name(), head.total(), head.counted);
    subtitle += &format!(" against {}", base.total());
    subtitle.extend(scale.factor().map(|factor| format!(" times {factor:.3}")));
    subtitle += "; width: head; red: more in the function itself, blue: less; ";
    subtitle +=
        &format!("{:.1} % of the base in call paths that the head lacks", diff::unmatched(tree)[0]);
    if !comparable {
        subtitle += "; NOT COMPARABLE";
    }
    let picture = Picture {
        title: format!("{} against {}: {}", head.cell, base.cell, head.phases()),
        subtitle,
        unit: head.counted,
        frames: tree.frames.iter().map(frame).collect(),
        threads: Some(UNCHANGED),
        side: 1,
    };
    draw(tree, picture, out)
}

/// Uses inferno's scale: red is more, blue is less, and the largest change is the darkest.
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
fn draw<const SIDES: usize>(
    _: &Tree<SIDES>,
    _: Picture,
    _: &mut impl Write,
) -> Result<(), FlameError> {
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

    /// A fraction of the whole. Narrower frames have no pixel and only make the file larger.
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
        // Cut names at the end: the front of a kernel function's name tells more.
        options.text_truncate_direction = TextTruncateDirection::Right;
        // Draw the same picture for the same profile.
        options.deterministic = true;
        options.min_width = NARROWEST * 100.0;
        // Keep the order of the lines, the last first. Sorted as text, `f2` would come between `f`
        // and `f;g`.
        options.flame_chart = true;
        inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str).rev(), out)?;
        Ok(())
    }
}
