// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the host and the guest agent. One request is outstanding at a time.

use crate::{BesideSet, Functions, Mechanism, Point, delivery::Cpu};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Raised with every change of a message; both sides refuse another version.
pub const VERSION: u32 = 10;

/// The agent's line on the console when the kernel is up and it begins to do what it is asked: what the kernel warns of from there on, it
/// warns of while it is measured. On the console, as the order among its lines is certain.
pub const UP: &str = "tramplab-agent: up";
/// The head of its line when it switches the machine off unasked; why is behind it. There may be no other way to say so.
pub const GAVE_UP: &str = "tramplab-agent: gave up: ";
/// The virtio-serial port's name, under `/sys/class/virtio-ports/*/name` in the guest.
pub const PORT_NAME: &str = "tramplab.agent";
/// What the agent's threads that measure call themselves.
pub const AGENT_NAME: &str = "tramplab-agent";
/// It is the first process.
pub const AGENT_PID: u32 = 1;
/// On the kernel's command line where the agent is not: there another init starts it as a program. Nobody's own machine has this
/// word, so that the agent, which mounts and powers off, still refuses to run on one.
pub const PROGRAM_WORD: &str = "tramplab.agent=program";
/// The agent beats at least this often (milliseconds of guest time), also while it measures.
pub const HEARTBEAT_MS: u64 = 500;

/// Commands in the guest's root (a JSON list of [`Command`]s) that the agent executes before it opens the link. It
/// answers them when the host asks the same, in the same order.
pub const ORDERS: &str = "/orders.json";

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
    /// Reads what measurements need and never changes, before the guest is kept: else each reads it when it needs it.
    Prepare,
    /// Attaches a capturing program and triggers it, recorder armed. The program stays attached, so that
    /// its addresses can be resolved, until `Release` or another measurement.
    LbrWaste(LbrWasteRequest),
    /// Names for kernel addresses, from the guest's kallsyms.
    Resolve { addresses: Vec<u64> },
    /// Detaches what `LbrWaste` left attached.
    Release,
    /// Measures attach and detach times.
    Attach(AttachRequest),
    /// One more round of attach and detach, with what shows where its time goes. Resolves as `LbrWaste` does: the names
    /// are those of the moment when everything was attached.
    Explain(ExplainRequest),
    /// Attaches the empty program and triggers it: against the clock, and then recorder armed for the cost of a hit.
    /// What is attached stays, as after `LbrWaste`.
    Trigger(TriggerRequest),
    /// Makes small system calls under the plugin's profile, and again under the kernel's own tracer of calls: how the
    /// harness' own tests prove the one by the other.
    Calls(CallsRequest),
    /// Runs a program of the guest's root. What it prints comes as [`Event::Output`] before the answer.
    Exec(ExecRequest),
    /// Makes the guest fail in a chosen way: how the harness' own tests prove that it notices.
    Inject(Fault),
    /// What a guest that was restored from a snapshot cannot know: what time it is, and what no other guest that was
    /// restored from it has.
    Awake {
        /// Since 1970.
        realtime_ns: u64,
        seed: [u8; 32],
    },
    /// What it is then: how the harness' own tests prove the one above.
    Moment,
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
    /// The plugin hands the program the records such a CPU would.
    pub deliver: Option<Cpu>,
    /// perf's `branch_sample_type`s under which the hits are repeated, one event after the other, for the CPU's own records.
    pub hardware: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachRequest {
    pub mechanism: Mechanism,
    /// How many functions (or tracepoints) to attach to.
    pub functions: Functions,
    /// Measured rounds of load, attach, detach.
    pub rounds: u32,
    /// Chooses the functions: the same seed and kernel give the same list.
    pub seed: u64,
    /// Guest time that loading, attaching and detaching may each take where every function has a link of its own; what
    /// was done by then is the measurement. Links that are left over stay: only a new guest measures more.
    pub seconds: Option<u32>,
}

