// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel's configuration, and what tramplab needs of it.

use crate::run::Arch;
use std::{collections::BTreeMap, fmt};
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
        "KALLSYMS_ALL",
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
