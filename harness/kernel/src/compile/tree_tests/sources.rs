// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the sources of the tree's tests.

use crate::{
    compile::{BuildError, error::io_error},
    tree_tests::{makefile, selection},
};
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};
use tramplab_model::tree_tests::Program;

/// Most bytes read of a source. No test's source is larger.
const SOURCE_LIMIT: u64 = 4 << 20;

/// How a program gets into a guest.
pub enum Way {
    /// make makes it.
    Made,
    /// It is a script. It is installed with all that its folder's Makefile installs beside it.
    Installed,
}

/// None if the tree has neither the program's source nor a Makefile that declares it.
pub fn way_of(root: &Path, program: &Program) -> Result<Option<Way>, BuildError> {
    let folder = root.join(program.folder());
    let makefile = folder.join("Makefile");
    if !makefile.is_file() {
        return Ok(None);
    }
    let text = read_source(&makefile)?;
    let path = folder.join(program.name());
    Ok(match () {
        () if path.is_file() && makefile::has_script(&text, program.name()) => Some(Way::Installed),
        () if path.with_added_extension("c").is_file() => Some(Way::Made),
        () => makefile::makes(&text, program.name()).then_some(Way::Made),
    })
}

fn read_source(path: &Path) -> Result<String, BuildError> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(io_error("read", path))?;
    file.take(SOURCE_LIMIT).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub fn read_sources(folder: &Path) -> Result<selection::Sources, BuildError> {
    let read = read_source;
    let files = |folder: &Path| -> Result<Vec<(String, PathBuf)>, BuildError> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(io_error("list", folder))? {
            let entry = entry.map_err(io_error("list", folder))?;
            // A patch may have put a link there.
            if entry.file_type().is_ok_and(|kind| kind.is_file())
                && let Ok(name) = entry.file_name().into_string()
            {
                files.push((name, entry.path()));
            }
        }
        Ok(files)
    };
    let mut sources =
        selection::Sources { makefile: read(&folder.join("Makefile"))?, ..Default::default() };
    for (name, path) in files(folder)? {
        if name.ends_with(".c") || name.ends_with(".h") {
            sources.shared.insert(name, read(&path)?);
        }
    }
    for (name, path) in files(&folder.join("prog_tests"))? {
        if name.ends_with(".c") {
            sources.tests.insert(name, read(&path)?);
        } else if name.ends_with(".h") {
            sources.shared.insert(name, read(&path)?);
        }
    }
    let programs = files(&folder.join("progs"))?;
    sources.programs =
        programs.iter().filter_map(|(name, _)| Some(name.strip_suffix(".c")?.to_owned())).collect();
    Ok(sources)
}
