// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounds of the page. A run may come from a stranger: no text, table or list of it makes a page
//! that a browser cannot open.

use tramplab_model::text;

/// Characters of one text: a cell of a table, a name, a line of a console.
const TEXT: usize = 400;

/// Bytes of all tables, listings and consoles together.
pub const PAGE: usize = 4 << 20;

/// Cleans a text, makes one line of it, and shortens it.
pub fn shown(text: &str) -> String {
    cut(text::line(text.get(..text.floor_char_boundary(4 * TEXT)).unwrap_or(text)))
}

fn cut(text: String) -> String {
    match text.char_indices().nth(TEXT) {
        None => text,
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// The first items of a list, and the number of the others.
pub fn first<T>(mut items: Vec<T>, most: usize) -> (Vec<T>, usize) {
    let more = items.len().saturating_sub(most);
    items.truncate(most);
    (items, more)
}

/// The room that is left on the page.
pub struct Room {
    left: usize,
    /// Parts that found no room.
    pub left_out: usize,
}

impl Room {
    pub fn new() -> Room {
        Room { left: PAGE, left_out: 0 }
    }

    /// Keeps the parts that there is room for, each whole.
    pub fn keep<T>(&mut self, parts: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<T> {
        parts.into_iter().filter(|part| self.has(size(part))).collect()
    }

    fn has(&mut self, size: usize) -> bool {
        let left = self.left.checked_sub(size);
        match left {
            Some(left) => self.left = left,
            None => self.left_out += 1,
        }
        left.is_some()
    }
}

/// The bytes of a text in the page, escaped.
pub fn size(text: &str) -> usize {
    let escaped = text.bytes().filter(|byte| b"<>&\"'".contains(byte)).count();
    text.len() + 4 * escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortens_long_texts_by_characters() {
        assert_eq!(shown("a\nb"), "a b");
        let long = "é".repeat(10_000);
        assert_eq!(shown(&long).chars().count(), TEXT + 1);
        assert!(shown(&long).ends_with('…'));
        assert_eq!(shown(&"é".repeat(TEXT)).chars().count(), TEXT);
    }

    #[test]
    fn keeps_the_parts_that_fit() {
        let mut room = Room { left: 10, left_out: 0 };
        assert_eq!(room.keep(vec![4, 7, 6, 1], |part| *part), [4, 6]);
        assert_eq!(room.left_out, 2);
        assert_eq!(room.keep(vec![0], |part| *part), [0]);
    }

    #[test]
    fn counts_escaped_bytes() {
        assert_eq!(size("a<b"), "a&#60;b".len());
        assert_eq!(size("é"), 2);
    }
}
