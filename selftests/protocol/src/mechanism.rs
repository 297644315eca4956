// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mechanisms for attaching a BPF tracing program.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A way of attaching a BPF program: to kernel functions, to tracepoints, or to user-space code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(extend("enum" = Mechanism::ALL.map(Mechanism::name)))
)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Mechanism {
    Fentry,
    Fexit,
    FmodRet,
    Fsession,
    FentryMulti,
    FexitMulti,
    FsessionMulti,
    Kprobe,
    Kretprobe,
    KprobeMulti,
    KretprobeMulti,
    KprobeSession,
    TpBtf,
    RawTp,
    Tp,
    Ksyscall,
    Kretsyscall,
    Lsm,
    FentrySleepable,
    FexitSleepable,
    LsmSleepable,
    TpBtfSleepable,
    RawTpSleepable,
    TpSleepable,
    Uprobe,
    Uretprobe,
    UprobeMulti,
    UretprobeMulti,
    UprobeSession,
    Usdt,
    UprobeSleepable,
}

/// The target that a mechanism attaches to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Site {
    Function,
    /// A function whose result a program may change.
    Modifiable,
    /// A hook of security modules, by its name without [`HOOK_PREFIX`].
    Hook,
    /// A system call, by its name without a prefix of [`SYSCALL_PREFIXES`].
    Syscall,
    Tracepoint,
    /// A tracepoint as tracefs lists it.
    Event,
    /// The tracepoint of all system calls, at their begin or end. Of tracepoints only these let a
    /// program sleep.
    SyscallTracepoint,
    /// The event of one system call.
    SyscallEvent,
    UserFunction,
    /// A USDT probe.
    UserProbe,
}

/// The kernel's code that calls the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    BpfTrampoline,
    /// A kprobe's handler, by ftrace or a breakpoint; rethook at the exit.
    Kprobe,
    /// fprobe; rethook or fgraph at the exit.
    Fprobe,
    Tracepoint,
    /// A breakpoint in user space, or a system call in its place.
    Uprobe,
}

/// The targets that one program and one link have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// A program is loaded for one target and cannot be attached to another.
    ProgramEach,
    LinkEach,
    /// One link covers many targets.
    Many,
}

/// All facts about a mechanism that no kernel needs to be asked for.
#[derive(Clone, Copy, Debug)]
struct Row {
    mechanism: Mechanism,
    /// In suites, cells and reports, as in libbpf's section names.
    name: &'static str,
    /// libbpf's other name of the section.
    alias: Option<&'static str>,
    site: Site,
    way: Way,
    reach: Reach,
    points: &'static [Point],
    /// True if its programs may sleep.
    sleeps: bool,
    /// Options of the kernel that it needs beside those that every guest does.
    options: &'static [&'static str],
    /// Groups of this mechanism measure users' programs of the row's, too.
    stands_for: Option<Mechanism>,
}

const EXIT: &[Point] = &[Point::Exit];
const SESSION: &[Point] = &[Point::Entry, Point::Exit];

const FENTRY: Row = Row {
    mechanism: Mechanism::Fentry,
    name: "fentry",
    alias: None,
    site: Site::Function,
    way: Way::BpfTrampoline,
    reach: Reach::ProgramEach,
    points: &[Point::Entry],
    sleeps: false,
    options: &["FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS"],
    stands_for: None,
};
const FENTRY_MULTI: Row = Row {
    mechanism: Mechanism::FentryMulti,
    name: "fentry.multi",
    reach: Reach::Many,
    options: &[
        "FUNCTION_TRACER",
        "DYNAMIC_FTRACE_WITH_DIRECT_CALLS",
        "HAVE_SINGLE_FTRACE_DIRECT_OPS",
    ],
    ..FENTRY
};
const KPROBE: Row = Row {
    mechanism: Mechanism::Kprobe,
    name: "kprobe",
    way: Way::Kprobe,
    reach: Reach::LinkEach,
    // A perf link makes its probe through the PMU of KPROBE_EVENTS.
    options: &["KPROBES", "KPROBE_EVENTS"],
    ..FENTRY
};
const KRETPROBE: Row = Row {
    mechanism: Mechanism::Kretprobe,
    name: "kretprobe",
    points: EXIT,
    options: &["KPROBES", "KPROBE_EVENTS", "KRETPROBES"],
    ..KPROBE
};
const KPROBE_MULTI: Row = Row {
    mechanism: Mechanism::KprobeMulti,
    name: "kprobe.multi",
    way: Way::Fprobe,
    reach: Reach::Many,
    options: &["FUNCTION_TRACER", "FPROBE"],
    ..FENTRY
};
const RAW_TP: Row = Row {
    mechanism: Mechanism::RawTp,
    name: "raw_tp",
    alias: Some("raw_tracepoint"),
    site: Site::Tracepoint,
    way: Way::Tracepoint,
    reach: Reach::LinkEach,
    options: &["TRACEPOINTS"],
    ..FENTRY
};
const UPROBE: Row = Row {
    mechanism: Mechanism::Uprobe,
    name: "uprobe",
    site: Site::UserFunction,
    way: Way::Uprobe,
    reach: Reach::LinkEach,
    // It selects UPROBES, which has no prompt. A perf link makes its probe through its PMU.
    options: &["UPROBE_EVENTS"],
    ..FENTRY
};
const UPROBE_MULTI: Row =
    Row { mechanism: Mechanism::UprobeMulti, name: "uprobe.multi", reach: Reach::Many, ..UPROBE };

