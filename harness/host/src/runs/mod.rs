// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's folder.
//!
//! ```text
//! run.json                      the results
//! plan.json, jobs/N.json        the plan
//! cells/NAME/cell.json          the result of a cell; `*`, `?` and `:` of NAME as %2A, %3F, %3A
//! cells/NAME/partial.json       the boots so far of a cell that needs several
//! cells/NAME/smaller/           guests that look for a smaller test, until they have ended
//! cells/NAME/console.log, qemu.log, trace-NNNN.bin
//! kernels/ARCH/NAME.config, NAME.build.log
//! ```

pub mod running;
#[cfg(test)]
mod schemas;

pub use running::Running;

use crate::regular;

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
};
use tramplab_model::{
    run::{Arch, Cell, CellId, Outcome, Run, SCHEMA, Test, migrate},
    text,
};
use walkdir::{DirEntry, WalkDir};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no run at {0}: expected a run.json, or a folder with one")]
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
        "{path} has schema {found}; this tramplab reads schemas {oldest} to {SCHEMA}: update \
         tramplab, or read the file with the tramplab that wrote it",
        oldest = migrate::OLDEST
    )]
    Schema { path: PathBuf, found: u64 },
    #[error("failed to use {path}: {what}; the file was damaged or edited")]
    Contradiction { path: PathBuf, what: String },
}

impl StoreError {
    /// Another command line mends it. A failure to write, for example to a full disk, is the
    /// machine's.
    pub fn is_usage(&self) -> bool {
        !matches!(self, StoreError::Io { action: "write", .. })
    }
}

const JSON: &str = "run.json";

/// Most bytes of a run's file.
pub const MOST_BYTES: u64 = 256 << 20;

/// Most bytes of another file of a run: as much as a guest may write.
const MOST_FILE: u64 = 1 << 30;

/// The folder of one run.
#[derive(Clone, Debug)]
pub struct RunDir(PathBuf);

impl RunDir {
    pub fn new(path: impl Into<PathBuf>) -> RunDir {
        RunDir(path.into())
    }

