// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of kernels, commit ids and hashes, and the parts of names of cells and metrics.

use std::{fmt, str::FromStr};

pub fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._+-".contains(c)
}

/// Returns true for a full SHA-1 or SHA-256 commit id.
pub fn is_commit_id(text: &str) -> bool {
    [40, 64].contains(&text.len())
        && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// The first digits of a commit id or hash, enough to tell two apart.
pub fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// Formats bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Splits `fexit@__sys_bpf` at its mark. None if the part behind the mark is no name.
pub(crate) fn split<T: FromStr>(name: &str, mark: char) -> Option<(&str, Option<T>)> {
    match name.split_once(mark) {
        Some((before, marked)) => Some((before, Some(marked.parse().ok()?))),
        None => Some((name, None)),
    }
}

/// `@__sys_bpf`; nothing without a name.
pub(crate) struct Marked<T>(pub char, pub Option<T>);

impl<T: fmt::Display> fmt::Display for Marked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Marked(mark, Some(name)) => write!(f, "{mark}{name}"),
            Marked(_, None) => Ok(()),
        }
    }
}
