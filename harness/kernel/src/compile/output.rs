// SPDX-License-Identifier: MIT OR Apache-2.0
//! A build's files, in its folder and in the cache. A hostile Makefile may have replaced those in
//! its folder with links or devices.

use super::{BuildError, error::io_error};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tramplab_model::{arch::KernelTree, run::Arch};

/// The cache entries of built kernels.
pub const KIND: &str = "kernel-built";

const RECORD: &str = "record.json";

pub fn image_path(build: &Path, arch: Arch) -> PathBuf {
    let KernelTree { folder, image, .. } = arch.platform().tree;
    build.join("arch").join(folder).join("boot").join(image)
}

/// Writes a file. Replaces a link that a hostile Makefile may have planted to make us write
/// outside.
pub fn write_anew(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    io::Write::write_all(&mut fs::File::create_new(path)?, text.as_bytes())
}

/// Reads the record of a cache entry.
pub fn read_record<T: DeserializeOwned>(entry: &Path) -> Result<T, BuildError> {
    let path = entry.join(RECORD);
    let text = fs::read(&path).map_err(io_error("read", &path))?;
    serde_json::from_slice(&text)
        .map_err(|source| io_error("read", &path)(io::Error::other(source)))
}

/// Writes the record of a cache entry.
pub fn write_record<T: Serialize>(entry: &Path, record: &T) -> Result<(), BuildError> {
    let path = entry.join(RECORD);
    let text = serde_json::to_vec_pretty(record).expect("plain data");
    fs::write(&path, text).map_err(io_error("write", &path))
}

/// Larger than any kernel image or configuration. A hostile Makefile can make a larger file.
const LARGEST: u64 = 512 << 20;

/// Checks that a build product is a regular file inside `build` and not too large.
pub fn require_own(path: &Path, build: &Path) -> Result<(), BuildError> {
    let error = |why: &str| io_error("use", path)(io::Error::other(why.to_owned()));
    if !is_own(path, build).map_err(io_error("find", path))? {
        return Err(error("not a regular file"));
    }
    let length = fs::metadata(path).map_err(io_error("find", path))?.len();
    if length > LARGEST { Err(error("it is larger than any kernel")) } else { Ok(()) }
}

/// True if the path is a regular file inside `build`, not a link.
pub fn is_own(path: &Path, build: &Path) -> io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.is_file()
        && fs::canonicalize(path)?.starts_with(fs::canonicalize(build)?))
}
