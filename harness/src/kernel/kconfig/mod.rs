// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel's configuration, and what tramplab needs of it.

mod expression;
mod fragment;
mod offered;
mod options;
#[cfg(test)]
mod tests_of_trees;
mod unmet;

pub use fragment::{Conflict, Demand, Fragment, FragmentError, Fragments, Uses, Wanted, fragments};
pub use options::{Options, Unreadable};
pub use unmet::{Unmet, unmet};

use crate::run::Arch;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};
use tramplab_protocol::Mechanism;

/// The options that are set; `CONFIG_` is left off their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kconfig(BTreeMap<String, String>);

/// An option that is needed and not built in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub option: &'static str,
    /// It is there as a module, which nothing loads in the guest.
    pub module: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CONFIG_{}", self.option)?;
        if self.module { f.write_str(" (a module is not enough: it must be `y`)") } else { Ok(()) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is no kernel configuration: `{text}`; expected `CONFIG_NAME=value` or a comment")]
pub struct NotKconfig {
    pub line: usize,
    pub text: String,
}

impl Kconfig {
    pub fn parse(text: &str) -> Result<Kconfig, NotKconfig> {
        let mut options = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let option = line.strip_prefix("CONFIG_").and_then(|rest| rest.split_once('='));
            let Some((name, value)) = option else {
                return Err(NotKconfig { line: index + 1, text: line.chars().take(80).collect() });
            };
            options.insert(name.to_owned(), value.trim_matches('"').to_owned());
        }
        // An empty file is not a kernel without options.
        if options.is_empty() {
            return Err(NotKconfig { line: 1, text: String::new() });
        }
        Ok(Kconfig(options))
    }

    /// The value: `y`, `m`, a number or the text of a string. None when it is not set.
    pub fn get(&self, option: &str) -> Option<&str> {
        self.0.get(option).map(String::as_str)
    }

    /// Options whose values differ, with both.
    pub fn differences<'a>(&'a self, other: &'a Kconfig) -> Vec<(&'a str, Option<&'a str>, Option<&'a str>)> {
        let names: BTreeSet<&str> = self.0.keys().chain(other.0.keys()).map(String::as_str).collect();
        let both = |name: &'a str| (name, self.get(name), other.get(name));
        names.into_iter().map(both).filter(|(_, a, b)| a != b).collect()
    }

    /// Those of the options that are not built in.
    pub fn missing(&self, options: &[&'static str]) -> Vec<Missing> {
        let missing = |option: &&'static str| match self.get(option) {
            Some("y") => None,
            value => Some(Missing { option, module: value == Some("m") }),
        };
        options.iter().filter_map(missing).collect()
    }
}

/// What it takes to boot with nothing but an initramfs, talk over virtio-serial and load BPF tracing programs.
pub fn required_base(arch: Arch) -> Vec<&'static str> {
    let console = match arch {
        Arch::X86_64 => "SERIAL_8250_CONSOLE",
        Arch::Arm64 => "SERIAL_AMBA_PL011_CONSOLE",
    };
    vec![
        "BLK_DEV_INITRD",
        "BINFMT_ELF",
        "DEVTMPFS",
        "PROC_FS",
        "SYSFS",
        "PCI",
        "VIRTIO_PCI",
        "VIRTIO_CONSOLE",
        "PRINTK",
        console,
        "KALLSYMS",
        "PERF_EVENTS",
        "BPF_SYSCALL",
        "BPF_JIT",
        "BPF_EVENTS",
        "DEBUG_INFO_BTF",
    ]
}

