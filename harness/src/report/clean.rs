// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes text from guests fit to print: a console may hold any byte.

/// Without terminal escapes, control characters other than line ends, what turns the direction of text round, and what XML 1.0 forbids;
/// a tab is a space.
pub fn plain(text: &str) -> String {
    // With its escapes the library takes out tabs as well.
    let spaced = text.replace('\t', " ");
    strip_ansi_escapes::strip_str(spaced).chars().filter(|&c| is_printable(c)).collect()
}

fn is_printable(c: char) -> bool {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c == '\n' || !(c.is_control() || turns || matches!(c, '\u{fffe}' | '\u{ffff}'))
}

/// For the inside of a CDATA section: its end mark is split over two.
pub fn cdata(text: &str) -> String {
    plain(text).replace("]]>", "]]]]><![CDATA[>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_becomes_plain() {
        let table = [
            ("[    1.0] ok\n\ttab", "[    1.0] ok\n tab"),
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}rest", "rest"),
            ("a\0b\u{8}c\u{7f}d\u{85}e\rf", "abcdef"),
            ("x\u{fffe}y\u{ffff}z\u{fffd}", "xyz\u{fffd}"),
            ("]]>", "]]>"),
            ("\u{202e}ssap\u{202c} \u{2066}x\u{2069}", "ssap x"),
        ];
        for (hostile, expected) in table {
            assert_eq!(plain(hostile), expected, "{hostile:?}");
        }
        assert_eq!(cdata("a]]>b]]]>"), "a]]]]><![CDATA[>b]]]]]><![CDATA[>");
    }
}
