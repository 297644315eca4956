// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask vm-test`: the main job, from a suite to a report.

use super::{
    Interrupted, UsageError, baseline, cache, exit,
    interrupt::Interrupt,
    kernels::{Preparing, SeriesArgs, Wanted},
    lab::{self, Asked, Guests, Lab, Wanting, sha256},
    nextest::Selection,
    progress::Progress,
    report::{self, Look},
    repository,
    rest::{self, Lacking},
    shell,
};
use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};
use tramplab_analysis::compare;
use tramplab_host::{Cache, Purpose, runs::RunDir};
use tramplab_kernel::compile::Confinement;
use tramplab_lab::setup;
use tramplab_model::{
    run::{Accel, Arch, Backend, Outcome, Run, SuiteRef, Test},
    selftests, text,
};
use tramplab_protocol::message::Explain;
use tramplab_suite as suite;
use tramplab_suite::{Clocks, Experiment, Suite, TestGroup, plan};
use tramplab_vm::{accel, branches};

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
    /// Whose branch records are counted: the CPU's own (KVM on Intel's Haswell to Ice Lake) or the plugin's, which are exact everywhere; `auto`
    /// takes the CPU's where guests can have them
    #[arg(long, value_enum, value_name = "WHOSE", default_value_t = BranchesArg::Auto)]
    branches: BranchesArg,
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
    /// Boot every guest, instead of restoring it from a snapshot of one that has booted
    #[arg(long)]
    cold: bool,
    /// Where runs are kept [default: runs/ of the repository]
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    /// Name the selected cells; build no kernel, run nothing
    #[arg(long)]
    list: bool,
    /// Fetch and build everything, run nothing
    #[arg(long, conflicts_with = "list")]
    no_run: bool,
    /// Keep this with the run, for every report: of whoever chose the suite (.github/ci.sh)
    #[arg(long = "note", value_name = "TEXT", hide = true)]
    notes: Vec<String>,
    /// Run the cells that RUN, which was interrupted, left without a result, and no others, whatever else selects cells; `merge` makes one run of
    /// both. Suite, kernels and options are to be those of then
    #[arg(long, value_name = "RUN", overrides_with = "rest_of")]
    rest_of: Option<PathBuf>,
    /// When a cell did not pass, boot its guest again with a shell: its kernel, its machine, its command line; needs a terminal
    #[arg(long, conflicts_with_all = ["list", "no_run"])]
    keep: bool,
    /// Write what is measured into the suite's file as budgets, and show what has changed of it
    #[arg(long, conflicts_with_all = ["list", "no_run", "series"])]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BranchesArg {
    Auto,
    Hardware,
    Virtual,
}

