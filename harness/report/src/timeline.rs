// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's own time, as a trace that Perfetto and `chrome://tracing` show (JSON, "Trace Event
//! Format"): a slice for each cell, on as many tracks as cells ran at once.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

use crate::json::printed;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tramplab_model::run::{Arch, Cell, Run, Test};

const BUILDS: u32 = 1;
const RUN: u32 = 2;

pub fn render(run: &Run) -> String {
    let mut events = Vec::new();
    // Kernels are built one after the other before a run starts; only how long it took is kept.
    let mut now: u64 = 0;
    for cell in run.cells.iter().filter(|cell| is_build(cell)) {
        events.push(slice(cell, BUILDS, 0, now.into()));
        now = now.saturating_add(cell.duration_ms);
    }
    let start = now;
    let started = parsed(&run.started);
    let since = |at: &str| {
        let [at, started] = [parsed(at)?, started?].map(OffsetDateTime::unix_timestamp_nanos);
        let passed = at.saturating_sub(started) / 1_000_000;
        // A rerun took over cells of an earlier run, which stand before it.
        Some(passed.saturating_add(start.into()))
    };
    let mut cells: Vec<(i128, &Cell)> = run
        .cells
        .iter()
        .filter(|cell| !is_build(cell))
        .filter_map(|cell| Some((since(cell.started.as_deref()?)?, cell)))
        .collect();
    cells.sort_by_key(|(at, _)| *at);
    // A job has a test's cells on all kernels, and they take turns: one start is known for all.
    let mut taken: BTreeMap<(i128, Arch, String), i128> = BTreeMap::new();
    for (at, cell) in &mut cells {
        let before = taken.entry((*at, cell.id.arch, cell.id.test.name())).or_default();
        *at = at.saturating_add(*before);
        *before = before.saturating_add(cell.duration_ms.into());
    }
    cells.sort_by_key(|(at, _)| *at);
    // Times count from the first of all.
    let shift = cells.first().map_or(0, |(at, _)| i128::from(start).saturating_sub(*at).max(0));
    let mut tracks: Vec<i128> = Vec::new();
    for (at, cell) in &cells {
        let end = at.saturating_add(cell.duration_ms.into());
        let free = tracks.iter().position(|until| until <= at);
        let track = free.unwrap_or_else(|| {
            tracks.push(0);
            tracks.len().saturating_sub(1)
        });
        tracks[track] = end;
        events.push(slice(cell, RUN, track.saturating_add(1), at.saturating_add(shift)));
    }
    let name = |process: u32, name: &str| {
        json!({
            "ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name},
        })
    };
    if let Some(end) = run.finished.as_deref().and_then(since) {
        let whole = json!({
            "ph": "X", "cat": "run", "name": format!("run {}", run.id), "pid": RUN, "tid": 0,
            "ts": micros(shift.saturating_add(start.into())),
            "dur": micros(end.saturating_sub(start.into())),
            "args": {"suite": run.suite.name, "command": shell_words::join(&run.command)},
        });
        events.push(whole);
    }
    if start > 0 {
        events.push(name(BUILDS, "builds, before the run: only their durations are known"));
    }
    events.push(name(RUN, "cells"));
    let known: BTreeSet<String> = cells.iter().map(|(_, cell)| cell.id.name()).collect();
    let unknown = |cell: &&Cell| !is_build(cell) && !known.contains(&cell.id.name());
    let unknown: Vec<String> =
        run.cells.iter().filter(unknown).map(|cell| cell.id.name()).collect();
    let trace = json!({
        "displayTimeUnit": "ms",
        "otherData": {"run": run.id, "started": run.started, "cells_without_start": unknown},
        "traceEvents": events,
    });
    printed(&trace)
}

fn is_build(cell: &Cell) -> bool {
    cell.id.test == Test::Build
}

fn parsed(time: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(time, &Rfc3339).ok()
}

/// Converts milliseconds. A stranger's file may have any.
fn micros(ms: i128) -> i64 {
    let us = ms.saturating_mul(1000);
    i64::try_from(us).unwrap_or(i64::MAX)
}

