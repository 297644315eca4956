// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps each mechanism to the kernel's interface: program type, attach type, and the call that
//! makes its link.

use crate::binary::Binary;
use crate::bpf::{self, BpfError, Kind, Link, ProbeAt, ProbePmu};
use crate::kernel_btf::KernelBtf;
use crate::target::{List, Target};
use crate::tracefs_events;
use crate::tracepoints::of_event;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tramplab_protocol::Mechanism;
use tramplab_protocol::mechanism::{Site, Way};
use tramplab_protocol::message::GuestError;

/// The kernel's names for a mechanism.
#[derive(Clone, Copy, Debug)]
struct Uapi {
    program: u32,
    attach: u32,
    /// The attach type's enumerator. A kernel whose BTF lacks it is too old.
    enumerator: &'static str,
    /// The kernel options that provide it.
    options: &'static str,
}

/// Attach types that libbpf 1.7 does not know (`enum bpf_attach_type`).
const BPF_TRACE_FENTRY_MULTI: u32 = 59;
const BPF_TRACE_FEXIT_MULTI: u32 = 60;
const BPF_TRACE_FSESSION_MULTI: u32 = 61;

fn uapi(mechanism: Mechanism) -> Uapi {
    use libbpf_sys::*;
    const TRAMPOLINE: &str = "BPF_JIT, DYNAMIC_FTRACE_WITH_DIRECT_CALLS";
    const TRACING_MULTI: &str =
        "BPF_JIT, DYNAMIC_FTRACE_WITH_DIRECT_CALLS, HAVE_SINGLE_FTRACE_DIRECT_OPS";
    const KPROBE: &str = "KPROBE_EVENTS, BPF_EVENTS";
    const FPROBE: &str = "FPROBE, BPF_EVENTS";
    const TRACEPOINT: &str = "TRACEPOINTS, BPF_EVENTS";
    const CLASSIC: &str = "PERF_EVENTS, EVENT_TRACING, BPF_EVENTS";
    const UPROBE: &str = "UPROBE_EVENTS, BPF_EVENTS";
    let (program, attach, enumerator, options) = match mechanism {
        Mechanism::Fentry | Mechanism::FentrySleepable => {
            (BPF_PROG_TYPE_TRACING, BPF_TRACE_FENTRY, "BPF_TRACE_FENTRY", TRAMPOLINE)
        }
        Mechanism::Fexit | Mechanism::FexitSleepable => {
            (BPF_PROG_TYPE_TRACING, BPF_TRACE_FEXIT, "BPF_TRACE_FEXIT", TRAMPOLINE)
        }
        Mechanism::FmodRet => {
            (BPF_PROG_TYPE_TRACING, BPF_MODIFY_RETURN, "BPF_MODIFY_RETURN", TRAMPOLINE)
        }
        Mechanism::Lsm | Mechanism::LsmSleepable => {
            (BPF_PROG_TYPE_LSM, BPF_LSM_MAC, "BPF_LSM_MAC", "BPF_LSM")
        }
        Mechanism::Fsession => {
            (BPF_PROG_TYPE_TRACING, BPF_TRACE_FSESSION, "BPF_TRACE_FSESSION", TRAMPOLINE)
        }
        Mechanism::FentryMulti => {
            (BPF_PROG_TYPE_TRACING, BPF_TRACE_FENTRY_MULTI, "BPF_TRACE_FENTRY_MULTI", TRACING_MULTI)
        }
        Mechanism::FexitMulti => {
            (BPF_PROG_TYPE_TRACING, BPF_TRACE_FEXIT_MULTI, "BPF_TRACE_FEXIT_MULTI", TRACING_MULTI)
        }
        Mechanism::FsessionMulti => (
            BPF_PROG_TYPE_TRACING,
            BPF_TRACE_FSESSION_MULTI,
            "BPF_TRACE_FSESSION_MULTI",
            TRACING_MULTI,
        ),
        // Programs for perf events have no attach type of their own. The enumerator is the link's.
        Mechanism::Kprobe | Mechanism::Kretprobe | Mechanism::Ksyscall | Mechanism::Kretsyscall => {
            (BPF_PROG_TYPE_KPROBE, 0, "BPF_PERF_EVENT", KPROBE)
        }
        Mechanism::KprobeMulti | Mechanism::KretprobeMulti => {
            (BPF_PROG_TYPE_KPROBE, BPF_TRACE_KPROBE_MULTI, "BPF_TRACE_KPROBE_MULTI", FPROBE)
        }
        Mechanism::KprobeSession => {
            (BPF_PROG_TYPE_KPROBE, BPF_TRACE_KPROBE_SESSION, "BPF_TRACE_KPROBE_SESSION", FPROBE)
        }
        Mechanism::TpBtf | Mechanism::TpBtfSleepable => {
            (BPF_PROG_TYPE_TRACING, BPF_TRACE_RAW_TP, "BPF_TRACE_RAW_TP", TRACEPOINT)
        }
        Mechanism::RawTp | Mechanism::RawTpSleepable => {
            (BPF_PROG_TYPE_RAW_TRACEPOINT, 0, "BPF_TRACE_RAW_TP", TRACEPOINT)
        }
        Mechanism::Tp | Mechanism::TpSleepable => {
            (BPF_PROG_TYPE_TRACEPOINT, 0, "BPF_PERF_EVENT", CLASSIC)
        }
        Mechanism::Uprobe | Mechanism::UprobeSleepable | Mechanism::Uretprobe | Mechanism::Usdt => {
            (BPF_PROG_TYPE_KPROBE, 0, "BPF_PERF_EVENT", UPROBE)
        }
        Mechanism::UprobeMulti | Mechanism::UretprobeMulti => {
            (BPF_PROG_TYPE_KPROBE, BPF_TRACE_UPROBE_MULTI, "BPF_TRACE_UPROBE_MULTI", UPROBE)
        }
        Mechanism::UprobeSession => {
            (BPF_PROG_TYPE_KPROBE, BPF_TRACE_UPROBE_SESSION, "BPF_TRACE_UPROBE_SESSION", UPROBE)
        }
    };
    Uapi { program, attach, enumerator, options }
}

