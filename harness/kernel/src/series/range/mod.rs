// SPDX-License-Identifier: MIT OR Apache-2.0
//! A range of commits as a series. git lists commits and diffs in machine formats. No text that a
//! committer wrote is parsed, so a message cannot become a diff, a header or a separator.
//!
//! git runs in a repository of ours that borrows the user's objects, and writes only there.

use super::{
    Patch, diff, file, printable, shipped,
    thread::{MOST_PATCHES, Thread},
};
use crate::{
    KernelError, git,
    source::{Local, SourceError},
};
use std::{
    ffi::OsStr,
    fmt, fs,
    io::{self, Read, Seek, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};
use tramplab_host::{ChildError, child};
use tramplab_model::{
    name::{is_commit_id, short},
    run::PatchIds,
};

#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    #[error(
        "failed to find the commit `{}` in {}: fetch more of its history (`depth` in CI, or `git \
         fetch --unshallow`)",
        printable(.reference), .repository.display()
    )]
    UnknownCommit { repository: PathBuf, reference: String },
    #[error(
        "the base {base} is not in the history of {head}: fetch more of it (`depth` in CI, or `git \
         fetch --unshallow`) or rebase"
    )]
    NotAncestor { base: String, head: String },
    #[error("{range} has {count} merges; expected a linear history: rebase it")]
    Merges { range: Range, count: usize },
    #[error("{range} has no commit that changes a file")]
    Empty { range: Range },
    #[error("{range} has {count} commits; expected at most {MOST_PATCHES}")]
    TooMany { range: Range, count: usize },
    #[error("{range} changes too much: its diffs have more than {} MiB", file::MOST_BYTES >> 20)]
    TooBig { range: Range },
    #[error(
        "{range} starts at {base}, but kernel {kernel} is {commit}: build the kernel from the \
         range's base"
    )]
    OtherBase { range: Range, base: String, kernel: String, commit: String },
    #[error(
        "after commit {commit} the sources are the tree {found}; expected the commit's own tree, \
         {expected}: the measurement would not be of what was committed"
    )]
    OtherTree { commit: String, expected: String, found: String },
    #[error("{0}")]
    Repository(Box<KernelError>),
    #[error("failed to read {range} with git: {said}")]
    Git { range: Range, said: String },
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error("failed to store git's output: {0}")]
    Io(#[from] io::Error),
}

impl RangeError {
    /// True if the user can fix it by asking for something else.
    pub fn is_usage(&self) -> bool {
        match self {
            RangeError::Repository(error) => error.is_usage(),
            RangeError::Git { .. } | RangeError::Child(_) | RangeError::Io(_) => false,
            _ => true,
        }
    }
}

/// `BASE..HEAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    base: String,
    head: String,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", printable(&self.base), printable(&self.head))
    }
}

impl Range {
    /// Parses `BASE..HEAD`; `BASE..` goes to `HEAD`, as in git. Returns None if `spec` names a
    /// series shipped in `folder` or a path, or if git could not accept the two names.
    pub fn parse(spec: &str, folder: &Path) -> Option<Range> {
        let (base, head) = spec.split_once("..")?;
        let head = if head.is_empty() { "HEAD" } else { head };
        let fits = |name: &str| {
            !name.is_empty()
                && !name.starts_with(['-', '.', '/'])
                && !name.ends_with(['.', '/'])
                && !name.contains("..")
                && !name.contains(|c: char| c.is_control() || c.is_whitespace() || c == ':')
        };
        let other = Path::new(spec).exists() || shipped::is_shipped(spec, folder);
        (fits(base) && fits(head) && !other)
            .then(|| Range { base: base.to_owned(), head: head.to_owned() })
    }

