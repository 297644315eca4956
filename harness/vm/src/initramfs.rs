// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the guest's root: the agent as `/init`, its console, mount points, and the modules that
//! its link needs.

use cpio::{NewcBuilder, newc};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};
use tramplab_protocol::message::{Command, ORDERS, SHELL, WANTED_MODULES};
use walkdir::WalkDir;

// Modes: the type of a file, and its permissions.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
/// The only device in an archive.
const CONSOLE: u32 = 0o020_600;

/// Writes a newc archive. The same files give the same bytes. The agent loads `modules` in this
/// order.
pub fn build(agent: &Path, modules: &[PathBuf], out: &Path) -> io::Result<()> {
    pack(&read(agent)?, None, modules, out)
}

/// Writes the root of an interactive guest: `init` is a script for the static busybox.
pub fn build_shell(init: &str, busybox: &Path, modules: &[PathBuf], out: &Path) -> io::Result<()> {
    pack(init.as_bytes(), Some(&read(busybox)?), modules, out)
}

fn pack(init: &[u8], busybox: Option<&[u8]>, modules: &[PathBuf], out: &Path) -> io::Result<()> {
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "sys", "run", "tmp", "modules"] {
        archive.add(folder, DIRECTORY, &[])?;
    }
    // The kernel opens it for /init before anything is mounted.
    archive.add("dev/console", CONSOLE, &[])?;
    archive.add("init", PROGRAM, init)?;
    if let Some(busybox) = busybox {
        archive.add("bin", DIRECTORY, &[])?;
        archive.add("bin/busybox", PROGRAM, busybox)?;
    }
    for (index, module) in modules.iter().enumerate() {
        let file = module.file_name().unwrap_or_default().to_string_lossy();
        // The agent loads them in the order of their names.
        archive.add(&format!("modules/{index:02}-{file}"), FILE, &read(module)?)?;
    }
    archive.write(out)
}

/// Copies a root and appends a second archive with commands for the agent. The kernel unpacks both.
pub fn with_orders(root: &Path, orders: &[Command], out: &Path) -> io::Result<()> {
    let mut archive = Archive::after(root)?;
    let name = ORDERS.trim_start_matches('/');
    archive.add(name, FILE, &serde_json::to_vec(orders)?)?;
    archive.write(out)
}

/// Copies a root and appends a second archive with modules that the agent loads in this order, and
/// perhaps with a busybox. Each module has its name and its bytes.
pub fn with_additions<'a>(
    root: &Path,
    modules: impl Iterator<Item = (&'a str, &'a [u8])>,
    busybox: Option<&Path>,
    out: &Path,
) -> io::Result<()> {
    let mut archive = Archive::after(root)?;
    if let Some(busybox) = busybox {
        archive.add("bin", DIRECTORY, &[])?;
        archive.add(SHELL.trim_start_matches('/'), PROGRAM, &read(busybox)?)?;
    }
    let folder = WANTED_MODULES.trim_start_matches('/');
    archive.add(folder, DIRECTORY, &[])?;
    for (index, (name, bytes)) in modules.enumerate() {
        archive.add(&format!("{folder}/{index:03}-{name}.ko"), FILE, bytes)?;
    }
    archive.write(out)
}

/// Copies a root and appends a second archive with a folder's files, at their paths in the folder.
pub fn with_folder(root: &Path, folder: &Path, out: &Path) -> io::Result<()> {
    let mut archive = Archive::after(root)?;
    for entry in WalkDir::new(folder).min_depth(1).sort_by_file_name() {
        let entry = entry?;
        let name = entry.path().strip_prefix(folder).map_err(io::Error::other)?;
        let not_utf8 = || io::Error::other(format!("{} is not UTF-8", name.display()));
        let name = name.to_str().ok_or_else(not_utf8)?;
        match entry.file_type() {
            kind if kind.is_dir() => archive.add(name, DIRECTORY, &[])?,
            kind if kind.is_file() => archive.add(name, PROGRAM, &read(entry.path())?)?,
            _ => {}
        }
    }
    archive.write(out)
}

