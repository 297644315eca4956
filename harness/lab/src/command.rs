// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command that measures, as the run keeps it.

use tramplab_model::{called::called, run::GivenOptions};

/// The command whose options a run can be made again from.
pub const VM_TEST: &str = "vm-test";

/// A command of this program.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    pub name: String,
    pub options: GivenOptions,
}

impl CommandLine {
    /// The command line that does the same again.
    pub fn line(&self) -> Vec<String> {
        let program = shell_words::split(called()).expect("quoted for a shell");
        program.into_iter().chain([self.name.clone()]).chain(self.options.words()).collect()
    }
}
