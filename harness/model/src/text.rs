// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cleans untrusted text before it is shown or kept.
//!
//! A guest chooses names of functions, threads and tests. A series chooses its subjects and files.
//! A stranger chooses all text of a stored run. No such text may move a cursor, hide, or read
//! differently than it is. So every writer cleans its output ([`line`], [`plain`], [`clean`]),
//! wherever the run is from. Data from a guest, and data for a run's files, is cleaned as a whole
//! ([`json`]).
//!
//! Terminal sequences and control characters are removed: consoles are full of them, and they mean
//! nothing to a reader. Every other invisible character becomes a mark, U+FFFD. Removing it could
//! turn one name into another.

use std::{borrow::Cow, path::Path};

/// Removes nothing, for diffs, where each character counts. Keeps tabs, line ends and visible
/// characters, turns other whitespace into spaces, and all else into marks.
pub fn marked(text: &str) -> String {
    let shown = |c: char| match c {
        _ if is_kept(c) => c,
        _ if c.is_whitespace() && !c.is_control() => ' ',
        _ => char::REPLACEMENT_CHARACTER,
    };
    text.chars().map(shown).collect()
}

/// Removes terminal sequences, and control characters other than tabs and line ends. Turns other
/// invisible characters into marks, and other whitespace into spaces.
pub fn clean(text: &str) -> String {
    if text.chars().all(is_kept) {
        return text.to_owned();
    }
    // Clean piece by piece: the library removes all text after an unterminated sequence. It also
    // removes tabs.
    let piece = |piece: &str| {
        let words = piece.trim_end_matches(['\n', '\t']);
        let mut stripped = strip_ansi_escapes::strip_str(words);
        stripped.retain(|c| !c.is_control());
        marked(&stripped) + &piece[words.len()..]
    };
    text.split_inclusive(['\n', '\t']).map(piece).collect()
}

fn is_kept(c: char) -> bool {
    matches!(c, '\n' | '\t') || is_seen(c)
}

/// Like [`clean`], but turns each tab into a space.
pub fn plain(text: &str) -> String {
    clean(text).replace('\t', " ")
}

/// Makes one line, for names, table cells and headings.
pub fn line(text: &str) -> String {
    plain(text).split('\n').map(str::trim_end).collect::<Vec<_>>().join(" ")
}

/// A number and its noun: `1 cell`, `2 cells`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns true if a path is UTF-8 without control characters, as make and command lines need it.
pub fn is_plain_path(path: &Path) -> bool {
    path.to_str().is_some_and(|text| !text.contains(char::is_control))
}

/// Makes text for a CDATA section. Splits its end mark over two sections.
pub fn cdata(text: &str) -> String {
    plain(text).replace("]]>", "]]]]><![CDATA[>")
}