/// A mechanism on a kernel that knows it.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    pub mechanism: Mechanism,
    uapi: Uapi,
    /// Set if each link is a perf event's.
    pmu: Option<ProbePmu>,
    /// Set if it attaches to user space.
    binary: Option<&'static Binary>,
}

impl Method {
    /// Rejects a mechanism that the kernel's BTF does not have.
    pub fn new(mechanism: Mechanism, btf: &KernelBtf) -> Result<Method, GuestError> {
        let uapi = uapi(mechanism);
        if !btf.has_attach_type(uapi.enumerator) {
            let reason = format!(
                "{mechanism} needs the attach type {}, which its BTF does not have",
                uapi.enumerator
            );
            return Err(GuestError::Unsupported(reason));
        }
        // Like libbpf: USDT probes are links of uprobe.multi, if the kernel has it.
        let multi = self::uapi(Mechanism::UprobeMulti);
        let of_multi = mechanism.site() == Site::UserProbe && btf.has_attach_type(multi.enumerator);
        let uapi = if of_multi { multi } else { uapi };
        let pmu = match mechanism.way() {
            Way::Kprobe => Some("kprobe"),
            Way::Uprobe if !of_multi && !mechanism.is_multi() => Some("uprobe"),
            _ => None,
        };
        let found = |pmu: &str| {
            ProbePmu::find(pmu).ok_or_else(|| {
                let option = pmu.to_uppercase();
                GuestError::Unsupported(format!(
                    "perf has no {pmu} PMU (requires the option {option}_EVENTS)"
                ))
            })
        };
        let pmu = pmu.map(found).transpose()?;
        let binary = mechanism.is_user().then(Binary::get).transpose()?;
        Ok(Method { mechanism, uapi, pmu, binary })
    }

    /// Attaches to this file instead of the agent's own.
    pub fn to(self, binary: &'static Binary) -> Method {
        Method { binary: Some(binary), ..self }
    }

    pub fn program_per_target(self) -> bool {
        self.mechanism.program_per_target()
    }

    /// Returns true if the mechanism takes a list of addresses instead of BTF ids or names.
    pub fn attaches_by_address(mechanism: Mechanism) -> bool {
        mechanism.way() == Way::Fprobe
    }

    /// Returns true if the mechanism takes a function's name.
    pub fn attaches_by_name(mechanism: Mechanism) -> bool {
        mechanism.way() == Way::Kprobe
    }

    /// Returns true if the mechanism takes BTF ids.
    pub fn attaches_by_btf(self) -> bool {
        !Method::attaches_by_address(self.mechanism)
            && self.pmu.is_none()
            && self.binary.is_none()
            && !self.mechanism.is_event()
    }

    /// Loads a program for a target.
    pub fn load(self, target: &Target, program: bpf::Program<'_>) -> Result<OwnedFd, BpfError> {
        let kind = Kind { program: self.uapi.program, attach: self.uapi.attach };
        // The list of tracing multi has ids of one BTF, which the program names.
        let btf = if self.attaches_by_btf() { target.btf } else { 0 };
        let id = if self.program_per_target() { target.btf_id } else { 0 };
        let sleeps = if self.mechanism.sleeps() { libbpf_sys::BPF_F_SLEEPABLE } else { 0 };
        bpf::load_for(kind, btf, id, bpf::Program { flags: program.flags | sleeps, ..program })
    }

    pub fn load_empty(self, target: &Target) -> Result<OwnedFd, BpfError> {
        self.load(target, bpf::EMPTY)
    }

