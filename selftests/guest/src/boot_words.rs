// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of the kernel's command line that bear on measurements. On the user's own machine, the
//! others are private: they name its disks and hosts.

use std::fs;
use std::sync::OnceLock;
use tramplab_protocol::switches::{is_of_mitigations, options};

/// Options about CPUs, clocks and the security modules. Those about mitigations come on top.
const BEARING: [&str; 14] = [
    "amd_pstate",
    "idle",
    "intel_idle.max_cstate",
    "intel_pstate",
    "isolcpus",
    "lockdown",
    "lsm",
    "nohz",
    "nohz_full",
    "nosmt",
    "preempt",
    "processor.max_cstate",
    "rcu_nocbs",
    "tsc",
];

/// The command line of this boot, as it was when this was called first. Without /proc it is empty.
pub fn line() -> &'static str {
    static LINE: OnceLock<String> = OnceLock::new();
    LINE.get_or_init(|| fs::read_to_string("/proc/cmdline").unwrap_or_default())
}

/// The line without the other words.
pub fn bearing(line: &str) -> String {
    let kept = options(line).filter(|&(name, value)| bears(name, value));
    let word = |(name, value): (&str, &str)| match value {
        "" => name.to_owned(),
        value => format!("{name}={value}"),
    };
    kept.map(word).collect::<Vec<_>>().join(" ")
}

fn bears(name: &str, value: &str) -> bool {
    // Text in a sysctl may be the host's name.
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let is_sysctl = name.starts_with("sysctl.") || name.starts_with("sysctl/");
    // The kernel takes both spellings.
    let name = name.replace('-', "_");
    BEARING.contains(&&*name) || is_of_mitigations(&name) || is_sysctl && is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_only_words_that_bear_on_measurements() {
        for (line, expected) in [
            ("BOOT_IMAGE=/vmlinuz root=UUID=4f6a-77 ro quiet splash", ""),
            ("ip=10.0.0.7::10.0.0.1:255.0.0.0:builder:eth0 nfsroot=files:/root mds=off", "mds=off"),
            ("mitigations=auto,nosmt root=/dev/sda1 nosmt", "mitigations=auto,nosmt nosmt"),
            ("isolcpus=2,3 nohz_full=2,3 rcu-nocbs=2", "isolcpus=2,3 nohz_full=2,3 rcu-nocbs=2"),
            ("lsm=lockdown,bpf intel_pstate=passive", "lsm=lockdown,bpf intel_pstate=passive"),
            (
                "sysctl.kernel.hostname=builder sysctl.kernel.bpf_stats_enabled=1",
                "sysctl.kernel.bpf_stats_enabled=1",
            ),
            ("dyndbg=\"file x.c +p; mds=host\" idle=poll", "idle=poll"),
            ("preempt=full -- mds=secret", "preempt=full"),
            ("", ""),
        ] {
            assert_eq!(bearing(line), expected, "{line}");
        }
    }
}
