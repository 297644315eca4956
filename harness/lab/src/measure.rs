// SPDX-License-Identifier: MIT OR Apache-2.0
//! The main job: from a suite and kernels to a run.

use crate::{
    cache_limit, cpus,
    error::{Error, Result},
    event::{Event, Tell},
    functions,
    interrupt::Interrupt,
    kernels::{Prepared, Preparing, SeriesOptions, Wanted},
    lab::{Asked, Guests, Lab, NotBuilt, Planned, Wanting},
    listing::{self, Listed},
    nextest::cells::Selection,
    place::place,
    planning, programs,
    rerun::Earlier,
    run_dir::{discard, new_run_dir, note_newest, sha256},
    setup,
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use time::OffsetDateTime;
use tramplab_host::{Cache, Purpose, runs::RunDir};
use tramplab_kernel::{compile::Confinement, series, source::check_tree};
use tramplab_model::{
    run::{Arch, Backend, Run, SuiteRef},
    selftests, text,
};
use tramplab_protocol::message::Explain;
use tramplab_suite::{
    self as suite, Allowance, Clocks, Experiment, Suite, TargetSet, TestGroup, plan,
};
use tramplab_vm::{accel, branches};

/// Options of a measurement.
#[derive(Clone)]
pub struct Options {
    /// A name in configs/suites/, or a file.
    pub suite: String,
    /// Kernels instead of the suite's: names in kernels/, manifests, images, or sources to build.
    pub kernels: Vec<String>,
    /// A folder to measure as a kernel, if it is a kernel's tree and nothing else is named.
    pub here: Option<PathBuf>,
    /// Empty: this machine's architecture.
    pub arches: BTreeSet<Arch>,
    pub series: SeriesOptions,
    /// Fail if builds cannot be confined.
    pub confined: bool,
    pub backend: Backend,
    pub accel: accel::Request,
    pub branches: branches::Request,
    /// The clock of attach tests, instead of the suite's.
    pub clocks: Option<Clocks>,
    /// How to explain attach times, instead of the suite's.
    pub explain: BTreeSet<Explain>,
    pub experiments: BTreeSet<Experiment>,
    /// Functions to trace instead of the suite's: names, or files with a name per line.
    pub functions: Vec<String>,
    /// A line for the guest's shell that hits the functions.
    pub trigger: Option<String>,
    /// Programs to measure instead of the harness' own: object files, or FILE:PROGRAM.
    pub programs: Vec<String>,
    /// Install what is missing.
    pub setup: bool,
    pub no_cache: bool,
    /// Boot each guest.
    pub cold: bool,
    /// Where runs are kept, if not in the usual folder.
    pub runs: Option<PathBuf>,
    pub until: Until,
    /// Kept with the run, for every report.
    pub notes: Vec<String>,
    /// The run whose cells without a result are measured, instead of the selected ones.
    pub rerun: Option<Earlier>,
    pub selection: Selection,
    /// Build cached kernels again if their source lines are not in the cache.
    pub lines: bool,
    /// The CPUs as which guests boot, or the family whose records reports show.
    pub models: Vec<cpus::Asked>,
    /// The command line, kept with the run.
    pub command: Vec<String>,
}

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Name the selected cells.
    Listed,
    /// Fetch and build everything.
    Built,
    Measured,
}

impl Options {
    /// The suite as it is, on its own kernels.
    pub fn of_suite(suite: impl Into<String>, command: Vec<String>) -> Options {
        Options {
            suite: suite.into(),
            kernels: Vec::new(),
            here: None,
            arches: BTreeSet::new(),
            series: SeriesOptions::default(),
            confined: false,
            backend: Backend::Qemu,
            accel: accel::Request::Auto,
            branches: branches::Request::Auto,
            clocks: None,
            explain: BTreeSet::new(),
            experiments: BTreeSet::new(),
            functions: Vec::new(),
            trigger: None,
            programs: Vec::new(),
            setup: false,
            no_cache: false,
            cold: false,
            runs: None,
            until: Until::Measured,
            notes: Vec::new(),
            rerun: None,
            selection: Selection::default(),
            lines: false,
            models: Vec::new(),
            command,
        }
    }