const LSM: Row = Row {
    mechanism: Mechanism::Lsm,
    name: "lsm",
    site: Site::Hook,
    options: &["SECURITY", "BPF_LSM", "FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS"],
    stands_for: Some(Mechanism::FmodRet),
    ..FENTRY
};

/// A row for each mechanism, in the order of [`Mechanism`].
const TABLE: &[Row] = &[
    FENTRY,
    Row { mechanism: Mechanism::Fexit, name: "fexit", points: EXIT, ..FENTRY },
    Row { mechanism: Mechanism::FmodRet, name: "fmod_ret", site: Site::Modifiable, ..FENTRY },
    Row { mechanism: Mechanism::Fsession, name: "fsession", points: SESSION, ..FENTRY },
    FENTRY_MULTI,
    Row { mechanism: Mechanism::FexitMulti, name: "fexit.multi", points: EXIT, ..FENTRY_MULTI },
    Row {
        mechanism: Mechanism::FsessionMulti,
        name: "fsession.multi",
        points: SESSION,
        ..FENTRY_MULTI
    },
    KPROBE,
    KRETPROBE,
    KPROBE_MULTI,
    Row {
        mechanism: Mechanism::KretprobeMulti,
        name: "kretprobe.multi",
        points: EXIT,
        ..KPROBE_MULTI
    },
    Row {
        mechanism: Mechanism::KprobeSession,
        name: "kprobe.session",
        points: SESSION,
        ..KPROBE_MULTI
    },
    Row {
        mechanism: Mechanism::TpBtf,
        name: "tp_btf",
        alias: None,
        reach: Reach::ProgramEach,
        ..RAW_TP
    },
    RAW_TP,
    Row {
        mechanism: Mechanism::Tp,
        name: "tp",
        alias: Some("tracepoint"),
        site: Site::Event,
        stands_for: Some(Mechanism::RawTp),
        ..RAW_TP
    },
    Row {
        mechanism: Mechanism::Ksyscall,
        name: "ksyscall",
        site: Site::Syscall,
        stands_for: Some(Mechanism::Kprobe),
        ..KPROBE
    },
    Row {
        mechanism: Mechanism::Kretsyscall,
        name: "kretsyscall",
        site: Site::Syscall,
        stands_for: Some(Mechanism::Kretprobe),
        ..KRETPROBE
    },
    LSM,
    Row {
        mechanism: Mechanism::FentrySleepable,
        name: "fentry.s",
        sleeps: true,
        stands_for: Some(Mechanism::Fentry),
        ..FENTRY
    },
    Row {
        mechanism: Mechanism::FexitSleepable,
        name: "fexit.s",
        points: EXIT,
        sleeps: true,
        stands_for: Some(Mechanism::Fexit),
        ..FENTRY
    },
    Row {
        mechanism: Mechanism::LsmSleepable,
        name: "lsm.s",
        sleeps: true,
        stands_for: Some(Mechanism::Lsm),
        ..LSM
    },
    Row {
        mechanism: Mechanism::TpBtfSleepable,
        name: "tp_btf.s",
        alias: None,
        site: Site::SyscallTracepoint,
        reach: Reach::ProgramEach,
        sleeps: true,
        stands_for: Some(Mechanism::TpBtf),
        ..RAW_TP
    },
    Row {
        mechanism: Mechanism::RawTpSleepable,
        name: "raw_tp.s",
        alias: Some("raw_tracepoint.s"),
        site: Site::SyscallTracepoint,
        sleeps: true,
        stands_for: Some(Mechanism::RawTp),
        ..RAW_TP
    },
    Row {
        mechanism: Mechanism::TpSleepable,
        name: "tp.s",
        alias: Some("tracepoint.s"),
        site: Site::SyscallEvent,
        sleeps: true,
        options: &["TRACEPOINTS", "FTRACE_SYSCALLS"],
        stands_for: Some(Mechanism::Tp),
        ..RAW_TP
    },
    UPROBE,
    Row { mechanism: Mechanism::Uretprobe, name: "uretprobe", points: EXIT, ..UPROBE },
    UPROBE_MULTI,
    Row {
        mechanism: Mechanism::UretprobeMulti,
        name: "uretprobe.multi",
        points: EXIT,
        ..UPROBE_MULTI
    },
    Row {
        mechanism: Mechanism::UprobeSession,
        name: "uprobe.session",
        points: SESSION,
        ..UPROBE_MULTI
    },
    Row { mechanism: Mechanism::Usdt, name: "usdt", site: Site::UserProbe, ..UPROBE },
    Row {
        mechanism: Mechanism::UprobeSleepable,
        name: "uprobe.s",
        sleeps: true,
        stands_for: Some(Mechanism::Uprobe),
        ..UPROBE
    },
];

