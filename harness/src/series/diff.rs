// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a unified diff changes: files, by their names, and lines.
//!
//! Two read it: diffy, for what errors show, and git, which applies it. A diff that they read differently is refused.

use super::git;
use crate::host::{ChildError, child};
use diffy::{
    Hunk,
    patch_set::{FileMode, FileOperation, FilePatch, ParseOptions, PatchKind, PatchSet},
};
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Component, Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    #[error("it is cut off: its last line, `{0}`, has no end; get it again, whole")]
    Cut(String),
    #[error("git cannot read it: {0}")]
    Git(String),
    #[error("{0}; expected a unified diff as `git format-patch` writes it")]
    Malformed(String),
    #[error(
        "it can be read in two ways: git finds {}, its headers name {}; expected one `diff --git` for each file",
        listed(.git), listed(.headers)
    )]
    Ambiguous { git: Vec<String>, headers: Vec<String> },
    #[error("it names `{}`, {why}; expected a path inside the tree", .path.display())]
    Unsafe { path: PathBuf, why: &'static str },
    #[error("it changes `{}` without saying to what; make it with `git format-patch --binary`", .0.display())]
    NoContents(PathBuf),
    #[error("failed to run git, which applies patches: it is not installed; run `apt install git`")]
    NoGit,
    #[error(transparent)]
    Child(ChildError),
    #[error("failed to hand it to git: {0}")]
    Io(#[from] io::Error),
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "no file".to_owned(),
        [first @ .., last] if first.is_empty() => format!("`{last}`"),
        _ if names.len() > 8 => format!("`{}` and {} more", names[..8].join("`, `"), names.len() - 8),
        _ => format!("`{}`", names.join("`, `")),
    }
}

/// What a diff does to one file.
#[derive(Debug)]
pub struct Change<'a> {
    /// None when it is new.
    pub old: Option<PathBuf>,
    /// None when it is deleted.
    pub new: Option<PathBuf>,
    file: FilePatch<'a, [u8]>,
}

impl Change<'_> {
    /// None in a binary file.
    pub fn hunks(&self) -> &[Hunk<'_, [u8]>] {
        self.file.patch().as_text().map_or(&[], |patch| patch.hunks())
    }

    /// Its name before (or, turned round, after) the change.
    pub fn before(&self, turned: bool) -> Option<&Path> {
        if turned { self.new.as_deref() } else { self.old.as_deref() }
    }
}

/// Reads a diff.
pub fn parse(diff: &[u8], strip: usize) -> Result<Vec<Change<'_>>, DiffError> {
    if let Some(line) = cut_line(diff) {
        return Err(DiffError::Cut(line));
    }
    let git = diff.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"diff --git "));
    let options = if git { ParseOptions::gitdiff() } else { ParseOptions::unidiff() };
    let files = PatchSet::parse_bytes(diff, options);
    files
        .map(|file| {
            let file = file.map_err(|error| DiffError::Malformed(error.to_string()))?;
            let (old, new) = paths(file.operation(), strip);
            Ok(Change { old, new, file })
        })
        .collect()
}

/// A diff's last line that has no end of line, when it can be a hunk's.
fn cut_line(diff: &[u8]) -> Option<String> {
    let line = diff.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let in_hunk = matches!(line.first(), Some(b' ' | b'+' | b'-' | b'@')) && !line.starts_with(b"-- ");
    in_hunk.then(|| String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned())
}

fn paths(operation: &FileOperation<'_, [u8]>, strip: usize) -> (Option<PathBuf>, Option<PathBuf>) {
    let path = |name: &Cow<'_, [u8]>| Some(PathBuf::from(OsString::from_vec(name.to_vec())));
    // Names after `rename from` and its like have no `a/` in front.
    let named = matches!(operation, FileOperation::Rename { .. } | FileOperation::Copy { .. });
    match &operation.strip_prefix(if named { strip.saturating_sub(1) } else { strip }) {
        FileOperation::Delete(old) => (path(old), None),
        FileOperation::Create(new) => (None, path(new)),
        FileOperation::Modify { original: old, modified: new }
        | FileOperation::Rename { from: old, to: new }
        | FileOperation::Copy { from: old, to: new } => (path(old), path(new)),
    }
}

