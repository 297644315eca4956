// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dependencies keep the promise that the README makes.

use semver::Version;
use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// The main workspace, and the fuzz targets' with its own lock file.
const MANIFESTS: [(&str, &str); 2] =
    [("../../Cargo.toml", "tramplab"), ("../fuzz/Cargo.toml", "tramplab-fuzz")];

/// Lists a workspace's packages and all that they depend on, by `cargo metadata`.
fn packages(manifest: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .args(["--filter-platform", "aarch64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
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
