// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collects the files that a guest needs to run the tests.

use super::{BENCH, IN_GUEST, TEST_PROGS, deny_lists};
use crate::{
    compile::{BuildError, Hasher, error::io_error, output::is_own},
    tree_tests::linked::{self, LinkedError},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};
use tramplab_model::run::Arch;
use walkdir::WalkDir;

/// Most bytes of all files that a guest unpacks into its memory.
const LARGEST: u64 = 512 << 20;

/// Copies the files for a guest: the programs, the files they open, their libraries (below
/// `system`), and the tree's deny lists. Returns the targets that a guest cannot use, each with the
/// reason.
pub fn collect(
    out: &Path,
    sources: &Path,
    folder: &Path,
    arch: Arch,
    system: &Path,
    made: &[String],
) -> Result<BTreeMap<String, String>, BuildError> {
    let root = folder.join("root");
    let into = root.join(IN_GUEST);
    fs::create_dir_all(&into).map_err(io_error("make", &into))?;
    let mut left = LARGEST;
    let mut unfit = BTreeMap::new();
    for target in made {
        let mut files = vec![target.clone()];
        // The other files there belong to test_progs: objects that it opens, programs that it runs.
        if target == TEST_PROGS {
            files.extend(beside(out)?);
        }
        let path = out.join(target);
        // A stranger's build may leave a FIFO or a link there, which `fit` names.
        if is_own(&path, out).is_ok_and(|own| own) && is_script(&path)? {
            files.extend(folder_of(target, out)?);
        }
        match fit(&files, out, arch, system, left)? {
            Err(reason) => {
                unfit.insert(target.clone(), reason);
            }
            Ok(Fit { bytes, libraries }) => {
                left -= bytes;
                let own = files.iter().map(|name| (out.join(name), into.join(name)));
                let given = libraries.iter().map(|library| {
                    (linked::in_root(system, library), linked::in_root(&root, library))
                });
                for (from, to) in own.chain(given).filter(|(_, to)| !to.exists()) {
                    let parent = to.parent().expect("below the root");
                    fs::create_dir_all(parent).map_err(io_error("make", parent))?;
                    fs::copy(&from, &to).map_err(io_error("copy", &from))?;
                }
            }
        }
    }
    let lists = folder.join("deny");
    fs::create_dir_all(&lists).map_err(io_error("make", &lists))?;
    for name in deny_lists(arch) {
        let path = sources.join(&name);
        if path.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
            fs::copy(&path, lists.join(name)).map_err(io_error("copy", &path))?;
        }
    }
    Ok(unfit)
}

/// The size and the libraries of a target.
struct Fit {
    bytes: u64,
    /// By their paths in the system.
    libraries: BTreeSet<PathBuf>,
}

/// Checks that a guest can use the files of one target. The inner error is the target's fault.
fn fit(
    files: &[String],
    out: &Path,
    arch: Arch,
    system: &Path,
    left: u64,
) -> Result<Result<Fit, String>, BuildError> {
    let mut fit = Fit { bytes: 0, libraries: BTreeSet::new() };
    for name in files {
        let path = out.join(name);
        match is_own(&path, out) {
            Ok(true) => {}
            Ok(false) => return Ok(Err(format!("{name} is not a regular file"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Err(format!("make succeeded but did not make {name}")));
            }
            Err(error) => return Err(io_error("find", &path)(error)),
        }
        // Checked before reading: a hostile source can make a file of any size.
        fit.bytes += fs::metadata(&path).map_err(io_error("find", &path))?.len();
        if fit.bytes > left {
            let limit = LARGEST >> 20;
            return Ok(Err(format!("with {name} the programs exceed {limit} MiB")));
        }
        match linked::libraries(&path, arch, system) {
            Ok(libraries) => fit.libraries.extend(libraries),
            Err(LinkedError::Unfit(reason)) => return Ok(Err(format!("{name}: {reason}"))),
            Err(LinkedError::Io(error)) => return Err(io_error("read", &path)(error)),
        }
    }
    Ok(Ok(fit))
}

fn is_script(path: &Path) -> Result<bool, BuildError> {
    let mut start = [0; 2];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    match read {
        Ok(()) => Ok(start == *b"#!"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

/// Returns the files beside a script and below, which it may use. Links are left out: they may lead
/// out of the folder.
fn folder_of(script: &str, out: &Path) -> Result<Vec<String>, BuildError> {
    let folder = out.join(script);
    let folder = folder.parent().expect("a program of a folder");
    let mut names = Vec::new();
    for entry in WalkDir::new(folder).sort_by_file_name() {
        let entry = entry.map_err(|error| io_error("list", folder)(error.into()))?;
        let name = entry.path().strip_prefix(out).expect("found there");
        if entry.file_type().is_file()
            && let Some(name) = name.to_str()
            && name != script
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Returns the files in the folder that belong into a guest, except those of other targets.
fn beside(out: &Path) -> Result<BTreeSet<String>, BuildError> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(out).map_err(io_error("list", out))? {
        let entry = entry.map_err(io_error("list", out))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && is_for_the_guest(&name) && name != TEST_PROGS && name != BENCH {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Returns the SHA-256 of a folder's files, by name and content.
pub fn contents(root: &Path) -> Result<String, BuildError> {
    let mut hasher = Hasher::default();
    for entry in WalkDir::new(root).sort_by_file_name() {
        let entry = entry.map_err(|error| io_error("list", root)(error.into()))?;
        let (path, name) = (entry.path(), entry.path().strip_prefix(root).expect("found there"));
        if entry.file_type().is_file() {
            hasher.add(name.as_os_str().as_encoded_bytes());
            hasher.add(&fs::read(path).map_err(io_error("read", path))?);
        }
    }
    Ok(hasher.end())
}

/// True if the file is not an intermediate product.
fn is_for_the_guest(name: &str) -> bool {
    let made_of = [".d", ".h", ".a", ".cmd", ".tmp"];
    let object = name.ends_with(".o") && !name.ends_with(".bpf.o");
    !object
        && !name.starts_with('.')
        && !made_of.iter().any(|ending| name.ends_with(ending))
        && !name.contains("FEATURE-DUMP")
}
