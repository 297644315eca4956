// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's static busybox, for the root of guests to look around in.

use super::{
    apt::{Apt, AptError, debian_architecture},
    cache::{Cache, CacheError},
    private::{self, PrivateError, SUITE},
};
use std::path::PathBuf;
use tramplab_model::run::Arch;

const KIND: &str = "busybox";
const PACKAGE: &str = "busybox-static";
/// `/bin` is a link in newer packages.
const PLACES: [&str; 2] = ["usr/bin/busybox", "bin/busybox"];

#[derive(Debug, thiserror::Error)]
pub enum BusyboxError {
    #[error("failed to find busybox in Debian's package {PACKAGE}: expected one of {}", PLACES.join(", "))]
    Layout,
    #[error(transparent)]
    Private(#[from] PrivateError),
    #[error(transparent)]
    Apt(#[from] AptError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl BusyboxError {
    fn apt(&self) -> Option<&AptError> {
        match self {
            BusyboxError::Apt(error) => Some(error),
            BusyboxError::Private(error) => error.apt(),
            _ => None,
        }
    }
}

/// For guests of an architecture; fetched once.
pub fn provision(cache: &Cache, arch: Arch, progress: &mut dyn FnMut(&str)) -> Result<PathBuf, BusyboxError> {
    let prefix = format!("{arch}=");
    if let Some(entry) = private::newest(cache, KIND, &prefix) {
        return program(entry);
    }
    let apt = Apt::open(cache, debian_architecture(arch), progress)?;
    apt.attempt(progress, BusyboxError::apt, |progress| {
        let mut packages = apt.closure(SUITE, PACKAGE)?;
        // Static: it needs none of the others.
        packages.retain(|package| package.name == PACKAGE);
        let Some(package) = packages.first() else { return Err(apt.not_found(PACKAGE).into()) };
        let key = format!("{prefix}{}", package.version);
        let entry = cache.entry(KIND, &key, |folder| {
            progress(&format!("fetching {PACKAGE} {}", package.version));
            private::unpack(&apt, &packages, folder)?;
            program(folder.to_owned()).map(drop)
        })?;
        program(entry)
    })
}

fn program(entry: PathBuf) -> Result<PathBuf, BusyboxError> {
    PLACES.map(|place| entry.join(place)).into_iter().find(|path| path.is_file()).ok_or(BusyboxError::Layout)
}
