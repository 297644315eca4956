// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict on a whole run.

use crate::compare;
use tramplab_model::run::{Outcome, Run, Test};

/// Documented in the README as exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Each cell passed, or was skipped with a reason.
    Pass,
    /// A cell exceeds its budget, or is worse than its base.
    Fail,
    /// A cell, or the whole comparison, has no measurement.
    NoMeasurement,
    Interrupted,
}

pub fn verdict(run: &Run) -> Verdict {
    let any = |of: fn(&Outcome) -> bool| run.cells.iter().any(|cell| of(&cell.outcome));
    if run.interrupted {
        return Verdict::Interrupted;
    }
    if any(|outcome| matches!(outcome, Outcome::Fail { .. })) {
        return Verdict::Fail;
    }
    // A build measures nothing.
    let only_builds = run.cells.iter().all(|cell| cell.id.test == Test::Build);
    // One shard may compare nothing: it is judged together with the others.
    if any(|outcome| matches!(outcome, Outcome::Error { .. }))
        || only_builds
        || (run.shard.is_none() && compares_nothing(run))
        || run.shortage().is_some()
    {
        return Verdict::NoMeasurement;
    }
    Verdict::Pass
}

/// True if on some architecture no number of the head has one of the base beside it.
fn compares_nothing(run: &Run) -> bool {
    run.series.iter().any(|series| {
        let comparison = compare::whole(run, series, None);
        // A series that brings its own tests is judged by them.
        comparison.is_empty() && !comparison.unmatched.iter().any(|unmatched| unmatched.is_new)
    })
}
