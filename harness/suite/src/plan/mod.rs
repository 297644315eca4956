// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of a run, in files: every cell with all data that its process needs. A cell process
//! reads nothing else, so that a cell can be inspected and run again later.
//!
//! ```text
//! RUN/plan.json     emulators, and the jobs' names in order
//! RUN/jobs/N.json   the job at index N, from 0: its process reads no other job
//! ```

mod cells;
mod check;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod user_space_tests;

pub use cells::{Guest, Root, Rootless, cells, jobs};
pub use check::{contradiction, idle_budgets, misfit, other_kernels, unknown_tests};

use crate::{Allowance, Budget, kinds::Work};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};
use tramplab_analysis::branch::{Model, driver};
use tramplab_host::{QemuProgram, lbr::LbrFormat, regular, runs::MOST_BYTES};
use tramplab_model::{
    cpu::{Cycles, Named, Returns},
    kinds::Metric,
    run::{Accel, Arch, Backend, CellId, Clock, ErrorKind, Tolerance},
};
use tramplab_protocol::{estimate::Parts, message::Explain};
use tramplab_vm::{Launcher, Snapshots};

/// Environment variable of a cell process that holds the plan's path.
pub const PLAN_ENV: &str = "TRAMPLAB_PLAN";

/// A plan with whole jobs, or only with their names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan<J = Job> {
    pub run_dir: PathBuf,
    pub emulators: BTreeMap<Arch, Emulator>,
    /// In place of an emulator, for cells of this machine.
    #[serde(default)]
    pub here: Option<Emulator>,
    pub jobs: Vec<J>,
}

/// The emulator of an architecture's guests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Emulator {
    pub qemu: QemuProgram,
    /// The TCG plugin; none if no guest runs under TCG.
    pub plugin: Option<PathBuf>,
    /// The CPU's own branch records, for guests under KVM.
    #[serde(default)]
    pub lbr: Option<LbrFormat>,
    #[serde(default)]
    pub launcher: Launcher,
}

/// The cells of one process: one cell, or the cells of one test on several compared kernels.
/// Filters and shards must not separate compared cells, and timed ones take turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Nextest's name of the test.
    pub name: String,
    /// True if more boots should decide whether times differ that seem to.
    pub more_boots: bool,
    pub cells: Vec<PlannedCell>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedCell {
    pub kernel: String,
    /// The name of the kernel in its configuration, without a series. None of one that is built and
    /// booted as usual.
    #[serde(default)]
    pub configuration: Option<String>,
    pub arch: Arch,
    pub accel: Accel,
    pub work: Work,
    pub backend: Backend,
    pub kernel_image: PathBuf,
    pub initrd: PathBuf,
    /// Snapshots that guests may be restored from and are saved to.
    #[serde(default)]
    pub snapshots: Option<Snapshots>,
    pub cpus: u32,
    pub memory_mib: u32,
    pub boot_seconds: u32,
    pub append: Vec<String>,
    /// QEMU's `-cpu` under TCG, instead of the usual model.
    #[serde(default)]
    pub cpu: Option<String>,
    /// The CPU as which the guest boots.
    #[serde(default)]
    pub model: Option<Named>,
    /// Mitigations that the guest must have: `NAME: STATE` of a vulnerability. Without them the
    /// cell is skipped.
    #[serde(default)]
    pub shows: Vec<String>,
    /// True if programs get the branch records that they ask for.
    #[serde(default)]
    pub deliver: bool,
    /// True if the plugin plays the branch records of the CPU as which the guest boots.
    #[serde(default)]
    pub emulated: bool,
    /// Without bounds of metrics that the cell does not measure.
    pub budgets: Vec<Budget>,
    pub tolerance: Tolerance,
    /// Known warnings, which do not end it.
    #[serde(default)]
    pub allow: Vec<Allowance>,
    /// The reason why the cell is not run, if that is known before anything boots.
    pub skip: Option<String>,
    /// Makes the cell an error before anything boots: its own test does not build, or this machine
    /// failed to read a module for its guest.
    #[serde(default)]
    pub error: Option<(ErrorKind, String)>,
}

impl PlannedCell {
    pub fn id(&self) -> CellId {
        let &PlannedCell { arch, accel, .. } = self;
        CellId { kernel: self.kernel.clone(), arch, accel, test: self.work.test() }
    }

    /// The family of the guest's branch records, and their depth.
    pub fn records(&self) -> (Model, u32) {
        let branches = self.model.as_ref().map(|model| &model.cpu.branches);
        let model = Model::choose(branches.and_then(Model::of_branches), self.arch);
        (model, branches.and_then(|own| own.depth).unwrap_or(model.depth()))
    }

    /// The branch records that the plugin plays.
    pub fn played(&self) -> Option<String> {
        self.model.as_ref().filter(|_| self.emulated)?.cpu.branches.played()
    }

    /// The return stack of the guest's CPU.
    pub fn returns(&self) -> Option<&Returns> {
        self.model.as_ref()?.cpu.returns.as_ref()
    }

