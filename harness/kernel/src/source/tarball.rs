// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources from a tarball, unpacked by the host's tar.

use super::{KernelError, SourceError, io_error, tree};
use crate::{download, manifest::Download};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::Signal,
    },
    unistd::Pid,
};
use std::{
    fs, io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_host::{
    ChildError,
    cache::{Cache, CacheError, RESERVE, require_room},
    child,
};

/// File name endings of tarballs. tar itself looks at the content.
pub const TARBALLS: [&str; 4] = [".tar.xz", ".tar.gz", ".tar.zst", ".tar.bz2"];

/// Unpacking 6.12 takes 12 s.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Bytes of an archive, unpacked; 6.12 has 1.5 GiB.
const MOST: u64 = 8 << 30;
/// Bytes of one file of it; 6.12's largest has 30 MiB.
const LARGEST: u64 = 1 << 30;
/// The memory of xz; an archive of `xz -9` needs 65 MiB.
const XZ_MEMORY: &str = "--memlimit-decompress=1GiB";
/// Removed when dropped.
struct Unpacked(PathBuf);

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the tarball's path in the cache. Fetches it first if needed.
pub fn fetched(
    download: &Download,
    cache: &Cache,
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, KernelError> {
    let entry = cache.entry("kernel-tarball", &download.sha256, |folder| {
        progress(&format!("fetching {}", download.url));
        download::fetch(download, &folder.join("tarball"))
    })?;
    Ok(entry.join("tarball"))
}

/// Makes `into` hold the content of a tarball.
pub fn checkout(tarball: &Path, into: &Path) -> Result<(), KernelError> {
    // Same disk as `into`, so that files can be moved.
    let unpacked = Unpacked(into.with_added_extension("unpacked"));
    match fs::remove_dir_all(&unpacked.0) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove", &unpacked.0)(error));
        }
        _ => {}
    }
    fs::create_dir(&unpacked.0).map_err(io_error("make", &unpacked.0))?;
    unpack(tarball, &unpacked.0, MOST)?;
    let root = top(tarball, &unpacked.0)?;
    tree::check_tree(&root).map_err(|error| match error {
        KernelError::Source(SourceError::NotATree { lacks, .. }) => {
            SourceError::NotATree { place: tarball.display().to_string(), lacks }.into()
        }
        error => error,
    })?;
    tree::check_clean(&root)?;
    tree::sync_moving(&root, into)
}

/// tar was stopped.
enum Stopped {
    By(ChildError),
    TooLong,
    NoRoom(CacheError),
}

impl From<ChildError> for Stopped {
    fn from(error: ChildError) -> Stopped {
        Stopped::By(error)
    }
}

