// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks `docs/run-json.md` against the types.

use super::{run, series};
use std::collections::BTreeSet;
use tramplab_analysis::{
    branch::{Filter, Model, waste},
    profile::{Phase, Space, Unit},
};
use tramplab_model::run::{Backend, Clock, ErrorKind, Measurement, Run};
use tramplab_protocol::{Functions, Mechanism, message::Explain};

const SCHEMA_PAGE: &str = include_str!("../../../../docs/run-json.md");

fn documented_example() -> &'static str {
    let (_, rest) = SCHEMA_PAGE.split_once("```json\n").expect("an example");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_documented_example_is_a_run() {
    let run: Run = serde_json::from_str(documented_example()).expect("a run");
    let value: serde_json::Value = serde_json::from_str(documented_example()).unwrap();
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

/// Collects every key of an object.
fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
            found.insert(key.clone());
            keys(value, found);
        }),
        serde_json::Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

/// Returns a variant's name in JSON.
fn variant(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).unwrap().as_str().expect("a variant without fields").to_owned()
}

#[test]
fn every_field_and_variant_is_documented() {
    let mut names = BTreeSet::new();
    for run in [serde_json::from_str(documented_example()).unwrap(), run(), series()] {
        keys(&serde_json::to_value(&run).unwrap(), &mut names);
    }
    // The keys that are names of models and filters are documented with the definitions.
    let elsewhere = |name: &String| name.parse::<Model>().is_ok() || name.parse::<Filter>().is_ok();
    names.retain(|name| !elsewhere(name));
    names.extend(Mechanism::ALL.map(|m| m.name().to_owned()));
    names.extend(Phase::ALL.map(|phase| phase.name().to_owned()));
    names.extend(error_kinds().into_iter().map(variant));
    names.extend([Clock::Free, Clock::Exact].map(variant));
    names.extend([Backend::Qemu, Backend::VirtmeNg].map(variant));
    names.extend([Explain::Exact, Explain::Sampled].map(variant));
    names.extend(["notes", "shard", "partition", "joined", "runs", "expected"].map(str::to_owned));
    names.extend(["lines", "places", "text", "grown", "shrunk", "new", "gone"].map(str::to_owned));
    names.extend([Unit::Instructions, Unit::Samples, Unit::Nanoseconds].map(variant));
    names.extend([Space::Kernel, Space::User].map(variant));
    names.insert(variant(Functions::All));
    let (page, _) = SCHEMA_PAGE.split_once("## Example").expect("the example is last");
    let undocumented: Vec<_> = names
        .iter()
        .filter(|name| {
            !page.contains(&format!("`{name}`")) && !page.contains(&format!("\"{name}\""))
        })
        .collect();
    assert!(undocumented.is_empty(), "not in docs/run-json.md: {undocumented:?}");
    assert!(names.len() > 60, "{names:?}");
}

/// Returns all kinds. A new one does not compile without its place here.
fn error_kinds() -> Vec<ErrorKind> {
    use ErrorKind::*;
    let mut kinds = vec![Panic];
    loop {
        kinds.push(match kinds[kinds.len() - 1] {
            Panic => Oops,
            Oops => RcuStall,
            RcuStall => HungTask,
            HungTask => Lockup,
            Lockup => Warning,
            Warning => Silence,
            Silence => Build,
            Build => BootTimeout,
            BootTimeout => Timeout,
            Timeout => QemuExit,
            QemuExit => QemuStart,
            QemuStart => Protocol,
            Protocol => Guest,
            Guest => Program,
            Program => Trace,
            Trace => Harness,
            Harness => return kinds,
        });
    }
}
