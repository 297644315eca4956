// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a work tree.

use super::{Borrowed, GitError, QUERY_LIMIT, Repository, error::io_error, users_settings};
use std::{fs, os::unix::fs::symlink, path::PathBuf};
use tramplab_host::child;

/// Files of an index that is split.
const SHARED_INDEX: &str = "sharedindex.";

/// All files but those that git ignores: by the work tree's rules, the repository's and the user's.
pub(crate) fn files(repository: &Repository) -> Result<Vec<PathBuf>, GitError> {
    let borrowed = Borrowed::whole(repository)?;
    let ours = &borrowed.folder;
    if let Some(rules) = repository.content(&repository.common.join("info/exclude"))? {
        let info = ours.join("info");
        fs::create_dir_all(&info)
            .and_then(|()| fs::write(info.join("exclude"), rules))
            .map_err(io_error("write", info))?;
    }
    for entry in fs::read_dir(&repository.own).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(SHARED_INDEX)
            && let Some(file) = repository.regular(entry.path())?
        {
            symlink(file, ours.join(entry.file_name())).map_err(io_error("make", ours))?;
        }
    }
    let mut command = borrowed.in_work_tree(&repository.folder);
    if let Some(index) = repository.regular(repository.own.join("index"))? {
        command.env("GIT_INDEX_FILE", index);
    }
    if let Some(rules) = users_settings("core.excludesFile")?.pop() {
        command.args(["-c", &format!("core.excludesFile={rules}")]);
    }
    command.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = child::run(&mut command, QUERY_LIMIT).map_err(borrowed.failed("read", None))?;
    let names = listed.stdout.split_terminator('\0');
    Ok(names.map(|name| name.trim_end_matches('/').into()).collect())
}
