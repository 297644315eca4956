// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text in lines of limited width.

use tramplab_model::text::line;

/// Wraps text at spaces, if possible not within `12 -> 9` or `any +2`. A word that is wider than a
/// line has a line of its own. `indent` is asked for what stands before a line, by the line's
/// number and first word.
pub fn wrapped<'a>(text: &str, width: usize, indent: impl Fn(usize, &str) -> &'a str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in unbroken(&line(text), width / 2) {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(&word);
            }
            _ => {
                let first = word.split(' ').next().unwrap_or_default();
                lines.push(format!("{}{word}", indent(lines.len(), first)));
            }
        }
    }
    lines.join("\n") + "\n"
}

/// Words, and what belongs together and has at most `width` characters.
fn unbroken(text: &str, width: usize) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_change = word
            .strip_prefix(['+', '-'])
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
        let fits = |last: &&mut String| {
            let is_one = is_change || word == "->" || last.ends_with("->");
            is_one && last.chars().count() + 1 + word.chars().count() <= width
        };
        match all.last_mut().filter(fits) {
            Some(last) => *last += &format!(" {word}"),
            None => all.push(word.to_owned()),
        }
    }
    all
}
