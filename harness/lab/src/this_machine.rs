// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run without guests: the kernel is the one that runs on this machine.

use crate::{
    error::{Error, Result},
    kernels::Ready,
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
    Launcher, accel,
    branches::{self, Source},
};

/// Rejects options that choose another kernel, and without guests those that are of guests.
pub fn check(options: &Options) -> Result<()> {
    let exact = [Explain::Exact, Explain::Estimated];
    let has_cells_of_guests =
        |earlier: &Earlier| earlier.run.machines.iter().any(|one| one.vm != Backend::None);
    let of_kernels = [
        (!options.kernels.is_empty(), "--kernel"),
        (options.series.series.is_some(), "--series"),
        (!options.series.axes.is_empty(), "--config and --config-axis"),
        (options.arches.iter().any(|&arch| Arch::host() != Some(arch)), "--arch"),
        (options.confined, "--confined"),
        (options.series.unconfined, "--unconfined"),
    ];
    let of_guests = [
        (!options.models.is_empty(), "--model"),
        (options.accel != accel::Request::Auto, "--accel"),
        (options.branches != branches::Request::Auto, "--branches"),
        (options.clocks.is_some_and(Clocks::exact), "--clock"),
        (exact.iter().any(|how| options.explain.contains(how)), "--explain exact and estimated"),
        (!options.experiments.is_empty(), "--experiment"),
        (!options.programs.is_empty(), "--program"),
        (options.trigger.is_some(), "--trigger"),
        (options.cold, "--cold"),
        (options.no_cache, "--no-cache"),
    ];
    let given = |options: &[(bool, &'static str)]| {
        options.iter().find_map(|&(is_given, name)| is_given.then_some(name))
    };
    if let Some(name) = given(&of_kernels) {
        return Err(Error::Usage(format!(
            "--vm none measures the kernel that runs on this machine, and no other: remove \
             {name}, or use --vm qemu"
        )));
    }
    if options.selection.jobs.is_some_and(|jobs| jobs.get() > 1) {
        return Err(Error::usage(
            "--vm none measures one cell after the other, whose programs would disturb each other: \
             remove --jobs",
        ));
    }
    let has_guests = options.backends.guests.is_some();
    if !has_guests && options.rerun.as_ref().is_some_and(has_cells_of_guests) {
        return Err(Error::usage(
            "--rerun: the run has cells of guests, and --vm none measures without a guest: use \
             the --vm of that run",
        ));
    }
    match given(&of_guests).filter(|_| !has_guests) {
        Some(name) => Err(Error::Usage(format!(
            "--vm none measures without a guest: remove {name}, or use --vm none,qemu, which \
             measures in a guest, too"
        ))),
        None => Ok(()),
    }
}

/// The kernel in place of a guest.
pub fn guest(kernel: &Ready, most: u32) -> Option<Guest<'_>> {
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
        most_attached: most,
        budgets_of: kernel.budgets_of.as_deref(),
        configuration: None,
    })
}

/// The agent in place of an emulator.
pub fn emulator(agent: &Path, most: u32) -> Emulator {
    let launcher = Launcher::ThisMachine { agent: agent.to_owned(), most };
    Emulator { qemu: QemuProgram::default(), plugin: None, lbr: None, launcher }
}

pub fn machine(arch: Arch, agent: &Path) -> Result<Machine> {
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
    use crate::backend::Backends;
    use tramplab_host::runs::RunDir;
    use tramplab_testdata::stored;

    const HERE: Backends = Backends { guests: None, this_machine: Some(100) };

    /// Only what a run of this machine left is measured on this machine.
    #[test]
    fn rejects_the_rest_of_a_run_of_guests() {
        let of = |vm| {
            let mut run = stored();
            run.machines.iter_mut().for_each(|machine| machine.vm = vm);
            let rerun = Some(Earlier { run, folder: RunDir::new("/nowhere") });
            check(&Options { backends: HERE, rerun, ..Options::default() })
        };
        of(Backend::None).unwrap();
        let Err(Error::Usage(text)) = of(Backend::Qemu) else { panic!("it is rejected") };
        assert!(text.starts_with("--rerun: "), "{text}");
    }

    /// Guests beside this machine have their own options; the kernel is the running one.
    #[test]
    fn rejects_options_of_guests_only_without_guests() {
        let with_guests = Backends { this_machine: Some(100), ..Backends::default() };
        let of = |options: Options| {
            [HERE, with_guests]
                .map(|backends| check(&Options { backends, ..options.clone() }).is_ok())
        };
        let kernels = vec!["6.12".to_owned()];
        assert_eq!(of(Options::default()), [true, true]);
        assert_eq!(of(Options { kernels, ..Options::default() }), [false, false]);
        let accel = accel::Request::Only(Accel::Tcg);
        assert_eq!(of(Options { accel, ..Options::default() }), [false, true]);
        let explain = [Explain::Estimated].into();
        assert_eq!(of(Options { explain, ..Options::default() }), [false, true]);
    }
}
