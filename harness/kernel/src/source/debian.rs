// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's `linux-source-*`: one package with one tarball, Debian's patches applied.

use super::{KernelError, SourceError, io_error};
use crate::{
    manifest::{NEWEST_SOURCE, is_source_package},
    registry::{self, Question, newest},
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::{
    cache::Cache,
    debian::{Debian, Package, Pin},
};

const KIND: &str = "kernel-source-debian";
/// The package is architecture-independent, so any architecture's list has it.
pub const ARCHITECTURE: &str = "amd64";
const TARBALL: &str = "linux-source.tar";

/// Finds the package in the pin; else in the registry, or in an answer of the last day.
pub fn resolve(
    name: &str,
    version: Option<&str>,
    pin: Option<&Pin>,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<Package, KernelError> {
    if let Some(pin) = pin {
        let found = chosen(name, version, pin.packages());
        return Ok(found.expect("checked when the manifest was read"));
    }
    let here = |package: &Package| cache.reuses().then(|| package.clone());
    let described = |package: &Package| key(package);
    question(name, version).ask(cache, progress, here, described, |progress| {
        registry::search(cache, ARCHITECTURE, None, progress, |debian, _| {
            let package = choose(name, version, debian)?;
            Ok((package.clone(), package))
        })
    })
}

fn question(name: &str, version: Option<&str>) -> Question {
    let text = version.unwrap_or("newest").replace(['/', ':'], "_");
    Question { file: format!("{KIND}-answers/{name}={text}.json"), is_pinned: version.is_some() }
}

pub fn choose(name: &str, version: Option<&str>, debian: &Debian) -> Result<Package, KernelError> {
    let packages = debian.search(|found| fits(name, found))?;
    let described = match version {
        Some(version) => format!("version {version} of the package {name}"),
        None => format!("the package {name}"),
    };
    chosen(name, version, packages.into_iter()).ok_or_else(|| debian.not_found(&described).into())
}

/// The newest fitting one of these packages.
pub fn chosen(
    name: &str,
    version: Option<&str>,
    packages: impl Iterator<Item = Package>,
) -> Option<Package> {
    let is_wanted = |package: &Package| {
        fits(name, &package.name) && version.is_none_or(|version| package.version == version)
    };
    newest(packages.filter(is_wanted), |package| package)
}

/// True for the package of that name. [`NEWEST_SOURCE`] holds no sources itself.
fn fits(name: &str, package: &str) -> bool {
    match name {
        NEWEST_SOURCE => package != name && is_source_package(package),
        _ => package == name,
    }
}

/// Returns the package's tarball in the cache. Fetches it first if needed.
pub fn tarball(
    package: &Package,
    pin: Option<&Pin>,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, KernelError> {
    let entry = cache.entry(KIND, &key_of(package, pin), |folder| {
        registry::search(cache, ARCHITECTURE, pin, progress, |debian, progress| {
            progress(&format!("fetching {}", key(package)));
            fill(package, debian, folder, progress)
        })
    })?;
    Ok(entry.join(TARBALL))
}

pub fn is_cached(package: &Package, pin: Option<&Pin>, cache: &Cache) -> bool {
    cache.get(KIND, &key_of(package, pin)).is_some()
}

/// A manifest may be a stranger's: its pin does not choose what Debian's name stands for.
fn key_of(package: &Package, pin: Option<&Pin>) -> String {
    key(package) + &pin.map_or_else(String::new, |pin| format!("+{}", pin.digest()))
}

fn fill(
    package: &Package,
    debian: &Debian,
    folder: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), KernelError> {
    let unpacked = folder.join("unpacked");
    debian.unpack(std::slice::from_ref(package), &unpacked, &|_, _| true, progress)?;
    let sources = unpacked.join("usr/src");
    let entries = fs::read_dir(&sources).map_err(io_error("read", &sources))?;
    let prefix = format!("{}.tar.", package.name);
    let is_tarball = |entry: &fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))
            && entry.file_type().is_ok_and(|kind| kind.is_file())
    };
    let found = entries.flatten().find(is_tarball);
    let found = found.ok_or_else(|| SourceError::Tarball {
        path: package.name.clone().into(),
        why: format!("the package holds no usr/src/{prefix}*"),
    })?;
    fs::rename(found.path(), folder.join(TARBALL)).map_err(io_error("move", &found.path()))?;
    fs::remove_dir_all(&unpacked).map_err(io_error("remove", &unpacked))
}

fn key(package: &Package) -> String {
    format!("{}={}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_host::debian::File;

    #[test]
    fn picks_newest_by_debians_version_order() {
        let package = |version: &str| package("linux-source-6.12", version);
        let versions = ["6.12.9-1", "6.12.107-1", "6.12.107-1~bpo12+1", "6.12~rc6-1~exp1"];
        let found = newest(versions.into_iter().map(package), |package| package).unwrap();
        assert_eq!(found.version, "6.12.107-1");
        assert_eq!(newest(std::iter::empty(), |package| package), None);
    }

    /// An excerpt of the registry: the meta package, and a release candidate.
    #[test]
    fn newest_sources_are_those_of_the_newest_series() {
        let packages = [
            ("linux-source", "7.3~rc7-1~exp1"),
            ("linux-source-6.12", "6.12.117-1"),
            ("linux-source-7.3", "7.3~rc7-1~exp1"),
            ("linux-source-7.2", "7.2.13-1"),
            ("linux-source-rt", "9-1"),
        ];
        for (wanted, found) in [
            (NEWEST_SOURCE, "linux-source-7.3"),
            ("linux-source-7.2", "linux-source-7.2"),
            ("linux-source-7", ""),
        ] {
            let packages = packages.iter().map(|(name, version)| package(name, version));
            let fitting = packages.filter(|package| fits(wanted, &package.name));
            let name = newest(fitting, |package| package).map(|package| package.name);
            assert_eq!(name.unwrap_or_default(), found, "{wanted}");
        }
    }

    #[test]
    fn a_pin_of_other_contents_is_kept_elsewhere() {
        let pin = |digit: &str| {
            let path = "pool/main/l/linux/linux-source-7.2_7.2.13-1_all.deb".into();
            let files = vec![File { path, size: 7, sha256: digit.repeat(64) }];
            Pin { snapshot: "20261030T120000Z".into(), files }
        };
        let found = chosen("linux-source-7.2", None, pin("1").packages()).unwrap();
        assert_eq!((found.version.as_str(), &found.sha256), ("7.2.13-1", &"1".repeat(64)));
        assert_eq!(chosen("linux-source-7.1", None, pin("1").packages()), None);
        assert_eq!(chosen("linux-source-7.2", Some("7.2.12-1"), pin("1").packages()), None);
        let keys = [None, Some(pin("1")), Some(pin("2"))].map(|pin| key_of(&found, pin.as_ref()));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[2] != keys[0], "{keys:?}");
        assert_eq!(keys[1], key_of(&found, Some(&pin("1"))));
    }

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            architecture: "all".into(),
            sha256: "0".repeat(64),
            room: 0,
        }
    }
}
