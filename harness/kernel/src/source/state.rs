// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a checkout, in a file beside its folder, so that the folder holds only sources.

use super::{KernelError, io_error, tree};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tramplab_host::cache;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub lineage: String,
    /// None during a checkout and after one that failed.
    complete: Option<Complete>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Complete {
    digest: String,
    /// Hash of the files' sizes and times.
    stamp: String,
}

impl State {
    pub fn load(into: &Path) -> Option<State> {
        serde_json::from_slice(&fs::read(file(into)).ok()?).ok()
    }

    /// True if the folder is exactly as the checkout of `digest` left it.
    pub fn holds(&self, digest: &str, into: &Path) -> Result<bool, KernelError> {
        match &self.complete {
            Some(complete) if complete.digest == digest => Ok(complete.stamp == tree::stamp(into)?),
            _ => Ok(false),
        }
    }

    pub fn begin(lineage: &str, into: &Path) -> Result<(), KernelError> {
        State { lineage: lineage.to_owned(), complete: None }.save(into)
    }

    pub fn complete(lineage: &str, digest: &str, into: &Path) -> Result<(), KernelError> {
        let complete = Complete { digest: digest.to_owned(), stamp: tree::stamp(into)? };
        State { lineage: lineage.to_owned(), complete: Some(complete) }.save(into)
    }

    pub fn remove(into: &Path) -> Result<(), KernelError> {
        let path = file(into);
        fs::remove_file(&path).map_err(io_error("remove", &path))
    }

    fn save(&self, into: &Path) -> Result<(), KernelError> {
        let path = file(into);
        let json = serde_json::to_vec_pretty(self).expect("plain data");
        cache::write_whole(&path, &json).map_err(io_error("write", &path))
    }
}

fn file(into: &Path) -> PathBuf {
    into.with_added_extension("checkout")
}
