// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running the cells of a plan, and recording their results.
//!
//! While cells run, each `cell.json` is the record of its cell. `run.json` is written before the
//! first cell, without results, and at the end, with all of them. [`RunDir::load`] completes the
//! former, if a run was killed.

use crate::{
    error::{Context, Result},
    event::{Event, Tell},
    lines::{self, Debug},
    nextest::cells::{Cells, End, JobEvent, Part, Selection},
    planned::Planned,
    run_dir::{now, now_in_milliseconds, point_latest_at},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
};
use tramplab_analysis::compare;
use tramplab_host::runs::{RunDir, Running, running};
use tramplab_model::{
    run::{Cell, CellId, ErrorKind, Outcome, Run, Shard, Test},
    text,
};
use tramplab_suite::{Plan, PlannedCell};

/// Runs the selected cells of a plan, and judges them.
pub fn run_cells(
    cells: &Cells,
    selection: &Selection,
    planned: Planned,
    tell: Tell,
) -> Result<Run> {
    let Planned { plan, run, run_dir, debug } = planned;
    let (plan, run_dir) = (&plan, &run_dir);
    clean_up_killed(run_dir, tell);
    let _running = Running::mark(run_dir)
        .with_context(|| format!("failed to write into {}", run_dir.path().display()))?;
    run_dir.save(&run)?;
    let mut recorder = Recorder::new(run_dir, run);
    let mut end = End::Done;
    if plan.jobs.is_empty() {
        let none = Event::Selected { folder: run_dir.path(), cells: &[], shard: None };
        recorder.record(none);
        tell(none);
    } else {
        let mut results = Results::new(plan, run_dir);
        let run = |selection: &Selection, results: &mut Results, recorder: &mut Recorder| {
            cells.run(plan, selection, false, |event| {
                results.read(event, &mut |event| {
                    recorder.record(event);
                    tell(event);
                });
            })
        };
        end = run(selection, &mut results, &mut recorder)?;
        let doubtful = recorder.doubtful(plan);
        if matches!(end, End::Done) && !doubtful.is_empty() {
            let alone = Some(NonZeroUsize::MIN);
            let again =
                Selection { jobs: alone, jobs_named: doubtful.clone(), ..Selection::default() };
            results.repeats(&doubtful);
            end = run(&again, &mut results, &mut recorder)?;
        }
    }
    tell(Event::CellsEnded);
    recorder.end(matches!(end, End::Interrupted), plan, &debug, tell)
}

/// Removes what killed runs beside this one left for no further use.
fn clean_up_killed(run_dir: &RunDir, tell: Tell) {
    for killed in run_dir.path().parent().map(running::killed).unwrap_or_default() {
        let removed = match running::tidy(&killed) {
            0 => String::new(),
            count => format!("; removed {}", text::counted(count, "leftover file")),
        };
        tell(Event::Line(&format!(
            "run {} was killed; its results are kept{removed}",
            killed.id()
        )));
    }
}

/// Keeps `run.json`.
struct Recorder<'a> {
    run_dir: &'a RunDir,
    run: Run,
    /// When the cells that still run started.
    started: BTreeMap<CellId, String>,
    /// The errors of cells that are repeated.
    doubted: BTreeMap<CellId, String>,
}

