// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the entries of a package below a folder. The package may be a stranger's: nothing leads
//! out of the folder, and sizes and counts are limited.

use crate::{ArchiveError, io_error};
use std::{
    collections::HashMap,
    fs,
    io::{self, BufWriter, Read, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::{Component, Path, PathBuf},
};

const MOST_FILES: usize = 500_000;
/// Folders that one package makes.
const MOST_FOLDERS: usize = 100_000;
/// Names in a path.
const DEEPEST: usize = 32;
pub const BUFFER: usize = 128 << 10;

/// An entry of any format.
pub enum Kind {
    Folder,
    Link(PathBuf),
    HardLink(PathBuf),
    File {
        mode: u32,
    },
    /// A device, a pipe or a socket.
    Other,
}

pub struct Unpacking<'a> {
    package: &'a str,
    wanted: &'a dyn Fn(&Path) -> bool,
    root: PathBuf,
    links: Vec<PathBuf>,
    /// The places of folders: one without its owner's rights comes before its files.
    known: HashMap<PathBuf, PathBuf>,
    most: u64,
    left: u64,
    entries: usize,
    folders: usize,
}

impl<'a> Unpacking<'a> {
    /// Makes `folder`. Errors name `package`.
    pub fn new(
        package: &'a str,
        folder: &Path,
        most: u64,
        wanted: &'a dyn Fn(&Path) -> bool,
    ) -> Result<Unpacking<'a>, ArchiveError> {
        fs::create_dir_all(folder).map_err(io_error("make", folder))?;
        let root = folder.canonicalize().map_err(io_error("read", folder))?;
        Ok(Unpacking {
            package,
            wanted,
            root,
            links: Vec::new(),
            known: HashMap::new(),
            most,
            left: most,
            entries: 0,
            folders: 0,
        })
    }

    /// Counts an entry.
    pub fn count(&mut self) -> Result<(), ArchiveError> {
        if self.entries == MOST_FILES {
            return Err(self.too_big());
        }
        self.entries += 1;
        Ok(())
    }

    /// Writes an entry. Returns false if it is not wanted.
    pub fn entry(
        &mut self,
        named: &Path,
        kind: Kind,
        data: impl Read,
    ) -> Result<bool, ArchiveError> {
        self.count()?;
        self.write(named, kind, data).map_err(|error| match error {
            // A name that is too long, a file where a folder is: no host can unpack it.
            ArchiveError::Io { source, .. } if is_of_name(&source) => {
                let name = named.to_string_lossy();
                self.broken(io::Error::other(format!("{name:.80}: {source}")))
            }
            error => error,
        })
    }

    fn write(&mut self, named: &Path, kind: Kind, data: impl Read) -> Result<bool, ArchiveError> {
        let Some(path) = inside(named) else { return Err(self.outside(named)) };
        if path.as_os_str().is_empty() || !(self.wanted)(&path) {
            return Ok(false);
        }
        if path.components().count() > DEEPEST {
            let (package, path) = (self.package.to_owned(), path);
            return Err(ArchiveError::Deep { package, path, most: DEEPEST });
        }
        let place = self.place(&path)?;
        match kind {
            Kind::Folder => {
                if !place.is_dir() {
                    self.make(&place)?;
                }
            }
            Kind::Link(target) => self.link(&target, &place)?,
            Kind::HardLink(target) => {
                let target = inside(&target).ok_or_else(|| self.outside(named))?;
                if !(self.wanted)(&target) {
                    let package = self.package.to_owned();
                    return Err(ArchiveError::Unwanted { package, path, target });
                }
                let target = self.place(&target)?;
                let is_file = fs::symlink_metadata(&target).is_ok_and(|found| found.is_file());
                if !is_file {
                    return Err(self.outside(named));
                }
                clear(&place)?;
                fs::hard_link(&target, &place).map_err(io_error("link", &place))?;
            }
            Kind::File { mode } => self.file(data, &place, mode)?,
            Kind::Other => {
                let (package, path) = (self.package.to_owned(), named.to_owned());
                return Err(ArchiveError::Device { package, path });
            }
        }
        Ok(true)
    }

    /// A later link may have changed where an earlier one leads.
    pub fn check_links(&self) -> Result<(), ArchiveError> {
        check(&self.links, &self.root, self.package)
    }

    fn make(&mut self, folder: &Path) -> Result<(), ArchiveError> {
        if self.folders == MOST_FOLDERS {
            return Err(self.too_big());
        }
        self.folders += 1;
        fs::create_dir(folder).map_err(io_error("make", folder))
    }

    /// Where a path is, links followed. Makes its folders.
    fn place(&mut self, path: &Path) -> Result<PathBuf, ArchiveError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(self.outside(path));
        };
        if let Some(folder) = self.known.get(parent) {
            return Ok(folder.join(name));
        }
        let mut folder = self.root.clone();
        for part in parent.components() {
            let next = folder.join(part);
            if fs::symlink_metadata(&next).is_err() {
                self.make(&next)?;
            }
            folder = next.canonicalize().map_err(|_| self.outside(path))?;
            if !folder.starts_with(&self.root) {
                return Err(self.outside(path));
            }
        }
        self.known.insert(parent.to_owned(), folder.clone());
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

    pub fn broken(&self, why: io::Error) -> ArchiveError {
        ArchiveError::Broken { package: self.package.to_owned(), why }
    }

    pub fn too_big(&self) -> ArchiveError {
        ArchiveError::TooBig { package: self.package.to_owned(), most: self.most >> 20 }
    }

    fn outside(&self, path: &Path) -> ArchiveError {
        ArchiveError::Outside { package: self.package.to_owned(), path: path.to_owned() }
    }
}

/// Checks the links of all packages in a folder: one may have changed where that of another leads.
pub fn check_links(folder: &Path) -> Result<(), ArchiveError> {
    let root = folder.canonicalize().map_err(io_error("read", folder))?;
    let (mut links, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        let read = io_error("read", &folder);
        for entry in fs::read_dir(&folder).map_err(&read)? {
            let entry = entry.map_err(&read)?;
            match entry.file_type().map_err(&read)? {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_symlink() => links.push(entry.path()),
                _ => {}
            }
        }
    }
    check(&links, &root, &folder.to_string_lossy())
}

/// Removes links that lead out of the folder, and fails if there were some.
fn check(links: &[PathBuf], root: &Path, package: &str) -> Result<(), ArchiveError> {
    let leads_out =
        |link: &&PathBuf| link.canonicalize().is_ok_and(|target| !target.starts_with(root));
    let mut checked = Ok(());
    for link in links.iter().filter(leads_out) {
        fs::remove_file(link).map_err(io_error("remove", link))?;
        let (package, path) = (package.to_owned(), link.clone());
        checked = Err(ArchiveError::Outside { package, path });
    }
    checked
}

fn is_of_name(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, IsADirectory, NotADirectory};
    matches!(error.kind(), InvalidFilename | IsADirectory | NotADirectory)
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