    /// Returns which of these files of the work tree `repository` the range changes.
    pub fn changed(
        &self,
        repository: &Path,
        files: &[PathBuf],
    ) -> Result<Vec<PathBuf>, RangeError> {
        let local = Local::open(repository).map_err(repository_error)?;
        let (base, head) = (commit(&local, &self.base)?, commit(&local, &self.head)?);
        let asked = Asked { range: self, local: &local };
        let names =
            files.iter().filter_map(|file| file.strip_prefix(&local.repository.folder).ok());
        let mut command = asked.git();
        command.args(["--literal-pathspecs", "diff-tree", "-r", "-z", "--name-only"]);
        let said = asked.run(command.args([&base, &head, "--"]).args(names))?;
        let names = said.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| local.repository.folder.join(OsStr::from_bytes(name))).collect())
    }

    /// Reads the commits of a local repository. `kernel` is the kernel's name and the reference
    /// that it is built from, if it has one.
    pub(super) fn read(
        &self,
        repository: &Path,
        kernel: Option<(&str, &str)>,
    ) -> Result<(Thread, Commits), RangeError> {
        let local = Local::open(repository).map_err(repository_error)?;
        let [base, head] = [&self.base, &self.head].map(|reference| commit(&local, reference));
        let (base, head) = (base?, head?);
        if let Some((name, reference)) = kernel {
            let commit = commit(&local, reference)?;
            if commit != base {
                let (range, kernel) = (self.clone(), name.to_owned());
                return Err(RangeError::OtherBase { range, base, kernel, commit });
            }
        }
        let asked = Asked { range: self, local: &local };
        let listed = asked.commits(&base, &head)?;
        let base_tree = asked.line(&["rev-parse", "--verify", &format!("{base}^{{tree}}")])?;
        let (mut trees, mut patches, mut notes) =
            (vec![Tree { commit: base.clone(), id: base_tree }], vec![], vec![]);
        let mut left = file::MOST_BYTES;
        for Listed { id, tree, subject } in listed {
            let before = &trees.last().expect("the base's is there").id;
            if tree == *before {
                notes.push(format!(
                    "left out commit {id} ({}): it changes no file",
                    printable(&subject)
                ));
                continue;
            }
            let diff = asked.diff(before, &tree)?;
            left = left
                .checked_sub(diff.len() as u64)
                .ok_or_else(|| RangeError::TooBig { range: self.clone() })?;
            patches.push(Patch {
                number: 0,
                ids: PatchIds::default(),
                subject,
                origin: format!("commit {id}"),
                diff,
                strip: 1,
                reversed: false,
                touched: Vec::new(),
            });
            trees.push(Tree { commit: id, id: tree });
        }
        let title = match &patches[..] {
            [] => return Err(RangeError::Empty { range: self.clone() }),
            [only] => only.subject.clone(),
            several => format!("{} commits, {}..{}", several.len(), short(&base), short(&head)),
        };
        let thread = Thread {
            title: Some(title),
            base_commit: Some(base),
            cover: None,
            patches,
            prerequisites: Vec::new(),
            notes,
        };
        let repository = local.repository.folder.clone();
        Ok((thread, Commits { range: self.clone(), repository, head, trees }))
    }
}

/// The trees that the patches of a range must produce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commits {
    range: Range,
    repository: PathBuf,
    head: String,
    /// The base's tree, then the tree of each patch's commit.
    trees: Vec<Tree>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tree {
    commit: String,
    id: String,
}

impl Commits {
    /// The range's head, as git's id.
    pub(super) fn head(&self) -> &str {
        &self.head
    }

