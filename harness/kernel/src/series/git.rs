// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running the host's git so that nothing but its arguments decides what it does.

use std::{env, ffi::OsStr, path::Path, process::Command, time::Duration};
use tramplab_host::ChildError;

/// Far longer than the largest patch takes.
pub const LIMIT: Duration = Duration::from_secs(120);

/// `git apply` in a folder that is no repository for it. In one that belongs to another repository it would skip
/// every file without a word; in one of its own that repository's configuration would be heard.
pub fn apply(folder: &Path, strip: usize, patch: &OsStr) -> Command {
    let mut command = alone();
    command
        .env("GIT_DIR", "/dev/null")
        .current_dir(folder)
        .args(["apply", "--whitespace=nowarn", &format!("-p{strip}")])
        .arg(patch);
    command
}

/// git that hears neither the environment nor the user's configuration.
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

/// Whether git could not be run at all.
pub fn is_missing(error: &ChildError) -> bool {
    matches!(error, ChildError::Start { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}
