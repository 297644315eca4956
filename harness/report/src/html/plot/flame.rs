// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flame graphs: a frame for each call path of a profile, callers above. The page's script zooms
//! and searches.

use super::{WIDTH, axis::pixels};
use crate::html::room::{self, shown};
use tramplab_analysis::profile::{Names, Of, Profile, Space, Tree};

pub struct Flame {
    pub caption: String,
    pub height: f64,
    pub frames: Vec<Frame>,
}

#[derive(Debug, PartialEq)]
pub struct Frame {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub name: String,
    /// `12.3 %, 45678 instructions`.
    pub share: String,
    /// The name, as far as it fits.
    pub label: String,
    pub class: &'static str,
}

const ROW: f64 = 18.0;
pub const FRAME: f64 = 17.0;

/// A fraction of the whole. Narrower frames are hardly a pixel.
const NARROWEST: f64 = 0.002;
const DEEPEST: usize = 80;
const FRAMES: usize = 3000;
/// The width of a letter.
const LETTER: f64 = 6.4;

/// Draws the work of the attaching thread. None if there is none.
pub fn flame(profile: &Profile) -> Option<Flame> {
    let mut tree: Tree<1> = Tree::new(Names::AsTheyWere);
    tree.add(profile, Of::Task, 0);
    let whole = tree.total(0);
    if whole == 0 {
        return None;
    }
    let tree = tree.pruned(NARROWEST);
    let totals = tree.totals();
    let unit = profile.unit.name();
    let frame = |depth: usize, from: u64, amount: u64, name: &str, class| {
        let at = |amount: u64| pixels(WIDTH * (amount as f64 / whole as f64));
        let (x, width) = (at(from), pixels(at(from.saturating_add(amount)) - at(from)));
        Frame {
            x,
            y: ROW * depth as f64,
            width,
            name: shown(name),
            share: format!("{:.1} %, {amount} {unit}", 100.0 * amount as f64 / whole as f64),
            label: fitting(&shown(name), width),
            class,
        }
    };
    let mut frames = vec![frame(0, 0, whole, "all", "root")];
    // Where the next frame of each depth begins.
    let mut next = vec![0_u64; DEEPEST + 2];
    for (depth, place) in tree.walk() {
        let depth = depth + 1;
        if depth > DEEPEST || frames.len() == FRAMES {
            continue;
        }
        let [amount] = totals[place as usize];
        let from = next[depth];
        next[depth] = from.saturating_add(amount);
        next[depth + 1] = from;
        let of = &tree.frames[tree.places[place as usize].frame as usize];
        frames.push(frame(
            depth,
            from,
            amount,
            &of.label(),
            class(&of.function.space, of.interrupt),
        ));
    }
    frames.retain(|frame| frame.width > 0.0);
    let deepest = frames.iter().map(|frame| frame.y).fold(0.0, f64::max);
    Some(Flame {
        caption: shown(&format!(
            "{}, {}: {whole} {unit} of the attaching thread",
            profile.cell,
            profile.phase.name()
        )),
        height: deepest + ROW,
        frames,
    })
}

fn class(space: &Space, interrupt: bool) -> &'static str {
    match space {
        _ if interrupt => "interrupt",
        Space::Module(module) if module == "bpf" => "bpf",
        Space::Module(_) => "module",
        Space::Kernel => "kernel",
        _ => "user",
    }
}

fn fitting(name: &str, width: f64) -> String {
    let letters = ((width - 6.0) / LETTER).max(0.0) as usize;
    match letters {
        0..3 => String::new(),
        _ if name.chars().count() <= letters => name.to_owned(),
        _ => name.chars().take(letters - 1).chain(['…']).collect(),
    }
}

impl Flame {
    pub fn size(&self) -> usize {
        let frame = |frame: &Frame| 220 + 2 * room::size(&frame.name) + frame.share.len();
        800 + room::size(&self.caption) + self.frames.iter().map(frame).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::profiles::base;

    #[test]
    fn frames_lie_within_their_callers_and_beside_each_other() {
        let profile = base();
        let flame = flame(&profile).unwrap();
        let [root, frames @ ..] = &flame.frames[..] else { panic!("no frames") };
        assert_eq!((root.x, root.width, root.name.as_str()), (0.0, WIDTH, "all"));
        assert!(frames.len() > 3, "{frames:?}");
        for frame in frames {
            let above: Vec<&Frame> = flame
                .frames
                .iter()
                .filter(|other| other.y == frame.y - ROW)
                .filter(|other| {
                    other.x <= frame.x && frame.x + frame.width <= other.x + other.width + 0.11
                })
                .collect();
            assert_eq!(above.len(), 1, "{frame:?}");
        }
        for (at, frame) in frames.iter().enumerate() {
            let beside = frames[at + 1..].iter().filter(|other| other.y == frame.y);
            for other in beside {
                let apart = frame.x + frame.width <= other.x || other.x + other.width <= frame.x;
                assert!(apart, "{frame:?} {other:?}");
            }
        }
        let outermost: f64 = frames.iter().filter(|frame| frame.y == ROW).map(|f| f.width).sum();
        assert!((outermost - WIDTH).abs() < 0.5, "{outermost}");
        assert!(root.share.starts_with(&format!("100.0 %, {}", profile.totals().task)));
    }

    #[test]
    fn labels_fit_their_frames() {
        assert_eq!(fitting("ftrace_lookup_symbols", 30.0), "ft…");
        assert_eq!(fitting("ftrace_lookup_symbols", 12.0), "");
        assert_eq!(fitting("schedule", 200.0), "schedule");
    }
}
