// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of patches, one patch file per line, in the order of application: quilt's `series`, and
//! `series.conf` of SUSE and Armbian, where guards select lines.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub file: String,
    /// `-pN`. None: as the patch's own names need it.
    pub strip: Option<usize>,
    /// `-R`
    pub reversed: bool,
    /// The guards before the file, if they leave it out.
    pub left_out: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: `{word}` is not an option; expected `FILE`, then -p0, -p1, … or -R; or guards \
     (`+NAME`, `-NAME`, `-`), then FILE"
)]
pub struct NotQuilt {
    pub line: usize,
    pub word: String,
}

pub fn parse(text: &str) -> Result<Vec<Entry>, NotQuilt> {
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let error =
            |word: &str| NotQuilt { line: index + 1, word: word.chars().take(40).collect() };
        // A `#` in the middle of a word is part of it.
        let words: Vec<&str> =
            line.split_ascii_whitespace().take_while(|word| !word.starts_with('#')).collect();
        let is_guard = |word: &&str| word.starts_with(['+', '-']);
        let (guards, words) =
            words.split_at(words.iter().position(|word| !is_guard(word)).unwrap_or(words.len()));
        let Some((file, words)) = words.split_first() else {
            match guards.first() {
                Some(guard) => return Err(error(guard)),
                None => continue,
            }
        };
        let mut entry = Entry {
            file: (*file).to_owned(),
            strip: None,
            reversed: false,
            left_out: (!is_selected(guards)).then(|| guards.join(" ")),
        };
        for word in words {
            match (*word, word.strip_prefix("-p").map(str::as_bytes)) {
                ("-R", _) => entry.reversed = true,
                // quilt's names for a/FILE and b/FILE, and for ORIG/FILE and NEW/FILE.
                ("-pab" | "-p", _) => entry.strip = Some(1),
                (_, Some([digit @ b'0'..=b'9'])) => entry.strip = Some(usize::from(digit - b'0')),
                _ => return Err(error(word)),
            }
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// True if a line's guards select it when no name is defined: `-NAME` leaves a file out where NAME
/// is defined, `+NAME` where it is not; `-` and `+` alone always hold. The last that holds decides.
fn is_selected(guards: &[&str]) -> bool {
    let alone = guards.iter().rev().find(|guard| guard.len() == 1);
    match (alone, guards.first()) {
        (Some(alone), _) => *alone == "+",
        (None, Some(first)) => first.starts_with('-'),
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_series_file_and_rejects_unknown_options() {
        let text =
            "# Debian's\n\nbugfix/a.patch\nb.patch -p0   # why\n  c#1.patch -R -p2\nd.patch -pab\n";
        let entry = |file: &str, strip, reversed| Entry {
            file: file.to_owned(),
            strip,
            reversed,
            left_out: None,
        };
        let expected = [
            entry("bugfix/a.patch", None, false),
            entry("b.patch", Some(0), false),
            entry("c#1.patch", Some(2), true),
            entry("d.patch", Some(1), false),
        ];
        assert_eq!(parse(text).unwrap(), expected);
        for (text, line, word) in [
            ("a\nb -p10\n", 2, "-p10"),
            ("a -px\n", 1, "-px"),
            ("a b\n", 1, "b"),
            ("a --dry-run\n", 1, "--dry-run"),
            ("a\n+x\n", 2, "+x"),
            ("-p0 # a\n", 1, "-p0"),
        ] {
            assert_eq!(parse(text), Err(NotQuilt { line, word: word.to_owned() }), "{text:?}");
        }
    }

    /// As in SUSE's and Armbian's lists. No name is defined.
    #[test]
    fn guards_select_lines() {
        for (line, left_out) in [
            ("\tpatches.suse/a", None),
            ("+needs_update patches.suse/a", Some("+needs_update")),
            ("-\tpatches.armbian/a", Some("-")),
            ("-RT a -p0", None),
            ("+RT + a", None),
            ("+RT -x86 a", Some("+RT -x86")),
            ("-RT +x86 a", None),
            ("- + a", None),
            ("+ - a", Some("+ -")),
        ] {
            let [entry] = &parse(line).unwrap()[..] else { panic!("{line}") };
            assert_eq!(entry.left_out.as_deref(), left_out, "{line}");
            assert!(entry.file.ends_with('a'), "{line}");
        }
    }
}