/// What a mechanism takes on top.
pub fn required_for(mechanism: Mechanism) -> &'static [&'static str] {
    match mechanism {
        Mechanism::Fentry | Mechanism::Fexit | Mechanism::FmodRet | Mechanism::Fsession => {
            &["FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS"]
        }
        Mechanism::FentryMulti | Mechanism::FexitMulti | Mechanism::FsessionMulti => {
            &["FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS", "HAVE_SINGLE_FTRACE_DIRECT_OPS"]
        }
        // Without the events there is no PMU through which a perf link makes its probe.
        Mechanism::Kprobe => &["KPROBES", "KPROBE_EVENTS"],
        Mechanism::Kretprobe => &["KPROBES", "KPROBE_EVENTS", "KRETPROBES"],
        Mechanism::KprobeMulti | Mechanism::KretprobeMulti | Mechanism::KprobeSession => {
            &["FUNCTION_TRACER", "FPROBE"]
        }
        Mechanism::TpBtf | Mechanism::RawTp => &["TRACEPOINTS"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of Debian's cloud configurations that matter here.
    const CONFIGS: [(&str, &str); 4] = [
        ("6.1", include_str!("../testdata/6.1.config")),
        ("6.12", include_str!("../testdata/6.12.config")),
        ("7.2", include_str!("../testdata/7.2.config")),
        ("7.3", include_str!("../testdata/7.3.config")),
    ];

    fn missing(config: &Kconfig, options: &[&'static str]) -> Vec<String> {
        config.missing(options).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_debians_kernels_lack() {
        let fprobe = "CONFIG_FPROBE";
        let single = "CONFIG_HAVE_SINGLE_FTRACE_DIRECT_OPS";
        for (kernel, text) in CONFIGS {
            let config = Kconfig::parse(text).unwrap();
            let base = missing(&config, &required_base(Arch::X86_64));
            let expected: &[&str] = match kernel {
                "6.1" => &[
                    "CONFIG_VIRTIO_PCI (a module is not enough: it must be `y`)",
                    "CONFIG_VIRTIO_CONSOLE (a module is not enough: it must be `y`)",
                ],
                _ => &[],
            };
            assert_eq!(base, expected, "{kernel}");
            for mechanism in Mechanism::ALL {
                let expected: &[&str] = match (kernel, mechanism) {
                    (
                        "6.1",
                        Mechanism::KprobeMulti | Mechanism::KretprobeMulti | Mechanism::KprobeSession,
                    ) => &[fprobe],
                    (
                        "6.1" | "6.12",
                        Mechanism::FentryMulti | Mechanism::FexitMulti | Mechanism::FsessionMulti,
                    ) => &[single],
                    _ => &[],
                };
                assert_eq!(missing(&config, required_for(mechanism)), expected, "{kernel} {mechanism}");
            }
        }
    }

    /// Each option is asked for by something: taking it away is noticed.
    #[test]
    fn an_option_taken_away_is_missed_by_its_name() {
        let (_, text) = CONFIGS[3];
        for option in required_base(Arch::X86_64).into_iter().chain(Mechanism::ALL.map(required_for).concat())
        {
            for (left, shown) in [
                (format!("# CONFIG_{option} is not set"), format!("CONFIG_{option}")),
                (
                    format!("CONFIG_{option}=m"),
                    format!("CONFIG_{option} (a module is not enough: it must be `y`)"),
                ),
            ] {
                let without = text.replace(&format!("CONFIG_{option}=y"), &left);
                assert_ne!(without, text, "{option} is in the excerpt");
                let config = Kconfig::parse(&without).unwrap();
                assert_eq!(missing(&config, &[option]), [shown]);
            }
        }
    }

    #[test]
    fn values_are_read_and_other_files_are_refused() {
        let config = Kconfig::parse(CONFIGS[1].1).unwrap();
        assert_eq!(config.get("HZ"), Some("250"));
        assert_eq!(config.get("DEFAULT_HOSTNAME"), Some("(none)"));
        assert_eq!(config.get("HAVE_SINGLE_FTRACE_DIRECT_OPS"), None);
        for (text, expected) in [
            ("", "line 1 is no kernel configuration: ``; expected `CONFIG_NAME=value` or a comment"),
            (
                "# only\n\n",
                "line 1 is no kernel configuration: ``; expected `CONFIG_NAME=value` or a comment",
            ),
            (
                "CONFIG_A=y\narch: x86_64\n",
                "line 2 is no kernel configuration: `arch: x86_64`; expected `CONFIG_NAME=value` or a comment",
            ),
            (
                "CONFIG_A\n",
                "line 1 is no kernel configuration: `CONFIG_A`; expected `CONFIG_NAME=value` or a comment",
            ),
        ] {
            assert_eq!(Kconfig::parse(text).unwrap_err().to_string(), expected);
        }
    }
}
