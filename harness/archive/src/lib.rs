// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of Debian's archive, and a reader of packages, of other distributions too. Needs
//! neither apt nor dpkg nor rpm, nor root.
//!
//! A suite's `InRelease` is verified by OpenPGP. It has the hash of the suite's `Packages`, which
//! has the hash of each package. Only a compact index of `Packages` is kept:
//!
//! ```text
//! FOLDER/SUITE.N.index the packages: `index.rs`, format N
//! FOLDER/SUITE.state   the format, the hash of `Packages`, and the release's date
//! FOLDER/SUITE+SUITE.refreshed  the mirror, and why suites failed; written at each refresh
//! FOLDER/partial/HASH* files that are being fetched
//! ```

mod compression;
mod deb;
mod error;
mod fetch;
mod host;
mod index;
mod package;
mod pin;
mod pool;
mod release;
mod rpm;
mod solve;
mod tarball;
#[cfg(test)]
mod tests;
mod unpacking;
mod verify;
mod version;

pub use compression::{Compression, Streams};
pub use error::ArchiveError;
pub use host::{STOPPED, Settings};
pub use package::{MOST as MOST_UNPACKED, unpack};
pub use pin::{Pin, Pinned, package as pinned_package, unpacked as pinned_unpacked};
pub use release::File;
pub use tarball::is_tar;
pub use unpacking::check_links;
pub use verify::verifier;
pub use version::compare as compare_versions;

use error::io_error;
use index::{Entry, FORMAT, Index};
use pool::Pool;
use release::{ClearSigned, Release};
use sha2::{Digest, Sha256};
use solve::Universe;
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
    thread,
    time::{Duration, SystemTime},
};
use time::OffsetDateTime;
use tramplab_model::name::hex;
use verify::Verifier;

/// Bytes. Debian's have 200 KB.
const MOST_OF_A_RELEASE: u64 = 4 << 20;

/// A suite of which an index is kept.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    pub name: &'static str,
    /// Only packages whose names begin with it are kept.
    pub prefix: &'static str,
}

/// One version of one package, as the signed lists describe it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub architecture: String,
    pub sha256: String,
    /// Bytes needed to download and unpack it. 0 in a package that was read from the cache.
    #[serde(skip)]
    pub room: u64,
}

impl Package {
    fn exact(&self) -> String {
        format!("{}={}", self.name, self.version)
    }
}

/// The list of a suite that an index was made of.
struct State {
    /// The index's format, and the hash of `Packages`.
    list: String,
    /// That of the release, in seconds since 1970.
    date: i64,
}

/// Debian's packages for one architecture. One process uses the folder at a time.
#[derive(Debug)]
pub struct Archive {
    folder: PathBuf,
    /// Debian's name: `amd64`, `arm64`.
    architecture: String,
    suites: &'static [Suite],
    pool: Pool,
    verifier: Verifier,
    keyring: &'static [u8],
}

impl Archive {
    pub fn new(
        folder: PathBuf,
        architecture: &str,
        suites: &'static [Suite],
        settings: Settings,
    ) -> Result<Archive, ArchiveError> {
        let pool = Pool::new(&folder, settings, Vec::new())?;
        Ok(Archive {
            folder,
            architecture: architecture.to_owned(),
            suites,
            pool,
            verifier: Verifier::of_host()?,
            keyring: verify::DEBIAN,
        })
    }

    /// How long ago the indexes were refreshed.
    pub fn age(&self) -> Option<Duration> {
        let written = fs::metadata(self.folder.join(self.refreshed_by())).ok()?.modified().ok()?;
        // A clock that was set back must not keep indexes forever.
        Some(SystemTime::now().duration_since(written).unwrap_or(Duration::MAX))
    }

