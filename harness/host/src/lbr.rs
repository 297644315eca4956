// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides if guests can use this machine's own branch records, from facts about the machine.
//!
//! `docs/hardware.md` explains the rules, with their sources in the kernel.

use super::kvm::{self, Offer};
use serde::{Deserialize, Serialize};
use std::{fmt, fs, path::PathBuf};
use tramplab_model::run::Arch;

/// The facts that decide, and some that explain a decision. `cargo xtask doctor --json` prints
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// None if guests cannot have the host's architecture.
    pub arch: Option<Arch>,
    /// From `/proc/cpuinfo`: for example `GenuineIntel`.
    pub vendor: Option<String>,
    pub cpu: Option<String>,
    /// `family/model/stepping`.
    pub model: Option<String>,
    /// The CPU's flag `hypervisor`.
    pub is_guest: bool,
    /// The CPU's flag `arch_lbr`.
    pub has_arch_lbr: bool,
    /// `uname -r`.
    pub kernel: String,
    /// The number of branch records that perf keeps on the host.
    pub depth: Option<u32>,
    /// Why KVM runs no guest, if it runs none.
    pub kvm_failure: Option<String>,
    /// None if KVM gives no answer.
    pub offer: Option<Offer>,
    /// Parameter of the module `kvm`. None if the kernel has no such parameter.
    pub enable_pmu: Option<bool>,
    /// Parameter of the module `kvm_intel`. None if the kernel has no such parameter.
    pub enable_mediated_pmu: Option<bool>,
    /// Not used in the decision: KVM opens its own events, and the agent is root in its guest.
    pub perf_event_paranoid: Option<i32>,
}

/// The layout of a CPU's legacy LBR: the number in `IA32_PERF_CAPABILITIES` and QEMU's `lbr-fmt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LbrFormat(u8);

impl LbrFormat {
    /// Arch LBR has this number, and is described elsewhere.
    const ARCH: u8 = 0x3f;

    fn of(perf_capabilities: u64) -> LbrFormat {
        LbrFormat(perf_capabilities as u8 & LbrFormat::ARCH)
    }
}

impl fmt::Display for LbrFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Why guests have only virtual branch records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHardware {
    #[error("this machine emulates {0} guests, so its own CPU does not record their branches")]
    Emulated(Arch),
    #[error("KVM hides BRBE, arm64's branch records, from its guests")]
    Brbe,
    #[error("KVM gives its guests no LbrExtV2, AMD's branch records")]
    Amd,
    #[error("KVM passes only Intel's legacy LBR to its guests, and this CPU's vendor is {0}")]
    Vendor(String),
    #[error(
        "this CPU has Arch LBR (Alder Lake, Sapphire Rapids or later): KVM gives it to no guest"
    )]
    ArchLbr,
    #[error("no guest runs under KVM here: {0}")]
    Kvm(String),
    #[error("KVM gives its guests no PMU: the module kvm was loaded with enable_pmu=N")]
    PmuOff,
    #[error("KVM's mediated PMU is on and has no LBR: load kvm_intel with enable_mediated_pmu=N")]
    Mediated,
    #[error("this machine is itself virtual and was given no LBR to pass on")]
    Nested,
    #[error("perf finds no LBR on this machine (caps/branches of the PMU `cpu`)")]
    NoLbr,
    #[error(
        "KVM offers its guests no LBR (format 0 in MSR 0x345, or no such MSR): KVM needs \
         call-stack mode, which Atom and CPUs before Haswell lack, and Linux 5.12 or later"
    )]
    NotOffered,
}

