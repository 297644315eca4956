// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bisection from its question to its answer: its folder, and the kernel of each commit.

use super::{
    Asked, History, Question, State,
    configs::{self, Configs},
    state::{self, Sources},
    walk::{Answer, Bisection},
};
use crate::{
    cpus,
    error::{Context, Error, Result},
    event::{Event, Tell},
    interrupt::Interrupt,
    kernels::{self, Preparing, Ready, SeriesOptions, Wanted},
    lab::{self, Guests, Lab, Wanting},
    place::place,
    run_dir::new_run_dir,
    scratch::Scratch,
};
use sha2::{Digest, Sha256};
use std::{fs, path::PathBuf};
use tramplab_host::{Cache, Purpose, cache::Lock, config, runs::RunDir};
use tramplab_kernel::{Source, axis, source};
use tramplab_model::{
    cpu,
    name::hex,
    run::{Arch, Backend, SuiteRef},
};
use tramplab_vm::{accel, branches};

/// Options of a bisection.
#[derive(Clone)]
pub struct Options {
    pub metric: Question,
    pub range: Range,
    /// `None`: this machine's architecture.
    pub arch: Option<Arch>,
    pub accel: accel::Request,
    /// The CPU as which guests boot: as `vm-test --model` takes it.
    pub model: Option<String>,
    /// Build without confinement.
    pub unconfined: bool,
    /// Where runs are kept; `None`: runs/ of the repository.
    pub runs: Option<PathBuf>,
    /// The command line, kept with each run.
    pub command: Vec<String>,
}

/// The commits that are searched.
#[derive(Clone)]
pub enum Range {
    Repository(Repository),
    /// The patches of a series, on a kernel; both as `vm-test` takes them.
    Series {
        series: String,
        kernel: Option<String>,
    },
    /// The differences of two configurations of a kernel.
    Configs(Configs),
}

#[derive(Clone)]
pub struct Repository {
    pub tree: PathBuf,
    pub good: String,
    pub bad: String,
    /// Answer only for the commit that `git bisect run` has chosen.
    pub by_hand: bool,
}

pub fn bisect(options: &Options, tell: Tell) -> Result<Answer> {
    match &options.range {
        Range::Repository(range) => of_tree(options, range, tell),
        Range::Series { series, kernel } => of_series(options, series, kernel.as_deref(), tell),
        Range::Configs(range) => configs::bisect(options, range, tell),
    }
}

fn of_tree(options: &Options, range: &Repository, tell: Tell) -> Result<Answer> {
    let Repository { tree, good, bad, by_hand } = range;
    let setting = Setting::new(options, tell)?;
    let arch = options.arch.or(Arch::host()).unwrap_or(Arch::X86_64);
    let tree = fs::canonicalize(tree).map_err(|error| {
        Error::Usage(format!("failed to find the tree {}: {error}", tree.display()))
    })?;
    let kernel = |commit: &str| format!("git:{}#{commit}", tree.display());
    let manifest =
        |commit: &str| Ok::<_, Error>(kernels::find(&kernel(commit), &[arch])?.remove(0));
    let resolve = |reference: &str| -> Result<String> {
        let manifest = manifest(reference)?;
        let Source::Built(recipe) = &manifest.source else {
            unreachable!("what git: names is built")
        };
        let sources = source::resolve(&recipe.tree, &setting.cache, &mut |_| ())?;
        Ok(sources.commit().expect("of git").to_owned())
    };
    let asked = Asked {
        question: options.metric.to_string(),
        sources: Sources::Repository(tree.clone()),
        good: resolve(good)?,
        bad: resolve(bad)?,
        arch,
        accel: setting.accel.clone(),
        by_hand: *by_hand,
        model: setting.model.clone(),
    };
    // `git bisect --no-checkout` leaves HEAD alone and moves BISECT_HEAD.
    let chosen =
        by_hand.then(|| resolve("BISECT_HEAD").or_else(|_| resolve("HEAD"))).transpose()?;
    let suite =
        options.metric.suite([&asked.good, &asked.bad].map(|commit| kernel(commit)).to_vec());
    let (lab, place, lock) = setting.open(&asked, suite, options, &[arch])?;
    let history = History::of_repository(&tree, &place.folder.path().join("git"))?;
    let preparing = setting.preparing(&lab, &place);
    let mut make = |commit: &str| {
        let mut manifest = manifest(commit)?;
        if let Source::Built(recipe) = &mut manifest.source {
            // The user names it as good; no candidate is built on another one.
            recipe.variation.starts_from = Some(asked.good.clone());
        }
        preparing.tried(&manifest)
    };
    let reproduce = |before: &str, after: &str| {
        format!("--kernel {} --kernel {}", quoted(&kernel(before)), quoted(&kernel(after)))
    };
    let bisection =
        Bisection::new(&setting, &lab, place.clone(), lock, history, &reproduce, &mut make)?;
    match chosen {
        Some(commit) => bisection.answer_for(&commit),
        None => bisection.search(),
    }
}

