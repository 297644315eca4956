// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the host and the guest agent. One request is outstanding at a time.

pub use crate::beside::Others;
pub use crate::refusal::{By, GuestError, LONGEST_LOG};
pub use crate::remark::{MapAttribute, Missing, Remark};
pub use crate::triggered::Triggered;

use crate::{
    BesideSet, Functions, Mechanism, Point,
    binary::Binary,
    delivery::{Cpu, Filters},
    pattern::Pattern,
    program::Program,
    storm::{SurviveReply, SurviveRequest},
};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Increment with every change of a message. Both sides reject another version.
pub const VERSION: u32 = 32;

/// The agent prints this line on the console when the kernel is up and it starts its work. Warnings
/// of the kernel after this line happened during a measurement. It is on the console because only
/// there its order among the kernel's lines is certain.
pub const UP: &str = "tramplab-agent: up";
/// The agent prints this, followed by the reason, when it powers the machine off unasked. The
/// console may be the only way left to say so.
pub const GAVE_UP: &str = "tramplab-agent: gave up: ";
/// The virtio-serial port's name, in `/sys/class/virtio-ports/*/name` in the guest.
pub const PORT_NAME: &str = "tramplab.agent";
/// The name of the agent's measuring threads.
pub const AGENT_NAME: &str = "tramplab-agent";
/// The agent is the first process.
pub const AGENT_PID: u32 = 1;
/// Word on the kernel's command line that allows the agent to run as a program under another init.
/// Without it, and not as PID 1, the agent refuses to run: it mounts and powers off, and must not
/// do so on anybody's own machine.
pub const PROGRAM_WORD: &str = "tramplab.agent=program";

/// The agent's first argument if it measures the kernel of the machine on which the user started
/// it, which it must leave as it is. The second is the number of an inherited descriptor: a
/// connected Unix stream socket, in place of the virtio-serial port.
pub const ON_THIS_MACHINE: &str = "on-this-machine";

/// The agent's first argument if it runs a command whose programs get branch records. The next
/// arguments are [`Filters`] in their short form, the command's program and its arguments.
pub const DELIVER: &str = "deliver";

/// The longest time between two heartbeats, in milliseconds of guest time, also during a
/// measurement.
pub const HEARTBEAT_MS: u64 = 500;

/// A file in the guest's root with a JSON list of [`Command`]s. The agent executes them before it
/// opens the link. It answers them when the host sends the same commands in the same order.
pub const ORDERS: &str = "/orders.json";

/// A folder in the guest's root with uncompressed modules, for the functions that the user names.
/// The agent loads them in the order of their names, `NUMBER-MODULE.ko`.
pub const WANTED_MODULES: &str = "/wanted";

/// The shell in roots of guests that run a command of the user's. It is a busybox.
pub const SHELL: &str = "/bin/busybox";

