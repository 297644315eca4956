// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's packages, fetched without root and without installing them. The archive's client keeps
//! its indexes in the cache.

use super::cache::{Cache, CacheError, Lock, require_room};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab_archive::{Archive, Settings, Suite};

pub use tramplab_archive::{ArchiveError, Package, compare_versions, unpack, verifier};

/// From the oldest release with a kernel of interest to the newest kernel. A suite that does not
/// answer is left out. Programs come from two of them; the others are asked only for kernels.
const SUITES: [Suite; 5] = [
    Suite { name: "bookworm", prefix: KERNELS },
    Suite { name: "trixie", prefix: "" },
    Suite { name: "forky", prefix: "" },
    Suite { name: "sid", prefix: KERNELS },
    Suite { name: "experimental", prefix: KERNELS },
];
const KERNELS: &str = "linux-";

const INDEXES_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Younger indexes are not fetched again, even if they lack a package.
const INDEXES_FRESH: Duration = Duration::from_secs(10 * 60);

/// Bytes: the packed lists of all suites while they are read, and the indexes.
const INDEXES_ROOM: u64 = 90 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DebianError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl DebianError {
    fn may_be_stale(&self) -> bool {
        matches!(self, DebianError::Archive(error) if error.may_be_stale())
    }
}

/// Debian's packages for one architecture. Holds a lock: one process uses them at a time.
#[derive(Debug)]
pub struct Debian {
    cache: PathBuf,
    archive: Archive,
    _lock: Lock,
}

impl Debian {
    /// Refreshes indexes that are older than a day, and keeps them if the archive does not answer.
    /// `architecture` is Debian's name: `amd64`, `arm64`.
    pub fn open(
        cache: &Cache,
        architecture: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Debian, DebianError> {
        let lock = cache.lock(&format!("debian-{architecture}"))?;
        let folder = cache.folder(&format!("debian/{architecture}"))?;
        let archive = Archive::new(folder, architecture, &SUITES, Settings::of_host())?;
        let debian = Debian { cache: cache.root().to_owned(), archive, _lock: lock };
        match debian.archive.age() {
            Some(age) if age < if cache.reuses() { INDEXES_MAX_AGE } else { INDEXES_FRESH } => {}
            None => debian.refresh(progress)?,
            Some(age) => {
                if let Err(error) = debian.refresh(progress) {
                    let hours = age.as_secs() / 3600;
                    progress(&format!("using {hours} hours old package lists of Debian: {error}"));
                }
            }
        }
        Ok(debian)
    }

    fn is_fresh(&self) -> bool {
        self.archive.age().is_some_and(|age| age < INDEXES_FRESH)
    }

    fn refresh(&self, progress: &mut dyn FnMut(&str)) -> Result<(), DebianError> {
        // The lists of versions that asked the host's apt.
        let _ = fs::remove_dir_all(self.cache.join("apt"));
        require_room(&self.cache, INDEXES_ROOM)?;
        Ok(self.archive.refresh(progress)?)
    }

    /// All versions of the packages whose names fit.
    pub fn search(&self, fits: impl Fn(&str) -> bool) -> Result<Vec<Package>, DebianError> {
        Ok(self.archive.search(fits)?)
    }

    /// The package and its dependencies in one suite, in the versions that an empty system would
    /// get.
    pub fn closure(&self, suite: &str, package: &str) -> Result<Vec<Package>, DebianError> {
        Ok(self.archive.closure(suite, package)?)
    }

    /// Finds one version of a package.
    pub fn exactly(&self, name: &str, version: &str) -> Result<Package, DebianError> {
        Ok(self.archive.exactly(name, version)?)
    }

    pub fn not_found(&self, wanted: &str) -> DebianError {
        self.archive.not_found(wanted).into()
    }

    /// Fetches packages into a folder and verifies them. Returns their files in the same order.
    pub fn download(
        &self,
        packages: &[Package],
        folder: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<PathBuf>, DebianError> {
        require_room(&self.cache, packages.iter().map(|package| package.room).sum())?;
        Ok(self.archive.download(packages, folder, progress)?)
    }

    /// Fetches packages and unpacks their files into a folder, which it makes.
    pub fn unpack(
        &self,
        packages: &[Package],
        folder: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), DebianError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| DebianError::Archive(ArchiveError::Io { action, path, source })
        };
        fs::create_dir_all(folder).map_err(io("make", folder))?;
        for file in self.download(packages, folder, progress)? {
            unpack(&file, folder, |_| true)?;
            fs::remove_file(&file).map_err(io("remove", &file))?;
        }
        Ok(())
    }
}

/// Runs `attempt`. If it fails and old indexes may be the reason, refreshes those of all `debians`
/// and runs it once more. `cause` finds Debian's error in the attempt's error.
pub fn attempt<T, E: From<DebianError>>(
    debians: &[&Debian],
    progress: &mut dyn FnMut(&str),
    cause: fn(&E) -> Option<&DebianError>,
    mut attempt: impl FnMut(&mut dyn FnMut(&str)) -> Result<T, E>,
) -> Result<T, E> {
    match attempt(progress) {
        Err(error)
            if !debians.iter().all(|debian| debian.is_fresh())
                && cause(&error).is_some_and(DebianError::may_be_stale) =>
        {
            for debian in debians {
                debian.refresh(progress)?;
            }
            attempt(progress)
        }
        result => result,
    }
}
