// SPDX-License-Identifier: MIT OR Apache-2.0
//! Private copies of Debian programs, unpacked into the cache with all the libraries they need and
//! run by their own dynamic loader. A copy needs no root, installs nothing, and is the same program
//! on every host.

use super::{
    cache::{Cache, CacheError, used},
    debian::{self, Debian, DebianError, Package},
};
use sha2::{Digest, Sha256};
use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tramplab_model::name::hex;

/// Newer than the programs of most hosts, and stable.
pub const SUITE: &str = "trixie";
/// The script in a copy that runs its program.
pub const WRAPPER: &str = "run";

#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    #[error("there are no private copies for hosts of architecture {0}")]
    Host(&'static str),
    #[error("failed to use the fetched {package}: {why}")]
    Broken { package: &'static str, why: String },
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Debian(#[from] DebianError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl PrivateError {
    fn debian(&self) -> Option<&DebianError> {
        match self {
            PrivateError::Debian(error) => Some(error),
            _ => None,
        }
    }
}

/// Where Debian puts a program's parts on the host's architecture.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Debian's name of it.
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

/// How to make and find one kind of private copy. Its cache key is `NAME=VERSION-DIGEST`.
pub struct Recipe {
    /// The cache's kind.
    pub kind: &'static str,
    pub name: &'static str,
    /// The package whose version is in the key.
    pub package: &'static str,
    pub suite: &'static str,
    /// None for a static program.
    pub wrapper: Option<Wrapper>,
}

/// The contents of the script [`WRAPPER`]. In all but `program`, `$here` is the copy's folder and
/// `$lib` its folder of libraries.
pub struct Wrapper {
    /// Path below the copy's folder.
    pub program: String,
    /// Shell commands, each with its line end.
    pub environment: &'static str,
    /// Come before the caller's arguments.
    pub arguments: String,
}

impl Recipe {
    /// The newest complete copy, marked as used.
    pub fn newest(&self, cache: &Cache) -> Option<PathBuf> {
        let prefix = format!("{}=", self.name);
        let is_ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        };
        let made =
            |path: &PathBuf| fs::metadata(path.join(WRAPPER)).and_then(|file| file.modified()).ok();
        cache.list(self.kind).into_iter().filter(is_ours).max_by_key(made).map(used)
    }

    /// Fetches the package with its dependencies, for the host's architecture. `check` rejects a
    /// copy that does not run.
    pub fn fetch(
        &self,
        cache: &Cache,
        progress: &mut dyn FnMut(&str),
        check: &dyn Fn(&Path) -> Result<(), String>,
    ) -> Result<PathBuf, PrivateError> {
        let debian =
            Debian::of_suite(cache, Layout::of_host()?.architecture, self.suite, progress)?;
        let plan = || Ok(vec![debian.closure(self.package)?]);
        self.fetch_planned(cache, &[&debian], progress, check, &plan)
    }

    /// Fetches the packages that `plan` lists, for each of the `debians` in its order.
    pub fn fetch_planned(
        &self,
        cache: &Cache,
        debians: &[&Debian],
        progress: &mut dyn FnMut(&str),
        check: &dyn Fn(&Path) -> Result<(), String>,
        plan: &dyn Fn() -> Result<Vec<Vec<Package>>, DebianError>,
    ) -> Result<PathBuf, PrivateError> {
        let package = self.package;
        debian::attempt(debians, progress, PrivateError::debian, |progress| {
            let parts = plan()?;
            let all = parts.concat();
            let Some(main) = all.iter().find(|found| found.name == package) else {
                return Err(debians[0].not_found(package).into());
            };
            let version = &main.version;
            let key = format!("{}={version}-{}", self.name, digest(&all));
            cache.entry(self.kind, &key, |folder| {
                progress(&format!("fetching {package} {version}"));
                for (debian, packages) in debians.iter().zip(&parts) {
                    unpack(debian, packages, folder, progress)?;
                }
                if let Some(wrapper) = &self.wrapper {
                    wrapper.write(folder)?;
                }
                check(folder).map_err(|why| PrivateError::Broken { package, why })
            })
        })
    }
}

impl Wrapper {
    /// The script finds the program beside itself: the cache renames a copy's folder.
    fn write(&self, folder: &Path) -> Result<(), PrivateError> {
        let Layout { triplet, loader, .. } = Layout::of_host()?;
        let Wrapper { program, environment, arguments } = self;
        let name = program.rsplit('/').next().expect("a path");
        let script = format!(
            "#!/bin/sh\n\
             here=$(cd \"$(dirname \"$(readlink -f \"$0\")\")\" && pwd) || exit 127\n\
             lib=$here/usr/lib/{triplet}\n\
             {environment}\
             exec \"$lib/{loader}\" --library-path \"$lib\" --argv0 {name} \
             \"$here/{program}\" {arguments} \"$@\"\n"
        );
        let path = folder.join(WRAPPER);
        write_script(&path, &script).map_err(|source| PrivateError::Io {
            action: "write",
            path,
            source,
        })
    }
}

/// Writes an executable file.
pub fn write_script(path: &Path, script: &str) -> io::Result<()> {
    fs::write(path, script)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Covers all packages: the update of a library makes another copy.
fn digest(packages: &[Package]) -> String {
    let mut hash = Sha256::new();
    for package in packages {
        hash.update(format!("{} {}\n", package.name, package.sha256));
    }
    hex(&hash.finalize())[..12].to_owned()
}

/// Fetches packages and unpacks their files into a folder.
fn unpack(
    debian: &Debian,
    packages: &[Package],
    folder: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), PrivateError> {
    // No program reads it.
    let documentation = ["usr/share/doc", "usr/share/man", "usr/share/locale"];
    let wanted =
        |_: &Package, path: &Path| !documentation.iter().any(|none| path.starts_with(none));
    Ok(debian.unpack(packages, folder, &wanted, progress)?)
}
