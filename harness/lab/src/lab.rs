// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that run cells, found and built once for a run, or for all runs of a bisection.

use crate::{
    artifacts::{self, Artifacts},
    backend::{Backends, Programs},
    command::CommandLine,
    error::{Context, Fault, Result},
    event::{Event, Tell},
    nextest::cells::{Cells, JobEvent, Selection},
    planned::Planned,
    recorder::run_cells,
    run_dir::discard,
    scratch::Scratch,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use tramplab_host::{Cache, Purpose, Qemu, lbr, runs::RunDir};
use tramplab_kernel::Image;
use tramplab_model::run::{Accel, Arch, Run, SuiteRef, Test};
use tramplab_suite::{PlannedCell, Suite, plan::Job};
use tramplab_vm::{
    Vm,
    accel::{self, NoAnswer},
    branches::{self, Source},
};

/// A suite, and what a run says of where it is from.
#[derive(Clone)]
pub struct AskedSuite {
    pub suite: Suite,
    pub reference: SuiteRef,
}

/// The programs that run cells, for any number of runs.
pub struct Lab {
    pub cache: Cache,
    /// Empty without guests.
    pub(crate) qemus: BTreeMap<Arch, Qemu>,
    pub(crate) built: Artifacts,
    pub(crate) cells: Cells,
    pub(crate) accel: accel::Request,
    pub(crate) branches: branches::Request,
    /// None without guests.
    pub(crate) programs: Option<Programs>,
    /// As in [`Backends`].
    pub(crate) this_machine: Option<u32>,
    pub(crate) guests: Guests,
    /// The command that a run keeps.
    pub(crate) command: CommandLine,
}

/// How the guests of a lab run.
pub struct Wanting {
    pub purpose: Purpose,
    pub backends: Backends,
    pub accel: accel::Request,
    pub branches: branches::Request,
    /// False if plugin and agent must have been built before.
    pub builds: bool,
    pub guests: Guests,
    pub command: CommandLine,
}

/// Where a cell's guest comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guests {
    /// From a snapshot, where there is one.
    Restored,
    /// Each boots.
    Cold,
}

/// Kernels that do not build.
pub struct NotBuilt {
    /// The folder of make's output.
    pub logs: PathBuf,
    /// As the run's report would tell them.
    pub reasons: Vec<String>,
}

impl Lab {
    pub fn set_up(
        cache: Cache,
        arches: &[Arch],
        Wanting { purpose, backends, accel, branches, builds, guests, command }: Wanting,
        tell: Tell,
    ) -> Result<Lab> {
        let accel = match branches {
            branches::Request::Hardware => {
                let facts = lbr::Facts::probe();
                let able = arches.iter().try_for_each(|&arch| lbr::decide(&facts, arch).map(drop));
                able.context(
                    "guests cannot have this machine's own branch records, as --branches hardware \
                     asks",
                )?;
                accel::Request::Only(Accel::Kvm)
            }
            branches::Request::Auto | branches::Request::Virtual | branches::Request::Emulated => {
                accel
            }
        };
        let programs = match backends.guests {
            Some(backend) => Programs::find(backend, &cache)?,
            None => None,
        };
        let emulated = if programs.is_some() { arches } else { &[] };
        let provide = |&arch: &Arch| {
            let qemu = Qemu::provision(&cache, arch, purpose.on(arch), &mut |step| {
                tell(Event::Step(step))
            });
            Ok((arch, qemu?))
        };
        let qemus = emulated.iter().map(provide).collect::<Result<BTreeMap<Arch, Qemu>>>()?;
        let built = match (builds, programs.is_some()) {
            (true, true) => artifacts::provide(&cache, arches, tell)?,
            (true, false) => artifacts::agents(&cache, arches, tell)?,
            (false, for_guests) => artifacts::built_before(arches, for_guests)?,
        };
        Ok(Lab {
            qemus,
            built,
            cells: Cells::new()?,
            accel,
            branches,
            cache,
            programs,
            this_machine: backends.this_machine,
            guests,
            command,
        })
    }

    /// Rejects a selection that cannot be read.
    pub fn check(&self, selection: &Selection) -> Result<()> {
        self.cells.check(selection)
    }

    /// Ends a run before its cells. Returns the folder with make's output if a kernel does not
    /// build.
    pub fn stop_before_cells(&self, planned: &Planned) -> Option<NotBuilt> {
        let Planned { run, run_dir, .. } = planned;
        if run.kernels.iter().any(|kernel| kernel.image_sha256.is_none()) {
            let failed = run.cells.iter().filter(|cell| cell.id.test == Test::Build);
            let reasons = failed.filter_map(|cell| Some(cell.outcome.reason()?.to_string()));
            return Some(NotBuilt { logs: run_dir.kernels(), reasons: reasons.collect() });
        }
        discard(run_dir);
        None
    }

    /// The cells that a run would measure.
    pub fn selected<'a>(
        &self,
        planned: &'a Planned,
        selection: &Selection,
    ) -> Result<Vec<&'a PlannedCell>> {
        let mut names = Vec::new();
        self.cells.run(&planned.plan, selection, true, |event| {
            if let JobEvent::Selected { jobs, .. } = event {
                names = jobs;
            }
        })?;
        let is_selected = |job: &&Job| names.contains(&job.name);
        Ok(planned.plan.jobs.iter().filter(is_selected).flat_map(|job| &job.cells).collect())
    }

    /// Runs the selected cells and judges them.
    pub fn run(
        &self,
        planned: Planned,
        selection: &Selection,
        tell: Tell,
    ) -> Result<(Run, RunDir)> {
        let run_dir = planned.run_dir.clone();
        let run = run_cells(&self.cells, selection, planned, tell).inspect_err(|error| {
            if error.fault() == Fault::Users {
                discard(&run_dir);
            }
        })?;
        Ok((run, run_dir))
    }

    pub(crate) fn is_accel_named(&self) -> bool {
        self.accel != accel::Request::Auto
    }

    /// The CPU's own branch records where they can be had, else virtual ones, visibly.
    pub(crate) fn choose_branches(
        &self,
        arch: Arch,
        accel: &accel::AccelChoice,
        tell: Tell,
    ) -> Result<Source> {
        let named = self.is_accel_named();
        let decide = || lbr::decide(&lbr::Facts::gather(accel.fallback.clone()), arch);
        let choice = branches::choose(self.branches, accel.accel, named, decide)?;
        if let Some(reason) = choice.fallback.filter(|_| Arch::host() == Some(arch)) {
            tell(Event::Line(&format!("branch records are virtual: {reason}")));
        }
        Ok(choice.source)
    }

    /// KVM if a guest answered under it, else TCG, visibly.
    pub(crate) fn choose_accel(
        &self,
        image: &Image,
        initrd: &Path,
        tell: Tell,
    ) -> Result<accel::AccelChoice> {
        let qemu = &self.qemus[&image.arch].program;
        let probe = || {
            accel::tried()?;
            tell(Event::Step("trying KVM with a guest"));
            let dir = Scratch::new().map_err(|error| NoAnswer::Undecided(error.told()))?;
            Ok(Vm::boot(&accel::probe(qemu, image.arch, &image.image, initrd, dir.path()))
                .map(drop)?)
        };
        let memory = accel::memory(&self.cache);
        let choice = accel::choose(
            self.accel,
            Arch::host() != Some(image.arch),
            &memory,
            &accel::Circumstances::of(qemu),
            probe,
        )?;
        if let Some(reason) = &choice.fallback {
            tell(Event::Line(&accel::fallback_line(reason)));
        }
        Ok(choice)
    }
}
