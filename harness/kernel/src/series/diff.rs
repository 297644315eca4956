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
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Seek, Write},
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
    process::Stdio,
};
use tramplab_host::{ChildError, child, packages::install_line};

/// The way out for a patch that was damaged in a mail.
pub const UNDAMAGED: &str = "get the patch as it was sent, with `b4 am` or as an mbox from \
                             lore.kernel.org";

/// The files and folders at the top of kernel trees. A name in a diff that begins with one of them
/// has no prefix such as `a/`.
const TOP: [&str; 34] = [
    "Documentation",
    "Kbuild",
    "Kconfig",
    "LICENSES",
    "MAINTAINERS",
    "Makefile",
    "README",
    "arch",
    "block",
    "certs",
    "crypto",
    "drivers",
    "fs",
    "include",
    "init",
    "io_uring",
    "ipc",
    "kernel",
    "lib",
    "localversion-next",
    "localversion-rt",
    "mm",
    "net",
    "rust",
    "samples",
    "scripts",
    "security",
    "sound",
    "tools",
    "usr",
    "virt",
    ".gitignore",
    ".mailmap",
    "CREDITS",
];

#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    #[error("it is truncated: its last line, `{0}`, has no end; get the whole diff")]
    Cut(String),
    #[error(
        "line {line} of the diff, `{text}`, continues the line before it: a mail program wrapped \
         long lines; {UNDAMAGED}"
    )]
    Wrapped { line: usize, text: String },
    #[error(
        "line {line} of the diff begins with a non-breaking space (U+00A0): a mail program \
         replaced the spaces; {UNDAMAGED}"
    )]
    NonBreaking { line: usize },
    #[error("git cannot read it: {0}; expected a unified diff as `git format-patch` writes it")]
    Git(String),
    #[error("it names `{}`, {why}; expected a path inside the tree", .path.display())]
    Unsafe { path: PathBuf, why: &'static str },
    #[error(
        "it has no new content for `{}`; make it with `git format-patch --binary`",
        .0.display()
    )]
    NoContents(PathBuf),
    #[error("git is not installed, but it applies patches: {}", install_line(&["git"]))]
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

/// Finds how many leading parts of a diff's names to remove: 0 if all names begin with a folder of
/// the kernel's, as `git diff --no-prefix` writes them; else 1.
pub fn strip(diff: &[u8]) -> usize {
    let heads = lines(diff).filter(|(_, in_hunk, _)| !in_hunk);
    let name = |(_, _, line): (usize, bool, &[u8])| {
        let starts: [&[u8]; 3] = [b"diff --git ", b"--- ", b"+++ "];
        let name = starts.iter().find_map(|start| line.strip_prefix(*start))?;
        let name = name.strip_prefix(b"\"").unwrap_or(name);
        let end = name.iter().position(|byte| b"/ \t\r\"".contains(byte));
        Some(name[..end.unwrap_or(name.len())].to_owned())
    };
    // Nothing precedes the slash of /dev/null. A line such as `---` or `-- ` has no name.
    let firsts: BTreeSet<Vec<u8>> =
        heads.filter_map(name).filter(|first| !first.is_empty()).collect();
    let is_top = |first: &Vec<u8>| TOP.iter().any(|top| top.as_bytes() == *first);
    usize::from(firsts.is_empty() || !firsts.iter().all(is_top))
}

/// Finds the damage of a mail program within a hunk.
fn damage(diff: &[u8]) -> Option<DiffError> {
    for (index, _, line) in lines(diff).filter(|(_, in_hunk, _)| *in_hunk) {
        // A hunk that is cut off is followed by a head.
        if line.starts_with(b"@@ ") || line.starts_with(b"diff ") {
            return None;
        }
        if line.starts_with("\u{a0}".as_bytes()) || line.starts_with(b"\xa0") {
            return Some(DiffError::NonBreaking { line: index + 1 });
        }
        // GNU diff writes an empty line of context as an empty line.
        if !matches!(line.first(), None | Some(b' ' | b'+' | b'-' | b'\\')) {
            let text = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
            return Some(DiffError::Wrapped { line: index + 1, text: printable(&text) });
        }
    }
    None
}

/// Returns a diff's lines with their indexes. True for those inside a hunk.
fn lines(diff: &[u8]) -> impl Iterator<Item = (usize, bool, &[u8])> {
    let (mut old, mut new) = (0_u64, 0_u64);
    diff.split(|byte| *byte == b'\n').enumerate().map(move |(index, line)| {
        let in_hunk = (old, new) != (0, 0);
        match line.first() {
            _ if !in_hunk => (old, new) = hunk(line).unwrap_or_default(),
            Some(b' ') | None => (old, new) = (old.saturating_sub(1), new.saturating_sub(1)),
            Some(b'-') => old = old.saturating_sub(1),
            Some(b'+') => new = new.saturating_sub(1),
            _ => {}
        }
        (index, in_hunk, line)
    })
}

/// Reads how many lines of the old and the new file a hunk has: `@@ -1,2 +1,3 @@`.
fn hunk(line: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(line.strip_prefix(b"@@ -")?.split(|byte| *byte == b'@').next()?);
    let (old, new) = text.ok()?.trim_end().split_once(" +")?;
    let count =
        |range: &str| range.split_once(',').map_or(Some(1), |(_, count)| count.parse().ok());
    Some((count(old)?, count(new)?))
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
    let read = named_by_git(strip, file, None);
    let mut files = read.map_err(|error| match error {
        DiffError::Git(_) => damage(diff).unwrap_or(error),
        error => error,
    })?;
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
