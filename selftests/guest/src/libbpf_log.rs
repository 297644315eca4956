// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps what libbpf says, so that a refusal can quote it, and off the console, where it would be noise.

use libbpf_rs::{PrintLevel, set_print};
use std::sync::{Mutex, PoisonError};

/// Enough for the end of a verifier log; the rest of it explains less.
const KEPT: usize = 4096;

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

/// The end of what was said since the last call.
pub fn take() -> String {
    let log = std::mem::take(&mut *LOG.lock().unwrap_or_else(PoisonError::into_inner));
    let mut start = log.len().saturating_sub(KEPT);
    while !log.is_char_boundary(start) {
        start += 1;
    }
    log[start..].to_owned()
}
