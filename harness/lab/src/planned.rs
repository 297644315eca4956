// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run before its first cell.

use crate::lines::Debug;
use tramplab_host::runs::RunDir;
use tramplab_model::run::{self, Arch, Run};
use tramplab_suite::Plan;

/// Its kernels are there, and what will boot is known.
pub struct Planned {
    pub(crate) plan: Plan,
    pub(crate) run: Run,
    pub(crate) run_dir: RunDir,
    pub(crate) debug: Vec<Debug>,
}

impl Planned {
    pub fn machine(&self, arch: Arch) -> Option<&run::Machine> {
        self.run.machines.iter().find(|machine| machine.arch == arch)
    }

    /// For a run whose folder is named by its place among others.
    pub fn with_id(mut self, id: String) -> Planned {
        self.run.id = id;
        self
    }

    pub fn with_notes(mut self, notes: Vec<String>) -> Planned {
        self.run.notes = notes;
        self
    }
}
