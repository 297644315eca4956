// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a measurement, and what they change of its suite.

use crate::{
    backend::Backends,
    command::CommandLine,
    cpus,
    error::{Error, Result},
    event::{Event, Tell},
    functions,
    kernels::SeriesOptions,
    nextest::cells::Selection,
    place::place,
    programs,
    rerun::Earlier,
    this_machine,
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use time::OffsetDateTime;
use tramplab_kernel::{series, source::check_tree};
use tramplab_model::{
    run::{Accel, Arch},
    tree_tests,
};
use tramplab_protocol::message::Explain;
use tramplab_suite::{
    Allowance, Clocks, Experiment, PlannedCell, Suite, TargetSet, TestGroup, functions_of_user,
};
use tramplab_vm::{accel, branches};

/// Tells the user of cells, and how much they attach at once on this machine, and returns their
/// agreement.
pub type Ask = fn(&[&PlannedCell], u32) -> Result<bool>;

/// Options of a measurement.
#[derive(Clone, Default)]
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
    pub backends: Backends,
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
    /// Asks before cells run on the user's own machine. None in guests.
    pub ask: Option<Ask>,
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
    pub models: Vec<cpus::AskedCpu>,
    /// The command, kept with the run.
    pub command: CommandLine,
}

/// How far to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// Name the selected cells.
    Listed,
    /// Fetch and build everything.
    Built,
    #[default]
    Measured,
}

impl Options {
    /// The suite with what the options change of it.
    pub(crate) fn overridden(&self, mut suite: Suite, tell: Tell) -> Result<Suite> {
        suite.experiments.extend(&self.experiments);
        for Allowance { warning, until, .. } in suite.expire(OffsetDateTime::now_utc().date()) {
            tell(Event::Line(&format!(
                "warning: the suite allowed `{warning}` until {until}: it is an error again"
            )));
        }
        if self.backends.this_machine.is_some() {
            this_machine::check(self)?;
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
                tree_tests::SNAPSHOT_TEST
            )));
        }
        let has = |is: fn(&TestGroup) -> bool| suite.tests.iter().any(is);
        let attaches = has(|group| matches!(group, TestGroup::Attach(_)));
        let estimates = has(|group| matches!(group, TestGroup::Trigger(_)))
            && self.explain.contains(&Explain::Estimated);
        if !attaches && !estimates && !self.explain.is_empty() {
            let message = format!(
                "`--explain estimated` applies only to attach and trigger tests, the others only \
                 to attach tests; the suite `{name}` has none of them"
            );
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
            || self.backends.this_machine.is_some()
            || self.rerun.is_some()
            || self.series.series.as_ref().is_some_and(is_shipped);
        let here = self.here.as_ref().filter(|_| !names_kernel);
        let mut folders = here.into_iter().flat_map(|here| here.ancestors());
        folders.find(|folder| check_tree(folder).is_ok()).map(Path::to_owned)
    }

    /// With the kernel's tree that the user is in.
    pub(crate) fn in_tree(mut self, tell: Tell) -> Options {
        if let Some(tree) = self.tree().as_deref().and_then(Path::to_str) {
            tell(Event::Line(&format!("the kernel is the tree that you are in: --kernel {tree}")));
            self.kernels = vec![tree.to_owned()];
            self.command.options.0.insert("kernel".to_owned(), self.kernels.clone());
        }
        self
    }

    /// The copies of object files in the run that is gone on with.
    pub(crate) fn kept(&self) -> impl Fn(&Path) -> Option<PathBuf> {
        |file| self.rerun.as_ref()?.kept_program(file)
    }

    /// The source of branch records. Rejects contradictions with the suite and the accelerator.
    pub(crate) fn branches(&self, suite: &Suite) -> Result<branches::Request> {
        use branches::Request;
        let delivers = suite.delivers_records();
        match self.branches {
            Request::Auto | Request::Virtual if delivers => Ok(Request::Virtual),
            // This machine's own records are compared with virtual ones.
            Request::Auto if self.backends.this_machine.is_some() => Ok(Request::Virtual),
            Request::Auto => Ok(Request::Auto),
            // Callers that want repeatable numbers of any suite need not know which tests have
            // records.
            Request::Virtual => Ok(Request::Virtual),
            Request::Hardware | Request::Emulated if !suite.counts_records() => {
                Err(Error::Usage(format!(
                    "--branches applies only to lbr_waste tests; the suite `{}` has none",
                    suite.name
                )))
            }
            Request::Hardware | Request::Emulated if delivers => Err(Error::usage(
                "deliver-records delivers virtual branch records; --branches hardware and emulated \
                 ask for a driver's",
            )),
            Request::Hardware if self.accel == accel::Request::Only(Accel::Tcg) => {
                Err(Error::usage("--branches hardware needs KVM; remove --accel tcg"))
            }
            Request::Emulated if self.accel == accel::Request::Only(Accel::Kvm) => {
                Err(Error::usage("--branches emulated needs TCG; remove --accel kvm"))
            }
            Request::Hardware | Request::Emulated => Ok(self.branches),
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
        None => format!(
            "the kernel's function {set}; a file needs a slash: ./{set}{}",
            functions_of_user(&set.to_string())
        ),
    });
    match (traced, idle) {
        (Some(traced), None) => Ok(traced),
        (_, idle) => Err(Error::Usage(format!(
            "--function: the suite `{name}` has no test of {}",
            idle.unwrap_or_default()
        ))),
    }
}
