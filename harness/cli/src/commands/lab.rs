// SPDX-License-Identifier: MIT OR Apache-2.0
//! What turns a suite and kernels into a run: for `vm-test` one, for a bisection many.

use super::{
    UsageError,
    artifacts::{self, Artifacts},
    exit,
    kernels::{self, Prepared},
    nextest::{Cells, End, Event, Part, Selection},
    progress::Progress,
    scratch::Scratch,
    typed,
};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    hash::{BuildHasher, RandomState},
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};
use tramplab_analysis::compare;
use tramplab_host::{
    Cache, CacheError, Purpose, Qemu, VirtmeNg, apt, lbr,
    runs::{RunDir, Running, running},
};
use tramplab_kernel as kernel;
use tramplab_kernel::compile::Selftests;
use tramplab_model::name::hex;
use tramplab_model::{
    run::{self, Accel, Arch, Backend, Cell, CellId, ErrorKind, Outcome, Run, SCHEMA, Shard, SuiteRef, Test},
    text,
};
use tramplab_suite::{Emulator, Guest, Plan, PlannedCell, Suite, plan};
use tramplab_vm as vm;
use tramplab_vm::{
    Snapshots, Vm,
    accel::{self, NoAnswer},
    branches::{self, Source},
};

/// A suite, and what a run says of where it is from.
#[derive(Clone)]
pub struct Asked {
    pub suite: Suite,
    pub reference: SuiteRef,
}

/// What runs cells: found and built once, for however many runs.
pub struct Lab {
    pub cache: Cache,
    qemus: BTreeMap<Arch, Qemu>,
    built: Artifacts,
    cells: Cells,
    accel: accel::Request,
    branches: branches::Request,
    /// Where it starts the guests.
    virtme_ng: Option<VirtmeNg>,
    guests: Guests,
}

/// What its guests are to be.
pub struct Wanting {
    pub purpose: Purpose,
    pub backend: Backend,
    pub accel: accel::Request,
    pub branches: branches::Request,
    pub guests: Guests,
}

/// Where a cell's guest comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guests {
    /// From a snapshot, where there is one.
    Restored,
    /// Each boots.
    Cold,
}

/// A run before its first cell: its kernels are there, and what will boot is known.
pub struct Planned {
    plan: Plan,
    run: Run,
    run_dir: RunDir,
}

impl Planned {
    pub fn machine(&self, arch: Arch) -> Option<&run::Machine> {
        self.run.machine(arch)
    }

    /// From now on the rest of another run, with its folder: the jobs that measure what is missing there, as it would have been measured, or why
    /// there are none.
    pub fn make_rest_of(&mut self, other: &Run, folder: &RunDir) -> Result<Vec<String>, String> {
        if let Some(why) = run::unlike(other, &self.run) {
            return Err(why);
        }
        let then =
            Plan::load(&Plan::path(folder.path())).map_err(|error| format!("its plan is lost: {error}"))?;
        for id in &other.missing {
            let planned = |plan: &Plan| plan.cells().find(|planned| planned.id == *id).cloned();
            let Some(now) = planned(&self.plan) else {
                return Err(format!("there is no cell {} here", id.name()));
            };
            if !planned(&then).is_some_and(|then| then.measures_as(&now)) {
                return Err(format!("{} would be measured otherwise than then", id.name()));
            }
        }
        self.run.rest_of = Some(other.id.clone());
        self.run.shard.clone_from(&other.shard);
        let is_left = |job: &&plan::Job| job.cells.iter().any(|planned| other.missing.contains(&planned.id));
        Ok(self.plan.jobs.iter().filter(is_left).map(|job| job.name.clone()).collect())
    }

    /// For a run whose folder is named by its place among others.
    pub fn with_id(mut self, id: String) -> Planned {
        self.run.id = id;
        self
    }

    pub fn with_notes(mut self, notes: Vec<String>) -> Planned {
        self.run.notes = notes;
        self
    }
}