    /// Compares sources byte by byte with the tree of `patch`'s commit. Before the patch, the
    /// sources must have held the tree of the commit before.
    pub fn check(&self, patch: &Patch, sources: &Path) -> Result<(), RangeError> {
        let local = Local::open(&self.repository).map_err(repository_error)?;
        let asked = Asked { range: &self.range, local: &local };
        asked.run(asked.git().args(["read-tree", &self.trees[patch.number - 1].id]))?;
        let mut entries = Vec::new();
        for file in &patch.touched {
            let entry = asked.entry(&sources.join(file))?;
            let (mode, id) = entry.unwrap_or_else(|| ("0", "0".repeat(self.trees[0].id.len())));
            entries.extend(
                [format!("{mode} {id}\t").as_bytes(), file.as_os_str().as_bytes(), b"\0"].concat(),
            );
        }
        // Removals go first: a file can replace a folder.
        let mut input = tempfile::tempfile()?;
        let (gone, there): (Vec<&[u8]>, Vec<&[u8]>) =
            entries.split_inclusive(|byte| *byte == 0).partition(|entry| entry.starts_with(b"0 "));
        gone.into_iter().chain(there).try_for_each(|entry| input.write_all(entry))?;
        input.rewind()?;
        asked.run(asked.git().args(["update-index", "-z", "--index-info"]).stdin(input))?;
        self.require(&asked, patch)
    }

    /// Checks the diffs alone, because a cached kernel is not patched again.
    pub(super) fn check_diffs(&self, patches: &[Patch]) -> Result<(), RangeError> {
        let local = Local::open(&self.repository).map_err(repository_error)?;
        let asked = Asked { range: &self.range, local: &local };
        asked.run(asked.git().args(["read-tree", &self.trees[0].id]))?;
        for patch in patches {
            let diff = diff::to_file(&patch.diff)?;
            let mut command = asked.git();
            asked.run(
                command.args(["apply", "--cached", "--whitespace=nowarn", "-p1"]).arg(diff.path()),
            )?;
            self.require(&asked, patch)?;
        }
        Ok(())
    }

    fn require(&self, asked: &Asked, patch: &Patch) -> Result<(), RangeError> {
        let found = asked.line(&["write-tree"])?;
        match &self.trees[patch.number] {
            Tree { id, .. } if *id == found => Ok(()),
            Tree { commit, id } => {
                Err(RangeError::OtherTree { commit: commit.clone(), expected: id.clone(), found })
            }
        }
    }
}

struct Listed {
    id: String,
    tree: String,
    subject: String,
}

/// Questions about a range, to a repository of ours.
struct Asked<'a> {
    range: &'a Range,
    local: &'a Local,
}

