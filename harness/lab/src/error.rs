// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every way in which a command fails, and whose fault it is.

use std::io;
use tramplab_analysis::profile::ProfileError;
use tramplab_host::{
    CacheError, ChildError, PrivateError, QemuError, VirtmeError, config::ConfigError,
    lbr::NoHardware, runs::StoreError, rust::RustError,
};
use tramplab_kernel::{
    KernelError, compile::BuildError, series::SeriesError, vmlinux::VmlinuxError,
};
use tramplab_protocol::message::GuestError;
use tramplab_suite::baseline::BaselineError;
use tramplab_vm::{VmError, accel::KvmRefused};

use crate::bisect::SearchError;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every error of a command. It has no catch-all conversion: `?` does not compile on an error type
/// that is not listed here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be done as asked.
    #[error("{0}")]
    Usage(String),
    #[error("interrupted")]
    Interrupted,
    /// Nothing was measured, for a reason that no other variant has.
    #[error("{0}")]
    Failed(String),
    #[error("{doing}")]
    Within { doing: String, source: Box<Error> },
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Qemu(#[from] QemuError),
    #[error(transparent)]
    Rust(#[from] RustError),
    #[error(transparent)]
    Virtme(#[from] VirtmeError),
    #[error(transparent)]
    Private(#[from] PrivateError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Vmlinux(#[from] VmlinuxError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Series(#[from] SeriesError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Vm(#[from] VmError),
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error(transparent)]
    NoHardware(#[from] NoHardware),
    #[error(transparent)]
    KvmRefused(#[from] KvmRefused),
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    #[error(transparent)]
    Cargo(#[from] xshell::Error),
}

/// The prerequisites could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("failed to find {missing}; do this, then try again:\n  {line}")]
    ByHand { missing: String, line: String },
    #[error("failed to install what is missing: {0}")]
    Install(#[from] ChildError),
    #[error("failed to find, after installing it: {missing}")]
    StillMissing { missing: String },
    #[error(transparent)]
    Qemu(#[from] QemuError),
    #[error(transparent)]
    Rust(#[from] RustError),
    #[error(transparent)]
    Virtme(#[from] VirtmeError),
}

/// The guests' root could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum InitramfsError {
    #[error("failed to write the initramfs: {0}")]
    Write(std::io::Error),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Whose fault an error is. The command line makes an exit code of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The user mends it: by another command line, another file, or by installing something.
    Users,
    /// The run was interrupted.
    Interrupt,
    /// This machine, a kernel or a guest failed. Nothing was measured.
    Machines,
}

impl Error {
    pub fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into())
    }

    pub fn failed(message: impl Into<String>) -> Error {
        Error::Failed(message.into())
    }

    pub fn is_interrupted(&self) -> bool {
        self.fault() == Fault::Interrupt
    }

    pub fn fault(&self) -> Fault {
        let users = |is_usage| if is_usage { Fault::Users } else { Fault::Machines };
        match self {
            Error::Interrupted => Fault::Interrupt,
            Error::Usage(_)
            | Error::Config(_)
            | Error::Setup(_)
            | Error::Qemu(_)
            | Error::Rust(_)
            | Error::Virtme(_)
            | Error::Baseline(_)
            | Error::Profile(_) => Fault::Users,
            Error::Within { source, .. } => source.fault(),
            Error::Initramfs(InitramfsError::Cache(error)) => users(error.is_usage()),
            Error::Initramfs(InitramfsError::Write(_)) => Fault::Machines,
            Error::Cache(error) => users(error.is_usage()),
            Error::Store(error) => users(error.is_usage()),
            Error::Kernel(error) => users(error.is_usage()),
            Error::Vmlinux(error) => users(error.is_usage()),
            Error::Build(error) => users(error.is_usage()),
            Error::Series(error) => users(error.is_usage()),
            Error::Search(error) => users(error.is_usage()),
            Error::Failed(_)
            | Error::Io(_)
            | Error::Json(_)
            | Error::Private(_)
            | Error::Child(_)
            | Error::Vm(_)
            | Error::Guest(_)
            | Error::NoHardware(_)
            | Error::KvmRefused(_)
            | Error::Cargo(_) => Fault::Machines,
        }
    }

    /// The error and its causes in one line. A cause that the error above it quotes is left out.
    pub fn told(&self) -> String {
        let causes =
            std::iter::successors(Some(self as &dyn std::error::Error), |error| error.source());
        causes.map(ToString::to_string).fold(String::new(), |told, cause| {
            match told.contains(&cause) {
                true => told,
                false if told.is_empty() => cause,
                false => format!("{told}: {cause}"),
            }
        })
    }
}

/// Adds to an error what was being done.
pub trait Context<T> {
    fn context(self, doing: impl Into<String>) -> Result<T>;
    fn with_context<D: Into<String>>(self, doing: impl FnOnce() -> D) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context(self, doing: impl Into<String>) -> Result<T> {
        self.with_context(|| doing)
    }

    fn with_context<D: Into<String>>(self, doing: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| match error.into() {
            // Nothing that was being done is at fault.
            Error::Interrupted => Error::Interrupted,
            error => Error::Within { doing: doing().into(), source: Box::new(error) },
        })
    }
}
