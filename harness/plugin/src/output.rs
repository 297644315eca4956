// SPDX-License-Identifier: GPL-2.0-or-later
//! A file for the host: written beside and renamed, so that a reader sees all of it or nothing.

use std::{fs, path::Path};

/// When it fails the guest goes on; its host finds no file, and this line in QEMU's log.
pub fn write(path: &Path, bytes: &[u8]) {
    let unfinished = path.with_extension("part");
    if let Err(error) = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path)) {
        let _ = fs::remove_file(&unfinished);
        eprintln!("tramplab-plugin: failed to write {}: {error}", path.display());
    }
}