impl Asked<'_> {
    fn git(&self) -> Command {
        self.local.command()
    }

    /// Returns git's standard output as bytes.
    fn run(&self, command: &mut Command) -> Result<Vec<u8>, RangeError> {
        let [mut out, mut err] = [tempfile::tempfile()?, tempfile::tempfile()?];
        command.stdout(out.try_clone()?).stderr(err.try_clone()?);
        let status = child::wait(command, git::QUERY_LIMIT)?;
        let read = |file: &mut fs::File, most: u64| -> io::Result<Vec<u8>> {
            file.rewind()?;
            let mut bytes = Vec::new();
            file.take(most).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        if status.success() {
            // One byte over the limit is enough to notice it.
            return Ok(read(&mut out, file::MOST_BYTES + 1)?);
        }
        let said = String::from_utf8_lossy(&read(&mut err, 64 << 10)?).into_owned();
        Err(RangeError::Git { range: self.range.clone(), said: printable(said.trim()) })
    }

    fn line(&self, arguments: &[&str]) -> Result<String, RangeError> {
        let said = self.run(self.git().args(arguments))?;
        Ok(String::from_utf8_lossy(&said).trim_end().to_owned())
    }

    fn count(&self, arguments: &[&str]) -> Result<usize, RangeError> {
        let said = self.line(&[&["rev-list", "--count"], arguments].concat())?;
        said.parse().map_err(|_| self.odd(&said))
    }

    fn odd(&self, said: &str) -> RangeError {
        let said =
            format!("it printed `{}`", printable(&said.chars().take(200).collect::<String>()));
        RangeError::Git { range: self.range.clone(), said }
    }

    /// Lists the commits from the base's child to the head.
    fn commits(&self, base: &str, head: &str) -> Result<Vec<Listed>, RangeError> {
        let range = || self.range.clone();
        if self.count(&[base, "--not", head])? != 0 {
            return Err(RangeError::NotAncestor { base: base.to_owned(), head: head.to_owned() });
        }
        let between = [head, "--not", base];
        let merges = self.count(&[&["--merges"], &between[..]].concat())?;
        let count = self.count(&between)?;
        match (merges, count) {
            (1.., _) => return Err(RangeError::Merges { range: range(), count: merges }),
            (_, 0) => return Err(RangeError::Empty { range: range() }),
            (_, count) if count > MOST_PATCHES => {
                return Err(RangeError::TooMany { range: range(), count });
            }
            _ => {}
        }
        let format = [
            "log",
            "-z",
            "--reverse",
            "--topo-order",
            "--encoding=UTF-8",
            "--format=%H%n%T%n%P%n%s",
        ];
        let said = self.run(self.git().args(format).args(between))?;
        let mut parent = base.to_owned();
        let mut listed = Vec::new();
        for record in said.split(|byte| *byte == 0).filter(|record| !record.is_empty()) {
            let record = String::from_utf8_lossy(record);
            // Each commit must be the child of the one before, so no text can forge a record.
            let (id, tree, subject) = match &record.splitn(4, '\n').collect::<Vec<_>>()[..] {
                [id, tree, of, subject]
                    if is_commit_id(id) && is_commit_id(tree) && *of == parent =>
                {
                    (id.to_string(), tree.to_string(), printable(subject))
                }
                _ => return Err(self.odd(&record)),
            };
            id.clone_into(&mut parent);
            listed.push(Listed { id, tree, subject });
        }
        if parent == head && listed.len() == count { Ok(listed) } else { Err(self.odd(&parent)) }
    }

    fn diff(&self, before: &str, after: &str) -> Result<Vec<u8>, RangeError> {
        let mut command = self.git();
        command.args([
            "diff-tree",
            "-p",
            "--binary",
            "--full-index",
            "--no-ext-diff",
            "--no-textconv",
        ]);
        command.args([
            "--no-renames",
            "--no-color",
            "--unified=3",
            "--src-prefix=a/",
            "--dst-prefix=b/",
        ]);
        command.args(["--ignore-submodules=none", "--submodule=short", before, after]);
        self.run(&mut command)
    }

    /// Returns a file's mode and the object of its bytes. None if it is gone.
    fn entry(&self, path: &Path) -> Result<Option<(&'static str, String)>, RangeError> {
        let hash = |path: &OsStr| {
            let words = ["hash-object", "-w", "--no-filters", "--"];
            let said = self.run(self.git().args(words).arg(path))?;
            Ok::<_, RangeError>(String::from_utf8_lossy(&said).trim_end().to_owned())
        };
        match fs::symlink_metadata(path) {
            Ok(data) if data.is_symlink() => {
                let mut target = tempfile::NamedTempFile::new()?;
                target.write_all(fs::read_link(path)?.as_os_str().as_bytes())?;
                Ok(Some(("120000", hash(target.path().as_os_str())?)))
            }
            Ok(data) if data.is_file() => {
                let mode = if data.permissions().mode() & 0o100 != 0 { "100755" } else { "100644" };
                Ok(Some((mode, hash(path.as_os_str())?)))
            }
            // A folder replaced the file.
            Ok(_) => Ok(None),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn commit(local: &Local, reference: &str) -> Result<String, RangeError> {
    local.commit(reference).map_err(|error| match error {
        KernelError::Source(SourceError::NoReference { .. }) => RangeError::UnknownCommit {
            repository: local.repository.folder.clone(),
            reference: reference.to_owned(),
        },
        error => repository_error(error),
    })
}

fn repository_error(error: KernelError) -> RangeError {
    RangeError::Repository(Box::new(error))
}

#[cfg(test)]
mod tests;
