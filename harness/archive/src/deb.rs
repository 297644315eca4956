// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unpacks the files of a `.deb`. Runs none of its scripts.

use crate::{ArchiveError, io_error};
use std::{
    collections::HashMap,
    fs,
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::{Component, Path, PathBuf},
};
use tar::EntryType;

/// Bytes of all files. A package with a kernel's debug information has 3 GB.
pub const MOST: u64 = 16 << 30;
const MOST_FILES: usize = 500_000;
const BUFFER: usize = 128 << 10;
/// For xz, in KiB. The best compression takes 64 MiB.
const MEMORY: u32 = 512 << 10;

/// Unpacks those files of a package whose paths are wanted. Nothing leads out of the folder:
/// absolute links become links within it. Fails if they have more than `most` bytes.
pub fn unpack(
    package: &Path,
    folder: &Path,
    most: u64,
    wanted: impl Fn(&Path) -> bool,
) -> Result<(), ArchiveError> {
    let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let broken = |why: io::Error| ArchiveError::Broken { package: name.clone(), why };
    let file = fs::File::open(package).map_err(io_error("read", package))?;
    let mut archive = ar::Archive::new(BufReader::with_capacity(BUFFER, file));
    while let Some(member) = archive.next_entry() {
        let member = member.map_err(broken)?;
        let packed = match member.header().identifier().strip_prefix(b"data.tar") {
            Some(packed) => str::from_utf8(packed).unwrap_or_default().to_owned(),
            None => continue,
        };
        let data: Box<dyn Read> = match packed.as_str() {
            "" => Box::new(member),
            ".gz" => Box::new(flate2::read::GzDecoder::new(member)),
            ".xz" => Box::new(lzma_rust2::XzReader::new_mem_limit(member, true, MEMORY)),
            ".zst" => Box::new(zstd::Decoder::new(member).map_err(broken)?),
            other => return Err(broken(io::Error::other(format!("packed as {other}")))),
        };
        fs::create_dir_all(folder).map_err(io_error("make", folder))?;
        let root = folder.canonicalize().map_err(io_error("read", folder))?;
        let mut unpacking = Unpacking { package: &name, root, links: Vec::new(), most, left: most };
        let done = unpacking.run(data, &wanted);
        return unpacking.check_links().and(done);
    }
    Err(broken(io::Error::other("it has no data.tar")))
}

struct Unpacking<'a> {
    package: &'a str,
    root: PathBuf,
    links: Vec<PathBuf>,
    most: u64,
    left: u64,
}

