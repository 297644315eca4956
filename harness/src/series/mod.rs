// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patch series: reading them as they are sent and kept, and applying them to a tree.

/// Patches in the order in which they are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Short, fit for a cell's name: letters, digits, `.`, `_`, `+`, `-`.
    pub name: String,
    /// The cover letter's subject without its `[PATCH …]`, or of a single patch its own.
    pub title: Option<String>,
    /// The commit the series says it applies to.
    pub base_commit: Option<String>,
    /// Taken out instead of put in: from the last patch to the first.
    pub reverse: bool,
    pub patches: Vec<Patch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Without `[PATCH …]`.
    pub subject: String,
    /// For messages: the file, or the message in it, that it was read from.
    pub origin: String,
    /// The unified diff, as `git apply` takes it.
    pub diff: Vec<u8>,
}
