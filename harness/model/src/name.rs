// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of kernels, commit ids and hashes.

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
