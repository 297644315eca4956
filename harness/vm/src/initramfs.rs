// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's root: the agent as `/init`, a console for it, the folders it mounts on, and the modules without which
//! it cannot speak.

use cpio::{
    NewcBuilder,
    newc::{self, ModeFileType},
};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};
use tramplab_protocol::message::{Command, ORDERS};
use walkdir::WalkDir;

/// Writes a newc archive; the same files give the same bytes. `modules` are for the agent to load, in this order.
pub fn build(agent: &Path, modules: &[PathBuf], out: &Path) -> io::Result<()> {
    pack(&read(agent)?, None, modules, out)
}

/// The root of a guest to look around in: `init` is a script for this busybox, which is static.
pub fn build_shell(init: &str, busybox: &Path, modules: &[PathBuf], out: &Path) -> io::Result<()> {
    pack(init.as_bytes(), Some(&read(busybox)?), modules, out)
}

fn pack(init: &[u8], busybox: Option<&[u8]>, modules: &[PathBuf], out: &Path) -> io::Result<()> {
    let mut archive = Vec::new();
    let mut inode = 0;
    let mut add = |name: &str, kind: ModeFileType, mode: u32, device: (u32, u32), bytes: &[u8]| {
        inode += 1;
        let entry = NewcBuilder::new(name)
            .ino(inode)
            .mode(mode)
            .set_mode_file_type(kind)
            .nlink(1)
            .rdev_major(device.0)
            .rdev_minor(device.1);
        let size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut entry = entry.write(&mut archive, size);
        entry.write_all(bytes)?;
        entry.finish().map(drop)
    };
    for folder in ["dev", "proc", "sys", "run", "tmp", "modules"] {
        add(folder, ModeFileType::Directory, 0o755, (0, 0), &[])?;
    }
    // The kernel opens it for /init before anything is mounted.
    add("dev/console", ModeFileType::Char, 0o600, (5, 1), &[])?;
    add("init", ModeFileType::Regular, 0o755, (0, 0), init)?;
    if let Some(busybox) = busybox {
        add("bin", ModeFileType::Directory, 0o755, (0, 0), &[])?;
        add("bin/busybox", ModeFileType::Regular, 0o755, (0, 0), busybox)?;
    }
    for (index, module) in modules.iter().enumerate() {
        let file = module.file_name().unwrap_or_default().to_string_lossy();
        // The agent loads them by name.
        add(&format!("modules/{index:02}-{file}"), ModeFileType::Regular, 0o644, (0, 0), &read(module)?)?;
    }
    newc::trailer(&mut archive)?;
    fs::write(out, archive)
}

/// The same root with orders for the agent in a second archive behind it, which the kernel unpacks as well.
pub fn with_orders(root: &Path, orders: &[Command], out: &Path) -> io::Result<()> {
    let mut archive = read(root)?;
    let bytes = serde_json::to_vec(orders)?;
    let name = ORDERS.trim_start_matches('/');
    let entry = NewcBuilder::new(name).ino(1).mode(0o644).set_mode_file_type(ModeFileType::Regular).nlink(1);
    let mut entry = entry.write(&mut archive, u32::try_from(bytes.len()).map_err(io::Error::other)?);
    entry.write_all(&bytes)?;
    entry.finish()?;
    newc::trailer(&mut archive)?;
    fs::write(out, archive)
}

/// The same root with a folder's files in a second archive, at the paths that they have below it.
pub fn with_folder(root: &Path, folder: &Path, out: &Path) -> io::Result<()> {
    let mut archive = read(root)?;
    let mut inode = 0;
    for entry in WalkDir::new(folder).min_depth(1).sort_by_file_name() {
        let entry = entry?;
        inode += 1;
        let name = entry.path().strip_prefix(folder).map_err(io::Error::other)?;
        let name =
            name.to_str().ok_or_else(|| io::Error::other(format!("{} is no UTF-8", name.display())))?;
        let (kind, mode, bytes) = match entry.file_type() {
            kind if kind.is_dir() => (ModeFileType::Directory, 0o755, Vec::new()),
            kind if kind.is_file() => (ModeFileType::Regular, 0o755, read(entry.path())?),
            _ => continue,
        };
        let header = NewcBuilder::new(name).ino(inode).mode(mode).set_mode_file_type(kind).nlink(1);
        let mut file = header.write(&mut archive, u32::try_from(bytes.len()).map_err(io::Error::other)?);
        file.write_all(&bytes)?;
        file.finish()?;
    }
    newc::trailer(&mut archive)?;
    fs::write(out, archive)
}

/// With the file's name in the error.
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
    fn holds_the_agent_a_console_and_the_modules_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let (agent, first, second) = (file("agent", b"elf"), file("z.ko", b"ring"), file("a.ko", b"port"));
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
        // The kernel unpacks in order: a folder stands before what is in it.
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
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = build(&dir.path().join("no-agent"), &[], &dir.path().join("out")).unwrap_err();
        assert!(error.to_string().contains("no-agent"), "{error}");
        assert!(!dir.path().join("out").exists());
    }
}
