// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applies a patch to a tree, and nowhere outside it.

use super::{
    Patch,
    diff::{self, Change, DiffError, UNDAMAGED},
    printable,
};
use crate::git;
use std::{
    fmt, fs,
    io::{self, Read},
    path::{Component, Path, PathBuf},
};
use tramplab_host::{ChildError, child};
use tramplab_model::text;

/// Most lines shown of a hunk, and of the tree's file.
const SHOWN: usize = 40;

/// Most conflicts shown for one patch. git's message names all.
const MOST_CONFLICTS: usize = 8;

/// Most bytes of a file that are searched. The kernel's few longer files are generated.
const MOST_SEARCHED: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {patch}: {reason}")]
pub struct ApplyError {
    action: &'static str,
    patch: String,
    pub reason: ApplyReason,
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyReason {
    #[error("it does not fit the tree{}\ngit says:\n{git}", shown(.conflicts))]
    Conflicts { conflicts: Vec<Conflict>, git: String },
    #[error("git rejects it:\n{0}")]
    Git(String),
    #[error(transparent)]
    Diff(#[from] DiffError),
    #[error("it makes {} {what}; expected only files and links inside the tree", .path.display())]
    NoFile { path: PathBuf, what: String },
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error("failed to write the diff or read the files it changes: {0}")]
    Io(#[from] io::Error),
}

/// A hunk that does not fit the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub file: PathBuf,
    /// The line in the tree's file where the hunk begins.
    pub line: usize,
    /// The hunk as in the patch, from its `@@` on.
    pub hunk: String,
    /// The tree's most similar lines, with their numbers. `!` marks those that differ.
    pub there: String,
    /// They differ only in white space.
    pub is_respaced: bool,
}

fn shown(conflicts: &[Conflict]) -> String {
    conflicts.iter().map(|conflict| format!("\n{conflict}")).collect()
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { file, line, hunk, there, is_respaced } = self;
        let file = text::line(&file.to_string_lossy());
        write!(f, "{file}:{line}: this hunk does not fit:\n{hunk}")?;
        if there.is_empty() {
            write!(f, "the tree's {file} has no similar line")
        } else {
            write!(f, "the tree's {file} has (`!` where it differs):\n{}", there.trim_end())?;
            let hint = "\nthey differ only in white space, which mail programs replace: tabs, line \
                        ends, non-breaking spaces (U+00A0)";
            if *is_respaced { write!(f, "{hint}; {UNDAMAGED}") } else { Ok(()) }
        }
    }
}

/// Applies a patch to a tree, or reverts it. After a failure the tree may be half patched: a full
/// disk, or a file created where another needs a folder. The caller keeps the files to restore.
pub fn apply(patch: &Patch, tree: &Path, reverse: bool) -> Result<(), ApplyError> {
    let action = if reverse { "revert" } else { "apply" };
    try_apply(patch, tree, patch.reversed != reverse).map_err(|reason| ApplyError {
        action,
        patch: patch.label(),
        reason,
    })
}

fn try_apply(patch: &Patch, tree: &Path, turned: bool) -> Result<(), ApplyReason> {
    let file = diff::to_file(&patch.diff)?;
    // Asks git instead of trusting `patch.touched`: only the diff counts.
    let files = diff::touched(&patch.diff, patch.strip, file.path())?;
    let changes = diff::parse(&patch.diff, patch.strip);
    for option in ["--check", "--verbose"] {
        let mut command = git::apply(tree, patch.strip, file.path().as_os_str());
        command.args(turned.then_some("--reverse")).arg(option);
        let (status, output) = child::finish(&mut command, git::QUERY_LIMIT)?;
        if !status.success() {
            let git = printable(output.stderr.trim_end());
            let conflicts = conflicts(&changes, tree, turned, &git);
            return Err(match conflicts.is_empty() {
                true => ApplyReason::Git(git),
                false => ApplyReason::Conflicts { conflicts, git },
            });
        }
    }
    match find_escape(tree, &files)? {
        None => Ok(()),
        Some((path, what)) => Err(ApplyReason::NoFile { path, what }),
    }
}