impl Lab {
    pub fn set_up(
        cache: Cache,
        arches: &[Arch],
        Wanting { purpose, backend, accel, branches, guests }: Wanting,
        progress: &Progress,
    ) -> Result<Lab> {
        let accel = match branches {
            branches::Request::Hardware => {
                let facts = lbr::Facts::probe();
                let able = arches.iter().try_for_each(|&arch| lbr::decide(&facts, arch).map(drop));
                able.context(
                    "guests cannot have this machine's own branch records, as --branches hardware asks",
                )?;
                accel::Request::Only(Accel::Kvm)
            }
            branches::Request::Auto | branches::Request::Virtual => accel,
        };
        let virtme_ng = (backend == Backend::VirtmeNg).then(|| VirtmeNg::find(&cache)).transpose()?;
        let find = |&arch: &Arch| Ok((arch, Qemu::find(&cache, arch, purpose)?));
        let qemus = arches.iter().map(find).collect::<Result<BTreeMap<Arch, Qemu>>>()?;
        progress.step("building the plugin, the guest agent and the cells");
        // At once: mostly all is built, and cargo takes half a second to see it. Neither waits for the other's lock, as they are built into
        // different folders.
        let (built, cells) = thread::scope(|scope| {
            let cells = scope.spawn(|| Cells::build(progress));
            (
                artifacts::build(&cache, arches, progress),
                cells.join().unwrap_or_else(|panic| resume_unwind(panic)),
            )
        });
        Ok(Lab { qemus, built: built?, cells: cells?, accel, branches, cache, virtme_ng, guests })
    }

    /// Boots nothing but, once, a guest to try KVM. `compared` says whether the kernels are.
    pub fn plan(
        &self,
        asked: &Asked,
        Prepared { kernels, series, tests }: Prepared,
        compared: bool,
        run_dir: RunDir,
        progress: &Progress,
    ) -> Result<Planned> {
        let Asked { suite, reference } = asked;
        let suite = &suite.clone().with_tests(&tests);
        let mut chosen: BTreeMap<Arch, (Accel, Source)> = BTreeMap::new();
        let mut emulators: BTreeMap<Arch, String> = BTreeMap::new();
        let mut guests = Vec::new();
        for (image, kernel) in kernels.iter().filter_map(|kernel| Some((kernel.image.as_ref()?, kernel))) {
            let initrd = initramfs(&self.cache, &self.built.agents[&image.arch], image)?;
            let (accel, branches) = match chosen.get(&image.arch) {
                Some(known) => known.clone(),
                None => {
                    let choice = self.choose_accel(image, &initrd, progress)?;
                    let source = match suite.counts_records() {
                        true => self.choose_branches(image.arch, &choice, progress)?,
                        false => Source::Virtual,
                    };
                    (choice.accel, source)
                }
            };
            chosen.insert(image.arch, (accel, branches.clone()));
            let undeliverable = self.qemus[&image.arch].undeliverable();
            let backend = self.backend();
            let snapshots = match self.guests {
                Guests::Cold => None,
                Guests::Restored => {
                    let emulator = match emulators.entry(image.arch) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(unknown) => unknown.insert(self.qemus[&image.arch].digest()?),
                    };
                    let contents = format!("{emulator} {} {}", image.sha256, sha256(&initrd)?);
                    Some(Snapshots { cache: self.cache.root().to_owned(), contents })
                }
            };
            let with_tests =
                |tests| Ok::<_, anyhow::Error>((tests, with_selftests(&self.cache, &initrd, tests)?));
            let selftests = kernel.selftests.as_ref().map(with_tests).transpose()?;
            guests.push(Guest {
                image,
                initrd,
                snapshots,
                selftests,
                accel,
                accel_named: self.is_accel_named(),
                branches,
                backend,
                undeliverable,
                budgets_of: kernel.budgets_of.as_deref(),
            });
        }
        // Of what was not built nothing boots.
        let accel_of = |arch: Arch| chosen.get(&arch).map_or(Accel::Tcg, |(accel, _)| *accel);
        let lbr_of = |arch: Arch| match chosen.get(&arch) {
            Some(&(_, Source::Hardware(format))) => Some(format),
            _ => None,
        };
        if let Some(name) = plan::contradiction(suite) {
            let message = format!(
                "{}: {name} is asked for twice, with different rounds, clock or the like: a test is measured once",
                reference.file
            );
            return Err(UsageError(message).into());
        }
        let cells = plan::cells(suite, &guests, compared);
        if let Some(name) =
            plan::other_kernels(suite, &cells).into_iter().find(|name| kernels::find(name, &[]).is_err())
        {
            let message = format!(
                "{}: a budget names kernel `{name}`; expected one of the suite, of this run, or of kernels/",
                reference.file
            );
            return Err(UsageError(message).into());
        }
        for warning in plan::idle_budgets(suite, &cells) {
            progress.line(&format!("warning: {}: {warning}", reference.file));
        }

