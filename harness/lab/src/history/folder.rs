// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of a history's site: written beside, then swapped, so that no reader sees half of it.

use crate::{
    error::{Context, Error, Result},
    interrupt::Interrupt,
};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Marks a folder as a site that tramplab may replace. It is not hidden, as artifacts leave hidden
/// files out.
const MARKER: &str = "tramplab-site.json";
/// All else that a site has.
const PAGE: &str = "index.html";
const PAGES: &str = "metrics";

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
        // The folder itself is replaced, not a link to it.
        let whole = path.canonicalize().with_context(reading)?;
        if std::env::current_dir().is_ok_and(|current| current.starts_with(&whole)) {
            return refuse("is or holds the current folder, which would be removed");
        }
        let names = names(path).with_context(reading)?;
        let is_site = || names.contains(OsStr::new(MARKER)) && path.join(MARKER).is_file();
        let is_ours = |name: &OsString| [PAGE, PAGES, MARKER].iter().any(|own| name == own);
        // A marker alone may have been copied into a folder with other files.
        let may_replace = names.is_empty() || is_site() && names.iter().all(is_ours);
        if !may_replace {
            return refuse("has files that are no site");
        }
        Ok(Folder(whole))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces all that the folder has by these files, given by path and text.
    pub fn replace(&self, files: impl IntoIterator<Item = (String, String)>) -> Result<()> {
        let interrupt = Interrupt::watch().context("failed to watch for signals")?;
        self.replace_unless(files, || interrupt.came())
    }

    fn replace_unless(
        &self,
        files: impl IntoIterator<Item = (String, String)>,
        is_stopped: impl Fn() -> bool,
    ) -> Result<()> {
        let Folder(path) = self;
        let failed = || format!("failed to write the site {}", path.display());
        let files = files.into_iter().take_while(|_| !is_stopped());
        let new = self.written(files).with_context(failed)?;
        if is_stopped() {
            return Err(Error::Interrupted);
        }
        // Reading the runs takes long: others may have put files there.
        Folder::new(path)?;
        swap(new, path).with_context(failed)
    }

    fn written(&self, files: impl IntoIterator<Item = (String, String)>) -> io::Result<TempDir> {
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
        Ok(new)
    }
}

fn names(folder: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
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
        Err(error) if is_not_empty(error.kind()) => {}
        Err(error) => return Err(error),
    }
    match renameat2(AT_FDCWD, new.path(), AT_FDCWD, path, RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => new.close(),
        Err(_) => {
            // This file system cannot swap: for a moment there is no site, but never half of one.
            let old = beside(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
            exchange(&new, path, old)?;
            // It has moved.
            let _ = new.keep();
            Ok(())
        }
    }
}

/// POSIX allows both.
fn is_not_empty(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

/// Puts the new folder at `path`, and the one that is there into `old`. If that fails, puts it
/// back.
fn exchange(new: &TempDir, path: &Path, old: TempDir) -> io::Result<()> {
    fs::rename(path, old.path())?;
    let Err(error) = fs::rename(new.path(), path) else { return old.close() };
    let old = old.keep();
    match fs::rename(&old, path) {
        Ok(()) => Err(error),
        Err(_) => {
            let text = format!("{error}; the old site is in {}", old.display());
            Err(io::Error::other(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // A site that was copied into a web server's folder.
        let root = dir.path().join("root");
        write(&root, &["index.html"]).unwrap();
        fs::write(root.join("other.html"), "mine").unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "mine").unwrap();
        let others = "has files that are no site";
        let current = PathBuf::from(".");
        for (path, words) in [
            (&mine, others),
            (&root, others),
            (&file, "is no folder"),
            (&current, "holds the current folder"),
        ] {
            let error = write(path, &["other.html"]).unwrap_err();
            assert_eq!(error.fault(), crate::error::Fault::Users);
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(files(&mine), ["index.html".to_owned()].into());
        assert_eq!(fs::read_to_string(root.join("other.html")).unwrap(), "mine");
        // Files that came while the runs were read.
        let late = dir.path().join("late");
        let folder = Folder::new(&late).unwrap();
        fs::create_dir(&late).unwrap();
        fs::write(late.join("mine"), "mine").unwrap();
        let page = [("index.html".to_owned(), String::new())];
        assert_eq!(folder.replace(page).unwrap_err().fault(), crate::error::Fault::Users);
        assert_eq!(files(&late), ["mine".to_owned()].into());
    }

    #[test]
    fn a_folder_that_cannot_be_swapped_stays() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("site");
        write(&site, &["index.html"]).unwrap();
        let new = beside(dir.path()).unwrap();
        // It is gone before it can be moved.
        fs::remove_dir(new.path()).unwrap();
        exchange(&new, &site, beside(dir.path()).unwrap()).unwrap_err();
        assert_eq!(files(&site).len(), 2);
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

    #[test]
    fn a_signal_keeps_the_old_site() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("site");
        write(&site, &["index.html"]).unwrap();
        let written = std::cell::Cell::new(0);
        let new = ["index.html", "new.html", "last.html"].iter().map(|name| {
            written.set(written.get() + 1);
            (name.to_string(), String::new())
        });
        let folder = Folder::new(&site).unwrap();
        let error = folder.replace_unless(new, || written.get() == 2).unwrap_err();
        assert!(error.is_interrupted(), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(files(&site), ["index.html", MARKER].map(str::to_owned).into());
    }
}