/// Reads a diff that is to be applied: as git reads it, inside the tree, with all it needs. `file` holds the diff.
pub fn check<'a>(diff: &'a [u8], strip: usize, file: &Path) -> Result<Vec<Change<'a>>, DiffError> {
    if let Some(line) = cut_line(diff) {
        return Err(DiffError::Cut(line));
    }
    let git = named_by_git(strip, file)?;
    let changes = parse(diff, strip)?;
    let mut headers = Vec::new();
    for change in &changes {
        for path in change.old.iter().chain(&change.new) {
            if let Some(why) = is_unsafe(path) {
                return Err(DiffError::Unsafe { path: path.clone(), why });
            }
        }
        let path = change.new.as_ref().or(change.old.as_ref()).cloned().unwrap_or_default();
        let modes = [change.file.old_mode(), change.file.new_mode()];
        if modes.contains(&Some(&FileMode::Gitlink)) {
            return Err(DiffError::Unsafe { path, why: "a submodule, which is a repository of its own" });
        }
        if let PatchKind::Binary(diffy::binary::BinaryPatch::Marker) = change.file.patch() {
            return Err(DiffError::NoContents(path));
        }
        headers.push(path.to_string_lossy().into_owned());
    }
    // `--- a/x` and `+++ b/y` in a plain diff: git takes either name, by rules of its own.
    let agree = git.len() == headers.len()
        && changes.iter().zip(&git).all(|(change, git)| {
            [&change.new, &change.old].into_iter().flatten().any(|path| path.to_string_lossy() == **git)
        });
    if agree && !changes.is_empty() { Ok(changes) } else { Err(DiffError::Ambiguous { git, headers }) }
}

/// The files that git finds in the diff. Names that are not UTF-8 are shown with replacement characters.
fn named_by_git(strip: usize, file: &Path) -> Result<Vec<String>, DiffError> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let mut command = git::apply(folder, strip, file.as_os_str());
    let (status, output) = child::finish(command.args(["--numstat", "-z"]), git::LIMIT)
        .map_err(|error| if git::is_missing(&error) { DiffError::NoGit } else { DiffError::Child(error) })?;
    if !status.success() {
        // The file's name is ours and gone when this is read.
        let text = output.stderr.replace(&*file.to_string_lossy(), "the diff");
        return Err(DiffError::Git(text.trim().trim_start_matches("error: ").to_owned()));
    }
    let records = output.stdout.split('\0').filter(|record| !record.is_empty());
    Ok(records.map(|record| record.splitn(3, '\t').last().unwrap_or_default().to_owned()).collect())
}

/// Why a path may not be written to. git refuses these too.
fn is_unsafe(path: &Path) -> Option<&'static str> {
    if path.as_os_str().is_empty() || path.as_os_str().as_bytes().contains(&0) {
        return Some("which is no file name");
    }
    for component in path.components() {
        match component {
            Component::Normal(name) if is_git(name) => return Some("which belongs to git itself"),
            Component::Normal(_) | Component::CurDir => {}
            _ => return Some("which leads out of the tree"),
        }
    }
    None
}

fn is_git(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git") || name.eq_ignore_ascii_case("git~1")
}

/// A diff in a file of its own, for git, gone with the returned value.
pub fn to_file(diff: &[u8]) -> io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("tramplab-").suffix(".patch").tempfile()?;
    file.write_all(diff)?;
    Ok(file)
}

/// Where a line was before a diff was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// In a hunk: the diff may have made it.
    InHunk,
    At(PathBuf, usize),
}

/// Takes a line of a file back through a diff that was applied (turned round, if so).
pub fn line_before(changes: &[Change<'_>], file: &Path, line: usize, turned: bool) -> Before {
    let mut path = file.to_owned();
    let mut before = line;
    for change in changes.iter().filter(|change| change.before(!turned) == Some(file)) {
        for hunk in change.hunks() {
            let (old, new) = (hunk.old_range(), hunk.new_range());
            let (pre, post) = if turned { (new, old) } else { (old, new) };
            if post.range().contains(&line) {
                return Before::InHunk;
            }
            // An empty range names the line before it.
            if post.end() + usize::from(post.is_empty()) <= line {
                before = (before + pre.len()).saturating_sub(post.len());
            }
        }
        if let Some(name) = change.before(turned) {
            name.clone_into(&mut path);
        }
    }
    Before::At(path, before)
}
