// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the kernel pass the traced functions, once per call, from a system call.

use crate::binary;
use crate::bpf::{self, Kind};
use crate::buffers::Buffers;
use crate::delivering::Delivering;
use crate::known::Known;
use crate::link::Heartbeat;
use crate::method::Method;
use crate::target::Target;
use crate::test_functions::{
    LSM_FUNCTION, MODIFY_FUNCTION, MODIFY_HOOK, SYSCALL_EVENT, SYSCALL_FUNCTION,
    SYSCALL_TRACEPOINT, TEST_FUNCTION, TRACEPOINT,
};
use crate::tracefs_events::of_section;
use crate::workload::{self, Workload};
use std::os::fd::{AsFd, OwnedFd};
use tramplab_protocol::Mechanism;
use tramplab_protocol::magic::Magic;
use tramplab_protocol::mechanism::Site;
use tramplab_protocol::message::{GuestError, Symbol, Triggered};

/// The target of a measurement, and the way to hit it.
#[derive(Debug)]
pub struct Traced {
    pub target: Target,
    pub trigger: Trigger,
}

#[derive(Debug)]
pub enum Trigger {
    /// An unattached program of the right type. Running it makes the kernel call its test
    /// functions.
    TestRun(OwnedFd),
    /// The thread sets its own name.
    Rename,
    /// The thread asks for its process group.
    Getpgid,
    /// A workload that hits the function which the user named.
    Found(Found),
    /// A call of a user-space function.
    Call(binary::Callable),
}

/// The things that the plugin records.
#[derive(Clone, Copy)]
pub enum Recording<'a> {
    Branches,
    /// Branches, which it also hands to the programs that ask for them.
    Delivered(&'a Delivering),
    /// Branches, with the data accesses between them.
    Accesses,
}

/// A workload, and how often it hits the function.
#[derive(Debug)]
pub struct Found {
    pub workload: Workload,
    pub hits: u32,
}

/// The parts of a measurement of hits, for a mechanism that this kernel has.
#[derive(Debug)]
pub struct Hit {
    pub method: Method,
    pub target: Target,
    pub trigger: Trigger,
    /// The function in which the programs run, as kallsyms names it.
    pub function: Symbol,
}

/// Loads a program that makes the kernel call its test functions when it is run.
pub fn runner(known: &Known) -> Option<OwnedFd> {
    let btf_id = known.btf().ok()?.function(TEST_FUNCTION)?;
    let attach = libbpf_sys::BPF_TRACE_FENTRY;
    let kind = Kind { program: libbpf_sys::BPF_PROG_TYPE_TRACING, attach };
    bpf::load(kind, btf_id, bpf::EMPTY).ok()
}

impl Traced {
    /// The target for a measurement of a mechanism.
    pub fn of(mechanism: Mechanism, known: &Known) -> Result<Traced, GuestError> {
        let btf = known.btf()?;
        let missing = |what: &str| GuestError::Unsupported(format!("it has no {what}"));
        let tracepoint = |name: &str, of: &str| {
            let btf_id = btf.tracepoint(of).ok_or_else(|| missing(&format!("tracepoint {of}")))?;
            Ok::<_, GuestError>(Target { name: name.to_owned(), btf_id, btf: 0, address: 0 })
        };
        let function = |name: &'static str| {
            let absent = || missing(&format!("function {name}"));
            let btf_id = btf.function(name).ok_or_else(absent)?;
            let address = known.reference(name)?.ok_or_else(absent)?.start;
            Ok::<_, GuestError>(Target { name: name.to_owned(), btf_id, btf: 0, address })
        };
        let runner = |target: &Target, attach| {
            let kind = Kind { program: libbpf_sys::BPF_PROG_TYPE_TRACING, attach };
            bpf::load(kind, target.btf_id, bpf::EMPTY)
        };
        let (target, trigger) = match mechanism.site() {
            Site::Tracepoint | Site::Event => {
                (tracepoint(TRACEPOINT, TRACEPOINT)?, Trigger::Rename)
            }
            Site::SyscallTracepoint => {
                (tracepoint(SYSCALL_TRACEPOINT, SYSCALL_TRACEPOINT)?, Trigger::Getpgid)
            }
            Site::SyscallEvent => {
                (tracepoint(of_section(SYSCALL_EVENT), SYSCALL_TRACEPOINT)?, Trigger::Getpgid)
            }
            Site::Hook => (function(LSM_FUNCTION)?, Trigger::Rename),
            Site::Syscall => (function(SYSCALL_FUNCTION)?, Trigger::Getpgid),
            Site::Modifiable => {
                let target = function(MODIFY_FUNCTION)?;
                match runner(&target, libbpf_sys::BPF_MODIFY_RETURN) {
                    Ok(program) => (target, Trigger::TestRun(program)),
                    Err(_) => (function(MODIFY_HOOK)?, Trigger::Rename),
                }
            }
            Site::Function | Site::UserFunction | Site::UserProbe => {
                let target = function(TEST_FUNCTION)?;
                let program = runner(&target, libbpf_sys::BPF_TRACE_FENTRY)?;
                (target, Trigger::TestRun(program))
            }
        };
        Ok(Traced { target, trigger })
    }
}

