// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bare repository of ours that reads another one's objects and references.

use super::{GitError, QUERY_LIMIT, Repository, command, error::io_error};
use std::{
    fs, io,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;
use tramplab_host::{ChildError, child};

/// References beside `refs/`.
const PSEUDO_REFERENCES: [&str; 5] =
    ["HEAD", "FETCH_HEAD", "ORIG_HEAD", "MERGE_HEAD", "BISECT_HEAD"];

/// git's own name of the tree without files, in each format of objects.
const EMPTY_TREES: [&str; 2] = [
    "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
];

#[derive(Debug)]
pub struct Borrowed {
    pub folder: PathBuf,
    /// For messages.
    what: String,
    /// The repository, if it is a partial clone.
    partial: Option<PathBuf>,
    /// The settings that resolve `@{upstream}`.
    tracking: Vec<(String, String)>,
    _temporary: Option<TempDir>,
}

impl Borrowed {
    /// A repository of its own, in `folder`, for objects of this format.
    pub fn nothing(folder: &Path, what: String, object_format: &str) -> Result<Borrowed, GitError> {
        Borrowed::init(folder, what, object_format, "files")
    }

    /// Reads the objects. Goes on with an earlier one in `folder`.
    pub fn objects(from: &Repository, folder: &Path) -> Result<Borrowed, GitError> {
        Borrowed::with_objects(from, folder, "files")
    }

    /// Reads objects and references; in a temporary folder, for questions.
    pub fn whole(from: &Repository) -> Result<Borrowed, GitError> {
        let prefix = "tramplab-git-";
        let temporary = tempfile::Builder::new().prefix(prefix).tempdir();
        let temporary = temporary.map_err(io_error("make a folder in", std::env::temp_dir()))?;
        let folder = temporary.path();
        let borrowed = Borrowed::with_objects(from, folder, &from.ref_storage)?;
        if from.ref_storage != "files" {
            if from.own != from.common {
                return Err(GitError::Unfit {
                    folder: from.folder.clone(),
                    path: from.own.clone(),
                    why: "is a worktree of a repository with reftable; name the repository"
                        .to_owned(),
                });
            }
            replace(&from.common.join("reftable"), &folder.join("reftable"))?;
        } else {
            for name in PSEUDO_REFERENCES {
                if let Some(bytes) = from.content(&from.own.join(name))? {
                    write(&folder.join(name), &bytes)?;
                }
            }
            replace(&from.common.join("refs"), &folder.join("refs"))?;
            if let Some(packed) = from.regular(from.common.join("packed-refs"))? {
                replace(&packed, &folder.join("packed-refs"))?;
            }
            let logs = folder.join("logs");
            if from.own == from.common {
                replace(&from.common.join("logs"), &logs)?;
            } else {
                fs::create_dir_all(&logs).map_err(io_error("make", &logs))?;
                replace(&from.common.join("logs/refs"), &logs.join("refs"))?;
                // git takes no link for a log. Only `HEAD@{1}` needs it.
                if let Ok(Some(bytes)) = from.content(&from.own.join("logs/HEAD")) {
                    write(&logs.join("HEAD"), &bytes)?;
                }
            }
        }
        let tracking = from.tracking.clone();
        Ok(Borrowed { tracking, _temporary: Some(temporary), ..borrowed })
    }

    fn with_objects(
        from: &Repository,
        folder: &Path,
        ref_storage: &str,
    ) -> Result<Borrowed, GitError> {
        let what = from.folder.display().to_string();
        let borrowed = Borrowed::init(folder, what, &from.object_format, ref_storage)?;
        let line = [from.objects.as_os_str().as_bytes(), b"\n"].concat();
        write(&folder.join("objects/info/alternates"), &line)?;
        // Where the history of a shallow clone ends.
        let shallow = folder.join("shallow");
        match from.content(&from.common.join("shallow"))? {
            Some(bytes) => write(&shallow, &bytes)?,
            None => {
                absent_is_fine(fs::remove_file(&shallow)).map_err(io_error("remove", shallow))?
            }
        }
        let partial = from.is_partial.then(|| from.folder.clone());
        Ok(Borrowed { partial, ..borrowed })
    }

    fn init(
        folder: &Path,
        what: String,
        object_format: &str,
        ref_storage: &str,
    ) -> Result<Borrowed, GitError> {
        let (partial, tracking) = (None, Vec::new());
        let borrowed =
            Borrowed { folder: folder.to_owned(), what, partial, tracking, _temporary: None };
        fs::create_dir_all(folder).map_err(io_error("make", folder))?;
        let mut init = borrowed.command();
        init.args(["init", "--bare", "--quiet", "--template="]);
        init.arg(format!("--object-format={object_format}"));
        if ref_storage != "files" {
            // git before 2.45 knows neither the option nor such repositories.
            init.arg(format!("--ref-format={ref_storage}"));
        }
        child::run(&mut init, QUERY_LIMIT).map_err(borrowed.failed("borrow from", None))?;
        let info = folder.join("objects/info");
        fs::create_dir_all(&info).map_err(io_error("make", info))?;
        Ok(borrowed)
    }

    pub fn command(&self) -> Command {
        let mut command = command();
        command.env("GIT_DIR", &self.folder).current_dir(&self.folder);
        command
    }

    /// A command that knows the upstream of each branch.
    pub(crate) fn tracking(&self) -> Command {
        let mut command = self.command();
        for (number, (name, value)) in self.tracking.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{number}"), name);
            command.env(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        command.env("GIT_CONFIG_COUNT", self.tracking.len().to_string());
        command
    }

    /// A command on the files in `tree`.
    pub(crate) fn in_work_tree(&self, tree: &Path) -> Command {
        let mut command = self.command();
        command.env("GIT_WORK_TREE", tree).current_dir(tree);
        command
    }

    /// The error of a command on `commit`.
    pub(crate) fn failed(
        &self,
        action: &'static str,
        commit: Option<&str>,
    ) -> impl FnOnce(ChildError) -> GitError {
        move |source| match (&self.partial, commit) {
            (Some(folder), Some(commit)) if matches!(source, ChildError::Failed { .. }) => {
                let [sha1, sha256] = EMPTY_TREES;
                let empty = if commit.len() == sha1.len() { sha1 } else { sha256 }.to_owned();
                GitError::Partial {
                    action,
                    folder: folder.clone(),
                    empty,
                    commit: commit.to_owned(),
                }
            }
            _ => {
                let repository = self.what.clone();
                GitError::Git { action, repository, source: Box::new(source) }
            }
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), GitError> {
    fs::write(path, bytes).map_err(io_error("write", path))
}

/// Puts a link to `target` in place of a file or folder of ours.
fn replace(target: &Path, link: &Path) -> Result<(), GitError> {
    let removed = match fs::symlink_metadata(link) {
        Ok(data) if data.is_dir() => fs::remove_dir_all(link),
        _ => absent_is_fine(fs::remove_file(link)),
    };
    removed.and_then(|()| symlink(target, link)).map_err(io_error("make", link))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
