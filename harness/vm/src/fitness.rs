// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a guest that booted may stand for all others of its kind.

use super::Spec;
use tramplab_model::run::Arch;

/// The clock sources that a kernel of the architecture chooses when all is well. `tsc-early` is the same counter as `tsc`, before its
/// speed was measured a second time.
fn best_clocks(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &["tsc", "tsc-early"],
        Arch::Arm64 => &["arch_sys_counter"],
    }
}

/// Why a guest with this clock source and so many CPUs is not what its kind should be, if it is not.
pub fn unfit(spec: &Spec, clock_source: &str, cpus: u32) -> Option<String> {
    let best = best_clocks(spec.arch);
    if !best.contains(&clock_source) {
        return Some(format!("its clock source is {clock_source}, not {}", best[0]));
    }
    (cpus != spec.cpus).then(|| format!("it runs on {cpus} CPUs, not on {}", spec.cpus))
}
