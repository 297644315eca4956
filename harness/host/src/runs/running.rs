// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells live runs from killed ones, and tidies the folders of killed runs.

use super::RunDir;
use crate::regular;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use walkdir::WalkDir;

/// Exists while cells run. The harness holds a lock on it, which ends with the harness.
const MARK: &str = ".running";
/// The root of a guest with the exact clock. All its contents are also kept elsewhere.
pub const OWN_ROOT: &str = "initramfs.cpio";
/// Prefix of a result's temporary file.
pub(super) const UNNAMED: &str = ".unnamed-";
/// Suffix of a file that the plugin has not finished.
const UNFINISHED: &str = ".part";

/// Marks a run as running until it is dropped.
#[derive(Debug)]
pub struct Running {
    mark: PathBuf,
    #[expect(dead_code, reason = "held for its drop")]
    lock: Flock<fs::File>,
}

impl Running {
    pub fn mark(run: &RunDir) -> io::Result<Running> {
        // Lock the file before it gets its name: a run that starts now must not take this one for
        // dead.
        let (mark, unnamed) = (run.path().join(MARK), run.path().join(format!("{UNNAMED}mark")));
        let file = fs::File::create(&unnamed)?;
        let lock =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        fs::rename(&unnamed, &mark)?;
        Ok(Running { mark, lock })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ignore an error: the next run removes the mark as that of a dead run.
        let _ = fs::remove_file(&self.mark);
    }
}

/// Returns true while a run's harness lives and runs its cells.
pub fn is_going_on(run: &RunDir) -> bool {
    let Ok(file) = regular::open(&run.path().join(MARK)) else { return false };
    // A shared lock: two processes that ask at once do not take each other for the harness.
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
}

/// The runs in a folder whose harness was killed. Removes their marks: each run is returned once.
pub fn killed(runs: &Path) -> Vec<RunDir> {
    let folders = fs::read_dir(runs).into_iter().flatten().flatten();
    let real = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let is_dead = |run: &RunDir| {
        let mark = run.path().join(MARK);
        let Ok(file) = regular::open(&mark) else { return false };
        Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .is_ok_and(|_lock| fs::remove_file(&mark).is_ok())
    };
    real.map(|entry| RunDir::new(entry.path())).filter(is_dead).collect()
}

/// Removes files that only running cells need. Returns their number. Results and logs stay.
pub fn tidy(run: &RunDir) -> usize {
    let files =
        WalkDir::new(run.path()).into_iter().flatten().filter(|entry| entry.file_type().is_file());
    let is_of_no_use =
        |name: &str| name == OWN_ROOT || name.starts_with(UNNAMED) || name.ends_with(UNFINISHED);
    let useless = files.filter(|entry| entry.file_name().to_str().is_some_and(is_of_no_use));
    // Ignore errors: such files do no harm.
    useless.filter(|entry| fs::remove_file(entry.path()).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tidies_only_killed_runs_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let runs = ["alive", "dead", "ended"].map(|name| {
            let cell = dir.path().join(name).join("cells/a");
            fs::create_dir_all(&cell).unwrap();
            for file in [OWN_ROOT, "console.log", &format!("{UNNAMED}x"), "trace-0000.part"] {
                fs::write(cell.join(file), "").unwrap();
            }
            RunDir::new(dir.path().join(name))
        });
        let [alive, dead, ended] = &runs;
        let _alive = Running::mark(alive).unwrap();
        // A killed run leaves its mark without a lock.
        fs::write(dead.path().join(MARK), "").unwrap();
        drop(Running::mark(ended).unwrap());
        assert_eq!([alive, dead, ended].map(is_going_on), [true, false, false]);

        let found = killed(dir.path());
        assert_eq!(found.iter().map(RunDir::id).collect::<Vec<_>>(), ["dead"]);
        assert_eq!(tidy(&found[0]), 3);
        assert!(dead.path().join("cells/a/console.log").exists());
        assert_eq!(fs::read_dir(dead.path()).unwrap().count(), 1);
        assert!(killed(dir.path()).is_empty());
    }

    #[test]
    fn a_pipe_as_mark_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["pipe", "device"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mark = |name: &str| dir.path().join(name).join(MARK);
        nix::unistd::mkfifo(&mark("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", mark("device")).unwrap();
        for name in ["pipe", "device"] {
            assert!(!is_going_on(&RunDir::new(dir.path().join(name))), "{name}");
        }
        assert!(killed(dir.path()).is_empty());
        assert!(fs::symlink_metadata(mark("pipe")).is_ok());
    }
}
