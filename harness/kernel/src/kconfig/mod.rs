// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel configurations, and the options that tramplab needs.

mod expression;
mod fragment;
mod offered;
mod options;
mod sources;
#[cfg(test)]
mod tests_of_fragments;
#[cfg(test)]
mod tests_of_trees;
mod unmet;

pub use fragment::{
    Conflict, Demand, Fragment, FragmentError, Fragments, Uses, Wanted, fragments, needed, text,
};
pub use options::{Asked, asked, without_replaced};
pub use sources::Unreadable;
pub use unmet::{Unmet, unmet};

pub use tramplab_model::kconfig::{Kconfig, Missing, NotKconfig};
use tramplab_model::run::Arch;
use tramplab_protocol::Mechanism;

/// Options for booting with only an initramfs, talking over virtio-serial and loading BPF tracing
/// programs.
pub fn required_base(arch: Arch) -> Vec<&'static str> {
    let [_, console] = arch.platform().console.options;
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

/// Options on which those of [`required_base`] depend, and which a whole `.config` may lack.
fn prerequisites(arch: Arch) -> Vec<&'static str> {
    let [console, _] = arch.platform().console.options;
    vec!["TTY", "VIRTIO_MENU", "DEBUG_KERNEL", console, "FTRACE", "KPROBES", "KPROBE_EVENTS"]
}

/// Options that a mechanism needs in addition.
pub fn required_for(mechanism: Mechanism) -> &'static [&'static str] {
    match mechanism {
        Mechanism::Fentry | Mechanism::Fexit | Mechanism::FmodRet | Mechanism::Fsession => {
            &["FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS"]
        }
        Mechanism::Lsm => {
            &["SECURITY", "BPF_LSM", "FUNCTION_TRACER", "DYNAMIC_FTRACE_WITH_DIRECT_CALLS"]
        }
        Mechanism::FentryMulti | Mechanism::FexitMulti | Mechanism::FsessionMulti => &[
            "FUNCTION_TRACER",
            "DYNAMIC_FTRACE_WITH_DIRECT_CALLS",
            "HAVE_SINGLE_FTRACE_DIRECT_OPS",
        ],
        // A perf link makes its probe through the PMU of KPROBE_EVENTS.
        Mechanism::Kprobe | Mechanism::Ksyscall => &["KPROBES", "KPROBE_EVENTS"],
        Mechanism::Kretprobe | Mechanism::Kretsyscall => {
            &["KPROBES", "KPROBE_EVENTS", "KRETPROBES"]
        }
        Mechanism::KprobeMulti | Mechanism::KretprobeMulti | Mechanism::KprobeSession => {
            &["FUNCTION_TRACER", "FPROBE"]
        }
        Mechanism::TpBtf | Mechanism::RawTp | Mechanism::Tp => &["TRACEPOINTS"],
        // It selects UPROBES, which has no prompt. A perf link makes its probe through its PMU.
        Mechanism::Uprobe
        | Mechanism::Uretprobe
        | Mechanism::UprobeMulti
        | Mechanism::UretprobeMulti
        | Mechanism::UprobeSession
        | Mechanism::Usdt => &["UPROBE_EVENTS"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relevant lines of Debian's cloud configurations.
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
    fn finds_missing_options_of_debian_kernels() {
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
                        Mechanism::KprobeMulti
                        | Mechanism::KretprobeMulti
                        | Mechanism::KprobeSession,
                    ) => &[fprobe],
                    (
                        "6.1" | "6.12",
                        Mechanism::FentryMulti | Mechanism::FexitMulti | Mechanism::FsessionMulti,
                    ) => &[single],
                    _ => &[],
                };
                assert_eq!(
                    missing(&config, required_for(mechanism)),
                    expected,
                    "{kernel} {mechanism}"
                );
            }
        }
    }

    /// Every required option is checked: removing one is noticed.
    #[test]
    fn names_each_removed_option() {
        let (_, text) = CONFIGS[3];
        for option in
            required_base(Arch::X86_64).into_iter().chain(Mechanism::ALL.map(required_for).concat())
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
    fn reads_values_and_rejects_other_files() {
        let config = Kconfig::parse(CONFIGS[1].1).unwrap();
        assert_eq!(config.get("HZ"), Some("250"));
        assert_eq!(config.get("DEFAULT_HOSTNAME"), Some("(none)"));
        assert_eq!(config.get("HAVE_SINGLE_FTRACE_DIRECT_OPS"), None);
        for (text, expected) in [
            (
                "",
                "line 1 is no kernel configuration: ``; expected `CONFIG_NAME=value` or a comment",
            ),
            (
                "# only\n\n",
                "line 1 is no kernel configuration: ``; expected `CONFIG_NAME=value` or a comment",
            ),
            (
                "CONFIG_A=y\narch: x86_64\n",
                "line 2 is no kernel configuration: `arch: x86_64`; \
                 expected `CONFIG_NAME=value` or a comment",
            ),
            (
                "CONFIG_A\n",
                "line 1 is no kernel configuration: `CONFIG_A`; expected `CONFIG_NAME=value` or a \
                 comment",
            ),
        ] {
            assert_eq!(Kconfig::parse(text).unwrap_err().to_string(), expected);
        }
    }
}
