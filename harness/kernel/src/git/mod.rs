// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs git; every command is made here.
//!
//! A repository may be a stranger's, and its configuration names programs, hosts and paths. So git
//! never runs in it. [`Repository`] finds its files without git. [`Borrowed`] is a repository of
//! ours that reads its objects and references; git reads only that one's configuration.

mod borrowed;
mod error;
mod repository;
#[cfg(test)]
pub(crate) mod tests;
mod work_tree;

pub use borrowed::Borrowed;
pub use error::GitError;
pub(crate) use error::is_missing;
pub use repository::{Repository, require_owner};
pub(crate) use work_tree::files;

use std::{
    env,
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use tramplab_host::{
    ChildError,
    child::{self, Output},
};

pub(crate) const QUERY_LIMIT: Duration = Duration::from_secs(2 * 60);

/// Where git's programs are. A git that was moved needs it.
const PROGRAMS: &str = "GIT_EXEC_PATH";

/// git sets these when it runs tramplab (a hook, `git rebase --exec`). They name another
/// repository.
const GITS_OWN: [&str; 15] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
    "GIT_OBJECT_DIRECTORY",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_REPLACE_REF_BASE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_COMMON_DIR",
];

/// git in no repository. It reads no configuration, runs no other program and fetches nothing.
pub fn command() -> Command {
    let mut command = Command::new("git");
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") && name != PROGRAMS {
            command.env_remove(name);
        }
    }
    for (name, value) in [
        ("GIT_DIR", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_ALLOW_PROTOCOL", ""),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("LC_ALL", "C"),
    ] {
        command.env(name, value);
    }
    for setting in [
        "core.attributesFile=/dev/null",
        "core.hooksPath=/dev/null",
        "core.fsmonitor=false",
        "gc.auto=0",
        "maintenance.auto=false",
    ] {
        command.args(["-c", setting]);
    }
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// `git apply` in a folder that git does not see as a repository. Inside another repository it
/// would silently skip every file.
pub(crate) fn apply(folder: &Path, strip: usize, patch: &OsStr) -> Command {
    let mut command = command();
    command
        .current_dir(folder)
        .args(["apply", "--whitespace=nowarn", &format!("-p{strip}")])
        .arg(patch);
    command
}

/// git that fetches from a URL which the user named. The user's own configuration holds (proxies,
/// credentials, `insteadOf`), in the bare repository `into` of ours, or in none.
pub(crate) fn fetching(into: Option<&Path>) -> Command {
    let mut command = Command::new("git");
    for name in GITS_OWN {
        command.env_remove(name);
    }
    command
        .env("GIT_DIR", into.unwrap_or(Path::new("/dev/null")))
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_ALLOW_PROTOCOL", "https:http:git:ssh:file")
        // A repository on this machine may be a partial clone, with remotes of its own.
        .env("GIT_NO_LAZY_FETCH", "1");
    for setting in ["core.hooksPath=/dev/null", "gc.auto=0", "maintenance.auto=false"] {
        command.args(["-c", setting]);
    }
    command.current_dir("/");
    command
}

/// Values of the user's own configuration.
fn users_settings(name: &str) -> Result<Vec<String>, GitError> {
    let mut command = fetching(None);
    command.args(["config", "--null", "--type=path", "--get-all", name]);
    settings(&mut command, "the user's configuration")
}

/// What `git config --null` prints.
fn settings(command: &mut Command, place: &str) -> Result<Vec<String>, GitError> {
    let failed = |source| GitError::Git {
        action: "read",
        repository: place.to_owned(),
        source: Box::new(source),
    };
    let (status, Output { stdout, stderr, .. }) =
        child::finish(command, QUERY_LIMIT).map_err(failed)?;
    // Exit code 1: there are none.
    if !status.success() && status.code() != Some(1) {
        return Err(failed(ChildError::Failed {
            command: "git config".to_owned(),
            status,
            stderr,
        }));
    }
    Ok(stdout.split_terminator('\0').map(str::to_owned).collect())
}
