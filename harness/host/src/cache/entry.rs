// SPDX-License-Identifier: MIT OR Apache-2.0
//! An entry on disk: how it is filled, marked as complete, and removed.

use super::{LOCK, UNFINISHED};
use nix::fcntl::{Flock, FlockArg, RenameFlags, renameat2};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The file that makes a folder a complete entry. Holds the key, then a line `LENGTH NAME` for each
/// file.
pub const MARKER: &str = ".complete";

/// Marks an entry as used now. Pruning removes the least recently used. A read-only cache is not
/// pruned.
pub fn used(path: PathBuf) -> PathBuf {
    if let Ok(marker) = fs::File::options().write(true).open(path.join(MARKER)) {
        let _ = marker.set_modified(SystemTime::now());
    }
    path
}

/// Removes an entry. The marker goes first: a partial folder is never an entry.
pub fn discard(path: &Path) -> io::Result<()> {
    match fs::remove_file(path.join(MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => remove(path),
    }
}

/// A folder that is removed on drop, also by a panic.
pub struct Unfinished(pub PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = remove(&self.0);
    }
}

/// The key as a file name.
pub fn file_name(key: &str) -> String {
    key.chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._+~=-".contains(c) { c } else { '_' })
        .collect()
}

/// The lengths of the files directly in a folder. Entries as large as kernel sources would take too
/// long to check in full at each use.
fn lengths(folder: &Path) -> io::Result<Vec<(u64, String)>> {
    let mut lengths = Vec::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        // Skip a name that is not UTF-8 or has several lines.
        let name = file.file_name().into_string().ok().filter(|name| !name.contains('\n'));
        if let (Some(name), true) = (name, file.file_type()?.is_file()) {
            lengths.push((file.metadata()?.len(), name));
        }
    }
    Ok(lengths)
}

/// Returns true for a complete entry whose files have the recorded lengths.
pub fn is_whole(path: &Path) -> bool {
    let Ok(marker) = fs::read_to_string(path.join(MARKER)) else { return false };
    // The markers of old entries hold only the key.
    marker.lines().skip(1).filter_map(|line| line.split_once(' ')).all(|(length, name)| {
        fs::metadata(path.join(name)).is_ok_and(|file| length.parse() == Ok(file.len()))
    })
}

/// Why a complete entry can be trusted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It was synced to the disk.
    Synced,
    /// Its first reader checks it and syncs it.
    Checked,
}

/// Makes the unfinished folder the entry at `path`.
pub fn complete(
    unfinished: &Path,
    path: &Path,
    key: &str,
    durability: Durability,
) -> io::Result<()> {
    let mut marker = format!("{key}\n");
    if durability == Durability::Synced {
        // Sync before writing the marker: after a power cut it must not vouch for empty files.
        nix::unistd::syncfs(fs::File::open(unfinished)?)?;
        for (length, name) in lengths(unfinished)? {
            marker.push_str(&format!("{length} {name}\n"));
        }
    }
    fs::write(unfinished.join(MARKER), marker)?;
    if !path.exists() {
        return fs::rename(unfinished, path);
    }
    // Swap them in one step: another run may be reading the old one, which `Unfinished` then
    // removes.
    let here = nix::fcntl::AT_FDCWD;
    match renameat2(here, unfinished, here, path, RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => Ok(()),
        Err(_) => {
            // This file system cannot swap.
            remove(path)?;
            fs::rename(unfinished, path)
        }
    }
}

/// Removes the unfinished entries of dead runs, whose locks are free.
pub fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|name| name.strip_suffix(UNFINISHED)) else {
            continue;
        };
        let Ok(lock) = fs::File::open(folder.join(format!("{name}{LOCK}"))) else { continue };
        if let Ok(_lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            // Ignore an error: the next fill of that entry reports it.
            let _ = remove(&entry.path());
        }
    }
}

/// Removes a folder, if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
