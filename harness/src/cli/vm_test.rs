// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm-test`: the main job, from a suite to a report.

use super::{
    UsageError, artifacts, exit,
    nextest::{Cells, End, Event, Selection},
    progress::Progress,
    report::{self, Look},
    repository,
};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description};
use tramplab::{
    host::{self, Cache, Qemu},
    kernel,
    run::{self, Accel, Cell, ErrorKind, Outcome, Run, RunDir, SCHEMA, SuiteRef},
    suite::{self, Plan, PlannedCell, Suite, plan},
    vm::{self, AccelChoice},
};

#[derive(clap::Args)]
pub struct Args {
    /// Install or name what is missing, fetch QEMU, then run
    #[arg(long)]
    setup: bool,
    /// What to run: a name in configs/suites/ or a file
    #[arg(long, value_name = "SUITE", default_value = "quick")]
    suite: String,
    /// Run on these kernels instead of the suite's: names in kernels/, manifests, or images; repeatable
    #[arg(long = "kernel", value_name = "KERNEL")]
    kernels: Vec<String>,
    /// KVM counts only when a guest answered under it
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,
    /// Fetch and build everything anew
    #[arg(long)]
    no_cache: bool,
    /// Where runs are kept [default: runs/ of the repository]
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    /// Name the selected cells, run none
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    look: Look,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum AccelArg {
    Auto,
    Kvm,
    Tcg,
}

pub fn vm_test(args: &Args) -> Result<u8> {
    let suite_file = suite_file(&args.suite)?;
    let suite = suite::load(&suite_file)?;
    let cache = Cache::open(!args.no_cache)?;
    let progress = Progress::steps();
    if args.setup {
        host::setup(&cache, &mut |step| progress.step(step))?;
    }
    let qemu = Qemu::find(&cache)?;
    let kernels = fetch_kernels(args, &suite, &cache, &progress)?;

    progress.step("building the plugin, the guest agent and the cells");
    let built = artifacts::build()?;
    let cells_binary = Cells::build()?;
    let initrd = initramfs(&cache, &built.agent)?;

    let accel = choose_accel(args.accel, &cache, &qemu, &kernels[0], &initrd, &progress)?;
    let cells = plan::cells(&suite, &kernels, accel);
    for warning in plan::idle_budgets(&suite, &kernels, &cells) {
        progress.line(&format!("warning: {}: {warning}", suite_file.display()));
    }

    let (id, run_dir) = new_run_dir(args.runs.clone().unwrap_or_else(|| repository().join("runs")))?;
    let plan = Plan {
        run_dir: run_dir.path().to_owned(),
        qemu: qemu.program.clone(),
        initrd,
        plugin: (accel == Accel::Tcg).then_some(built.plugin),
        cells,
    };
    plan.save().with_context(|| format!("failed to write the plan into {}", run_dir.path().display()))?;
    // SAFETY: no other thread of this process runs yet.
    unsafe { std::env::set_var(plan::PLAN_ENV, Plan::path(&plan.run_dir)) };
    drop(progress);
    if args.list {
        let listed = cells_binary.run(&args.selection, true, |_| ());
        fs::remove_dir_all(run_dir.path())?;
        listed?;
        return Ok(exit::PASS);
    }

    let run = Run {
        schema: SCHEMA,
        id,
        started: now(),
        finished: None,
        tramplab: env!("CARGO_PKG_VERSION").to_owned(),
        command: std::env::args().collect(),
        host: host_facts(&qemu),
        suite: SuiteRef {
            name: suite.name.clone(),
            file: suite_file.display().to_string(),
            sha256: sha256(&suite_file)?,
        },
        kernels: kernels.iter().map(kernel_facts).collect(),
        cells: Vec::new(),
        interrupted: false,
    };
    let run = run_cells(&cells_binary, args, &plan, &run_dir, run)?;
    finish(&run, &run_dir, &args.look)
}

/// Runs the cells, saving the run after each, so that nothing measured is lost.
fn run_cells(cells: &Cells, args: &Args, plan: &Plan, run_dir: &RunDir, mut run: Run) -> Result<Run> {
    let mut progress = Progress::cells(plan.cells.len() as u64);
    run_dir.save(&run)?;
    let mut failed = None;
    let end = cells.run(&args.selection, false, |event| match event {
        Event::Started { cell } => progress.started(cell),
        Event::Slow { cell, elapsed, will_terminate } => {
            let what = if will_terminate { "is terminated after" } else { "is slow:" };
            progress.line(&format!("{cell} {what} {} s", elapsed.as_secs()));
        }
        Event::Cancelled => progress.line("interrupted: stopping the guests; what was measured is kept"),
        Event::Finished { cell, how, timed_out, taken } => {
            let Some(planned) = plan.cells.iter().find(|planned| planned.id.name() == cell) else { return };
            let result = match run_dir.load_cell(&planned.id) {
                Ok(Some(result)) => result,
                Ok(None) => no_result(planned, &how, timed_out, taken.as_millis() as u64),
                Err(error) => no_result(planned, &error.to_string(), false, taken.as_millis() as u64),
            };
            progress.finished(cell, &tramplab::report::cell_line(&result));
            run.cells.push(result);
            if let Err(error) = run_dir.save(&run) {
                failed.get_or_insert(error);
            }
        }
    })?;
    drop(progress);
    if let Some(error) = failed {
        return Err(error.into());
    }
    run.interrupted = matches!(end, End::Interrupted);
    run.finished = Some(now());
    // Cells end in the order of the machine's mood; the suite's order reads better and is the same every time.
    run.cells.sort_by_key(|cell| plan.cells.iter().position(|planned| planned.id == cell.id));
    run_dir.save(&run)?;
    Ok(run)
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

fn finish(run: &Run, run_dir: &RunDir, look: &Look) -> Result<u8> {
    report::write_all(run, run_dir)?;
    report::print(&report::render(run, look, report::colour())?)?;
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
    } else if any(|outcome| matches!(outcome, Outcome::Error { .. })) || run.cells.is_empty() {
        exit::NO_MEASUREMENT
    } else {
        exit::PASS
    }
}

fn suite_file(name: &str) -> Result<PathBuf> {
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

fn fetch_kernels(
    args: &Args,
    suite: &Suite,
    cache: &Cache,
    progress: &Progress,
) -> Result<Vec<kernel::Image>> {
    let names = if args.kernels.is_empty() { &suite.kernels } else { &args.kernels };
    let mut images = Vec::new();
    for name in names {
        let manifest = kernel::find(name, &repository().join("kernels"))?;
        let image = kernel::fetch(&manifest, cache, &mut |step| progress.step(step))?;
        let missing =
            image.config.as_ref().map(|config| config.missing(kernel::kconfig::required_base(image.arch)));
        if let Some(missing) = missing.filter(|missing| !missing.is_empty()) {
            let options: Vec<String> = missing.iter().map(ToString::to_string).collect();
            bail!("kernel {name} cannot be measured: it is built without {}", options.join(", "));
        }
        images.push(image);
    }
    if images.is_empty() {
        bail!("the suite names no kernel");
    }
    Ok(images)
}

pub fn initramfs(cache: &Cache, agent: &Path) -> Result<PathBuf> {
    let entry = cache.entry("initramfs", &sha256(agent)?, |dir| {
        vm::initramfs::build(agent, &dir.join("initramfs.cpio"))
    })?;
    Ok(entry.join("initramfs.cpio"))
}

fn new_run_dir(runs: PathBuf) -> Result<(String, RunDir)> {
    let stamp = OffsetDateTime::now_utc()
        .format(format_description!("[year][month][day]-[hour][minute][second]"))
        .expect("a date is formattable");
    let id = format!("{stamp}-{:04x}", std::process::id() & 0xffff);
    let path = runs.join(&id);
    fs::create_dir_all(&path)
        .with_context(|| format!("failed to create the run's folder {}", path.display()))?;
    // A convenience; a file system without symlinks does without.
    let latest = runs.join("latest");
    let _ = fs::remove_file(&latest);
    let _ = std::os::unix::fs::symlink(&id, &latest);
    Ok((id, RunDir::new(fs::canonicalize(path)?)))
}

fn now() -> String {
    OffsetDateTime::now_utc()
        .replace_nanosecond(0)
        .expect("0 is valid")
        .format(&Rfc3339)
        .expect("formattable")
}

fn sha256(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn kernel_facts(image: &kernel::Image) -> run::Kernel {
    run::Kernel {
        name: image.name.clone(),
        arch: image.arch,
        source: image.source.clone(),
        image_sha256: image.sha256.clone(),
    }
}
