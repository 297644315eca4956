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
    Conflict, Demand, Fragment, FragmentError, Fragments, Uses, WantedOption, fragments, needed,
    text,
};
pub use options::{AskedOption, asked, without_replaced};
pub use sources::Unreadable;
pub use unmet::{Unmet, undefined, unmet};

pub use tramplab_model::kconfig::{Kconfig, Missing, NotKconfig};
use tramplab_model::run::Arch;

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

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_protocol::Mechanism;

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
                assert_eq!(missing(&config, mechanism.options()), expected, "{kernel} {mechanism}");
            }
        }
    }

    /// Every required option is checked: removing one is noticed.
    #[test]
    fn names_each_removed_option() {
        let (_, text) = CONFIGS[3];
        for option in required_base(Arch::X86_64)
            .into_iter()
            .chain(Mechanism::ALL.map(Mechanism::options).concat())
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