impl Recorder<'_> {
    fn new(run_dir: &RunDir, run: Run) -> Recorder<'_> {
        Recorder { run_dir, run, started: BTreeMap::new(), doubted: BTreeMap::new() }
    }

    /// The jobs with a guest that the host starved until nothing was known about it.
    fn doubtful(&self, plan: &Plan) -> Vec<String> {
        let is_doubtful = |planned: &PlannedCell| {
            let cell = self.run.cells.iter().find(|cell| cell.id == planned.id());
            cell.is_some_and(is_doubtful)
        };
        let jobs = plan.jobs.iter().filter(|job| job.cells.iter().any(is_doubtful));
        jobs.map(|job| job.name.clone()).collect()
    }

    fn record(&mut self, event: Event) {
        match event {
            Event::Selected { cells, shard, .. } => {
                self.run.missing = cells.to_vec();
                self.run.shard = shard.cloned().or(self.run.shard.take());
                // Ignore an error: the end of the run saves again, and reports it.
                let _ = self.run_dir.save(&self.run);
                point_latest_at(self.run_dir);
            }
            Event::Repeated(cells) => {
                let (again, kept) =
                    self.run.cells.drain(..).partition(|cell| cells.contains(&cell.id));
                self.run.cells = kept;
                self.doubted = errors(again);
                self.run.missing = cells.to_vec();
            }
            Event::Started { cells, .. } => {
                let now = now_in_milliseconds();
                self.started.extend(cells.iter().map(|id| (id.clone(), now.clone())));
            }
            Event::CellEnded(cell) => {
                self.run.missing.retain(|missing| *missing != cell.id);
                let started = self.started.remove(&cell.id);
                let repeated = self.doubted.remove(&cell.id);
                self.run.cells.push(Cell { started, repeated, ..cell.clone() });
            }
            _ => {}
        }
    }

    fn end(mut self, interrupted: bool, plan: &Plan, debug: &[Debug], tell: Tell) -> Result<Run> {
        let run = &mut self.run;
        // A run that lacks a cell has not passed, whatever nextest says.
        run.interrupted = interrupted || !run.missing.is_empty();
        if run.interrupted {
            running::tidy(self.run_dir);
        }
        run.finished = Some(now());
        // Completion order is nondeterministic; restore suite order. Builds are not in the plan;
        // they come first.
        run.cells
            .sort_by_cached_key(|cell| plan.cells().position(|planned| planned.id() == cell.id));
        compare::judge(run);
        if !debug.is_empty() {
            // A series may have made what source lines are read from: keep the results first.
            self.run_dir.save(run)?;
        }
        lines::add(run, debug, tell);
        self.run_dir.save(run)?;
        Ok(self.run)
    }
}

fn is_doubtful(cell: &Cell) -> bool {
    matches!(cell.outcome, Outcome::Error { kind: ErrorKind::Starved, .. })
}

/// The doubtful cells' errors. Others of their jobs are repeated with them.
fn errors(cells: Vec<Cell>) -> BTreeMap<CellId, String> {
    let doubtful = cells.into_iter().filter(is_doubtful);
    doubtful.filter_map(|cell| Some((cell.id, cell.outcome.reason()?))).collect()
}

/// Makes events of cells out of nextest's events of jobs.
struct Results<'a> {
    plan: &'a Plan,
    run_dir: &'a RunDir,
    cancelled: bool,
    /// These are not the first results.
    repeats: bool,
    /// Kernels whose failed boot was told.
    boots: BTreeSet<String>,
}