    /// The run of a path to its folder or to its `run.json`.
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
        self.0.join("cells").join(as_path(&id.name()))
    }

    /// The folder of the kernels' configurations and build logs.
    pub fn kernels(&self) -> PathBuf {
        self.0.join("kernels")
    }

    /// A kernel's configuration. Exists only if it is known.
    pub fn config(&self, arch: Arch, kernel: &str) -> PathBuf {
        self.kernels().join(arch.name()).join(format!("{kernel}.config"))
    }

    /// make's output from building the kernel.
    pub fn build_log(&self, arch: Arch, kernel: &str) -> PathBuf {
        self.kernels().join(arch.name()).join(format!("{kernel}.build.log"))
    }

    /// The copy of an object file with a program that the run measured, by its SHA-256.
    pub fn program(&self, sha256: &str) -> PathBuf {
        self.0.join("programs").join(format!("{sha256}.bpf.o"))
    }

    /// Copies the wanted files below `folder` into another run. Skips links and devices: a run has
    /// none, a stranger's artifact might. Fails at a larger file than a run has, before anything is
    /// copied.
    pub fn bring(
        &self,
        folder: &str,
        into: &RunDir,
        is_wanted: impl Fn(&Path) -> bool,
    ) -> io::Result<()> {
        let from = self.0.join(folder);
        if !from.is_dir() {
            return Ok(());
        }
        let mut files = Vec::new();
        for entry in WalkDir::new(&from).follow_root_links(false) {
            let entry = entry?;
            if entry.file_type().is_file() && is_wanted(entry.path()) {
                regular::check_size(entry.path(), entry.metadata()?.len(), MOST_FILE)?;
                files.push(entry.into_path());
            }
        }
        for file in files {
            let to = into.0.join(file.strip_prefix(&self.0).expect("below it"));
            fs::create_dir_all(to.parent().expect("in the run's folder"))?;
            regular::copy(&file, &to, MOST_FILE)?;
        }
        Ok(())
    }

    pub fn save(&self, run: &Run) -> Result<(), StoreError> {
        write_json(&self.json(), run)
    }

    /// Saves a cell's result. A partial result stays: an error may refer to it.
    pub fn save_cell(&self, cell: &Cell) -> Result<(), StoreError> {
        write_json(&self.cell(&cell.id).join("cell.json"), cell)
    }

    /// Removes the result of a cell that runs once more.
    pub fn remove_cell(&self, id: &CellId) {
        // It may not exist.
        let _ = fs::remove_file(self.cell(id).join("cell.json"));
    }

    /// Removes the boots so far of a cell that has its result.
    pub fn remove_partial(&self, id: &CellId) {
        // Ignore an error: readers prefer the result.
        let _ = fs::remove_file(self.partial(id));
    }

    /// Saves the boots so far of a cell that needs several. It is not a result.
    pub fn save_partial(&self, cell: &Cell) -> Result<(), StoreError> {
        write_json(&self.partial(&cell.id), cell)
    }

    /// The folder of guests that look for a smaller test that fails in the same way.
    pub fn smaller(&self, id: &CellId) -> PathBuf {
        self.cell(id).join("smaller")
    }

    pub fn remove_smaller(&self, id: &CellId) {
        // It may not exist.
        let _ = fs::remove_dir_all(self.smaller(id));
    }

    pub fn partial(&self, id: &CellId) -> PathBuf {
        self.cell(id).join("partial.json")
    }

    /// The boots so far of a cell that needs several. None if there are none that can be read.
    pub fn load_partial(&self, id: &CellId) -> Option<Cell> {
        let bytes = regular::read(&self.partial(id), MOST_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok().filter(|cell: &Cell| cell.id == *id)
    }

    /// None if the cell's process ended without a result.
    pub fn load_cell(&self, id: &CellId) -> Result<Option<Cell>, StoreError> {
        let path = self.cell(id).join("cell.json");
        match regular::read(&path, MOST_BYTES) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|source| StoreError::Damaged { path, source }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { action: "read", path, source }),
        }
    }

    /// Reads a run from its folder or its `run.json`.
    pub fn load(path: &Path) -> Result<Run, StoreError> {
        let json = if path.is_dir() { path.join(JSON) } else { path.to_owned() };
        let bytes = match regular::read(&json, MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound(path.to_owned()));
            }
            Err(source) => return Err(StoreError::Io { action: "read", path: json, source }),
        };
        // Check the version first: a file of another schema has other fields.
        let format = |source| StoreError::Format { path: json.clone(), source };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|source| {
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

/// Adds the cells that ended after `run.json` was last saved, in a run that goes on or was killed.
fn add_late_cells(run: &mut Run, folder: &Path, schema: u64) {
    let walk = WalkDir::new(folder.join("cells")).follow_root_links(false).sort_by_file_name();
    let files = walk.into_iter().flatten();
    // A pipe in a stranger's artifact would never end.
    let is_result =
        |entry: &DirEntry| entry.file_name() == "cell.json" && entry.file_type().is_file();
    for file in files.filter(is_result) {
        let bytes = regular::read(file.path(), MOST_BYTES).ok();
        let read = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let cell = read.and_then(|cell| serde_json::from_value(migrate::cell(cell, schema)).ok());
        let Some(cell): Option<Cell> = cell else {
            let path = file.path().strip_prefix(folder).unwrap_or(file.path());
            run.notes
                .push(format!("ignored {}: it is damaged", text::line(&path.to_string_lossy())));
            continue;
        };
        if run.cells.iter().all(|known| known.id != cell.id) {
            run.missing.retain(|missing| *missing != cell.id);
            run.cells.push(cell);
        }
    }
}

/// Finds a contradiction that no run saves. A damaged or edited file must give no verdict.
fn contradiction(run: &Run) -> Option<String> {
    // Files of a run have these in their paths.
    let kernels = run.kernels.iter().map(|kernel| kernel.name.clone());
    let cells = run.cells.iter().map(|cell| cell.id.name());
    if let Some(name) = kernels.chain(cells).find(|name| !stays(name)) {
        return Some(format!("the name {} leads out of the run's folder", text::line(&name)));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = run.cells.iter().find(|cell| !seen.insert(cell.id.name())) {
        return Some(format!("the cell {} occurs twice", twice.id.name()));
    }
    if let Some(both) = run.missing.iter().find(|id| !seen.insert(id.name())) {
        return Some(format!("the cell {} is both present and missing", both.name()));
    }
    if run.series.iter().any(|series| series.steps.is_empty()) {
        return Some("a series has no base".to_owned());
    }
    if !run.interrupted && !run.missing.is_empty() {
        return Some("cells are missing but the run was not interrupted".to_owned());
    }
    // A build has no measurement.
    let measured = |cell: &&Cell| {
        cell.id.test != Test::Build && matches!(cell.outcome, Outcome::Pass | Outcome::Fail { .. })
    };
    if let Some(cell) = run.cells.iter().filter(measured).find(|cell| cell.measurement.is_none()) {
        return Some(format!("the cell {} has a verdict but has no measurement", cell.id.name()));
    }
    (run.finished.is_none() && !run.interrupted)
        .then(|| "the run was not interrupted and has not finished".to_owned())
}

fn stays(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// A cell's name as a path. GitHub takes no artifact with a file whose name has one of these.
fn as_path(name: &str) -> String {
    name.replace('*', "%2A").replace('?', "%3F").replace(':', "%3A")
}

/// Writes a temporary file and renames it: neither a reader nor a full disk ever sees half a file.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), StoreError> {
    let error = |source| StoreError::Io { action: "write", path: path.to_owned(), source };
    // Serialize to memory first: serde writes token by token.
    let text = serde_json::to_vec_pretty(value).map_err(|e| error(e.into()))?;
    let mut text = text::json(&text).into_owned();
    text.push(b'\n');
    let folder = path.parent().expect("a file in the run's folder");
    fs::create_dir_all(folder).map_err(error)?;
    // As readable as the run's other files. Temporary files are private by default.
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
    fn rejects_a_run_whose_names_lead_out_of_its_folder() {
        let stored: Value =
            serde_json::from_str(include_str!("../../../testdata/run.json")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for name in ["../outside", "a/../../outside", "/etc", "", "."] {
            for place in ["/kernels/0/name", "/cells/0/id/kernel"] {
                let mut hostile = stored.clone();
                *hostile.pointer_mut(place).unwrap() = json!(name);
                fs::write(folder.path().join(JSON), hostile.to_string()).unwrap();
                let loaded = RunDir::load(folder.path());
                // These stay within the folder's own names.
                let stays = place.contains("cells") && ["", ".", "/etc"].contains(&name);
                assert!(stays || matches!(loaded, Err(StoreError::Contradiction { .. })), "{name}");
            }
        }
    }

    #[test]
    fn adds_cells_that_ended_after_the_last_save_of_a_killed_run() {
        let mut stored: Value =
            serde_json::from_str(include_str!("../../../testdata/run.json")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let late = stored["cells"].as_array_mut().unwrap().pop().unwrap();
        let late: Cell = serde_json::from_value(late).unwrap();
        let known: Cell = serde_json::from_value(stored["cells"][0].clone()).unwrap();
        let dir = RunDir::new(folder.path());
        // A known cell counts once. Half a file is ignored.
        for cell in [&late, &known] {
            dir.save_partial(cell).unwrap();
            dir.save_cell(cell).unwrap();
            // An error of a lost cell refers to it.
            assert!(dir.partial(&cell.id).exists());
            dir.remove_partial(&cell.id);
            assert!(!dir.partial(&cell.id).exists());
        }
        fs::create_dir_all(folder.path().join("cells/half")).unwrap();
        fs::write(folder.path().join("cells/half/cell.json"), "{\"id\"").unwrap();
        fs::create_dir_all(folder.path().join("cells/pipe")).unwrap();
        let pipe = folder.path().join("cells/pipe/cell.json");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let before = stored["cells"].as_array().unwrap().len();
        stored["missing"] = json!([late.id]);
        for (finished, added) in [(Value::Null, 1), (stored["finished"].clone(), 0)] {
            (stored["finished"], stored["interrupted"]) = (finished, json!(true));
            fs::write(dir.json(), stored.to_string()).unwrap();
            let run = RunDir::load(folder.path()).unwrap();
            assert_eq!(run.cells.len(), before + added);
            assert_eq!(run.cells.iter().filter(|cell| cell.id == late.id).count(), added);
            assert_eq!(run.missing.len(), 1 - added);
            let ignored = run.notes.iter().filter(|n| n.contains("cells/half/cell.json")).count();
            assert_eq!(ignored, added, "{:?}", run.notes);
        }
    }

    #[test]
    fn rejects_a_run_that_contradicts_itself() {
        let stored: Value =
            serde_json::from_str(include_str!("../../../testdata/run.json")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let load = |run: &Value| {
            fs::write(folder.path().join("run.json"), run.to_string()).unwrap();
            RunDir::load(folder.path())
        };
        load(&stored).unwrap();
        let passed = |cell: &Value| cell["outcome"] == "pass";
        type Damage = fn(&mut Value, usize);
        let damages: [(&str, Damage); 5] = [
            ("present and missing", |run, passed| {
                run["missing"] = json!([run["cells"][passed]["id"]])
            }),
            ("was not interrupted", |run, passed| {
                let cell = run["cells"].as_array_mut().unwrap().remove(passed);
                run["missing"] = json!([cell["id"]]);
            }),
            ("has no measurement", |run, passed| run["cells"][passed]["measurement"] = Value::Null),
            ("occurs twice", |run, passed| {
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
