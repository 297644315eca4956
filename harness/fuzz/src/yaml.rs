// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz the readers of YAML: suites, kernel manifests, and budgets written into a suite from a run.

use std::{path::Path, sync::LazyLock};
use tramplab_host::config;
use tramplab_kernel as kernel;
use tramplab_model::run::Run;
use tramplab_suite::{Suite, baseline};

/// A stored run from the repository.
static RUN: LazyLock<Run> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../testdata/run.json")).expect("it is a run")
});

pub fn run(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let path = Path::new("/fuzz/input.yaml");
    let manifest = kernel::parse_manifest(text, path);
    let mut accepted = manifest.is_ok();
    if let Err(error) = manifest {
        assert!(error.to_string().starts_with("/fuzz/input.yaml"), "{error}");
    }
    match config::parse::<Suite>(text, path) {
        Ok(suite) => {
            let written = config::write(&suite);
            let again: Suite = config::parse(&written, path).expect("what was written can be read");
            assert_eq!(config::write(&again), written);
            accepted = true;
        }
        Err(error) => assert!(error.to_string().starts_with("/fuzz/input.yaml:"), "{error}"),
    }
    if let Ok((updated, _)) = baseline::updated(text, path, &RUN, &|_| true) {
        let (again, _) = baseline::updated(&updated, path, &RUN, &|_| true)
            .expect("a baseline can be written again");
        assert_eq!(again, updated, "a run changes its own baseline");
    }
    accepted
}