impl Args {
    /// Where branch records are to come from, if what was asked for goes together.
    fn branches(&self, suite: &Suite) -> Result<branches::Request> {
        let refused = |why: &str| Err(UsageError(why.to_owned()).into());
        let delivers = suite.delivers_records();
        match self.branches {
            BranchesArg::Auto | BranchesArg::Virtual if delivers => Ok(branches::Request::Virtual),
            BranchesArg::Auto => Ok(branches::Request::Auto),
            // Whoever wants numbers that repeat, of any suite, is not to know which tests have records.
            BranchesArg::Virtual if !suite.counts_records() => Ok(branches::Request::Virtual),
            _ if !suite.counts_records() => Err(UsageError(format!(
                "--branches is of lbr_waste tests, and the suite `{}` has none",
                suite.name
            ))
            .into()),
            BranchesArg::Virtual => Ok(branches::Request::Virtual),
            BranchesArg::Hardware if delivers => refused(
                "deliver-records hands out virtual branch records, and --branches hardware wants the CPU's own",
            ),
            BranchesArg::Hardware if matches!(self.accel, AccelArg::Tcg) => {
                refused("--branches hardware takes KVM, and --accel tcg was asked for")
            }
            BranchesArg::Hardware => Ok(branches::Request::Hardware),
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
    if suite.delivers_records() && !suite.asks_for_records() {
        let message = format!(
            "deliver-records is of lbr_waste tests and of test_progs' {}, and the suite `{}` has none of them",
            selftests::SNAPSHOT_TEST,
            suite.name
        );
        return Err(UsageError(message).into());
    }
    let attaches = suite.tests.iter().any(|group| matches!(group, TestGroup::Attach { .. }));
    if !attaches && !args.explain.is_empty() {
        let message =
            format!("--explain applies only to attach tests, and the suite `{}` has none", suite.name);
        return Err(UsageError(message).into());
    }
    if !attaches && args.clock.is_some() {
        // Whoever wants numbers that repeat, of any suite, is not to know which tests have a clock.
        eprintln!("--clock applies only to attach tests; the suite `{}` has none", suite.name);
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
    /// Of the rest of another run, with that.
    Cells(Box<Run>, RunDir, Option<Box<Lacking>>),
    /// No cell was to run; the exit code.
    Nothing(u8),
}

pub fn vm_test(args: &Args) -> Result<u8> {
    match measure(args)? {
        Measured::Cells(run, run_dir, rest) => {
            let code = finish(&run, &run_dir, &args.look)?;
            rest::tell(&run, &run_dir);
            if let Some(of) = &rest {
                rest::tell_of_merging(&run, &run_dir, of);
            }
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
    let rest = args.rest_of.as_deref().map(rest::interrupted).transpose()?;
    // Read early, so that no run ends with a complaint about it.
    cache::limit()?;
    let cache = Cache::open(!args.no_cache)?;
    let progress = Progress::steps();
    let arches: BTreeSet<Arch> = args.arches.iter().copied().collect();
    let wanted = Wanted::new(&args.kernels, &Vec::from_iter(arches), &args.series, &asked.suite)?;
    report::check_model(args.look.model, wanted.arches())?;
    if let Some(misfit) = plan::misfit(&asked.suite) {
        return Err(UsageError(format!("{}: {misfit}", asked.reference.file)).into());
    }
    let purpose = purpose(&asked.suite);
    let branches = args.branches(&asked.suite)?;
    let backend = Backend::from(args.vm);
    check_backend(backend, &wanted.arches())?;
    if args.setup {
        let wanted = setup::Wanted { backend, ..wanted.of_the_host(purpose) };
        setup::setup(&cache, &wanted, &mut |step| progress.step(step))?;
    }
    let builds = !wanted.of_the_host(purpose).toolchains.is_empty();
    if args.confined
        && builds
        && let Err(reason) = Confinement::probe()
    {
        return Err(UsageError(format!("kernels are to be built confined: {reason}")).into());
    }
    let guests = if args.cold || args.no_cache { Guests::Cold } else { Guests::Restored };
    let wanting = Wanting { purpose, backend, accel: args.accel.request(), branches, guests };
    let lab = Lab::set_up(cache, &wanted.arches(), wanting, &progress)?;
    lab.check(&args.selection)?;
    let run_dir = lab::new_run_dir(&args.runs.clone().unwrap_or_else(|| repository().join("runs")), "")?;
    let interrupt = Interrupt::watch()?;
    let preparing = Preparing {
        suite: &asked.suite,
        each_patch: args.series.each_patch,
        placebos: args.series.placebos,
        unconfined: args.series.unconfined,
        backend,
        cache: &lab.cache,
        run_dir: &run_dir,
        progress: &progress,
        interrupt: &interrupt,
    };
    let discard = || {
        // What make said stays.
        if !run_dir.kernels().exists() {
            lab::discard(&run_dir);
        }
    };
    // A rest is of the very kernels of its run, which only building tells.
    let prepared =
        if args.list && rest.is_none() { preparing.named(&wanted) } else { preparing.prepare(&wanted) };
    let prepared = prepared.inspect_err(|_| discard())?;
    if let [test, ..] = &prepared.unknown_tests(&asked.suite)[..] {
        let message = format!(
            "{}: no kernel's tree has {}: expected the NAME of a `void test_NAME(void)` in prog_tests/, or FOLDER/PROGRAM of \
             tools/testing/selftests",
            asked.reference.file,
            test.name()
        );
        discard();
        return Err(UsageError(message).into());
    }
    let compared = wanted.of_series().is_some();
    let is_built_here = prepared.kernels.iter().any(|kernel| kernel.build.is_some());
    let notes = notes(&args.notes, wanted.of_series().map_or(&[][..], |(_, series)| &series.notes));
    let planned = lab.plan(&asked, prepared, compared, run_dir.clone(), &progress);
    let planned = planned.map(|planned| planned.with_notes(notes));
    drop(progress);
    // From here on nextest hears signals.
    let planned = if interrupt.came() { Err(Interrupted.into()) } else { planned };
    let selected = planned.and_then(|mut planned| {
        let selection = match &rest {
            None => args.selection.clone(),
            Some(rest) => Selection {
                jobs: args.selection.jobs,
                jobs_named: rest.jobs_in(&mut planned)?,
                ..Selection::default()
            },
        };
        Ok((planned, selection))
    });
    let (planned, selection) = selected.inspect_err(|_| {
        if !is_built_here {
            lab::discard(&run_dir);
        }
    })?;
    drop(interrupt);
    if args.list {
        lab.list(&planned, &selection)?;
        return Ok(Measured::Nothing(exit::PASS));
    }
    if args.no_run {
        return Ok(Measured::Nothing(lab.stop_before_cells(&planned)));
    }
    let (run, run_dir) = lab.run(planned, &selection)?;
    cache::keep_within_limit(&lab.cache);
    Ok(Measured::Cells(Box::new(run), run_dir, rest.map(Box::new)))
}

/// The notes of a run, a line each, and not as many as a stranger's mailbox may have.
fn notes(given: &[String], of_series: &[String]) -> Vec<String> {
    const MOST: usize = 50;
    let rest = of_series.len().saturating_sub(MOST);
    let rest = (rest > 0).then(|| format!("left out {rest} more of the series"));
    let all = given.iter().chain(of_series.iter().take(MOST)).chain(&rest);
    all.map(|note| text::line(note).trim().to_owned()).collect()
}

pub fn finish(run: &Run, run_dir: &RunDir, look: &Look) -> Result<u8> {
    report::write_all(run, run_dir)?;
    report::print(&report::render(run, look, report::style())?)?;
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
        || (run.shard.is_none() && run.rest_of.is_none() && compares_nothing(run))
        || run.shortage().is_some()
    {
        // Building a kernel measures nothing, and two kernels that skip everything were not compared: of a shard, or a rest, that may be, as
        // what the others measured is judged together with it. Of a part that is missing nothing is known.
        exit::NO_MEASUREMENT
    } else {
        exit::PASS
    }
}

/// Whether there is a series, and on some architecture no number of its base has one of its head beside it.
fn compares_nothing(run: &Run) -> bool {
    run.series.iter().any(|series| {
        let comparison = compare::whole(run, series, None);
        // A series that brings its own tests is judged by them.
        comparison.is_empty() && !comparison.unmatched.iter().any(|unmatched| unmatched.is_new)
    })
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

/// What the suite's guests are run for.
pub fn purpose(suite: &Suite) -> Purpose {
    if suite.delivers_records() { Purpose::Delivering } else { Purpose::Measuring }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_a_line_each_and_not_without_end() {
        let of_series = vec!["left\nout\u{1b}[2J".to_owned(); 60];
        let notes = notes(&["of the suite".to_owned()], &of_series);
        assert_eq!(notes.len(), 52);
        assert_eq!((&*notes[0], &*notes[1]), ("of the suite", "left out"));
        assert_eq!(notes[51], "left out 10 more of the series");
    }
}
