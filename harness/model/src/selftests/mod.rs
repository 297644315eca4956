// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel tree's own tests: what their programs print, and which of them are not to run. Pure.
//! How they are built is `kernel::compile::selftests`; how they are run, `suite::selftests`.

mod name;
mod ran;

use std::collections::BTreeSet;

pub use name::{Name, NotAName, Program};
pub use ran::{End, LeftOut, Subtest, TreeTest};

/// What of them a run takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub bench: bool,
    /// Of `test_progs`.
    pub tests: BTreeSet<Name>,
    /// Files in `prog_tests/` of which every test is wanted: what a series adds or changes.
    pub files: BTreeSet<String>,
    /// Of other folders of `tools/testing/selftests`.
    pub programs: BTreeSet<Program>,
}

impl Wanted {
    /// Whether BPF programs are compiled for it.
    pub fn bpf(&self) -> bool {
        self.bench || self.test_progs()
    }

    pub fn test_progs(&self) -> bool {
        !self.tests.is_empty() || !self.files.is_empty()
    }
}

/// Of `test_progs`, the test of branch records. Without them it skips itself.
pub const SNAPSHOT_TEST: &str = "get_branch_snapshot";

const ABSENT: &str = "this kernel's tree has no ";

/// Why a kernel skips a test that its tree has not.
pub fn absent(what: &str, name: impl std::fmt::Display) -> String {
    format!("{ABSENT}{what} `{name}`")
}

/// Whether that is why it was skipped: a run has no other word on it.
pub fn is_absent(reason: &str) -> bool {
    reason.starts_with(ABSENT)
}

/// Where the kernel's tree has all of them.
pub const ROOT: &str = "tools/testing/selftests";
/// And those of BPF.
pub const FOLDER: &str = "tools/testing/selftests/bpf";
