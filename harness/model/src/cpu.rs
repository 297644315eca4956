// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled CPUs: `configs/cpus/NAME.yaml`, and how a run keeps the one that its guests booted as.

use crate::arch::Arch;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// A CPU, and how Linux boots on it. Each part names its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "tramplab CPU")]
pub struct Cpu {
    /// Its products, in a line.
    pub about: String,
    pub arch: Arch,
    pub qemu: Emulated,
    pub mitigations: Mitigations,
    pub branches: Branches,
    /// None for a CPU whose return stack is not known: then one of 16 entries is modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns: Option<Returns>,
}

/// The CPU that QEMU emulates for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Emulated {
    /// QEMU's `-cpu` under TCG, perhaps with features: `EPYC-Genoa`, `max,pauth-impdef=on`.
    pub cpu: String,
    pub source: String,
}

/// The mitigations with which its machines boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mitigations {
    /// Words of the guest's command line, with which the kernel patches in what it patches in on
    /// such a machine.
    pub append: Vec<String>,
    pub source: String,
}

/// Its branch records: `family` and `depth`, or `none`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Branches {
    /// The family of records: filters, and what enters the ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = FAMILIES))]
    pub family: Option<String>,
    /// Number of records that it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Why no snapshot has records of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<String>,
    pub source: String,
}

impl Branches {
    /// The records that the TCG plugin plays: `amd-lbrv2:16`. None for a CPU without records, and
    /// for arm64, whose kernels have no driver that takes snapshots.
    pub fn played(&self) -> Option<String> {
        let family = self.family.as_deref().filter(|family| *family != BRBE)?;
        Some(format!("{family}:{}", self.depth?))
    }
}

/// Its predictor of returns, a stack of the addresses behind calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Returns {
    /// Number of addresses that it keeps. One more overwrites the oldest.
    pub depth: NonZeroU32,
    pub underflow: Underflow,
    pub source: String,
}

/// The prediction of a return whose call is not on the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Underflow {
    /// It is wrong.
    #[default]
    Wrong,
    /// The return is predicted as an indirect branch: to its last target.
    LastTarget,
}

/// The families of branch records that are modelled.
pub const FAMILIES: [&str; 4] = ["intel-lbr", "arch-lbr", "amd-lbrv2", BRBE];

const BRBE: &str = "brbe";

/// A CPU by its name: the name of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The name of its file.
    pub name: String,
    pub cpu: Cpu,
}

impl Named {
    /// Why its machines have no branch records that a snapshot takes.
    pub fn recordless(&self) -> Option<String> {
        let why = self.cpu.branches.none.as_ref()?;
        Some(format!("{} has no branch records that a snapshot takes: {why}", self.name))
    }
}

/// A guest's state of a vulnerability, of the lines of `/sys/devices/system/cpu/vulnerabilities`:
/// `NAME: STATE`.
pub fn state<'a>(states: &'a [String], name: &str) -> Option<&'a str> {
    let mut lines = states.iter().filter_map(|line| line.split_once(": "));
    lines.find(|(known, _)| *known == name).map(|(_, state)| state)
}

/// True if a state has these words. Kernels differ in `Safe RET` and `safe RET`.
pub fn says(state: &str, words: &str) -> bool {
    state.to_lowercase().contains(&words.to_lowercase())
}

/// True if the kernel returns by SRSO's thunks. Without its microcode the state is still
/// `Vulnerable: Safe RET, no microcode` (K arch/x86/kernel/cpu/bugs.c).
pub fn returns_safely(state: &str) -> bool {
    // `Vulnerable: Microcode, no safe RET`
    says(state, "safe RET") && !says(state, "no safe RET")
}

/// The first mitigation that a guest lacks of those that it must show, in words.
pub fn lacking(shows: &[String], states: &[String]) -> Option<String> {
    shows.iter().find_map(|wanted| {
        let Some((name, wanted)) = wanted.split_once(": ") else {
            return Some(format!("`{wanted}` is not of the form NAME: STATE"));
        };
        match state(states, name) {
            None => Some(format!("this kernel knows no {name}, which was to be `{wanted}`")),
            Some(state) if says(state, wanted) => None,
            Some(state) => Some(format!("{name} is `{state}`, not `{wanted}`")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_mitigation_that_a_guest_lacks() {
        // Of Debian's 7.2 on QEMU's EPYC-Genoa.
        let states = [
            "spec_rstack_overflow: Vulnerable: Safe RET, no microcode",
            "spectre_v2: Mitigation: Retpolines; STIBP: disabled; BHI: Not affected",
            "retbleed: Not affected",
        ]
        .map(str::to_owned);
        let lacks = |wanted: &str| lacking(&[wanted.to_owned()], &states);
        assert_eq!(lacks("spec_rstack_overflow: Safe RET"), None);
        assert_eq!(lacks("spectre_v2: Retpoline"), None);
        assert_eq!(lacks("spec_rstack_overflow: safe ret"), None);
        for (wanted, why) in [
            ("retbleed: Stuffing", "retbleed is `Not affected`, not `Stuffing`"),
            (
                "spec_rstack: Safe RET",
                "this kernel knows no spec_rstack, which was to be `Safe RET`",
            ),
            ("spectre_v2", "`spectre_v2` is not of the form NAME: STATE"),
        ] {
            assert_eq!(lacks(wanted).as_deref(), Some(why));
        }
        assert_eq!(lacking(&[], &states), None);
    }
}
