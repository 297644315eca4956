// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a bisection.

use super::Question;
use crate::command::CommandLine;
use std::path::PathBuf;
use tramplab_model::run::Arch;
use tramplab_vm::accel;

/// Options of a bisection.
#[derive(Clone)]
pub struct BisectOptions {
    pub metric: Question,
    pub range: Range,
    /// `None`: this machine's architecture.
    pub arch: Option<Arch>,
    pub accel: accel::Request,
    /// The CPU as which guests boot: as `vm-test --model` takes it.
    pub model: Option<String>,
    /// Build without confinement.
    pub unconfined: bool,
    /// Where runs are kept; `None`: runs/ of the repository.
    pub runs: Option<PathBuf>,
    /// The command, kept with each run.
    pub command: CommandLine,
}

/// The commits that are searched.
#[derive(Clone)]
pub enum Range {
    Repository(Repository),
    /// The patches of a series, on a kernel; both as `vm-test` takes them.
    Series {
        series: String,
        kernel: Option<String>,
    },
    /// The differences of two configurations of a kernel.
    Configs(Configs),
}

#[derive(Clone)]
pub struct Repository {
    pub tree: PathBuf,
    pub good: String,
    pub bad: String,
    /// Answer only for the commit that `git bisect run` has chosen.
    pub by_hand: bool,
}

/// Two configurations of a kernel: whole `.config` files or fragments.
#[derive(Clone)]
pub struct Configs {
    pub kernel: String,
    pub good: PathBuf,
    pub bad: PathBuf,
}
