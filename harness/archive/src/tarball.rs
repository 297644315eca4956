// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the entries of a tar archive: a `.deb` has one, and a package of pacman is one.

use crate::{
    ArchiveError,
    unpacking::{BUFFER, Kind, Unpacking},
};
use std::{
    cell::Cell,
    io::{self, BufReader, Read},
    rc::Rc,
};
use tar::EntryType;

/// The offset and the text of the magic.
const MAGIC: (usize, &[u8]) = (257, b"ustar");

/// Bytes from the end of an entry to the data of the next. The crate reads the long names and the
/// pax headers between them into memory.
const LONGEST: u64 = 1 << 20;

/// True for a tar archive, by its first block.
pub fn is_tar(start: &[u8]) -> bool {
    start.get(MAGIC.0..).is_some_and(|rest| rest.starts_with(MAGIC.1))
}

pub fn unpack(data: impl Read, unpacking: &mut Unpacking) -> Result<(), ArchiveError> {
    let data = BufReader::with_capacity(BUFFER, data);
    let (read, end) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(LONGEST)));
    let limited = Limited { data, read: Rc::clone(&read), end: Rc::clone(&end) };
    let mut archive = tar::Archive::new(limited);
    let entries = archive.entries().map_err(|why| unpacking.broken(why))?;
    for entry in entries {
        let mut entry = entry.map_err(|why| unpacking.broken(why))?;
        let kind = entry.header().entry_type();
        // The size of a sparse file counts its holes.
        let size = match kind {
            EntryType::GNUSparse => entry.header().entry_size(),
            _ => Ok(entry.size()),
        };
        let size = size.map_err(|why| unpacking.broken(why))?;
        end.set(read.get().saturating_add(size).saturating_add(LONGEST));
        if kind.is_pax_global_extensions() {
            unpacking.count()?;
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

/// Fails at a place that may move while it is read.
struct Limited<R> {
    data: R,
    read: Rc<Cell<u64>>,
    end: Rc<Cell<u64>>,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.end.get().saturating_sub(self.read.get());
        if left == 0 && !to.is_empty() {
            return Err(io::Error::other("the names of an entry have more than 1 MiB"));
        }
        let most = to.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.data.read(&mut to[..most])?;
        self.read.set(self.read.get() + read as u64);
        Ok(read)
    }
}
