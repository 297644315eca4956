// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps copies of files on disk before patches touch them, and restores them.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
    time::SystemTime,
};
use tramplab_host::cache;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("failed to apply the patch: `{}` leads out of the sources", .0.display())]
    Outside(PathBuf),
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    source: PathBuf,
}

/// The original state of one file.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: PathBuf,
    was: Was,
}

#[derive(Debug, Serialize, Deserialize)]
enum Was {
    /// With the topmost folder that did not exist either.
    Absent {
        folder: Option<PathBuf>,
    },
    File {
        copy: String,
        modified: SystemTime,
        mode: u32,
    },
    Link {
        target: PathBuf,
    },
}

const LIST: &str = "list.json";

impl Journal {
    pub fn new(folder: PathBuf, source: PathBuf) -> Journal {
        Journal { folder, source }
    }

    /// Saves the files at these paths, unless they are saved already.
    pub fn save(&self, paths: &BTreeSet<PathBuf>) -> Result<(), JournalError> {
        let mut entries = self.entries()?;
        let known: BTreeSet<_> = entries.iter().map(|entry| entry.path.clone()).collect();
        fs::create_dir_all(&self.folder).map_err(error("make", &self.folder))?;
        for path in paths.difference(&known) {
            self.check(path)?;
            let full = self.source.join(path);
            let was = match full.symlink_metadata() {
                Ok(meta) if meta.is_symlink() => {
                    Was::Link { target: fs::read_link(&full).map_err(error("read", &full))? }
                }
                Ok(meta) if meta.is_file() => {
                    let copy = entries.len().to_string();
                    fs::copy(&full, self.folder.join(&copy)).map_err(error("copy", &full))?;
                    let modified = meta.modified().map_err(error("read", &full))?;
                    Was::File { copy, modified, mode: meta.permissions().mode() }
                }
                // A patch does not name folders; git rejects that.
                Ok(_) => continue,
                Err(_) => Was::Absent { folder: self.topmost_absent(path) },
            };
            entries.push(Entry { path: path.clone(), was });
        }
        // The list is written last: files that it does not name are still untouched.
        let list = self.folder.join(LIST);
        let json = serde_json::to_vec(&entries).expect("plain data");
        // The copies must reach the disk first.
        let synced =
            fs::File::open(&self.folder).and_then(|folder| Ok(nix::unistd::syncfs(folder)?));
        synced.and_then(|()| cache::write_whole(&list, &json)).map_err(error("write", &list))
    }

    /// Restores everything. Can be repeated after an interruption.
    pub fn restore(&self) -> Result<(), JournalError> {
        let entries = self.entries()?;
        // Removals go first: a file can replace a folder.
        let (absent, others): (Vec<_>, Vec<_>) =
            entries.iter().partition(|entry| matches!(entry.was, Was::Absent { .. }));
        for entry in absent.into_iter().chain(others) {
            self.check(&entry.path)?;
            let path = self.source.join(&entry.path);
            self.restore_entry(entry, &path).map_err(error("put back", &path))?;
        }
        self.forget()
    }

    fn restore_entry(&self, entry: &Entry, path: &Path) -> io::Result<()> {
        // A patch can make a submodule's folder, or a folder in place of the file.
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            fs::remove_dir(path)?;
        }
        let parent = path.parent().expect("below the sources");
        match &entry.was {
            Was::Absent { folder } => {
                absent_is_fine(fs::remove_file(path))?;
                // Removes only folders that are now empty.
                if let Some(top) = folder.as_ref().map(|folder| self.source.join(folder)) {
                    let made = path.ancestors().skip(1).take_while(|path| path.starts_with(&top));
                    made.for_each(|folder| drop(fs::remove_dir(folder)));
                }
                Ok(())
            }
            Was::File { copy, modified, mode } => {
                fs::create_dir_all(parent)?;
                // Written beside the file and renamed, so that an incomplete file never has the
                // original time.
                let file = tempfile::NamedTempFile::new_in(parent)?;
                fs::copy(self.folder.join(copy), file.path())?;
                file.as_file().set_permissions(fs::Permissions::from_mode(*mode))?;
                file.as_file().set_modified(*modified)?;
                file.persist(path)?;
                Ok(())
            }
            Was::Link { target } => {
                absent_is_fine(fs::remove_file(path))?;
                fs::create_dir_all(parent)?;
                symlink(target, path)
            }
        }
    }

    /// Forgets all copies. The list goes first: without it nothing is restored.
    pub fn forget(&self) -> Result<(), JournalError> {
        absent_is_fine(fs::remove_file(self.folder.join(LIST)))
            .map_err(error("remove", &self.folder))?;
        absent_is_fine(fs::remove_dir_all(&self.folder)).map_err(error("remove", &self.folder))
    }

    fn entries(&self) -> Result<Vec<Entry>, JournalError> {
        let list = self.folder.join(LIST);
        match fs::read(&list) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(io::Error::other)
                .map_err(error("read", &list)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(error("read", &list)(source)),
        }
    }

    fn topmost_absent(&self, path: &Path) -> Option<PathBuf> {
        let absent = |folder: &&Path| self.source.join(folder).symlink_metadata().is_err();
        path.ancestors().skip(1).take_while(absent).last().map(Path::to_owned)
    }

    /// Checks that the file's folder, or its nearest existing ancestor, is inside the sources,
    /// symbolic links followed.
    fn check(&self, path: &Path) -> Result<(), JournalError> {
        let outside = || JournalError::Outside(path.to_owned());
        if !is_inside(path) {
            return Err(outside());
        }
        let root = fs::canonicalize(&self.source).map_err(error("find", &self.source))?;
        let full = root.join(path);
        let there = full.ancestors().skip(1).find(|folder| folder.symlink_metadata().is_ok());
        let real = there.and_then(|folder| fs::canonicalize(folder).ok());
        if real.is_some_and(|real| real.starts_with(&root)) { Ok(()) } else { Err(outside()) }
    }
}

