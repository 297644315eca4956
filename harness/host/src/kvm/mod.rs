// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that KVM runs a guest, by running one of four instructions. `/dev/kvm` may open and make
//! a VM and still run no guest.
//!
//! It is in `guest.rs`, and what differs by architecture in `x86.rs` and `arm64.rs`.

#[cfg(target_arch = "aarch64")]
mod arm64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod guest;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
use arm64 as cpu;
#[cfg(target_arch = "x86_64")]
use x86 as cpu;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use guest::probe;
#[cfg(target_arch = "x86_64")]
pub use x86::offer;

use serde::{Deserialize, Serialize};

/// The branch records that KVM offers to guests, even if it runs none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// `IA32_PERF_CAPABILITIES` (MSR 0x345), if KVM lists it among its guests' MSRs. Bits 0 to 5
    /// are the format of the LBR, 0 without one.
    pub perf_capabilities: Option<u64>,
    /// The PMU's version in the supported CPUID (leaf 0xa), 0 without one.
    pub pmu_version: u8,
    /// Arch LBR in the supported CPUID (leaf 7).
    pub arch_lbr: bool,
    /// AMD's extended monitoring in the supported CPUID (leaf 0x80000022). Bit 1 is LbrExtV2.
    pub amd_extended: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    #[error("there is no /dev/kvm")]
    Absent,
    /// The modules of KVM refuse to load.
    #[error("the CPU offers no virtualization: /proc/cpuinfo shows neither vmx nor svm")]
    Unsupported,
    /// `by_group` is true if membership in the device's group opens it.
    #[error("/dev/kvm is not open to this user")]
    Denied { by_group: bool },
    #[error("failed to {action}: {message}")]
    Failed { action: &'static str, message: String },
    #[error("it runs guests of the host's own architecture only")]
    Foreign,
    #[error("/dev/kvm makes a VM, but a guest of four instructions ended with {0}")]
    Ended(String),
    #[error("/dev/kvm makes a VM, but a guest of four instructions did not end within {0} s")]
    Hangs(u64),
}

/// Without the device: a module that is not loaded, or a CPU that no module takes.
fn absent() -> KvmError {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo");
    match cpuinfo.is_ok_and(|text| !offers_virtualization(&text)) {
        true if cfg!(target_arch = "x86_64") => KvmError::Unsupported,
        _ => KvmError::Absent,
    }
}

/// Linux shows no flag that the firmware has switched off.
fn offers_virtualization(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.any(|(_, flags)| flags.split_whitespace().any(|flag| ["vmx", "svm"].contains(&flag)))
}

/// Root's group opens more than this device.
fn denied() -> KvmError {
    use std::{fs, os::unix::fs::MetadataExt};
    let by_group = |device: fs::Metadata| device.gid() != 0 && device.mode() & 0o060 == 0o060;
    KvmError::Denied { by_group: fs::metadata("/dev/kvm").is_ok_and(by_group) }
}

/// An architecture without guests.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn probe() -> Result<i32, KvmError> {
    Err(KvmError::Foreign)
}

#[cfg(not(target_arch = "x86_64"))]
pub fn offer() -> Option<Offer> {
    None
}

#[cfg(test)]
mod tests {
    use super::offers_virtualization;

    #[test]
    fn reads_virtualization_from_the_cpus_flags() {
        for (cpuinfo, expected) in [
            ("flags\t\t: fpu vmx lm\n", true),
            ("processor\t: 0\nflags\t\t: fpu svm\n\nprocessor\t: 1\n", true),
            ("flags\t\t: fpu svm_lock\nvmx flags\t: vnmi\n", false),
            ("model name\t: svm: a CPU\nflags\t\t: fpu\n", false),
            ("", false),
        ] {
            assert_eq!(offers_virtualization(cpuinfo), expected, "{cpuinfo}");
        }
    }
}
