// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of builds, and who is at fault.

use super::{
    FirstError, Kind, Order, ToolchainError, WorkspaceError, compiler_error,
    make::{self, MakeError},
};
use crate::kconfig::{Demand, Unmet};
use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};
use tramplab_host::cache::CacheError;

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Toolchain(#[from] ToolchainError),
    #[error(
        "failed to configure {name} from {description}: {}{}",
        first_of(.unmet, .log),
        advice(.unmet)
    )]
    Config { name: String, description: String, unmet: Vec<Unmet>, log: PathBuf },
    #[error("failed to build {name}: {error}\nthe full log is {log}", log = .log.display())]
    Compile { name: String, error: Box<FirstError>, log: PathBuf },
    #[error("failed to apply `{subject}` ({origin}) to {description}: {reason}")]
    Apply { subject: String, origin: String, description: String, reason: String },
    #[error("failed to build {name}: interrupted")]
    Interrupted { name: String },
    #[error("failed to build {name}: {reason}; the full log is {log}", log = .log.display())]
    Endless { name: String, reason: String, log: PathBuf },
    /// The base failed while a patched kernel was built.
    #[error("failed to build the base of the patches: {0}")]
    Base(Box<BuildError>),
    /// Only an order that asks for source lines ends like this.
    #[error(
        "failed to find the source lines of {name}: {reason}; leave out --lines, or build all anew \
         with --no-cache"
    )]
    Lines { name: String, reason: String },
    #[error(transparent)]
    NoRoom(CacheError),
    #[error(transparent)]
    Cache(CacheError),
    #[error(transparent)]
    Workspace(WorkspaceError),
    #[error("failed to {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Most options that an error names. The others often follow from these.
const NAMED: usize = 8;

/// The first options, and the number of the others.
fn first_of(unmet: &[Unmet], log: &Path) -> String {
    let mut told = match unmet.len() {
        1 => "one option did not survive".to_owned(),
        many => format!("{many} options did not survive"),
    };
    for unmet in unmet.iter().take(NAMED) {
        told.push_str(&format!("\n{unmet}"));
    }
    if unmet.len() > NAMED {
        told.push_str(&format!("\n{} more: {}", unmet.len() - NAMED, log.display()));
    }
    told
}

/// For a whole `.config`, which may be of another version.
fn advice(unmet: &[Unmet]) -> String {
    match unmet.iter().find(|unmet| unmet.wanted.demand == Demand::WherePrompted) {
        Some(unmet) => format!(
            "\n`make olddefconfig` in these sources fits {} to their version and compiler",
            unmet.wanted.path.display()
        ),
        None => String::new(),
    }
}

impl BuildError {
    /// Renames the kernel in the error: each kernel of an order has its own name.
    pub fn of_kernel(mut self, kernel: &str) -> BuildError {
        if let BuildError::Compile { name, .. }
        | BuildError::Config { name, .. }
        | BuildError::Endless { name, .. }
        | BuildError::Lines { name, .. } = &mut self
        {
            kernel.clone_into(name);
        }
        self
    }

    /// True if the user can fix it by asking for something else or by installing tools.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            BuildError::Toolchain(_) | BuildError::Config { .. } | BuildError::Apply { .. }
        )
    }

    /// True if the sources are at fault, not this host or the order.
    pub fn is_of_sources(&self) -> bool {
        match self {
            BuildError::Compile { error, .. } => {
                !matches!(error.kind, Kind::Killed | Kind::DiskFull)
            }
            BuildError::Config { .. } | BuildError::Endless { .. } => true,
            _ => false,
        }
    }

    /// True if the same sources always fail like this: a tool named a place in them. Missing files,
    /// killed programs and timeouts may depend on this host.
    pub fn lasts(&self) -> bool {
        match self {
            BuildError::Compile { error, .. } => error.is_in_a_source(),
            BuildError::Config { .. } => true,
            _ => false,
        }
    }
}

/// A build error whose text omits the log. The cache takes "No space left on device" in the text
/// for a full disk, and a hostile build may print that.
#[derive(Debug)]
pub struct Unquoted(pub BuildError);

impl fmt::Display for Unquoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = &self.0;
        while let BuildError::Base(base) = error {
            error = base;
        }
        match error {
            BuildError::Compile { name, .. } => write!(f, "failed to build {name}"),
            _ => self.0.fmt(f),
        }
    }
}

impl Error for Unquoted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl From<CacheError> for Unquoted {
    fn from(error: CacheError) -> Unquoted {
        Unquoted(error.into())
    }
}

impl From<CacheError> for BuildError {
    fn from(error: CacheError) -> BuildError {
        match error {
            CacheError::NoRoom { .. } | CacheError::NoFiles { .. } | CacheError::Full { .. } => {
                BuildError::NoRoom(error)
            }
            _ => BuildError::Cache(error),
        }
    }
}

impl From<WorkspaceError> for BuildError {
    fn from(error: WorkspaceError) -> BuildError {
        match error {
            WorkspaceError::Cache(error) => error.into(),
            error => BuildError::Workspace(error),
        }
    }
}

/// Turns make's error into a build error. Reads the first error from the log.
pub fn build_error(order: &Order, error: MakeError, source: &Path, log: &Path) -> BuildError {
    let name = order.name.clone();
    match error {
        MakeError::Interrupted => BuildError::Interrupted { name },
        MakeError::NoRoom(error) => error.into(),
        MakeError::Failed(status) if make::was_interrupted(status) => {
            BuildError::Interrupted { name }
        }
        MakeError::Failed(_) => match compiler_error::read(log, source) {
            // A build may print this about its own /tmp, or to hide an error. Only the disk itself
            // is believed.
            Ok(error) if error.kind == Kind::DiskFull => match make::require_reserve(source, log) {
                Err(full) => full.into(),
                Ok(()) => {
                    let error = FirstError { kind: Kind::Make, ..error };
                    BuildError::Compile { name, error: Box::new(error), log: log.to_owned() }
                }
            },
            Ok(error) => BuildError::Compile { name, error: Box::new(error), log: log.to_owned() },
            Err(source) => io_error("read", log)(source),
        },
        MakeError::Deadline | MakeError::LogTooLong => {
            BuildError::Endless { name, reason: error.to_string(), log: log.to_owned() }
        }
        MakeError::Io(source) => io_error("run make with its log in", log)(source),
    }
}

pub fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    move |source| BuildError::Io { action, path: path.to_owned(), source }
}