        if cells.iter().any(PlannedCell::is_hardware)
            && suite.budgets.iter().any(|budget| !budget.wasted.is_empty())
        {
            progress
                .line("budgets of waste are of virtual branch records; the CPU's own are not judged by them");
        }
        let runs_under =
            |arch: Arch, accel| cells.iter().any(|cell| (cell.id.arch, cell.id.accel) == (arch, accel));
        let cpu = |arch: Arch| {
            let of = |accel| vm::cpu_model(accel, arch, lbr_of(arch));
            match (runs_under(arch, Accel::Kvm), runs_under(arch, Accel::Tcg)) {
                (true, true) => format!("{}; under TCG {}", of(Accel::Kvm), of(Accel::Tcg)),
                (true, false) => of(Accel::Kvm),
                (false, true) => of(Accel::Tcg),
                (false, false) => of(accel_of(arch)),
            }
        };
        let machine_cpus: BTreeMap<Arch, String> = self.qemus.keys().map(|&arch| (arch, cpu(arch))).collect();
        let plan = Plan {
            run_dir: run_dir.path().to_owned(),
            emulators: self
                .qemus
                .iter()
                .map(|(&arch, qemu)| {
                    let counts = accel_of(arch) == Accel::Tcg || runs_under(arch, Accel::Tcg);
                    let plugin = counts.then(|| self.built.plugin.clone());
                    let virtme = self.virtme_ng.as_ref().map(|VirtmeNg { vng, .. }| {
                        let agent = self.built.agents[&arch].clone();
                        vm::Virtme { vng: vng.clone(), agent }
                    });
                    (arch, Emulator { qemu: qemu.program.clone(), plugin, lbr: lbr_of(arch), virtme })
                })
                .collect(),
            jobs: plan::jobs(cells, compared),
        };
        plan.save().with_context(|| format!("failed to write the plan into {}", run_dir.path().display()))?;
        let run = Run {
            schema: SCHEMA,
            id: run_dir.id(),
            started: now(),
            finished: None,
            tramplab: env!("CARGO_PKG_VERSION").to_owned(),
            command: typed::with_absolute_paths(typed::words()),
            host: host_facts(),
            suite: reference.clone(),
            machines: self
                .qemus
                .iter()
                .map(|(&arch, qemu)| {
                    Ok(run::Machine {
                        arch,
                        vm: self.backend(),
                        virtme_ng: self.virtme_ng.as_ref().map(|virtme_ng| virtme_ng.version.clone()),
                        qemu: qemu.version.clone(),
                        cpu: machine_cpus[&arch].clone(),
                        cpus: suite.machine.cpus.get(),
                        memory_mib: suite.machine.memory_mib.get(),
                        append: suite.machine.append.clone(),
                        agent_sha256: sha256(&self.built.agents[&arch])?,
                        plugin_sha256: plan.emulators[&arch].plugin.as_deref().map(sha256).transpose()?,
                    })
                })
                .collect::<Result<_>>()?,
            tolerance: suite.tolerance,
            kernels: kernels.iter().map(|kernel| kernel.facts.clone()).collect(),
            series,
            cells: kernels
                .iter()
                .filter_map(|kernel| build_cell(kernel, accel_of(kernel.facts.arch)))
                .collect(),
            // Until it has ended: who is killed cannot say so any more.
            interrupted: true,
            missing: Vec::new(),
            shard: None,
            notes: Vec::new(),
            rest_of: None,
            joined: None,
        };
        keep_configs(&kernels, &run_dir)?;
        Ok(Planned { plan, run, run_dir })
    }

    /// Rejects a selection that cannot be read.
    pub fn check(&self, selection: &Selection) -> Result<()> {
        self.cells.check(selection)
    }

    /// Names the selected cells, and counts them on standard error as a run would.
    pub fn list(&self, planned: &Planned, selection: &Selection) -> Result<()> {
        let Planned { plan, run, run_dir } = planned;
        let mut selected = Vec::new();
        let listed = self.cells.run(plan, selection, true, |event| {
            if let Event::Selected { jobs, .. } = event {
                selected = jobs;
            }
        });
        discard(run_dir);
        listed?;
        let jobs = plan.jobs.iter().filter(|job| selected.contains(&job.name));
        let cells = jobs.map(|job| job.cells.len()).sum();
        let built = |kernel: &&run::Kernel| kernel.build.is_some() || kernel.image_sha256.is_none();
        eprintln!("{}", counted(selected.len(), cells, run.kernels.iter().filter(built).count()));
        Ok(())
    }

    /// After everything has been fetched and built: whether all of it was.
    pub fn stop_before_cells(&self, planned: &Planned) -> u8 {
        let Planned { run, run_dir, .. } = planned;
        if run.kernels.iter().any(|kernel| kernel.image_sha256.is_none()) {
            eprintln!("a kernel does not build; what make said is in {}", run_dir.kernels().display());
            return exit::NO_MEASUREMENT;
        }
        discard(run_dir);
        exit::PASS
    }

    /// Runs the selected cells and judges them.
    pub fn run(&self, planned: Planned, selection: &Selection) -> Result<(Run, RunDir)> {
        let Planned { plan, run, run_dir } = planned;
        let run = run_cells(&self.cells, selection, &plan, &run_dir, run).inspect_err(|error| {
            if error.is::<UsageError>() {
                discard(&run_dir);
            }
        })?;
        Ok((run, run_dir))
    }

    fn backend(&self) -> Backend {
        if self.virtme_ng.is_some() { Backend::VirtmeNg } else { Backend::Qemu }
    }

    fn is_accel_named(&self) -> bool {
        self.accel != accel::Request::Auto
    }

    /// The CPU's own branch records where they can be had, else virtual ones, visibly.
    fn choose_branches(&self, arch: Arch, accel: &accel::Choice, progress: &Progress) -> Result<Source> {
        let named = self.is_accel_named();
        let decide = || lbr::decide(&lbr::Facts::gather(accel.fallback.clone()), arch);
        let choice = branches::choose(self.branches, accel.accel, named, decide)?;
        if let Some(reason) = choice.fallback.filter(|_| Arch::host() == Some(arch)) {
            progress.line(&format!("branch records are virtual ones: {reason}"));
        }
        Ok(choice.source)
    }

    /// KVM if a guest answered under it, else TCG, visibly.
    fn choose_accel(
        &self,
        image: &kernel::Image,
        initrd: &Path,
        progress: &Progress,
    ) -> Result<accel::Choice> {
        // Only named: there is no guest to try it with.
        let is_built = !image.image.as_os_str().is_empty();
        let qemu = &self.qemus[&image.arch].program;
        let probe = || {
            if !is_built {
                let why = "the kernel that would try it is not built";
                return Err(NoAnswer::Untried(why.to_owned()));
            }
            progress.step("trying KVM with a guest");
            let dir = Scratch::new().map_err(|error| NoAnswer::Untried(format!("{error:#}")))?;
            Ok(Vm::boot(&accel::probe(qemu, image.arch, &image.image, initrd, dir.path())).map(drop)?)
        };
        if let (accel::Request::Only(accel), false) = (self.accel, is_built) {
            return Ok(accel::Choice { accel, fallback: None });
        }
        let memory = self.cache.folder("accel").map(|folder| folder.join("kvm.json"))?;
        let choice = accel::choose(
            self.accel,
            Arch::host() != Some(image.arch),
            &memory,
            &accel::Circumstances::of(qemu),
            probe,
        )?;
        if let Some(reason) = &choice.fallback {
            progress.line(&match is_built {
                true => format!("KVM runs no guest here ({reason}); using TCG"),
                false => "cells are named as under TCG: KVM is tried once the kernel is built".to_owned(),
            });
        }
        Ok(choice)
    }
}