/// The format of the LBR that guests of `arch` get, or why they get none. A permanent reason comes
/// before one that the user can mend.
pub fn decide(facts: &Facts, arch: Arch) -> Result<LbrFormat, NoHardware> {
    if facts.arch != Some(arch) {
        return Err(NoHardware::Emulated(arch));
    }
    if arch == Arch::Arm64 {
        return Err(NoHardware::Brbe);
    }
    match facts.vendor.as_deref() {
        Some("GenuineIntel") => {}
        Some("AuthenticAMD" | "HygonGenuine") => return Err(NoHardware::Amd),
        vendor => return Err(NoHardware::Vendor(vendor.unwrap_or("unknown").to_owned())),
    }
    if facts.has_arch_lbr {
        return Err(NoHardware::ArchLbr);
    }
    if let Some(failure) = &facts.kvm_failure {
        return Err(NoHardware::Kvm(failure.clone()));
    }
    // KVM's offer decides. The other facts only explain why it offers none.
    let offered = facts.offer.as_ref().and_then(|offer| offer.perf_capabilities).map(LbrFormat::of);
    match offered {
        Some(LbrFormat(LbrFormat::ARCH)) => Err(NoHardware::ArchLbr),
        Some(LbrFormat(0)) | None => Err(match facts {
            Facts { enable_pmu: Some(false), .. } => NoHardware::PmuOff,
            Facts { enable_mediated_pmu: Some(true), .. } => NoHardware::Mediated,
            Facts { is_guest: true, .. } => NoHardware::Nested,
            Facts { depth: None, .. } => NoHardware::NoLbr,
            _ => NoHardware::NotOffered,
        }),
        Some(format) => Ok(format),
    }
}

impl Facts {
    /// Runs a guest of four instructions, which may take two seconds.
    pub fn probe() -> Facts {
        Facts::gather(kvm::probe().err().map(|error| error.to_string()))
    }

    /// Reads the facts. The caller knows why KVM runs no guest, if it runs none.
    pub fn gather(kvm_failure: Option<String>) -> Facts {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let fields = Fields::of(&cpuinfo);
        Facts {
            arch: Arch::host(),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            depth: depth(),
            kvm_failure,
            offer: kvm::offer(),
            enable_pmu: switch("/sys/module/kvm/parameters/enable_pmu"),
            enable_mediated_pmu: switch("/sys/module/kvm_intel/parameters/enable_mediated_pmu"),
            perf_event_paranoid: read("/proc/sys/kernel/perf_event_paranoid")
                .and_then(|text| text.parse().ok()),
            vendor: fields.get("vendor_id"),
            cpu: fields.get("model name"),
            model: fields.model(),
            is_guest: fields.has_flag("hypervisor"),
            has_arch_lbr: fields.has_flag("arch_lbr"),
        }
    }
}

