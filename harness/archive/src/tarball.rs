// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the entries of a tar archive: a `.deb` has one, and a package of pacman is one.

use crate::{
    ArchiveError,
    unpacking::{BUFFER, Kind, Unpacking},
};
use std::io::{BufReader, Read};
use tar::EntryType;

/// The offset and the text of the magic.
const MAGIC: (usize, &[u8]) = (257, b"ustar");

/// True for the first block of a tar archive.
pub fn is_tar(block: &[u8]) -> bool {
    block.get(MAGIC.0..).is_some_and(|rest| rest.starts_with(MAGIC.1))
}

pub fn unpack(data: impl Read, unpacking: &mut Unpacking) -> Result<(), ArchiveError> {
    let mut archive = tar::Archive::new(BufReader::with_capacity(BUFFER, data));
    let entries = archive.entries().map_err(|why| unpacking.broken(why))?;
    for entry in entries {
        let mut entry = entry.map_err(|why| unpacking.broken(why))?;
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            continue;
        }
        let named = entry.path().map_err(|why| unpacking.broken(why))?.into_owned();
        let target = entry.link_name().map_err(|why| unpacking.broken(why))?;
        let target = target.map(|target| target.into_owned()).unwrap_or_default();
        let kind = match kind {
            EntryType::Directory => Kind::Folder,
            EntryType::Symlink => Kind::Link(target),
            EntryType::Link => Kind::HardLink(target),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                Kind::File { mode: entry.header().mode().map_err(|why| unpacking.broken(why))? }
            }
            _ => Kind::Other,
        };
        unpacking.entry(&named, kind, &mut entry)?;
    }
    Ok(())
}