/// After a saving of a run, so many times as long passes until the next, but no longer than that: hundreds of cells are megabytes. What ends
/// meanwhile has a file of its own.
const PAUSE: u32 = 1000;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Runs the cells, saving the run while they end, so that nothing measured is lost: those that end between the
/// last saving and a SIGKILL are found by their `cell.json`.
fn run_cells(
    cells: &Cells,
    selection: &Selection,
    plan: &Plan,
    run_dir: &RunDir,
    mut run: Run,
) -> Result<Run> {
    let mut progress = Progress::cells(plan.cells().count() as u64);
    for killed in run_dir.path().parent().map(running::killed).unwrap_or_default() {
        let removed = running::tidy(&killed);
        let removed = match removed {
            0 => String::new(),
            1 => ", and a file that is of no use to anybody is removed".to_owned(),
            _ => format!(", and {removed} files that are of no use to anybody are removed"),
        };
        progress.line(&format!("the run {} was killed; what it measured is kept{removed}", killed.id()));
    }
    let _running = Running::mark(run_dir)
        .with_context(|| format!("failed to write into {}", run_dir.path().display()))?;
    run_dir.save(&run)?;
    let (mut failed, mut cancelled) = (None, false);
    let cells_of = |jobs: &[String]| -> Vec<CellId> {
        let jobs = plan.jobs.iter().filter(|job| jobs.contains(&job.name));
        jobs.flat_map(|job| &job.cells).map(|cell| cell.id.clone()).collect()
    };
    let mut next_saving = Instant::now();
    let mut end = Ok(End::Done);
    if !plan.jobs.is_empty() {
        end = cells.run(plan, selection, false, |event| match event {
            Event::Selected { jobs, part } => {
                run.missing = cells_of(&jobs);
                if let Some(Part { partition, jobs }) = part {
                    run.shard = Some(Shard { partition, cells: cells_of(&jobs) });
                }
                if let Err(error) = run_dir.save(&run) {
                    failed.get_or_insert(error);
                }
                point_latest_at(run_dir);
            }
            Event::Started { job } => progress.started(job),
            Event::Slow { job, elapsed, will_terminate } => {
                let what = if will_terminate { "is terminated after" } else { "is slow:" };
                progress.line(&format!("{job} {what} {} s", elapsed.as_secs()));
            }
            Event::Cancelled => {
                cancelled = true;
                progress.line("interrupted: stopping the guests; what was measured is kept");
            }
            Event::Finished { job: name, how, timed_out, taken } => {
                progress.ended(name);
                let Some(job) = plan.jobs.iter().find(|job| job.name == name) else { return };
                // What has no file of its own is saved at once.
                let mut is_due = Instant::now() >= next_saving;
                for planned in &job.cells {
                    let result = match run_dir.load_cell(&planned.id) {
                        Ok(Some(result)) => result,
                        // Stopped by the interrupt: as good as not begun.
                        Ok(None) if cancelled => {
                            progress.finished(&format!("stop  {}", planned.id.name()));
                            continue;
                        }
                        Ok(None) => {
                            is_due = true;
                            let partial = run_dir.partial(&planned.id);
                            let how = match partial.exists() {
                                true => format!("{how}; what its first boots measured is its partial.json"),
                                false => how.clone(),
                            };
                            no_result(planned, &how, timed_out, taken.as_millis() as u64)
                        }
                        Err(error) => {
                            is_due = true;
                            no_result(planned, &error.to_string(), false, taken.as_millis() as u64)
                        }
                    };
                    // The first cell that found that its kernel does not boot left that one's result as well.
                    let boot = CellId { test: Test::Boot, ..planned.id.clone() };
                    let is_known = plan.cells().any(|cell| cell.id == boot)
                        || run.cells.iter().any(|cell| cell.id == boot);
                    let boot =
                        Some(boot).filter(|_| matches!(result.outcome, Outcome::Error { .. }) && !is_known);
                    let boot = boot.and_then(|boot| run_dir.load_cell(&boot).ok().flatten());
                    for cell in boot.into_iter().chain([result]) {
                        progress.finished(&tramplab_report::cell_line(&cell));
                        run.missing.retain(|missing| *missing != cell.id);
                        run.cells.push(cell);
                    }
                }
                if is_due {
                    let begun = Instant::now();
                    if let Err(error) = run_dir.save(&run) {
                        failed.get_or_insert(error);
                    }
                    next_saving = Instant::now() + (PAUSE * begun.elapsed()).min(LONGEST_PAUSE);
                }
            }
        });
    } else {
        point_latest_at(run_dir);
    }
    drop(progress);
    let end = end.and_then(|end| failed.map_or(Ok(end), |error| Err(error.into()))).inspect_err(|_| {
        // What ended since the last saving. Why it may fail as well is said already.
        let _ = run_dir.save(&run);
    })?;
    // Whatever nextest says: a run that lacks a cell is none that passed.
    run.interrupted = matches!(end, End::Interrupted) || !run.missing.is_empty();
    if run.interrupted {
        running::tidy(run_dir);
    }
    run.finished = Some(now());
    // Cells end in the order of the machine's mood; the suite's order reads better and is the same every time.
    // Builds, which are not in the plan, come first.
    run.cells.sort_by_key(|cell| plan.cells().position(|planned| planned.id == cell.id));
    compare::judge(&mut run);
    run_dir.save(&run)?;
    Ok(run)
}