/// A newc archive, perhaps behind others.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// An empty archive behind the archives of a file.
    fn after(root: &Path) -> io::Result<Archive> {
        Ok(Archive { bytes: read(root)?, inode: 0 })
    }

    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let (major, minor) = if mode == CONSOLE { (5, 1) } else { (0, 0) };
        let header = NewcBuilder::new(name).ino(self.inode).mode(mode).nlink(1);
        let header = header.rdev_major(major).rdev_minor(minor);
        let size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut entry = header.write(&mut self.bytes, size);
        entry.write_all(bytes)?;
        entry.finish().map(drop)
    }

    fn write(mut self, out: &Path) -> io::Result<()> {
        newc::trailer(&mut self.bytes)?;
        fs::write(out, self.bytes)
    }
}

/// Reads a file. The error names it.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::NewcReader;
    use std::io::Read;

    struct Entry {
        name: String,
        mode: u32,
        device: (u32, u32),
        bytes: Vec<u8>,
    }

    fn entries(archive: &[u8]) -> Vec<Entry> {
        let mut input = archive;
        let mut found = Vec::new();
        loop {
            let mut reader = NewcReader::new(input).unwrap();
            let entry = reader.entry().clone();
            if entry.is_trailer() {
                return found;
            }
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            assert_eq!((entry.mtime(), entry.uid(), entry.gid()), (0, 0, 0), "{}", entry.name());
            let device = (entry.rdev_major(), entry.rdev_minor());
            found.push(Entry { name: entry.name().to_owned(), mode: entry.mode(), device, bytes });
            input = reader.finish().unwrap();
        }
    }

    #[test]
    fn packs_the_agent_a_console_and_the_modules_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let (agent, first, second) =
            (file("agent", b"elf"), file("z.ko", b"ring"), file("a.ko", b"port"));
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        build(&agent, &[first.clone(), second.clone()], &one).unwrap();
        let archive = fs::read(&one).unwrap();
        let entries = entries(&archive);
        let get = |name: &str| entries.iter().find(|entry| entry.name == name).expect(name);
        let init = get("init");
        assert_eq!((init.mode, &init.bytes[..]), (0o100_755, &b"elf"[..]));
        let console = get("dev/console");
        assert_eq!((console.mode, console.device), (0o020_600, (5, 1)));
        // Loaded in the order of their names.
        assert_eq!(get("modules/00-z.ko").bytes, b"ring");
        assert_eq!(get("modules/01-a.ko").bytes, b"port");
        // The kernel unpacks in order: a folder comes before its contents.
        for (index, Entry { name, .. }) in entries.iter().enumerate() {
            if let Some((folder, _)) = name.rsplit_once('/') {
                let at = entries.iter().position(|entry| entry.name == folder).expect(folder);
                assert!(at < index && entries[at].mode == 0o040_755, "{name}");
            }
        }
        build(&agent, &[first, second], &two).unwrap();
        assert_eq!(fs::read(&two).unwrap(), archive, "the same files, other bytes");
    }

    #[test]
    fn appends_a_shell_and_modules_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let (root, out) = (dir.path().join("root"), dir.path().join("out"));
        fs::write(&root, b"a root").unwrap();
        let modules = [("xfs", &b"first"[..]), ("btrfs", b"second")];
        fs::write(dir.path().join("busybox"), b"elf").unwrap();
        let busybox = dir.path().join("busybox");
        with_additions(&root, modules.into_iter(), Some(&busybox), &out).unwrap();
        let bytes = fs::read(&out).unwrap();
        let found = entries(bytes.strip_prefix(b"a root").unwrap());
        let named: Vec<(&str, &[u8])> =
            found.iter().map(|entry| (&*entry.name, &*entry.bytes)).collect();
        assert_eq!(
            named,
            [
                ("bin", &b""[..]),
                ("bin/busybox", b"elf"),
                ("wanted", b""),
                ("wanted/000-xfs.ko", b"first"),
                ("wanted/001-btrfs.ko", b"second")
            ]
        );
    }

    #[test]
    fn names_a_missing_file() {
        let dir = tempfile::tempdir().unwrap();
        let error = build(&dir.path().join("no-agent"), &[], &dir.path().join("out")).unwrap_err();
        assert!(error.to_string().contains("no-agent"), "{error}");
        assert!(!dir.path().join("out").exists());
    }
}
