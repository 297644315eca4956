// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mechanisms for attaching a BPF tracing program.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A way of attaching a BPF program: to kernel functions, to tracepoints, or to user-space code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mechanism {
    #[serde(rename = "fentry")]
    Fentry,
    #[serde(rename = "fexit")]
    Fexit,
    #[serde(rename = "fmod_ret")]
    FmodRet,
    #[serde(rename = "fsession")]
    Fsession,
    #[serde(rename = "fentry.multi")]
    FentryMulti,
    #[serde(rename = "fexit.multi")]
    FexitMulti,
    #[serde(rename = "fsession.multi")]
    FsessionMulti,
    #[serde(rename = "kprobe")]
    Kprobe,
    #[serde(rename = "kretprobe")]
    Kretprobe,
    #[serde(rename = "kprobe.multi")]
    KprobeMulti,
    #[serde(rename = "kretprobe.multi")]
    KretprobeMulti,
    #[serde(rename = "kprobe.session")]
    KprobeSession,
    #[serde(rename = "tp_btf")]
    TpBtf,
    #[serde(rename = "raw_tp")]
    RawTp,
    #[serde(rename = "uprobe")]
    Uprobe,
    #[serde(rename = "uretprobe")]
    Uretprobe,
    #[serde(rename = "uprobe.multi")]
    UprobeMulti,
    #[serde(rename = "uretprobe.multi")]
    UretprobeMulti,
    #[serde(rename = "uprobe.session")]
    UprobeSession,
    #[serde(rename = "usdt")]
    Usdt,
    #[serde(rename = "tp")]
    Tp,
    #[serde(rename = "ksyscall")]
    Ksyscall,
    #[serde(rename = "kretsyscall")]
    Kretsyscall,
    #[serde(rename = "lsm")]
    Lsm,
}

