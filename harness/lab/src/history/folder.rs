// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of a history's site: written beside, then swapped, so that no reader sees half of it.

use crate::error::{Context, Error, Result};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Marks a folder as a site that tramplab may replace. Not hidden: artifacts leave hidden files out.
const MARKER: &str = "tramplab-site.json";

/// A folder that takes a site.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Refuses a folder with anything but a site. The folder need not exist.
    pub fn new(path: &Path) -> Result<Folder> {
        if !path.exists() {
            let whole = std::path::absolute(path).context("failed to find the current folder")?;
            return Ok(Folder(whole));
        }
        let refuse = |what: &str| {
            Err(Error::usage(format!(
                "{} {what}: name a new or empty folder, or one that --site made",
                path.display()
            )))
        };
        if !path.is_dir() {
            return refuse("is no folder");
        }
        let reading = || format!("failed to read {}", path.display());
        let is_empty = fs::read_dir(path).with_context(reading)?.next().is_none();
        if !is_empty && !path.join(MARKER).is_file() {
            return refuse("has files that are no site");
        }
        // The folder itself is replaced, not a link to it.
        Ok(Folder(path.canonicalize().with_context(reading)?))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces all that the folder has by these files, given by path and text.
    pub fn replace(&self, files: impl IntoIterator<Item = (String, String)>) -> Result<()> {
        let Folder(path) = self;
        self.written(files).with_context(|| format!("failed to write the site {}", path.display()))
    }

    fn written(&self, files: impl IntoIterator<Item = (String, String)>) -> io::Result<()> {
        let Folder(path) = self;
        let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(parent)?;
        let new = beside(parent)?;
        for (file, text) in files {
            let file = new.path().join(file);
            fs::create_dir_all(file.parent().unwrap_or(new.path()))?;
            fs::write(file, text)?;
        }
        let version = env!("CARGO_PKG_VERSION");
        fs::write(new.path().join(MARKER), format!("{{\"tramplab\": \"{version}\"}}\n"))?;
        swap(new, path)
    }
}

/// A folder on the same file system, with the permissions of any new folder.
fn beside(parent: &Path) -> io::Result<TempDir> {
    let permissions = fs::Permissions::from_mode(0o777);
    tempfile::Builder::new().prefix(".tramplab-site-").permissions(permissions).tempdir_in(parent)
}

/// Puts the new folder at `path`. The old one is removed.
fn swap(new: TempDir, path: &Path) -> io::Result<()> {
    // A rename also replaces an empty folder.
    match fs::rename(new.path(), path) {
        Ok(()) => {
            // It has moved: there is nothing to remove.
            let _ = new.keep();
            return Ok(());
        }
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        Err(error) => return Err(error),
    }
    match renameat2(AT_FDCWD, new.path(), AT_FDCWD, path, RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => new.close(),
        Err(_) => {
            // This file system cannot swap: for a moment there is no site, but never half of one.
            let old = beside(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
            fs::rename(path, old.path())?;
            fs::rename(new.path(), path)?;
            let _ = new.keep();
            old.close()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn files(folder: &Path) -> BTreeSet<String> {
        let below = walkdir::WalkDir::new(folder).into_iter().map(Result::unwrap);
        let files = below.filter(|entry| entry.file_type().is_file());
        files
            .map(|file| file.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned())
            .collect()
    }

    fn write(path: &Path, files: &[&str]) -> Result<()> {
        let files = files.iter().map(|file| ((*file).to_owned(), format!("of {file}")));
        Folder::new(path)?.replace(files)
    }

    #[test]
    fn a_rewritten_site_has_no_stale_pages() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("some/site");
        write(&site, &["index.html", "metrics/a.html", "metrics/b.html"]).unwrap();
        assert_eq!(files(&site).len(), 4);
        // A link stays a link.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&site, &link).unwrap();
        write(&link, &["index.html", "metrics/c.html"]).unwrap();
        assert!(link.is_symlink());
        let expected = ["index.html", "metrics/c.html", MARKER].map(str::to_owned);
        assert_eq!(files(&site), expected.into());
        assert_eq!(fs::read_to_string(site.join("metrics/c.html")).unwrap(), "of metrics/c.html");
        // Nothing is left beside it, and others may read it as any new folder.
        assert_eq!(fs::read_dir(dir.path().join("some")).unwrap().count(), 1);
        let fresh = dir.path().join("fresh");
        fs::create_dir(&fresh).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&site), mode(&fresh));
    }

    #[test]
    fn refuses_folders_of_others_and_leaves_them() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join("mine");
        fs::create_dir(&mine).unwrap();
        // An empty folder is taken.
        write(&mine, &["index.html"]).unwrap();
        fs::remove_file(mine.join(MARKER)).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "mine").unwrap();
        for (path, words) in [(&mine, "has files that are no site"), (&file, "is no folder")] {
            let error = write(path, &["other.html"]).unwrap_err();
            assert_eq!(error.fault(), crate::error::Fault::Users);
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(files(&mine), ["index.html".to_owned()].into());
    }

    #[test]
    fn a_failed_write_keeps_the_old_site() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("site");
        write(&site, &["index.html"]).unwrap();
        // A file cannot be a folder as well.
        let error = write(&site, &["new", "new/page.html"]).unwrap_err();
        assert!(error.to_string().contains("failed to write the site"), "{error}");
        assert_eq!(files(&site), ["index.html", MARKER].map(str::to_owned).into());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
