// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes a file for the host: first under another name, then renamed, so that a reader sees all of
//! it or nothing. The guest decides how often it arms and disarms, so the output is limited.

use std::{
    ffi::CString,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Files per guest.
const MOST_FILES: u64 = 1000;
const MOST_BYTES: u64 = 1 << 30;
const MOST_LINES: u64 = 1000;
/// A guest writes this much to any disk: a full ring of each of ten vCPUs.
const SMALL: u64 = 256 << 20;
/// Bytes that stay free on the disk of a guest that writes more, as beside a build.
const RESERVE: u64 = 1 << 30;

static FILES: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static LINES: AtomicU64 = AtomicU64::new(0);

/// Writes a file. If that fails, the guest continues; the host misses the file and finds the reason
/// in QEMU's log.
pub fn write(path: &Path, bytes: &[u8]) {
    if !takes(&FILES, 1, MOST_FILES) || !takes(&BYTES, bytes.len() as u64, MOST_BYTES) {
        return say(&format!("{} is not written: this guest exceeded its limit", path.display()));
    }
    let free = path.parent().and_then(free).unwrap_or(u64::MAX);
    if !leaves_room(BYTES.load(Ordering::Relaxed), bytes.len() as u64, free) {
        let free = free >> 20;
        return say(&format!("{} is not written: {free} MiB are left on its disk", path.display()));
    }
    let unfinished = path.with_extension("part");
    if let Err(error) = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path)) {
        let _ = fs::remove_file(&unfinished);
        say(&format!("failed to write {}: {error}", path.display()));
    }
}

/// `written` bytes are of this guest, the new file's included.
fn leaves_room(written: u64, file: u64, free: u64) -> bool {
    written <= SMALL || free.saturating_sub(file) >= RESERVE
}

/// Bytes that are free on a folder's disk. If nobody knows, writing reports a full disk.
fn free(folder: &Path) -> Option<u64> {
    let folder = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: all bits zero are a valid statvfs.
    let mut disk: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `folder` ends with a zero, and `disk` is ours.
    let is_known = unsafe { libc::statvfs(folder.as_ptr(), &mut disk) } == 0;
    is_known.then(|| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Writes a line to QEMU's log.
pub fn say(line: &str) {
    if takes(&LINES, 1, MOST_LINES) {
        eprintln!("tramplab-plugin: {line}");
    }
}

/// Adds to a sum. A full sum stays full.
fn takes(sum: &AtomicU64, more: u64, most: u64) -> bool {
    let add = |sum: u64| Some(sum.saturating_add(more));
    let before = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).unwrap_or(u64::MAX);
    before.saturating_add(more) <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_the_output_of_a_guest() {
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
    fn leaves_room_on_the_disk() {
        for (written, file, free, is_written) in [
            // A small guest, on a disk of any size.
            (SMALL, 1 << 20, 0, true),
            (SMALL + 1, 1 << 20, RESERVE, false),
            (SMALL + 1, 1 << 20, RESERVE + (1 << 20), true),
            (u64::MAX, u64::MAX, u64::MAX - 1, false),
        ] {
            assert_eq!(leaves_room(written, file, free), is_written, "{written} {file} {free}");
        }
        assert!(free(&std::env::temp_dir()).is_some_and(|bytes| bytes > 0));
        assert_eq!(free(Path::new("/nowhere")), None);
    }

    #[test]
    fn keeps_a_full_sum_full() {
        let sum = AtomicU64::new(0);
        assert!(takes(&sum, 6, 10) && !takes(&sum, 6, 10) && !takes(&sum, 1, 10));
        assert!(!takes(&sum, u64::MAX, 10) && !takes(&sum, 1, 10));
    }
}
