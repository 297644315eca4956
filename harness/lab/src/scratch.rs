// SPDX-License-Identifier: MIT OR Apache-2.0
//! Temporary folders, and removing those of killed owners.

use crate::error::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use std::{env, fs, io, path::Path, time::Duration};
use tempfile::TempDir;

const PREFIX: &str = "tramplab-scratch-";
/// A folder that is younger may not be locked yet.
const YOUNG: Duration = Duration::from_secs(60);

/// Locked by its owner as long as it is there: a lock ends with its holder, whatever ended that.
pub struct Scratch {
    folder: TempDir,
    #[expect(dead_code, reason = "held for its drop")]
    lock: Flock<fs::File>,
}

impl Scratch {
    /// Also removes those of owners that were killed.
    pub fn new() -> Result<Scratch> {
        sweep(&env::temp_dir(), YOUNG);
        let made = || -> io::Result<Scratch> {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
            let lock = Flock::lock(fs::File::open(folder.path())?, FlockArg::LockExclusiveNonblock);
            Ok(Scratch { lock: lock.map_err(|(_, errno)| io::Error::from(errno))?, folder })
        };
        made().context("failed to make a temporary folder")
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn sweep(within: &Path, young: Duration) {
    let folders = fs::read_dir(within).into_iter().flatten().flatten();
    let ours = folders.filter(|entry| {
        entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
    });
    for folder in ours {
        let age =
            folder.metadata().and_then(|metadata| metadata.modified()).map(|since| since.elapsed());
        if age.is_ok_and(|age| age.is_ok_and(|age| age >= young))
            && let Ok(file) = fs::File::open(folder.path())
            && let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        {
            // Another user's folder stays.
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_holds_is_swept() {
        let within = tempfile::tempdir().unwrap();
        let [held, dead, other] =
            [format!("{PREFIX}held"), format!("{PREFIX}dead"), "tramplab-b4-x".to_owned()].map(
                |name| {
                    let path = within.path().join(name);
                    fs::create_dir(&path).unwrap();
                    fs::write(path.join("file"), "").unwrap();
                    path
                },
            );
        let lock =
            Flock::lock(fs::File::open(&held).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        sweep(within.path(), YOUNG);
        assert!(held.exists() && dead.exists() && other.exists());
        sweep(within.path(), Duration::ZERO);
        assert!(held.exists() && !dead.exists() && other.exists());
        drop(lock);
        sweep(within.path(), Duration::ZERO);
        assert!(!held.exists() && other.exists());
    }
}