/// The user-space functions whose hits are measured, by their first instruction: a compiler's
/// prologue, a no-op, x86-64's no-ops of five and ten bytes, one that the kernel single-steps, and
/// a return.
pub const USER_FUNCTIONS: [&str; 6] =
    ["user_frame", "user_nop", "user_nop5", "user_nop10", "user_step", "user_ret"];
/// Prefixes of the kernel's functions for system calls, by architecture.
pub const SYSCALL_PREFIXES: [&str; 2] = ["__x64_sys_", "__arm64_sys_"];
/// Prefix of the kernel's functions to which programs of LSM hooks attach.
pub const HOOK_PREFIX: &str = "bpf_lsm_";
/// Stands where the symbol of such a function has a module.
pub const USER_SPACE: &str = "user";

/// The side of the traced function that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Point {
    Entry,
    Exit,
}

impl Point {
    pub fn name(self) -> &'static str {
        match self {
            Point::Entry => "entry",
            Point::Exit => "exit",
        }
    }
}

impl Mechanism {
    pub const ALL: [Mechanism; TABLE.len()] = {
        let (mut all, mut at) = ([Mechanism::Fentry; TABLE.len()], 0);
        while at < all.len() {
            assert!(TABLE[at].mechanism as usize == at, "the table has another order");
            all[at] = TABLE[at].mechanism;
            at += 1;
        }
        all
    };

    /// Those that attach to kernel functions and tracepoints: `all` in suites.
    pub const KERNEL: [Mechanism; Mechanism::Uprobe as usize] =
        *Mechanism::ALL.first_chunk().unwrap();

    /// Those that attach to user-space code: `user` in suites.
    pub const USER: [Mechanism; TABLE.len() - Mechanism::KERNEL.len()] =
        *Mechanism::ALL.last_chunk().unwrap();

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The mechanism whose groups in suites measure users' programs of this one, too. Suites named
    /// it before this one had programs of tramplab's own.
    pub fn stands_for(self) -> Option<Mechanism> {
        self.row().stands_for
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The mechanism of a section's name up to a slash, as libbpf reads it.
    pub fn of_section(name: &str) -> Option<Mechanism> {
        let find = |name: &str| {
            let is_of = |row: &&Row| row.name == name || row.alias == Some(name);
            Some(TABLE.iter().find(is_of)?.mechanism)
        };
        // Not every program that may sleep has a mechanism of its own.
        let sleepable = || {
            let found = find(name.strip_suffix(".s")?)?;
            matches!(found.way(), Way::BpfTrampoline | Way::Uprobe).then_some(found)
        };
        find(name).or_else(sleepable)
    }

    pub fn site(self) -> Site {
        self.row().site
    }

    pub fn way(self) -> Way {
        self.row().way
    }

    /// The points at which one hit runs the program, in order. A session program runs at both.
    pub fn points(self) -> &'static [Point] {
        self.row().points
    }

