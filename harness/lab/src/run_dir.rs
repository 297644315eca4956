// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of a new run: its name, and `latest`.

use crate::error::{Context, Error, Result};
use std::{
    fs,
    hash::{BuildHasher, RandomState},
    path::Path,
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};
use tramplab_host::{apt, runs::RunDir};
use tramplab_model::text;

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
    let latest = runs.join("latest");
    let _ = fs::remove_file(&latest);
    let _ = std::os::unix::fs::symlink(id, &latest);
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
    apt::sha256(path).with_context(|| format!("failed to read {}", path.display()))
}