/// `ts` and `dur` are in microseconds.
fn slice(cell: &Cell, process: u32, track: usize, at_ms: i128) -> Value {
    let mut facts = json!({"outcome": cell.outcome.name()});
    if let Some(reason) = cell.outcome.reason() {
        facts["reason"] = reason.into();
    }
    if let Some(boot) = cell.boot_ms {
        facts[if cell.restored { "restore_ms" } else { "boot_ms" }] = boot.into();
    }
    json!({
        "ph": "X", "cat": cell.id.test.kind().name(), "name": cell.id.name(), "pid": process,
        "tid": track, "ts": micros(at_ms), "dur": micros(cell.duration_ms.into()),
        "args": facts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_testdata::series;

    fn events(run: &Run) -> (Vec<Value>, Value) {
        let trace: Value = serde_json::from_str(&render(run)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let slices = events.iter().filter(|event| event["ph"] == "X" && event["cat"] != "run");
        (slices.cloned().collect(), trace)
    }

    #[test]
    fn cells_stand_where_they_ran_and_no_track_has_two_at_once() {
        let mut run = series();
        // A second apart, and each for longer: two at a time.
        let timed = run.cells.iter_mut().filter(|cell| !is_build(cell));
        for (index, cell) in timed.enumerate() {
            cell.started = Some(format!(
                "2026-11-21T15:{:02}:{:02}.500Z",
                52 + (27 + index) / 60,
                (27 + index) % 60
            ));
            cell.duration_ms = 1500;
        }
        let (slices, trace) = events(&run);
        assert_eq!(slices.len(), run.cells.len());
        let built: u64 =
            run.cells.iter().filter(|cell| is_build(cell)).map(|cell| cell.duration_ms).sum();
        let of = |name: &str| slices.iter().find(|slice| slice["name"] == name).unwrap();
        let first = run.cells.iter().find(|cell| !is_build(cell)).unwrap();
        // The run started at 15:52:26.
        assert_eq!(of(&first.id.name())["ts"], (built + 1500) * 1000);
        let mut ends: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for slice in &slices {
            let number = |name: &str| slice[name].as_u64().unwrap();
            let end = ends.entry((number("pid"), number("tid"))).or_default();
            assert!(number("ts") >= *end, "{slice}");
            *end = number("ts") + number("dur");
        }
        let tracks = ends.keys().filter(|(process, _)| *process == u64::from(RUN)).count();
        assert_eq!(tracks, 2);
        assert_eq!(trace["otherData"]["cells_without_start"], json!([]));
        let whole = trace["traceEvents"].as_array().unwrap().iter().find(|it| it["cat"] == "run");
        assert_eq!(whole.unwrap()["dur"], 144_000_000, "15:52:26 to 15:54:50");
    }

    #[test]
    fn cells_of_one_job_take_turns() {
        let mut run = series();
        let start = "2026-11-21T15:52:27.000Z";
        for cell in run.cells.iter_mut().filter(|cell| !is_build(cell)) {
            cell.started = Some(start.to_owned());
            cell.duration_ms = 1000;
        }
        let (slices, _) = events(&run);
        let tests: BTreeSet<String> = run.cells.iter().map(|cell| cell.id.test.name()).collect();
        let of_run = slices.iter().filter(|slice| slice["pid"] == RUN);
        let tracks: BTreeSet<u64> = of_run.map(|slice| slice["tid"].as_u64().unwrap()).collect();
        assert_eq!(tracks.len(), tests.len() - 1, "one for each test but the builds");
    }

    /// Numbers of a stranger's file.
    #[test]
    fn takes_every_duration() {
        let mut run = series();
        run.cells.iter_mut().for_each(|cell| {
            cell.duration_ms = u64::MAX;
            cell.started = Some("2026-11-21T15:52:27.000Z".to_owned());
        });
        let (slices, _) = events(&run);
        assert_eq!(slices.len(), run.cells.len());
        // A start behind the largest number stays there and does not come before the builds.
        let of_run: Vec<&Value> = slices.iter().filter(|slice| slice["pid"] == RUN).collect();
        assert!(!of_run.is_empty());
        assert!(of_run.iter().all(|slice| slice["ts"] == i64::MAX), "{of_run:?}");
    }

    #[test]
    fn names_cells_whose_start_is_not_known() {
        let run = series();
        let (slices, trace) = events(&run);
        let builds = run.cells.iter().filter(|cell| is_build(cell)).count();
        assert_eq!(slices.len(), builds);
        let unknown = trace["otherData"]["cells_without_start"].as_array().unwrap().len();
        assert_eq!(unknown, run.cells.len() - builds);
    }

    /// A rerun has cells that ran before it.
    #[test]
    fn no_slice_begins_before_zero() {
        let mut run = series();
        let cell = run.cells.iter_mut().find(|cell| !is_build(cell)).unwrap();
        cell.started = Some("2026-11-20T00:00:00.000Z".to_owned());
        let (slices, _) = events(&run);
        assert!(slices.iter().all(|slice| slice["ts"].as_i64().unwrap() >= 0));
        assert!(slices.iter().any(|slice| slice["cat"] != "build"));
    }
}
