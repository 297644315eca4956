// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private copy of cargo-fuzz in a pinned version, built from crates.io, for `cargo xtask fuzz`.

use super::{
    cache::{Cache, CacheError},
    child::{self, ChildError},
    program::in_path,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const KIND: &str = "cargo-fuzz";
const PINNED: &str = "0.13.2";
/// It takes a minute on two cores.
const INSTALL_LIMIT: Duration = Duration::from_secs(20 * 60);

#[derive(Debug, thiserror::Error)]
pub enum FuzzerError {
    #[error("failed to find cargo-fuzz {PINNED} in the cache; run `cargo xtask fuzz --setup`")]
    NotFound,
    #[error("failed to find a C++ compiler for libFuzzer; run `apt install g++`")]
    NoCompiler,
    #[error("failed to install cargo-fuzz {PINNED} from crates.io: {0}")]
    Install(#[from] ChildError),
    #[error("failed to remove {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Finds the program. Fetches nothing.
pub fn find(cache: &Cache) -> Result<PathBuf, FuzzerError> {
    if in_path("c++").is_none() {
        return Err(FuzzerError::NoCompiler);
    }
    cache.get(KIND, PINNED).map(|entry| entry.join("bin/cargo-fuzz")).ok_or(FuzzerError::NotFound)
}

/// Finds the program, or builds it with `cargo`.
pub fn provision(cache: &Cache, cargo: &str, progress: &mut dyn FnMut(&str)) -> Result<PathBuf, FuzzerError> {
    cache.entry(KIND, PINNED, |folder| {
        progress(&format!("building cargo-fuzz {PINNED}"));
        install(cargo, folder)
    })?;
    find(cache)
}

fn install(cargo: &str, folder: &Path) -> Result<(), FuzzerError> {
    let build = folder.join("build");
    let mut install = Command::new(cargo);
    install.args([
        "install",
        "cargo-fuzz",
        "--version",
        &format!("={PINNED}"),
        "--locked",
        "--quiet",
        "--root",
    ]);
    install.arg(folder).arg("--target-dir").arg(&build);
    child::run(&mut install, INSTALL_LIMIT)?;
    fs::remove_dir_all(&build).map_err(|source| FuzzerError::Io { path: build, source })
}
