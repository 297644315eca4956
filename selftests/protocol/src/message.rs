// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the host and the guest agent. One request is outstanding at a time.

use crate::{Mechanism, Point};
use serde::{Deserialize, Serialize};

/// Raised with every change of a message; both sides refuse another version.
pub const VERSION: u32 = 1;
/// The virtio-serial port's name, under `/sys/class/virtio-ports/*/name` in the guest.
pub const PORT_NAME: &str = "tramplab.agent";
/// The agent beats at least this often (milliseconds of guest time), also while it measures.
pub const HEARTBEAT_MS: u64 = 500;

/// Host to guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    pub command: Command,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// What the guest's kernel is and can do.
    Facts,
    /// Attaches a capturing program and triggers it, recorder armed. The program stays attached, so that
    /// its addresses can be resolved, until `Release` or another measurement.
    LbrWaste(LbrWasteRequest),
    /// Names for kernel addresses, from the guest's kallsyms.
    Resolve { addresses: Vec<u64> },
    /// Detaches what `LbrWaste` left attached.
    Release,
    /// Measures attach and detach times.
    Attach(AttachRequest),
    /// Makes the guest fail in a chosen way: how the harness' own tests prove that it notices.
    Inject(Fault),
    /// Powers the guest off; answered before it happens.
    PowerOff,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LbrWasteRequest {
    pub mechanism: Mechanism,
    /// Triggers while armed, each a hit of its own in the trace.
    pub hits: u32,
    /// Triggers before arming, so that lazily patched code has settled.
    pub warmup: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachRequest {
    pub mechanism: Mechanism,
    /// How many functions (or tracepoints) to attach to.
    pub functions: u32,
    /// Measured rounds of load, attach, detach.
    pub rounds: u32,
    /// Chooses the functions: the same seed and kernel give the same list.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// `echo c > /proc/sysrq-trigger`.
    Panic,
    /// A thread of the agent holds the RCU read lock (a BPF loop) until the kernel complains.
    RcuStall,
    /// The agent stops beating and answering, but lives.
    Silence,
    /// The agent exits: PID 1 is gone, the kernel panics.
    ExitAgent,
    /// Bytes that are no frame are sent to the host.
    GarbageFrame,
}

/// Guest to host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The first frame: the agent runs and takes requests.
    Ready {
        version: u32,
        release: String,
        uptime_ns: u64,
    },
    Heartbeat {
        uptime_ns: u64,
    },
    Reply {
        id: u64,
        result: Result<Response, GuestError>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    Facts(Facts),
    LbrWaste(LbrWasteReply),
    Resolve { symbols: Vec<Option<Symbol>> },
    Attach(AttachReply),
    Done,
}

/// Why the guest did not measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum GuestError {
    /// This kernel cannot; the reason is the kernel's own. Becomes a `skip`.
    #[error("not supported by this kernel: {0}")]
    Unsupported(String),
    /// It should have worked. Becomes an `error`.
    #[error("{0}")]
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    /// `uname -m`.
    pub machine: String,
    pub cpus: u32,
    pub memory_kib: u64,
    pub clocksource: String,
    /// Size of `/sys/kernel/btf/vmlinux`; 0 when there is none.
    pub btf_bytes: u64,
    /// Functions ftrace can attach to, and those of them that BTF describes.
    pub ftrace_functions: u32,
    pub btf_functions: u32,
    /// `name: state` lines of `/sys/devices/system/cpu/vulnerabilities`: mitigations add branches.
    pub mitigations: Vec<String>,
    pub cmdline: String,
}

/// A function in the guest's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    pub name: String,
    /// Module name as kallsyms prints it without brackets: `bpf` for JITed programs and trampolines,
    /// `__builtin__ftrace` for ftrace's; none for the kernel proper.
    pub module: Option<String>,
    pub start: u64,
    /// One past the end: the next symbol's start.
    pub end: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LbrWasteReply {
    pub mechanism: Mechanism,
    /// The function the program traces (for a tracepoint, the function that holds it).
    pub function: Symbol,
    /// Where the program runs relative to it, in order, per hit.
    pub points: Vec<Point>,
    pub hits: u32,
    /// How often the program ran while armed, by its own count: `hits` times the number of points, or the trace is void.
    pub runs: u64,
    /// What `bpf_get_branch_snapshot` returned in the last run: bytes, or a negative errno (-2 without a PMU driver).
    pub snapshot_result: i64,
    /// The records it returned, newest first, when the branch records are real (`snapshot_result` > 0).
    pub snapshot: Vec<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachReply {
    pub mechanism: Mechanism,
    /// In attach order.
    pub functions: Vec<String>,
    /// Candidates the kernel refused, replaced by the next of the list.
    pub refused: Vec<Refusal>,
    pub programs: u32,
    pub links: u32,
    pub rounds: Vec<AttachRound>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub function: String,
    pub reason: String,
}

/// One round, in nanoseconds of the guest's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRound {
    /// Loading the programs (verifier and JIT).
    pub load_ns: u64,
    /// From before the first to after the last system call that makes the links.
    pub attach_ns: u64,
    /// The same for closing them.
    pub detach_ns: u64,
}
