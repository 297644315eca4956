// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces one small system call with the plugin's profile and with the kernel's own call tracer,
//! `function_graph`. The harness' tests compare the two.

use crate::buffers::Buffers;
use crate::changes;
use crate::counting::Counting;
use crate::functions;
use crate::known::Known;
use crate::trigger::Trigger;
use std::fs;
use std::path::Path;
use tramplab_protocol::{
    magic::Magic,
    message::{CallsReply, CallsRequest, GuestError},
};

const TRACING: &str = "/sys/kernel/tracing";
/// The traced part of the system call.
#[cfg(target_arch = "x86_64")]
const ROOT: &str = "__x64_sys_prctl";
#[cfg(target_arch = "aarch64")]
const ROOT: &str = "__arm64_sys_prctl";
/// A function that every interrupt passes.
const INTERRUPT: &str = "irq_enter_rcu";
/// Attempts to trace the system calls undisturbed. They take about a millisecond; an interrupt
/// comes every few.
const ATTEMPTS: usize = 50;

pub fn compare(request: &CallsRequest, known: &Known) -> Result<CallsReply, GuestError> {
    let counting = Counting::new(known.symbols()?, known.btf()?)?;
    let calls = || Trigger::Rename.pull_all(request.times, &Buffers::default());
    // Page faults of the first run are not comparable.
    calls()?;
    counting.during(Magic::Profile, calls)?;
    let traced = traced(calls);
    // Stop tracing in any case.
    for (file, text) in [("tracing_on", "0"), ("current_tracer", "nop"), ("set_graph_function", "")]
    {
        write(file, text)?;
    }
    let traceable = functions::available()?;
    Ok(CallsReply {
        root: ROOT.to_owned(),
        trace: traced?,
        traceable: functions::image_functions(&traceable).map(str::to_owned).collect(),
    })
}

/// The tracer's text of calls without an interrupt. The tracer can leave out hard interrupts, but
/// not all their consequences.
fn traced(calls: impl Fn() -> Result<(), GuestError>) -> Result<String, GuestError> {
    for (file, text) in
        [("tracing_on", "0"), ("set_graph_function", ROOT), ("current_tracer", "function_graph")]
    {
        write(file, text)?;
    }
    for _ in 0..ATTEMPTS {
        // Opening the file for writing empties it.
        write("trace", "")?;
        write("tracing_on", "1")?;
        let done = calls();
        write("tracing_on", "0")?;
        done?;
        let path = Path::new(TRACING).join("trace");
        let trace = fs::read_to_string(&path)
            .map_err(|error| GuestError::failed(format!("{}: {error}", path.display())))?;
        if !trace.contains(INTERRUPT) {
            return Ok(trace);
        }
    }
    Err(GuestError::failed(format!(
        "an interrupt disturbed each of {ATTEMPTS} attempts to trace {ROOT}"
    )))
}

fn write(file: &str, text: &str) -> Result<(), GuestError> {
    let path = Path::new(TRACING).join(file);
    changes::write(&path, text).map_err(|error| {
        GuestError::failed(format!("{} (CONFIG_FUNCTION_GRAPH_TRACER): {error}", path.display()))
    })
}
