// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks a folder by descriptors. A path could lead elsewhere by the time that it is used: whoever
//! writes to the folder may replace a part of it by a link.

use nix::{
    dir::Dir,
    fcntl::{AtFlags, OFlag, open, openat},
    sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat},
    unistd::{Gid, Uid, fchownat},
};
use std::{
    ffi::{CStr, CString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// Deeper than a kernel's tree. Each level keeps a descriptor open.
const DEEPEST: usize = 128;

const FOLDER: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// What is done with each entry, and with the folder itself under the name `.`.
type Each<'a> = &'a dyn Fn(BorrowedFd, &CStr, &FileStat) -> io::Result<()>;

/// Makes a folder and all in it `user`'s. Links are given away themselves.
pub fn give(folder: &Path, user: u32) -> io::Result<()> {
    walk(folder, &|within, name, stat| {
        if (stat.st_uid, stat.st_gid) != (user, user) {
            let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
            fchownat(within, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    })
}

/// Makes a folder and all in it readable for everybody: with a umask of 077 they are so only for
/// their owner.
pub fn open_to_all(folder: &Path) -> io::Result<()> {
    walk(folder, &|within, name, stat| {
        let mode = stat.st_mode & 0o7777;
        let wanted = match kind(stat) {
            SFlag::S_IFDIR => 0o055,
            SFlag::S_IFREG if mode & 0o100 != 0 => 0o055,
            SFlag::S_IFREG => 0o044,
            _ => 0,
        };
        if mode & wanted == wanted {
            return Ok(());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = openat(within, name, flags, Mode::empty())?;
        // It may be another one by now.
        let mode = fstat(&file)?.st_mode & 0o7777;
        Ok(fchmod(&file, Mode::from_bits_truncate(mode | wanted))?)
    })
}

fn walk(folder: &Path, each: Each) -> io::Result<()> {
    let name = CString::new(folder.as_os_str().as_bytes())?;
    descend(open(&*name, FOLDER, Mode::empty())?, each, DEEPEST)
}

fn descend(folder: OwnedFd, each: Each, left: usize) -> io::Result<()> {
    if left == 0 {
        let why = format!("folders are nested more than {DEEPEST} deep");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let this = folder.try_clone()?;
    let this = this.as_fd();
    for entry in Dir::from_fd(folder)?.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c".." {
            continue;
        }
        let stat = fstatat(this, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        each(this, name, &stat)?;
        if kind(&stat) == SFlag::S_IFDIR && name != c"." {
            descend(openat(this, name, FOLDER, Mode::empty())?, each, left - 1)?;
        }
    }
    Ok(())
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
        path::PathBuf,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    const OTHER: u32 = 65533;

    struct Place(tempfile::TempDir);

    impl Place {
        /// A folder that a build writes to, and a file that is nobody else's business.
        fn new() -> Place {
            let place = Place(tempfile::tempdir().unwrap());
            for folder in ["build/d", "outside"] {
                fs::create_dir_all(place.path(folder)).unwrap();
                fs::write(place.path(folder).join("secret"), "").unwrap();
            }
            let private = fs::Permissions::from_mode(0o600);
            fs::set_permissions(place.path("outside/secret"), private).unwrap();
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Owner and mode of the file outside.
        fn outside(&self) -> (u32, u32) {
            let data = fs::metadata(self.path("outside/secret")).unwrap();
            (data.uid(), data.mode() & 0o777)
        }
    }

    #[test]
    fn opens_what_is_inside_and_nothing_else() {
        let place = Place::new();
        symlink("../outside/secret", place.path("build/link")).unwrap();
        symlink("../outside", place.path("build/folder")).unwrap();
        let modes = [("build", 0o700), ("build/d", 0o700), ("build/d/secret", 0o600)];
        for (name, mode) in modes {
            fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        open_to_all(&place.path("build")).unwrap();
        let mode = |name: &str| fs::metadata(place.path(name)).unwrap().mode() & 0o777;
        assert_eq!(modes.map(|(name, _)| mode(name)), [0o755, 0o755, 0o644]);
        assert_eq!(place.outside().1, 0o600);
    }

    #[test]
    fn stops_at_folders_that_nobody_nests() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("d/".repeat(DEEPEST - 1))).unwrap();
        open_to_all(folder.path()).unwrap();
        fs::create_dir_all(folder.path().join("d/".repeat(DEEPEST))).unwrap();
        let error = open_to_all(folder.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// A build swaps a folder for a link while root walks there.
    #[test]
    fn gives_nothing_away_that_a_link_leads_to() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let place = Place::new();
        symlink("../outside/secret", place.path("build/link")).unwrap();
        let ended = AtomicBool::new(false);
        let [d, aside] = ["build/d", "aside"].map(|name| place.path(name));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    fs::rename(&d, &aside).unwrap();
                    symlink("../outside", &d).unwrap();
                    fs::remove_file(&d).unwrap();
                    fs::rename(&aside, &d).unwrap();
                }
            });
            for _ in 0..20_000 {
                // A part may be gone.
                let _ = give(&place.path("build"), OTHER);
            }
            ended.store(true, Ordering::Relaxed);
        });
        assert_eq!(place.outside(), (0, 0o600));
        give(&place.path("build"), OTHER).unwrap();
        for name in ["build", "build/d", "build/d/secret", "build/link"] {
            assert_eq!(fs::symlink_metadata(place.path(name)).unwrap().uid(), OTHER, "{name}");
        }
    }
}