/// Cleans every string in a JSON text, and keeps tabs. Nothing else changes. Invalid JSON stays
/// invalid.
pub fn json(text: &[u8]) -> Cow<'_, [u8]> {
    // Fast path for most texts: one look finds nothing to clean.
    let plain = text.is_ascii() && !text.contains(&0x7f) && !text.windows(2).any(is_rare_escape);
    if plain {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.iter().position(|&byte| byte == b'"') {
        let (before, literal) = rest.split_at(start);
        let (literal, after) = literal.split_at(end_of_literal(literal));
        out.extend_from_slice(before);
        match serde_json::from_slice::<String>(literal) {
            Ok(string) if clean(&string) != string => {
                out.extend(
                    serde_json::to_vec(&clean(&string)).expect("a string has a form in JSON"),
                );
            }
            _ => out.extend_from_slice(literal),
        }
        rest = after;
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

fn is_rare_escape(pair: &[u8]) -> bool {
    pair[0] == b'\\' && matches!(pair[1], b'u' | b'b' | b'f' | b'r')
}

/// The index after the closing quotation mark, or the end if there is none.
fn end_of_literal(literal: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = literal.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    literal.len()
}

/// Returns true if a character has a visible shape of its own. Judges by Unicode category: control,
/// format, unassigned and private characters have none, and neither have spaces other than the
/// usual one. Format characters reverse the direction of text, join or tag it.
pub fn is_seen(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // Empty letters, marks and selectors.
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' => {
            false
        }
        '\u{2800}' | '\u{3164}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}' => false,
        _ => {
            // The standard library shows its table of categories only in this way: it escapes
            // unprintable characters. Put a letter first, as a combining mark alone would be
            // escaped as well.
            let mut letter_and = [b'a'; 5];
            let length = c.encode_utf8(&mut letter_and[1..]).len();
            let text = str::from_utf8(&letter_and[..=length]).expect("a letter and a character");
            text.escape_debug().nth(2).is_none()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleans_hostile_text() {
        let table = [
            ("[    1.0] ok\n\ttab", "[    1.0] ok\n tab"),
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}rest", "rest"),
            ("a\0b\u{8}c\u{7f}d\u{85}e\rf", "abcdef"),
            ("x\u{fffe}y\u{ffff}z\u{fffd}", "x\u{fffd}y\u{fffd}z\u{fffd}"),
            ("]]>", "]]>"),
            ("\u{202e}ssap\u{202c} \u{2066}x\u{2069}", "\u{fffd}ssap\u{fffd} \u{fffd}x\u{fffd}"),
            ("a\u{a0}b\u{2028}c\u{2003}d", "a b c d"),
            ("\u{1b}]0;\nnot the title's", "\nnot the title's"),
            (
                "e\u{301} é ü ‘quoted’ → … │ 漢 ⚠\u{fe0f}",
                "e\u{301} é ü ‘quoted’ → … │ 漢 ⚠\u{fe0f}",
            ),
        ];
        for (hostile, expected) in table {
            assert_eq!(plain(hostile), expected, "{hostile:?}");
        }
        assert_eq!(cdata("a]]>b]]]>"), "a]]]]><![CDATA[>b]]]]]><![CDATA[>");
        assert_eq!(line("a \r\n\tb\nc"), "a  b c");
    }

    #[test]
    fn recognises_visible_characters() {
        let hidden = "\0\u{1b}\u{7f}\u{9b}\u{ad}\u{61c}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\
                      \u{2028}\u{2029}\u{202a}\u{202e}\
                      \u{2060}\u{2066}\u{2069}\u{3164}\u{feff}\u{e000}\u{fff9}\u{e0001}\u{e0041}\
                      \u{e007f}\
                       \u{e0101}\
                       \u{f0000}\u{10ffff}";
        for c in hidden.chars() {
            assert!(!is_seen(c), "{c:?}");
        }
        for c in "a~é\u{301}ß漢→…█▁│⚠\u{fe0f}😀\u{fffd}".chars() {
            assert!(is_seen(c), "{c:?}");
        }
    }

    #[test]
    fn keeps_function_names() {
        for name in [
            "vfs_read.constprop.0",
            "__pfx_$d.12",
            "memcpy@plt",
            "ext4_read_folio [ext4]",
            "_RNvXs_NtCs<core::fmt::Arguments>::fmt",
            "<T as core::fmt::Debug>::{closure#0}",
        ] {
            assert_eq!((line(name).as_str(), plain(name).as_str()), (name, name));
            let text = serde_json::to_vec(name).unwrap();
            assert_eq!(json(&text), text);
        }
    }

    #[test]
    fn cleans_only_strings_of_json() {
        let honest =
            r#"{"a": 18446744073709551615, "a": 1.50, "t": "x\ty\n\"\\u\\", "é": "→ é \u00e9"}"#;
        assert_eq!(json(honest.as_bytes()), honest.as_bytes());
        let hostile = "{\"\\u001b[2Ja\": [1e400, \"b\\\"\\u202e\\tc\u{200b}\\r\\u009b\"], \
                       \"d\\u001b]0;\":\"e\"}";
        let cleaned = "{\"a\": [1e400, \"b\\\"\u{fffd}\\tc\u{fffd}\"], \"d\":\"e\"}";
        assert_eq!(str::from_utf8(&json(hostile.as_bytes())).unwrap(), cleaned);
        for broken in ["\"\\u001b", "\"\\", "\"\\ud800\u{202e}\"", "\u{1b}[2J", "\"\u{1b}\""] {
            assert_eq!(json(broken.as_bytes()), broken.as_bytes());
        }
    }
}
