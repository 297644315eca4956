// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command that runs beside the test.

use crate::{observed::Verdict, place::Place};
use nix::unistd::Pid;
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tramplab_host::given::Given;

/// No command needs more of a machine's time: one that does hangs.
pub const LIMIT: Duration = Duration::from_secs(400);
pub const SOON: Duration = Duration::from_millis(20);

/// A running command, and its output.
pub struct Started {
    pub child: Child,
    pub began: Instant,
    given: Given,
    output: PathBuf,
}

impl Started {
    pub fn new(place: &Place, mut command: Command) -> Started {
        let output = tempfile::Builder::new().prefix("said-").tempfile_in(place.path()).unwrap();
        let (file, output) = output.keep().unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let given = Given::to(Pid::from_raw(child.id().cast_signed()));
        Started { child, began: Instant::now(), given, output }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap()).into_owned()
    }

    /// Returns false if the command ended before.
    pub fn wait_for(&mut self, mut condition: impl FnMut() -> bool) -> bool {
        while !condition() {
            if self.child.try_wait().unwrap().is_some() || self.given.elapsed() > LIMIT {
                return condition();
            }
            sleep(SOON);
        }
        true
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn hangs(&mut self) -> bool {
        self.given.elapsed() > LIMIT
    }

    /// The exit code; an error if the command hangs.
    pub fn end(&mut self) -> Result<Option<i32>, Verdict> {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Ok(status.code());
            }
            if self.given.elapsed() > LIMIT {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                return Err(Verdict::Unexpected(format!("it did not end within {LIMIT:?}")));
            }
            sleep(SOON);
        }
    }
}
