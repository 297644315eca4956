// SPDX-License-Identifier: MIT OR Apache-2.0
//! A range of commits as a series. git lists commits and diffs in machine formats. No text that a
//! committer wrote is parsed, so a message cannot become a diff, a header or a separator.
//!
//! git runs in a bare repository of our own that borrows the user's objects. There it reads no
//! configuration and no attributes. It writes nothing to the user's repository.

use super::{
    Patch, Series, SeriesError, diff, file, git, load, printable,
    thread::{MOST_PATCHES, Thread},
};
use crate::{
    KernelError,
    source::{Local, SourceError},
};
use std::{
    ffi::OsStr,
    fmt, fs,
    io::{self, Read, Seek, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;
use tramplab_host::{ChildError, child};
use tramplab_model::name::is_commit_id;

#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    #[error(
        "failed to find the commit `{}` in {}: fetch more of its history (`depth` in CI, or `git \
         fetch --unshallow`)",
        printable(.reference), .repository.display()
    )]
    UnknownCommit { repository: PathBuf, reference: String },
    #[error(
        "the base {base} is not in the fetched history of {head}: fetch more of it (`depth` in CI, \
         or `git fetch --unshallow`) or rebase"
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
    /// Parses `BASE..HEAD`. Returns None if `spec` names a shipped series or a path, or if git
    /// could not accept the two names.
    pub fn parse(spec: &str, shipped: &Path) -> Option<Range> {
        let (base, head) = spec.split_once("..")?;
        let fits = |name: &str| {
            !name.is_empty()
                && !name.starts_with(['-', '.', '/'])
                && !name.ends_with(['.', '/'])
                && !name.contains("..")
                && !name.contains(|c: char| c.is_control() || c.is_whitespace() || c == ':')
        };
        let other = Path::new(spec).exists() || load::is_shipped(spec, shipped);
        (fits(base) && fits(head) && !other).then(|| Range { base: base.to_owned(), head: head.to_owned() })
    }

    /// Reads the commits of a local repository. `kernel` is the kernel's name and the reference
    /// that it is built from, if it has one.
    pub fn read(&self, repository: &Path, kernel: Option<(&str, &str)>) -> Result<Series, SeriesError> {
        let local = Local::open(repository).map_err(repository_error)?;
        let [base, head] = [&self.base, &self.head].map(|reference| commit(&local, reference));
        let (base, head) = (base?, head?);
        if let Some((name, reference)) = kernel {
            let commit = commit(&local, reference)?;
            if commit != base {
                let (range, kernel) = (self.clone(), name.to_owned());
                return Err(RangeError::OtherBase { range, base, kernel, commit }.into());
            }
        }
        let borrowed = Borrowed::new(self, &local)?;
        let listed = borrowed.commits(&base, &head)?;
        let base_tree = borrowed.line(&["rev-parse", "--verify", &format!("{base}^{{tree}}")])?;
        let (mut trees, mut patches, mut notes) =
            (vec![Tree { commit: base.clone(), id: base_tree }], vec![], vec![]);
        let mut left = file::MOST_BYTES;
        for Listed { id, tree, subject } in listed {
            let before = &trees.last().expect("the base's is there").id;
            if tree == *before {
                notes.push(format!("left out commit {id} ({}): it changes no file", printable(&subject)));
                continue;
            }
            let diff = borrowed.diff(before, &tree)?;
            left = left
                .checked_sub(diff.len() as u64)
                .ok_or_else(|| RangeError::TooBig { range: self.clone() })?;
            patches.push(Patch {
                number: 0,
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
            [] => return Err(RangeError::Empty { range: self.clone() }.into()),
            [only] => only.subject.clone(),
            several => format!("{} commits, {}..{}", several.len(), short(&base), short(&head)),
        };
        let thread = Thread { title: Some(title), base_commit: Some(base), patches, notes };
        let series = load::from_thread(thread, Some(short(&head).to_owned()))?;
        let commits = Commits { range: self.clone(), repository: local.folder, trees };
        commits.check_diffs(&borrowed, &series.patches)?;
        Ok(Series { commits: Some(commits), ..series })
    }
}

/// The trees that the patches of a range must produce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commits {
    range: Range,
    repository: PathBuf,
    /// The base's tree, then the tree of each patch's commit.
    trees: Vec<Tree>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tree {
    commit: String,
    id: String,
}

impl Commits {
    /// Compares sources byte by byte with the tree of `patch`'s commit. Before the patch, the
    /// sources must have held the tree of the commit before.
    pub fn check(&self, patch: &Patch, sources: &Path) -> Result<(), RangeError> {
        let local = Local::open(&self.repository).map_err(repository_error)?;
        let borrowed = Borrowed::new(&self.range, &local)?;
        borrowed.run(borrowed.git().args(["read-tree", &self.trees[patch.number - 1].id]))?;
        let mut entries = Vec::new();
        for file in &patch.touched {
            let entry = borrowed.entry(&sources.join(file))?;
            let (mode, id) = entry.unwrap_or_else(|| ("0", "0".repeat(self.trees[0].id.len())));
            entries
                .extend([format!("{mode} {id}\t").as_bytes(), file.as_os_str().as_bytes(), b"\0"].concat());
        }
        // Removals go first: a file can replace a folder.
        let mut input = tempfile::tempfile()?;
        let (gone, there): (Vec<&[u8]>, Vec<&[u8]>) =
            entries.split_inclusive(|byte| *byte == 0).partition(|entry| entry.starts_with(b"0 "));
        gone.into_iter().chain(there).try_for_each(|entry| input.write_all(entry))?;
        input.rewind()?;
        borrowed.run(borrowed.git().args(["update-index", "-z", "--index-info"]).stdin(input))?;
        self.require(&borrowed, patch)
    }

    /// Checks the diffs alone, because a cached kernel is not patched again.
    fn check_diffs(&self, borrowed: &Borrowed, patches: &[Patch]) -> Result<(), RangeError> {
        borrowed.run(borrowed.git().args(["read-tree", &self.trees[0].id]))?;
        for patch in patches {
            let diff = diff::to_file(&patch.diff)?;
            let mut command = borrowed.git();
            borrowed
                .run(command.args(["apply", "--cached", "--whitespace=nowarn", "-p1"]).arg(diff.path()))?;
            self.require(borrowed, patch)?;
        }
        Ok(())
    }

    fn require(&self, borrowed: &Borrowed, patch: &Patch) -> Result<(), RangeError> {
        let found = borrowed.line(&["write-tree"])?;
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

/// A bare repository that shares another one's objects and nothing else.
struct Borrowed<'a> {
    range: &'a Range,
    folder: TempDir,
}

impl<'a> Borrowed<'a> {
    fn new(range: &'a Range, local: &Local) -> Result<Borrowed<'a>, RangeError> {
        let folder = tempfile::Builder::new().prefix("tramplab-git-").tempdir()?;
        let borrowed = Borrowed { range, folder };
        let ask = |words: &[&str]| local.ask(words.iter().copied()).map_err(repository_error);
        let format = format!("--object-format={}", ask(&["rev-parse", "--show-object-format"])?.trim());
        borrowed.run(borrowed.git().args(["init", "--bare", "--quiet", "--template=", &format]))?;
        let place = |name| ask(&["rev-parse", "--path-format=absolute", "--git-path", name]);
        let info = borrowed.folder.path().join("objects/info");
        fs::create_dir_all(&info)?;
        fs::write(info.join("alternates"), place("objects")?)?;
        // Records where a shallow clone's history ends.
        match fs::read(place("shallow")?.trim_end_matches('\n')) {
            Ok(shallow) => fs::write(borrowed.folder.path().join("shallow"), shallow)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Ok(borrowed)
    }

    fn git(&self) -> Command {
        let mut command = git::alone();
        command.env("GIT_DIR", self.folder.path()).env("GIT_ATTR_NOSYSTEM", "1").env("LC_ALL", "C");
        command
            .current_dir(self.folder.path())
            .args(["-c", "core.attributesFile=/dev/null"])
            .stdin(Stdio::null());
        command
    }

    /// Returns git's standard output as bytes.
    fn run(&self, command: &mut Command) -> Result<Vec<u8>, RangeError> {
        let [mut out, mut err] = [tempfile::tempfile()?, tempfile::tempfile()?];
        command.stdout(out.try_clone()?).stderr(err.try_clone()?);
        let status = child::wait(command, git::LIMIT)?;
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
        let said = format!("it printed `{}`", printable(&said.chars().take(200).collect::<String>()));
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
            (_, count) if count > MOST_PATCHES => return Err(RangeError::TooMany { range: range(), count }),
            _ => {}
        }
        let format =
            ["log", "-z", "--reverse", "--topo-order", "--encoding=UTF-8", "--format=%H%n%T%n%P%n%s"];
        let said = self.run(self.git().args(format).args(between))?;
        let mut parent = base.to_owned();
        let mut listed = Vec::new();
        for record in said.split(|byte| *byte == 0).filter(|record| !record.is_empty()) {
            let record = String::from_utf8_lossy(record);
            // Each commit must be the child of the one before, so no text can forge a record.
            let (id, tree, subject) = match &record.splitn(4, '\n').collect::<Vec<_>>()[..] {
                [id, tree, of, subject] if is_commit_id(id) && is_commit_id(tree) && *of == parent => {
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
        command.args(["diff-tree", "-p", "--binary", "--full-index", "--no-ext-diff", "--no-textconv"]);
        command.args(["--no-renames", "--no-color", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/"]);
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
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn commit(local: &Local, reference: &str) -> Result<String, RangeError> {
    local.commit(reference).map_err(|error| match error {
        KernelError::Source(SourceError::NoReference { .. }) => {
            RangeError::UnknownCommit { repository: local.folder.clone(), reference: reference.to_owned() }
        }
        error => repository_error(error),
    })
}

fn repository_error(error: KernelError) -> RangeError {
    RangeError::Repository(Box::new(error))
}

fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::apply;
    use std::os::unix::fs::symlink;

    struct Repository(TempDir);

    impl Repository {
        fn new() -> Repository {
            let repository = Repository(tempfile::tempdir().unwrap());
            repository.git(&["init", "--quiet", "--initial-branch=main"]);
            repository
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) {
            let path = self.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn git(&self, words: &[&str]) -> String {
            let mut command = git::alone();
            command.arg("-C").arg(self.path()).args(["-c", "user.name=t", "-c", "user.email=t@example.org"]);
            let output = command.args(words).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
        }

        /// Commits all changes. Returns the id.
        fn commit(&self, message: &str) -> String {
            self.git(&["add", "--all", "--force"]);
            self.git(&["commit", "--quiet", "--allow-empty", "--cleanup=verbatim", "--message", message]);
            self.git(&["rev-parse", "HEAD"])
        }

        fn range(&self, base: &str, head: &str) -> Range {
            Range::parse(&format!("{base}..{head}"), Path::new("/none")).unwrap()
        }

        fn read(&self, base: &str, head: &str) -> Result<Series, SeriesError> {
            self.range(base, head).read(self.path(), None)
        }

        fn refused(&self, base: &str, head: &str) -> RangeError {
            match self.read(base, head) {
                Err(SeriesError::Range(error)) => {
                    assert!(error.is_usage(), "{error}");
                    error
                }
                other => panic!("{other:?}"),
            }
        }

        /// Makes a folder with the files of a commit.
        fn checkout(&self, commit: &str) -> TempDir {
            let folder = tempfile::tempdir().unwrap();
            let work = format!("--work-tree={}", folder.path().display());
            self.git(&[&work, "checkout", "--quiet", commit, "--", "."]);
            self.git(&["reset", "--quiet", "--hard"]);
            folder
        }
    }

    /// Applies all patches and checks the tree after each.
    fn apply_all(series: &Series, sources: &Path) -> Result<(), RangeError> {
        for patch in &series.patches {
            apply(patch, sources, false).unwrap();
            series.commits.as_ref().unwrap().check(patch, sources)?;
        }
        Ok(())
    }

    /// A commit message that looks like a mail with its own diff and base, separated as git
    /// separates mails.
    const MAIL: &str = "bpf: Change nothing\n\n\
        From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n\
        From: A <a@example.org>\nDate: Mon, 1 Jan 2024 00:00:00 +0000\n\
        Subject: [PATCH v9 1/1] bpf: Harmless\nMIME-Version: 1.0\nContent-Type: text/plain\n\n\
        base-commit: 0123456789012345678901234567890123456789\n---\n a.c | 2 +-\n\n\
        diff --git a/a.c b/a.c\n--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-int a;\n+int harmless;\n\
        -- \n2.47.3\n";

    #[test]
    fn ignores_diff_in_commit_message() {
        let repository = Repository::new();
        repository.write("a.c", "int a;\n");
        repository.write("b.c", "int b;\n");
        let base = repository.commit("base");
        repository.write("b.c", "int evil;\n");
        repository.commit(MAIL);
        repository.write("b.c", "int worse;\n");
        // Quoted, as mboxes quote `From `.
        let head = repository.commit(&MAIL.replace("\nFrom ", "\n>From "));
        let series = repository.read(&base, &head).unwrap();
        let subjects: Vec<&str> = series.patches.iter().map(|patch| patch.subject.as_str()).collect();
        assert_eq!(subjects, ["bpf: Change nothing"; 2]);
        assert!(series.patches.iter().all(|patch| patch.touched == [Path::new("b.c")]), "{series:?}");
        assert_eq!((series.base_commit.as_deref(), &series.name[..]), (Some(&*base), &head[..12]));
        let sources = repository.checkout(&base);
        apply_all(&series, sources.path()).unwrap();
        assert_eq!(fs::read_to_string(sources.path().join("b.c")).unwrap(), "int worse;\n");
        assert_eq!(fs::read_to_string(sources.path().join("a.c")).unwrap(), "int a;\n");
    }

    #[test]
    fn ignores_users_configuration_and_attributes() {
        let repository = Repository::new();
        repository.write("a.c", "int a;\nint b;\nint c;\nint d;\nint e;\n");
        repository.write("run.sh", "#!/bin/sh\n");
        repository.write("folder/file", "x\n");
        let base = repository.commit("base");
        let marker = repository.path().join("ran");
        let program = format!("touch {}; cat", marker.display());
        for (name, value) in [
            ("diff.noprefix", "true"),
            ("diff.context", "0"),
            ("diff.renames", "copies"),
            ("diff.external", &*program),
            ("diff.evil.textconv", &*program),
            ("diff.evil.command", &*program),
            ("filter.evil.clean", &*program),
            ("filter.evil.smudge", &*program),
            ("log.showSignature", "true"),
            ("color.ui", "always"),
            ("core.autocrlf", "true"),
            ("core.quotePath", "false"),
        ] {
            repository.git(&["config", name, value]);
        }
        repository.write(".git/info/attributes", "* diff=evil text eol=crlf\n");
        repository.write(".gitattributes", "*.c diff=evil -text\n* eol=crlf ident\n");
        repository.write("a.c", "int a;\nint b;\nint x;\nint d;\nint e;\n");
        repository.write("new.bin", b"\0\x01\r\n\xff");
        repository.write("caf\u{e9} \"quoted\"\t.c", "$Id$\r\nno end");
        fs::rename(repository.path().join("run.sh"), repository.path().join("moved.sh")).unwrap();
        fs::set_permissions(repository.path().join("moved.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_dir_all(repository.path().join("folder")).unwrap();
        symlink("a.c", repository.path().join("link")).unwrap();
        // Plumbing, so that no filter changes the commit.
        let all = ["-c", "core.autocrlf=false", "-c", "filter.evil.clean="];
        fs::remove_file(repository.path().join(".git/info/attributes")).unwrap();
        repository.git(&[&all[..], &["add", "--all"]].concat());
        repository.git(&["commit", "--quiet", "--message", "change"]);
        let head = repository.git(&["rev-parse", "HEAD"]);
        repository.write(".git/info/attributes", "* diff=evil text eol=crlf\n");
        let _ = fs::remove_file(&marker);
        let before: Vec<String> = objects(repository.path());

        let series = repository.read(&base, &head).unwrap();
        let diff = String::from_utf8_lossy(&series.patches[0].diff).into_owned();
        assert!(diff.contains("--- a/a.c\n+++ b/a.c\n") && diff.contains(" int b;\n-int c;\n"), "{diff}");
        assert!(!diff.contains("rename from") && !diff.contains('\u{1b}'), "{diff}");
        assert!(!marker.exists(), "a program of the configuration has run");
        // The base's files, unchanged by attributes.
        let sources = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.c", "int a;\nint b;\nint c;\nint d;\nint e;\n"),
            ("run.sh", "#!/bin/sh\n"),
            ("folder/file", "x\n"),
        ] {
            fs::create_dir_all(sources.path().join(name).parent().unwrap()).unwrap();
            fs::write(sources.path().join(name), text).unwrap();
        }
        apply_all(&series, sources.path()).unwrap();
        assert!(!marker.exists(), "a program of the configuration has run");
        assert_eq!(objects(repository.path()), before, "the user's repository was written to");
    }

    fn objects(repository: &Path) -> Vec<String> {
        let all = fs::read_dir(repository.join(".git/objects")).unwrap();
        let mut names: Vec<String> = all
            .flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap())
            .map(|entry| entry.unwrap().path().display().to_string())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn rejects_sources_that_differ_from_commits_tree() {
        let repository = Repository::new();
        repository.write("a.c", "int a;\n");
        let base = repository.commit("base");
        repository.write("a.c", "int b;\n");
        repository.write("gone.c", "");
        let first = repository.commit("one");
        repository.write("a.c", "int c;\n");
        fs::remove_file(repository.path().join("gone.c")).unwrap();
        let head = repository.commit("two");
        let series = repository.read(&base, &head).unwrap();
        let commits = series.commits.as_ref().unwrap();
        type Case = (usize, fn(&Path));
        let cases: [Case; 5] = [
            (0, |sources| fs::write(sources.join("a.c"), "int b;\r\n").unwrap()),
            (0, |sources| fs::remove_file(sources.join("gone.c")).unwrap()),
            (0, |sources| {
                fs::set_permissions(sources.join("a.c"), fs::Permissions::from_mode(0o755)).unwrap();
            }),
            (0, |sources| {
                fs::remove_file(sources.join("a.c")).unwrap();
                symlink("gone.c", sources.join("a.c")).unwrap();
            }),
            (1, |sources| fs::write(sources.join("gone.c"), "").unwrap()),
        ];
        for (index, (at, change)) in cases.into_iter().enumerate() {
            let sources = repository.checkout(&base);
            for patch in &series.patches[..=at] {
                apply(patch, sources.path(), false).unwrap();
            }
            let patch = &series.patches[at];
            commits.check(patch, sources.path()).unwrap();
            change(sources.path());
            let id = [&first, &head][at];
            let tree = repository.git(&["rev-parse", &format!("{id}^{{tree}}")]);
            match commits.check(patch, sources.path()).unwrap_err() {
                RangeError::OtherTree { commit, expected, found } => {
                    assert_eq!((&commit, &expected), (id, &tree), "case {index}");
                    assert!(is_commit_id(&found) && found != tree, "case {index}: {found}");
                }
                error => panic!("case {index}: {error}"),
            }
        }
        // A diff that differs from the commit's is rejected before anything is checked out.
        let mut patches = series.patches.clone();
        patches[1].diff =
            String::from_utf8_lossy(&patches[1].diff).replace("+int c;", "+int d;").into_bytes();
        let range = repository.range(&base, &head);
        let borrowed = Borrowed::new(&range, &Local::open(repository.path()).unwrap()).unwrap();
        commits.check_diffs(&borrowed, &series.patches).unwrap();
        let error = commits.check_diffs(&borrowed, &patches).unwrap_err();
        assert!(matches!(&error, RangeError::OtherTree { commit, .. } if *commit == head), "{error}");
    }

    #[test]
    fn rejects_empty_unknown_and_nonlinear_ranges() {
        let repository = Repository::new();
        repository.write("a.c", "int a;\n");
        let base = repository.commit("base");
        repository.write("a.c", "int b;\n");
        let head = repository.commit("one");
        let empty = repository.commit("nothing");
        assert!(matches!(repository.refused(&head, &head), RangeError::Empty { .. }));
        assert!(matches!(repository.refused(&head, &empty), RangeError::Empty { .. }));
        assert!(matches!(repository.refused(&head, &base), RangeError::NotAncestor { .. }));
        let unknown = "0123456789012345678901234567890123456789";
        for (base, head) in [(&*base, unknown), (unknown, &*head), (&*base, "no-such")] {
            let error = repository.refused(base, head);
            assert!(matches!(error, RangeError::UnknownCommit { .. }), "{error}");
            assert!(error.to_string().contains("fetch more of its history"), "{error}");
        }
        // A commit that changes nothing is skipped with a note.
        let series = repository.read(&base, &empty).unwrap();
        assert_eq!((series.patches.len(), series.notes.len()), (1, 1), "{series:?}");
        assert!(series.notes[0].contains(&empty) && series.notes[0].contains("changes no file"));

        repository.git(&["checkout", "--quiet", "-b", "side", &base]);
        let side = repository.commit("beside");
        let error = repository.refused(&side, &head);
        assert!(matches!(error, RangeError::NotAncestor { .. }), "{error}");
        repository.git(&["merge", "--quiet", "--no-edit", &head]);
        let error = repository.refused(&base, "side");
        assert!(matches!(error, RangeError::Merges { count: 1, .. }), "{error}");

        let read =
            |kernel| repository.range("main~2", "main").read(repository.path(), Some(("tree", kernel)));
        assert_eq!(read(&base).unwrap().patches.len(), 1);
        match read("main") {
            Err(SeriesError::Range(RangeError::OtherBase { base: of, kernel, commit, .. })) => {
                assert_eq!((of, &*kernel, commit), (base, "tree", empty));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rejects_unfetched_base_and_says_how_to_fetch() {
        let repository = Repository::new();
        let mut commits = Vec::new();
        for text in ["a", "b", "c", "d"] {
            repository.write("a.c", text);
            commits.push(repository.commit(text));
        }
        let clone = Repository::new();
        let url = format!("file://{}", repository.path().display());
        clone.git(&["fetch", "--quiet", "--depth=3", &url, "main"]);
        assert_eq!(clone.read(&commits[1], &commits[3]).unwrap().patches.len(), 2);
        let error = clone.refused(&commits[0], &commits[3]);
        assert!(matches!(error, RangeError::UnknownCommit { .. }), "{error}");
        clone.git(&["fetch", "--quiet", "--depth=1", &url, &commits[0]]);
        let error = clone.refused(&commits[0], &commits[3]);
        assert!(matches!(error, RangeError::NotAncestor { .. }), "{error}");
        assert!(error.to_string().contains("fetch more of it"), "{error}");
        let none = tempfile::tempdir().unwrap();
        let error = repository.range("a", "b").read(none.path(), None).unwrap_err();
        assert!(error.is_usage(), "{error}");
    }

    #[test]
    fn rejects_submodule_on_apply() {
        let repository = Repository::new();
        repository.write("a.c", "int a;\n");
        let base = repository.commit("base");
        repository.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{base},module")]);
        repository.git(&["commit", "--quiet", "--message", "module"]);
        let series = repository.read(&base, "HEAD").unwrap();
        let sources = repository.checkout(&base);
        assert!(apply(&series.patches[0], sources.path(), false).is_err());
    }

    #[test]
    fn distinguishes_ranges_from_paths_and_names() {
        let folder = tempfile::tempdir().unwrap();
        let range = |spec: &str| Range::parse(spec, folder.path()).map(|range| (range.base, range.head));
        let pair = |base: &str, head: &str| Some((base.to_owned(), head.to_owned()));
        assert_eq!(range("v6.12..HEAD"), pair("v6.12", "HEAD"));
        assert_eq!(range("origin/main..topic/x~1"), pair("origin/main", "topic/x~1"));
        for other in ["../a.mbx", "a/../b.mbx", "a...b", "a..", "..b", "-a..b", "a..-b", "a..b c", "a..b..c"]
        {
            assert_eq!(range(other), None, "{other}");
        }
        fs::create_dir(folder.path().join("a..b")).unwrap();
        fs::write(folder.path().join("a..b/series.yaml"), "").unwrap();
        assert_eq!(range("a..b"), None);
        let path = folder.path().join("a..b");
        assert_eq!(range(path.to_str().unwrap()), None);
    }
}
