// SPDX-License-Identifier: MIT OR Apache-2.0
//! Series that are shipped: a folder each, with a `series.yaml`.

use super::{file, name};
use std::path::{Path, PathBuf};

pub(super) const MANIFEST: &str = "series.yaml";

/// Returns the names of the series in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let folders = file::entries(folder, |path| path.join(MANIFEST).is_file()).unwrap_or_default();
    let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    folders.iter().filter_map(name).collect()
}

/// True if `spec` is the name of a series in a folder.
pub fn is_shipped(spec: &str, folder: &Path) -> bool {
    name::fit(spec) == spec && folder.join(spec).join(MANIFEST).is_file()
}
