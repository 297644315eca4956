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

/// Writes a newc archive; the same files give the same bytes. `modules` are for the agent to load, in this order.
pub fn build(agent: &Path, modules: &[PathBuf], out: &Path) -> io::Result<()> {
    let agent = fs::read(agent)?;
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
    add("init", ModeFileType::Regular, 0o755, (0, 0), &agent)?;
    for (index, module) in modules.iter().enumerate() {
        let file = module.file_name().unwrap_or_default().to_string_lossy();
        // The agent loads them by name.
        add(&format!("modules/{index:02}-{file}"), ModeFileType::Regular, 0o644, (0, 0), &fs::read(module)?)?;
    }
    newc::trailer(&mut archive)?;
    fs::write(out, archive)
}
