// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text in lines of limited width.

use tramplab_model::text::line;

/// Wraps text at spaces. A word that is wider than a line has a line of its own. `indent` is asked
/// for what stands before a line, by the line's number and first word.
pub fn wrapped<'a>(text: &str, width: usize, indent: impl Fn(usize, &str) -> &'a str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in line(text).split_whitespace() {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(format!("{}{word}", indent(lines.len(), word))),
        }
    }
    lines.join("\n") + "\n"
}
