// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures on demand: how the harness' own tests prove that it notices. All but one end the conversation; none is
//! answered before it happens, as a real one would not be.

use crate::libbpf_log;
use crate::link::Events;
use libbpf_rs::{ObjectBuilder, ProgramInput};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tramplab_protocol::message::{Fault, GuestError};

const STALL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stall.bpf.o"));
const STALL_TIMEOUT: &str = "/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout";
/// The least the kernel takes, in seconds.
const LEAST_STALL_SECONDS: &str = "3";
/// Runs of the program, a few seconds each.
const STALLS: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// What the main loop has to do after a fault.
#[derive(Debug, PartialEq, Eq)]
pub enum After {
    /// Answer and go on.
    Answer,
    /// Neither beat nor answer ever again.
    FallSilent,
}

pub fn inject(fault: Fault, events: &Events) -> Result<After, GuestError> {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| GuestError::Failed(format!("failed to {what}: {error}"));
    match fault {
        Fault::Panic => {
            fs::write("/proc/sysrq-trigger", "c").map_err(|error| failed("crash the kernel", &error))?;
            Ok(After::Answer)
        }
        Fault::RcuStall => {
            stall().map_err(|error| failed("stall RCU", &error))?;
            Ok(After::Answer)
        }
        Fault::Silence => Ok(After::FallSilent),
        Fault::ExitAgent => std::process::exit(1),
        Fault::GarbageFrame => {
            // A length beyond any frame's.
            events.send_raw(&[0xff; 64]).map_err(|error| failed("send garbage", &error))?;
            Ok(After::Answer)
        }
    }
}

/// Runs a BPF program that loops under the RCU read lock for seconds, while another thread waits for RCU.
fn stall() -> Result<(), Box<dyn std::error::Error>> {
    fs::write(STALL_TIMEOUT, LEAST_STALL_SECONDS).map_err(|e| format!("{STALL_TIMEOUT}: {e}"))?;
    libbpf_log::clear();
    let object = ObjectBuilder::default()
        .open_memory(STALL)?
        .load()
        .map_err(|error| format!("{error}; {}", libbpf_log::take().trim_end()))?;
    let program = object.progs_mut().next().ok_or("the object has no program")?;
    let _link = program.attach_trace()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let waiter = thread::Builder::new().spawn(move || {
        // A thread's end is freed after a grace period: as long as threads end, there is always one to wait for.
        while !stopped.load(Ordering::Relaxed) {
            let _ = thread::spawn(|| {}).join();
            thread::sleep(PAUSE);
        }
    })?;
    for _ in 0..STALLS {
        // An fentry program's test run calls the function to which this one is attached.
        program.test_run(ProgramInput::default())?;
    }
    stop.store(true, Ordering::Relaxed);
    waiter.join().map_err(|_| "the waiting thread panicked")?;
    Ok(())
}