/// The user-space functions whose hits are measured, by their first instruction: a compiler's
/// prologue, a no-op, x86-64's no-ops of five and ten bytes, and one that the kernel single-steps.
pub const USER_FUNCTIONS: [&str; 5] =
    ["user_frame", "user_nop", "user_nop5", "user_nop10", "user_step"];
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
    pub const ALL: [Mechanism; 24] = {
        const KERNEL: usize = Mechanism::KERNEL.len();
        const OURS: usize = KERNEL + Mechanism::USER.len();
        let (mut all, mut at) = ([Mechanism::Fentry; 24], 0);
        while at < all.len() {
            all[at] = match at {
                OURS.. => Mechanism::BROUGHT[at - OURS],
                KERNEL.. => Mechanism::USER[at - KERNEL],
                _ => Mechanism::KERNEL[at],
            };
            at += 1;
        }
        all
    };

    /// Those that attach to kernel functions and tracepoints: `all` in suites.
    pub const KERNEL: [Mechanism; 14] = [
        Mechanism::Fentry,
        Mechanism::Fexit,
        Mechanism::FmodRet,
        Mechanism::Fsession,
        Mechanism::FentryMulti,
        Mechanism::FexitMulti,
        Mechanism::FsessionMulti,
        Mechanism::Kprobe,
        Mechanism::Kretprobe,
        Mechanism::KprobeMulti,
        Mechanism::KretprobeMulti,
        Mechanism::KprobeSession,
        Mechanism::TpBtf,
        Mechanism::RawTp,
    ];

    /// Those that attach to user-space code: `user` in suites.
    pub const USER: [Mechanism; 6] = [
        Mechanism::Uprobe,
        Mechanism::Uretprobe,
        Mechanism::UprobeMulti,
        Mechanism::UretprobeMulti,
        Mechanism::UprobeSession,
        Mechanism::Usdt,
    ];

    /// Those that only programs of users attach by: tramplab has none of its own.
    pub const BROUGHT: [Mechanism; 4] =
        [Mechanism::Tp, Mechanism::Ksyscall, Mechanism::Kretsyscall, Mechanism::Lsm];

    /// For one of [`Mechanism::BROUGHT`], the one whose place in suites its programs take.
    pub fn stands_for(self) -> Option<Mechanism> {
        match self {
            Mechanism::Tp => Some(Mechanism::RawTp),
            Mechanism::Ksyscall => Some(Mechanism::Kprobe),
            Mechanism::Kretsyscall => Some(Mechanism::Kretprobe),
            Mechanism::Lsm => Some(Mechanism::FmodRet),
            _ => None,
        }
    }

    /// The name in manifests, cells and reports, as in libbpf's section names.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Fentry => "fentry",
            Mechanism::Fexit => "fexit",
            Mechanism::FmodRet => "fmod_ret",
            Mechanism::Fsession => "fsession",
            Mechanism::FentryMulti => "fentry.multi",
            Mechanism::FexitMulti => "fexit.multi",
            Mechanism::FsessionMulti => "fsession.multi",
            Mechanism::Kprobe => "kprobe",
            Mechanism::Kretprobe => "kretprobe",
            Mechanism::KprobeMulti => "kprobe.multi",
            Mechanism::KretprobeMulti => "kretprobe.multi",
            Mechanism::KprobeSession => "kprobe.session",
            Mechanism::TpBtf => "tp_btf",
            Mechanism::RawTp => "raw_tp",
            Mechanism::Uprobe => "uprobe",
            Mechanism::Uretprobe => "uretprobe",
            Mechanism::UprobeMulti => "uprobe.multi",
            Mechanism::UretprobeMulti => "uretprobe.multi",
            Mechanism::UprobeSession => "uprobe.session",
            Mechanism::Usdt => "usdt",
            Mechanism::Tp => "tp",
            Mechanism::Ksyscall => "ksyscall",
            Mechanism::Kretsyscall => "kretsyscall",
            Mechanism::Lsm => "lsm",
        }
    }

    /// The points at which one hit runs the program, in order. A session program runs at both.
    pub fn points(self) -> &'static [Point] {
        match self {
            Mechanism::Fexit
            | Mechanism::FexitMulti
            | Mechanism::Kretprobe
            | Mechanism::KretprobeMulti
            | Mechanism::Kretsyscall
            | Mechanism::Uretprobe
            | Mechanism::UretprobeMulti => &[Point::Exit],
            Mechanism::Fsession
            | Mechanism::FsessionMulti
            | Mechanism::KprobeSession
            | Mechanism::UprobeSession => &[Point::Entry, Point::Exit],
            _ => &[Point::Entry],
        }
    }

    /// Returns true if one link covers many functions.
    pub fn is_multi(self) -> bool {
        matches!(
            self,
            Mechanism::FentryMulti
                | Mechanism::FexitMulti
                | Mechanism::FsessionMulti
                | Mechanism::KprobeMulti
                | Mechanism::KretprobeMulti
                | Mechanism::KprobeSession
                | Mechanism::UprobeMulti
                | Mechanism::UretprobeMulti
                | Mechanism::UprobeSession
        )
    }

    /// Returns true if a program is loaded for one target and cannot be attached to another.
    pub fn program_per_target(self) -> bool {
        matches!(
            self,
            Mechanism::Fentry
                | Mechanism::Fexit
                | Mechanism::FmodRet
                | Mechanism::Fsession
                | Mechanism::TpBtf
                | Mechanism::Lsm
        )
    }

    /// Returns true if it attaches to tracepoints rather than functions.
    pub fn is_tracepoint(self) -> bool {
        matches!(self, Mechanism::TpBtf | Mechanism::RawTp | Mechanism::Tp)
    }

    /// Returns true if it attaches to a system call, by the name without the architecture's prefix.
    pub fn is_syscall(self) -> bool {
        matches!(self, Mechanism::Ksyscall | Mechanism::Kretsyscall)
    }

    /// The kernel's name of a function that users name shorter to this mechanism: a system call
    /// without the architecture's prefix, an LSM hook without the one of its BPF programs.
    pub fn kernel_name(self, name: &str, syscall_prefix: &str) -> String {
        let prefix = match self {
            _ if self.is_syscall() => syscall_prefix,
            Mechanism::Lsm => HOOK_PREFIX,
            _ => "",
        };
        match name.starts_with(prefix) {
            true => name.to_owned(),
            false => format!("{prefix}{name}"),
        }
    }

    /// Returns true if it attaches to user-space code rather than the kernel's.
    pub fn is_user(self) -> bool {
        Mechanism::USER.contains(&self)
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
        let all = [&Mechanism::KERNEL[..], &Mechanism::USER, &Mechanism::BROUGHT].concat();
        assert_eq!(&Mechanism::ALL[..], all);
        for mechanism in Mechanism::ALL {
            let is_brought = Mechanism::BROUGHT.contains(&mechanism);
            assert_eq!(mechanism.stands_for().is_some(), is_brought, "{mechanism}");
        }
        let error = "fentri".parse::<Mechanism>().unwrap_err().to_string();
        assert!(error.contains("`fentri`") && error.contains("kprobe.session"), "{error}");
    }
}
