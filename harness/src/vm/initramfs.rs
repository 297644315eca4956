// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's root: the agent as `/init`, a console for it, and the folders it mounts on.

use cpio::{
    NewcBuilder,
    newc::{self, ModeFileType},
};
use std::{
    fs,
    io::{self, Write},
    path::Path,
};

/// Writes a newc archive; the same agent gives the same bytes.
pub fn build(agent: &Path, out: &Path) -> io::Result<()> {
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
    for folder in ["dev", "proc", "sys", "run", "tmp"] {
        add(folder, ModeFileType::Directory, 0o755, (0, 0), &[])?;
    }
    // The kernel opens it for /init before anything is mounted.
    add("dev/console", ModeFileType::Char, 0o600, (5, 1), &[])?;
    add("init", ModeFileType::Regular, 0o755, (0, 0), &agent)?;
    newc::trailer(&mut archive)?;
    fs::write(out, archive)
}