fn of_series(options: &Options, spec: &str, kernel: Option<&str>, tell: Tell) -> Result<Answer> {
    let setting = Setting::new(options, tell)?;
    let arches: Vec<Arch> = options.arch.into_iter().collect();
    let named: Vec<String> = kernel.map(str::to_owned).into_iter().collect();
    let series_options = SeriesOptions {
        series: Some(spec.to_owned()),
        unconfined: options.unconfined,
        ..SeriesOptions::default()
    };
    // The question's suite names no kernel: the command line or the series does.
    let wanted =
        Wanted::new(&named, &arches, &series_options, &[], &options.metric.suite(Vec::new()))?;
    let (manifest, series) = wanted.of_series().expect("just read");
    let Source::Built(recipe) = &manifest.source else {
        unreachable!("a series is put onto what is built")
    };
    let sources =
        source::resolve(&recipe.tree, &setting.cache, &mut |text| tell(Event::Step(text)))?;
    let kernel = kernel.map_or_else(|| manifest.name.clone(), str::to_owned);
    let subjects: Vec<String> = series.patches.iter().map(|patch| patch.subject.clone()).collect();
    // Known only from its history: the same series always has the same.
    let commits = {
        let scratch = Scratch::new()?;
        History::of_series(&series.name, &subjects, scratch.path())?.1
    };
    let asked = Asked {
        question: options.metric.to_string(),
        sources: Sources::Series {
            name: series.name.clone(),
            sha256: series.sha256(),
            kernel: kernel.clone(),
            digest: sources.digest,
        },
        good: commits[0].clone(),
        bad: commits[commits.len() - 1].clone(),
        arch: manifest.arch,
        accel: setting.accel.clone(),
        by_hand: false,
        model: setting.model.clone(),
    };
    let (lab, place, lock) = setting.open(
        &asked,
        options.metric.suite(vec![kernel.clone()]),
        options,
        &[manifest.arch],
    )?;
    let (history, _) =
        History::of_series(&series.name, &subjects, &place.folder.path().join("git"))?;
    let preparing = setting.preparing(&lab, &place);
    let reproduce = |_: &str, _: &str| {
        format!("--kernel {} --series {} --each-patch", quoted(&kernel), quoted(spec))
    };
    preparing.with_patches(manifest, series, |with| {
        let mut make = |commit: &str| {
            let patches = commits.iter().position(|known| known == commit).expect("of the series");
            with(patches)
        };
        Bisection::new(&setting, &lab, place.clone(), lock, history, &reproduce, &mut make)?
            .search()
    })
}

/// As `--accel` takes it.
fn accel_word(request: accel::Request) -> &'static str {
    match request {
        accel::Request::Auto => "auto",
        accel::Request::Only(accel) => accel.name(),
    }
}

pub(super) fn quoted(word: &str) -> String {
    shell_words::quote(word).into_owned()
}

/// The CPU as which guests boot.
fn cpu(options: &Options) -> Result<Option<cpu::Named>> {
    let Some(name) = &options.model else { return Ok(None) };
    let cpu = cpus::load(name)?;
    let counts = options.metric.suite(vec!["any".to_owned()]).counts_records();
    match cpu.recordless().filter(|_| counts) {
        Some(why) => Err(Error::Usage(why)),
        None => Ok(Some(cpu)),
    }
}

