// SPDX-License-Identifier: MIT OR Apache-2.0
//! The candidates of a bisection.

use super::{Commit, Mark, Next};
use crate::error::Result;

/// The commits of a history, or configurations.
pub trait Space {
    /// The candidate to test next, after these verdicts.
    fn next(&mut self, good: &str, bad: &str, verdicts: &[(String, Mark)]) -> Result<Next>;

    fn commit(&self, id: &str) -> Result<Commit>;

    /// The files that a commit changes.
    fn stat(&self, id: &str) -> Result<String>;

    /// The name of several candidates.
    fn noun(&self) -> &'static str;

    /// The first lines of the report about what these verdicts found. None: those of a commit.
    fn headline(
        &mut self,
        question: &str,
        ends: [&str; 2],
        verdicts: &[(String, Mark)],
    ) -> Result<Option<String>>;
}