/// How the time of a round is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Explain {
    /// The plugin counts instructions by call path: a `Profile` magic around each phase.
    Exact,
    /// The guest's own clock interrupts samples call chains, and BPF programs on `sched_switch` time the waiting.
    Sampled,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainRequest {
    /// Mechanism, functions and seed; `rounds` of attach and detach are explained as one.
    pub attach: AttachRequest,
    pub how: Explain,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriggerRequest {
    pub mechanism: Mechanism,
    /// What is attached to the same function all the time.
    pub beside: BesideSet,
    /// Triggers while armed, each a hit of its own in the trace.
    pub hits: u32,
    /// Triggers before arming.
    pub warmup: u32,
    /// Triggers per timed round, and how many rounds, attached and not in turns.
    pub timed: u32,
    pub rounds: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallsRequest {
    /// System calls under each.
    pub times: u32,
}

/// Both streams of the program's output are one, in the order in which it wrote; it reads nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The program by its whole path, and its arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    pub cwd: String,
    /// Of guest time; then it and its process group are killed.
    pub seconds: u32,
    /// Output beyond it is read and dropped, lest a program that prints without end fill the host.
    pub output_bytes: u64,
    /// While it runs the plugin hands programs the branch records they ask for, as this CPU would; and to all that runs the guest looks
    /// like a machine that has them.
    pub deliver: Option<Cpu>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// `echo c > /proc/sysrq-trigger`.
    Panic,
    /// A process of the agent's dies in the kernel of a bad pointer; the kernel and the agent go on.
    Oops,
    /// The kernel warns of a bug of its own, and all goes on.
    Warning,
    /// A thread of the agent waits uninterruptibly until the kernel complains.
    HungTask,
    /// The agent takes memory until there is none.
    OutOfMemory,
    /// A thread of the agent holds the RCU read lock (a BPF loop) until the kernel complains.
    RcuStall,
    /// The agent stops beating and answering, but lives.
    Silence,
    /// The agent exits: PID 1 is gone, the kernel panics.
    ExitAgent,
    /// Bytes that are no frame are sent to the host.
    GarbageFrame,
    /// A frame with a flipped bit.
    CorruptFrame,
    /// Half a frame, and then others.
    CutFrame,
    /// Answers that nobody asked for, without end.
    Flood,
}

/// As it is serialised.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
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
    /// A line, its end included, or as much of a long one as a message takes, of what the program of request `id`
    /// printed. What is no UTF-8 is replaced.
    Output {
        id: u64,
        text: String,
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
    /// The functions around the addresses that have one, each once, ascending: many addresses are of few.
    Resolve {
        symbols: Vec<Symbol>,
    },
    Attach(AttachReply),
    Explain(Box<ExplainReply>),
    Trigger(TriggerReply),
    Calls(CallsReply),
    Moment(Moment),
    Exec(ExecReply),
    Done,
}

/// What no two guests have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Since 1970.
    pub realtime_ns: u64,
    /// Drawn from the kernel.
    pub random: u64,
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

impl GuestError {
    pub fn failed(what: impl std::fmt::Display) -> GuestError {
        GuestError::Failed(what.to_string())
    }
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

/// The kernel has none that is longer (`KSYM_NAME_LEN`). Whoever reads a trace copies a name for every record: a guest with longer ones would fill
/// the host's memory.
pub const LONGEST_NAME: usize = 512;

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    fits(String::deserialize(deserializer)?)
}

fn module<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(fits).transpose()
}

fn fits<E: serde::de::Error>(name: String) -> Result<String, E> {
    match name.len() <= LONGEST_NAME {
        true => Ok(name),
        false => Err(E::invalid_length(name.len(), &"the name of a symbol, of at most 512 bytes")),
    }
}

/// A function in the guest's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Module name as kallsyms prints it without brackets: `bpf` for JITed programs and trampolines,
    /// `__builtin__ftrace` for ftrace's; none for the kernel proper.
    #[serde(default, deserialize_with = "module")]
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
    /// The records it returned, newest first, when there are any: the CPU's or delivered ones (`snapshot_result` > 0).
    pub snapshot: Vec<(u64, u64)>,
    #[serde(default)]
    pub pmu: Pmu,
    /// In the order of the request; none where the kernel opens no such event.
    #[serde(default)]
    pub hardware: Vec<CpuRecords>,
}

/// What the guest's kernel says of its CPU's branch records: without both, whatever a program was given is not the CPU's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pmu {
    /// Records that it keeps (`caps/branches` of the PMU).
    pub depth: Option<u32>,
    /// Why it refuses an event with a branch stack, if it does.
    pub refused: Option<String>,
}

/// Hits under one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuRecords {
    pub branch_sample_type: u64,
    /// Hit by hit, and of each hit point by point.
    pub snapshots: Vec<Snapshot>,
}

