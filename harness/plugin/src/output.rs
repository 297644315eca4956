// SPDX-License-Identifier: GPL-2.0-or-later
//! A file for the host: written beside and renamed, so that a reader sees all of it or nothing. How often it is armed and disarmed is the
//! guest's to say, so there is an end to what is written.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Of one guest.
const MOST_FILES: u64 = 1000;
const MOST_BYTES: u64 = 1 << 30;
const MOST_LINES: u64 = 1000;

static FILES: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static LINES: AtomicU64 = AtomicU64::new(0);

/// When it fails the guest goes on; its host finds no file, and this line in QEMU's log.
pub fn write(path: &Path, bytes: &[u8]) {
    if !takes(&FILES, 1, MOST_FILES) || !takes(&BYTES, bytes.len() as u64, MOST_BYTES) {
        return say(&format!("{} is not written: this guest has had enough written", path.display()));
    }
    let unfinished = path.with_extension("part");
    if let Err(error) = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path)) {
        let _ = fs::remove_file(&unfinished);
        say(&format!("failed to write {}: {error}", path.display()));
    }
}

/// To QEMU's log.
pub fn say(line: &str) {
    if takes(&LINES, 1, MOST_LINES) {
        eprintln!("tramplab-plugin: {line}");
    }
}

/// Once it is full it stays so.
fn takes(sum: &AtomicU64, more: u64, most: u64) -> bool {
    let add = |sum: u64| Some(sum.saturating_add(more));
    let before = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).unwrap_or(u64::MAX);
    before.saturating_add(more) <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_has_written_has_an_end() {
        let folder = std::env::temp_dir().join(format!("tramplab-output-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        for number in 0..MOST_FILES + 5 {
            write(&folder.join(number.to_string()), b"x");
        }
        let files = fs::read_dir(&folder).unwrap().count() as u64;
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(files, MOST_FILES);
    }

    #[test]
    fn a_sum_that_is_full_stays_full() {
        let sum = AtomicU64::new(0);
        assert!(takes(&sum, 6, 10) && !takes(&sum, 6, 10) && !takes(&sum, 1, 10));
        assert!(!takes(&sum, u64::MAX, 10) && !takes(&sum, 1, 10));
    }
}
