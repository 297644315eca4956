// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest that has booted, for the kinds of test to measure in.

use super::PlannedCell;
use std::{fs, io, path::Path, time::Duration};
use tramplab_analysis::branch::{Symbols, symbols};
use tramplab_model::run::{Clock, ErrorKind};
use tramplab_protocol::{
    Mechanism, Point,
    message::{Command, GuestError, Response},
    trace::{self, Trace},
};
use tramplab_vm as vm;
use tramplab_vm::{Vm, VmError};

/// Triggers before the recorded ones.
pub const WARMUP: u32 = 3;
/// How long an answer may take that needs no waiting in the guest.
pub const QUICK: Duration = Duration::from_secs(60);

pub struct Booted<'a> {
    pub vm: &'a mut Vm,
    pub planned: &'a PlannedCell,
    pub clock: Clock,
    /// No later guest of the cell has the same clock.
    pub is_last: bool,
    /// Where the guest's console and the plugin's files are.
    pub folder: &'a Path,
    /// The cell's own folder. It may have several guests.
    pub cell: &'a Path,
}

/// Addresses per request: the answer may have a name for each, and a message has its limit.
const RESOLVED_AT_ONCE: usize = 1 << 14;

impl Booted<'_> {
    /// The branches that the plugin recorded, with names for all addresses. What is attached must still be.
    pub fn trace(&mut self) -> Result<(Trace, Symbols), Stop> {
        let path = trace::file_name(self.folder, 0);
        let trace = Trace::decode(&self.of_plugin(&path, "trace")?).map_err(|error| Stop::Error {
            kind: ErrorKind::Trace,
            message: format!("{}: {error}", path.display()),
        })?;
        let symbols = self.resolve(symbols::addresses(&trace))?;
        Ok((trace, symbols))
    }

    /// A file that the plugin has written.
    pub fn of_plugin(&self, path: &Path, what: &str) -> Result<Vec<u8>, Stop> {
        fs::read(path).map_err(|error| {
            let message = match error.kind() {
                io::ErrorKind::NotFound => {
                    let words = vm::last_words(&self.folder.join("qemu.log"));
                    let words = words.as_deref().unwrap_or("none");
                    format!("the plugin left no {what}; QEMU's last words: {words}")
                }
                _ => format!("failed to read {}: {error}", path.display()),
            };
            Stop::Error { kind: ErrorKind::Trace, message }
        })
    }

    /// Names for addresses.
    pub fn resolve(&mut self, addresses: Vec<u64>) -> Result<Symbols, Stop> {
        let mut found = Vec::new();
        for some in addresses.chunks(RESOLVED_AT_ONCE) {
            match self.vm.request(Command::Resolve { addresses: some.to_vec() }, QUICK)?? {
                Response::Resolve { symbols } => found.extend(symbols),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(found.into_iter().collect())
    }
}

/// Why a cell has no measurement.
pub enum Stop {
    Skip(String),
    Error { kind: ErrorKind, message: String },
}

impl Stop {
    pub fn harness(message: String) -> Stop {
        Stop::Error { kind: ErrorKind::Harness, message }
    }
}

impl From<VmError> for Stop {
    fn from(error: VmError) -> Stop {
        Stop::Error { kind: error.kind, message: error.message }
    }
}

impl From<GuestError> for Stop {
    fn from(error: GuestError) -> Stop {
        match error {
            GuestError::Unsupported(reason) => Stop::Skip(vm::brief(reason)),
            GuestError::Failed(message) => {
                Stop::Error { kind: ErrorKind::Guest, message: vm::brief(message) }
            }
        }
    }
}

/// What is done with a trace takes as long as the guest says that it has hits: it says what it was asked for, or nothing that counts.
pub fn require_asked(asked: (Mechanism, u32), told: (Mechanism, u32), points: &[Point]) -> Result<(), Stop> {
    if asked == told && points == asked.0.points() {
        return Ok(());
    }
    let message = format!(
        "the guest was asked for {} hits of {}, and answers of {} of {} at {} points",
        asked.1,
        asked.0,
        told.1,
        told.0,
        points.len()
    );
    Err(Stop::Error { kind: ErrorKind::Protocol, message })
}

pub fn unexpected(response: &Response) -> Stop {
    let message = format!("the guest's answer does not fit: {}", vm::shown(response));
    Stop::Error { kind: ErrorKind::Protocol, message }
}
