// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choice of what a report shows.

use tramplab_analysis::branch::{Filter, Model};
use tramplab_model::cpu;

/// The parts of a run to show.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The modelled CPU. If it does not fit a kernel's architecture, the architecture's first.
    pub model: Option<Model>,
    /// The depth of that CPU, if it is one and not a family.
    pub depth: Option<u32>,
    /// The name of that CPU, if it is one: guests that booted as another are shown as they booted.
    pub cpu: Option<String>,
    /// Listings are shown for these filters.
    pub listings: Vec<Filter>,
    /// So are the counts of snapshots taken earlier.
    pub what_if: Vec<Filter>,
    /// Listings also show the source lines that are known.
    pub lines: bool,
}

impl View {
    /// Asks for the details of a series.
    pub fn is_full(&self) -> bool {
        self.lines || !self.listings.is_empty() || !self.what_if.is_empty()
    }

    /// The model for guests that booted so. A CPU is not the model of those that booted as another.
    pub fn model_of(&self, booted: Option<&cpu::Named>) -> Option<Model> {
        let is_other = |asked: &String| booted.is_some_and(|own| own.name != *asked);
        self.model.filter(|_| !self.cpu.as_ref().is_some_and(is_other))
    }
}