impl Unpacking<'_> {
    fn run(&mut self, data: impl Read, wanted: &dyn Fn(&Path) -> bool) -> Result<(), ArchiveError> {
        let mut archive = tar::Archive::new(BufReader::with_capacity(BUFFER, data));
        let entries = archive.entries().map_err(|why| self.broken(why))?;
        // The places of folders: one without its owner's rights comes before its files.
        let mut known = HashMap::new();
        for (index, entry) in entries.enumerate() {
            let mut entry = entry.map_err(|why| self.broken(why))?;
            if index == MOST_FILES {
                return Err(self.too_big());
            }
            let named = entry.path().map_err(|why| self.broken(why))?.into_owned();
            let Some(path) = inside(&named) else { return Err(self.outside(&named)) };
            let kind = entry.header().entry_type();
            if kind.is_pax_global_extensions() || path.as_os_str().is_empty() || !wanted(&path) {
                continue;
            }
            let place = self.place(&path, &mut known)?;
            let target = entry.link_name().map_err(|why| self.broken(why))?;
            let target = target.map(|target| target.into_owned()).unwrap_or_default();
            match kind {
                EntryType::Directory => {
                    if !place.is_dir() {
                        fs::create_dir(&place).map_err(io_error("make", &place))?;
                    }
                }
                EntryType::Symlink => self.link(&target, &place)?,
                EntryType::Link => {
                    let target = inside(&target).ok_or_else(|| self.outside(&named))?;
                    let target = self.place(&target, &mut known)?;
                    let is_file = fs::symlink_metadata(&target).is_ok_and(|found| found.is_file());
                    if !is_file {
                        return Err(self.outside(&named));
                    }
                    clear(&place)?;
                    fs::hard_link(&target, &place).map_err(io_error("link", &place))?;
                }
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                    let mode = entry.header().mode().map_err(|why| self.broken(why))?;
                    self.file(&mut entry, &place, mode)?;
                }
                _ => {
                    let (package, path) = (self.package.to_owned(), named);
                    return Err(ArchiveError::Device { package, path });
                }
            }
        }
        Ok(())
    }

    /// A later link may have changed where an earlier one leads.
    fn check_links(&self) -> Result<(), ArchiveError> {
        let leads_out = |link: &&PathBuf| {
            link.canonicalize().is_ok_and(|target| !target.starts_with(&self.root))
        };
        let mut checked = Ok(());
        for link in self.links.iter().filter(leads_out) {
            fs::remove_file(link).map_err(io_error("remove", link))?;
            checked = Err(self.outside(link));
        }
        checked
    }

    /// Where a path is, links followed. Makes its folders.
    fn place(
        &self,
        path: &Path,
        known: &mut HashMap<PathBuf, PathBuf>,
    ) -> Result<PathBuf, ArchiveError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(self.outside(path));
        };
        if let Some(folder) = known.get(parent) {
            return Ok(folder.join(name));
        }
        let mut folder = self.root.clone();
        for part in parent.components() {
            let next = folder.join(part);
            if fs::symlink_metadata(&next).is_err() {
                fs::create_dir(&next).map_err(io_error("make", &next))?;
            }
            folder = next.canonicalize().map_err(|_| self.outside(path))?;
            if !folder.starts_with(&self.root) {
                return Err(self.outside(path));
            }
        }
        known.insert(parent.to_owned(), folder.clone());
        Ok(folder.join(name))
    }

    fn link(&mut self, target: &Path, place: &Path) -> Result<(), ArchiveError> {
        let folder = place.parent().expect("below the root");
        let depth = folder.strip_prefix(&self.root).expect("below the root").components().count();
        let target = match target.strip_prefix("/") {
            Ok(rest) if inside(rest).is_some() => {
                let up = (0..depth).map(|_| Component::ParentDir);
                let within: PathBuf = up.chain(rest.components()).collect();
                if within.as_os_str().is_empty() { PathBuf::from(".") } else { within }
            }
            Ok(_) => return Err(self.outside(place)),
            Err(_) => target.to_owned(),
        };
        let mut left = depth as isize;
        for part in target.components() {
            left += match part {
                Component::ParentDir => -1,
                Component::CurDir => 0,
                _ => 1,
            };
            if left < 0 {
                return Err(self.outside(place));
            }
        }
        if place.is_dir() && !place.is_symlink() {
            // Another package has the folder.
            return Ok(());
        }
        clear(place)?;
        symlink(&target, place).map_err(io_error("link", place))?;
        self.links.push(place.to_owned());
        Ok(())
    }

    fn file(&mut self, from: impl Read, place: &Path, mode: u32) -> Result<(), ArchiveError> {
        clear(place)?;
        let mut options = fs::OpenOptions::new();
        // Without set-user-ID bits, and writable for whoever removes it.
        options.write(true).create_new(true).mode(mode & 0o777 | 0o600);
        let file = options.open(place).map_err(io_error("write", place))?;
        let mut file = BufWriter::with_capacity(BUFFER, file);
        let copied = io::copy(&mut from.take(self.left + 1), &mut file);
        let copied = copied.and_then(|copied| file.flush().map(|()| copied));
        let copied = copied.map_err(|why| self.broken(why))?;
        self.left = self.left.checked_sub(copied).ok_or_else(|| self.too_big())?;
        Ok(())
    }

    fn broken(&self, why: io::Error) -> ArchiveError {
        ArchiveError::Broken { package: self.package.to_owned(), why }
    }

    fn too_big(&self) -> ArchiveError {
        ArchiveError::TooBig { package: self.package.to_owned(), most: self.most >> 20 }
    }

    fn outside(&self, path: &Path) -> ArchiveError {
        ArchiveError::Outside { package: self.package.to_owned(), path: path.to_owned() }
    }
}

/// The path without `.`; None if it is absolute or has `..`.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(clean)
}

/// Removes what another package, or an earlier entry, has put there.
fn clear(place: &Path) -> Result<(), ArchiveError> {
    match fs::remove_file(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("replace", place)(error))
        }
        _ => Ok(()),
    }
}
