// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU starts the guest. Its root is an initramfs.

pub mod busybox;
pub mod machine;
pub mod monitor;
pub mod snapshot;

pub use machine::cpu_model;

use super::Features;
use crate::{
    Spec, VmError, failed, harness,
    process::{self, Process, Program},
};
use machine::{Ends, Start};
use std::os::{fd::OwnedFd, unix::net::UnixStream};
use tramplab_model::run::ErrorKind;

pub static FEATURES: Features = Features {
    program: Program { name: "QEMU", powered_off: &[0] },
    restores: true,
    agent_on_console: true,
    has_host_files: false,
    root: "QEMU's root is an initramfs",
    // It needs no option beyond those of every guest.
    built_in: &[],
    fragment: None,
    longest_line: None,
    lacks: |_| None,
};

/// Starts QEMU. The agent's link is a socket that it inherits.
pub fn launch(
    spec: &Spec,
    start: Start,
    console: OwnedFd,
    monitor: Option<OwnedFd>,
) -> Result<(Process, UnixStream), VmError> {
    let (host, link) = process::socket_pair().map_err(harness("create the agent's socket pair"))?;
    let log = spec.create("qemu.log")?;
    let ends = Ends { console: &console, link: &link, monitor: monitor.as_ref() };
    let argv = machine::arguments(spec, &ends, start);
    let inherited = [console, link].into_iter().chain(monitor).collect();
    let action = format!("start {}", spec.qemu.program.display());
    let process = Process::start(spec, &argv, log, inherited, &FEATURES.program)
        .map_err(failed(ErrorKind::QemuStart, &action))?;
    Ok((process, host))
}