/// How many cells there are, where a line is not one: the report counts every cell and every build.
fn counted(jobs: usize, cells: usize, builds: usize) -> String {
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = plural(cells, "cell");
    if cells != jobs {
        text += &format!(": {}, each on every kernel of the series", plural(jobs, "test"));
    }
    if builds > 0 {
        text += &format!("; and {}, which the report counts as cells", plural(builds, "build"));
    }
    text
}

/// The build of a kernel, as a cell.
fn build_cell(kernel: &kernels::Ready, accel: Accel) -> Option<Cell> {
    let build = kernel.build.as_ref()?;
    let id = CellId { kernel: kernel.facts.name.clone(), arch: kernel.facts.arch, accel, test: Test::Build };
    let duration_ms = build.taken.as_millis() as u64;
    Some(Cell { duration_ms, ..Cell::without_result(id, build.outcome.clone()) })
}

/// A cell whose process ended before it could say how.
fn no_result(planned: &PlannedCell, how: &str, timed_out: bool, duration_ms: u64) -> Cell {
    let kind = if timed_out { ErrorKind::Timeout } else { ErrorKind::Harness };
    let message = format!("the cell's process left no result: {how}");
    Cell { duration_ms, ..Cell::without_result(planned.id.clone(), Outcome::Error { kind, message }) }
}

