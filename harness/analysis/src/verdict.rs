// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict on a whole run.

use crate::compare;
use tramplab_model::run::{BranchSource, Cell, Outcome, Run, Series, Test};

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
    // One shard may measure or compare nothing: it is judged together with the others.
    if any(|outcome| matches!(outcome, Outcome::Error { .. }))
        || only_builds
        || misses_all_functions(run)
        || misses_all_switches(run)
        || misses_all_records(run)
        || (run.shard.is_none() && compares_nothing(run))
        || run.shortage().is_some()
    {
        return Verdict::NoMeasurement;
    }
    Verdict::Pass
}

/// True if the user named functions and none was measured: their names may be wrong. Another shard
/// may have measured some.
pub fn misses_all_functions(run: &Run) -> bool {
    let mut named = run.cells.iter().filter(|cell| cell.id.test.names_functions()).peekable();
    run.shard.is_none()
        && named.peek().is_some()
        && named.all(|cell| matches!(cell.outcome, Outcome::Skip { .. }))
}

/// True if guests were given switches that their kernels did not take, and nothing was measured:
/// the words may be wrong. Another shard may have measured something.
pub fn misses_all_switches(run: &Run) -> bool {
    let is_skip = |cell: &Cell| matches!(cell.outcome, Outcome::Skip { .. });
    let is_missed = |cell: &Cell| cell.guest.as_ref().is_some_and(|it| !it.not_taken.is_empty());
    let mut guests = run.cells.iter().filter(|cell| cell.id.test != Test::Build);
    run.shard.is_none() && guests.clone().any(is_missed) && guests.all(is_skip)
}

/// True if the user asked for emulated branch records and no guest's driver handed any over.
/// Another shard may have some.
pub fn misses_all_records(run: &Run) -> bool {
    let asked = run.options.as_ref().and_then(|options| options.0.get("branches"));
    let is_asked =
        asked.is_some_and(|all| all.iter().any(|one| one == BranchSource::Emulated.name()));
    let mut waste = run.cells.iter().filter(|cell| matches!(cell.id.test, Test::LbrWaste(_)));
    let all_skip = waste.all(|cell| matches!(cell.outcome, Outcome::Skip { .. }));
    run.shard.is_none() && is_asked && all_skip
}

/// True if on some architecture no number of the head has one of the base beside it. On one of
/// several CPUs all may be skipped.
fn compares_nothing(run: &Run) -> bool {
    let compares = |series: &&Series| {
        let comparison = compare::whole(run, series, None);
        // A series that brings its own tests is judged by them.
        !comparison.is_empty() || comparison.unmatched.iter().any(|unmatched| unmatched.is_new)
    };
    let mut arches = run.series.iter().map(|series| series.arch);
    arches.any(|arch| {
        let mut of_arch = run.series.iter().filter(|series| series.arch == arch);
        !of_arch.any(|series| compares(&series))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mistyped sysctl skips every cell.
    #[test]
    fn a_run_whose_kernels_took_no_switch_measured_nothing() {
        let mut run = tramplab_testdata::two_architectures();
        let measured = run.cells.clone();
        for cell in &mut run.cells {
            cell.outcome = Outcome::Skip { reason: "no such sysctl".to_owned() };
            cell.measurement = None;
        }
        assert_eq!(verdict(&run), Verdict::Pass);
        let guest = run.cells.iter_mut().find_map(|cell| cell.guest.as_mut()).unwrap();
        guest.not_taken = vec!["sysctl.kernel.nope=1: no such sysctl".to_owned()];
        assert_eq!(verdict(&run), Verdict::NoMeasurement);
        // Another configuration took them.
        run.cells.extend(measured);
        assert_eq!(verdict(&run), Verdict::Pass);
    }

    /// A CPU whose records no kernel of the run reads.
    #[test]
    fn a_run_without_the_emulated_records_that_were_asked_for_measured_nothing() {
        let mut run = tramplab_testdata::two_architectures();
        let measured = run.cells.clone();
        for cell in &mut run.cells {
            cell.outcome = Outcome::Skip { reason: "no driver".to_owned() };
        }
        for (branches, expected) in
            [("virtual", Verdict::Pass), ("emulated", Verdict::NoMeasurement)]
        {
            let asked = [("branches".to_owned(), vec![branches.to_owned()])];
            run.options = Some(tramplab_model::run::GivenOptions(asked.into()));
            assert_eq!(verdict(&run), expected, "{branches}");
        }
        run.cells.extend(measured);
        assert_eq!(verdict(&run), Verdict::Pass);
    }

    /// A mistyped function is skipped by every mechanism, and nothing was measured.
    #[test]
    fn a_run_whose_functions_are_all_skipped_measured_nothing() {
        let mut run = tramplab_testdata::two_architectures();
        let skip = || Outcome::Skip { reason: "no such function".to_owned() };
        let cell = |run: &Run, test: &str, outcome| {
            let id = run.cells[0].id.clone();
            let test = test.parse().unwrap();
            Cell::without_result(tramplab_model::run::CellId { test, ..id }, outcome)
        };
        let named = cell(&run, "lbr_waste/fexit@sys_typo", skip());
        let other = cell(&run, "lbr_waste/fexit@__sys_bpf", Outcome::Pass);
        let unnamed = cell(&run, "lbr_waste/fsession", skip());
        for (cells, expected) in [
            (vec![named.clone()], Verdict::NoMeasurement),
            (vec![named, other], Verdict::Pass),
            (vec![unnamed], Verdict::Pass),
            // The section of its program is mistyped.
            (vec![cell(&run, "attach/fentry=typo/1", skip())], Verdict::NoMeasurement),
        ] {
            run.cells = cells;
            assert_eq!(verdict(&run), expected, "{:?}", run.cells);
        }
    }
}
