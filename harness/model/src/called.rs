// SPDX-License-Identifier: MIT OR Apache-2.0
//! The name of this program in hints and in printed commands.

use std::sync::OnceLock;

static CALLED: OnceLock<String> = OnceLock::new();

/// Sets the words that start this program. Only the first call counts; `main` makes it.
pub fn set(words: String) {
    let _ = CALLED.set(words);
}

/// The words that start this program, quoted for a shell.
pub fn called() -> &'static str {
    CALLED.get().map_or("cargo xtask", String::as_str)
}
