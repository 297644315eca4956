// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts no guest: the agent is a program on this machine, and measures the kernel that runs.
//!
//! It gets one end of a socket. When this process dies, so does the agent, and the kernel detaches
//! all that it attached.

use super::{Feature, Features};
use crate::{
    VmError, failed, harness,
    process::{self, Process, Program},
};
use std::{
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::Command,
};
use tramplab_model::run::ErrorKind;
use tramplab_protocol::message::ON_THIS_MACHINE;

pub static FEATURES: Features = Features {
    // 1: it gave up, and said why.
    program: Program { name: "the agent", powered_off: &[0, 1] },
    restores: false,
    // Its console is the agent's output.
    agent_on_console: false,
    has_host_files: true,
    root: "this machine has its own root",
    built_in: &[],
    fragment: None,
    longest_line: None,
    lacks,
};

fn lacks(feature: Feature) -> Option<&'static str> {
    Some(match feature {
        Feature::PackedFiles => {
            "no module is loaded and no command is run on this machine; use --vm qemu"
        }
        Feature::PackedTests => "the tree's own tests run in guests only; use --vm qemu",
        Feature::ExactClock { .. } => "only a guest has the exact clock; use --vm qemu",
    })
}

pub fn launch(agent: &Path, most: u32, console: OwnedFd) -> Result<(Process, UnixStream), VmError> {
    let (host, link) = process::socket_pair().map_err(harness("create the agent's socket pair"))?;
    let mut command = Command::new(agent);
    command.args([ON_THIS_MACHINE, &link.as_raw_fd().to_string(), &most.to_string()]);
    let process = Process::start_here(command, console, vec![link], &FEATURES.program)
        .map_err(failed(ErrorKind::Harness, &format!("start {}", agent.display())))?;
    Ok((process, host))
}
