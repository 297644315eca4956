// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the files of a series. They come from strangers, so only ordinary files, within limits and
//! inside their folder, are read. A pipe is read only if the user typed it.

use super::packed::{self, PackedError};
use std::{
    fs::{self, File, FileType},
    io::{self, IsTerminal, Read},
    os::unix::fs::FileTypeExt,
    path::{Component, Path, PathBuf},
};
use tempfile::TempDir;
use tramplab_host::regular::is_of_shell;

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
    #[error("failed to read {}: {source}", .path.display())]
    Packed { path: PathBuf, source: PackedError },
    #[error(
        "failed to read the series from standard input: it is a terminal; pipe the series in: `b4 \
         am -o - ID | … --series -`"
    )]
    Terminal,
    #[error("failed to make a folder for {}: {source}", .path.display())]
    Folder { path: PathBuf, source: io::Error },
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

/// Reads files up to the limit for a series, and unpacks them.
pub struct Reader {
    left: u64,
}

impl Reader {
    pub fn new() -> Reader {
        Reader { left: MOST_BYTES }
    }

    /// Reads an ordinary file.
    pub fn read(&mut self, path: &Path) -> Result<Vec<u8>, FileError> {
        self.read_kind(path, FileType::is_file)
    }

    /// Reads a file that the user typed. It may be the pipe that a shell makes of `<(…)`.
    pub fn read_typed(&mut self, path: &Path) -> Result<Vec<u8>, FileError> {
        let is_of_shell = is_of_shell(path);
        self.read_kind(path, |kind| kind.is_file() || (is_of_shell && kind.is_fifo()))
    }

    pub fn read_standard_input(&mut self) -> Result<Vec<u8>, FileError> {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            return Err(FileError::Terminal);
        }
        self.read_from(stdin.lock(), Path::new("standard input"))
    }

    fn read_kind(
        &mut self,
        path: &Path,
        fits: impl Fn(&FileType) -> bool,
    ) -> Result<Vec<u8>, FileError> {
        let error = |source| FileError::Read { path: path.to_owned(), source };
        // Checked before opening, because opening a FIFO blocks.
        if !fits(&fs::metadata(path).map_err(error)?.file_type()) {
            return Err(FileError::NotAFile { path: path.to_owned() });
        }
        self.read_from(File::open(path).map_err(error)?, path)
    }

    fn read_from(&mut self, file: impl Read, path: &Path) -> Result<Vec<u8>, FileError> {
        let error = |source| FileError::Read { path: path.to_owned(), source };
        let too_big = || FileError::TooBig { path: path.to_owned() };
        let mut bytes = Vec::new();
        file.take(self.left + 1).read_to_end(&mut bytes).map_err(error)?;
        let packed = bytes.len() as u64;
        self.left.checked_sub(packed).ok_or_else(too_big)?;
        let bytes = packed::unpack(bytes, self.left).map_err(|source| match source {
            // The limit is for all files together.
            PackedError::TooBig { .. } if self.left < MOST_BYTES => too_big(),
            source => FileError::Packed { path: path.to_owned(), source },
        })?;
        self.left = self.left.checked_sub(packed.max(bytes.len() as u64)).ok_or_else(too_big)?;
        Ok(bytes)
    }
}

/// Extracts a tar archive into a folder of our own. Dropping the value removes it.
pub fn extract(tar: &[u8], path: &Path) -> Result<TempDir, FileError> {
    let folder = tempfile::Builder::new().prefix("tramplab-tar-").tempdir();
    let folder = folder.map_err(|source| FileError::Folder { path: path.to_owned(), source })?;
    packed::extract(tar, folder.path(), MOST_BYTES, MOST_FILES)
        .map_err(|source| FileError::Packed { path: path.to_owned(), source })?;
    Ok(folder)
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
