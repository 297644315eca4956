// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a repository's files as gitrepository-layout(5) describes them, without running git there.

use super::{GitError, command, error::io_error, settings, users_settings};
use nix::unistd::geteuid;
use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};
use tramplab_host::regular;

/// Files that name other files are short.
const MOST_BYTES: u64 = 1 << 20;

/// Alternates of alternates; git follows no more.
const MOST_ALTERNATES: usize = 5;

/// A repository on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    pub folder: PathBuf,
    /// The git folder that all its worktrees share.
    pub common: PathBuf,
    /// The git folder of this worktree: `HEAD` and the index.
    pub own: PathBuf,
    pub(super) objects: PathBuf,
    /// `sha1` or `sha256`.
    pub(super) object_format: String,
    /// `files` or `reftable`.
    pub(super) ref_storage: String,
    pub(super) is_partial: bool,
    /// Names and values that tell what `@{upstream}` is.
    pub(super) tracking: Vec<(String, String)>,
}

impl Repository {
    /// Opens the repository in exactly this folder, not in one around it.
    pub fn open(folder: &Path) -> Result<Repository, GitError> {
        let folder =
            fs::canonicalize(folder).map_err(|_| GitError::Absent { folder: folder.to_owned() })?;
        let files = Files { folder: &folder };
        let link = folder.join(".git");
        let own = match fs::metadata(&link) {
            Ok(data) if data.is_file() => files.named_by(&link, b"gitdir: ")?,
            Ok(_) => files.real(&link)?,
            Err(_) => folder.clone(),
        };
        let none = || GitError::NotOne { folder: folder.clone() };
        if fs::symlink_metadata(own.join("HEAD")).is_err() {
            return Err(none());
        }
        let link_to_common = own.join("commondir");
        let common = match fs::symlink_metadata(&link_to_common) {
            Ok(_) => files.named_by(&link_to_common, b"")?,
            Err(_) => own.clone(),
        };
        if !common.join("objects").is_dir() || !common.join("refs").is_dir() {
            return Err(none());
        }
        let objects = files.real(&common.join("objects"))?;
        let safe = Safe::new();
        for path in [&folder, &own, &common] {
            safe.require(path, &folder)?;
        }
        if link.exists() {
            safe.require(&link, &folder)?;
        }
        files.check_alternates(&objects, &safe, MOST_ALTERNATES)?;
        let config = files.config(&common.join("config"))?;
        let last = |wanted: &str, default: &str| {
            let found = config.iter().rfind(|(name, _)| name == wanted);
            found.map_or(default, |(_, value)| value).to_ascii_lowercase()
        };
        Ok(Repository {
            object_format: last("extensions.objectformat", "sha1"),
            ref_storage: last("extensions.refstorage", "files"),
            is_partial: config.iter().any(|(name, _)| {
                name == "extensions.partialclone"
                    || name.starts_with("remote.") && name.ends_with(".promisor")
            }),
            tracking: config.iter().filter(|(name, _)| is_tracking(name)).cloned().collect(),
            common,
            own,
            objects,
            folder,
        })
    }

    /// The path of a file of this repository, which may be absent. A link, pipe or device is an
    /// error.
    pub(crate) fn regular(&self, path: PathBuf) -> Result<Option<PathBuf>, GitError> {
        match fs::symlink_metadata(&path) {
            Ok(data) if data.is_file() => Ok(Some(path)),
            Ok(_) => Err(Files { folder: &self.folder }.unfit(&path, "is no regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("read", path)(error)),
        }
    }

    /// The content of such a file, if it is short.
    pub(super) fn content(&self, path: &Path) -> Result<Option<Vec<u8>>, GitError> {
        Files { folder: &self.folder }.read(path)
    }
}

fn is_tracking(name: &str) -> bool {
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    name.starts_with("branch.") && ends(&[".remote", ".merge"])
        || name.starts_with("remote.") && ends(&[".fetch"])
}

/// Reads files of a repository as data.
struct Files<'a> {
    folder: &'a Path,
}

impl Files<'_> {
    fn unfit(&self, path: &Path, why: impl Into<String>) -> GitError {
        GitError::Unfit { folder: self.folder.to_owned(), path: path.to_owned(), why: why.into() }
    }

    fn real(&self, path: &Path) -> Result<PathBuf, GitError> {
        fs::canonicalize(path).map_err(|error| self.unfit(path, format!("is unusable: {error}")))
    }

