// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cells of a run by their names. Runs, fetches and builds nothing: neither tools nor guests
//! nor kernels need to be there. Images and packages on this machine are read, and a tree that is
//! there already has its options looked up.

use crate::{
    error::{Context, Result},
    event::{Event, Tell},
    kernels::{Ready, WantedKernels},
    lab::AskedSuite,
    nextest::cells::{Cells, JobEvent},
    options::Options,
    planning,
    scratch::Scratch,
    this_machine,
};
use std::{collections::BTreeMap, fs, path::PathBuf};
use tramplab_host::{Cache, Purpose, Qemu};
use tramplab_model::run::{Accel, Arch, Backend};
use tramplab_suite::{Guest, Plan, plan};
use tramplab_vm::{
    accel::{self, Circumstances, NoAnswer, Request},
    branches::{self, Source},
};

/// The cells that a run would have.
pub struct Listed {
    /// Their jobs' names, as a run would order them.
    pub jobs: Vec<String>,
    pub cells: usize,
    /// Kernels that are built for the run. A report counts each as a cell.
    pub builds: usize,
}

pub fn list(
    options: &Options,
    asked: &AskedSuite,
    wanted: &WantedKernels,
    cache: &Cache,
    tell: Tell,
) -> Result<Listed> {
    let cells = Cells::new()?;
    cells.check(&options.selection)?;
    wanted.check_options(cache)?;
    wanted.check_files(cache, tell)?;
    let (kernels, builds) = wanted.named(&options.series, &asked.suite, tell);
    let here = wanted.named_here();
    let here = here.as_ref().zip(options.backends.this_machine);
    let mut guests =
        Vec::from_iter(here.and_then(|(ready, most)| this_machine::guest(ready, most)));
    if let Some(backend) = options.backends.guests {
        let of = |arch| (arch, accel(options, cache, arch, tell));
        let accels: BTreeMap<Arch, Accel> = wanted.arches().into_iter().map(of).collect();
        let guest = |kernel| guest(options, backend, kernel, &accels);
        guests.extend(kernels.iter().filter_map(guest));
    }
    let is_series = wanted.of_series().is_some();
    let planned = planning::cells(asked, &asked.suite, &guests, is_series, tell)?;
    // nextest asks this program for the plan's tests, which reads the plan from a run's folder.
    let folder = Scratch::new()?;
    let plan = Plan {
        run_dir: fs::canonicalize(folder.path())?,
        emulators: BTreeMap::new(),
        here: None,
        jobs: plan::jobs(planned, is_series, is_series),
    };
    let mut jobs = Vec::new();
    plan.save().with_context(|| format!("failed to write {}", folder.path().display()))?;
    cells.run(&plan, &options.selection, true, |event| {
        if let JobEvent::Selected { jobs: selected, .. } = event {
            jobs = selected;
        }
    })?;
    let of_jobs = plan.jobs.iter().filter(|job| jobs.contains(&job.name));
    let cells = of_jobs.map(|job| job.cells.len()).sum();
    Ok(Listed { jobs, cells, builds })
}

/// The accelerator in the cells' names, as far as it is known without a guest.
fn accel(options: &Options, cache: &Cache, arch: Arch, tell: Tell) -> Accel {
    match (options.accel, options.branches) {
        (_, branches::Request::Hardware) => return Accel::Kvm,
        (Request::Only(accel), _) => return accel,
        (Request::Auto, _) if Arch::host() != Some(arch) => return Accel::Tcg,
        (Request::Auto, _) => {}
    }
    let memory = accel::memory(cache);
    let qemu = memory.exists().then(|| Qemu::find(cache, arch, Purpose::Measuring).ok()).flatten();
    let untried = || Err(NoAnswer::Undecided(String::new()));
    let choice = qemu.and_then(|qemu| {
        let now = Circumstances::of(&qemu.program);
        accel::choose(options.accel, false, &memory, &now, untried).ok()
    });
    match choice {
        // A run, too, takes the answer of an earlier guest.
        Some(choice) if choice.fallback.as_deref() != Some("") => choice.accel,
        _ if accel::tried().is_err() => Accel::Tcg,
        _ => {
            tell(Event::Line(
                "cells are named as under TCG: a run tries KVM, with a guest of its kernel",
            ));
            Accel::Tcg
        }
    }
}

/// A guest of which only the names of its cells matter.
fn guest<'a>(
    options: &Options,
    backend: Backend,
    kernel: &'a Ready,
    accels: &BTreeMap<Arch, Accel>,
) -> Option<Guest<'a>> {
    let image = kernel.image.as_ref()?;
    Some(Guest {
        image,
        initrd: PathBuf::new(),
        snapshots: None,
        roots: BTreeMap::new(),
        tree_tests: None,
        accel: accels[&image.arch],
        accel_named: options.accel != Request::Auto,
        branches: Source::Virtual,
        undeliverable: None,
        backend,
        most_attached: u32::MAX,
        budgets_of: kernel.budgets_of.as_deref(),
        configuration: kernel.facts.configuration.as_ref(),
    })
}