/// Returns the hunks that git names in `error: patch failed: FILE:LINE`.
fn conflicts(changes: &[Change<'_>], tree: &Path, turned: bool, git: &str) -> Vec<Conflict> {
    let named =
        git.lines().filter_map(|line| line.strip_prefix("error: patch failed: ")?.rsplit_once(':'));
    let conflict = |(name, line): (&str, &str)| {
        let (file, line) = (PathBuf::from(name), line.parse::<usize>().ok()?);
        let change = changes.iter().find(|change| change.before(turned) == Some(&file))?;
        let range =
            |hunk: &diffy::Hunk<'_, [u8]>| if turned { hunk.new_range() } else { hunk.old_range() };
        let hunk = change.hunks().iter().find(|hunk| range(hunk).start() == line)?;
        let (there, is_respaced) =
            there(&tree.join(&file), &expected(hunk, turned), line).unwrap_or_default();
        Some(Conflict { file, line, hunk: text(hunk), there, is_respaced })
    };
    named.filter_map(conflict).take(MOST_CONFLICTS).collect()
}

/// Formats a hunk as in the diff. Truncates long ones.
fn text(hunk: &diffy::Hunk<'_, [u8]>) -> String {
    let function =
        hunk.function_context().map(|text| format!(" {}", line_of(text))).unwrap_or_default();
    let mut shown = format!("@@ -{} +{} @@{function}\n", hunk.old_range(), hunk.new_range());
    for line in hunk.lines().iter().take(SHOWN) {
        let (sign, text) = match line {
            diffy::Line::Context(text) => (' ', text),
            diffy::Line::Delete(text) => ('-', text),
            diffy::Line::Insert(text) => ('+', text),
        };
        shown.push_str(&format!("{sign}{}\n", line_of(text)));
    }
    if hunk.lines().len() > SHOWN {
        shown.push_str(&format!("… and {} more lines\n", hunk.lines().len() - SHOWN));
    }
    shown
}

/// Returns a line without its end, safe for a terminal.
fn line_of(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(400)]);
    printable(text.trim_end_matches('\n'))
}

/// Returns the lines that a hunk expects in the tree.
fn expected<'a>(hunk: &diffy::Hunk<'a, [u8]>, turned: bool) -> Vec<&'a [u8]> {
    let line = |line: &diffy::Line<'a, [u8]>| match line {
        diffy::Line::Context(text) => Some(*text),
        diffy::Line::Delete(text) => (!turned).then_some(*text),
        diffy::Line::Insert(text) => turned.then_some(*text),
    };
    hunk.lines().iter().filter_map(line).map(bare).collect()
}

fn bare(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

/// Returns the lines of a file that are most similar to `expected`, and whether they differ only in
/// white space. Ties go to the place nearest to `line`.
fn there(path: &Path, expected: &[&[u8]], line: usize) -> io::Result<(String, bool)> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(MOST_SEARCHED).read_to_end(&mut content)?;
    let lines: Vec<_> = content.split_inclusive(|byte| *byte == b'\n').map(bare).collect();
    let squeezed: Vec<Vec<u8>> = lines.iter().map(|line| without_spaces(line)).collect();
    let (whole, expected) = (expected, &expected[..expected.len().min(SHOWN)]);
    let wanted: Vec<Vec<u8>> = whole.iter().map(|line| without_spaces(line)).collect();
    // Ignores blank lines and lone braces, which are everywhere.
    let alike = |start: &usize| {
        let pairs = squeezed[*start..].iter().zip(&wanted[..expected.len()]);
        pairs.filter(|(there, wanted)| there == wanted && wanted.len() > 1).count()
    };
    let starts = 0..lines.len();
    let best = starts.max_by_key(|start| {
        (alike(start), std::cmp::Reverse(start.abs_diff(line.saturating_sub(1))))
    });
    let best = best.unwrap_or(0);
    let mut shown = String::new();
    for (index, wanted) in expected.iter().enumerate() {
        let number = best + index;
        let Some(text) = lines.get(number) else { break };
        let mark = if text == wanted { ' ' } else { '!' };
        shown.push_str(&format!("{:>6}{mark} {}\n", number + 1, line_of(text)));
    }
    let is_respaced = squeezed[best..].starts_with(&wanted) && !lines[best..].starts_with(whole);
    Ok((shown, is_respaced))
}

/// Returns a line without its white space, non-breaking spaces included.
fn without_spaces(line: &[u8]) -> Vec<u8> {
    let mut left = Vec::with_capacity(line.len());
    for (index, byte) in line.iter().enumerate() {
        let is_space = byte.is_ascii_whitespace()
            || line[index..].starts_with("\u{a0}".as_bytes())
            || (*byte == 0xa0 && index > 0 && line[index - 1] == 0xc2);
        if !is_space {
            left.push(*byte);
        }
    }
    left
}

/// Finds a touched file that is now a submodule's folder or a link out of the tree. The build would
/// follow it.
fn find_escape(tree: &Path, files: &[PathBuf]) -> io::Result<Option<(PathBuf, String)>> {
    for file in files {
        let path = tree.join(file);
        match fs::symlink_metadata(&path) {
            Ok(data) if data.is_dir() => return Ok(Some((file.clone(), "a submodule".to_owned()))),
            Ok(data) if data.is_symlink() => {
                let target = fs::read_link(&path)?;
                if leads_out(&target, file.components().count().saturating_sub(1)) {
                    return Ok(Some((file.clone(), format!("a link to {}", target.display()))));
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

/// True if a link leads out of the tree. `depth` is the number of folders above the link.
fn leads_out(target: &Path, mut depth: usize) -> bool {
    // git ensures that the link's own folders are not links. A `..` after a name could follow
    // another link.
    let mut climbing = true;
    let mut stays = |component| match component {
        Component::ParentDir if climbing && depth > 0 => {
            depth -= 1;
            true
        }
        Component::Normal(_) => {
            climbing = false;
            true
        }
        Component::CurDir => true,
        _ => false,
    };
    !target.components().all(&mut stays)
}