/// Host to guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    pub command: Command,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Reports the guest's kernel and its abilities.
    Facts,
    /// Reads data that measurements need and that never changes, before a snapshot is taken.
    /// Otherwise each measurement reads it on first use.
    Prepare,
    /// Attaches a capturing program and triggers it with the recorder armed. The program stays
    /// attached until `Release` or another measurement, so that its addresses can be resolved.
    LbrWaste(LbrWasteRequest),
    /// Resolves kernel addresses to names by the guest's kallsyms.
    Resolve { addresses: Vec<u64> },
    /// Detaches the program that `LbrWaste` left attached.
    Release,
    /// Measures attach and detach times.
    Attach(AttachRequest),
    /// Runs one more round of attach and detach and records where its time goes. The answer's
    /// addresses resolve as those of `LbrWaste`: by the names at the moment when all was attached.
    Explain(ExplainRequest),
    /// Attaches a program and triggers it: first against the clock, then with the recorder
    /// armed for the cost of a hit. The program stays attached, as after `LbrWaste`.
    Trigger(TriggerRequest),
    /// Runs a storm. Nothing of it stays attached.
    Survive(SurviveRequest),
    /// Makes small system calls under the plugin's profile, then under the kernel's own call
    /// tracer. The harness' tests compare the two.
    Calls(CallsRequest),
    /// Runs a program from the guest's root. Its output comes as [`Event::Output`] before the
    /// answer.
    Exec(ExecRequest),
    /// Makes the guest fail in a chosen way. The harness' tests check that it notices.
    Inject(Fault),
    /// Gives a guest restored from a snapshot the time, and a seed that no other guest restored
    /// from it has.
    Awake {
        /// Since 1970.
        realtime_ns: u64,
        seed: [u8; 32],
    },
    /// Powers the guest off; answered before it happens.
    PowerOff,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LbrWasteRequest {
    pub mechanism: Mechanism,
    /// Attaches this program, which takes the snapshot itself, instead of the agent's own.
    pub program: Option<Program>,
    /// The function to trace, of a module `MODULE:NAME`. None: a test function of the kernel's,
    /// which the agent knows to hit.
    pub function: Option<String>,
    /// A line for the guest's shell that hits the function, instead of the agent's workloads.
    pub command: Option<String>,
    /// Triggers while armed. Each is a hit of its own in the trace; several if the function is
    /// named and a trigger passes it several times ([`Triggered`]).
    pub hits: u32,
    /// Triggers before arming, so that lazily patched code settles.
    pub warmup: u32,
    /// Have the plugin hand the program the records of this CPU.
    pub deliver: Option<Cpu>,
    /// perf's `branch_sample_type`s. For each, the hits are repeated under events of that type, to
    /// read the records that the kernel's driver hands over. The hits while armed are under the
    /// first.
    pub events: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachRequest {
    pub mechanism: Mechanism,
    /// Attaches this program instead of the empty one.
    pub program: Option<Program>,
    /// Functions (or tracepoints) to attach to.
    pub functions: Functions,
    /// Choose from functions that one of these matches. Empty: from all that are safe to trace.
    pub among: Vec<Pattern>,
    /// Choose from the functions of this file, by a mechanism of user space. None: from those of
    /// the agent's own.
    pub binary: Option<Binary>,
    /// Tracers of other functions, attached before the first round and detached after the last.
    pub beside: BesideSet,
    /// Measured rounds of load, attach, detach.
    pub rounds: u32,
    /// Chooses the functions. The same seed and kernel give the same list.
    pub seed: u64,
    /// Guest seconds that loading, attaching and detaching may each take if every function has a
    /// link of its own. When they are over, the measurement covers the functions done so far. The
    /// other links stay, so only a new guest can measure more.
    pub seconds: Option<u32>,
}

/// How to explain the time of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Explain {
    /// The plugin counts instructions by call path, with a `Profile` magic around each phase.
    Exact,
    /// The guest's clock interrupts sample call chains, and BPF programs on `sched_switch` time the
    /// waits.
    Sampled,
    /// The plugin counts the events of a modelled CPU too, with an `Estimate` magic around each
    /// phase of a second round. The first fills caches and predictors.
    Estimated,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainRequest {
    /// Mechanism, functions and seed. Its `rounds` of attach and detach are explained as one.
    pub attach: AttachRequest,
    pub how: Explain,
    /// Also counts fixed system calls: before attaching, and while all is attached. Only for the
    /// exact count of one round. The plugin then writes four files in the order of execution.
    pub system_calls: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriggerRequest {
    pub mechanism: Mechanism,
    /// As in [`AttachRequest`].
    pub program: Option<Program>,
    /// As in [`LbrWasteRequest`].
    pub function: Option<String>,
    /// As in [`LbrWasteRequest`].
    pub command: Option<String>,
    /// Tracers attached all the time, to the same function or to others.
    pub beside: BesideSet,
    /// As in [`LbrWasteRequest`].
    pub hits: u32,
    /// Triggers before arming.
    pub warmup: u32,
    /// Triggers per timed round, and rounds. Rounds with and without the program alternate.
    pub timed: u32,
    pub rounds: u32,
    /// Triggers of each round whose events of a modelled CPU are counted: `HIT_ROUNDS` with the
    /// program, and as many without it. 0: none.
    pub estimated: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallsRequest {
    /// System calls under each of the two.
    pub times: u32,
}

/// A program to run. Its stdout and stderr are one stream, in order; its stdin is empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The program's absolute path, and its arguments.
    pub argv: Vec<String>,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    pub cwd: String,
    /// Guest seconds after which the program and its process group are killed.
    pub seconds: u32,
    /// Limit in bytes. Output beyond it is read and dropped, so that an endless program does not
    /// fill the host's memory.
    pub output_bytes: u64,
    /// While the program runs, the plugin hands BPF programs branch records as this CPU would, and
    /// the guest looks like a machine with that CPU.
    pub deliver: Option<Filters>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// `echo c > /proc/sysrq-trigger`.
    Panic,
    /// A process of the agent dies in the kernel of a bad pointer. The kernel and the agent
    /// continue.
    Oops,
    /// The kernel warns of a bug of its own, and everything continues.
    Warning,
    /// A thread of the agent waits uninterruptibly until the kernel complains.
    HungTask,
    /// The agent allocates memory until none is left.
    OutOfMemory,
    /// A thread of the agent holds the RCU read lock (a BPF loop) until the kernel complains.
    RcuStall,
    /// The agent stops beating and answering, but lives.
    Silence,
    /// The agent exits. PID 1 is gone, so the kernel panics.
    ExitAgent,
    /// The agent sends bytes that are no frame.
    GarbageFrame,
    /// The agent sends a frame with a flipped bit.
    CorruptFrame,
    /// The agent sends half a frame, then others.
    CutFrame,
    /// The agent sends answers that nobody asked for, without end.
    Flood,
}

/// Writes the serialised name.
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
    /// One line of output, with its line end, of the program of request `id`; long lines are split.
    /// Bytes that are no UTF-8 are replaced.
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
    Facts(Box<Facts>),
    LbrWaste(Box<LbrWasteReply>),
    /// The functions that hold the addresses, each once, in ascending order.
    Resolve {
        symbols: Vec<Symbol>,
    },
    Attach(AttachReply),
    Explain(Box<ExplainReply>),
    Trigger(Box<TriggerReply>),
    Survive(Box<SurviveReply>),
    Calls(CallsReply),
    Exec(ExecReply),
    Done,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Facts {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    /// `uname -m`.
    pub machine: String,
    pub cpus: u32,
    pub memory_kib: u64,
    /// Clock source of the guests with the host's clock. Several names, with commas, if they
    /// differed or changed.
    pub clocksource: String,
    /// Size of `/sys/kernel/btf/vmlinux`, or 0 without one.
    pub btf_bytes: u64,
    /// Functions that ftrace can attach to.
    pub ftrace_functions: u32,
    /// Functions that ftrace can attach to and BTF describes.
    pub btf_functions: u32,
    /// `name: state` lines of `/sys/devices/system/cpu/vulnerabilities`. Mitigations add branches.
    pub mitigations: Vec<String>,
    /// The kernel's command line. From the user's own machine, only words that bear on
    /// measurements.
    pub cmdline: String,
    /// Switches of the command line that the kernel did not take, each with its word and the
    /// reason. Such a guest is not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_taken: Vec<String>,
    /// The user's own machine: what must change before it can be measured, each with the command
    /// that changes it. Such a machine is not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The user's own machine: its state, as far as it bears on times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A part of a machine's state, which the agent reports and does not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// `scaling governor`, `SMT`.
    pub name: String,
    pub value: String,
    /// How this value spoils times, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoils: Option<String>,
}

/// The kernel's own limit for names (`KSYM_NAME_LEN`). A reader of a trace copies a name for every
/// record, so longer names would fill the host's memory.
pub const LONGEST_NAME: usize = 512;

pub(crate) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    fits(String::deserialize(deserializer)?)
}

fn module<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(fits).transpose()
}