    /// The suite with what the options change of it.
    fn overridden(&self, mut suite: Suite, tell: Tell) -> Result<Suite> {
        suite.experiments.extend(&self.experiments);
        for Allowance { warning, until, .. } in suite.expire(OffsetDateTime::now_utc().date()) {
            tell(Event::Line(&format!(
                "warning: the suite allowed `{warning}` until {until}: it is an error again"
            )));
        }
        let programs = programs::read(&self.programs, &self.kept())?;
        if !programs.is_empty() {
            suite = programs::attached(suite, &programs)?;
        }
        let functions = functions::read(&self.functions)?;
        if !functions.is_empty() {
            suite = traced(suite, &functions)?;
        }
        if let Some(line) = &self.trigger {
            suite = triggered(suite, line)?;
        }
        let name = &suite.name;
        if suite.delivers_records() && !suite.asks_for_records() {
            return Err(Error::Usage(format!(
                "deliver-records needs lbr_waste tests or test_progs' {}; the suite `{name}` has \
                 neither",
                selftests::SNAPSHOT_TEST
            )));
        }
        let attaches = suite.tests.iter().any(|group| matches!(group, TestGroup::Attach(_)));
        if !attaches && !self.explain.is_empty() {
            let message =
                format!("--explain applies only to attach tests; the suite `{name}` has none");
            return Err(Error::Usage(message));
        }
        if !attaches && self.clocks.is_some() {
            // Callers that want repeatable numbers of any suite need not know which tests have a
            // clock.
            tell(Event::Line(&format!(
                "warning: --clock applies only to attach tests; the suite `{name}` has none"
            )));
        }
        Ok(suite.with(self.clocks, (!self.explain.is_empty()).then_some(&self.explain)))
    }

    /// The kernel's tree that the user is in, unless a kernel is named.
    pub fn tree(&self) -> Option<PathBuf> {
        let is_shipped = |spec: &String| series::is_shipped(spec, &place().series_with(spec));
        let names_kernel = !self.kernels.is_empty()
            || self.rerun.is_some()
            || self.series.series.as_ref().is_some_and(is_shipped);
        let here = self.here.as_ref().filter(|_| !names_kernel);
        let mut folders = here.into_iter().flat_map(|here| here.ancestors());
        folders.find(|folder| check_tree(folder).is_ok()).map(Path::to_owned)
    }

    /// With the kernel's tree that the user is in.
    fn in_tree(mut self, tell: Tell) -> Options {
        if let Some(tree) = self.tree().as_deref().and_then(Path::to_str) {
            tell(Event::Line(&format!("the kernel is the tree that you are in: --kernel {tree}")));
            self.kernels = vec![tree.to_owned()];
            // Before `--`, behind which names of cells stand.
            let options = self.command.len().min(2);
            self.command.splice(options..options, ["--kernel".to_owned(), tree.to_owned()]);
        }
        self
    }

    /// The copies of object files in the run that is gone on with.
    fn kept(&self) -> impl Fn(&Path) -> Option<PathBuf> {
        |file| self.rerun.as_ref()?.kept_program(file)
    }

    /// The source of branch records. Rejects contradictions with the suite and the accelerator.
    fn branches(&self, suite: &Suite) -> Result<branches::Request> {
        use branches::Request;
        let delivers = suite.delivers_records();
        match self.branches {
            Request::Auto | Request::Virtual if delivers => Ok(Request::Virtual),
            Request::Auto => Ok(Request::Auto),
            // Callers that want repeatable numbers of any suite need not know which tests have
            // records.
            Request::Virtual => Ok(Request::Virtual),
            Request::Hardware if !suite.counts_records() => Err(Error::Usage(format!(
                "--branches applies only to lbr_waste tests; the suite `{}` has none",
                suite.name
            ))),
            Request::Hardware if delivers => Err(Error::usage(
                "deliver-records delivers virtual branch records; --branches hardware asks for the \
                 CPU's own",
            )),
            Request::Hardware
                if self.accel == accel::Request::Only(tramplab_model::run::Accel::Tcg) =>
            {
                Err(Error::usage("--branches hardware needs KVM; remove --accel tcg"))
            }
            Request::Hardware => Ok(Request::Hardware),
        }
    }
}

/// The suite with a command that hits its functions.
fn triggered(suite: Suite, line: &str) -> Result<Suite> {
    let name = suite.name.clone();
    let hit = suite.triggering(line).ok_or_else(|| {
        Error::Usage(format!(
            "--trigger applies only to lbr_waste and trigger tests; the suite `{name}` has none"
        ))
    })?;
    match hit.tests.iter().find_map(|group| group.group().misfit()) {
        Some(why) => Err(Error::Usage(format!("--trigger: {why}"))),
        None => Ok(hit),
    }
}

/// The result of a measurement.
pub enum Measured {
    Run {
        run: Box<Run>,
        run_dir: RunDir,
    },
    Listed(Listed),
    /// All kernels were fetched and built.
    Built,
    /// Some kernel does not build.
    NotBuilt(NotBuilt),
}

