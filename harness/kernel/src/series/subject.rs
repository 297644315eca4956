// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses subjects: `[PATCH bpf-next v3 2/5] bpf: …`.

use std::fmt;

/// `v4`, or `v3.1`, which replaces some patches of `v3`. Ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    /// 0 if none is named.
    pub minor: u32,
}

impl Version {
    pub const FIRST: Version = Version { major: 1, minor: 0 };

    /// Reads `4` or `3.1`.
    fn parse(text: &str) -> Option<Version> {
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        Some(Version { major: number(major)? as u32, minor: number(minor)? as u32 })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version { major, minor } = self;
        if *minor == 0 { write!(f, "{major}") } else { write!(f, "{major}.{minor}") }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The text after the brackets.
    pub title: String,
    /// The message answers or forwards another.
    pub reply: bool,
    /// Its brackets say `PATCH`, `RFC` or a count.
    pub patch: bool,
    pub version: Version,
    /// Number and total, such as 2 of 5. The cover letter is 0.
    pub count: Option<(usize, usize)>,
}

/// Parses a decoded subject. Never fails: any text is a valid subject.
pub fn parse(text: &str) -> Subject {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = text.as_str();
    let mut subject = Subject {
        title: String::new(),
        reply: false,
        patch: false,
        version: Version::FIRST,
        count: None,
    };
    while let Some(after) = reply(rest) {
        subject.reply = true;
        rest = after;
    }
    while let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        // `[PATCHv3 1/2]`, `[PATCH,v3,1/2]`
        for word in inside.split([' ', ',', ';', '[']) {
            let lower = word.to_ascii_lowercase();
            let version = lower.strip_prefix("patch").unwrap_or(&lower);
            subject.patch |= lower.starts_with("patch") || lower.starts_with("rfc");
            if let Some(version) = version.strip_prefix('v').and_then(Version::parse) {
                subject.version = version;
            } else if let Some((of, total)) = lower.split_once('/')
                && let (Some(of), Some(total)) = (number(of), number(total))
            {
                subject.patch = true;
                subject.count = Some((of, total));
            }
        }
        rest = after.trim_start();
    }
    rest.clone_into(&mut subject.title);
    subject
}

/// Returns the text after `Re:` and similar prefixes.
fn reply(text: &str) -> Option<&str> {
    let (word, rest) = text.split_once(':')?;
    ["re", "aw", "fwd", "fw", "sv", "antw"]
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known))
        .then(|| rest.trim_start())
}

/// At most 4 digits, which is enough for real series.
fn number(text: &str) -> Option<usize> {
    let digits = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_subjects() {
        for (text, reply, patch, version, count, title) in [
            ("[PATCH] one", false, true, (1, 0), None, "one"),
            ("[PATCH bpf-next v3 2/5] bpf: x", false, true, (3, 0), Some((2, 5)), "bpf: x"),
            ("[PATCHv2 00/11]  a\n b", false, true, (2, 0), Some((0, 11)), "a b"),
            ("[RFC,v4,1/1] [net] x [y]", false, true, (4, 0), Some((1, 1)), "x [y]"),
            ("[PATCH RESEND 1/2] x", false, true, (1, 0), Some((1, 2)), "x"),
            ("[PATCH v3.1 2/3] x", false, true, (3, 1), Some((2, 3)), "x"),
            ("[PATCH v3.x v2. 1/2] x", false, true, (1, 0), Some((1, 2)), "x"),
            ("Re: [PATCH 1/2] x", true, true, (1, 0), Some((1, 2)), "x"),
            ("Fwd: RE: hello", true, false, (1, 0), None, "hello"),
            ("bpf: re: x", false, false, (1, 0), None, "bpf: re: x"),
            ("[bpf] x", false, false, (1, 0), None, "x"),
            ("[1/2] x", false, true, (1, 0), Some((1, 2)), "x"),
            ("[PATCH 1/99999] x", false, true, (1, 0), None, "x"),
            ("[PATCH 1/2 x", false, false, (1, 0), None, "[PATCH 1/2 x"),
            ("", false, false, (1, 0), None, ""),
        ] {
            let version = Version { major: version.0, minor: version.1 };
            let expected = Subject { title: title.to_owned(), reply, patch, version, count };
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
