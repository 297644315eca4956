// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trigger-cost measurement: hits the empty program against the clock, attached and not in turns, and then while the
//! recorder is armed. That the program ran, only the trace tells: an empty one counts nothing.

use crate::beside;
use crate::bpf::{self, BpfError, Link};
use crate::kallsyms::Kallsyms;
use crate::known::Known;
use crate::link::Heartbeat;
use crate::trigger::{Hit, Trigger};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use tramplab_protocol::message::{GuestError, Symbol, TriggerReply, TriggerRequest};

/// The empty program and its link, and what is attached beside: dropped, they are detached and gone from kallsyms.
#[derive(Debug)]
pub struct Attached {
    _link: Link,
    _program: OwnedFd,
    _beside: beside::Attached,
}

/// Runs the measurement; the program stays attached while the second value lives. The third are the names of the moment when it is.
pub fn measure(
    request: &TriggerRequest,
    known: &Known,
    heartbeat: Option<&Heartbeat>,
) -> Result<(TriggerReply, Attached, Kallsyms), GuestError> {
    let mechanism = request.mechanism;
    let Hit { method, traced, function } = Hit::prepare(mechanism, known)?;
    let beside = beside::attach(request.beside, mechanism, &traced.target, known.btf()?)?;
    let program = method.load_empty(&traced.target)?;
    let attach = || method.link(program.as_fd(), &traced.target);
    let timed = || time(&traced.trigger, request.warmup, request.timed, heartbeat);

    let mut link = attach()?;
    let (mut attached_ns, mut detached_ns) = (Vec::new(), Vec::new());
    for round in 0..request.rounds {
        // Each round begins with what the one before ended with: attached and detached come first in turns.
        if round % 2 == 0 {
            attached_ns.push(timed()?);
            drop(link);
            detached_ns.push(timed()?);
            link = attach()?;
        } else {
            drop(link);
            detached_ns.push(timed()?);
            link = attach()?;
            attached_ns.push(timed()?);
        }
    }
    // Last: each attaching may make another trampoline, and it is the one that is there in the end whose addresses resolve.
    traced.trigger.pull_all(request.warmup)?;
    traced.trigger.record(request.hits, heartbeat, None)?;

    // Read again: before, the program was not there.
    let names = known.names()?;
    let code = bpf::code(program.as_fd())?;
    let symbol = names.resolve(code.start).ok_or_else(|| {
        GuestError::failed(format!("kallsyms has no name for the empty program at {:#x}", code.start))
    })?;
    let reply = TriggerReply {
        mechanism,
        function,
        points: mechanism.points().to_vec(),
        // By kallsyms it ends where the next symbol begins, which may be that of the trampoline, or far behind.
        program: Symbol { end: code.end, ..symbol },
        hits: request.hits,
        attached_ns,
        detached_ns,
        timed: request.timed,
    };
    Ok((reply, Attached { _link: link, _program: program, _beside: beside }, names))
}

/// Nanoseconds that so many hits take; the first few, which run into code just patched, come before.
fn time(trigger: &Trigger, warmup: u32, hits: u32, heartbeat: Option<&Heartbeat>) -> Result<u64, BpfError> {
    let _held = heartbeat.map(Heartbeat::hold);
    trigger.pull_all(warmup)?;
    let start = Instant::now();
    trigger.pull_all(hits)?;
    Ok(start.elapsed().as_nanos() as u64)
}