fn error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    move |source| JournalError::Io { action, path: path.to_owned(), source }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(())
        }
        result => result,
    }
}

fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
        && path.components().next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{process::Command, time::Duration};
    use tramplab_host::child;

    /// Covers everything that git writes: names with blanks, quotes, umlauts; renames, modes,
    /// links, binary files.
    #[test]
    fn undoes_git_apply() {
        let folder = tempfile::tempdir().unwrap();
        let (source, journal) = (folder.path().join("src"), folder.path().join("journal"));
        fs::create_dir_all(source.join("dir")).unwrap();
        let git = |words: &[&str]| tramplab_testdata::git::run(&source, words);
        git(&["init", "-q"]);
        let long = "a line\n".repeat(50);
        for name in [
            "plain.c",
            "with blank.c",
            "\u{e4}.c",
            "quote\".c",
            "tab\t.c",
            "dir/renamed.c",
            "mode.sh",
        ] {
            fs::write(source.join(name), format!("{name}\n{long}")).unwrap();
        }
        fs::write(source.join("binary"), [0, 1, 2, 255]).unwrap();
        fs::write(source.join("empty"), "").unwrap();
        symlink("plain.c", source.join("link")).unwrap();
        git(&["add", "-A"]);
        git(&["commit", "-q", "-m", "m"]);
        for name in ["plain.c", "with blank.c", "\u{e4}.c", "quote\".c", "tab\t.c"] {
            fs::write(source.join(name), format!("{name}!\n{long}")).unwrap();
        }
        fs::create_dir(source.join("other")).unwrap();
        fs::rename(source.join("dir/renamed.c"), source.join("other/re named.c")).unwrap();
        fs::set_permissions(source.join("mode.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(source.join("binary"), [9, 0]).unwrap();
        fs::remove_file(source.join("empty")).unwrap();
        fs::write(source.join("new empty"), "").unwrap();
        fs::remove_file(source.join("link")).unwrap();
        symlink("mode.sh", source.join("link")).unwrap();
        git(&["add", "-A"]);
        let diff = git(&["diff", "--cached", "--binary", "-M", "HEAD"]);
        let names = git(&["diff", "--cached", "--name-only", "-z", "--no-renames", "HEAD"]);
        let touched: BTreeSet<PathBuf> = names.split_terminator('\0').map(PathBuf::from).collect();
        git(&["reset", "-q", "--hard"]);
        git(&["clean", "-qfd"]);
        fs::create_dir_all(source.join("dir")).unwrap();

        // Names, kinds, modes, times and contents of all files, without `.git`.
        let state = || {
            let script = "find . -path ./.git -prune -o ! -type d -printf '%p %y %m %l %T@ ' \
                          -exec sha256sum {} \\; | sort";
            let mut command = Command::new("sh");
            child::run(command.args(["-c", script]).current_dir(&source), Duration::from_secs(60))
                .unwrap()
                .stdout
        };
        let before = state();
        let keeper = Journal::new(journal.clone(), source.clone());
        keeper.save(&touched).unwrap();
        fs::write(folder.path().join("diff"), format!("{diff}\n")).unwrap();
        git(&["apply", "--binary", "../diff"]);
        assert_ne!(state(), before);
        keeper.restore().unwrap();
        let without_link_times = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with("./link ")).map(str::to_owned).collect()
        };
        assert_eq!(without_link_times(&state()), without_link_times(&before), "{diff}");
        assert_eq!(fs::read_link(source.join("link")).unwrap(), Path::new("plain.c"));
        assert!(!source.join("other").exists() && !journal.exists());
    }

    #[test]
    fn rejects_paths_out_of_the_sources() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("src");
        fs::create_dir_all(source.join("dir")).unwrap();
        symlink("/etc", source.join("out")).unwrap();
        symlink("dir", source.join("in")).unwrap();
        let journal = Journal::new(folder.path().join("journal"), source);
        let save = |path: &str| journal.save(&BTreeSet::from([PathBuf::from(path)]));
        for path in ["out/passwd", "out/new/deep", "../x", "/etc/passwd", "a/../../x"] {
            let error = save(path).unwrap_err().to_string();
            assert!(error.contains("leads out of the sources"), "{path}: {error}");
        }
        save("in/new.c").unwrap();
        save("dir").unwrap();
    }
}
