// SPDX-License-Identifier: MIT OR Apache-2.0
//! quilt's `series` file: one patch file per line, in the order of application.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub file: String,
    /// `-pN`
    pub strip: usize,
    /// `-R`
    pub reversed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `{word}` is not an option; expected `FILE`, then -p0, -p1, … or -R")]
pub struct NotQuilt {
    pub line: usize,
    pub word: String,
}

pub fn parse(text: &str) -> Result<Vec<Entry>, NotQuilt> {
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // A `#` in the middle of a word is part of it.
        let mut words = line.split_ascii_whitespace().take_while(|word| !word.starts_with('#'));
        let Some(file) = words.next() else { continue };
        let mut entry = Entry { file: file.to_owned(), strip: 1, reversed: false };
        for word in words {
            match (word, word.strip_prefix("-p").map(str::as_bytes)) {
                ("-R", _) => entry.reversed = true,
                // quilt's names for a/FILE and b/FILE, and for ORIG/FILE and NEW/FILE.
                ("-pab" | "-p", _) => entry.strip = 1,
                (_, Some([digit @ b'0'..=b'9'])) => entry.strip = usize::from(digit - b'0'),
                _ => {
                    return Err(NotQuilt {
                        line: index + 1,
                        word: word.chars().take(40).collect(),
                    });
                }
            }
        }
        entries.push(entry);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_series_file_and_rejects_unknown_options() {
        let text =
            "# Debian's\n\nbugfix/a.patch\nb.patch -p0   # why\n  c#1.patch -R -p2\nd.patch -pab\n";
        let entry = |file: &str, strip, reversed| Entry { file: file.to_owned(), strip, reversed };
        let expected = [
            entry("bugfix/a.patch", 1, false),
            entry("b.patch", 0, false),
            entry("c#1.patch", 2, true),
            entry("d.patch", 1, false),
        ];
        assert_eq!(parse(text).unwrap(), expected);
        for (text, line, word) in [
            ("a\nb -p10\n", 2, "-p10"),
            ("a -px\n", 1, "-px"),
            ("a b\n", 1, "b"),
            ("a --dry-run\n", 1, "--dry-run"),
        ] {
            assert_eq!(parse(text), Err(NotQuilt { line, word: word.to_owned() }), "{text:?}");
        }
    }
}
