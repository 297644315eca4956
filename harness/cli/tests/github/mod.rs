// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lints the workflows and the action in `.github/`, and runs their steps here as scripts.
//!
//! The runner here honours `run`, `env`, `if` and `id` of a step. Of GitHub's expressions it knows
//! those that our files use: the contexts `inputs`, `steps`, `needs` and `matrix`, `always()`,
//! `startsWith`, `contains`, comparisons, `!`, `&&`, `||`. It does not run a step with `uses`, but
//! records the step's inputs.

mod ci_script;
mod expressions;
mod jobs;
mod lint;
mod pull_request;
mod runner;

use crate::command::repository;
use runner::{Done, Runner};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};
use tramplab_host::config;
use tramplab_testdata::git::run as git;

fn read(file: &str) -> Value {
    config::load(&repository().join(file)).unwrap()
}

const ACTION: &str = ".github/actions/measure/action.yml";
const WORKFLOW: &str = ".github/workflows/measure.yml";

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn steps(of: &Value) -> &Vec<Value> {
    of["steps"].as_array().unwrap()
}

/// Runs the action in its own folder.
fn act(folder: &Path, inputs: &[(&str, &str)]) -> Done {
    fs::create_dir_all(folder).unwrap();
    let action = read(ACTION);
    let mut values = BTreeMap::new();
    for (name, input) in action["inputs"].as_object().unwrap() {
        values.insert(format!("inputs.{name}"), text(&input["default"]));
    }
    for (name, value) in inputs {
        let known = values.insert(format!("inputs.{name}"), (*value).to_owned());
        assert!(known.is_some(), "the action has no input {name}");
    }
    Runner { folder, values }.run(steps(&action["runs"]))
}

/// Runs a job of the workflow, with tramplab checked out in its place.
fn job(folder: &Path, name: &str, values: &[(&str, &str)]) -> Done {
    fs::create_dir_all(folder).unwrap();
    let _ = std::os::unix::fs::symlink(repository(), folder.join("tramplab"));
    let workflow = read(WORKFLOW);
    let runner = Runner { folder, values: BTreeMap::new() };
    runner.with(values).run(steps(&workflow["jobs"][name]))
}

/// fentry passes, fexit fails: two cells, so two shards.
const SUITE: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  \
                     - lbr_waste: { mechanisms: [fexit, fentry] }\n\
                     budgets:\n  - wasted: { fexit: { any: 1 }, fentry: { any: 1000 } }\n";
