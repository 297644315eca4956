// SPDX-License-Identifier: MIT OR Apache-2.0
//! The question of a bisection, its folder, and the resources of this machine for it.

use super::{Identity, Question, State, options::BisectOptions, state};
use crate::{
    backend::Backends,
    command::CommandLine,
    cpus,
    error::{Context, Error, Result},
    event::{Event, Tell},
    interrupt::Interrupt,
    kernels::{Preparing, Ready},
    lab::{self, Guests, Lab, Wanting},
    place::place,
    run_dir::new_run_dir,
};
use sha2::{Digest, Sha256};
use std::fs;
use tramplab_host::{Cache, Purpose, cache::Lock, config, runs::RunDir};
use tramplab_kernel::axis;
use tramplab_model::{
    cpu,
    name::hex,
    run::{Arch, Backend, SuiteRef},
};
use tramplab_vm::{accel, branches};

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
fn cpu(options: &BisectOptions) -> Result<Option<cpu::Named>> {
    let suite = options.metric.suite(vec!["any".to_owned()]);
    let cpu = options.model.as_ref().map(|name| cpus::load(name)).transpose()?;
    cpus::check_estimates(&suite, std::slice::from_ref(&cpu))?;
    let recordless = cpu.as_ref().and_then(cpu::Named::recordless);
    match recordless.filter(|_| suite.counts_records()) {
        Some(why) => Err(Error::Usage(why)),
        None => Ok(cpu),
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
    command: CommandLine,
    pub(super) unconfined: bool,
}

/// Where a bisection is kept, and what runs for each commit.
#[derive(Clone)]
pub(super) struct Place {
    pub folder: RunDir,
    pub state: State,
    pub suite: lab::AskedSuite,
}

impl<'a> Setting<'a> {
    pub(super) fn new(options: &BisectOptions, tell: Tell<'a>) -> Result<Setting<'a>> {
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
        asked: &Identity,
        suite: tramplab_suite::Suite,
        options: &BisectOptions,
        arches: &[Arch],
    ) -> Result<(Lab, Place, Lock)> {
        cpus::check(&[], self.model.as_slice(), arches)?;
        // Without QEMU nothing is begun, and no folder left.
        let lab = Lab::set_up(
            self.cache.clone(),
            arches,
            Wanting {
                purpose: Purpose::Measuring,
                backends: Backends::default(),
                accel: options.accel,
                // Only virtual records repeat exactly.
                branches: branches::Request::Virtual,
                // Each kernel boots once.
                builds: true,
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
        Ok((lab, Place { folder, state, suite: lab::AskedSuite { suite, reference } }, lock))
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
