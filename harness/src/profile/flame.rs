// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flame graphs and differential ones, as SVG. Drawn by `inferno`, which is behind the feature `flamegraph`.

use super::{Subject, Tree};
use std::io::{self, Write};

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

pub fn render(subject: &Subject, tree: &Tree<1>, out: &mut impl Write) -> Result<(), FlameError> {
    if tree.total(0) == 0 {
        return Err(FlameError::Empty(subject.of.name()));
    }
    let title = format!("{}: {}", subject.cell, subject.phases());
    let subtitle = format!("{}: {} {}", subject.of.name(), subject.total(), subject.unit.name());
    draw(subject, tree, title, subtitle, out)
}

/// As wide as in the head, coloured by the change of what was spent in the function itself: red more, blue less.
pub fn render_difference(
    base: &Subject,
    head: &Subject,
    tree: &Tree<2>,
    out: &mut impl Write,
) -> Result<(), FlameError> {
    if tree.total(1) == 0 {
        return Err(FlameError::Empty(head.of.name()));
    }
    let scale = super::diff::Scale::new(head.unit, tree);
    let mut tree = tree.clone();
    for place in &mut tree.places {
        place.own[0] = scale.base(place.own[0]);
    }
    let gone = tree.places.iter().filter(|place| place.own[1] == 0);
    let gone = gone.fold(0_u64, |sum, place| sum.saturating_add(place.own[0]));
    let title = format!("{} against {}: {}", head.cell, base.cell, head.phases());
    let mut subtitle = format!(
        "{}: {} {} against {}; width: head; red more, blue less; {gone} of the base in stacks that are gone",
        head.of.name(),
        head.total(),
        head.unit.name(),
        base.total()
    );
    subtitle.extend(scale.note().map(|note| format!("; {note}")));
    draw(head, &tree, title, subtitle, out)
}

#[cfg(not(feature = "flamegraph"))]
fn draw<const SIDES: usize>(
    _: &Subject,
    _: &Tree<SIDES>,
    _: String,
    _: String,
    _: &mut impl Write,
) -> Result<(), FlameError> {
    Err(FlameError::NotBuilt)
}

#[cfg(feature = "flamegraph")]
use inferno_draw::draw;

#[cfg(feature = "flamegraph")]
mod inferno_draw {
    use super::{FlameError, Subject, Tree};
    use crate::{
        profile::{Space, folded},
        text::line,
    };
    use inferno::flamegraph::{
        Options,
        color::{Color, PaletteMap},
    };
    use std::io::Write;

    /// Of the whole: what is narrower is no pixel wide, and only makes the file large.
    const NARROWEST: f64 = 0.0001;
    const INTERRUPT: Color = Color { r: 90, g: 190, b: 200 };
    const BPF: Color = Color { r: 110, g: 200, b: 90 };

    pub fn draw<const SIDES: usize>(
        subject: &Subject,
        tree: &Tree<SIDES>,
        title: String,
        subtitle: String,
        out: &mut impl Write,
    ) -> Result<(), FlameError> {
        let tree = tree.pruned(NARROWEST);
        let mut lines = Vec::new();
        folded::write(&tree, &mut lines)?;
        let lines = String::from_utf8(lines).expect("names are text");
        let mut colours = PaletteMap::default();
        for frame in &tree.frames {
            match (&frame.function.space, frame.interrupt) {
                (_, true) => colours.insert(frame.label(), INTERRUPT),
                (Space::Module(module), false) if module == "bpf" => colours.insert(frame.label(), BPF),
                _ => None,
            };
        }
        let mut options = Options::default();
        options.title = line(&title);
        options.subtitle = Some(line(&subtitle));
        options.count_name = subject.unit.name().to_owned();
        options.palette_map = Some(&mut colours);
        // The same profile gives the same picture.
        options.deterministic = true;
        options.min_width = NARROWEST * 100.0;
        // Takes the lines in the order given, from the last: sorted as text, `f2` would come between `f` and `f;g`.
        options.flame_chart = true;
        inferno::flamegraph::from_lines(&mut options, lines.lines().rev(), out)?;
        Ok(())
    }
}
