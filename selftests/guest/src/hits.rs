// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares the hits that a request asks for.

use crate::binary::{self, Binary};
use crate::bpf::BpfError;
use crate::found;
use crate::hooked;
use crate::hooks;
use crate::known::Known;
use crate::link::Heartbeat;
use crate::method::Method;
use crate::role;
use crate::test_functions::{
    LSM_FUNCTION, SYSCALL_EVENT, SYSCALL_TRACEPOINT, TRACEPOINT, TRACEPOINT_FUNCTION,
};
use crate::tracefs_events;
use crate::tracepoints;
use crate::trigger::{Hit, Traced, Trigger};
use std::os::fd::AsFd;
use tramplab_protocol::Mechanism;
use tramplab_protocol::mechanism::Site;
use tramplab_protocol::message::GuestError;
use tramplab_protocol::program::Program;

/// Without a `function`, hits the kernel's test function of the mechanism. `program` is the user's.
pub fn prepare(
    mechanism: Mechanism,
    function: Option<&str>,
    command: Option<&str>,
    program: Option<&Program>,
    known: &Known,
    heartbeat: Option<&Heartbeat>,
) -> Result<Hit, GuestError> {
    let tracepoint = program.and_then(|program| program.target.as_deref());
    // Each system call hits it, also those around the measurement.
    if role::is_own_machine() && mechanism.site() == Site::SyscallTracepoint {
        return Err(GuestError::Unsupported(format!(
            "all system calls of this machine hit {mechanism}; measure it in a guest (--vm qemu)"
        )));
    }
    let tracepoint = tracepoint.or(match mechanism.site() {
        Site::SyscallTracepoint => Some(SYSCALL_TRACEPOINT),
        Site::SyscallEvent => Some(SYSCALL_EVENT),
        _ => None,
    });
    let is_other =
        |name: &&str| command.is_some() || tracefs_events::of_section(name) != TRACEPOINT;
    if let Some(other) = tracepoint.filter(is_other)
        && mechanism.is_tracepoint()
    {
        return tracepoints::prepare(mechanism, other, command, known, heartbeat);
    }
    if mechanism.is_user() {
        return of_user(mechanism, function, known);
    }
    match function {
        Some(name) => found::prepare(mechanism, name, command, known, heartbeat),
        None => of_test_function(mechanism, known),
    }
}

fn of_test_function(mechanism: Mechanism, known: &Known) -> Result<Hit, GuestError> {
    let method = Method::new(mechanism, known.btf()?)?;
    hooks::check(mechanism, LSM_FUNCTION, known)?;
    let Traced { target, trigger } = Traced::of(mechanism, known)?;
    let name = if mechanism.is_tracepoint() { TRACEPOINT_FUNCTION } else { &*target.name };
    let function =
        known.reference(name)?.ok_or_else(|| found::missing(mechanism, name, known))?.clone();
    hooked::check(name)?;
    // Attach the empty program first. A refusal of it is the kernel's answer about the mechanism,
    // not about the measured program. It also keeps the first attach of a boot out of the
    // measurement, whose hits differ (kretprobe.multi on arm64, 7.2).
    method.probe(&target)?;
    Ok(Hit { method, target, trigger, function })
}

/// Prepares calls of the named function, or of the usual one for the mechanism.
fn of_user(mechanism: Mechanism, name: Option<&str>, known: &Known) -> Result<Hit, GuestError> {
    let method = Method::new(mechanism, known.btf()?)?;
    let usual = if mechanism.site() == Site::UserProbe { "user_nop" } else { "user_frame" };
    let wanted = name.unwrap_or(usual);
    let (call, target, function) = binary::callable(wanted, name.is_some())?;
    // Some instructions cannot be probed. Every kernel with the mechanism takes this one.
    method.probe(&Binary::functions(mechanism)[0])?;
    let attach = || method.link(method.load_empty(&target)?.as_fd(), &target).map(drop);
    attach().map_err(|error: BpfError| match error.is_out_of_resources() {
        true => GuestError::failed(error),
        false => GuestError::Unsupported(format!("it refuses {mechanism} on {wanted}: {error}")),
    })?;
    Ok(Hit { method, target, trigger: Trigger::Call(call), function })
}