impl<'a> Results<'a> {
    fn new(plan: &'a Plan, run_dir: &'a RunDir) -> Results<'a> {
        Results { plan, run_dir, cancelled: false, repeats: false, boots: BTreeSet::new() }
    }

    /// Forgets the results of these jobs, which run once more.
    fn repeats(&mut self, jobs: &[String]) {
        self.repeats = true;
        for id in self.cells_of(jobs) {
            self.run_dir.remove_cell(&id);
        }
    }

    fn read(&mut self, event: JobEvent, tell: &mut dyn FnMut(Event)) {
        match event {
            JobEvent::Selected { jobs, .. } if self.repeats => {
                tell(Event::Repeated(&self.cells_of(&jobs)));
            }
            JobEvent::Selected { jobs, part } => {
                let shard = part.map(|Part { partition, jobs }| Shard {
                    partition,
                    cells: self.cells_of(&jobs),
                });
                let (folder, cells) = (self.run_dir.path(), &self.cells_of(&jobs));
                tell(Event::Selected { folder, cells, shard: shard.as_ref() });
            }
            JobEvent::Started { job } => {
                tell(Event::Started { job, cells: &self.cells_of(&[job.to_owned()]) });
            }
            JobEvent::Slow { job, elapsed, will_terminate } => {
                tell(Event::Slow { job, elapsed, will_terminate });
            }
            JobEvent::Cancelled => {
                self.cancelled = true;
                tell(Event::Cancelled);
            }
            JobEvent::Finished { job: name, how, timed_out, taken } => {
                if let Some(job) = self.plan.jobs.iter().find(|job| job.name == name) {
                    for planned in &job.cells {
                        self.ended(planned, &how, timed_out, taken.as_millis() as u64, tell);
                    }
                }
                tell(Event::Ended { job: name });
            }
        }
    }

    fn cells_of(&self, jobs: &[String]) -> Vec<CellId> {
        let jobs = self.plan.jobs.iter().filter(|job| jobs.contains(&job.name));
        jobs.flat_map(|job| &job.cells).map(|cell| cell.id()).collect()
    }

    fn ended(
        &mut self,
        planned: &PlannedCell,
        how: &str,
        timed_out: bool,
        duration_ms: u64,
        tell: &mut dyn FnMut(Event),
    ) {
        // Left if the cell was stopped meanwhile.
        self.run_dir.remove_smaller(&planned.id());
        let cell = match self.run_dir.load_cell(&planned.id()) {
            Ok(Some(cell)) => cell,
            Ok(None) if self.cancelled => return tell(Event::CellStopped(&planned.id())),
            Ok(None) => {
                let how = match self.run_dir.partial(&planned.id()).exists() {
                    true => format!("{how}; its first boots are in partial.json"),
                    false => how.to_owned(),
                };
                let cell = self.without_result(planned, &how, timed_out, duration_ms);
                // Ignore an error: the end of the run records the cell as well.
                let _ = self.run_dir.save_cell(&cell);
                cell
            }
            // The unreadable file stays as it is: it may hold the measurement.
            Err(error) => self.without_result(planned, &error.to_string(), false, duration_ms),
        };
        if matches!(cell.outcome, Outcome::Error { .. }) {
            self.tell_boot(&cell.id, tell);
        }
        tell(Event::CellEnded(&cell));
    }

    /// The first cell whose kernel does not boot also leaves the result of the kernel's cell
    /// `boot`.
    fn tell_boot(&mut self, of: &CellId, tell: &mut dyn FnMut(Event)) {
        let boot = CellId { test: Test::Boot, ..of.clone() };
        let is_planned = self.plan.cells().any(|cell| cell.id() == boot);
        if !is_planned
            && !self.boots.contains(&boot.name())
            && let Ok(Some(cell)) = self.run_dir.load_cell(&boot)
        {
            self.boots.insert(boot.name());
            tell(Event::CellEnded(&cell));
        }
    }

    /// The result of a cell whose process left none.
    fn without_result(
        &self,
        planned: &PlannedCell,
        how: &str,
        timed_out: bool,
        duration_ms: u64,
    ) -> Cell {
        let kind = if timed_out { ErrorKind::Timeout } else { ErrorKind::Harness };
        let message = format!("the cell's process left no result: {how}");
        let outcome = Outcome::Error { kind, message };
        Cell { duration_ms, ..Cell::without_result(planned.id(), outcome) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::{fs, time::Duration};
    use time::{OffsetDateTime, format_description::well_known::Rfc3339};
    use tramplab_model::run::{Accel, Arch};

    const KERNELS: [&str; 3] = ["ended", "lost", "damaged"];

    fn id(kernel: &str) -> CellId {
        CellId {
            kernel: kernel.to_owned(),
            arch: Arch::X86_64,
            accel: Accel::Tcg,
            test: Test::Boot,
        }
    }

    /// One job with a `boot` cell on each kernel.
    fn plan(run_dir: &RunDir) -> Plan {
        let cell = |kernel: &str| -> Value {
            json!({
                "kernel": kernel, "arch": "x86_64", "accel": "tcg", "work": { "boot": {} },
                "backend": "qemu", "kernel_image": "", "initrd": "", "cpus": 1, "memory_mib": 1024,
                "boot_seconds": 90, "append": [], "budgets": [],
                "tolerance": tramplab_model::run::Tolerance::default(),
                "skip": null,
            })
        };
        let cells = KERNELS.map(cell);
        let plan = json!({
            "run_dir": run_dir.path(),
            "emulators": {},
            "jobs": [{ "name": "job", "more_boots": false, "cells": cells }],
        });
        serde_json::from_value(plan).unwrap()
    }

    #[test]
    fn keeps_partial_boots_and_damaged_files_of_cells_without_result() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        run_dir.save_cell(&Cell::without_result(id("ended"), Outcome::Pass)).unwrap();
        run_dir.save_partial(&Cell::without_result(id("lost"), Outcome::Pass)).unwrap();
        let damaged = run_dir.cell(&id("damaged")).join("cell.json");
        fs::create_dir_all(damaged.parent().unwrap()).unwrap();
        fs::write(&damaged, "{").unwrap();

        let plan = plan(&run_dir);
        let mut ended = Vec::new();
        let finished = JobEvent::Finished {
            job: "job",
            how: "signal 9".to_owned(),
            timed_out: false,
            taken: Duration::from_secs(1),
        };
        Results::new(&plan, &run_dir).read(finished, &mut |event| {
            if let Event::CellEnded(cell) = event {
                ended.push((cell.id.kernel.clone(), cell.outcome.name()));
            }
        });
        let expected = [("ended", "pass"), ("lost", "error"), ("damaged", "error")];
        assert_eq!(ended, expected.map(|(kernel, outcome)| (kernel.to_owned(), outcome)));
        assert!(run_dir.partial(&id("lost")).exists());
        let lost = run_dir.load_cell(&id("lost")).unwrap().expect("a record of its own");
        assert!(lost.outcome.reason().unwrap().contains("partial.json"), "{:?}", lost.outcome);
        assert_eq!(fs::read_to_string(&damaged).unwrap(), "{");
    }

    #[test]
    fn keeps_when_a_cell_started() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let run = Run { cells: Vec::new(), ..tramplab_testdata::stored() };
        let mut recorder = Recorder::new(&run_dir, run);
        let (before, cells) = (now_in_milliseconds(), [id("ended")]);
        recorder.record(Event::Started { job: "job", cells: &cells });
        for kernel in ["ended", "taken over"] {
            recorder.record(Event::CellEnded(&Cell::without_result(id(kernel), Outcome::Pass)));
        }
        let [first, second] = &recorder.run.cells[..] else { panic!("two cells") };
        let parsed = |time: &str| OffsetDateTime::parse(time, &Rfc3339).unwrap();
        let started = parsed(first.started.as_ref().unwrap());
        assert!((parsed(&before)..=parsed(&now_in_milliseconds())).contains(&started));
        assert_eq!(second.started, None);
    }

    #[test]
    fn repeats_cells_that_a_starved_host_made_doubtful() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let plan = plan(&run_dir);
        let run = Run { cells: Vec::new(), ..tramplab_testdata::stored() };
        let mut recorder = Recorder::new(&run_dir, run);
        let error = |kind| Outcome::Error { kind, message: "stuck".to_owned() };
        for (kernel, kind) in [("ended", ErrorKind::Lockup), ("lost", ErrorKind::Starved)] {
            let cell = Cell::without_result(id(kernel), error(kind));
            run_dir.save_cell(&cell).unwrap();
            recorder.record(Event::CellEnded(&cell));
        }
        assert_eq!(recorder.doubtful(&plan), ["job"]);

        let mut results = Results::new(&plan, &run_dir);
        results.repeats(&["job".to_owned()]);
        assert!(run_dir.load_cell(&id("lost")).unwrap().is_none(), "a result of the first attempt");
        let selected = JobEvent::Selected { jobs: vec!["job".to_owned()], part: None };
        results.read(selected, &mut |event| recorder.record(event));
        assert_eq!((recorder.run.cells.len(), recorder.run.missing.len()), (0, KERNELS.len()));
        for kernel in ["ended", "lost"] {
            let cell = Cell::without_result(id(kernel), error(ErrorKind::Lockup));
            recorder.record(Event::CellEnded(&cell));
        }
        let repeated = recorder.run.cells.iter().map(|cell| cell.repeated.as_deref());
        assert_eq!(Vec::from_iter(repeated), [None, Some("starved host: stuck")]);
        assert!(recorder.doubtful(&plan).is_empty());
    }

    #[test]
    fn cells_stopped_by_an_interrupt_have_no_result() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let plan = plan(&run_dir);
        let mut results = Results::new(&plan, &run_dir);
        results.read(JobEvent::Cancelled, &mut |_| ());
        let mut stopped = Vec::new();
        let (how, taken) = ("signal 2".to_owned(), Duration::ZERO);
        results.read(
            JobEvent::Finished { job: "job", how, timed_out: false, taken },
            &mut |event| {
                if let Event::CellStopped(id) = event {
                    stopped.push(id.kernel.clone());
                }
            },
        );
        assert_eq!(stopped, KERNELS);
        assert!(KERNELS.iter().all(|kernel| run_dir.load_cell(&id(kernel)).unwrap().is_none()));
    }
}
