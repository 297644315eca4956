// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run without guests: the kernel is the one that runs on this machine.

use crate::{
    error::{Error, Result},
    kernels::Ready,
    lab::Lab,
    options::Options,
    planning::{field, host_facts},
    rerun::Earlier,
    run_dir::sha256,
};
use nix::unistd::{SysconfVar, sysconf};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use tramplab_host::QemuProgram;
use tramplab_model::run::{Accel, Arch, Backend, Machine};
use tramplab_protocol::message::Explain;
use tramplab_suite::{Clocks, Emulator, Guest};
use tramplab_vm::{
    accel,
    branches::{self, Source},
};

/// Rejects options that have no meaning without a guest.
pub fn check(options: &Options) -> Result<()> {
    let exact = [Explain::Exact, Explain::Estimated];
    let of_guests =
        |earlier: &Earlier| earlier.run.machines.iter().any(|one| one.vm != Backend::None);
    let given = [
        (!options.kernels.is_empty(), "--kernel"),
        (options.series.series.is_some(), "--series"),
        (!options.series.axes.is_empty(), "--config and --config-axis"),
        (options.arches.iter().any(|&arch| Arch::host() != Some(arch)), "--arch"),
        (!options.models.is_empty(), "--model"),
        (options.accel != accel::Request::Auto, "--accel"),
        (options.branches != branches::Request::Auto, "--branches"),
        (options.clocks.is_some_and(Clocks::exact), "--clock"),
        (exact.iter().any(|how| options.explain.contains(how)), "--explain exact and estimated"),
        (!options.experiments.is_empty(), "--experiment"),
        (!options.programs.is_empty(), "--program"),
        (options.trigger.is_some(), "--trigger"),
        (options.cold, "--cold"),
        (options.rerun.as_ref().is_some_and(of_guests), "--rerun of a run of guests"),
        (options.selection.jobs.is_some_and(|jobs| jobs.get() > 1), "--jobs"),
    ];
    let needless = given.iter().find_map(|&(is_given, name)| is_given.then_some(name));
    needless.map_or(Ok(()), |name| {
        Err(Error::Usage(format!(
            "--vm none measures the kernel that runs on this machine, without a guest: remove \
             {name}, or use --vm qemu"
        )))
    })
}

/// The kernel in place of guests.
pub fn guests(kernels: &[Ready]) -> Vec<Guest<'_>> {
    fn here(kernel: &Ready) -> Option<Guest<'_>> {
        Some(Guest {
            image: kernel.image.as_ref()?,
            initrd: PathBuf::new(),
            snapshots: None,
            roots: BTreeMap::new(),
            tree_tests: None,
            accel: Accel::Native,
            accel_named: true,
            branches: Source::ThisMachine,
            undeliverable: None,
            backend: Backend::None,
            budgets_of: kernel.budgets_of.as_deref(),
            configuration: None,
        })
    }
    kernels.iter().filter_map(here).collect()
}

/// The agent in place of an emulator.
pub fn emulators(lab: &Lab) -> BTreeMap<Arch, Emulator> {
    let here = |(&arch, agent): (&Arch, &PathBuf)| {
        let launcher = lab.programs.launcher(agent);
        (arch, Emulator { qemu: QemuProgram::default(), plugin: None, lbr: None, launcher })
    };
    lab.built.agents.iter().map(here).collect()
}

pub fn machines(lab: &Lab) -> Result<Vec<Machine>> {
    lab.built.agents.iter().map(|(&arch, agent)| machine(arch, agent)).collect()
}

fn machine(arch: Arch, agent: &Path) -> Result<Machine> {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    let memory = field("/proc/meminfo", "MemTotal");
    let kib = memory.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    Ok(Machine {
        arch,
        vm: Backend::None,
        backend_version: None,
        qemu: None,
        cpu: host_facts().cpu,
        // All of them, wherever this process may run.
        cpus: online.and_then(|cpus| cpus.try_into().ok()).unwrap_or(1),
        memory_mib: kib.map_or(0, |kib| (kib >> 10).try_into().unwrap_or(u32::MAX)),
        append: Vec::new(),
        agent_sha256: sha256(agent)?,
        plugin_sha256: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_host::runs::RunDir;
    use tramplab_testdata::stored;

    /// Only what a run of this machine left is measured on this machine.
    #[test]
    fn rejects_the_rest_of_a_run_of_guests() {
        let of = |vm| {
            let mut run = stored();
            run.machines.iter_mut().for_each(|machine| machine.vm = vm);
            let rerun = Some(Earlier { run, folder: RunDir::new("/nowhere") });
            check(&Options { backend: Backend::None, rerun, ..Options::default() })
        };
        of(Backend::None).unwrap();
        let Err(Error::Usage(text)) = of(Backend::Qemu) else { panic!("it is rejected") };
        assert!(text.contains("remove --rerun"), "{text}");
    }
}
