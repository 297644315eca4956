// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands of `cargo xtask`, one file each.

pub mod artifacts;
pub mod baseline;
pub mod bench;
pub mod bisect;
pub mod cache;
pub mod compare;
pub mod doctor;
pub mod faults;
pub mod fuzz;
pub mod history;
pub mod interrupt;
pub mod kernels;
pub mod lab;
pub mod mechanisms;
pub mod merge;
pub mod nextest;
pub mod profile;
pub mod progress;
pub mod report;
mod rest;
mod scratch;
pub mod shell;
pub mod test;
mod typed;
pub mod vm_test;

use std::{ffi::OsString, path::PathBuf, sync::LazyLock};

/// Exit codes, documented in the README.
pub mod exit {
    /// Everything that ran passed (or was skipped with a reason).
    pub const PASS: u8 = 0;
    /// Measured, and beyond a budget; or a test of the repo failed.
    pub const FAIL: u8 = 1;
    /// The command line, a suite or a manifest is wrong, or something to run it is missing.
    pub const USAGE: u8 = 2;
    /// At least one cell could not be measured.
    pub const NO_MEASUREMENT: u8 = 3;
    pub const INTERRUPTED: u8 = 130;
}

/// The user stopped it.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// The repository: `kernels/`, `configs/` and the sources of agent and plugin.
pub fn repository() -> PathBuf {
    static REPOSITORY: LazyLock<PathBuf> = LazyLock::new(|| {
        // `cargo xtask` sets it; the path of the build is the fallback for a binary started by hand.
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        manifest.ancestors().nth(2).expect("this crate is harness/cli").to_owned()
    });
    REPOSITORY.clone()
}

/// What `cargo run` says of our package would be inherited by the cargos that we run; which take it for a change, so that packages whose
/// build asks for it are built again, first by that cargo and then by the user's.
///
/// # Safety
/// No other thread may be there yet.
pub unsafe fn forget_cargo_run() {
    repository();
    let of_package = |name: &OsString| {
        name.to_str().is_some_and(|name| {
            name == "OUT_DIR" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        })
    };
    for name in std::env::vars_os().map(|(name, _)| name).filter(of_package).collect::<Vec<_>>() {
        // SAFETY: the caller's promise.
        unsafe { std::env::remove_var(name) };
    }
}

/// What was asked cannot be done as asked: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