/// The fields of the first CPU in `/proc/cpuinfo`.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn of(cpuinfo: &'a str) -> Fields<'a> {
        let lines = cpuinfo.lines().take_while(|line| !line.is_empty());
        Fields(
            lines
                .filter_map(|line| line.split_once(':'))
                .map(|(key, value)| (key.trim(), value.trim()))
                .collect(),
        )
    }

    fn get(&self, wanted: &str) -> Option<String> {
        self.0.iter().find(|(key, _)| *key == wanted).map(|(_, value)| (*value).to_owned())
    }

    fn model(&self) -> Option<String> {
        let numbers = ["cpu family", "model", "stepping"].map(|key| self.get(key));
        Some(numbers.into_iter().collect::<Option<Vec<_>>>()?.join("/"))
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.get("flags").is_some_and(|flags| flags.split(' ').any(|one| one == flag))
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Reads a module's boolean parameter.
fn switch(path: &str) -> Option<bool> {
    match read(path)?.as_str() {
        "Y" | "1" => Some(true),
        "N" | "0" => Some(false),
        _ => None,
    }
}

/// The most records of any PMU: `cpu`, or `cpu_core` and `cpu_atom` on hybrid CPUs.
fn depth() -> Option<u32> {
    let depth = |folder: PathBuf| {
        fs::read_to_string(folder.join("caps/branches")).ok()?.trim().parse().ok()
    };
    let devices = fs::read_dir("/sys/devices").ok()?.flatten();
    let cpus = devices.filter(|entry| entry.file_name().to_string_lossy().starts_with("cpu"));
    cpus.filter_map(|entry| depth(entry.path())).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU_CAPABILITIES: u64 = 0x32c0;

    /// Ice Lake on Linux 6.12. KVM offers its LBR.
    fn able() -> Facts {
        Facts {
            arch: Some(Arch::X86_64),
            vendor: Some("GenuineIntel".to_owned()),
            cpu: Some("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz".to_owned()),
            model: Some("6/106/6".to_owned()),
            is_guest: false,
            has_arch_lbr: false,
            kernel: "6.12.0".to_owned(),
            depth: Some(32),
            kvm_failure: None,
            offer: offer(Some(CPU_CAPABILITIES | 5)),
            enable_pmu: Some(true),
            enable_mediated_pmu: None,
            perf_event_paranoid: Some(3),
        }
    }

    fn offer(perf_capabilities: Option<u64>) -> Option<Offer> {
        Some(Offer { perf_capabilities, pmu_version: 2, arch_lbr: false, amd_extended: 0 })
    }

    fn without(facts: Facts) -> Facts {
        Facts { offer: offer(Some(CPU_CAPABILITIES)), ..facts }
    }

    fn amd(model: &str, amd_extended: u32) -> Facts {
        Facts {
            vendor: Some("AuthenticAMD".to_owned()),
            model: Some(model.to_owned()),
            depth: Some(16),
            offer: Some(Offer { amd_extended, ..Offer::default() }),
            ..able()
        }
    }

    /// `doctor --json` printed this on the machine where this code was written.
    fn here() -> Facts {
        let text = r#"{"arch": "x86_64", "vendor": "GenuineIntel", "model": "6/207/2",
            "cpu": "Intel(R) Xeon(R) Processor",
            "is_guest": true, "has_arch_lbr": false, "kernel": "6.18.44",
            "depth": null, "kvm_failure": "it ended", "offer": {"perf_capabilities": 0,
            "pmu_version": 0, "arch_lbr": false, "amd_extended": 0}, "enable_pmu": false,
            "enable_mediated_pmu": null, "perf_event_paranoid": 2}"#;
        serde_json::from_str(text).unwrap()
    }

    /// The hosts of `docs/hardware.md`, and those that fail for other reasons.
    #[test]
    fn decides_every_kind_of_host_by_its_facts() {
        use NoHardware::*;
        let table: Vec<(&str, Facts, Result<u8, NoHardware>)> = vec![
            ("Skylake to Ice Lake", able(), Ok(5)),
            (
                "Haswell and Broadwell",
                Facts { offer: offer(Some(CPU_CAPABILITIES | 4)), ..able() },
                Ok(4),
            ),
            ("an unknown format", Facts { offer: offer(Some(0xffc7)), ..able() }, Ok(7)),
            (
                "the mediated PMU is off",
                Facts { enable_mediated_pmu: Some(false), ..able() },
                Ok(5),
            ),
            (
                "perf is closed to users on the host",
                Facts { perf_event_paranoid: Some(4), ..able() },
                Ok(5),
            ),
            ("a guest that has an LBR and passes it on", Facts { is_guest: true, ..able() }, Ok(5)),
            // Arch LBR shows in the CPU's flag, or in the format if a hypervisor hides the flag.
            ("Sapphire Rapids", without(Facts { has_arch_lbr: true, ..able() }), Err(ArchLbr)),
            (
                "Alder Lake, offered",
                Facts { offer: offer(Some(CPU_CAPABILITIES | 0x3f)), ..able() },
                Err(ArchLbr),
            ),
            (
                "Arch LBR without KVM",
                Facts { has_arch_lbr: true, kvm_failure: Some("x".into()), ..able() },
                Err(ArchLbr),
            ),
            (
                "the mediated PMU is on",
                without(Facts { enable_mediated_pmu: Some(true), ..able() }),
                Err(Mediated),
            ),
            ("kvm.enable_pmu=N", without(Facts { enable_pmu: Some(false), ..able() }), Err(PmuOff)),
            (
                "before Haswell: no call-stack mode",
                without(Facts { depth: Some(16), ..able() }),
                Err(NotOffered),
            ),
            ("an Atom", without(Facts { depth: Some(8), ..able() }), Err(NotOffered)),
            ("a KVM without the MSR", Facts { offer: offer(None), ..able() }, Err(NotOffered)),
            ("a KVM that gives no answer", Facts { offer: None, ..able() }, Err(NotOffered)),
            ("a CPU without an LBR", without(Facts { depth: None, ..able() }), Err(NoLbr)),
            ("nested", without(Facts { is_guest: true, depth: None, ..able() }), Err(Nested)),
            (
                "a /dev/kvm that runs no guest",
                Facts { kvm_failure: Some("it hangs".into()), ..able() },
                Err(Kvm("it hangs".into())),
            ),
            ("Zen 4, masked to PERFMON_V2", amd("25/17/1", 1), Err(Amd)),
            ("Zen 5, should KVM not mask it", amd("26/2/1", 3), Err(Amd)),
            ("Zen 2", amd("23/49/0", 0), Err(Amd)),
            (
                "AMD without KVM",
                Facts { kvm_failure: Some("x".into()), ..amd("25/17/1", 0) },
                Err(Amd),
            ),
            (
                "the machine that this was written on: Sapphire Rapids, nested, its flags hidden",
                here(),
                Err(Kvm("it ended".into())),
            ),
            (
                "the same, should its KVM run guests",
                Facts { kvm_failure: None, ..here() },
                Err(PmuOff),
            ),
            (
                "the same with a PMU",
                Facts { kvm_failure: None, enable_pmu: Some(true), ..here() },
                Err(Nested),
            ),
            (
                "another vendor",
                Facts { vendor: Some("CentaurHauls".into()), ..able() },
                Err(Vendor("CentaurHauls".into())),
            ),
            ("no vendor", Facts { vendor: None, ..able() }, Err(Vendor("unknown".into()))),
        ];
        for (what, facts, expected) in table {
            assert_eq!(decide(&facts, Arch::X86_64).map(|format| format.0), expected, "{what}");
            // No host's CPU records the branches of another architecture's guests.
            assert_eq!(decide(&facts, Arch::Arm64), Err(Emulated(Arch::Arm64)), "{what}");
        }
        let arm64 = Facts { arch: Some(Arch::Arm64), vendor: None, offer: None, ..able() };
        assert_eq!(decide(&arm64, Arch::Arm64), Err(Brbe));
        assert_eq!(decide(&arm64, Arch::X86_64), Err(Emulated(Arch::X86_64)));
        assert_eq!(
            decide(&Facts { arch: None, ..able() }, Arch::X86_64),
            Err(Emulated(Arch::X86_64))
        );
    }

    /// Messages append a reason to another sentence.
    #[test]
    fn gives_each_reason_in_one_sentence() {
        use NoHardware::*;
        for reason in [
            Emulated(Arch::Arm64),
            Brbe,
            Amd,
            Vendor("X".to_owned()),
            ArchLbr,
            Kvm("why".to_owned()),
            PmuOff,
            Mediated,
            Nested,
            NoLbr,
            NotOffered,
        ] {
            let text = reason.to_string();
            assert!(!text.contains('\n') && !text.contains(". ") && !text.ends_with('.'), "{text}");
        }
    }

    /// The text is from the machine where this code was written.
    #[test]
    fn reads_the_first_cpu() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n\
            model name\t: Intel(R) Xeon(R) Processor\nstepping\t: 2\n\
            flags\t\t: fpu x2apic hypervisor lahf_lm arch_capabilities\n\
            power management:\n\nprocessor\t: 1\nvendor_id\t: Another\nflags\t\t: arch_lbr\n";
        let fields = Fields::of(text);
        assert_eq!(fields.get("vendor_id").as_deref(), Some("GenuineIntel"));
        assert_eq!(fields.get("model name").as_deref(), Some("Intel(R) Xeon(R) Processor"));
        assert_eq!(fields.model().as_deref(), Some("6/207/2"));
        assert_eq!((fields.has_flag("hypervisor"), fields.has_flag("arch_lbr")), (true, false));
        // arm64 has no such lines.
        let arm64 = Fields::of("processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n");
        assert_eq!(
            (arm64.get("vendor_id"), arm64.model(), arm64.has_flag("fp")),
            (None, None, false)
        );
    }

    /// The facts survive JSON: users send them to others.
    #[test]
    fn describes_and_decides_this_machine() {
        let facts = Facts::gather(Some("not asked".to_owned()));
        assert_eq!(facts.arch, Arch::host());
        assert!(!facts.kernel.is_empty() && !facts.kernel.contains('\n'), "{facts:?}");
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts);
        assert!(decide(&facts, Arch::host().unwrap()).is_err());
    }
}
