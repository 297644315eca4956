// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of kernels and ids of commits, as they are written in manifests and runs.

pub fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._+-".contains(c)
}

/// A whole id, of SHA-1 or SHA-256.
pub fn is_commit_id(text: &str) -> bool {
    [40, 64].contains(&text.len())
        && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// Lower-case hexadecimal digits, as SHA-256 sums are written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