/// What `bpf_get_branch_snapshot` gave a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Bytes, or a negative errno.
    pub result: i64,
    /// `from`, `to` and flags of each `struct perf_branch_entry`, newest first, as they are.
    pub entries: Vec<(u64, u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachReply {
    pub mechanism: Mechanism,
    /// In attach order.
    pub functions: Vec<String>,
    /// Candidates the kernel refused: replaced by the next of the list, or, of all functions, left out.
    pub refused: Vec<Refusal>,
    pub programs: u32,
    pub links: u32,
    pub rounds: Vec<AttachRound>,
    /// Where the time budget ended it before all functions were attached.
    pub stopped: Option<Stopped>,
}

/// A measurement that its time budget ended: it is one of fewer functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Functions asked for.
    pub wanted: u32,
    /// Of these attached within the budget, and of those detached again.
    pub attached: u32,
    pub detached: u32,
    /// The budget, seconds of guest time.
    pub seconds: u32,
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
    /// Memory that the links took (programs not included): what the kernel has allocated more after attaching than before.
    /// Absent in runs of before it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_kib: Option<i64>,
}

/// A round in two phases. Addresses are the kernel's; `Resolve` names them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainReply {
    /// Done: fewer than asked for where the time budget ended one.
    pub rounds: u32,
    /// Attached to in the last one.
    pub functions: u32,
    pub links: u32,
    pub attach: PhaseReply,
    pub detach: PhaseReply,
}

/// What one phase did. Which parts are there depends on how it was explained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseReply {
    pub wall_ns: u64,
    /// Time on a CPU by the scheduler's accounts of the thread (interrupts included). A little short of the truth: the
    /// time from a wake-up that is to preempt the thread to the switch is charged to whom it switches to.
    pub cpu_ns: u64,
    /// Times off the CPU, by kernel stack, longest first; being ready to run, behind another thread, is part of them.
    pub waits: Vec<Wait>,
    pub samples: Option<Samples>,
    /// Of the thread, where it was sampled: what this guest can count.
    pub counters: Vec<Counter>,
}

/// What an event of perf's counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// By perf's name: `cycles`, `context-switches`. Times are nanoseconds.
    pub event: String,
    pub count: u64,
    /// Counted for a part of the time only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Innermost first, beginning in the scheduler; empty where the stack is not known.
    pub stack: Vec<u64>,
    pub ns: u64,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// The event that sampled: `cycles` or `cpu-clock`.
    pub event: String,
    /// Events between two samples: cycles, or nanoseconds of `cpu-clock`.
    pub period: u64,
    /// Samples the kernel dropped.
    pub lost: u64,
    /// All threads on the CPU that measures, equal stacks put together.
    pub stacks: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub command: String,
    pub pid: u32,
    /// Whether it is the thread that attaches.
    pub measured: bool,
    /// Innermost first; empty in user space.
    pub stack: Vec<u64>,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriggerReply {
    pub mechanism: Mechanism,
    /// As of [`LbrWasteReply`].
    pub function: Symbol,
    pub points: Vec<Point>,
    /// The program that is attached, as kallsyms names it; its end is that of its code.
    pub program: Symbol,
    pub hits: u32,
    /// Guest nanoseconds of `timed` triggers, round by round.
    pub attached_ns: Vec<u64>,
    pub detached_ns: Vec<u64>,
    pub timed: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallsReply {
    /// The function that both looked at, with all it calls.
    pub root: String,
    /// What `function_graph` printed, without interrupts.
    pub trace: String,
    /// The functions of the kernel image that it can see.
    pub traceable: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecReply {
    pub end: ExecEnd,
    /// Bytes of output beyond what was asked for.
    pub dropped: u64,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    Exited(i32),
    Signaled(i32),
    /// It took longer than it may, and was killed.
    TimedOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_symbol_has_a_longer_name_than_the_kernels() {
        let read = |name: usize, module: usize| {
            let (name, module) = ("a".repeat(name), "b".repeat(module));
            serde_json::from_str::<Symbol>(&format!(
                r#"{{"name":"{name}","module":"{module}","start":1,"end":2}}"#
            ))
        };
        assert!(read(LONGEST_NAME, LONGEST_NAME).is_ok());
        assert!(read(LONGEST_NAME + 1, 1).is_err() && read(1, LONGEST_NAME + 1).is_err());
        let none = serde_json::from_str::<Symbol>(r#"{"name":"a","start":1,"end":2}"#).unwrap();
        assert_eq!(none.module, None);
    }
}