    /// The CPU whose cycles are estimated, and the parts of it that the plugin models. The error
    /// tells why none are.
    pub fn estimated(&self) -> Result<(&str, &Cycles, Parts), String> {
        let Some(Named { name, cpu }) = &self.model else {
            return Err("estimated cycles are of a CPU, and this guest booted as none; name one: \
                        --model zen4 or neoverse-n1"
                .to_owned());
        };
        let Some(cycles) = &cpu.cycles else {
            return Err(format!("{name} has no `cycles` in its file"));
        };
        let parts = cycles.parts(cpu.returns.as_ref()).map_err(|why| format!("{name}: {why}"))?;
        Ok((name, cycles, parts))
    }

    /// The CPU whose branch records the kernel's driver hands over, in a waste cell. Without TCG
    /// there are no others.
    pub fn of_driver(&self) -> Option<driver::Cpu> {
        match (&self.work, self.accel, self.emulated) {
            (Work::LbrWaste(_), Accel::Kvm | Accel::Native, _) => Some(driver::Cpu::Passed),
            (Work::LbrWaste(_), Accel::Tcg, true) => Some(driver::Cpu::Played(self.records().0)),
            _ => None,
        }
    }

    /// The parts of a CPU that the plugin models, if the cell estimates cycles.
    pub fn modelled(&self) -> Option<Parts> {
        let (.., parts) = self.estimated().ok()?;
        self.work.kind().estimates().then_some(parts)
    }

    /// True if it measures this metric under its accelerator.
    fn measures(&self, metric: &Metric) -> bool {
        metric.test() == self.work.test() && self.work.kind().measures(metric, self.accel)
    }

    /// True if another cell of the same name does the same on the same machine.
    pub fn measures_as(&self, other: &PlannedCell) -> bool {
        self.work == other.work
            && (&self.append, &self.cpu) == (&other.append, &other.cpu)
            && (self.deliver, self.played()) == (other.deliver, other.played())
            && (self.backend, self.cpus, self.memory_mib)
                == (other.backend, other.cpus, other.memory_mib)
    }

    /// True if it samples whatever runs on its CPU.
    pub fn samples(&self) -> bool {
        matches!(&self.work, Work::Attach(work) if work.explain.contains(&Explain::Sampled))
    }

    /// Number of the cell's guests.
    pub fn boots(&self) -> u32 {
        // A cell that is not run still needs one turn to end in.
        if self.skip.is_some() || self.error.is_some() { 1 } else { self.clocks().len() as u32 }
    }

    /// The clock of each guest, in order.
    pub fn clocks(&self) -> Vec<Clock> {
        self.work.kind().clocks(self.cpus, self.backend)
    }
}

impl Plan {
    /// True if a cell reads the host's clock: nothing else may run at the same time.
    pub fn is_timed(&self) -> bool {
        self.cells().any(|cell| cell.work.kind().is_timed())
    }

    pub fn cells(&self) -> impl Iterator<Item = &PlannedCell> {
        self.jobs.iter().flat_map(|job| &job.cells)
    }

    pub fn path(run_dir: &Path) -> PathBuf {
        run_dir.join("plan.json")
    }

    pub fn save(&self) -> io::Result<()> {
        fs::create_dir_all(self.run_dir.join(JOBS))?;
        for (number, job) in self.jobs.iter().enumerate() {
            fs::write(job_path(&self.run_dir, number), serde_json::to_vec_pretty(job)?)?;
        }
        let names = Plan {
            run_dir: self.run_dir.clone(),
            emulators: self.emulators.clone(),
            here: self.here.clone(),
            jobs: self.jobs.iter().map(|job| job.name.clone()).collect(),
        };
        fs::write(Plan::path(&self.run_dir), serde_json::to_vec_pretty(&names)?)
    }

    pub fn load(path: &Path) -> io::Result<Plan> {
        let names = Plan::names(path)?;
        let jobs =
            (0..names.jobs.len()).map(|number| names.job(number)).collect::<io::Result<_>>()?;
        let Plan { run_dir, emulators, here, .. } = names;
        Ok(Plan { run_dir, emulators, here, jobs })
    }
}

const JOBS: &str = "jobs";

fn job_path(run_dir: &Path, number: usize) -> PathBuf {
    run_dir.join(JOBS).join(format!("{number}.json"))
}

impl Plan<String> {
    pub fn names(path: &Path) -> io::Result<Plan<String>> {
        let plan: Plan<String> = serde_json::from_slice(&regular::read(path, MOST_BYTES)?)?;
        // The folder may have been moved since.
        Ok(Plan { run_dir: path.parent().unwrap_or(Path::new("")).to_owned(), ..plan })
    }

    /// The job at this index.
    pub fn job(&self, number: usize) -> io::Result<Job> {
        let path = job_path(&self.run_dir, number);
        let read =
            regular::read(&path, MOST_BYTES).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        read.map_err(|error| {
            io::Error::new(error.kind(), format!("failed to read {}: {error}", path.display()))
        })
    }
}
