// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on runs that were recorded with each schema, shortened to one cell of each kind.

use super::{RunDir, StoreError};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};
use tramplab_model::run::{
    Attach, Cell, Measurement, Run, SCHEMA,
    migrate::{self, OLDEST},
};

const RECORDED: [(u32, &str); 8] = [
    (1, include_str!("testdata/schema-1.json")),
    (2, include_str!("testdata/schema-2.json")),
    (2, include_str!("testdata/schema-2-series.json")),
    (3, include_str!("testdata/schema-3-first.json")),
    (3, include_str!("testdata/schema-3.json")),
    (4, include_str!("testdata/schema-4-first.json")),
    (5, include_str!("testdata/schema-5-first.json")),
    (6, include_str!("testdata/schema-6-first.json")),
];
const SERIES_OF_2: usize = 2;
const FIRST_OF_3: usize = 3;
const LAST_OF_3: usize = 4;
const FIRST_OF_4: usize = 5;

fn stored(number: usize) -> Value {
    serde_json::from_str(RECORDED[number].1).unwrap()
}

fn load(value: &Value) -> Result<Run, StoreError> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.json"), value.to_string()).unwrap();
    RunDir::load(folder.path())
}

fn loaded(number: usize) -> Run {
    load(&stored(number)).unwrap()
}

fn attach_of(run: &Run) -> Attach {
    let found = run.cells.iter().find_map(|cell| match &cell.measurement {
        Some(Measurement::Attach(attach)) => Some(attach.clone()),
        _ => None,
    });
    found.expect("an attach cell")
}

#[test]
fn reads_every_schema() {
    let schemas: BTreeSet<u32> = RECORDED.iter().map(|(schema, _)| *schema).collect();
    assert_eq!(schemas, BTreeSet::from_iter(OLDEST..=SCHEMA), "record a run of each schema");
    for (number, &(schema, _)) in RECORDED.iter().enumerate() {
        let before = stored(number);
        assert_eq!(before["schema"], schema);
        let run = loaded(number);
        assert_eq!(
            (run.schema, run.cells.len()),
            (SCHEMA, before["cells"].as_array().unwrap().len())
        );
        for (cell, before) in run.cells.iter().zip(before["cells"].as_array().unwrap()) {
            assert_eq!(serde_json::to_value(&cell.id).unwrap(), before["id"]);
            assert_eq!(cell.measurement.is_none(), before["measurement"].is_null());
        }
    }
}

/// The run with schema 4 was migrated by hand when schema 4 was made.
#[test]
fn migrates_schema_3_to_schema_4() {
    assert_eq!(migrate::run(stored(LAST_OF_3), 3), migrate::run(stored(FIRST_OF_4), 4));
}

/// Only hardware records hid interrupts. Those of traces were counted.
#[test]
fn forgets_interrupts_that_schema_4_could_not_see() {
    for (source, expected) in [("hardware", None), ("virtual", Some(0))] {
        let mut before = stored(FIRST_OF_4);
        for cell in before["cells"].as_array_mut().unwrap() {
            if let Some(waste) = cell["measurement"].get_mut("lbr_waste") {
                waste["source"] = source.into();
            }
        }
        let run = load(&before).unwrap();
        let found = run.cells.iter().find_map(|cell| match &cell.measurement {
            Some(Measurement::LbrWaste(waste)) => Some(waste.interrupted_hits),
            _ => None,
        });
        assert_eq!(found, Some(expected), "{source}");
    }
}

#[test]
fn keeps_recorded_values_and_invents_none() {
    let first = loaded(0);
    let attach = attach_of(&first);
    assert_eq!(attach.boots.len(), 1);
    let times = &stored(0)["cells"][2]["measurement"]["attach"]["rounds"][0];
    assert_eq!(attach.boots[0].rounds[0].attach_ns, times["attach_ns"].as_u64().unwrap());
    assert_eq!(attach.boots[0].rounds[0].memory_kib, None);
    // Schema 1 recorded only QEMU of the guests' machines.
    assert_eq!(first.machines, []);
    let qemu = stored(0)["host"]["qemu"].as_str().unwrap().to_owned();
    assert!(matches!(&first.notes[..], [note] if note.contains(&qemu)), "{:?}", first.notes);

    let machine = &loaded(SERIES_OF_2).machines[0];
    assert_eq!((machine.qemu.as_deref(), machine.cpu.as_str()), (Some(qemu.as_str()), "max"));
    assert_eq!(loaded(SERIES_OF_2).series[0].steps.len(), 3);
    assert_eq!(loaded(FIRST_OF_3).tolerance.exact_percent, 0.5);
}

/// `sha256sum` gives this digest of the names, one per line.
#[test]
fn digests_function_names() {
    let boots = attach_of(&loaded(SERIES_OF_2)).boots;
    let digest = "f680619c825bfb8bb26f072a1fd614c935e64e393863c091fba85defebfa0ad7";
    assert_eq!((boots.len(), boots[0].functions, boots[0].list_sha256.as_str()), (6, 10, digest));
}

#[test]
fn drops_a_profile_of_unknown_size_with_a_note() {
    let [first, last] = [FIRST_OF_3, LAST_OF_3].map(|number| attach_of(&loaded(number)));
    assert!(first.explained.is_empty() && first.unexplained.len() == 1, "{:?}", first.unexplained);
    assert!(!last.explained.is_empty() && last.unexplained.is_empty());
}

/// Cells that ended after the last save have the run's schema without naming it.
#[test]
fn reads_the_late_cells_of_a_killed_run_of_an_older_schema() {
    let mut before = stored(SERIES_OF_2);
    let late = before["cells"].as_array_mut().unwrap().pop().unwrap();
    (before["finished"], before["interrupted"]) = (Value::Null, true.into());
    let folder = tempfile::tempdir().unwrap();
    let cell = folder.path().join("cells/late");
    fs::create_dir_all(&cell).unwrap();
    fs::write(folder.path().join("run.json"), before.to_string()).unwrap();
    fs::write(cell.join("cell.json"), late.to_string()).unwrap();
    let run = RunDir::load(folder.path()).unwrap();
    let last: &Cell = run.cells.last().unwrap();
    assert_eq!(serde_json::to_value(&last.id).unwrap(), late["id"]);
    assert_eq!(
        attach_of(&run).boots.len(),
        late["measurement"]["attach"]["boots"].as_array().unwrap().len()
    );
}

#[test]
fn rejects_future_and_unknown_schemas() {
    for found in [0, u64::from(SCHEMA) + 1, u64::MAX] {
        let mut run = stored(FIRST_OF_4);
        run["schema"] = found.into();
        run["machines"] = json!("of another shape");
        let error = load(&run).unwrap_err();
        assert!(
            matches!(error, StoreError::Schema { found: told, .. } if told == found),
            "{error}"
        );
        assert!(error.is_usage());
    }
}

/// The migration must not panic: the reader rejects the result later.
#[test]
fn migrates_invalid_runs_without_panic() {
    for wrong in
        [json!(null), json!([]), json!({}), json!({"cells": [1, {"measurement": {"attach": 1}}]})]
    {
        for schema in OLDEST..=SCHEMA {
            let _ = migrate::run(wrong.clone(), schema.into());
            let _ = migrate::cell(wrong.clone(), schema.into());
        }
    }
}