impl Trigger {
    /// Triggers once.
    pub fn pull(&self) -> Result<(), GuestError> {
        match self {
            Trigger::TestRun(program) => Ok(bpf::test_run(program.as_fd())?),
            Trigger::Rename => {
                workload::rename();
                Ok(())
            }
            Trigger::Getpgid => {
                workload::getpgid();
                Ok(())
            }
            Trigger::Found(found) => found.workload.run(),
            Trigger::Call(function) => {
                function.call();
                Ok(())
            }
        }
    }

    /// Pulls `times` times, and reads the program's buffers after each.
    pub fn pull_all(&self, times: u32, buffers: &Buffers) -> Result<(), GuestError> {
        (0..times).try_for_each(|_| {
            self.pull()?;
            buffers.empty();
            Ok(())
        })
    }

    /// Hits of one pull.
    pub fn hits(&self) -> u32 {
        match self {
            Trigger::TestRun(_) | Trigger::Rename | Trigger::Getpgid | Trigger::Call(_) => 1,
            Trigger::Found(found) => found.hits,
        }
    }

    /// Pulls for so many triggers. A command is run only for as many hits.
    pub fn pulls(&self, triggers: u32) -> u32 {
        match self {
            Trigger::Found(found) if found.workload.is_command() => {
                Triggered::runs(found.hits, triggers)
            }
            _ => triggers,
        }
    }

    /// False if the time of a pull says nothing about a hit.
    pub fn is_timed(&self) -> bool {
        !matches!(self, Trigger::Found(found) if found.workload.starts_process())
    }

    /// The workload, if it was found.
    pub fn found(&self) -> Option<Triggered> {
        match self {
            Trigger::TestRun(_) | Trigger::Rename | Trigger::Getpgid => None,
            Trigger::Call(function) => function
                .is_named
                .then(|| Triggered { workload: binary::WORKLOAD.to_owned(), hits: 1 }),
            Trigger::Found(Found { workload, hits }) => {
                Some(Triggered { workload: workload.name.clone().into_owned(), hits: *hits })
            }
        }
    }

    /// Pulls `times` times with the recorder armed.
    /// `before` and `after` are run next to these pulls. They make no system call, which may be a
    /// hit.
    pub fn record<T>(
        &self,
        times: u32,
        buffers: &Buffers,
        heartbeat: Option<&Heartbeat>,
        recording: Recording<'_>,
        before: impl FnOnce(),
        after: impl FnOnce() -> T,
    ) -> Result<T, GuestError> {
        let _held = heartbeat.map(Heartbeat::hold);
        before();
        match recording {
            Recording::Branches => Magic::Arm.execute(),
            Recording::Delivered(setup) => Magic::Deliver.execute_with(setup.setup()),
            Recording::Accesses => Magic::ArmAccesses.execute(),
        }
        // The recorder flushes translated code at the arming instruction. This enters the kernel
        // once before it counts.
        workload::sched_yield();
        let pulled = self.pull_all(times, buffers);
        Magic::Disarm.execute();
        let after = after();
        pulled.map(|()| after)
    }
}
