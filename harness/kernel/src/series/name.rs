// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of series. They are part of cell names, folder names and reports.

use super::Series;
use std::path::{Path, PathBuf};

const LONGEST: usize = 40;

/// Keeps letters, digits, `.`, `_`, `+` and `-`. Each run of other characters becomes one `-`.
pub fn fit(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        let c = if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '-' };
        if c != '-' || !name.ends_with('-') {
            name.push(c);
        }
    }
    let edge = |c| "._+-".contains(c);
    let mut name = name.trim_matches(edge);
    if name.len() > LONGEST {
        // Cut at the end of a word if that does not lose much.
        let cut =
            name[..=LONGEST].rfind(['-', '_']).filter(|cut| *cut > LONGEST / 2).unwrap_or(LONGEST);
        name = name[..cut].trim_end_matches(edge);
    }
    if name.is_empty() { "series".to_owned() } else { name.to_owned() }
}

/// Names a series after its file or folder.
pub fn from_path(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let whole = without_packing(&whole);
    let kept = ["mbx", "mbox", "patch", "eml", "diff", "maildir", "tar"];
    let known =
        whole.extension().is_some_and(|extension| kept.iter().any(|kept| extension == *kept));
    let name = if known { whole.file_stem() } else { whole.file_name() };
    fit(&name.unwrap_or_default().to_string_lossy())
}

/// Names a series after its title, or its first patch.
pub fn of(series: &Series) -> String {
    let first = series.patches.first().map(|patch| patch.subject.as_str());
    fit(series.title.as_deref().or(first).unwrap_or_default())
}

/// Returns the path without the extension of a compression: `t.mbox` for `t.mbox.gz`.
pub fn without_packing(path: &Path) -> PathBuf {
    let packed = ["gz", "xz", "zst"];
    match path.extension() {
        Some(end) if packed.iter().any(|packed| end == *packed) => path.with_extension(""),
        Some(end) if end == "tgz" || end == "txz" => path.with_extension("tar"),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn makes_names_from_titles_and_paths() {
        for (text, expected) in [
            ("bpf: Fix a thing", "bpf-Fix-a-thing"),
            ("../../etc", "etc"),
            ("-rf", "rf"),
            ("", "series"),
            ("ÄÖ", "series"),
            (
                "a_very_long_name_of_a_series_with_many_words_in_it",
                "a_very_long_name_of_a_series_with_many",
            ),
            (&"x".repeat(60), &"x".repeat(40)),
        ] {
            assert_eq!(fit(text), expected, "{text:?}");
        }
        for (path, expected) in [
            ("/none/v2_20200313_x.mbx", "v2_20200313_x"),
            ("/none/0001-a.patch", "0001-a"),
            ("/none/v6.12", "v6.12"),
            ("/none/t.mbox.gz", "t"),
            ("/none/patches-6.12-rt.tar.xz", "patches-6.12-rt"),
            ("/none/p.tgz", "p"),
        ] {
            assert_eq!(from_path(Path::new(path)), expected, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn makes_valid_name_from_any_text(text in any::<String>()) {
            let name = fit(&text);
            prop_assert!((1..=LONGEST).contains(&name.len()), "{name}");
            let fits = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
            prop_assert!(name.chars().all(fits), "{name}");
            prop_assert!(name.starts_with(|c: char| c.is_ascii_alphanumeric()), "{name}");
        }
    }
}