    /// Returns None if there is no such file. Neither a pipe nor a device is waited for.
    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, GitError> {
        match regular::read(path, MOST_BYTES) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if regular::is_refused(&error) => Err(self.unfit(path, error.to_string())),
            Err(error) => Err(io_error("read", path)(error)),
        }
    }

    /// The folder that a file names, as `.git` of a worktree does.
    fn named_by(&self, file: &Path, before: &[u8]) -> Result<PathBuf, GitError> {
        let text = self.read(file)?.unwrap_or_default();
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        let Some(path) = line.strip_prefix(before).filter(|path| !path.is_empty()) else {
            let expected = String::from_utf8_lossy(before);
            return Err(self.unfit(file, format!("expected `{expected}FOLDER`")));
        };
        let base = file.parent().expect("a file has a folder");
        self.real(&base.join(OsStr::from_bytes(path)))
    }

    fn config(&self, path: &Path) -> Result<Vec<(String, String)>, GitError> {
        // git must not wait for a pipe.
        if self.read(path)?.is_none() {
            return Ok(Vec::new());
        }
        let mut reading = command();
        reading.args(["config", "--null", "--no-includes", "--list", "--file"]).arg(path);
        let entries = settings(&mut reading, &path.display().to_string())?;
        Ok(entries
            .iter()
            .map(|entry| entry.split_once('\n').unwrap_or((entry, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }

    /// Checks who owns the folders of objects that this one borrows from.
    fn check_alternates(&self, objects: &Path, safe: &Safe, depth: usize) -> Result<(), GitError> {
        let file = objects.join("info/alternates");
        let Some(text) = self.read(&file)? else { return Ok(()) };
        if depth == 0 {
            return Err(self.unfit(&file, "continues a chain that is too long"));
        }
        for line in text.split(|byte| *byte == b'\n') {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let other = self.real(&objects.join(OsStr::from_bytes(line)))?;
            safe.require(&other, &other)?;
            self.check_alternates(&other, safe, depth - 1)?;
        }
        Ok(())
    }
}

/// The owners that git trusts: an explicit GIT_DIR skips its own check (`ensure_valid_ownership` in
/// git's setup.c).
struct Safe {
    owners: Vec<u32>,
}

impl Safe {
    fn new() -> Safe {
        let mut owners = vec![geteuid().as_raw()];
        let sudo = env::var("SUDO_UID").ok().and_then(|user| user.parse::<u32>().ok());
        owners.extend(sudo.filter(|_| geteuid().is_root()));
        Safe { owners }
    }

    /// Fails if another user owns `path`, and `safe.directory` does not name `folder`.
    fn require(&self, path: &Path, folder: &Path) -> Result<(), GitError> {
        let owner = fs::symlink_metadata(path).map_err(io_error("read", path))?.uid();
        if self.owners.contains(&owner) || is_listed(folder, &users_settings("safe.directory")?) {
            return Ok(());
        }
        Err(GitError::Owner { path: folder.to_owned(), owner })
    }
}

/// Fails if git would not read files in `folder`, as another user owns it or `file`.
pub fn require_owner(folder: &Path, file: &Path) -> Result<(), GitError> {
    let safe = Safe::new();
    safe.require(folder, folder)?;
    safe.require(file, folder)
}

/// `safe.directory`: paths, `PATH/*` for all below it, `*` for all. An empty one forgets those
/// before it.
fn is_listed(folder: &Path, list: &[String]) -> bool {
    let after = list.iter().rposition(String::is_empty).map_or(0, |last| last + 1);
    list[after..].iter().any(|entry| match entry.strip_suffix("/*") {
        _ if entry == "*" => true,
        Some(above) => folder != Path::new(above) && folder.starts_with(above),
        None => fs::canonicalize(entry).is_ok_and(|path| path == folder),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusts_the_folders_of_the_list() {
        let folder = fs::canonicalize("/usr/bin").unwrap();
        for (list, expected) in [
            (&[][..], false),
            (&["/usr/bin"], true),
            (&["/usr/bin/"], true),
            (&["/usr"], false),
            (&["/usr/*"], true),
            (&["/usr/bin/*"], false),
            (&["/us/*", "/usr/b*"], false),
            (&["*"], true),
            (&["*", ""], false),
            (&["", "/usr/bin"], true),
        ] {
            let list: Vec<String> = list.iter().map(|entry| entry.to_string()).collect();
            assert_eq!(is_listed(&folder, &list), expected, "{list:?}");
        }
    }
}
