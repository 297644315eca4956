// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's folder: `run.json`, and per cell `cells/NAME/` with `cell.json`, `console.log`, `qemu.log`, `trace-NNNN.bin`;
//! `kernels/ARCH/NAME.config` and `kernels/ARCH/NAME.build.log`.

use super::{Arch, Cell, CellId, Run, SCHEMA};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("no run at {0}: expected a folder with a run.json, or that file")]
    NotFound(PathBuf),
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is not a run of this version: {source}")]
    Format { path: PathBuf, source: serde_json::Error },
    #[error("{path} has schema {found}; this tramplab reads schema {SCHEMA}")]
    Schema { path: PathBuf, found: u64 },
}

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
        self.0.join("run.json")
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

    pub fn save_cell(&self, cell: &Cell) -> Result<(), StoreError> {
        write_json(&self.cell(&cell.id).join("cell.json"), cell)
    }

    /// `None` when the cell's process ended without leaving a result.
    pub fn load_cell(&self, id: &CellId) -> Result<Option<Cell>, StoreError> {
        let path = self.cell(id).join("cell.json");
        match fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(Some).map_err(|source| StoreError::Format { path, source })
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { action: "read", path, source }),
        }
    }

    /// Reads a stored run: a folder, or its `run.json`.
    pub fn load(path: &Path) -> Result<Run, StoreError> {
        let json = if path.is_dir() { path.join("run.json") } else { path.to_owned() };
        let bytes = match fs::read(&json) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound(path.to_owned()));
            }
            Err(source) => return Err(StoreError::Io { action: "read", path: json, source }),
        };
        // The version first: a file of another schema need not have this one's fields.
        let format = |source| StoreError::Format { path: json.clone(), source };
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(format)?;
        match value["schema"].as_u64() {
            Some(found) if found != u64::from(SCHEMA) => Err(StoreError::Schema { path: json, found }),
            _ => serde_json::from_value(value).map_err(format),
        }
    }
}

/// Written beside and renamed, so that a reader or a full disk never leaves half a file.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), StoreError> {
    let error = |source| StoreError::Io { action: "write", path: path.to_owned(), source };
    let folder = path.parent().expect("a file in the run's folder");
    fs::create_dir_all(folder).map_err(error)?;
    // Readable as any other file of the run; temporary files are not by default.
    let readable = fs::Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(folder).map_err(error)?;
    serde_json::to_writer_pretty(&mut file, value).map_err(|e| error(e.into()))?;
    io::Write::write_all(&mut file, b"\n").map_err(error)?;
    file.persist(path).map_err(|e| error(e.error))?;
    Ok(())
}
