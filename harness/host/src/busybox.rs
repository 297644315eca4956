// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's static busybox, for the root of `cargo xtask shell`'s guests.

use super::{
    cache::Cache,
    debian::Debian,
    private::{PrivateError, Recipe, SUITE},
};
use std::path::{Path, PathBuf};
use tramplab_model::run::Arch;

const PACKAGE: &str = "busybox-static";
/// `/bin` is a link in newer packages.
const PLACES: [&str; 2] = ["usr/bin/busybox", "bin/busybox"];

/// The program for guests of an architecture. Fetches it once.
pub fn provision(
    cache: &Cache,
    arch: Arch,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, PrivateError> {
    let recipe = Recipe {
        kind: "busybox",
        name: arch.name(),
        package: PACKAGE,
        suite: SUITE,
        wrapper: None,
    };
    let entry = match recipe.newest(cache) {
        Some(entry) => entry,
        None => {
            let debian = Debian::of_suite(cache, arch.platform().debian, SUITE, progress)?;
            let plan = || {
                let mut packages = debian.closure(PACKAGE)?;
                // A static program needs no other package.
                packages.retain(|package| package.name == PACKAGE);
                Ok(vec![packages])
            };
            let check = |folder: &Path| program(folder).map(drop);
            recipe.fetch_planned(cache, &[&debian], progress, &check, &plan)?
        }
    };
    program(&entry).map_err(|why| PrivateError::Broken { package: PACKAGE, why })
}

fn program(entry: &Path) -> Result<PathBuf, String> {
    let found = PLACES.map(|place| entry.join(place)).into_iter().find(|path| path.is_file());
    found.ok_or_else(|| format!("{} has none of {}", entry.display(), PLACES.join(", ")))
}
