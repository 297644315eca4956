// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs from files: named ones, and all that lie in a folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};
use tramplab_host::runs::{RunDir, StoreError};
use tramplab_model::run::Run;
use walkdir::WalkDir;

/// A folder of artifacts has some folders around its runs.
const DEPTH: usize = 6;

/// The runs that were read.
#[derive(Default)]
pub struct Loaded {
    /// Each once, by start time; a merged run without its parts.
    pub runs: Vec<Run>,
    /// Files that cannot be read, each with the reason.
    pub left_out: Vec<String>,
}

/// Reads runs, and every run below folders. Leaves out unreadable ones, and says why.
pub fn load(places: &[PathBuf]) -> Result<Loaded, StoreError> {
    let mut loaded = Loaded::default();
    let mut runs: BTreeMap<String, Run> = BTreeMap::new();
    for place in places {
        if !place.exists() {
            return Err(StoreError::NotFound(place.clone()));
        }
        let files =
            if place.is_dir() { found(place, &mut loaded.left_out) } else { vec![place.clone()] };
        for file in files {
            match RunDir::load(&file) {
                // The same run by another path, or copied.
                Ok(run) => {
                    runs.entry(run.id.clone()).or_insert(run);
                }
                Err(error) => loaded.left_out.push(error.to_string()),
            }
        }
    }
    // Keep a merged run and drop its parts, so that each measurement is there once.
    let parts: BTreeSet<String> = runs
        .values()
        .filter_map(|run| run.joined.as_ref())
        .flat_map(|joined| joined.runs.clone())
        .collect();
    loaded.runs = runs.into_values().filter(|run| !parts.contains(&run.id)).collect();
    loaded.runs.sort_by(|a, b| a.started.cmp(&b.started));
    Ok(loaded)
}

fn found(folder: &Path, left_out: &mut Vec<String>) -> Vec<PathBuf> {
    let is_inside_a_run = |path: &Path| {
        let parent = path.parent().unwrap_or(Path::new(""));
        path.is_dir() && path != folder && parent.join("run.json").is_file()
    };
    let entries = WalkDir::new(folder).max_depth(DEPTH).sort_by_file_name().into_iter();
    let mut files = Vec::new();
    for entry in entries.filter_entry(|entry| !is_inside_a_run(entry.path())) {
        match entry {
            Ok(entry) if entry.file_name() == "run.json" => files.push(entry.into_path()),
            Ok(_) => {}
            Err(error) => left_out.push(error.to_string()),
        }
    }
    files
}