    /// Attaches to one target.
    pub fn link(self, program: BorrowedFd<'_>, target: &Target) -> Result<Link, BpfError> {
        let (mechanism, exit) = (self.mechanism, self.mechanism.is_exit());
        let list = || self.link_list(program, &List::of(std::slice::from_ref(target)));
        match mechanism.way() {
            Way::Kprobe => {
                let pmu = self.pmu.expect("found by `new`");
                let name = bpf::c_string(&target.name);
                pmu.link(program, ProbeAt { name: &name, offset: 0, semaphore: 0, exit })
            }
            Way::Uprobe => match (self.pmu, self.binary) {
                (Some(pmu), Some(binary)) => {
                    let semaphore = match mechanism.site() {
                        Site::UserProbe => Binary::semaphore(target.address) as u32,
                        _ => 0,
                    };
                    let (name, offset) = (binary.path(), target.address);
                    pmu.link(program, ProbeAt { name, offset, semaphore, exit })
                }
                _ => list(),
            },
            Way::Tracepoint if mechanism.is_event() => {
                bpf::link_tracepoint(program, tracefs_events::id(&target.name)?)
            }
            Way::Tracepoint if !mechanism.program_per_target() => {
                // Beside programs of one system call's event.
                bpf::link_raw_tracepoint(program, of_event(&target.name))
            }
            _ if mechanism.is_multi() => {
                list().map_err(|error| error.because(self.refusal_of_one(target)))
            }
            _ => bpf::link_tracing(program, self.uapi.attach),
        }
    }

    /// The verifier's refusal of a program for this function alone. The kernel checks functions of
    /// a list in the same way, but has no log for it.
    fn refusal_of_one(self, target: &Target) -> Option<BpfError> {
        let Uapi { program, attach, .. } = uapi(Mechanism::Fentry);
        let load =
            || bpf::load_for(Kind { program, attach }, target.btf, target.btf_id, bpf::EMPTY);
        if self.attaches_by_btf() { load().err() } else { None }
    }

    /// Attaches to all targets of a list by one link. For multi mechanisms only.
    pub fn link_list(self, program: BorrowedFd<'_>, list: &List) -> Result<Link, BpfError> {
        let exit = self.mechanism.is_exit();
        match self.mechanism.way() {
            Way::Uprobe => {
                let path = self.binary.expect("found by `new`").path();
                let semaphores: Vec<u64> = match self.mechanism.site() {
                    Site::UserProbe => {
                        list.addresses.iter().map(|&site| Binary::semaphore(site)).collect()
                    }
                    _ => Vec::new(),
                };
                let attach = self.uapi.attach;
                bpf::link_uprobe_multi(program, attach, path, &list.addresses, &semaphores, exit)
            }
            Way::Fprobe => bpf::link_kprobe_multi(program, self.uapi.attach, &list.addresses, exit),
            _ => bpf::link_tracing_multi(program, self.uapi.attach, &list.ids),
        }
    }

    /// As [`Method::link_list`], by name. For mechanisms that attach by address only.
    pub fn link_names(self, program: BorrowedFd<'_>, targets: &[Target]) -> Result<Link, BpfError> {
        let names: Vec<_> = targets.iter().map(symbol).collect();
        let exit = self.mechanism.is_exit();
        bpf::link_kprobe_multi_names(program, self.uapi.attach, &names, exit)
    }

    /// Attaches once to a target that must work. Returns the reason if it does not.
    pub fn probe(self, target: &Target) -> Result<(), GuestError> {
        let attach = || self.link(self.load_empty(target)?.as_fd(), target).map(drop);
        attach().map_err(|error: BpfError| {
            let text = format!("{} on {}: {error}", self.mechanism, target.name);
            if error.is_locked_down() {
                GuestError::Unsupported(text)
            } else if error.is_of_sleeping() {
                let who = if self.mechanism.is_tracepoint() { SYSCALLS_SLEEP } else { SLEEPS };
                GuestError::Unsupported(format!("{text} ({who})"))
            } else if self.mechanism.site() == Site::SyscallEvent && error.is_of_absence() {
                GuestError::Unsupported(format!("{text} (requires the option FTRACE_SYSCALLS)"))
            } else if error.is_unsupported() {
                GuestError::Unsupported(format!(
                    "{text} (requires the options {})",
                    self.uapi.options
                ))
            } else {
                GuestError::Failed(text)
            }
        })
    }
}

/// The functions that may sleep. The kernel's test functions do from Linux 6.2 on.
pub const SLEEPS: &str = "functions may sleep that are system calls or, with \
                          FUNCTION_ERROR_INJECTION, in its list, and a few more";

/// Linux 6.12 has none that sleep, 7.2 has these.
const SYSCALLS_SLEEP: &str = "newer kernels let programs sleep at the tracepoints of system calls";

/// The name of a function without its module, which the kernel looks up.
fn symbol(target: &Target) -> std::ffi::CString {
    bpf::c_string(target.name.rsplit(':').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_attach_type_that_a_kernel_lacks() {
        for mechanism in Mechanism::ALL {
            let Err(GuestError::Unsupported(reason)) =
                Method::new(mechanism, &KernelBtf::default())
            else {
                panic!("{mechanism} accepted by a kernel that has nothing");
            };
            assert!(
                reason.contains(uapi(mechanism).enumerator) && reason.contains(mechanism.name()),
                "{reason}"
            );
        }
    }
}
