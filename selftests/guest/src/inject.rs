// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures on demand, for the tests of the harness. Like real failures, none is answered before it
//! happens; most end the conversation.

use crate::changes;
use crate::libbpf_log;
use crate::link::{self, Events};
use libbpf_rs::{Link, Object, ObjectBuilder, ProgramInput};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tramplab_protocol::frame;
use tramplab_protocol::message::{Event, Fault, GuestError, Response};

const ANSWER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/answer.bpf.o"));
const STALL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stall.bpf.o"));
const STALL_TIMEOUT: &str = "/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout";
/// The shortest RCU stall timeout that the kernel accepts, in seconds.
const LEAST_STALL_SECONDS: &str = "3";
/// Runs of the program, a few seconds each.
const STALLS: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);
const HUNG_TIMEOUT: &str = "/proc/sys/kernel/hung_task_timeout_secs";
/// A file whose readers wait for messages of the kernel, one of them with the file's lock.
const KERNEL_LOG: &str = "/proc/kmsg";
/// How long to wait for the kernel's complaint.
const NOTICED: Duration = Duration::from_secs(30);
/// Bytes per allocation.
const CHUNK: usize = 16 << 20;
const PAGE: usize = 4096;

/// The main loop's next step after a fault.
#[derive(Debug, PartialEq, Eq)]
pub enum After {
    /// Answer and continue.
    Answer,
    /// Neither beat nor answer again.
    FallSilent,
}

pub fn inject(fault: Fault, events: &Events) -> Result<After, GuestError> {
    // A line on the console, for tests that wait for the fault to begin.
    eprintln!("tramplab-agent: injecting the requested fault: {fault:?}");
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        GuestError::Failed(format!("failed to {what}: {error}"))
    };
    match fault {
        Fault::Panic => {
            changes::write("/proc/sysrq-trigger", "c")
                .map_err(|error| failed("crash the kernel", &error))?;
        }
        Fault::Oops => oops().map_err(|error| failed("bring about an oops", &error))?,
        Fault::Warning => warn().map_err(|error| failed("bring about a warning", &error))?,
        Fault::HungTask => hang().map_err(|error| failed("hang", &error))?,
        Fault::OutOfMemory => exhaust(),
        Fault::RcuStall => stall().map_err(|error| failed("stall RCU", &error))?,
        Fault::Silence => return Ok(After::FallSilent),
        Fault::ExitAgent => std::process::exit(1),
        Fault::GarbageFrame => {
            // A length larger than any frame's.
            events.send_raw(&[0xff; 64]).map_err(|error| failed("send garbage", &error))?;
        }
        Fault::CorruptFrame => {
            let mut frame = a_frame()?;
            *frame.last_mut().expect("a frame has bytes") ^= 1;
            events.send_raw(&frame).map_err(|error| failed("send a corrupt frame", &error))?;
        }
        Fault::CutFrame => {
            let frame = a_frame()?;
            events
                .send_raw(&frame[..frame.len() / 2])
                .map_err(|error| failed("send half a frame", &error))?;
        }
        Fault::Flood => loop {
            let unasked = Event::Reply { id: 0, result: Ok(Response::Done) };
            events.send(&unasked).map_err(|error| failed("flood the host", &error))?;
        },
    }
    Ok(After::Answer)
}

fn a_frame() -> Result<Vec<u8>, GuestError> {
    let beat = Event::Heartbeat { uptime_ns: link::uptime_ns() };
    frame::encode(&beat)
        .map_err(|error| GuestError::Failed(format!("failed to make a frame: {error}")))
}

type Failed = Box<dyn std::error::Error>;

/// Attaches a program that makes a hook of the kernel's security modules return an impossible
/// value, until it is dropped.
fn answering(program: &str) -> Result<(Link, Object), Failed> {
    libbpf_log::clear();
    let mut open = ObjectBuilder::default().open_memory(ANSWER)?;
    for mut other in open.progs_mut().filter(|other| other.name() != program) {
        other.set_autoload(false);
    }
    let object =
        open.load().map_err(|error| format!("{error}; {}", libbpf_log::take().trim_end()))?;
    let program = object.progs_mut().find(|found| found.name() == program);
    let link = program.ok_or("the object has no such program")?.attach_trace()?;
    Ok((link, object))
}

/// Opens a file in a process of its own, which the kernel kills.
fn oops() -> Result<(), Failed> {
    let _answering = answering("oops")?;
    // SAFETY: the child makes two system calls.
    match unsafe { fork() }? {
        ForkResult::Child => unsafe {
            libc::open(c"/".as_ptr(), libc::O_RDONLY);
            libc::_exit(0)
        },
        // SIGCHLD is ignored, so this fails when the child has ended.
        ForkResult::Parent { child } => drop(waitpid(child, None)),
    }
    Ok(())
}

/// Opens a file, which fails.
fn warn() -> Result<(), Failed> {
    let _answering = answering("warning")?;
    match fs::File::open("/") {
        Ok(_) => Err("the file could be opened".into()),
        Err(_) => Ok(()),
    }
}

/// Lets two threads read a file that nobody writes: one waits for the other, uninterruptibly.
fn hang() -> Result<(), Failed> {
    changes::write(HUNG_TIMEOUT, "1").map_err(|e| format!("{HUNG_TIMEOUT}: {e}"))?;
    let log = Arc::new(fs::File::open(KERNEL_LOG).map_err(|e| format!("{KERNEL_LOG}: {e}"))?);
    for _ in 0..2 {
        let log = Arc::clone(&log);
        thread::Builder::new().spawn(move || while (&*log).read(&mut [0; 4096]).is_ok() {})?;
    }
    thread::sleep(NOTICED);
    Err("the kernel did not complain".into())
}

/// Takes all memory. The kernel never kills the first process for it.
fn exhaust() -> ! {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut chunk = vec![0; CHUNK];
        // Touch each page, so that the kernel allocates it.
        chunk.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        taken.push(chunk);
    }
}

/// Runs a BPF program that loops under the RCU read lock for seconds, while another thread waits
/// for RCU.
fn stall() -> Result<(), Failed> {
    changes::write(STALL_TIMEOUT, LEAST_STALL_SECONDS)
        .map_err(|e| format!("{STALL_TIMEOUT}: {e}"))?;
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
        // The kernel frees an ended thread after a grace period. A steady supply of them always
        // waits for one.
        while !stopped.load(Ordering::Relaxed) {
            let _ = thread::spawn(|| {}).join();
            thread::sleep(PAUSE);
        }
    })?;
    for _ in 0..STALLS {
        // A test run of an fentry program calls the function that this program is attached to.
        program.test_run(ProgramInput::default())?;
    }
    stop.store(true, Ordering::Relaxed);
    waiter.join().map_err(|_| "the waiting thread panicked")?;
    Ok(())
}
