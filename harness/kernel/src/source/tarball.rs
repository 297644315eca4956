// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources from a tarball, unpacked by the host's tar.

use super::{KernelError, SourceError, io_error, tree};
use crate::{download, manifest::Download};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_host::{cache::Cache, child};

/// File name endings of tarballs. tar itself looks at the content.
pub const TARBALLS: [&str; 4] = [".tar.xz", ".tar.gz", ".tar.zst", ".tar.bz2"];

/// Unpacking 6.12 takes 12 s.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Removed when dropped.
struct Unpacked(PathBuf);

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the tarball's path in the cache. Fetches it first if needed.
pub fn fetched(
    download: &Download,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, KernelError> {
    let entry = cache.entry("kernel-tarball", &download.sha256, |folder| {
        progress(&format!("fetching {}", download.url));
        download::fetch(download, &folder.join("tarball"))
    })?;
    Ok(entry.join("tarball"))
}

/// Makes `into` hold the content of a tarball.
pub fn checkout(tarball: &Path, into: &Path) -> Result<(), KernelError> {
    // Same disk as `into`, so that files can be moved.
    let unpacked = Unpacked(into.with_added_extension("unpacked"));
    match fs::remove_dir_all(&unpacked.0) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove", &unpacked.0)(error));
        }
        _ => {}
    }
    fs::create_dir(&unpacked.0).map_err(io_error("make", &unpacked.0))?;
    unpack(tarball, &unpacked.0)?;
    let root = top(tarball, &unpacked.0)?;
    tree::check_tree(&root).map_err(|error| match error {
        KernelError::Source(SourceError::NotATree { lacks, .. }) => {
            SourceError::NotATree { place: tarball.display().to_string(), lacks }.into()
        }
        error => error,
    })?;
    tree::check_clean(&root)?;
    tree::sync_moving(&root, into)
}

fn unpack(tarball: &Path, into: &Path) -> Result<(), KernelError> {
    let mut command = Command::new("tar");
    command
        .env_remove("TAR_OPTIONS")
        // A colon in a file name does not separate a host.
        .args(["--extract", "--force-local", "--no-same-owner", "--no-same-permissions"])
        .arg("--file")
        .arg(tarball)
        .arg("--directory")
        .arg(into);
    let error = |source| SourceError::Unpack { path: tarball.to_owned(), source: Box::new(source) };
    // tar fails on a member with `..`. From an absolute one it strips the slash and continues.
    let output = child::run(&mut command, LIMIT).map_err(error)?;
    if output.stderr.contains("Removing leading") {
        let why =
            "it has members outside its own folder; expected one folder with a kernel's sources"
                .into();
        return Err(SourceError::Tarball { path: tarball.to_owned(), why }.into());
    }
    Ok(())
}

/// Finds the sources' folder in the unpacked tarball: `linux-6.12`.
fn top(tarball: &Path, unpacked: &Path) -> Result<PathBuf, KernelError> {
    let entries = fs::read_dir(unpacked).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let entries = entries.map_err(io_error("read", unpacked))?;
    match entries.as_slice() {
        [only] if only.file_type().is_ok_and(|kind| kind.is_dir()) => Ok(only.path()),
        _ if unpacked.join("Kbuild").is_file() => Ok(unpacked.to_owned()),
        _ => {
            let why = "expected one folder with a kernel's sources in it".to_owned();
            Err(SourceError::Tarball { path: tarball.to_owned(), why }.into())
        }
    }
}
