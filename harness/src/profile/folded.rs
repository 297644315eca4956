// SPDX-License-Identifier: MIT OR Apache-2.0
//! Folded stacks: a line per stack, `command;outermost;…;innermost count`, for flame graphs and other tools. Of two
//! sides there are two counts, the base's first.

use super::Tree;
use std::io::{self, Write};

/// Lines are sorted by their frames, callers before what they call.
pub fn write<const SIDES: usize>(tree: &Tree<SIDES>, out: &mut impl Write) -> io::Result<()> {
    let labels: Vec<String> = tree.frames.iter().map(|frame| format!(";{}", frame.label())).collect();
    let mut stack = String::new();
    // Where each depth's frames end in `stack`.
    let mut ends: Vec<usize> = Vec::new();
    for (depth, place) in tree.walk() {
        let place = tree.places[place as usize];
        let frame = place.frame as usize;
        ends.truncate(depth);
        stack.truncate(ends.last().copied().unwrap_or(0));
        if depth == 0 {
            stack.push_str(&tree.frames[frame].command);
        }
        stack.push_str(&labels[frame]);
        ends.push(stack.len());
        if place.own.iter().any(|&own| own > 0) {
            write!(out, "{stack}")?;
            for own in place.own {
                write!(out, " {own}")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}