pub fn measure(options: &Options, tell: Tell) -> Result<Measured> {
    let options = &options.clone().in_tree(tell);
    let asked = asked(options, tell)?;
    // Rejects a bad limit before the run, not after it.
    cache_limit::limit()?;
    let lists = options.until == Until::Listed;
    // Waits for nobody who prunes the cache.
    let cache = if lists { Cache::located(true) } else { Cache::open(!options.no_cache) }?;
    let arches: Vec<Arch> = options.arches.iter().copied().collect();
    let models = cpus::named(&options.models)?;
    let wanted = Wanted::new(&options.kernels, &arches, &options.series, &models, &asked.suite)?;
    cpus::check(&options.models, &models, &wanted.arches())?;
    if let Some(misfit) = plan::misfit(&asked.suite) {
        return Err(Error::Usage(format!("{}: {misfit}", asked.reference.file)));
    }
    let wanting = wanting(options, &asked, &wanted, &cache, tell)?;
    if lists {
        return Ok(Measured::Listed(listing::list(options, &asked, &wanted, &cache, tell)?));
    }
    let lab = Lab::set_up(cache, &wanted.arches(), wanting, tell)?;
    lab.check(&options.selection)?;
    let (planned, selection) = plan_run(options, &asked, &wanted, &lab, tell)?;
    Ok(match options.until {
        Until::Built => lab.stop_before_cells(&planned).map_or(Measured::Built, Measured::NotBuilt),
        Until::Listed => unreachable!("returned before"),
        Until::Measured => {
            note_newest(&planned.run_dir, place().runs().ok().as_deref());
            let (run, run_dir) = lab.run(planned, &selection, tell)?;
            cache_limit::keep_within(&lab.cache, tell);
            Measured::Run { run: Box::new(run), run_dir }
        }
    })
}

/// The suite's tests of these functions. Each must have one.
fn traced(suite: Suite, functions: &[TargetSet]) -> Result<Suite> {
    let name = suite.name.clone();
    let takes_functions = |group: &TestGroup| {
        matches!(group, TestGroup::LbrWaste(_) | TestGroup::Trigger(_) | TestGroup::Attach(_))
    };
    if !suite.tests.iter().any(takes_functions) {
        return Err(Error::Usage(format!(
            "--function applies only to lbr_waste, trigger and attach tests; the suite `{name}` \
             has none"
        )));
    }
    let traced = suite.tracing(functions);
    let traced = traced.map_err(|error| Error::Usage(format!("--function: {error}")))?;
    let is_idle = |set: &&TargetSet| !traced.as_ref().is_some_and(|suite| suite.traces(set));
    let idle = functions.iter().find(is_idle).map(|set| match &set.binary {
        Some(_) => format!("{set}, a file with user-space code; `--suite uprobes` has some"),
        None => format!("the kernel's function {set}; a file needs a slash: ./{set}"),
    });
    match (traced, idle) {
        (Some(traced), None) => Ok(traced),
        (_, idle) => Err(Error::Usage(format!(
            "--function: the suite `{name}` has no test of {}",
            idle.unwrap_or_default()
        ))),
    }
}

fn asked(options: &Options, tell: Tell) -> Result<Asked> {
    let file = suite_file(&options.suite)?;
    let suite = options.overridden(suite::load(&file, &options.kept())?, tell)?;
    programs::check_names(&suite)?;
    let reference = SuiteRef {
        name: suite.name.clone(),
        file: file.display().to_string(),
        sha256: sha256(&file)?,
    };
    Ok(Asked { suite, reference })
}

