// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs from files: named ones, and all that lie in a folder.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    path::{Path, PathBuf},
};
use tramplab_host::runs::{RunDir, StoreError};
use tramplab_model::run::{Cell, Run};
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
                Ok(run) => match runs.entry(run.id.clone()) {
                    Entry::Vacant(place) => drop(place.insert(run)),
                    // The same run by another path, or copied.
                    Entry::Occupied(known) if *known.get() == run => {}
                    Entry::Occupied(known) => loaded.left_out.push(format!(
                        "{}: another run has the id {}",
                        file.display(),
                        known.key()
                    )),
                },
                Err(error) => loaded.left_out.push(error.to_string()),
            }
        }
    }
    // Keep a merged run and drop its parts, so that each measurement is there once.
    let merged: Vec<&Run> = runs.values().filter(|run| run.joined.is_some()).collect();
    let parts: BTreeSet<String> = runs
        .values()
        .filter(|run| merged.iter().any(|merged| is_part(run, merged)))
        .map(|run| run.id.clone())
        .collect();
    for run in &merged {
        let named = run.joined.iter().flat_map(|joined| &joined.runs);
        for name in named.filter(|name| runs.contains_key(*name) && !parts.contains(*name)) {
            loaded.left_out.push(format!(
                "run {} names run {name} as its part, but has other results of its cells: both are \
                 shown",
                run.id
            ));
        }
    }
    loaded.runs = runs.into_values().filter(|run| !parts.contains(&run.id)).collect();
    loaded.runs.sort_by(|a, b| a.started.cmp(&b.started));
    Ok(loaded)
}

/// True if a merged run names this one and has all its results. Another run that only names it, to
/// have it left out, has not.
fn is_part(run: &Run, merged: &Run) -> bool {
    let is_named = merged.joined.as_ref().is_some_and(|joined| joined.runs.contains(&run.id));
    let is_result = |cell: &&Cell| cell.measurement.is_some();
    is_named && run.cells.iter().filter(is_result).all(|cell| merged.cells.contains(cell))
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

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::run::Joined;
    use tramplab_testdata::stored;

    fn named(id: &str) -> Run {
        Run { id: id.to_owned(), ..stored() }
    }

    fn loaded(runs: &[Run]) -> Loaded {
        let folder = tempfile::tempdir().unwrap();
        for (number, run) in runs.iter().enumerate() {
            RunDir::new(folder.path().join(number.to_string())).save(run).unwrap();
        }
        load(&[folder.path().to_owned()]).unwrap()
    }

    fn ids(loaded: &Loaded) -> Vec<&str> {
        loaded.runs.iter().map(|run| run.id.as_str()).collect()
    }

    #[test]
    fn leaves_out_copies_and_parts_and_tells_of_the_rest() {
        let joined = |of: &[&str]| {
            let runs = of.iter().map(|id| id.to_string()).collect();
            Run { joined: Some(Joined { runs, expected: of.len() }), ..named("merged") }
        };
        let both = loaded(&[named("a"), named("a"), named("b")]);
        assert_eq!((ids(&both), both.left_out.len()), (vec!["a", "b"], 0));
        let merged = loaded(&[named("a"), joined(&["a", "elsewhere"])]);
        assert_eq!((ids(&merged), merged.left_out.len()), (vec!["merged"], 0));

        // A run with the id of another.
        let mut other = named("a");
        other.cells.pop();
        let found = loaded(&[named("a"), other.clone()]);
        assert_eq!((ids(&found), found.left_out.len()), (vec!["a"], 1), "{:?}", found.left_out);
        assert!(found.left_out[0].contains("another run has the id a"), "{:?}", found.left_out);
        // One that names another as its part.
        let mut thief = joined(&["a"]);
        thief.cells.pop();
        let found = loaded(&[named("a"), thief]);
        assert_eq!((ids(&found).len(), found.left_out.len()), (2, 1), "{:?}", found.left_out);
    }
}
