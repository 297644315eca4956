// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of a new run: its name, and how `latest` names it.

use crate::error::{Context, Error, Result};
use std::{
    ffi::OsString,
    fs,
    hash::{BuildHasher, RandomState},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};
use tramplab_host::runs::RunDir;
use tramplab_model::text;

/// The name of the newest run, as a link in its folder and as a word on the command line.
pub const LATEST: &str = "latest";
/// A file in the default folder of runs with the path of the newest run, if that is elsewhere.
const ELSEWHERE: &str = ".latest";

/// A unique id: the time in seconds, and a random number, since shards may start in the same
/// second.
pub fn new_id() -> String {
    let stamp = OffsetDateTime::now_utc()
        .format(format_description!("[year][month][day]-[hour][minute][second]"))
        .expect("a date is formattable");
    // Seeded by the system, anew each time.
    let number = RandomState::new().hash_one(std::process::id());
    format!("{stamp}-{:08x}", number as u32)
}

/// A folder of its own for a run, with `prefix` before the run's id.
pub fn new_run_dir(runs: &Path, prefix: &str) -> Result<RunDir> {
    if !text::is_plain_path(runs) {
        let message =
            format!("the run's folder is to be in {runs:?}; expected a path in UTF-8 on one line");
        return Err(Error::Usage(message));
    }
    let path = runs.join(format!("{prefix}{}", new_id()));
    fs::create_dir_all(&path)
        .with_context(|| format!("failed to create the run's folder {}", path.display()))?;
    Ok(RunDir::new(fs::canonicalize(path)?))
}

/// For a run that did not begin.
pub fn discard(run_dir: &RunDir) {
    // A leftover is a run without results, and reports so.
    let _ = fs::remove_dir_all(run_dir.path());
}

/// `runs/latest`: a convenience, which a file system without symlinks does without.
pub fn point_latest_at(run_dir: &RunDir) {
    let (Some(runs), Some(id)) = (run_dir.path().parent(), run_dir.path().file_name()) else {
        return;
    };
    let latest = runs.join(LATEST);
    let _ = fs::remove_file(&latest);
    let _ = std::os::unix::fs::symlink(id, &latest);
}

/// Notes in the default folder that a run is the newest: it may be kept elsewhere (`--runs`). A
/// convenience, too, which a user without a home does without.
pub fn note_newest(run_dir: &RunDir, default: Option<&Path>) {
    let (Some(default), Ok(run)) = (default, fs::canonicalize(run_dir.path())) else { return };
    let note = default.join(ELSEWHERE);
    if fs::canonicalize(default).ok().as_deref() == run.parent() {
        let _ = fs::remove_file(note);
    } else if fs::create_dir_all(default).is_ok() {
        let _ = fs::write(note, run.as_os_str().as_bytes());
    }
}

/// The newest run: that of the default folder, unless a newer one was kept elsewhere and is there.
pub fn newest(default: &Path) -> PathBuf {
    let elsewhere = fs::read(default.join(ELSEWHERE)).ok();
    let elsewhere = elsewhere.map(|path| PathBuf::from(OsString::from_vec(path)));
    let is_there = |run: &PathBuf| run.is_absolute() && RunDir::new(run).json().is_file();
    elsewhere.filter(is_there).unwrap_or_else(|| default.join(LATEST))
}

pub fn now() -> String {
    OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .expect("0 is valid")
        .format(&Rfc3339)
        .expect("formattable")
}

/// Like [`now`], for what takes less than a second.
pub fn now_in_milliseconds() -> String {
    let now = OffsetDateTime::now_utc();
    let whole = now.replace_millisecond(now.millisecond()).expect("a valid one");
    whole.format(&Rfc3339).expect("formattable")
}

pub fn sha256(path: &Path) -> Result<String> {
    tramplab_host::sha256(path).with_context(|| format!("failed to read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_is_the_newest_run_of_any_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (default, other) = (folder.path().join("runs"), folder.path().join("other"));
        let run = |runs: &Path| {
            let run = new_run_dir(runs, "").unwrap();
            fs::write(run.json(), "{}").unwrap();
            point_latest_at(&run);
            note_newest(&run, Some(&default));
            run
        };
        let named = || fs::canonicalize(newest(&default)).unwrap();
        // The first run of all is kept elsewhere.
        let elsewhere = run(&other);
        assert_eq!(named(), elsewhere.path());
        let at_home = run(&default);
        assert_eq!(named(), at_home.path());
        let elsewhere = run(&other);
        assert_eq!(named(), elsewhere.path());
        assert_eq!(fs::canonicalize(default.join(LATEST)).unwrap(), at_home.path());
        // A folder that is gone hides no run that is left.
        fs::remove_dir_all(&other).unwrap();
        assert_eq!(named(), at_home.path());
    }
}
