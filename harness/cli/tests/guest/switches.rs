// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runtime switches by the kernel's command line.

use super::{
    LIMIT,
    trigger::{ask, of_any_boot, request, try_hit},
    waste,
};
use crate::machine::spec;
use std::path::Path;
use tramplab_model::run::{Arch, Place, TriggerCost};
use tramplab_protocol::{
    BesideSet, Mechanism,
    message::{Facts, GuestError, TriggerRequest},
};
use tramplab_vm::Vm;

const STATS: &str = "sysctl.kernel.bpf_stats_enabled=1";
const HARDENED: &str = "sysctl.net.core.bpf_jit_harden=1";
const UNKNOWN: &str = "sysctl.kernel.nope=1";
const CGROUP: &str = "tramplab.cgroup_program=1";
/// Runs only if a cgroup has a program.
const OF_CGROUP: &str = "__cgroup_bpf_run_filter_sock_addr";

on_each_arch!(honours_switches, ignored on arm64);

fn honours_switches(arch: Arch) {
    let with_stats = [0, 1].map(|boot| {
        let dir = tempfile::tempdir().unwrap();
        let (mut vm, facts) = start(arch, dir.path(), &[STATS]);
        assert_eq!(facts.not_taken, Vec::<String>::new());
        let cost = fentry(&mut vm, dir.path(), 0);
        if boot == 0 {
            assert!(matches!(hit(&mut vm, OF_CGROUP), Err(GuestError::Unsupported(_))));
        }
        vm.power_off(LIMIT).unwrap();
        cost
    });
    let [one, other] = with_stats.each_ref().map(|cost| of_any_boot(arch, cost));
    assert_eq!(one, other);

    let dir = tempfile::tempdir().unwrap();
    let (mut vm, facts) = start(arch, dir.path(), &[HARDENED, UNKNOWN, CGROUP]);
    assert_eq!(facts.not_taken, [format!("{UNKNOWN}: the kernel has no such sysctl")]);
    // Statistics read the clock twice.
    let (on, off) = (with_stats[0].instructions(), fentry(&mut vm, dir.path(), 0).instructions());
    assert!((off + 40..off + 200).contains(&on), "{off} without statistics, {on} with them");
    // Hardening hides programs from kallsyms, and trampolines, which nothing else names.
    let fexit = waste(arch, &mut vm, dir.path(), 1, Mechanism::Fexit);
    let places = || fexit.points[0].records.iter().flat_map(|record| [&record.from, &record.to]);
    let is_program = |place: &&Place| {
        let name = place.symbol.as_deref().unwrap_or_default();
        name.starts_with("bpf_prog_") && name.ends_with("_capture_fexit")
    };
    assert!(places().any(|place| is_program(&place) && place.offset == 0), "{fexit:#?}");
    assert!(places().any(|place| place.symbol.is_none()), "{fexit:#?}");
    hit(&mut vm, OF_CGROUP).unwrap();
    vm.power_off(LIMIT).unwrap();
}

fn start(arch: Arch, dir: &Path, words: &[&str]) -> (Vm, Facts) {
    let mut spec = spec(arch, dir);
    spec.append = words.iter().map(|&word| word.to_owned()).collect();
    Vm::start(&spec).unwrap()
}

fn fentry(vm: &mut Vm, dir: &Path, number: u64) -> TriggerCost {
    try_hit(vm, dir, number, Mechanism::Fentry, BesideSet::default()).unwrap().0
}

/// Hits a function by a workload of the agent's, if one hits it.
fn hit(vm: &mut Vm, function: &str) -> Result<(), GuestError> {
    let request = request(Mechanism::Fentry, Some(function));
    ask(vm, TriggerRequest { hits: 2, warmup: 1, timed: 2, ..request }).map(drop)
}
