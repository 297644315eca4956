// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent as a wrapper: runs a command while every program in the guest gets branch records. It
//! has no link to the host.

use crate::kallsyms::Kallsyms;
use crate::role::Role;
use crate::serving::Serving;
use crate::{init, libbpf_log};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use tramplab_protocol::delivery::Filters;
use tramplab_protocol::message::GuestError;

/// Exit codes of `cargo xtask`: the request cannot be done, or the guest failed.
const UNSUPPORTED: u8 = 2;
const FAILED: u8 = 3;

/// `arguments` follow [`tramplab_protocol::message::DELIVER`]. Returns the command's exit code.
pub fn run(arguments: &[String]) -> u8 {
    serve(arguments).unwrap_or_else(|error| {
        eprintln!("tramplab: {error}");
        if matches!(error, GuestError::Unsupported(_)) { UNSUPPORTED } else { FAILED }
    })
}

fn serve(arguments: &[String]) -> Result<u8, GuestError> {
    let [filters, program, arguments @ ..] = arguments else {
        return Err(GuestError::Failed("expected filters and a command".to_owned()));
    };
    let filters: Filters = filters
        .parse()
        .map_err(|error| GuestError::Failed(format!("failed to read the filters: {error}")))?;
    init::prepare(Role::Program).map_err(GuestError::failed)?;
    libbpf_log::install();
    let kallsyms = Kallsyms::read().map_err(GuestError::failed)?;
    let serving = Serving::begin(&filters, &kallsyms)?;
    let status = Command::new(program)
        .args(arguments)
        .status()
        .map_err(|error| GuestError::Failed(format!("failed to start {program}: {error}")))?;
    serving.end()?;
    // As a shell reports a signal.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Ok(u8::try_from(code).unwrap_or(u8::MAX))
}
