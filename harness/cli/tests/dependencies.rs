// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dependencies keep the promise that the README makes.

use semver::Version;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

/// The main workspace, and the fuzz targets' with its own lock file.
const MANIFESTS: [(&str, &str); 2] =
    [("../../Cargo.toml", "tramplab"), ("../fuzz/Cargo.toml", "tramplab-fuzz")];

/// What `cargo metadata` says of a workspace and of all that it depends on.
fn metadata(manifest: &str) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .args(["--filter-platform", "aarch64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn packages(manifest: &str) -> Vec<Value> {
    metadata(manifest)["packages"].as_array().unwrap().clone()
}

/// Cargo reads `1.91` as 1.91.0.
fn version(text: &str) -> Version {
    let missing = 2 - text.matches('.').count();
    Version::parse(&format!("{text}{}", ".0".repeat(missing))).unwrap()
}

#[test]
fn no_package_needs_a_newer_rust_than_the_readme_states() {
    for (manifest, name) in MANIFESTS {
        let packages = packages(manifest);
        let needed = |package: &Value| package["rust_version"].as_str().map(version);
        let ours = packages.iter().find(|package| package["name"] == name).unwrap();
        let stated = needed(ours).expect("stated for the workspace");
        let newer: Vec<(&Value, Version)> = packages
            .iter()
            .filter_map(|package| Some((&package["name"], needed(package)?)))
            .filter(|(_, needed)| *needed > stated)
            .collect();
        assert!(newer.is_empty(), "{manifest} states {stated}: {newer:?}");
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
        let sentence = format!("Rust {}.{} or newer", stated.major, stated.minor);
        assert!(fs::read_to_string(readme).unwrap().contains(&sentence), "{sentence}");
    }
}

/// The packages that a package is built with, its tests apart: names by name of the package.
fn normal_dependencies(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeMap<&str, &str> = packages
        .iter()
        .map(|package| (package["id"].as_str().unwrap(), package["name"].as_str().unwrap()))
        .collect();
    let is_normal = |dependency: &&Value| {
        let kinds = dependency["dep_kinds"].as_array().unwrap();
        kinds.iter().any(|kind| kind["kind"].is_null())
    };
    let of = |node: &Value| {
        let dependencies = node["deps"].as_array().unwrap().iter().filter(is_normal);
        dependencies.map(|one| names[one["pkg"].as_str().unwrap()].to_owned()).collect()
    };
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    nodes.iter().map(|node| (names[node["id"].as_str().unwrap()].to_owned(), of(node))).collect()
}

#[test]
fn layers_depend_on_no_more_than_they_may() {
    let dependencies = normal_dependencies(&metadata(MANIFESTS[0].0));
    let mut closure = BTreeSet::new();
    let mut left = vec!["tramplab-analysis".to_owned()];
    while let Some(name) = left.pop() {
        if closure.insert(name.clone()) {
            left.extend(dependencies[&name].iter().cloned());
        }
    }
    assert!(closure.contains("tramplab-model") && closure.len() > 5, "{closure:?}");
    for impure in ["nix", "ureq", "clap", "tempfile"] {
        assert!(!closure.contains(impure), "the analysis depends on {impure}");
    }
    // Only the command line has options; only the lab touches nextest.
    let with = |package: &str| -> Vec<&str> {
        let ours = dependencies.iter().filter(|(name, _)| name.starts_with("tramplab"));
        let with = ours.filter(|(_, has)| has.contains(package));
        with.map(|(name, _)| name.as_str()).collect()
    };
    assert_eq!(with("clap"), ["tramplab"]);
    assert_eq!(with("nextest-runner"), ["tramplab-lab"]);
}
