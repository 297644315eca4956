// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the files of a series. They come from strangers, so only ordinary files, within limits and
//! inside their folder, are read.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

/// Limit for all files of a series together, in bytes. The largest thread on lore is not a tenth of
/// it.
pub const MOST_BYTES: u64 = 64 << 20;
const MOST_FILES: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("failed to read {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to read {}: it is not an ordinary file", .path.display())]
    NotAFile { path: PathBuf },
    #[error(
        "failed to read {}: with it the series exceeds {} MiB; expected only patches",
        .path.display(), MOST_BYTES >> 20
    )]
    TooBig { path: PathBuf },
    #[error(
        "failed to read {}: it has more than {MOST_FILES} files; expected a folder of patches",
        .path.display()
    )]
    TooMany { path: PathBuf },
    #[error(
        "failed to read `{entry}`, which {} names: it is not inside {}; put the patch there and \
         name it without `..`",
        .list.display(), .folder.display()
    )]
    Outside { list: PathBuf, entry: String, folder: PathBuf },
}

/// Reads files up to the limit for a series.
pub struct Reader {
    left: u64,
}

impl Reader {
    pub fn new() -> Reader {
        Reader { left: MOST_BYTES }
    }

    pub fn read(&mut self, path: &Path) -> Result<Vec<u8>, FileError> {
        let error = |source| FileError::Read { path: path.to_owned(), source };
        // Checked before opening, because opening a FIFO blocks.
        if !fs::metadata(path).map_err(error)?.is_file() {
            return Err(FileError::NotAFile { path: path.to_owned() });
        }
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(error)?;
        file.take(self.left + 1).read_to_end(&mut bytes).map_err(error)?;
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => self.left = left,
            None => return Err(FileError::TooBig { path: path.to_owned() }),
        }
        Ok(bytes)
    }
}

/// Returns the wanted entries of a folder, sorted by name.
pub fn entries(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, FileError> {
    let error = |source| FileError::Read { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for (count, entry) in fs::read_dir(folder).map_err(error)?.enumerate() {
        if count == MOST_FILES {
            return Err(FileError::TooMany { path: folder.to_owned() });
        }
        let path = entry.map_err(error)?.path();
        if wanted(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Resolves a file that a list in a folder names. It must be below that folder, symbolic links
/// followed.
pub fn inside(folder: &Path, entry: &str, list: &Path) -> Result<PathBuf, FileError> {
    let outside = || FileError::Outside {
        list: list.to_owned(),
        entry: entry.to_owned(),
        folder: folder.to_owned(),
    };
    let plain = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    if !Path::new(entry).components().all(plain) {
        return Err(outside());
    }
    let path = folder.join(entry);
    let real = |path: &Path| {
        path.canonicalize().map_err(|source| FileError::Read { path: path.to_owned(), source })
    };
    if real(&path)?.starts_with(real(folder)?) { Ok(path) } else { Err(outside()) }
}
