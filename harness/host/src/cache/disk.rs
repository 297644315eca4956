// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disks that are full or fail: writes files atomically, and finds out about free space.

use super::CacheError;
use std::{error::Error, fs, io, path::Path};

/// Writes a file atomically, also if the power fails. A replaced file keeps its permissions.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file in a folder");
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut file, bytes)?;
    if let Ok(before) = fs::metadata(path) {
        file.as_file().set_permissions(before.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Bytes that stay free on a disk when a stranger decides how much is written: a hostile Makefile
/// or tarball must not fill it.
pub const RESERVE: u64 = 1 << 30;

/// Bytes of an average file of a kernel's tree.
const BYTES_A_FILE: u64 = 16 << 10;

/// Fails if a folder's disk has less than `bytes` free, or no inodes for that many files. Called
/// before large downloads.
pub fn require_room(folder: &Path, bytes: u64) -> Result<(), CacheError> {
    // If the free space is unknown, writing reports a full disk.
    let Ok(disk) = nix::sys::statvfs::statvfs(folder) else { return Ok(()) };
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    // Some file systems have no fixed number of inodes.
    let inodes = (disk.files() > 0).then(|| disk.files_available());
    enough(folder, bytes, free, inodes)
}

fn enough(folder: &Path, bytes: u64, free: u64, inodes: Option<u64>) -> Result<(), CacheError> {
    const MIB: u64 = 1 << 20;
    let folder = folder.to_owned();
    if free < bytes {
        let (needed, free) = (bytes.div_ceil(MIB), free / MIB);
        return Err(CacheError::NoRoom { folder, needed, free });
    }
    let needed = bytes / BYTES_A_FILE;
    match inodes {
        Some(free) if free < needed => Err(CacheError::NoFiles { folder, needed, free }),
        _ => Ok(()),
    }
}

/// Returns true if a full disk caused the error. A child's error is known only from its output.
pub fn is_full(error: &(dyn Error + 'static)) -> bool {
    const KINDS: [io::ErrorKind; 3] =
        [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
    const WORDS: [&str; 2] = ["No space left on device", "Disk quota exceeded"];
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<io::Error>().is_some_and(|error| KINDS.contains(&error.kind())) {
            return true;
        }
        let text = error.to_string();
        if WORDS.iter().any(|words| text.contains(words)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_a_lack_of_bytes_from_one_of_inodes() {
        let enough = |bytes, free, inodes| enough(Path::new("/c"), bytes, free, inodes);
        enough(1 << 30, 1 << 30, None).unwrap();
        enough(1 << 30, 1 << 30, Some(1 << 16)).unwrap();
        assert!(matches!(enough(1 << 30, 1 << 20, Some(9)), Err(CacheError::NoRoom { .. })));
        assert!(matches!(
            enough(1 << 30, 1 << 30, Some(9)),
            Err(CacheError::NoFiles { needed: 65536, free: 9, .. })
        ));
    }
}
