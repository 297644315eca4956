// SPDX-License-Identifier: MIT OR Apache-2.0
//! How guests booted: as which CPU, and with which mitigations.

use crate::group::Group;
use tramplab_model::{
    cpu,
    run::{Accel, Run, option},
};
use tramplab_protocol::{message::Facts, switches::is_of_mitigations};

/// How a kernel's guests booted, and why so.
pub fn how(run: &Run, group: &Group, guest: &Facts) -> String {
    let configuration = group.facts(run).and_then(|kernel| kernel.configuration.as_ref());
    let is_of_cpu = |word: &str| {
        let mut words = group.booted.iter().flat_map(|model| &model.cpu.mitigations.append);
        words.any(|own| option(own) == option(word))
    };
    let is_shown = |word: &&str| is_of_mitigations(option(word)) || is_of_cpu(word);
    let words: Vec<&str> = guest.cmdline.split_whitespace().filter(is_shown).collect();
    let words =
        if words.is_empty() { "mitigations by default".to_owned() } else { words.join(" ") };
    let cpu = configuration.and_then(|point| point.cpu.as_ref());
    match (group.booted, cpu, group.accel) {
        (Some(cpu::Named { name, cpu }), ..) => {
            format!("as {name} ({}), with QEMU's {}, {words}", cpu.about, cpu.qemu.cpu)
        }
        (None, _, Accel::Kvm | Accel::Native) => format!("with this host's CPU, {words}"),
        (None, Some(cpu), Accel::Tcg) => format!("with QEMU's {cpu}, {words}"),
        (None, None, Accel::Tcg) if words == "mitigations=off" => {
            format!("with QEMU's usual CPU, {words}, unlike any machine; --model boots as one")
        }
        (None, None, Accel::Tcg) => format!("with QEMU's usual CPU, {words}"),
    }
}

/// The mitigations in force.
pub fn mitigations(guest: &Facts) -> String {
    let added: Vec<&str> =
        guest.mitigations.iter().map(String::as_str).filter(|state| is_in_force(state)).collect();
    match added.is_empty() {
        false => added.join("; "),
        true if guest.cmdline.split_whitespace().any(|word| word == "mitigations=off") => {
            "off by the command line".to_owned()
        }
        true => "none for this CPU".to_owned(),
    }
}

fn is_in_force(state: &str) -> bool {
    cpu::says(state, "mitigation") || cpu::returns_safely(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States of Debian's 6.12 on QEMU's EPYC-Milan, and with `mitigations=off`.
    #[test]
    fn shows_the_mitigations_in_force() {
        for (state, expected) in [
            ("spectre_v2: Mitigation: Retpolines; STIBP: disabled", true),
            ("spec_rstack_overflow: Vulnerable: Safe RET, no microcode", true),
            ("spec_rstack_overflow: Vulnerable: safe RET, no microcode", true),
            ("spec_rstack_overflow: Vulnerable: Microcode, no safe RET", false),
            ("retbleed: Vulnerable", false),
            ("meltdown: Not affected", false),
        ] {
            assert_eq!(is_in_force(state), expected, "{state}");
        }
    }
}
