// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a unified diff changes: files, by their names, and lines.
//!
//! Which files, is for git to say, as git applies it. diffy finds the hunks, for what errors show; where it does not
//! understand a diff that git does, less is shown.

use super::{git, printable};
use diffy::{
    Hunk,
    binary::BinaryPatch,
    patch_set::{FileOperation, FilePatch, ParseOptions, PatchKind, PatchSet},
};
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
};
use tramplab_host::{ChildError, child};

#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    #[error("it is cut off: its last line, `{0}`, has no end; get it again, whole")]
    Cut(String),
    #[error("git cannot read it: {0}; expected a unified diff as `git format-patch` writes it")]
    Git(String),
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

/// The changes to the files of a diff, as far as they can be made out.
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
    // Somebody has added a plain diff to git's by hand: as a plain one it can be read to its end.
    if plain.len() > git.len() { plain } else { git }
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

/// The files that a diff touches, by their old and their new names, sorted. All are inside the tree. An error says
/// what keeps the diff from being applied to any tree. `file` holds the diff.
pub fn touched(diff: &[u8], strip: usize, file: &Path) -> Result<Vec<PathBuf>, DiffError> {
    if let Some(line) = cut_line(diff) {
        return Err(DiffError::Cut(line));
    }
    // Either way round it names the file that is made.
    let mut files = named_by_git(strip, file, None)?;
    files.extend(named_by_git(strip, file, Some("--reverse"))?);
    files.sort();
    files.dedup();
    if let Some((path, why)) = files.iter().find_map(|path| Some((path, is_unsafe(path)?))) {
        return Err(DiffError::Unsafe { path: path.clone(), why });
    }
    let hollow = |change: &Change<'_>| matches!(change.file.patch(), PatchKind::Binary(BinaryPatch::Marker));
    match parse(diff, strip).into_iter().find(hollow) {
        Some(change) => Err(DiffError::NoContents(change.new.or(change.old).unwrap_or_default())),
        None => Ok(files),
    }
}

fn named_by_git(strip: usize, file: &Path, direction: Option<&str>) -> Result<Vec<PathBuf>, DiffError> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let mut command = git::apply(folder, strip, file.as_os_str());
    command.args(["--numstat", "-z"]).args(direction);
    let (status, output) = child::finish(&mut command, git::LIMIT)
        .map_err(|error| if git::is_missing(&error) { DiffError::NoGit } else { DiffError::Child(error) })?;
    if !status.success() {
        // The file's name is ours and gone when this is read; an option of git's helps nobody.
        let text = output.stderr.replace(&*file.to_string_lossy(), "the diff");
        let text = text.replace(" (allow with \"--allow-empty\")", "");
        return Err(DiffError::Git(printable(text.trim().trim_start_matches("error: "))));
    }
    let records = output.stdout.split('\0').filter(|record| !record.is_empty());
    Ok(records.map(|record| PathBuf::from(record.splitn(3, '\t').last().unwrap_or_default())).collect())
}

/// Why a path may not be written to. git refuses these too.
fn is_unsafe(path: &Path) -> Option<&'static str> {
    // What is not UTF-8 has lost its bytes on the way from git.
    if path.as_os_str().is_empty() || path.to_string_lossy().contains('\u{fffd}') {
        return Some("which is no file name in UTF-8");
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
                before = before.saturating_add(pre.len()).saturating_sub(post.len());
            }
        }
        if let Some(name) = change.before(turned) {
            name.clone_into(&mut path);
        }
    }
    Before::At(path, before)
}
