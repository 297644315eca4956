// SPDX-License-Identifier: MIT OR Apache-2.0
//! How guests booted: as which CPU, and with which mitigations.

use crate::group::Group;
use tramplab_model::{
    cpu,
    run::{Accel, Arch, Kernel, Run},
};
use tramplab_protocol::message::Facts;

/// The CPU whose records a kernel's reports show: the one as which its guests booted, else the only
/// one of the run. Both worlds are then shown alike.
pub fn shown<'a>(run: &'a Run, arch: Arch, kernel: &str) -> Option<&'a cpu::Named> {
    let of_arch = || run.kernels.iter().filter(move |kernel| kernel.arch == arch);
    let own = of_arch().find(|known| known.name == kernel).and_then(Kernel::cpu);
    let mut all = of_arch().filter_map(Kernel::cpu);
    let first = all.next();
    own.or(first.filter(|first| all.all(|other| other == *first)))
}

/// How a kernel's guests booted, and why so.
pub fn how(run: &Run, group: &Group, guest: &Facts) -> String {
    let words: Vec<&str> =
        guest.cmdline.split_whitespace().filter(|word| is_of_mitigations(word)).collect();
    let words =
        if words.is_empty() { "mitigations by default".to_owned() } else { words.join(" ") };
    let configuration = group.facts(run).and_then(|kernel| kernel.configuration.as_ref());
    let model = configuration.and_then(|point| point.model.as_ref());
    match (model, group.accel) {
        (Some(cpu::Named { name, cpu }), _) => {
            format!("as {name} ({}), with QEMU's {}, {words}", cpu.about, cpu.qemu.cpu)
        }
        (None, Accel::Kvm) => format!("with this host's CPU, {words}"),
        (None, Accel::Tcg) if words == "mitigations=off" => {
            format!("with QEMU's usual CPU, {words}, unlike any machine; --model boots as one")
        }
        (None, Accel::Tcg) => format!("with QEMU's usual CPU, {words}"),
    }
}

/// The mitigations that add branches.
pub fn mitigations(guest: &Facts) -> String {
    let added: Vec<&str> =
        guest.mitigations.iter().map(String::as_str).filter(|state| adds_branches(state)).collect();
    match added.is_empty() {
        false => added.join("; "),
        true if guest.cmdline.split_whitespace().any(|word| word == "mitigations=off") => {
            "off by the command line".to_owned()
        }
        true => "none that adds branches on this CPU".to_owned(),
    }
}

/// Options of the kernel about mitigations (Documentation/admin-guide/hw-vuln/).
fn is_of_mitigations(word: &str) -> bool {
    const OPTIONS: [&str; 8] = [
        "mitigations",
        "spectre_v2",
        "spectre_bhi",
        "spec_rstack_overflow",
        "retbleed",
        "indirect_target_selection",
        "pti",
        "nopti",
    ];
    OPTIONS.contains(&word.split('=').next().unwrap_or_default())
}

/// A vulnerability that does not affect the CPU adds no branches. Without its microcode the kernel
/// calls a CPU vulnerable that returns by SRSO's thunks (K arch/x86/kernel/cpu/bugs.c).
fn adds_branches(state: &str) -> bool {
    state.contains("Mitigation") || state.contains("Safe RET")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States of Debian's 6.12 on QEMU's EPYC-Milan, and with `mitigations=off`.
    #[test]
    fn shows_the_mitigations_that_add_branches() {
        for (state, expected) in [
            ("spectre_v2: Mitigation: Retpolines; STIBP: disabled", true),
            ("spec_rstack_overflow: Vulnerable: Safe RET, no microcode", true),
            ("retbleed: Vulnerable", false),
            ("meltdown: Not affected", false),
        ] {
            assert_eq!(adds_branches(state), expected, "{state}");
        }
    }
}