    /// Fetches what is new. Keeps the index of a suite that fails. Fails only if all suites do.
    pub fn refresh(&self, progress: &mut dyn FnMut(&str)) -> Result<(), ArchiveError> {
        let mut silent: Option<ArchiveError> = None;
        for mirror in self.pool.mirrors() {
            if let Some(error) = &silent {
                progress(&error.to_string());
            }
            progress(&format!("fetching Debian's package lists from {mirror}"));
            let done: Vec<_> = thread::scope(|scope| {
                let update = |suite| scope.spawn(move || self.update(mirror, suite));
                let threads: Vec<_> = self.suites.iter().map(update).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            let failed = self.suites.iter().zip(&done).filter_map(|(suite, done)| {
                done.as_ref().err().map(|error| format!("{}: {error}", suite.name))
            });
            let messages: Vec<String> = failed.collect();
            if messages.len() == self.suites.len() {
                silent = Some(ArchiveError::Silent { mirror: mirror.clone(), messages });
                continue;
            }
            for message in &messages {
                progress(&format!("failed to fetch Debian's {message}"));
            }
            let text = format!("{mirror}\n{}", messages.join("\n"));
            return self.write(&self.refreshed_by(), text.as_bytes());
        }
        Err(silent.expect("at least one mirror was tried"))
    }

    fn update(&self, mirror: &str, suite: &Suite) -> Result<(), ArchiveError> {
        let base = format!("{mirror}/dists/{}", suite.name);
        let url = format!("{base}/InRelease");
        let release = self.release(&url, suite)?;
        let kept = self.state(suite);
        let date = release.date.unix_timestamp();
        if kept.as_ref().is_some_and(|kept| date < kept.date) {
            return Err(ArchiveError::Replayed { url, date: release.date.to_string() });
        }
        let packages = release.packages;
        let current = format!("{FORMAT}{} {}", suite.prefix, packages.sha256);
        if kept.is_none_or(|kept| kept.list != current) || !self.index_of(suite).exists() {
            self.index(&base, suite, &packages, release.by_hash)?;
        }
        self.write(&format!("{}.state", suite.name), format!("{current} {date}\n").as_bytes())
    }

    fn state(&self, suite: &Suite) -> Option<State> {
        let text = fs::read_to_string(self.folder.join(format!("{}.state", suite.name))).ok()?;
        let (list, date) = text.trim_end().rsplit_once(' ')?;
        Some(State { list: list.to_owned(), date: date.parse().ok()? })
    }

    fn release(&self, url: &str, suite: &Suite) -> Result<Release, ArchiveError> {
        let url = || url.to_owned();
        let message = self.pool.client.bytes(&url(), MOST_OF_A_RELEASE)?;
        let message = str::from_utf8(&message).ok().and_then(ClearSigned::parse);
        let message = message.ok_or_else(|| ArchiveError::Unsigned { url: url() })?;
        self.verifier
            .verify(&message, self.keyring)
            .map_err(|why| ArchiveError::Signature { url: url(), why })?;
        let release = Release::parse(&message.text, &self.architecture)
            .map_err(|field| ArchiveError::Format { url: url(), field })?;
        if !release.names.iter().any(|name| name == suite.name) {
            return Err(ArchiveError::OtherSuite { url: url(), found: release.names.join(", ") });
        }
        match release.valid_until {
            Some(until)
                if until < OffsetDateTime::now_utc()
                    && self.pool.client.settings().checks_dates() =>
            {
                Err(ArchiveError::Expired { url: url(), until: until.to_string() })
            }
            _ => Ok(release),
        }
    }

    /// Makes the index of a suite.
    fn index(
        &self,
        base: &str,
        suite: &Suite,
        packages: &File,
        by_hash: bool,
    ) -> Result<(), ArchiveError> {
        // Two suites can have the same list.
        let file = self.pool.partial(packages).with_extension(suite.name);
        let plain = format!("{base}/{}", packages.path);
        let folder = plain.rsplit_once('/').map_or(base, |(folder, _)| folder);
        let hashed = format!("{folder}/by-hash/SHA256/{}", packages.sha256);
        let count = AtomicU64::new(0);
        let fetch = |url: &str| self.pool.client.file(url, packages, &file, &count);
        let fetched = if by_hash { fetch(&hashed) } else { fetch(&plain) };
        match fetched {
            // Some mirrors leave these names out.
            Err(ArchiveError::Status { .. }) if by_hash => fetch(&plain)?,
            fetched => fetched?,
        }
        let index = self.index_of(suite);
        let new = index.with_extension("new");
        let written = index::write(&file, suite.prefix, &new)
            .and_then(|()| fs::rename(&new, &index))
            .map_err(io_error("write", &index));
        let _ = fs::remove_file(&file);
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    /// All versions of the packages whose names fit.
    pub fn search(&self, fits: impl Fn(&str) -> bool) -> Result<Vec<Package>, ArchiveError> {
        let mut packages = Vec::new();
        for (_, index) in self.indexes()? {
            packages.extend(index.named(&fits).map(|entry| entry.package()));
        }
        Ok(distinct(packages))
    }

    /// The package and its dependencies, in the versions that an empty system would get.
    pub fn closure(&self, package: &str) -> Result<Vec<Package>, ArchiveError> {
        let indexes = self.indexes()?;
        let entries = indexes.iter().flat_map(|(_, index)| index.entries());
        let closure = Universe::new(entries).closure(package).map_err(|missing| {
            let all = format!("{package} with all its dependencies");
            self.not_found(&if missing == package { all } else { format!("{all} ({missing})") })
        })?;
        Ok(distinct(closure.iter().map(Entry::package).collect()))
    }

    /// Fetches packages into a folder and verifies them. Returns their files in the same order.
    pub fn download(
        &self,
        packages: &[Package],
        folder: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<PathBuf>, ArchiveError> {
        Ok(self.pool.download(&self.files(packages)?, folder, progress)?.0)
    }

    /// Names the packages by their hashes.
    pub fn pin(&self, packages: &[Package]) -> Result<Pin, ArchiveError> {
        let files = self.files(packages)?;
        let mut listed = Vec::new();
        for (suite, index) in self.indexes()? {
            let is_listed = |package: &Package| {
                index.named(|name| name == package.name).any(|entry| entry.sha256 == package.sha256)
            };
            let date = self.state(suite).map(|state| state.date);
            listed.extend(date.filter(|_| packages.iter().all(is_listed)));
        }
        let first = listed.into_iter().min();
        let first = first.ok_or_else(|| self.not_found("one suite with all packages"))?;
        Ok(Pin { snapshot: pin::time_after(first), files })
    }

    /// Where the packages are in the archive.
    fn files(&self, packages: &[Package]) -> Result<Vec<File>, ArchiveError> {
        let mut files = vec![None; packages.len()];
        for (_, index) in self.indexes()? {
            let is_wanted = |name: &str| packages.iter().any(|package| package.name == name);
            for entry in index.named(is_wanted) {
                for (file, package) in files.iter_mut().zip(packages) {
                    if entry.name == package.name && entry.sha256 == package.sha256 {
                        *file = Some(entry.file());
                    }
                }
            }
        }
        let found = files.into_iter().zip(packages);
        found.map(|(file, package)| file.ok_or_else(|| self.not_found(&package.exact()))).collect()
    }

    pub fn not_found(&self, wanted: &str) -> ArchiveError {
        ArchiveError::NotFound {
            wanted: wanted.to_owned(),
            suites: self.suites.iter().map(|suite| suite.name).collect(),
            messages: self.refreshed().into_iter().skip(1).collect(),
        }
    }

    /// The mirror of the indexes, and why suites were not refreshed.
    fn refreshed(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join(self.refreshed_by())).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn indexes(&self) -> Result<Vec<(&Suite, Index)>, ArchiveError> {
        let existing = self.suites.iter().filter(|suite| self.index_of(suite).exists());
        let read = |suite| {
            let path = self.index_of(suite);
            let index = Index::read(&path).map_err(|source| {
                // The next refresh makes it again, and is due now.
                for damaged in [&path, &self.folder.join(self.refreshed_by())] {
                    let _ = fs::remove_file(damaged);
                }
                ArchiveError::Index { path, source }
            });
            Ok((suite, index?))
        };
        existing.map(read).collect()
    }

    /// The file that a refresh of these suites writes.
    fn refreshed_by(&self) -> String {
        let names: Vec<&str> = self.suites.iter().map(|suite| suite.name).collect();
        format!("{}.refreshed", names.join("+"))
    }

    fn index_of(&self, suite: &Suite) -> PathBuf {
        self.folder.join(format!("{}.{FORMAT}.index", suite.name))
    }

    /// Replaces a file as a whole.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
        let path = self.folder.join(name);
        let new = self.folder.join(format!("{name}.new"));
        fs::write(&new, bytes)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(io_error("write", &path))
    }
}

/// Several suites can list the same version.
fn distinct(mut packages: Vec<Package>) -> Vec<Package> {
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    packages.dedup();
    packages
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(read) => hash.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
