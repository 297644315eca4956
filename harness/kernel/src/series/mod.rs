// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patch series: reads them in the forms people send and keep them, and applies them to a tree.
//!
//! ```text
//! spec ─► load ─► file ─► mail ─► thread ─► Series ─► apply
//!           │       │                └─ reroll: a version that replaces some patches
//!           │       ├─ packed: compressed files, archives
//!           │       └─ quilt, series.yaml: their own order
//!           └─ b4 (a message-id)
//! BASE..HEAD ─► range ─► thread
//! ```

mod apply;
mod b4;
pub mod diff;
mod file;
mod load;
pub mod mail;
pub mod name;
pub mod options;
mod packed;
pub mod placebo;
pub mod quilt;
pub mod range;
mod reroll;
mod shipped;
pub mod subject;
#[cfg(test)]
mod tests;
pub mod thread;

pub use apply::{ApplyError, ApplyReason, Conflict, apply};
pub use b4::B4Error;
pub use diff::DiffError;
pub use load::{SeriesError, from_range, ids, load, onto, schema};
pub use range::{Range, RangeError};
pub use shipped::{is_shipped, names};

use sha2::{Digest, Sha256};
use std::path::PathBuf;
use tramplab_model::published::Published;
use tramplab_model::run::{Arch, PatchIds};
use tramplab_model::text::line;
use tramplab_model::text::marked as printable;

/// A series. Its patches are in build order.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Short and fit for a cell's name: letters, digits, `.`, `_`, `+`, `-`.
    pub name: String,
    /// The cover letter's subject, or a single patch's own, without its `[PATCH …]`.
    pub title: Option<String>,
    /// The base commit that the series names.
    pub base_commit: Option<String>,
    /// The tree already has the patches. The base is made by reverting them, the last one first.
    pub reverse: bool,
    /// The number of patches, from the first, that only prepare the tree. The base has them.
    pub base: usize,
    pub patches: Vec<Patch>,
    /// The message-id of the cover letter.
    pub cover: Option<String>,
    /// Patch-ids of patches that the tree must have, as the messages name them.
    pub prerequisites: Vec<String>,
    /// The description from its `series.yaml`, if it has one.
    pub shipped: Option<Shipped>,
    /// For a range of commits: the trees that the patches must produce.
    pub commits: Option<range::Commits>,
    /// Notes for the user, such as messages that were skipped.
    pub notes: Vec<String>,
}

/// The description of a series in its `series.yaml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Shipped {
    pub title: String,
    /// The series' claimed effect, in one line.
    pub claim: String,
    /// The manifest's name of the kernel that it applies to.
    pub kernel: String,
    /// Numbers of it that were published.
    pub published: Vec<Published>,
    /// The architectures on which it changes something. Empty: every one.
    pub arches: Vec<Arch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Position in the series, from 1.
    pub number: usize,
    pub ids: PatchIds,
    /// Without `[PATCH …]`.
    pub subject: String,
    /// For messages: the file, or the message within a file, that the patch was read from.
    pub origin: String,
    /// The unified diff, as `git apply` takes it.
    pub diff: Vec<u8>,
    /// Number of leading path components to strip (`-p`). 1, unless a quilt series says otherwise.
    pub strip: usize,
    /// The diff is stored reversed (quilt's `-R`).
    pub reversed: bool,
    /// The files it touches, under their old and new names, without duplicates, sorted.
    pub touched: Vec<PathBuf>,
}

impl Series {
    /// The patches in the order of their application: the last first if the series is reverted.
    pub fn ordered(&self) -> Vec<&Patch> {
        let mut patches: Vec<_> = self.patches.iter().collect();
        if self.reverse {
            patches.reverse();
        }
        patches
    }

    /// Hashes the effect of applying the series. Names and transport do not count.
    pub fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for patch in self.ordered() {
            let turned = patch.reversed != self.reverse;
            hash.update(format!("{} {turned} {}\n", patch.strip, patch.diff.len()));
            hash.update(&patch.diff);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Patch {
    /// Names the patch in errors.
    pub fn label(&self) -> String {
        format!("patch {} ({})", self.number, line(&self.subject))
    }
}