/// Makes the run's folder, fetches or builds its kernels, and plans its cells.
fn plan_run(
    options: &Options,
    asked: &Asked,
    wanted: &Wanted,
    lab: &Lab,
    tell: Tell,
) -> Result<(Planned, Selection)> {
    let runs = options.runs.clone().map_or_else(|| place().runs(), Ok)?;
    let run_dir = new_run_dir(&runs, "")?;
    let interrupt = Interrupt::watch()?;
    let preparing = Preparing {
        suite: &asked.suite,
        each_patch: options.series.each_patch,
        placebos: options.series.placebos,
        unconfined: options.series.unconfined,
        lines: options.lines,
        backend: options.backend,
        cache: &lab.cache,
        run_dir: &run_dir,
        tell,
        interrupt: &interrupt,
    };
    let prepared = preparing
        .prepare(wanted)
        .and_then(|prepared| check_tests(prepared, asked))
        .inspect_err(|error| {
            if matches!(error, Error::Interrupted) {
                tell(Event::Line("no cell had begun: the same command goes on, not --rerun"));
            }
            let kernels = run_dir.kernels();
            if kernels.exists() {
                tell(Event::Line(&format!("make's output is kept in {}", kernels.display())));
            } else {
                discard(&run_dir);
            }
        })?;
    let of_builds = prepared.notes();
    let is_built_here = prepared.kernels.iter().any(|kernel| kernel.build.is_some());
    let plan = || {
        let series = wanted.of_series().map(|(_, series)| series);
        let mut notes = notes(&options.notes, series.map_or(&[][..], |series| &series.notes));
        notes.extend(of_builds);
        let planned =
            planning::plan(lab, asked, prepared, series.is_some(), run_dir.clone(), tell)?;
        let mut planned = planned.with_notes(notes);
        // nextest handles signals from here on.
        if interrupt.came() {
            return Err(Error::Interrupted);
        }
        let selection = match &options.rerun {
            None => options.selection.clone(),
            Some(earlier) => Selection {
                jobs: options.selection.jobs,
                jobs_named: earlier.take_over(&mut planned)?,
                ..Selection::default()
            },
        };
        Ok((planned, selection))
    };
    plan().inspect_err(|_| {
        if !is_built_here {
            discard(&run_dir);
        }
    })
}

/// Rejects a suite whose tests no kernel's tree has.
fn check_tests(prepared: Prepared, asked: &Asked) -> Result<Prepared> {
    match &prepared.unknown_tests(&asked.suite)[..] {
        [] => Ok(prepared),
        [test, ..] => Err(Error::Usage(format!(
            "{}: no kernel's tree has {}: expected the NAME of a `void test_NAME(void)` in \
             prog_tests/, or FOLDER/PROGRAM of tools/testing/selftests",
            asked.reference.file,
            test.name()
        ))),
    }
}

/// Checks what is asked of this machine, and with `--setup` installs it.
fn wanting(
    options: &Options,
    asked: &Asked,
    wanted: &Wanted,
    cache: &Cache,
    tell: Tell,
) -> Result<Wanting> {
    let purpose =
        if asked.suite.delivers_records() { Purpose::Delivering } else { Purpose::Measuring };
    let branches = options.branches(&asked.suite)?;
    check_backend(options.backend, &wanted.arches())?;
    let of_the_host = wanted.of_the_host(purpose);
    let builds = !of_the_host.toolchains.is_empty();
    if options.setup {
        let needed = setup::Wanted { backend: options.backend, ..of_the_host };
        setup::setup(cache, &needed, &mut |step| tell(Event::Step(step)))?;
    }
    if options.confined
        && builds
        && let Err(reason) = Confinement::probe()
    {
        return Err(Error::Usage(format!(
            "--confined: this machine cannot confine builds: {reason}"
        )));
    }
    Ok(Wanting {
        purpose,
        backend: options.backend,
        accel: options.accel,
        branches,
        guests: if options.cold || options.no_cache { Guests::Cold } else { Guests::Restored },
        command: options.command.clone(),
    })
}

/// virtme-ng guests use this machine's files, which are for its own architecture.
pub fn check_backend(backend: Backend, arches: &[Arch]) -> Result<()> {
    let foreign = arches.iter().find(|&&arch| Arch::host() != Some(arch));
    match (backend, foreign) {
        (Backend::VirtmeNg, Some(arch)) => Err(Error::Usage(format!(
            "guests of virtme-ng have this machine's own files, which are not for {arch}; a guest \
             of {arch} needs `--vm qemu`, and `--deliver-records` a host of {arch}"
        ))),
        _ => Ok(()),
    }
}

/// The notes of a run, one line each. A stranger's mailbox may have more of them than anyone reads.
fn notes(given: &[String], of_series: &[String]) -> Vec<String> {
    const MOST: usize = 50;
    let rest = of_series.len().saturating_sub(MOST);
    let rest = (rest > 0).then(|| format!("left out {rest} more of the series"));
    let all = given.iter().chain(of_series.iter().take(MOST)).chain(&rest);
    all.map(|note| text::line(note).trim().to_owned()).collect()
}

/// The file of a suite, by its name or its path.
pub fn suite_file(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.extension().is_some() || name.contains('/') {
        return Ok(path.to_owned());
    }
    place().suite(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_notes_to_a_line_each_and_to_fifty() {
        let of_series = vec!["left\nout\u{1b}[2J".to_owned(); 60];
        let notes = notes(&["of the suite".to_owned()], &of_series);
        assert_eq!(notes.len(), 52);
        assert_eq!((&*notes[0], &*notes[1]), ("of the suite", "left out"));
        assert_eq!(notes[51], "left out 10 more of the series");
    }
}
