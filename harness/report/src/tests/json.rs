// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks `docs/run-json.md` and `docs/run.schema.json` against the types.

use serde_json::Value;
use tramplab_analysis::branch::waste;
use tramplab_model::run::{Measurement, Run};

const SCHEMA: &str = include_str!("../../../../docs/run.schema.json");
const SCHEMA_PAGE: &str = include_str!("../../../../docs/run-json.md");

fn documented_example() -> &'static str {
    let (_, rest) = SCHEMA_PAGE.split_once("```json\n").expect("an example");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_documented_example_is_a_run() {
    let run: Run = serde_json::from_str(documented_example()).expect("a run");
    let value: Value = serde_json::from_str(documented_example()).unwrap();
    assert_eq!(serde_json::to_value(&run).unwrap(), value, "no field is left out");
    assert_eq!(run.schema, tramplab_model::run::SCHEMA);
    // The counts shown are those of the records shown.
    let Some(Measurement::LbrWaste(measured)) = &run.cells[0].measurement else {
        panic!("no waste")
    };
    let counted =
        waste::table(run.cells[0].id.arch, &measured.points[0].records, &measured.function);
    for (model, filters) in &measured.points[0].wasted {
        for (filter, count) in filters {
            assert_eq!(counted[model][filter], *count, "{model} {filter}");
        }
    }
}

/// Numbers that their names describe.
const PLAIN: [&str; 14] = [
    "cpus",
    "fail",
    "kprobes",
    "links",
    "maps",
    "memory_kib",
    "memory_mib",
    "ok",
    "percpu_kib",
    "programs",
    "seed",
    "skip",
    "thread",
    "vmalloc_kib",
];

/// True for an integer, a number, a list of them, and for each of these or null.
fn is_number(rule: &Value) -> bool {
    let is = |kind: &Value| kind == "integer" || kind == "number";
    match &rule["type"] {
        Value::Array(kinds) => kinds.iter().any(is),
        kind if kind == "array" => is(&rule["items"]["type"]),
        kind => is(kind),
    }
}

#[test]
fn every_number_is_described() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let types = schema["$defs"].as_object().unwrap();
    let (mut described, mut missing) = (0, Vec::new());
    for (name, rule) in types {
        for (field, number) in rule["properties"].as_object().into_iter().flatten() {
            if !is_number(number) || PLAIN.contains(&field.as_str()) {
                continue;
            }
            match number["description"].is_string() {
                true => described += 1,
                false => missing.push(format!("{name}.{field}")),
            }
        }
    }
    assert!(missing.is_empty(), "without a doc comment: {missing:?}");
    assert!(described > 60, "{described}");
}