fn fits<E: serde::de::Error>(name: String) -> Result<String, E> {
    match name.len() <= LONGEST_NAME {
        true => Ok(name),
        false => Err(E::invalid_length(name.len(), &"a symbol's name of at most 512 bytes")),
    }
}

/// A function in the guest's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Symbol {
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// Module name as kallsyms prints it, without brackets: `bpf` for JITed programs and
    /// trampolines, `__builtin__ftrace` for ftrace's. None for the kernel proper.
    #[serde(default, deserialize_with = "module")]
    pub module: Option<String>,
    /// The address of the first byte.
    pub start: u64,
    /// One past the end: the next symbol's start.
    pub end: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LbrWasteReply {
    pub mechanism: Mechanism,
    /// The function the program traces (for a tracepoint, the function that holds it).
    pub function: Symbol,
    /// The way in which the agent hits a function that the request names.
    #[serde(default)]
    pub trigger: Option<Triggered>,
    /// Where the program runs relative to the function, in order, per hit.
    pub points: Vec<Point>,
    /// The attached program, if the request brought one. `end` is the end of its code.
    pub program: Option<Symbol>,
    /// Hits while armed.
    pub hits: u32,
    /// How often the program ran while armed, by its own count; 0 for one that the request brought,
    /// which counts nothing. Any number but `hits` times `points.len()` voids the trace.
    pub runs: u64,
    /// The result of `bpf_get_branch_snapshot` in the last run: bytes, or a negative errno (-2
    /// without a PMU driver).
    pub snapshot_result: i64,
    /// The records it returned, newest first: the CPU's or delivered ones. Empty unless
    /// `snapshot_result` > 0.
    pub snapshot: Vec<(u64, u64)>,
    #[serde(default)]
    pub pmu: Pmu,
    /// In the order of the request. Empty if the kernel opens no such event.
    #[serde(default)]
    pub of_driver: Vec<DriverRecords>,
    #[serde(default)]
    pub remarks: Vec<Remark>,
}

