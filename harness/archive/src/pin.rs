// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages that are named by their hashes. They need no list, no signature and no date, and stay
//! when Debian's suites have moved on.

use crate::{ArchiveError, Package, host::Settings, is_sha256, pool::Pool, release::File};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};
use time::{Duration, OffsetDateTime, macros::format_description};
use tramplab_model::name::hex;

/// Bytes: more than any package of a kernel has.
const MOST: u64 = 4 << 30;
/// Times its size.
const UNPACKED: u64 = 6;
/// Bytes. A small package may be packed better.
const LEAST: u64 = 256 << 20;

/// Packages of one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// A time at which Debian's snapshot archive has them all: `20261030T120000Z`.
    pub snapshot: String,
    pub files: Vec<File>,
}

impl Pin {
    pub fn packages(&self) -> impl Iterator<Item = Package> {
        self.files.iter().filter_map(package)
    }

    /// Equal for equal packages.
    pub fn digest(&self) -> String {
        let line = |file: &File| format!("{} {}\n", file.path, file.sha256);
        let mut lines: Vec<String> = self.files.iter().map(line).collect();
        lines.sort_unstable();
        hex(&Sha256::digest(lines.concat()))[..32].to_owned()
    }
}

/// A time at which the snapshot archive, which looks four times a day, has a release of this date,
/// and Debian has removed none of its packages.
pub(crate) fn time_after(date: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(date).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let format = format_description!("[year][month][day]T[hour]0000Z");
    (time + Duration::hours(12)).format(format).expect("a time of a release")
}

/// Bytes that a pinned package of this size may have, unpacked: a pin says nothing of it.
pub fn unpacked(size: u64) -> u64 {
    size.saturating_mul(UNPACKED).max(LEAST)
}

/// The package of a pinned file. None if the file's name or its hash is none of Debian's.
pub fn package(file: &File) -> Option<Package> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-._~/".contains(c);
    let is_inside = file.path.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    let (name, version, architecture) = {
        let mut parts = file.name().strip_suffix(".deb")?.split('_');
        let found = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some(found)?
    };
    let fits = file.path.starts_with("pool/")
        && is_inside
        && file.path.chars().all(is_plain)
        && is_sha256(&file.sha256)
        && (1..=MOST).contains(&file.size)
        && [name, version, architecture].iter().all(|part| !part.is_empty());
    fits.then(|| Package {
        name: name.to_owned(),
        // The names of files lack epochs, and escape nothing else that kernels have.
        version: version.to_owned(),
        architecture: architecture.to_owned(),
        sha256: file.sha256.clone(),
        room: file.size * UNPACKED,
    })
}

/// A pin's packages: from a mirror while it has them, then from the snapshot archive.
#[derive(Debug)]
pub struct Pinned {
    pin: Pin,
    pub(crate) pool: Pool,
    used_snapshot: AtomicBool,
}

impl Pinned {
    /// The folder keeps what is being fetched.
    pub fn new(folder: &Path, pin: Pin, settings: Settings) -> Result<Pinned, ArchiveError> {
        let snapshot = format!("{}/{}", settings.snapshot, pin.snapshot);
        let pool = Pool::new(folder, settings, vec![snapshot])?;
        Ok(Pinned { pin, pool, used_snapshot: AtomicBool::new(false) })
    }

    pub fn pin(&self) -> &Pin {
        &self.pin
    }

    /// True if no mirror gave a package that was fetched.
    pub fn used_snapshot(&self) -> bool {
        self.used_snapshot.load(Ordering::Relaxed)
    }

    /// Asks the mirrors and the snapshot archive. One mirror must have all packages; the mirrors'
    /// error is that of the first.
    pub fn availability(&self) -> [Result<(), ArchiveError>; 2] {
        let mut servers = self.pool.availability(&self.pin.files);
        let snapshot = servers.pop().expect("the last server");
        let first =
            |one: Result<_, _>, other: Result<_, _>| if other.is_ok() { other } else { one };
        let mirrors = servers.into_iter().reduce(first).expect("a mirror");
        [mirrors, snapshot]
    }

    pub fn not_found(&self, wanted: &str) -> ArchiveError {
        ArchiveError::NotPinned {
            wanted: wanted.to_owned(),
            snapshot: self.pin.snapshot.clone(),
            pinned: self.pin.packages().map(|package| package.exact()).collect(),
        }
    }

    /// Fetches packages into a folder and verifies them. Returns their files in the same order.
    pub fn download(
        &self,
        packages: &[Package],
        folder: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<PathBuf>, ArchiveError> {
        let file = |wanted: &Package| {
            let found = self.pin.files.iter().find(|file| file.sha256 == wanted.sha256);
            found.cloned().ok_or_else(|| self.not_found(&wanted.exact()))
        };
        let files = packages.iter().map(file).collect::<Result<Vec<_>, _>>()?;
        let (files, server) = self.pool.download(&files, folder, progress)?;
        if !self.pool.mirrors().iter().any(|mirror| mirror == server) {
            self.used_snapshot.store(true, Ordering::Relaxed);
            progress(&format!("no mirror gave it: it came from {server}"));
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_what_can_be_a_package_of_debian() {
        let sha256 = "0123456789abcdef".repeat(4);
        let good = "pool/main/l/linux/linux-image-7.3-cloud-amd64_7.3~rc7-1~exp1_amd64.deb";
        let file = |path: &str, size, sha256: &str| {
            package(&File { path: path.into(), size, sha256: sha256.into() })
        };
        let found = file(good, 7, &sha256).unwrap();
        assert_eq!(
            [found.name, found.version, found.architecture],
            ["linux-image-7.3-cloud-amd64", "7.3~rc7-1~exp1", "amd64"]
        );
        for (path, size, sha256) in [
            (good, 0, sha256.as_str()),
            (good, MOST + 1, &sha256),
            (good, 7, &sha256[1..]),
            (good, 7, &sha256.to_uppercase()),
            ("dists/a_1_all.deb", 7, &sha256),
            ("pool/../a_1_all.deb", 7, &sha256),
            ("pool//a_1_all.deb", 7, &sha256),
            ("pool/%2e%2e/a_1_all.deb", 7, &sha256),
            ("pool/a_1_all.deb?x", 7, &sha256),
            ("pool/a 1_1_all.deb", 7, &sha256),
            ("pool/a_1_all.tar", 7, &sha256),
            ("pool/a_1.deb", 7, &sha256),
            ("pool/a_1_all_b.deb", 7, &sha256),
            ("pool/_1_all.deb", 7, &sha256),
        ] {
            assert_eq!(file(path, size, sha256), None, "{path} {size} {sha256}");
        }
    }
}
