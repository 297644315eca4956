// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files and lines that a unified diff changes.
//!
//! git names the files, because git applies the diff. diffy finds the hunks that errors show. If
//! diffy cannot parse a diff that git can, errors show less.

use super::printable;
use crate::git;
use diffy::{
    Hunk,
    binary::BinaryPatch,
    patch_set::{FileOperation, FilePatch, ParseOptions, PatchKind, PatchSet},
};
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Seek, Write},
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
    process::Stdio,
};
use tramplab_host::{ChildError, child};

#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    #[error("it is truncated: its last line, `{0}`, has no end; get the whole diff")]
    Cut(String),
    #[error("git cannot read it: {0}; expected a unified diff as `git format-patch` writes it")]
    Git(String),
    #[error("it names `{}`, {why}; expected a path inside the tree", .path.display())]
    Unsafe { path: PathBuf, why: &'static str },
    #[error(
        "it has no new content for `{}`; make it with `git format-patch --binary`",
        .0.display()
    )]
    NoContents(PathBuf),
    #[error("git is not installed, but it applies patches; run `apt install git`")]
    NoGit,
    #[error(transparent)]
    Child(ChildError),
    #[error("failed to pass it to git: {0}")]
    Io(#[from] io::Error),
}

/// The change to one file.
#[derive(Debug)]
pub struct Change<'a> {
    /// None if the file is new.
    old: Option<PathBuf>,
    /// None if the file is deleted.
    new: Option<PathBuf>,
    file: FilePatch<'a, [u8]>,
}

impl Change<'_> {
    /// Empty for a binary file.
    pub fn hunks(&self) -> &[Hunk<'_, [u8]>] {
        self.file.patch().as_text().map_or(&[], |patch| patch.hunks())
    }

    /// Returns the file's name before the change. With `turned`, the name after it.
    pub fn before(&self, turned: bool) -> Option<&Path> {
        if turned { self.new.as_deref() } else { self.old.as_deref() }
    }
}

/// Parses the changes to each file, as far as diffy understands them.
pub fn parse(diff: &[u8], strip: usize) -> Vec<Change<'_>> {
    let read = |options| {
        let files = PatchSet::parse_bytes(diff, options).flatten();
        files
            .map(|file| {
                let (old, new) = paths(file.operation(), strip);
                Change { old, new, file }
            })
            .collect::<Vec<_>>()
    };
    let (git, plain) = (read(ParseOptions::gitdiff()), read(ParseOptions::unidiff()));
    // Somebody appended a plain diff by hand. Only the plain parser reads it to its end.
    if plain.len() > git.len() { plain } else { git }
}

/// Returns the last line if it lacks a line end and could belong to a hunk.
fn cut_line(diff: &[u8]) -> Option<String> {
    let line = diff.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let in_hunk =
        matches!(line.first(), Some(b' ' | b'+' | b'-' | b'@')) && !line.starts_with(b"-- ");
    in_hunk.then(|| String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned())
}

fn paths(operation: &FileOperation<'_, [u8]>, strip: usize) -> (Option<PathBuf>, Option<PathBuf>) {
    let path = |name: &Cow<'_, [u8]>| Some(PathBuf::from(OsString::from_vec(name.to_vec())));
    // Names after `rename from` and similar lines have no `a/` prefix.
    let named = matches!(operation, FileOperation::Rename { .. } | FileOperation::Copy { .. });
    match &operation.strip_prefix(if named { strip.saturating_sub(1) } else { strip }) {
        FileOperation::Delete(old) => (path(old), None),
        FileOperation::Create(new) => (None, path(new)),
        FileOperation::Modify { original: old, modified: new }
        | FileOperation::Rename { from: old, to: new }
        | FileOperation::Copy { from: old, to: new } => (path(old), path(new)),
    }
}

/// Returns the files that a diff touches, under their old and new names, sorted. All are inside the
/// tree. Fails if the diff cannot be applied to any tree. `file` holds the diff.
pub fn touched(diff: &[u8], strip: usize, file: &Path) -> Result<Vec<PathBuf>, DiffError> {
    if let Some(line) = cut_line(diff) {
        return Err(DiffError::Cut(line));
    }
    // In each direction git names the resulting file.
    let mut files = named_by_git(strip, file, None)?;
    files.extend(named_by_git(strip, file, Some("--reverse"))?);
    files.sort();
    files.dedup();
    if let Some((path, why)) = files.iter().find_map(|path| Some((path, is_unsafe(path)?))) {
        return Err(DiffError::Unsafe { path: path.clone(), why });
    }
    let hollow =
        |change: &Change<'_>| matches!(change.file.patch(), PatchKind::Binary(BinaryPatch::Marker));
    match parse(diff, strip).into_iter().find(hollow) {
        Some(change) => Err(DiffError::NoContents(change.new.or(change.old).unwrap_or_default())),
        None => Ok(files),
    }
}

/// Returns the stable patch-id of the diff in a file. None if git finds no change in it.
pub fn patch_id(file: &Path) -> Result<Option<String>, DiffError> {
    let mut out = tempfile::tempfile()?;
    // Outside of a repository, ids are SHA-1.
    let mut command = git::command();
    command
        .args(["patch-id", "--stable"])
        .stdin(File::open(file)?)
        .stdout(out.try_clone()?)
        .stderr(Stdio::null());
    child::wait(&mut command, git::QUERY_LIMIT).map_err(|error| {
        if git::is_missing(&error) { DiffError::NoGit } else { DiffError::Child(error) }
    })?;
    let mut text = String::new();
    out.rewind()?;
    out.read_to_string(&mut text)?;
    // The id of the diff, and that of its commit, which is zeros.
    Ok(text.split_whitespace().next().map(str::to_owned))
}

fn named_by_git(
    strip: usize,
    file: &Path,
    direction: Option<&str>,
) -> Result<Vec<PathBuf>, DiffError> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let mut command = git::apply(folder, strip, file.as_os_str());
    command.args(["--numstat", "-z"]).args(direction);
    let (status, output) = child::finish(&mut command, git::QUERY_LIMIT).map_err(|error| {
        if git::is_missing(&error) { DiffError::NoGit } else { DiffError::Child(error) }
    })?;
    if !status.success() {
        // The temporary file is gone when the user reads this. git's option would not help either.
        let text = output.stderr.replace(&*file.to_string_lossy(), "the diff");
        let text = text.replace(" (allow with \"--allow-empty\")", "");
        return Err(DiffError::Git(printable(text.trim().trim_start_matches("error: "))));
    }
    let records = output.stdout.split('\0').filter(|record| !record.is_empty());
    Ok(records
        .map(|record| PathBuf::from(record.splitn(3, '\t').last().unwrap_or_default()))
        .collect())
}

/// Returns why a path must not be written to. git rejects these too.
fn is_unsafe(path: &Path) -> Option<&'static str> {
    // A name that is not UTF-8 was already altered on its way from git.
    if path.as_os_str().is_empty() || path.to_string_lossy().contains('\u{fffd}') {
        return Some("which is not a UTF-8 file name");
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

/// Writes a diff to a temporary file for git. Dropping the value removes it.
pub fn to_file(diff: &[u8]) -> io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("tramplab-").suffix(".patch").tempfile()?;
    file.write_all(diff)?;
    Ok(file)
}
