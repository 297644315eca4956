// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps libbpf's messages off the console, so that a refusal can quote them.

use libbpf_rs::{PrintLevel, set_print};
use std::sync::{Mutex, PoisonError};

/// Bytes: a line for each relocation of an object that does not fit the kernel.
const KEPT: usize = 64 << 10;

static LOG: Mutex<String> = Mutex::new(String::new());

fn keep(_: PrintLevel, text: String) {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
}

/// Redirects libbpf's warnings here.
pub fn install() {
    set_print(Some((PrintLevel::Warn, keep)));
}

pub fn clear() {
    take();
}

/// Returns the end of the messages since the last call.
pub fn take() -> String {
    let log = std::mem::take(&mut *LOG.lock().unwrap_or_else(PoisonError::into_inner));
    tail(&log, KEPT).to_owned()
}

/// The last bytes of a text, from a character's start.
pub fn tail(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}
