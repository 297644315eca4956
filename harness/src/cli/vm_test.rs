// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm-test`: the main job, from a suite to a report.

use super::{
    Interrupted, UsageError,
    artifacts::{self, Artifacts},
    baseline, exit,
    interrupt::Interrupt,
    kernels::{self, Prepared, Preparing, SeriesArgs, Wanted},
    nextest::{Cells, End, Event, Selection},
    progress::Progress,
    report::{self, Look},
    repository, shell,
};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    time::Duration,
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};
use tramplab::{
    compare,
    host::{self, Cache, CacheError, Purpose, Qemu, VirtmeNg, apt},
    kernel::{self, build::Confinement},
    run::{
        self, Accel, Arch, Backend, Cell, CellId, Clock, ErrorKind, Outcome, Run, RunDir, SCHEMA, Shard,
        SuiteRef, Test,
    },
    suite::{self, Clocks, Emulator, Experiment, Guest, Plan, PlannedCell, Suite, TestGroup, plan},
    vm::{self, Deadlines, Spec, Vm, accel},
};
use tramplab_protocol::message::Explain;

#[derive(clap::Args)]
pub struct Args {
    /// Install or name what is missing, fetch QEMU, then run
    #[arg(long)]
    setup: bool,
    /// What to run: a name in configs/suites/ or a file
    #[arg(long, value_name = "SUITE", default_value = "quick")]
    suite: String,
    /// Run on these kernels instead of the suite's: names in kernels/, manifests, images, or sources to build (a
    /// folder, a tarball, git:REPOSITORY#REF, debian-source:6.12); repeatable
    #[arg(long = "kernel", value_name = "KERNEL")]
    kernels: Vec<String>,
    /// The guests' architectures, x86_64 or arm64 or both: one cell of each [default: this machine's]
    #[arg(long = "arch", value_name = "ARCH", value_delimiter = ',')]
    arches: Vec<Arch>,
    #[command(flatten)]
    series: SeriesArgs,
    /// Where builds cannot be confined build nothing, instead of warning
    #[arg(long, conflicts_with = "unconfined")]
    confined: bool,
    /// What starts the guests: QEMU alone, or virtme-ng, which gives them this machine's own files (read-only) for a userspace
    #[arg(long, value_enum, default_value_t = BackendArg::Qemu)]
    vm: BackendArg,
    /// KVM counts only when a guest answered under it
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,
    /// The clock of attach tests, instead of the suite's: the host's, or one that counts the guest's instructions and so repeats
    /// (`-icount`), or one guest with each
    #[arg(long, value_enum, value_name = "CLOCK")]
    clock: Option<ClockArg>,
    /// Explain where attach tests' time goes, instead of what the suite says: `exact` counts instructions by call path, `sampled`
    /// samples call chains and times the waiting; repeatable
    #[arg(long, value_enum, value_name = "HOW", value_delimiter = ',')]
    explain: Vec<ExplainArg>,
    /// Also do what is only done when it is asked for: `deliver-records` hands programs in the guest the branch records they ask for,
    /// and checks what they got against the trace (QEMU 10.1 or newer, which --setup fetches); repeatable
    #[arg(long = "experiment", value_enum, value_name = "NAME")]
    experiments: Vec<ExperimentArg>,
    /// Fetch and build everything anew
    #[arg(long)]
    no_cache: bool,
    /// Where runs are kept [default: runs/ of the repository]
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    /// Name the selected cells, run none
    #[arg(long)]
    list: bool,
    /// When a cell did not pass, boot its guest again with a shell: its kernel, its machine, its command line; needs a terminal
    #[arg(long, conflicts_with = "list")]
    keep: bool,
    /// Write what is measured into the suite's file as budgets, and show what has changed of it
    #[arg(long, conflicts_with_all = ["list", "series"])]
    update_budgets: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    pub look: Look,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum AccelArg {
    Auto,
    Kvm,
    Tcg,
}

impl AccelArg {
    pub fn request(self) -> accel::Request {
        match self {
            AccelArg::Auto => accel::Request::Auto,
            AccelArg::Kvm => accel::Request::Only(Accel::Kvm),
            AccelArg::Tcg => accel::Request::Only(Accel::Tcg),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendArg {
    Qemu,
    VirtmeNg,
}

impl From<BackendArg> for Backend {
    fn from(arg: BackendArg) -> Backend {
        match arg {
            BackendArg::Qemu => Backend::Qemu,
            BackendArg::VirtmeNg => Backend::VirtmeNg,
        }
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ClockArg {
    Free,
    Exact,
    Both,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ExplainArg {
    Exact,
    Sampled,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ExperimentArg {
    DeliverRecords,
}

/// What the command line says of attach tests wins over what the suite says; its experiments are added to the suite's.
fn overridden(mut suite: Suite, args: &Args) -> Result<Suite> {
    suite.experiments.extend(args.experiments.iter().map(|experiment| match experiment {
        ExperimentArg::DeliverRecords => Experiment::DeliverRecords,
    }));
    let delivers = |group: &TestGroup| matches!(group, TestGroup::LbrWaste { .. });
    if suite.experiments.contains(&Experiment::DeliverRecords) && !suite.tests.iter().any(delivers) {
        let message =
            format!("deliver-records is of lbr_waste tests, and the suite `{}` has none", suite.name);
        return Err(UsageError(message).into());
    }
    let attaches = suite.tests.iter().any(|group| matches!(group, TestGroup::Attach { .. }));
    if !attaches && (args.clock.is_some() || !args.explain.is_empty()) {
        let message =
            format!("--clock and --explain are of attach tests, and the suite `{}` has none", suite.name);
        return Err(UsageError(message).into());
    }
    let clocks = args.clock.map(|clock| match clock {
        ClockArg::Free => Clocks::Free,
        ClockArg::Exact => Clocks::Exact,
        ClockArg::Both => Clocks::Both,
    });
    let explain = args.explain.iter().map(|how| match how {
        ExplainArg::Exact => Explain::Exact,
        ExplainArg::Sampled => Explain::Sampled,
    });
    let explain: BTreeSet<Explain> = explain.collect();
    Ok(suite.with(clocks, (!explain.is_empty()).then_some(&explain)))
}

/// The host's files are of use to the host's architecture only.
pub fn check_backend(backend: Backend, arches: &[Arch]) -> Result<()> {
    let foreign = arches.iter().find(|&&arch| Arch::host() != Some(arch));
    match (backend, foreign) {
        (Backend::VirtmeNg, Some(arch)) => Err(UsageError(format!(
            "--vm virtme-ng gives guests this machine's own files, which are not for {arch}; leave --vm out for {arch} guests"
        ))
        .into()),
        _ => Ok(()),
    }
}

/// What came of it.
pub enum Measured {
    Cells(Box<Run>, RunDir),
    /// The cells were only named; the exit code.
    Nothing(u8),
}

pub fn vm_test(args: &Args) -> Result<u8> {
    match measure(args)? {
        Measured::Cells(run, run_dir) => {
            let code = finish(&run, &run_dir, &args.look)?;
            shell::look_into(&run, &run_dir, args.keep)?;
            // A budget that was exceeded is the new one.
            if args.update_budgets { baseline::update(&run, Path::new(&run.suite.file)) } else { Ok(code) }
        }
        Measured::Nothing(code) => Ok(code),
    }
}

pub fn measure(args: &Args) -> Result<Measured> {
    if args.keep && !io::stdin().is_terminal() {
        let message =
            "--keep gives you a shell at the terminal, and the standard input is none; leave it out";
        return Err(UsageError(message.to_owned()).into());
    }
    let suite_file = suite_file(&args.suite)?;
    let suite = overridden(suite::load(&suite_file)?, args)?;
    let asked = Asked {
        reference: SuiteRef {
            name: suite.name.clone(),
            file: suite_file.display().to_string(),
            sha256: sha256(&suite_file)?,
        },
        suite,
    };
    let cache = Cache::open(!args.no_cache)?;
    let progress = Progress::steps();
    let arches: BTreeSet<Arch> = args.arches.iter().copied().collect();
    let wanted = Wanted::new(&args.kernels, &Vec::from_iter(arches), &args.series, &asked.suite)?;
    report::check_model(args.look.model, wanted.arches())?;
    if let Some(misfit) = plan::misfit(&asked.suite) {
        return Err(UsageError(format!("{}: {misfit}", asked.reference.file)).into());
    }
    let purpose = purpose(&asked.suite);
    let backend = Backend::from(args.vm);
    check_backend(backend, &wanted.arches())?;
    if args.setup {
        let wanted = host::Wanted { backend, ..wanted.of_the_host(purpose) };
        host::setup(&cache, &wanted, &mut |step| progress.step(step))?;
    }
    let builds = !wanted.of_the_host(purpose).toolchains.is_empty();
    if args.confined
        && builds
        && let Err(reason) = Confinement::probe()
    {
        return Err(UsageError(format!("kernels are to be built confined: {reason}")).into());
    }
    let virtme_ng = (backend == Backend::VirtmeNg).then(|| VirtmeNg::find(&cache)).transpose()?;
    let lab = Lab::set_up(cache, &wanted.arches(), purpose, args.accel.request(), &progress)?;
    let lab = Lab { virtme_ng, ..lab };
    let run_dir = new_run_dir(&args.runs.clone().unwrap_or_else(|| repository().join("runs")), "")?;
    let interrupt = Interrupt::watch()?;
    let preparing = Preparing {
        suite: &asked.suite,
        each_patch: args.series.each_patch,
        unconfined: args.series.unconfined,
        cache: &lab.cache,
        run_dir: &run_dir,
        progress: &progress,
        interrupt: &interrupt,
    };
    let prepared = preparing.prepare(&wanted).inspect_err(|_| {
        // What make said stays.
        if !run_dir.kernels().exists() {
            discard(&run_dir);
        }
    })?;
    let compared = !prepared.series.is_empty();
    let planned = lab.plan(&asked, prepared, compared, run_dir, &progress)?;
    drop(progress);
    // From here on nextest hears signals.
    if interrupt.came() {
        return Err(Interrupted.into());
    }
    drop(interrupt);
    if args.list {
        return lab.list(&planned, &args.selection).map(Measured::Nothing);
    }
    let (run, run_dir) = lab.run(planned, &args.selection)?;
    Ok(Measured::Cells(Box::new(run), run_dir))
}

/// What the suite's guests are run for.
pub fn purpose(suite: &Suite) -> Purpose {
    if suite.experiments.contains(&Experiment::DeliverRecords) {
        Purpose::Delivering
    } else {
        Purpose::Measuring
    }
}

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
    /// Where it starts the guests.
    virtme_ng: Option<VirtmeNg>,
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
}

impl Lab {
    pub fn set_up(
        cache: Cache,
        arches: &[Arch],
        purpose: Purpose,
        accel: accel::Request,
        progress: &Progress,
    ) -> Result<Lab> {
        let find = |&arch: &Arch| Ok((arch, Qemu::find(&cache, arch, purpose)?));
        let qemus = arches.iter().map(find).collect::<Result<BTreeMap<Arch, Qemu>>>()?;
        progress.step("building the plugin, the guest agent and the cells");
        let built = artifacts::build(&cache, arches)?;
        Ok(Lab { qemus, built, cells: Cells::build()?, accel, cache, virtme_ng: None })
    }

    /// Boots nothing but, once, a guest to try KVM. `compared` says whether the kernels are.
    pub fn plan(
        &self,
        asked: &Asked,
        Prepared { kernels, series }: Prepared,
        compared: bool,
        run_dir: RunDir,
        progress: &Progress,
    ) -> Result<Planned> {
        let Asked { suite, reference } = asked;
        let mut accels = BTreeMap::new();
        let mut guests = Vec::new();
        for (image, budgets_of) in
            kernels.iter().filter_map(|kernel| Some((kernel.image.as_ref()?, &kernel.budgets_of)))
        {
            let initrd = initramfs(&self.cache, &self.built.agents[&image.arch], image)?;
            let accel = match accels.get(&image.arch) {
                Some(&known) => known,
                None => self.choose_accel(image, &initrd, progress)?,
            };
            accels.insert(image.arch, accel);
            let undeliverable = self.qemus[&image.arch].undeliverable();
            let backend = self.backend();
            guests.push(Guest { image, initrd, accel, backend, undeliverable, budgets_of });
        }
        // Of what was not built nothing boots.
        let accel_of = |arch: Arch| accels.get(&arch).copied().unwrap_or(Accel::Tcg);
        if let Some(name) = plan::contradiction(suite) {
            let message = format!(
                "{}: {name} is asked for twice, with different rounds, clock or the like: a test is measured once",
                reference.file
            );
            return Err(UsageError(message).into());
        }
        let cells = plan::cells(suite, &guests, compared);
        for warning in plan::idle_budgets(suite, &cells) {
            progress.line(&format!("warning: {}: {warning}", reference.file));
        }

        let plan = Plan {
            run_dir: run_dir.path().to_owned(),
            emulators: self
                .qemus
                .iter()
                .map(|(&arch, qemu)| {
                    let plugin = (accel_of(arch) == Accel::Tcg).then(|| self.built.plugin.clone());
                    let virtme = self.virtme_ng.as_ref().map(|VirtmeNg { vng, .. }| {
                        let agent = self.built.agents[&arch].clone();
                        vm::Virtme { vng: vng.clone(), agent }
                    });
                    (arch, Emulator { qemu: qemu.program.clone(), plugin, virtme })
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
            command: std::env::args().collect(),
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
                        cpu: vm::cpu_model(accel_of(arch), arch).to_owned(),
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
            interrupted: false,
            shard: None,
            joined: None,
        };
        keep_configs(&kernels, &run_dir)?;
        Ok(Planned { plan, run, run_dir })
    }

    /// Names the selected cells; the exit code.
    fn list(&self, planned: &Planned, selection: &Selection) -> Result<u8> {
        let Planned { plan, run, run_dir } = planned;
        let listed = self.cells.run(plan, selection, true, |_| ());
        listed.inspect_err(|_| discard(run_dir))?;
        if run.kernels.iter().any(|kernel| kernel.image_sha256.is_none()) {
            eprintln!("a kernel does not build; what make said is in {}", run_dir.kernels().display());
            return Ok(exit::NO_MEASUREMENT);
        }
        discard(run_dir);
        Ok(exit::PASS)
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

    /// KVM if a guest answered under it, else TCG, visibly.
    fn choose_accel(&self, image: &kernel::Image, initrd: &Path, progress: &Progress) -> Result<Accel> {
        let qemu = &self.qemus[&image.arch].program;
        let probe = || {
            progress.step("trying KVM with a guest");
            let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
            let vm = Vm::boot(Spec {
                qemu: qemu.clone(),
                arch: image.arch,
                accel: Accel::Kvm,
                clock: Clock::Free,
                kernel: image.image.clone(),
                initrd: initrd.to_owned(),
                // Whether KVM works is the same question.
                virtme: None,
                cpus: 1,
                memory_mib: 1024,
                append: Vec::new(),
                plugin: None,
                dir: dir.path().to_owned(),
                deadlines: Deadlines { boot: KVM_PROBE, silence: KVM_PROBE },
            });
            vm.map(drop).map_err(|e| e.to_string())
        };
        let memory = self.cache.folder("accel").map(|folder| folder.join("kvm.json"))?;
        let choice = accel::choose(
            self.accel,
            Arch::host() != Some(image.arch),
            &memory,
            &accel::Circumstances::of(qemu),
            probe,
        )?;
        if let Some(reason) = choice.fallback {
            progress.line(&format!("KVM runs no guest here ({reason}); using TCG"));
        }
        Ok(choice.accel)
    }
}

/// Runs the cells, saving the run after each, so that nothing measured is lost.
fn run_cells(
    cells: &Cells,
    selection: &Selection,
    plan: &Plan,
    run_dir: &RunDir,
    mut run: Run,
) -> Result<Run> {
    let mut progress = Progress::cells(plan.cells().count() as u64);
    run_dir.save(&run)?;
    let (mut failed, mut cancelled) = (None, false);
    let mut end = End::Done;
    if !plan.jobs.is_empty() {
        end = cells.run(plan, selection, false, |event| match event {
            Event::Shard { partition, jobs } => {
                let cells =
                    plan.jobs.iter().filter(|job| jobs.contains(&job.name)).flat_map(|job| &job.cells);
                run.shard = Some(Shard { partition, cells: cells.map(|cell| cell.id.clone()).collect() });
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
                for planned in &job.cells {
                    let result = match run_dir.load_cell(&planned.id) {
                        Ok(Some(result)) => result,
                        // Stopped by the interrupt: as good as not begun.
                        Ok(None) if cancelled => {
                            progress.finished(&format!("stop  {}", planned.id.name()));
                            continue;
                        }
                        Ok(None) => no_result(planned, &how, timed_out, taken.as_millis() as u64),
                        Err(error) => no_result(planned, &error.to_string(), false, taken.as_millis() as u64),
                    };
                    progress.finished(&tramplab::report::cell_line(&result));
                    run.cells.push(result);
                }
                if let Err(error) = run_dir.save(&run) {
                    failed.get_or_insert(error);
                }
                point_latest_at(run_dir);
            }
        })?;
    } else {
        point_latest_at(run_dir);
    }
    drop(progress);
    if let Some(error) = failed {
        return Err(error.into());
    }
    run.interrupted = matches!(end, End::Interrupted);
    run.finished = Some(now());
    // Cells end in the order of the machine's mood; the suite's order reads better and is the same every time.
    // Builds, which are not in the plan, come first.
    run.cells.sort_by_key(|cell| plan.cells().position(|planned| planned.id == cell.id));
    compare::judge(&mut run);
    run_dir.save(&run)?;
    Ok(run)
}

/// The build of a kernel, as a cell.
fn build_cell(kernel: &kernels::Ready, accel: Accel) -> Option<Cell> {
    let build = kernel.build.as_ref()?;
    Some(Cell {
        id: CellId { kernel: kernel.facts.name.clone(), arch: kernel.facts.arch, accel, test: Test::Build },
        outcome: build.outcome.clone(),
        duration_ms: build.taken.as_millis() as u64,
        boot_ms: None,
        guest: None,
        measurement: None,
        console_tail: Vec::new(),
    })
}

/// A cell whose process ended before it could say how.
fn no_result(planned: &PlannedCell, how: &str, timed_out: bool, duration_ms: u64) -> Cell {
    let kind = if timed_out { ErrorKind::Timeout } else { ErrorKind::Harness };
    Cell {
        id: planned.id.clone(),
        outcome: Outcome::Error { kind, message: format!("the cell's process left no result: {how}") },
        duration_ms,
        boot_ms: None,
        guest: None,
        measurement: None,
        console_tail: Vec::new(),
    }
}

pub fn finish(run: &Run, run_dir: &RunDir, look: &Look) -> Result<u8> {
    report::print(&report::render(run, look, report::colour())?)?;
    report::write_all(run, run_dir)?;
    eprintln!("run kept in {}", run_dir.path().display());
    Ok(exit_code(run))
}

/// What a run means to a caller; documented in the README.
pub fn exit_code(run: &Run) -> u8 {
    let any = |of: fn(&Outcome) -> bool| run.cells.iter().any(|cell| of(&cell.outcome));
    if run.interrupted {
        exit::INTERRUPTED
    } else if any(|outcome| matches!(outcome, Outcome::Fail { .. })) {
        exit::FAIL
    } else if any(|outcome| matches!(outcome, Outcome::Error { .. }))
        || run.cells.iter().all(|cell| cell.id.test == Test::Build)
        || (run.shard.is_none() && compares_nothing(run))
        || run.joined.as_ref().is_some_and(|joined| joined.runs.len() < joined.expected)
    {
        // Building a kernel measures nothing, and two kernels that skip everything were not compared: of a shard that may be, as
        // what the others measured is judged together with it. Of a part that is missing nothing is known.
        exit::NO_MEASUREMENT
    } else {
        exit::PASS
    }
}

/// Whether there is a series, and on some architecture no number of its base has one of its head beside it.
fn compares_nothing(run: &Run) -> bool {
    run.series.iter().any(|series| compare::whole(run, series, None).is_empty())
}

pub fn suite_file(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.extension().is_some() || name.contains('/') {
        return Ok(path.to_owned());
    }
    let folder = repository().join("configs/suites");
    let file = folder.join(name).with_extension("yaml");
    if !file.exists() {
        let mut names: Vec<String> = fs::read_dir(&folder)
            .with_context(|| format!("failed to read {}", folder.display()))?
            .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
            .collect();
        names.sort();
        return Err(UsageError(format!("no suite `{name}`; there are: {}", names.join(", "))).into());
    }
    Ok(file)
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
        key = apt::hex(&Sha256::digest(format!("{key} {}", sha256(module)?)));
    }
    let entry = cache.entry("initramfs", &key, |dir| {
        vm::initramfs::build(agent, &image.modules, &dir.join(INITRAMFS)).map_err(InitramfsError::Write)
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

/// A guest under KVM answers within two seconds; one that hangs costs this much, and is then remembered.
const KVM_PROBE: Duration = Duration::from_secs(10);

fn host_facts() -> run::Host {
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

/// A folder named after the moment, with `prefix` before it.
pub fn new_run_dir(runs: &Path, prefix: &str) -> Result<RunDir> {
    let stamp = OffsetDateTime::now_utc()
        .format(format_description!("[year][month][day]-[hour][minute][second]"))
        .expect("a date is formattable");
    let id = format!("{prefix}{stamp}-{:04x}", std::process::id() & 0xffff);
    let path = runs.join(id);
    fs::create_dir_all(&path)
        .with_context(|| format!("failed to create the run's folder {}", path.display()))?;
    Ok(RunDir::new(fs::canonicalize(path)?))
}

/// For a run that did not begin.
fn discard(run_dir: &RunDir) {
    // What cannot be removed is an empty run, and says so.
    let _ = fs::remove_dir_all(run_dir.path());
}

/// `runs/latest`: a convenience, which a file system without symlinks does without.
fn point_latest_at(run_dir: &RunDir) {
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
