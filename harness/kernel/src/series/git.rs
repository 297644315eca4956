// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the host's git so that only its arguments decide what it does.

use std::{env, ffi::OsStr, io, path::Path, process::Command, time::Duration};
use tramplab_host::ChildError;

/// Far longer than the largest patch needs.
pub const LIMIT: Duration = Duration::from_secs(120);

/// `git apply` in a folder that git does not see as a repository. Inside another repository it
/// would silently skip every file. In a repository of its own it would read that configuration.
pub fn apply(folder: &Path, strip: usize, patch: &OsStr) -> Command {
    let mut command = alone();
    command
        .env("GIT_DIR", "/dev/null")
        .current_dir(folder)
        .args(["apply", "--whitespace=nowarn", &format!("-p{strip}")])
        .arg(patch);
    command
}

/// git that ignores the environment and the user's configuration.
pub fn alone() -> Command {
    let mut command = Command::new("git");
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command
}

/// True if git is not installed.
pub fn is_missing(error: &ChildError) -> bool {
    matches!(error, ChildError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
