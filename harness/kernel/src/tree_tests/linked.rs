// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the libraries that a program is linked to. A guest without its own userspace needs
//! them.

use object::{
    Endianness, elf,
    read::elf::{Dyn, FileHeader, ProgramHeader},
};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};
use tramplab_model::run::Arch;

#[derive(Debug, thiserror::Error)]
pub enum LinkedError {
    /// The program's fault: it needs something that a guest cannot get.
    #[error("{0}")]
    Unfit(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Returns the paths of the dynamic linker and of all libraries in a system, whose root is `root`,
/// including indirect ones. Empty for a file that is not an ELF program or is statically linked.
/// Rejects library names that are paths: a stranger may have made the program.
pub fn libraries(
    program: &Path,
    arch: Arch,
    root: &Path,
) -> Result<BTreeSet<PathBuf>, LinkedError> {
    let mut found = BTreeSet::new();
    let own = program.parent().unwrap_or(Path::new("/")).to_owned();
    let mut waiting = vec![program.to_owned()];
    while let Some(file) = waiting.pop() {
        let Some(needs) = needs(&fs::read(&file)?) else { continue };
        if let Some(interpreter) = needs.interpreter {
            let path = PathBuf::from(interpreter);
            // A hostile program could name any file of the host, and read it in the guest.
            if path != Path::new(arch.platform().linker) {
                return Err(LinkedError::Unfit(format!(
                    "its dynamic linker is {}",
                    path.display()
                )));
            }
            found.insert(path);
        }
        for name in needs.libraries {
            if name.contains('/') || name.is_empty() {
                return Err(LinkedError::Unfit(format!(
                    "it is linked to `{name}`, which is not a library name"
                )));
            }
            // The program brings this library along.
            if own.join(&name).is_file() {
                continue;
            }
            let folders = folders(arch);
            let mut paths = folders.iter().map(|folder| Path::new(folder).join(&name));
            let path = paths.find(|path| in_root(root, path).is_file()).ok_or_else(|| {
                LinkedError::Unfit(format!(
                    "it is linked to {name}, which is in none of {}",
                    folders.join(", ")
                ))
            })?;
            if found.insert(path.clone()) {
                waiting.push(in_root(root, &path));
            }
        }
    }
    Ok(found)
}

/// Where the file of a system is on this host.
pub fn in_root(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The dynamic linker's search path, most specific folder first.
fn folders(arch: Arch) -> Vec<String> {
    let of_arch = format!("lib/{}", arch.platform().triplet);
    let both = |folder| [format!("/{folder}"), format!("/usr/{folder}")];
    [&*of_arch, "lib64", "lib"].into_iter().flat_map(both).collect()
}

struct Needs {
    interpreter: Option<String>,
    libraries: Vec<String>,
}

/// Returns None if the file is not an ELF program or shared library.
fn needs(bytes: &[u8]) -> Option<Needs> {
    let header = elf::FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, bytes).ok()?;
    let interpreter =
        segments.iter().find_map(|segment| segment.interpreter(endian, bytes).ok().flatten());
    let sections = header.sections(endian, bytes).ok()?;
    let (dynamic, link) = sections.dynamic(endian, bytes).ok()??;
    let strings = sections.strings(endian, bytes, link).ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let libraries =
        dynamic.iter().filter(|entry| entry.tag32(endian).map(i64::from) == Some(elf::DT_NEEDED));
    let libraries =
        libraries.filter_map(|entry| Some(text(entry.string(endian, strings).ok()?))).collect();
    Some(Needs { interpreter: interpreter.map(text), libraries })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_libraries_that_ldd_lists() {
        let Some(arch) = Arch::host() else { return };
        let program = fs::canonicalize("/usr/bin/ld").unwrap();
        let found = libraries(&program, arch, Path::new("/")).unwrap();
        let names: Vec<String> = found
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        // The dynamic linker's own list.
        let mut ldd = std::process::Command::new("ldd");
        let said = tramplab_host::child::run(ldd.arg(&program), std::time::Duration::from_secs(20))
            .unwrap();
        let mut expected: Vec<&str> = said
            .stdout
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.rsplit('/').next())
            .filter(|name| !name.starts_with("linux-vdso"))
            .collect();
        expected.sort_unstable();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        // The linker appears under two paths: the program's and the libraries'.
        names.sort_unstable();
        names.dedup();
        assert_eq!(names, expected);
        assert!(names.contains(&"libc.so.6") && found.iter().all(|path| path.is_absolute()));
    }

    #[test]
    fn finds_nothing_for_other_files() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("a.bpf.o", &b"\x7fELF\x02\x01\x01"[..]),
            ("script.sh", b"#!/bin/sh\n"),
            ("empty", b""),
        ] {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            assert!(libraries(&path, Arch::X86_64, Path::new("/")).unwrap().is_empty(), "{name}");
        }
    }
}
