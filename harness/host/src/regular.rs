// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads regular files of limited size: a stranger's folder may have a pipe, or a link to a device.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

const MIB: u64 = 1 << 20;

/// Opens a file that is no link. Neither a pipe nor a device is waited for.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(refused("is a link; expected a regular file".to_owned()));
        }
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(refused("is no regular file".to_owned()));
    }
    Ok(file)
}

/// Reads a file that [`open`] takes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_large(most));
    }
    Ok(bytes)
}

/// Rejects a file of more than `most` bytes.
pub fn check_size(path: &Path, size: u64, most: u64) -> io::Result<()> {
    if size > most { Err(named(path, too_large(most))) } else { Ok(()) }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Copies a file that [`open`] takes.
pub fn copy(from: &Path, to: &Path, most: u64) -> io::Result<()> {
    let file = open(from).map_err(|error| named(from, error))?;
    check_size(from, file.metadata()?.len(), most)?;
    // It may grow meanwhile.
    io::copy(&mut file.take(most), &mut File::create(to)?)?;
    Ok(())
}

/// True for a file that this process inherited open, such as the pipe of `<(…)`.
pub fn is_of_shell(path: &Path) -> bool {
    let parents = ["/dev/fd", "/proc/self/fd"].map(Path::new);
    path == Path::new("/dev/stdin") || path.parent().is_some_and(|at| parents.contains(&at))
}

/// Opens a file that the user named. Rejects a FIFO, which would be waited for, unless a shell
/// made it.
pub fn open_typed(path: &Path) -> io::Result<File> {
    // Checked first, since opening a FIFO blocks.
    if fs::metadata(path)?.file_type().is_fifo() && !is_of_shell(path) {
        return Err(refused("is a FIFO; expected a file".to_owned()));
    }
    File::open(path)
}

fn too_large(most: u64) -> io::Error {
    refused(format!("has more than {} MiB", most.div_ceil(MIB)))
}

fn refused(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

/// True if [`read`] rejected a file for what it is.
pub fn is_refused(error: &io::Error) -> bool {
    error.kind() == ErrorKind::InvalidInput
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use std::os::unix::fs::symlink;

    #[test]
    fn reads_only_regular_files_of_limited_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("short"), "text").unwrap();
        mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        symlink("/dev/zero", path("device")).unwrap();
        assert!(is_refused(&open_typed(&path("pipe")).unwrap_err()));
        assert!(open_typed(&path("short")).is_ok());
        assert!(is_of_shell(Path::new("/dev/fd/63")) && !is_of_shell(Path::new("/dev/fd")));
        symlink("short", path("link")).unwrap();
        fs::File::create(path("large")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&path("short"), 4).unwrap(), b"text");
        for name in ["pipe", "device", "link", "large", "."] {
            let error = read(&path(name), 4).unwrap_err();
            assert!(is_refused(&error), "{name}: {error}");
            let error = copy(&path(name), &path("copy"), 4).unwrap_err();
            assert!(is_refused(&error) && !path("copy").exists(), "{name}: {error}");
        }
        copy(&path("short"), &path("copy"), 4).unwrap();
        assert_eq!(fs::read(path("copy")).unwrap(), b"text");
        assert!(is_refused(&read(&path("short"), 3).unwrap_err()));
        assert!(is_refused(&read(Path::new("/dev/zero"), 3).unwrap_err()));
        assert_eq!(read(&path("none"), 4).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