/// The question, and the resources of this machine for it.
pub(super) struct Setting<'a> {
    pub(super) question: Question,
    pub(super) cache: Cache,
    pub(super) tell: Tell<'a>,
    pub(super) interrupt: Interrupt,
    pub(super) accel: String,
    pub(super) model: Option<cpu::Named>,
    /// The argument of `--model`.
    pub(super) typed_model: Option<String>,
    command: Vec<String>,
    pub(super) unconfined: bool,
}

/// Where a bisection is kept, and what runs for each commit.
#[derive(Clone)]
pub(super) struct Place {
    pub folder: RunDir,
    pub state: State,
    pub suite: lab::Asked,
}

impl<'a> Setting<'a> {
    pub(super) fn new(options: &Options, tell: Tell<'a>) -> Result<Setting<'a>> {
        Ok(Setting {
            question: options.metric.clone(),
            interrupt: Interrupt::watch()?,
            cache: Cache::open(true)?,
            accel: accel_word(options.accel).to_owned(),
            model: cpu(options)?,
            typed_model: options.model.clone(),
            unconfined: options.unconfined,
            command: options.command.clone(),
            tell,
        })
    }

    /// The kernel for guests that boot as the CPU. It keeps its name, which a commit has.
    pub(super) fn booted(&self, mut ready: Ready) -> Ready {
        if let Some(model) = &self.model {
            ready.facts.configuration = Some(axis::booted(&ready.facts.name, model));
        }
        ready
    }

    pub(super) fn tell(&self, line: &str) {
        (self.tell)(Event::Line(line));
    }

    /// Continues the bisection of the same question, or begins one. The lock makes its folder
    /// exclusive.
    pub(super) fn open(
        &self,
        asked: &Asked,
        suite: tramplab_suite::Suite,
        options: &Options,
        arches: &[Arch],
    ) -> Result<(Lab, Place, Lock)> {
        cpus::check(&[], self.model.as_slice(), arches)?;
        // Without QEMU nothing is begun, and no folder left.
        let lab = Lab::set_up(
            self.cache.clone(),
            arches,
            Wanting {
                purpose: Purpose::Measuring,
                backend: Backend::Qemu,
                accel: options.accel,
                // Only virtual records repeat exactly.
                branches: branches::Request::Virtual,
                // Each kernel boots once.
                guests: Guests::Cold,
                command: self.command.clone(),
            },
            self.tell,
        )?;
        let runs = options.runs.clone().map_or_else(|| place().runs(), Ok)?;
        let text = config::write(&suite);
        let (folder, mut state) = match state::find(&runs, asked) {
            Some((folder, state)) => {
                let folder = RunDir::new(fs::canonicalize(folder)?);
                // A verdict at each of git's steps needs no such line.
                if !asked.by_hand {
                    self.tell(&format!("going on with {}", folder.path().display()));
                }
                (folder, state)
            }
            None => {
                let folder = new_run_dir(&runs, state::PREFIX)?;
                (folder, State::new(asked.clone()))
            }
        };
        let lock = lab.cache.lock(&folder.id())?;
        // Another run of the same may have gone on while this one waited.
        if let Some(newer) = State::load(folder.path()) {
            state = newer;
        }
        let file = folder.path().join("suite.yaml");
        fs::write(&file, &text).with_context(|| format!("failed to write {}", file.display()))?;
        let reference = SuiteRef {
            name: suite.name.clone(),
            file: file.display().to_string(),
            sha256: hex(&Sha256::digest(&text)),
        };
        Ok((lab, Place { folder, state, suite: lab::Asked { suite, reference } }, lock))
    }

    pub(super) fn preparing<'b>(&'b self, lab: &'b Lab, place: &'b Place) -> Preparing<'b> {
        Preparing {
            suite: &place.suite.suite,
            each_patch: false,
            placebos: 0,
            unconfined: self.unconfined,
            lines: false,
            backend: Backend::Qemu,
            cache: &lab.cache,
            run_dir: &place.folder,
            tell: self.tell,
            interrupt: &self.interrupt,
        }
    }
}