    /// Returns true if its programs may sleep. The kernel attaches them only to code that may.
    pub fn sleeps(self) -> bool {
        self.row().sleeps
    }

    /// The options that a kernel needs for it beside those that every guest does.
    pub fn options(self) -> &'static [&'static str] {
        self.row().options
    }

    /// Returns true if one link covers many functions.
    pub fn is_multi(self) -> bool {
        self.row().reach == Reach::Many
    }

    /// Returns true if a program is loaded for one target and cannot be attached to another.
    pub fn program_per_target(self) -> bool {
        self.row().reach == Reach::ProgramEach
    }

    /// Returns true if it attaches to tracepoints rather than functions.
    pub fn is_tracepoint(self) -> bool {
        matches!(self.site(), Site::Tracepoint | Site::SyscallTracepoint) || self.is_event()
    }

    /// Returns true if it attaches to tracepoints as tracefs lists them.
    pub fn is_event(self) -> bool {
        matches!(self.site(), Site::Event | Site::SyscallEvent)
    }

    /// Returns true if its programs run only when a function returns.
    pub fn is_exit(self) -> bool {
        self.points() == EXIT
    }

    /// The kernel's name of a function that users name shorter to this mechanism: a system call
    /// without the architecture's prefix, an LSM hook without the one of its BPF programs.
    pub fn kernel_name(self, name: &str, syscall_prefix: &str) -> String {
        let prefix = match self.site() {
            Site::Syscall => syscall_prefix,
            Site::Hook => HOOK_PREFIX,
            _ => "",
        };
        match name.starts_with(prefix) {
            true => name.to_owned(),
            false => format!("{prefix}{name}"),
        }
    }

    /// Returns true if it attaches to user-space code rather than the kernel's.
    pub fn is_user(self) -> bool {
        self.way() == Way::Uprobe
    }

    /// Returns true if it attaches to a function of this name: the agent's own user-space functions
    /// have names that no kernel function has.
    pub fn attaches_to(self, function: &str) -> bool {
        !self.is_tracepoint() && self.is_user() == USER_FUNCTIONS.contains(&function)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Mechanism> for &'static str {
    fn from(mechanism: Mechanism) -> &'static str {
        mechanism.name()
    }
}

impl TryFrom<String> for Mechanism {
    type Error = UnknownMechanism;

    fn try_from(name: String) -> Result<Mechanism, UnknownMechanism> {
        name.parse()
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "unknown mechanism `{0}`, expected one of: {names}",
    names = Mechanism::ALL.map(Mechanism::name).join(", ")
)]
pub struct UnknownMechanism(pub String);

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Mechanism::ALL
            .into_iter()
            .find(|m| m.name() == name)
            .ok_or_else(|| UnknownMechanism(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_agree_with_serde() {
        for m in Mechanism::ALL {
            assert_eq!(m.name().parse::<Mechanism>().unwrap(), m);
            assert_eq!(serde_json::to_string(&m).unwrap(), format!("\"{m}\""));
        }
        assert!(Mechanism::USER.iter().all(|m| m.is_user()));
        assert!(!Mechanism::KERNEL.iter().any(|m| m.is_user()));
        for (section, mechanism) in [
            ("raw_tracepoint", Some(Mechanism::RawTp)),
            ("tracepoint", Some(Mechanism::Tp)),
            ("lsm.s", Some(Mechanism::LsmSleepable)),
            ("fmod_ret.s", Some(Mechanism::FmodRet)),
            ("raw_tp.s", Some(Mechanism::RawTpSleepable)),
            ("usdt.s", Some(Mechanism::Usdt)),
            ("kprobe.s", None),
            ("tracepoint.s", Some(Mechanism::TpSleepable)),
            ("xdp", None),
        ] {
            assert_eq!(Mechanism::of_section(section), mechanism, "{section}");
        }
        let error = "fentri".parse::<Mechanism>().unwrap_err().to_string();
        assert!(error.contains("`fentri`") && error.contains("kprobe.session"), "{error}");
    }
}