/// The guest kernel's answers about its CPU's branch records. A kernel without a depth, or one that
/// refuses, has not handed out records of the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pmu {
    /// Records that the CPU keeps (`caps/branches` of the PMU).
    pub depth: Option<u32>,
    /// Why the kernel refuses an event with a branch stack, if it does.
    pub refused: Option<String>,
}

/// The hits under one type of event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverRecords {
    pub branch_sample_type: u64,
    pub hits: Vec<DriverHit>,
}

/// A hit under an event of its own: the ring is empty before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverHit {
    /// A snapshot of a full ring, taken before the event was opened. Drivers that return as many
    /// entries as the CPU keeps return the rest of it behind the entries of a partly filled ring.
    pub before: Snapshot,
    /// By point.
    pub snapshots: Vec<Snapshot>,
}

/// The result of one `bpf_get_branch_snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Bytes, or a negative errno.
    pub result: i64,
    /// `from`, `to` and flags of each `struct perf_branch_entry`, unchanged, newest first.
    pub entries: Vec<(u64, u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachReply {
    pub mechanism: Mechanism,
    /// In attach order.
    pub functions: Vec<String>,
    /// Candidates the kernel refused. The next one on the list replaces each, unless all functions
    /// were asked for.
    pub refused: Vec<Refusal>,
    pub programs: u32,
    pub links: u32,
    /// As in [`TriggerReply`].
    #[serde(default)]
    pub others: Vec<Others>,
    pub rounds: Vec<AttachRound>,
    /// Set if the time budget ended before all functions were attached.
    pub stopped: Option<Stopped>,
    #[serde(default)]
    pub remarks: Vec<Remark>,
}

/// A measurement that ended with its time budget and covers fewer functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stopped {
    /// Functions asked for.
    pub wanted: u32,
    /// Functions attached within the budget.
    pub attached: u32,
    /// Functions detached again within the budget.
    pub detached: u32,
    /// The budget, in seconds of guest time.
    pub seconds: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    pub function: String,
    /// The step that failed, with the kernel's error.
    pub reason: String,
}

/// One round, in nanoseconds of the guest's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AttachRound {
    /// Loading the programs (verifier and JIT).
    pub load_ns: u64,
    /// From before the first to after the last system call that makes the links.
    pub attach_ns: u64,
    /// The same for closing them.
    pub detach_ns: u64,
    /// Memory that the links take, without their programs: the growth of the kernel's allocations
    /// from before to after attaching. It can be negative. Absent from older runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_kib: Option<i64>,
}

