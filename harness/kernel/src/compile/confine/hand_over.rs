// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives folders to the user of root's builds.
//!
//! An earlier build chose what is in these folders, and root changes owners and modes there. So
//! each entry is opened by its name in its folder's descriptor, never by a path, no link followed.

use super::BUILDER;
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, open, openat},
    sys::stat::{FileStat, Mode, SFlag, fchmod, fstat},
    unistd::{Gid, Uid, fchownat},
};
use std::{
    ffi::{CString, OsStr},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// Each level holds a descriptor. A kernel's build has about 15.
const DEEPEST: usize = 128;

/// Changes an entry: its folder, its name there, its state.
type Change = fn(BorrowedFd, &OsStr, &FileStat) -> io::Result<()>;

/// Lets everyone read a folder. With a umask of 077 the sources are readable only for their owner.
pub fn make_readable(folder: &Path) -> io::Result<()> {
    each(folder, readable)
}

/// Makes a folder the builder's own.
pub fn make_own(folder: &Path) -> io::Result<()> {
    each(folder, own)
}

fn readable(parent: BorrowedFd, name: &OsStr, state: &FileStat) -> io::Result<()> {
    let kind = kind(state);
    let wanted = match kind {
        SFlag::S_IFDIR => 0o055,
        SFlag::S_IFREG if state.st_mode & 0o100 != 0 => 0o055,
        SFlag::S_IFREG => 0o044,
        _ => return Ok(()),
    };
    if state.st_mode & wanted == wanted {
        return Ok(());
    }
    // Without O_NONBLOCK a FIFO would block, if there is one by now.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = openat(parent, name, flags | IN_PLACE, Mode::empty())?;
    let state = fstat(&file)?;
    require_only_name(&state)?;
    let mode = Mode::from_bits_truncate(state.st_mode | wanted);
    Ok(fchmod(&file, mode)?)
}

fn own(parent: BorrowedFd, name: &OsStr, state: &FileStat) -> io::Result<()> {
    let is_own = |state: &FileStat| (state.st_uid, state.st_gid) == (BUILDER, BUILDER);
    if is_own(state) {
        return Ok(());
    }
    // Also links and FIFOs, which cannot be opened otherwise.
    let entry = openat(parent, name, OFlag::O_PATH | IN_PLACE, Mode::empty())?;
    require_only_name(&fstat(&entry)?)?;
    let (user, group) = (Uid::from_raw(BUILDER), Gid::from_raw(BUILDER));
    Ok(fchownat(&entry, c"", Some(user), Some(group), AtFlags::AT_EMPTY_PATH)?)
}

/// A hard link may be another name of a file outside.
fn require_only_name(state: &FileStat) -> io::Result<()> {
    match kind(state) {
        SFlag::S_IFDIR => Ok(()),
        _ if state.st_nlink <= 1 => Ok(()),
        _ => Err(io::Error::other("it is a hard link; remove it")),
    }
}

fn kind(state: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(state.st_mode & SFlag::S_IFMT.bits())
}

const IN_PLACE: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_CLOEXEC);
const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(IN_PLACE);

/// Changes a folder and everything in it.
fn each(folder: &Path, change: Change) -> io::Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::Error::other(format!("{} is no folder in another", folder.display())));
    };
    let opened = open(parent, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| named(errno.into(), parent))?;
    descend(opened.as_fd(), name, folder, change, DEEPEST)
}

fn descend(
    parent: BorrowedFd,
    name: &OsStr,
    path: &Path,
    change: Change,
    levels: usize,
) -> io::Result<()> {
    let error = |error| named(error, path);
    let state = nix::sys::stat::fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        .map_err(|errno| error(errno.into()))?;
    change(parent, name, &state).map_err(error)?;
    if kind(&state) != SFlag::S_IFDIR {
        return Ok(());
    }
    if levels == 0 {
        return Err(error(io::Error::other(format!("it is more than {DEEPEST} folders deep"))));
    }
    let (folder, names) = open_folder(parent, name).map_err(|errno| error(errno.into()))?;
    names.iter().try_for_each(|name| {
        let name = OsStr::from_bytes(name.as_bytes());
        descend(folder.as_fd(), name, &path.join(name), change, levels - 1)
    })
}

fn open_folder(parent: BorrowedFd, name: &OsStr) -> Result<(OwnedFd, Vec<CString>), Errno> {
    let folder = openat(parent, name, FOLDER, Mode::empty())?;
    let mut listing = Dir::openat(&folder, c".", FOLDER, Mode::empty())?;
    let names = listing.iter().map(|entry| Ok(entry?.file_name().to_owned()));
    let names: Vec<CString> = names.collect::<Result<_, Errno>>()?;
    let is_below = |name: &CString| ![c".", c".."].contains(&name.as_c_str());
    Ok((folder, names.into_iter().filter(is_below).collect()))
}

fn named(error: io::Error, path: &Path) -> io::Error {
    let text = format!("failed to hand {} to the build: {error}", path.display());
    io::Error::new(error.kind(), text)
}
