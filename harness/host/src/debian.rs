// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's packages, fetched without root and without installing them. The archive's client keeps
//! its indexes in the cache.

use super::cache::{Cache, CacheError, Lock, require_room};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab_archive::{
    Archive, MOST_UNPACKED, Pinned, Settings, Suite, check_links, pinned_unpacked,
};

pub use tramplab_archive::{
    ArchiveError, File, Package, Pin, STOPPED, compare_versions, pinned_package, unpack, verifier,
};

/// From the oldest release with a kernel of interest to the newest kernel. A suite that does not
/// answer is left out. Programs come from three of them; the others are asked only for kernels.
static SUITES: [Suite; 5] = [
    Suite { name: "bookworm", prefix: "" },
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
const INDEXES_ROOM: u64 = 100 << 20;

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
    known: Known,
    _lock: Lock,
}

/// The packages that can be asked for.
#[derive(Debug)]
enum Known {
    /// Those of the suites.
    Suites(Archive),
    /// A few, by their hashes.
    Pinned(Pinned),
}

impl Debian {
    /// All suites. `architecture` is Debian's name: `amd64`, `arm64`.
    pub fn open(
        cache: &Cache,
        architecture: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Debian, DebianError> {
        Debian::of(cache, architecture, &SUITES, progress)
    }

    /// One suite, which is fetched sooner than all.
    pub fn of_suite(
        cache: &Cache,
        architecture: &str,
        suite: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Debian, DebianError> {
        let at = SUITES.iter().position(|known| known.name == suite).expect("a known suite");
        Debian::of(cache, architecture, &SUITES[at..=at], progress)
    }

    /// Refreshes indexes that are older than a day, and keeps them if the archive does not answer.
    fn of(
        cache: &Cache,
        architecture: &str,
        suites: &'static [Suite],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Debian, DebianError> {
        let debian = Debian::locked(cache, architecture, |folder| {
            let archive = Archive::new(folder, architecture, suites, Settings::of_host())?;
            Ok(Known::Suites(archive))
        })?;
        match debian.age() {
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

    /// Only the packages of a pin.
    pub fn pinned(cache: &Cache, architecture: &str, pin: &Pin) -> Result<Debian, DebianError> {
        Debian::locked(cache, architecture, |folder| {
            Ok(Known::Pinned(Pinned::new(&folder, pin.clone(), Settings::of_host())?))
        })
    }

    fn locked(
        cache: &Cache,
        architecture: &str,
        known: impl FnOnce(PathBuf) -> Result<Known, DebianError>,
    ) -> Result<Debian, DebianError> {
        let lock = cache.lock(&format!("debian-{architecture}"))?;
        let known = known(cache.folder(&format!("debian/{architecture}"))?)?;
        Ok(Debian { cache: cache.root().to_owned(), known, _lock: lock })
    }

    /// A pin has none: it never changes.
    fn age(&self) -> Option<Duration> {
        match &self.known {
            Known::Suites(archive) => archive.age(),
            Known::Pinned(_) => Some(Duration::ZERO),
        }
    }

    fn is_fresh(&self) -> bool {
        self.age().is_some_and(|age| age < INDEXES_FRESH)
    }

    fn refresh(&self, progress: &mut dyn FnMut(&str)) -> Result<(), DebianError> {
        let Known::Suites(archive) = &self.known else { return Ok(()) };
        // The lists of versions that asked the host's apt.
        let _ = fs::remove_dir_all(self.cache.join("apt"));
        require_room(&self.cache, INDEXES_ROOM)?;
        Ok(archive.refresh(progress)?)
    }

    /// All versions of the packages whose names fit.
    pub fn search(&self, fits: impl Fn(&str) -> bool) -> Result<Vec<Package>, DebianError> {
        Ok(match &self.known {
            Known::Suites(archive) => archive.search(fits)?,
            Known::Pinned(pinned) => {
                pinned.pin().packages().filter(|package| fits(&package.name)).collect()
            }
        })
    }

    /// The package and its dependencies, in the versions that an empty system would get.
    pub fn closure(&self, package: &str) -> Result<Vec<Package>, DebianError> {
        match &self.known {
            Known::Suites(archive) => Ok(archive.closure(package)?),
            Known::Pinned(_) => Err(self.not_found(package)),
        }
    }

    /// Finds one version of a package.
    pub fn exactly(&self, name: &str, version: &str) -> Result<Package, DebianError> {
        let found = self.search(|found| found == name)?;
        let found = found.into_iter().find(|package| package.version == version);
        found.ok_or_else(|| self.not_found(&format!("{name}={version}")))
    }

    /// Names the packages by their hashes.
    pub fn pin(&self, packages: &[Package]) -> Result<Pin, DebianError> {
        Ok(match &self.known {
            Known::Suites(archive) => archive.pin(packages)?,
            Known::Pinned(pinned) => pinned.pin().clone(),
        })
    }

    /// Asks for all packages of the pin: a mirror, then the snapshot archive. None without a pin.
    pub fn availability(&self) -> Option<[Result<(), ArchiveError>; 2]> {
        match &self.known {
            Known::Suites(_) => None,
            Known::Pinned(pinned) => Some(pinned.availability()),
        }
    }

    /// True if packages of a pin came from Debian's snapshot archive, as no mirror gave them.
    pub fn used_snapshot(&self) -> bool {
        matches!(&self.known, Known::Pinned(pinned) if pinned.used_snapshot())
    }

    pub fn not_found(&self, wanted: &str) -> DebianError {
        DebianError::Archive(match &self.known {
            Known::Suites(archive) => archive.not_found(wanted),
            Known::Pinned(pinned) => pinned.not_found(wanted),
        })
    }

    /// Fetches packages into a folder and verifies them. Returns their files in the same order.
    pub fn download(
        &self,
        packages: &[Package],
        folder: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<PathBuf>, DebianError> {
        require_room(&self.cache, packages.iter().map(|package| package.room).sum())?;
        Ok(match &self.known {
            Known::Suites(archive) => archive.download(packages, folder, progress)?,
            Known::Pinned(pinned) => pinned.download(packages, folder, progress)?,
        })
    }

    /// Bytes that a package may have, unpacked.
    pub fn most(&self, file: &Path) -> u64 {
        match &self.known {
            Known::Suites(_) => MOST_UNPACKED,
            Known::Pinned(_) => fs::metadata(file).map_or(0, |file| pinned_unpacked(file.len())),
        }
    }

    /// Fetches packages and unpacks those of their files that are wanted into a folder, which it
    /// makes.
    pub fn unpack(
        &self,
        packages: &[Package],
        folder: &Path,
        wanted: &dyn Fn(&Package, &Path) -> bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), DebianError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| DebianError::Archive(ArchiveError::Io { action, path, source })
        };
        fs::create_dir_all(folder).map_err(io("make", folder))?;
        let files = self.download(packages, folder, progress)?;
        for (file, package) in files.into_iter().zip(packages) {
            unpack(&file, folder, self.most(&file), |path| wanted(package, path))?;
            fs::remove_file(&file).map_err(io("remove", &file))?;
        }
        Ok(check_links(folder)?)
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