/// The configurations stay with the run: they tell whether it can be compared with another.
fn keep_configs(kernels: &[kernels::Ready], run_dir: &RunDir) -> Result<()> {
    for kernel in kernels {
        let Some(from) = kernel.image.as_ref().and_then(|image| image.config_file.as_ref()) else { continue };
        let to = run_dir.config(kernel.facts.arch, &kernel.facts.name);
        let copy =
            fs::create_dir_all(to.parent().expect("in the run's folder")).and_then(|()| fs::copy(from, &to));
        copy.with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

/// The guest's root for this agent and kernel.
pub fn initramfs(cache: &Cache, agent: &Path, image: &kernel::Image) -> Result<PathBuf> {
    let mut key = sha256(agent)?;
    for module in &image.modules {
        key = hex(&Sha256::digest(format!("{key} {}", sha256(module)?)));
    }
    let entry = cache.entry("initramfs", &key, |dir| {
        vm::initramfs::build(agent, &image.modules, &dir.join(INITRAMFS)).map_err(InitramfsError::Write)
    })?;
    Ok(entry.join(INITRAMFS))
}

/// The guest's root with the tests of its tree.
fn with_selftests(cache: &Cache, initrd: &Path, selftests: &Selftests) -> Result<PathBuf> {
    let key = hex(&Sha256::digest(format!("{} {}", sha256(initrd)?, selftests.record.contents)));
    let entry = cache.entry("initramfs", &key, |dir| {
        vm::initramfs::with_folder(initrd, &selftests.root, &dir.join(INITRAMFS))
            .map_err(InitramfsError::Write)
    })?;
    Ok(entry.join(INITRAMFS))
}

const INITRAMFS: &str = "initramfs.cpio";

#[derive(Debug, thiserror::Error)]
pub enum InitramfsError {
    #[error("failed to write the initramfs: {0}")]
    Write(std::io::Error),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

pub fn host_facts() -> run::Host {
    let field = |file: &str, key: &str| -> Option<String> {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line[key.len()..].trim_start_matches([' ', '\t', ':', '=']).trim_matches('"').to_owned())
    };
    run::Host {
        os: field("/etc/os-release", "PRETTY_NAME").unwrap_or_else(|| "unknown".to_owned()),
        cpu: field("/proc/cpuinfo", "model name")
            .or_else(|| {
                // arm64 has no name for it.
                let numbers = ["CPU implementer", "CPU variant", "CPU part", "CPU revision"];
                let numbers =
                    numbers.iter().map(|key| field("/proc/cpuinfo", key)).collect::<Option<Vec<_>>>()?;
                Some(format!("{} {}", std::env::consts::ARCH, numbers.join(" ")))
            })
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// No other run has it, wherever it was made: the moment, and a number that shards which start in the same second do not share.
pub fn new_id() -> String {
    let stamp = OffsetDateTime::now_utc()
        .format(format_description!("[year][month][day]-[hour][minute][second]"))
        .expect("a date is formattable");
    // Seeded by the system, anew each time.
    let number = RandomState::new().hash_one(std::process::id());
    format!("{stamp}-{:08x}", number as u32)
}

/// A folder of its own for a run, with `prefix` before the run's id.
pub fn new_run_dir(runs: &Path, prefix: &str) -> Result<RunDir> {
    if !text::is_plain_path(runs) {
        let message = format!("the run's folder is to be in {runs:?}; expected a path in UTF-8 on one line");
        return Err(UsageError(message).into());
    }
    let path = runs.join(format!("{prefix}{}", new_id()));
    fs::create_dir_all(&path)
        .with_context(|| format!("failed to create the run's folder {}", path.display()))?;
    Ok(RunDir::new(fs::canonicalize(path)?))
}

/// For a run that did not begin.
pub fn discard(run_dir: &RunDir) {
    // What cannot be removed is an empty run, and says so.
    let _ = fs::remove_dir_all(run_dir.path());
}

/// `runs/latest`: a convenience, which a file system without symlinks does without.
pub fn point_latest_at(run_dir: &RunDir) {
    let (Some(runs), Some(id)) = (run_dir.path().parent(), run_dir.path().file_name()) else { return };
    let latest = runs.join("latest");
    let _ = fs::remove_file(&latest);
    let _ = std::os::unix::fs::symlink(id, &latest);
}

fn now() -> String {
    OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .expect("0 is valid")
        .format(&Rfc3339)
        .expect("formattable")
}

pub fn sha256(path: &Path) -> Result<String> {
    apt::sha256(path).with_context(|| format!("failed to read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tramplab_kernel::compile::SelftestsRecord;
    use tramplab_kernel::selftests::DenyList;

    #[test]
    fn counts_what_is_listed_as_the_report_will() {
        for (jobs, cells, builds, expected) in [
            (1, 1, 0, "1 cell"),
            (7, 7, 0, "7 cells"),
            (7, 7, 1, "7 cells; and 1 build, which the report counts as cells"),
            (
                20,
                40,
                2,
                "40 cells: 20 tests, each on every kernel of the series; and 2 builds, which the report counts \
                 as cells",
            ),
        ] {
            assert_eq!(counted(jobs, cells, builds), expected);
        }
    }

    /// The same order, made anew on another host or after a failure.
    #[test]
    fn a_root_has_the_tests_that_were_built_and_not_those_of_the_same_name() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache"), true);
        let agent = folder.path().join("agent.cpio");
        fs::write(&agent, "agent").unwrap();
        let packed = |contents: &str| {
            let root = folder.path().join(contents);
            fs::create_dir_all(&root).unwrap();
            fs::write(root.join("program"), contents).unwrap();
            let record = SelftestsRecord {
                key: "k".to_owned(),
                seconds: 1.0,
                tests: BTreeMap::new(),
                programs: BTreeSet::new(),
                broken: BTreeMap::new(),
                clang: None,
                contents: contents.to_owned(),
            };
            with_selftests(&cache, &agent, &Selftests { root, record, denied: DenyList::default() }).unwrap()
        };
        let (old, new) = (packed("libelf-1"), packed("libelf-2"));
        let holds =
            |path: &Path, text: &str| String::from_utf8_lossy(&fs::read(path).unwrap()).contains(text);
        assert!(holds(&old, "libelf-1") && holds(&new, "libelf-2") && !holds(&new, "libelf-1"));
        assert_eq!(packed("libelf-1"), old);
    }
}
