// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's folder: `run.json`, the plan (`plan.json`, `jobs/N.json`), and per cell `cells/NAME/` with `cell.json` (`partial.json` until all its boots have ended), `console.log`, `qemu.log`, `trace-NNNN.bin`;
//! `kernels/ARCH/NAME.config` and `kernels/ARCH/NAME.build.log`.

pub mod running;
#[cfg(test)]
mod schemas;

pub use running::Running;

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tramplab_model::{
    run::{Arch, Cell, CellId, Outcome, Run, SCHEMA, Test, migrate},
    text,
};
use walkdir::WalkDir;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no run at {0}: expected a folder with a run.json, or that file")]
    NotFound(PathBuf),
    #[error("{path} is not a run: expected a run's folder, or its run.json ({source})")]
    NoRun { path: PathBuf, source: serde_json::Error },
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} was damaged: {source}")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("{path} is not a run of this version: {source}")]
    Format { path: PathBuf, source: serde_json::Error },
    #[error(
        "{path} has schema {found}; this tramplab reads schemas {oldest} to {SCHEMA}: update it, or \
         read the file with the tramplab that wrote it",
        oldest = migrate::OLDEST
    )]
    Schema { path: PathBuf, found: u64 },
    #[error("failed to use {path}: {what}; no run is stored so: the file was damaged or edited")]
    Contradiction { path: PathBuf, what: String },
}

impl StoreError {
    /// Whether another command line would mend it. What cannot be written is this machine's fault: its disk is full, say.
    pub fn is_usage(&self) -> bool {
        !matches!(self, StoreError::Io { action: "write", .. })
    }
}

const JSON: &str = "run.json";

/// The folder of one run.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

impl RunDir {
    pub fn new(path: impl Into<PathBuf>) -> RunDir {
        RunDir(path.into())
    }

    /// The run that a command line names: its folder, or its `run.json`.
    pub fn at(path: &Path) -> RunDir {
        RunDir::new(if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) })
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The run's name.
    pub fn id(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn json(&self) -> PathBuf {
        self.0.join(JSON)
    }

    pub fn cell(&self, id: &CellId) -> PathBuf {
        self.0.join("cells").join(id.name())
    }

    /// What is kept of the kernels.
    pub fn kernels(&self) -> PathBuf {
        self.0.join("kernels")
    }

    /// A kernel's configuration, where it is known.
    pub fn config(&self, arch: Arch, kernel: &str) -> PathBuf {
        self.kernels().join(arch.name()).join(format!("{kernel}.config"))
    }

    /// What make said while the kernel was built.
    pub fn build_log(&self, arch: Arch, kernel: &str) -> PathBuf {
        self.kernels().join(arch.name()).join(format!("{kernel}.build.log"))
    }

    pub fn save(&self, run: &Run) -> Result<(), StoreError> {
        write_json(&self.json(), run)
    }

    /// A result, in place of what there was of it.
    pub fn save_cell(&self, cell: &Cell) -> Result<(), StoreError> {
        write_json(&self.cell(&cell.id).join("cell.json"), cell)?;
        // What stays of it beside the result is in nobody's way.
        let _ = fs::remove_file(self.partial(&cell.id));
        Ok(())
    }

    /// What a cell has that takes several boots, after some of them: it is kept, and is no result.
    pub fn save_partial(&self, cell: &Cell) -> Result<(), StoreError> {
        write_json(&self.partial(&cell.id), cell)
    }

    pub fn partial(&self, id: &CellId) -> PathBuf {
        self.cell(id).join("partial.json")
    }

    /// `None` when the cell's process ended without leaving a result.
    pub fn load_cell(&self, id: &CellId) -> Result<Option<Cell>, StoreError> {
        let path = self.cell(id).join("cell.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|source| StoreError::Damaged { path, source }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { action: "read", path, source }),
        }
    }

    /// Reads a stored run: a folder, or its `run.json`.
    pub fn load(path: &Path) -> Result<Run, StoreError> {
        let json = if path.is_dir() { path.join(JSON) } else { path.to_owned() };
        let bytes = match fs::read(&json) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound(path.to_owned()));
            }
            Err(source) => return Err(StoreError::Io { action: "read", path: json, source }),
        };
        // The version first: a file of another schema does not have this one's fields.
        let format = |source| StoreError::Format { path: json.clone(), source };
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|source| {
            match json.extension().is_some_and(|extension| extension == "json") {
                true => StoreError::Damaged { path: json.clone(), source },
                false => StoreError::NoRun { path: path.to_owned(), source },
            }
        })?;
        let schema = value["schema"].as_u64().unwrap_or(SCHEMA.into());
        if !migrate::reads(schema) {
            return Err(StoreError::Schema { path: json, found: schema });
        }
        let mut run: Run = serde_json::from_value(migrate::run(value, schema)).map_err(format)?;
        if run.finished.is_none() {
            add_late_cells(&mut run, json.parent().unwrap_or(Path::new("")), schema);
        }
        match contradiction(&run) {
            None => Ok(run),
            Some(what) => Err(StoreError::Contradiction { path: json, what }),
        }
    }
}

