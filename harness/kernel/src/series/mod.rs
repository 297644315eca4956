// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patch series: reading them as they are sent and kept, and applying them to a tree.
//!
//! ```text
//! spec ─► load ─► file ─► mail ─► thread ─► Series ─► apply
//!           │       └─ quilt, series.yaml: their own order
//!           └─ b4 (a message-id)
//! BASE..HEAD ─► range ─► Series
//! ```

mod apply;
mod b4;
pub mod diff;
mod file;
mod git;
mod load;
pub mod mail;
pub mod name;
pub mod placebo;
pub mod quilt;
pub mod range;
pub mod subject;
#[cfg(test)]
mod tests;
pub mod thread;

pub use apply::{ApplyError, Conflict, apply};
pub use b4::B4Error;
pub use diff::DiffError;
pub use load::{SeriesError, load, names};
pub use range::{Range, RangeError};

// Several lines, as git says them; tabs stay, as diffs have them.
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tramplab_model::text::line;
use tramplab_model::text::marked as printable;

/// Patches in the order in which they are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Short, fit for a cell's name: letters, digits, `.`, `_`, `+`, `-`.
    pub name: String,
    /// The cover letter's subject without its `[PATCH …]`, or of a single patch its own.
    pub title: Option<String>,
    /// The commit the series says it applies to.
    pub base_commit: Option<String>,
    /// The tree has the patches: the base is made by taking them out, from the last to the first.
    pub reverse: bool,
    pub patches: Vec<Patch>,
    /// What its `series.yaml` says of it, if it has one.
    pub shipped: Option<Shipped>,
    /// Of a range of commits: the trees that the patches are to make.
    pub commits: Option<range::Commits>,
    /// For the user: what was found and left out (an older version, a message that is no patch).
    pub notes: Vec<String>,
}

/// A series that is described by a `series.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shipped {
    pub title: String,
    /// What the series is said to do, in one line.
    pub claim: String,
    /// The name of the kernel's manifest that it applies to.
    pub kernel: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// From 1, as the series counts.
    pub number: usize,
    /// Without `[PATCH …]`.
    pub subject: String,
    /// For messages: the file, or the message in it, that it was read from.
    pub origin: String,
    /// The unified diff, as `git apply` takes it.
    pub diff: Vec<u8>,
    /// How many leading folders its file names have too many: 1 but for a quilt series that says otherwise.
    pub strip: usize,
    /// It is kept the wrong way round (quilt's `-R`).
    pub reversed: bool,
    /// The files it touches, by their old names and by their new ones, each once, sorted.
    pub touched: Vec<PathBuf>,
}

impl Series {
    /// The patches in the order in which they are applied: the last first when the series is taken out.
    pub fn ordered(&self) -> Vec<&Patch> {
        let mut patches: Vec<_> = self.patches.iter().collect();
        if self.reverse {
            patches.reverse();
        }
        patches
    }

    /// Stands for what applying the series does, not for how it is named or was sent.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for patch in self.ordered() {
            let turned = patch.reversed != self.reverse;
            hash.update(format!("{} {turned} {}\n", patch.strip, patch.diff.len()));
            hash.update(&patch.diff);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The patch behind a line of the patched tree, as a compiler names it: the last one applied with a hunk there.
    /// Without one: the last that touches the file at all.
    pub fn blame(&self, file: &Path, line: usize) -> Option<&Patch> {
        let (mut file, mut line) = (file.to_owned(), line);
        let mut toucher = None;
        for patch in self.ordered().into_iter().rev() {
            match patch.line_before(&file, line, self.reverse) {
                diff::Before::InHunk => return Some(patch),
                diff::Before::At(before, at) => {
                    if toucher.is_none() && patch.touched.contains(&file) {
                        toucher = Some(patch);
                    }
                    (file, line) = (before, at);
                }
            }
        }
        toucher
    }
}

impl Patch {
    /// How errors name it.
    pub fn label(&self) -> String {
        format!("patch {} ({})", self.number, line(&self.subject))
    }

    /// The files it touches, by their old names and by their new ones.
    pub fn files(&self) -> Vec<PathBuf> {
        self.touched.clone()
    }

    /// Whether a line of the file, as this patch leaves it, is in one of its hunks.
    pub fn touches_line(&self, file: &Path, line: usize) -> bool {
        matches!(self.line_before(file, line, false), diff::Before::InHunk)
    }

    fn line_before(&self, file: &Path, line: usize, reverse: bool) -> diff::Before {
        let turned = self.reversed != reverse;
        diff::line_before(&diff::parse(&self.diff, self.strip), file, line, turned)
    }
}
