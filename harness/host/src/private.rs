// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of Debian's that are private to the cache: unpacked with all the libraries they need, and run by their own
//! dynamic loader. No root, nothing installed, the same program on every host.

use super::{
    apt::{self, Apt, AptError, Package},
    cache::{Cache, CacheError, used},
};
use sha2::{Digest, Sha256};
use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tramplab_model::name::hex;

/// Newer than what most hosts have, and it does not move.
pub const SUITE: &str = "trixie";
/// The script that runs such a program as one.
pub const WRAPPER: &str = "run";

#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    #[error("none is known for hosts of architecture {0}")]
    Host(&'static str),
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Apt(#[from] AptError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl PrivateError {
    pub fn apt(&self) -> Option<&AptError> {
        match self {
            PrivateError::Apt(error) => Some(error),
            _ => None,
        }
    }
}

/// Where Debian puts a program's parts on the host's architecture.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// In Debian's words.
    pub architecture: &'static str,
    triplet: &'static str,
    loader: &'static str,
}

impl Layout {
    pub fn of_host() -> Result<Layout, PrivateError> {
        match env::consts::ARCH {
            "x86_64" => Ok(Layout {
                architecture: "amd64",
                triplet: "x86_64-linux-gnu",
                loader: "ld-linux-x86-64.so.2",
            }),
            "aarch64" => Ok(Layout {
                architecture: "arm64",
                triplet: "aarch64-linux-gnu",
                loader: "ld-linux-aarch64.so.1",
            }),
            other => Err(PrivateError::Host(other)),
        }
    }

    pub fn libraries(&self, folder: &Path) -> PathBuf {
        folder.join("usr/lib").join(self.triplet)
    }

    pub fn loader(&self, folder: &Path) -> PathBuf {
        self.libraries(folder).join(self.loader)
    }
}

/// Of all versions: a library's security update makes another copy.
pub fn digest(packages: &[Package]) -> String {
    let mut hash = Sha256::new();
    for package in packages {
        hash.update(format!("{} {}\n", package.name, package.sha256));
    }
    hex(&hash.finalize())[..12].to_owned()
}

/// The complete copies of a kind whose key begins so, the newest last.
pub fn copies(cache: &Cache, kind: &str, prefix: &str) -> Vec<PathBuf> {
    let mut copies = cache.list(kind);
    copies.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)));
    let made = |path: &PathBuf| fs::metadata(path.join(WRAPPER)).and_then(|file| file.modified()).ok();
    copies.sort_by_key(made);
    copies
}

/// The newest of them, to be used.
pub fn newest(cache: &Cache, kind: &str, prefix: &str) -> Option<PathBuf> {
    copies(cache, kind, prefix).pop().map(used)
}

/// Fetches packages and unpacks their files into a folder.
pub fn unpack(apt: &Apt, packages: &[Package], folder: &Path) -> Result<(), PrivateError> {
    for file in apt.download(packages, folder)? {
        apt::unpack(&file, folder)?;
        fs::remove_file(&file).map_err(|source| PrivateError::Io { action: "remove", path: file, source })?;
    }
    // Nothing reads it.
    for documentation in ["usr/share/doc", "usr/share/man", "usr/share/locale"] {
        let _ = fs::remove_dir_all(folder.join(documentation));
    }
    Ok(())
}

/// Writes the script that runs `program`, a path below the folder, as one program. It finds the parts beside itself, since a copy is written in one
/// folder and then renamed into its place: `$here` and `$lib` in the lines of `environment` and in `arguments` are those.
pub fn write_wrapper(
    folder: &Path,
    layout: &Layout,
    program: &str,
    environment: &[&str],
    arguments: &str,
) -> Result<(), PrivateError> {
    let Layout { triplet, loader, .. } = layout;
    let name = program.rsplit('/').next().expect("a path");
    let exports: String = environment.iter().map(|line| format!("export {line}\n")).collect();
    let script = format!(
        "#!/bin/sh\n\
         here=$(cd \"$(dirname \"$(readlink -f \"$0\")\")\" && pwd) || exit 127\n\
         lib=$here/usr/lib/{triplet}\n\
         {exports}\
         exec \"$lib/{loader}\" --library-path \"$lib\" --argv0 {name} \"$here/{program}\" {arguments} \"$@\"\n"
    );
    let path = folder.join(WRAPPER);
    fs::write(&path, script)
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
        .map_err(|source| PrivateError::Io { action: "write", path, source })
}