/// Bytes of the archive that a process has read so far, from the program that unpacks it. None once
/// it has ended.
fn read_by(process: Pid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

/// The same as tar tells at its end: `Total bytes read: 10240 (10KiB, 8.1MiB/s)`.
fn read_in_all(stderr: &str) -> Option<u64> {
    let total =
        |line: &str| line.strip_prefix("Total bytes read: ")?.split(' ').next()?.parse().ok();
    stderr.lines().find_map(total)
}

fn unpack(tarball: &Path, into: &Path, most: u64) -> Result<(), KernelError> {
    let mut command = Command::new("tar");
    command
        .env_remove("TAR_OPTIONS")
        // Without a limit a file of a few bytes makes xz allocate 4 GiB.
        .env_remove("XZ_OPT")
        .env("XZ_DEFAULTS", XZ_MEMORY)
        // A colon in a file name does not separate a host.
        .args(["--extract", "--force-local", "--no-same-owner", "--no-same-permissions"])
        // At its end it prints how much it has read: it may be faster than any watcher.
        .arg("--totals")
        .arg("--file")
        .arg(tarball)
        .arg("--directory")
        .arg(into);
    // A sparse member claims any size, with no bytes in the archive.
    let (_, hard) =
        getrlimit(Resource::RLIMIT_FSIZE).map_err(|e| io_error("read", into)(e.into()))?;
    let largest = LARGEST.min(hard);
    // SAFETY: between fork and exec only setrlimit is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || Ok(setrlimit(Resource::RLIMIT_FSIZE, largest, largest)?));
    }
    let bad = |why: String| SourceError::Tarball { path: tarball.to_owned(), why };
    let large = || bad(format!("a file of it has more than {} MiB", largest >> 20)).into();
    let long = || {
        bad(format!("it unpacks to more than {} MiB; expected a kernel's sources", most >> 20))
            .into()
    };
    // tar may notice the limit before the kernel ends it, and only warns of a hole.
    let is_large =
        |stderr: &str| ["File too large", "Wrote only"].iter().any(|w| stderr.contains(w));
    let watched = child::run_watched(&mut command, LIMIT, &mut |process| {
        require_room(into, RESERVE).map_err(Stopped::NoRoom)?;
        match read_by(process) {
            Some(bytes) if bytes > most => Err(Stopped::TooLong),
            _ => Ok(()),
        }
    });
    // tar fails on a member with `..`. From an absolute one it strips the slash and continues.
    let output = watched.map_err(|stopped| -> KernelError {
        match stopped {
            Stopped::By(ChildError::Failed { status, stderr, .. })
                if status.signal() == Some(Signal::SIGXFSZ as i32) || is_large(&stderr) =>
            {
                large()
            }
            Stopped::By(source) => {
                SourceError::Unpack { path: tarball.to_owned(), source: Box::new(source) }.into()
            }
            Stopped::TooLong => long(),
            Stopped::NoRoom(error) => error.into(),
        }
    })?;
    if is_large(&output.stderr) {
        return Err(large());
    }
    if read_in_all(&output.stderr).is_some_and(|bytes| bytes > most) {
        return Err(long());
    }
    if output.stderr.contains("Removing leading") {
        let why = "it has members outside its own folder; expected one folder with a kernel's \
                   sources";
        return Err(bad(why.to_owned()).into());
    }
    Ok(())
}

/// Finds the sources' folder in the unpacked tarball: `linux-6.12`.
fn top(tarball: &Path, unpacked: &Path) -> Result<PathBuf, KernelError> {
    let entries = fs::read_dir(unpacked).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let entries = entries.map_err(io_error("read", unpacked))?;
    match entries.as_slice() {
        [only] if only.file_type().is_ok_and(|kind| kind.is_dir()) => Ok(only.path()),
        _ if unpacked.join("Kbuild").is_file() => Ok(unpacked.to_owned()),
        _ => {
            let why = "expected one folder with a kernel's sources in it".to_owned();
            Err(SourceError::Tarball { path: tarball.to_owned(), why }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Archives that unpack to far more than they have.
    #[test]
    fn stops_unpacking_what_is_no_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/testdata/bombs.py");
        let mut python = Command::new("python3");
        child::run(python.arg(script).current_dir(&folder), LIMIT).unwrap();
        for (name, words) in [
            ("long.tar.gz", "it unpacks to more than 4 MiB; expected a kernel's sources"),
            ("files.tar.gz", "it unpacks to more than 4 MiB; expected a kernel's sources"),
            ("sparse.tar.gz", "a file of it has more than 1024 MiB"),
            ("hole.tar.gz", "a file of it has more than 1024 MiB"),
            ("dictionary.tar.xz", "Memory usage limit reached"),
        ] {
            let into = folder.path().join("into");
            fs::create_dir(&into).unwrap();
            let error = unpack(&folder.path().join(name), &into, 4 << 20).unwrap_err();
            assert!(error.to_string().contains(words), "{name}: {error}");
            assert!(error.is_usage(), "{error}");
            fs::remove_dir_all(&into).unwrap();
        }
    }
}
