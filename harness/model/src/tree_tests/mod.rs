// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel tree's own tests: the names and the ends of tests. `kernel::compile::tree_tests`
//! builds them, `suite::tree_tests` runs them.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

mod name;
mod ran;

use std::collections::BTreeSet;

pub use name::{Name, NotAName, Program};
pub use ran::{End, LeftOut, Subtest, TreeTest};

/// The tests that a run needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedTests {
    pub bench: bool,
    /// Tests of `test_progs`.
    pub tests: BTreeSet<Name>,
    /// Files in `prog_tests/` that a series adds or changes. Every test in them is wanted.
    pub files: BTreeSet<String>,
    /// Programs of other folders of `tools/testing/selftests`.
    pub programs: BTreeSet<Program>,
}

impl WantedTests {
    /// Returns true if BPF programs must be compiled.
    pub fn bpf(&self) -> bool {
        self.bench || self.test_progs()
    }

    pub fn test_progs(&self) -> bool {
        !self.tests.is_empty() || !self.files.is_empty()
    }
}

/// The test of `test_progs` that reads branch records. It skips itself if there are none.
pub const SNAPSHOT_TEST: &str = "get_branch_snapshot";

const ABSENT: &str = "this kernel's tree has no ";

/// The reason to skip a test that the kernel's tree lacks.
pub fn absent(what: &str, name: impl std::fmt::Display) -> String {
    format!("{ABSENT}{what} `{name}`")
}

/// Returns true if this is the reason. A run records only the reason's text.
pub fn is_absent(reason: &str) -> bool {
    reason.starts_with(ABSENT)
}

/// Folder of all selftests in the kernel tree.
pub const ROOT: &str = "tools/testing/selftests";
/// Folder of the BPF selftests.
pub const FOLDER: &str = "tools/testing/selftests/bpf";
