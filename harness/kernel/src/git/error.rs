// SPDX-License-Identifier: MIT OR Apache-2.0

use std::{io, path::PathBuf};
use tramplab_host::ChildError;

#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error(
        "failed to find {folder}: no such folder; expected a git repository or a URL such as \
         https://…"
    )]
    Absent { folder: PathBuf },
    #[error("{folder} is not a git repository; expected a work tree or a bare repository")]
    NotOne { folder: PathBuf },
    /// As git decides (`safe.directory` in git-config(1)).
    #[error(
        "{path} belongs to user {owner}, so git would not read it either; to trust it: git config \
         --global --add safe.directory '{path}'"
    )]
    Owner { path: PathBuf, owner: u32 },
    #[error("failed to use the repository {folder}: {path} {why}")]
    Unfit { folder: PathBuf, path: PathBuf, why: String },
    #[error("failed to {action} {repository}: {source}")]
    Git { action: &'static str, repository: String, source: Box<ChildError> },
    #[error(
        "failed to {action} {folder}: it is a partial clone, and only git fetches from its \
         remotes; to fetch all files of the commit: git -C {folder} diff --shortstat {empty} \
         {commit}"
    )]
    Partial { action: &'static str, folder: PathBuf, empty: String, commit: String },
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl GitError {
    /// True if the user can fix it by asking for something else.
    pub fn is_usage(&self) -> bool {
        match self {
            GitError::Absent { .. }
            | GitError::NotOne { .. }
            | GitError::Owner { .. }
            | GitError::Unfit { .. }
            | GitError::Partial { .. } => true,
            // git started and rejected its input.
            GitError::Git { source, .. } => matches!(**source, ChildError::Failed { .. }),
            GitError::Io { .. } => false,
        }
    }

    /// True if git is not installed.
    pub fn is_missing(&self) -> bool {
        matches!(self, GitError::Git { source, .. } if is_missing(source))
    }
}

pub(super) fn io_error(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> GitError {
    move |source| GitError::Io { action, path: path.into(), source }
}

/// True if git is not installed.
pub(crate) fn is_missing(error: &ChildError) -> bool {
    matches!(error, ChildError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
