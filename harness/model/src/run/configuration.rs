// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel in several configurations.

use super::{Accel, Arch, CellId, Kernel, Machine, Run};
use crate::{cpu, name::is_name_char};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt};

/// How a kernel was configured and booted: as a CPU, and with one value of each axis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The kernel that was named. Other points of it have the same.
    pub of: String,
    /// In the order of the axes.
    pub settings: Vec<Setting>,
    /// Words that the settings add to the kernel's command line, after the machine's.
    pub append: Vec<String>,
    /// QEMU's `-cpu` under TCG, instead of the machine's.
    pub cpu: Option<String>,
    /// The number of the guest's CPUs, instead of the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// The CPU as which its guests boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<cpu::Named>,
    /// Mitigations that the guest must have: `NAME: STATE`, a state of
    /// `/sys/devices/system/cpu/vulnerabilities` or a part of one. Without them there is no such
    /// point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shows: Vec<String>,
}

impl Configuration {
    /// The kernel's name: `6.12-source+zen4+preempt-full`.
    pub fn name(&self) -> String {
        let fit = |c: char| if is_name_char(c) { c } else { '_' };
        let one = |setting: &Setting| format!("+{}-{}", setting.axis, setting.value);
        let model = self.model.iter().map(|model| format!("+{}", model.name));
        let added = model.chain(self.settings.iter().map(one)).collect::<String>();
        format!("{}{}", self.of, added.chars().map(fit).collect::<String>())
    }
}

/// Words of a command line, with those that a setting adds or replaces. The kernel does not always
/// take the last of two: on 7.2 `mitigations=auto` does not undo an earlier `mitigations=off`.
pub fn with_words(words: &[String], more: &[String]) -> Vec<String> {
    let replaced: BTreeSet<&str> =
        more.iter().flat_map(|words| words.split(' ')).map(option).collect();
    let kept = words.iter().filter(|word| !replaced.contains(option(word)));
    kept.chain(more).cloned().collect()
}

/// The option that a word of a command line sets.
pub fn option(word: &str) -> &str {
    word.split('=').next().unwrap_or(word)
}

impl Kernel {
    /// The CPU as which its guests boot, if they boot as one.
    pub fn cpu(&self) -> Option<&cpu::Named> {
        self.configuration.as_ref()?.model.as_ref()
    }

    /// The machine of this kernel's guests: the run's, as its configuration changes it.
    pub fn guest_on(&self, machine: &Machine) -> Machine {
        let mut guest = machine.clone();
        if let Some(Configuration { append, cpu, cpus, .. }) = &self.configuration {
            guest.append = with_words(&guest.append, append);
            guest.cpu = cpu.clone().unwrap_or(guest.cpu);
            guest.cpus = cpus.unwrap_or(guest.cpus);
        }
        guest
    }
}

impl Run {
    /// The CPU whose branch records reports show of a kernel: the one as which its guests booted,
    /// else the only one of the run. Both worlds are then shown alike.
    pub fn cpu_of<'a>(&'a self, kernel: &'a Kernel) -> Option<&'a cpu::Named> {
        let of_arch = self.kernels.iter().filter(|other| other.arch == kernel.arch);
        let mut all = of_arch.filter_map(Kernel::cpu);
        let first = all.next();
        kernel.cpu().or_else(|| first.filter(|first| all.all(|other| other == *first)))
    }

    /// True if the cell's kernel is not one of several configurations or CPUs.
    pub fn boots_as_usual(&self, id: &CellId) -> bool {
        let kernel = self.kernel(id.arch, &id.kernel);
        kernel.is_none_or(|kernel| kernel.configuration.is_none())
    }

    /// The number of CPUs of a kernel's guests. None in runs that do not tell.
    pub fn cpus_of(&self, arch: Arch, kernel: &str, accel: Accel) -> Option<u32> {
        let configuration = self.kernel(arch, kernel)?.configuration.as_ref();
        let machine = || self.machine(arch, accel).map(|machine| machine.cpus);
        configuration.and_then(|configuration| configuration.cpus).or_else(machine)
    }
}

/// One value of one axis.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The name that `--config-axis` gave it.
    pub axis: String,
    /// Its value for this kernel.
    pub value: String,
}

impl Setting {
    /// The axis of CPUs as which guests boot.
    pub const MODEL: &str = "model";

    pub fn is_model(&self) -> bool {
        self.axis == Setting::MODEL
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.axis, self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_a_point_after_its_settings() {
        let setting =
            |axis: &str, value: &str| Setting { axis: axis.to_owned(), value: value.to_owned() };
        let configuration = Configuration {
            of: "6.12-source".to_owned(),
            settings: vec![setting("preempt", "full"), setting("CONFIG_LSM", "\"a b\"")],
            ..Configuration::default()
        };
        assert_eq!(configuration.name(), "6.12-source+preempt-full+CONFIG_LSM-_a_b_");
    }
}
