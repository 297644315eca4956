// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that a shell completes. The shell asks this program, so they are those of now.

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap_complete::{
    CompletionCandidate,
    engine::{ArgValueCompleter, PathCompleter, ValueCompleter},
};
use std::{collections::BTreeSet, ffi::OsStr, fs, path::PathBuf};
use tramplab_host::runs::RunDir;
use tramplab_lab::{backend::Where, cpus, place, run_dir};

/// The variable by which a shell asks, as the installed scripts set it.
pub const VARIABLE: &str = "TRAMPLAB_COMPLETE";

pub fn suites() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| or_paths(typed, place().suites()))
}

pub fn kernels() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let running = ["running".to_owned()];
        or_paths(typed, place().kernels().into_iter().chain(running))
    })
}

pub fn models() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| or_paths(typed, cpus::names(place())))
}

pub fn cpus() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| or_paths(typed, place().cpus()))
}

pub fn vms() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| fitting(typed, Where::NAMES.map(str::to_owned)))
}

pub fn series() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| or_paths(typed, place().series()))
}

pub fn runs() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| or_paths(typed, stored()))
}

/// Tests of the newest run: a plan would need its kernels.
pub fn cells() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| fitting(typed, tests().unwrap_or_default()))
}

fn tests() -> Option<BTreeSet<String>> {
    let run = RunDir::load(&run_dir::newest(&place().runs().ok()?)).ok()?;
    Some(run.cells.iter().map(|cell| cell.id.test.name()).collect())
}

/// The names of the stored runs.
fn stored() -> Vec<String> {
    let entries = place().runs().into_iter().flat_map(fs::read_dir).flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn fitting(typed: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let start = typed.to_string_lossy();
    let names = names.into_iter().filter(|name| name.starts_with(&*start));
    names.map(CompletionCandidate::new).collect()
}

fn or_paths(typed: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let mut candidates = fitting(typed, names);
    candidates.extend(PathCompleter::any().complete(typed));
    candidates
}

/// Parses a run: a path, or its name in the folder of runs. `latest` may be elsewhere.
pub fn run() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| {
        let is_name = path.components().count() == 1 && !path.exists();
        let named = place().runs().map(|runs| match path.as_os_str() == run_dir::LATEST {
            true => run_dir::newest(&runs),
            false => runs.join(&path),
        });
        named.ok().filter(|named| is_name && named.exists()).unwrap_or(path)
    })
}
