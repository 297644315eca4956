// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides if a booted guest may become the snapshot for all guests of its kind.

use super::Spec;
use tramplab_model::run::Arch;

/// The clock sources of a good boot. `tsc-early` is the counter of `tsc`, before the kernel
/// measures its speed a second time.
fn best_clocks(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &["tsc", "tsc-early"],
        Arch::Arm64 => &["arch_sys_counter"],
    }
}

/// Why a guest with this clock source and number of CPUs is not typical of its kind, if it is not.
pub fn unfit(spec: &Spec, clock_source: &str, cpus: u32) -> Option<String> {
    let best = best_clocks(spec.arch);
    if !best.contains(&clock_source) {
        return Some(format!("its clock source is {clock_source}, not {}", best[0]));
    }
    (cpus != spec.cpus).then(|| format!("it runs on {cpus} CPUs, not on {}", spec.cpus))
}
