// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks `docs/run-json.md` against the types.

use serde_json::Value;
use std::collections::BTreeSet;
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

/// Collects the fields and the fixed strings of a schema.
fn names(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            for (word, rule) in map {
                match (word.as_str(), rule) {
                    ("properties", Value::Object(fields)) => found.extend(fields.keys().cloned()),
                    ("const", Value::String(name)) => _ = found.insert(name.clone()),
                    ("enum", Value::Array(names)) => {
                        found.extend(names.iter().filter_map(Value::as_str).map(str::to_owned));
                    }
                    _ => {}
                }
                names(rule, found);
            }
        }
        Value::Array(all) => all.iter().for_each(|schema| names(schema, found)),
        _ => {}
    }
}

#[test]
fn every_field_and_variant_is_documented() {
    let mut schema: Value = serde_json::from_str(SCHEMA).unwrap();
    // Only runs of tramplab's own tests have them.
    schema["$defs"]["Fault"].take();
    let mut found = BTreeSet::new();
    names(&schema, &mut found);
    let (page, _) = SCHEMA_PAGE.split_once("## Example").expect("the example is last");
    let is_documented = |name: &&String| {
        page.contains(&format!("`{name}`")) || page.contains(&format!("\"{name}\""))
    };
    let (documented, missing): (Vec<_>, Vec<_>) = found.iter().partition(is_documented);
    assert!(missing.is_empty(), "not in docs/run-json.md: {missing:?}");
    assert!(documented.len() > 200, "{documented:?}");
}