/// A run that goes on, or was killed, may have ended cells after its last saving. They left their own results.
fn add_late_cells(run: &mut Run, folder: &Path, schema: u64) {
    let files = WalkDir::new(folder.join("cells")).sort_by_file_name().into_iter().flatten();
    for file in files.filter(|entry| entry.file_name() == "cell.json") {
        let read = fs::read(file.path()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // What is damaged is no result.
        let cell = read.and_then(|cell| serde_json::from_value(migrate::cell(cell, schema)).ok());
        let Some(cell): Option<Cell> = cell else { continue };
        if run.cells.iter().all(|known| known.id != cell.id) {
            run.missing.retain(|missing| *missing != cell.id);
            run.cells.push(cell);
        }
    }
}

/// What no run that was stored says of itself. A file that was damaged or edited is no verdict.
fn contradiction(run: &Run) -> Option<String> {
    let mut seen = HashSet::new();
    if let Some(twice) = run.cells.iter().find(|cell| !seen.insert(cell.id.name())) {
        return Some(format!("the cell {} is there twice", twice.id.name()));
    }
    if let Some(both) = run.missing.iter().find(|id| !seen.insert(id.name())) {
        return Some(format!("the cell {} is there and missing", both.name()));
    }
    if !run.interrupted && !run.missing.is_empty() {
        return Some("cells are missing and it was not interrupted".to_owned());
    }
    // Of a build the outcome is all.
    let measured = |cell: &&Cell| {
        cell.id.test != Test::Build && matches!(cell.outcome, Outcome::Pass | Outcome::Fail { .. })
    };
    if let Some(cell) = run.cells.iter().filter(measured).find(|cell| cell.measurement.is_none()) {
        return Some(format!("the cell {} was judged and has no measurement", cell.id.name()));
    }
    (run.finished.is_none() && !run.interrupted)
        .then(|| "it was not interrupted and has not finished".to_owned())
}

/// Written beside and renamed, so that a reader or a full disk never leaves half a file.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), StoreError> {
    let error = |source| StoreError::Io { action: "write", path: path.to_owned(), source };
    // At once: serde writes token by token.
    let text = serde_json::to_vec_pretty(value).map_err(|e| error(e.into()))?;
    let mut text = text::json(&text).into_owned();
    text.push(b'\n');
    let folder = path.parent().expect("a file in the run's folder");
    fs::create_dir_all(folder).map_err(error)?;
    // Readable as any other file of the run; temporary files are not by default.
    let readable = fs::Permissions::from_mode(0o644);
    let mut unnamed = tempfile::Builder::new();
    unnamed.prefix(running::UNNAMED).permissions(readable);
    let mut file = unnamed.tempfile_in(folder).map_err(error)?;
    io::Write::write_all(&mut file, &text).map_err(error)?;
    file.persist(path).map_err(|e| error(e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_killed_run_has_the_cells_that_ended_after_its_last_saving() {
        let mut stored: Value = serde_json::from_str(include_str!("../../../testdata/run.json")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let late = stored["cells"].as_array_mut().unwrap().pop().unwrap();
        let late: Cell = serde_json::from_value(late).unwrap();
        let known: Cell = serde_json::from_value(stored["cells"][0].clone()).unwrap();
        let dir = RunDir::new(folder.path());
        // One that is known already counts once, and half a file is none.
        for cell in [&late, &known] {
            dir.save_cell(cell).unwrap();
        }
        fs::create_dir_all(folder.path().join("cells/half")).unwrap();
        fs::write(folder.path().join("cells/half/cell.json"), "{\"id\"").unwrap();
        let before = stored["cells"].as_array().unwrap().len();
        stored["missing"] = json!([late.id]);
        for (finished, added) in [(Value::Null, 1), (stored["finished"].clone(), 0)] {
            (stored["finished"], stored["interrupted"]) = (finished, json!(true));
            fs::write(dir.json(), stored.to_string()).unwrap();
            let run = RunDir::load(folder.path()).unwrap();
            assert_eq!(run.cells.len(), before + added);
            assert_eq!(run.cells.iter().filter(|cell| cell.id == late.id).count(), added);
            assert_eq!(run.missing.len(), 1 - added);
        }
    }

    #[test]
    fn what_contradicts_itself_is_no_run() {
        let stored: Value = serde_json::from_str(include_str!("../../../testdata/run.json")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let load = |run: &Value| {
            fs::write(folder.path().join("run.json"), run.to_string()).unwrap();
            RunDir::load(folder.path())
        };
        load(&stored).unwrap();
        let passed = |cell: &Value| cell["outcome"] == "pass";
        type Damage = fn(&mut Value, usize);
        let damages: [(&str, Damage); 5] = [
            ("is there and missing", |run, passed| run["missing"] = json!([run["cells"][passed]["id"]])),
            ("was not interrupted", |run, passed| {
                let cell = run["cells"].as_array_mut().unwrap().remove(passed);
                run["missing"] = json!([cell["id"]]);
            }),
            ("has no measurement", |run, passed| run["cells"][passed]["measurement"] = Value::Null),
            ("is there twice", |run, passed| {
                let cell = run["cells"][passed].clone();
                run["cells"].as_array_mut().unwrap().push(cell);
            }),
            ("has not finished", |run, _| {
                (run["finished"], run["interrupted"]) = (Value::Null, json!(false));
            }),
        ];
        let index = stored["cells"].as_array().unwrap().iter().position(passed).unwrap();
        for (words, damage) in damages {
            let mut run = stored.clone();
            damage(&mut run, index);
            let error = load(&run).unwrap_err();
            assert!(
                matches!(&error, StoreError::Contradiction { what, .. } if what.contains(words)),
                "{error}"
            );
            assert!(error.is_usage());
        }
        let half = &stored.to_string()[..1000];
        fs::write(folder.path().join("run.json"), half).unwrap();
        let error = RunDir::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("was damaged: EOF"), "{error}");
    }
}
