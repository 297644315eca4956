// SPDX-License-Identifier: MIT OR Apache-2.0
//! Folded stacks for flame graphs and other tools: a line per stack, as
//! `command;outermost;…;innermost count`. With two sides, a line has two counts, the base's first.

use super::{Frame, Tree};
use std::io::{self, Write};

/// Writes a line per stack, sorted by frames; callers come before the functions they call.
pub fn write<const SIDES: usize>(tree: &Tree<SIDES>, out: &mut impl Write) -> io::Result<()> {
    let labels: Vec<String> = tree.frames.iter().map(Frame::label).collect();
    stacks(tree, &labels, |stack, own| {
        if own.iter().all(|&own| own == 0) {
            return Ok(());
        }
        write!(out, "{stack}")?;
        for own in own {
            write!(out, " {own}")?;
        }
        writeln!(out)
    })
}

/// Calls `each` for every stack, in the order of [`write()`], with the amount spent in its
/// innermost function. `labels` are the frames' names.
pub fn stacks<const SIDES: usize>(
    tree: &Tree<SIDES>,
    labels: &[String],
    mut each: impl FnMut(&str, [u64; SIDES]) -> io::Result<()>,
) -> io::Result<()> {
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
        stack.push(';');
        stack.push_str(&labels[frame]);
        ends.push(stack.len());
        each(&stack, place.own)?;
    }
    Ok(())
}
