// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of a run, for whoever shows or records it.

use std::{path::Path, time::Duration};
use tramplab_model::run::{Cell, CellId, Shard};

/// Something that happened while a run was prepared or while its cells ran.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The current step: fetching, building, booting.
    Step(&'a str),
    /// A message that the user should still see when the run has ended.
    Line(&'a str),
    /// A line of cargo's standard error.
    Cargo(&'a str),
    /// Progress of make in one kernel.
    Build {
        kernel: &'a str,
        done: u64,
        total: u64,
    },
    /// The kernel's build ended, well or not.
    BuildEnded,
    /// The cells that will run, and the run's folder. No cell has started yet.
    Selected {
        folder: &'a Path,
        cells: &'a [CellId],
        shard: Option<&'a Shard>,
    },
    /// These cells ended in doubt, since the host starved their guests. They run once more, one job
    /// at a time.
    Repeated(&'a [CellId]),
    /// A job started. Its cells share one process; see [`tramplab_suite::Job`].
    Started {
        job: &'a str,
        cells: &'a [CellId],
    },
    Slow {
        job: &'a str,
        elapsed: Duration,
        will_terminate: bool,
    },
    /// The user interrupted the run: running guests are being stopped.
    Cancelled,
    /// A cell has its result.
    CellEnded(&'a Cell),
    /// A cell was stopped by the interrupt and has no result.
    CellStopped(&'a CellId),
    Ended {
        job: &'a str,
    },
    /// No more cells run.
    CellsEnded,
}

/// Consumes events. Several threads may call it.
pub type Tell<'a> = &'a (dyn Fn(Event<'_>) + Sync);