/// A round in two phases. `Resolve` names its kernel addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainReply {
    /// Rounds done; fewer than asked for if the time budget ended one.
    pub rounds: u32,
    /// Functions attached to in the last round.
    pub functions: u32,
    pub links: u32,
    pub attach: PhaseReply,
    pub detach: PhaseReply,
    /// The number of the system calls that were counted before attaching, and again afterwards.
    #[serde(default)]
    pub system_calls: Option<u32>,
    /// None if ftrace has no record of a function.
    #[serde(default)]
    pub places: Option<Places>,
}

/// Where the attached functions are among ftrace's records, which it walks in this order to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Places {
    /// The number of records before the first of the functions.
    pub first: u32,
    /// The number of records before the last of the functions.
    pub last: u32,
    /// The number of all records.
    pub records: u32,
}

/// The measurements of one phase. The method decides which fields are set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseReply {
    pub wall_ns: u64,
    /// Time of the thread on a CPU by the scheduler's accounts, interrupts included. It is slightly
    /// short: from a preempting wake-up to the switch, the time is charged to the thread that is
    /// switched to.
    pub cpu_ns: u64,
    /// Times off the CPU by kernel stack, longest first. They include being ready to run behind
    /// another thread.
    pub waits: Vec<Wait>,
    pub samples: Option<Samples>,
    /// perf counters of the thread, as far as this guest has them, if it was sampled.
    pub counters: Vec<Counter>,
}

/// The count of one perf event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// perf's name: `cycles`, `context-switches`. Times are in nanoseconds.
    pub event: String,
    /// The attaching thread's count.
    pub count: u64,
    /// The event was counted for only a part of the time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Innermost first, starting in the scheduler. Empty if the stack is unknown.
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
    /// Samples of all threads on the measuring CPU, equal stacks merged.
    pub stacks: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// On the user's own machine, tasks of others are `others`, with pid 0.
    pub command: String,
    pub pid: u32,
    /// True for the thread that attaches.
    pub measured: bool,
    /// Innermost first. Empty in user space.
    pub stack: Vec<u64>,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriggerReply {
    pub mechanism: Mechanism,
    /// As in [`LbrWasteReply`].
    pub function: Symbol,
    #[serde(default)]
    pub trigger: Option<Triggered>,
    /// For each tracer on other functions, in the order of the set.
    #[serde(default)]
    pub others: Vec<Others>,
    /// The function of a live patch that runs in the place of the other.
    #[serde(default)]
    pub replacement: Option<Symbol>,
    pub points: Vec<Point>,
    /// The attached program, as kallsyms names it. `end` is the end of its code.
    pub program: Symbol,
    pub hits: u32,
    /// Guest nanoseconds of `timed` hits, by round.
    pub attached_ns: Vec<u64>,
    pub detached_ns: Vec<u64>,
    pub timed: u32,
    /// The hits of each round whose events were counted. 0 if a hit's trigger starts a process.
    #[serde(default)]
    pub estimated: u32,
    /// perf counters over `timed` hits. Only from the user's own machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<HitCounter>,
    #[serde(default)]
    pub remarks: Vec<Remark>,
}

/// The counts of one perf event of the agent's thread, over `timed` hits each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HitCounter {
    /// perf's name, with its modifier for user space or the kernel: `cycles:u`, `branch-misses:k`.
    pub event: String,
    /// By round, with the program. Both are empty if there is no count.
    pub attached: Vec<u64>,
    /// By round, without it.
    pub detached: Vec<u64>,
    /// Why there is no count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallsReply {
    /// The function that both traced, with all its callees.
    pub root: String,
    /// The output of `function_graph`, without interrupts.
    pub trace: String,
    /// The functions of the kernel image that `function_graph` can see.
    pub traceable: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecReply {
    pub end: ExecEnd,
    /// Bytes of output beyond the limit.
    pub dropped: u64,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    Exited(i32),
    Signaled(i32),
    /// It exceeded its time and was killed.
    TimedOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_symbols_with_names_longer_than_the_kernels() {
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
