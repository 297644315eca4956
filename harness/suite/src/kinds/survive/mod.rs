// SPDX-License-Identifier: MIT OR Apache-2.0
//! `survive`: runs storms of attaching, hitting and detaching, and asks whether the kernel survived.
//! A kernel that did not is a failure, which comes with the smallest storm that shows it.

mod shrink;

use super::{Kind, Needs};
use crate::{
    guest::{Booted, Stop, unexpected},
    program::Kept,
    yaml::{Mechanisms, nonzero},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs,
    num::NonZeroU32,
    path::Path,
    time::{Duration, Instant},
};
use tramplab_host::config::{self, ConfigError, Spanned};
use tramplab_model::{
    kinds::survive,
    run::{Backend, Cell, Clock, ErrorKind, Measurement, Smallest, Splat, Survive, Test},
};
use tramplab_protocol::{
    Mechanism,
    message::{Command, Response},
    storm::{self, Shape, Storm, SurviveReply, SurviveRequest},
};
use tramplab_vm::Feature;

/// For all runs of a storm in one guest. A debug kernel under TCG needs minutes.
const DEADLINE: Duration = Duration::from_secs(1200);
/// Guests and time that shrinking may take. The last guest may end later.
const MOST_GUESTS: u32 = 40;
const SHRINKING: Duration = Duration::from_secs(900);
/// The file in the cell's folder with the storm that failed, as small as it was found.
const STORM: &str = "storm.json";
/// Storms of a group.
const MOST_STORMS: u32 = 10_000;
/// Steps that the reason of a failure lists.
const MOST_TOLD: usize = 12;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SurviveGroup")]
pub struct Group {
    /// Those that the kernel does not have are left out.
    #[serde(default = "all")]
    pub mechanisms: Mechanisms,
    /// Number of storms. Each is a cell, `survive/SEED`.
    #[serde(default = "default_storms")]
    pub storms: NonZeroU32,
    /// Seed of the first storm; the next ones follow.
    #[serde(default = "default_seed")]
    pub seed: u32,
    #[serde(default = "default_threads")]
    #[schemars(range(max = storm::MOST_THREADS))]
    pub threads: NonZeroU32,
    /// Steps of all threads together.
    #[serde(default = "default_steps")]
    #[schemars(range(max = storm::MOST_STEPS))]
    pub steps: NonZeroU32,
    /// A module that is loaded and unloaded, whose functions are traced too. Of a file system, its
    /// functions are hit as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// `exact`: the guest's CPUs take turns, so that a storm repeats exactly.
    #[serde(default)]
    pub clock: Clock,
    /// A file with one storm, such as a failed cell's `storm.json`, instead of storms from seeds:
    /// only `module` and `clock` apply to it, and no smaller one is looked for. Relative to the
    /// suite's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storm: Option<String>,
    #[serde(skip)]
    read: Option<Storm>,
}

fn is_module(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    !name.is_empty() && name.chars().all(is_part)
}

fn all() -> Mechanisms {
    Mechanisms(Mechanism::KERNEL.to_vec())
}

fn default_storms() -> NonZeroU32 {
    nonzero(3)
}

fn default_seed() -> u32 {
    1
}

fn default_threads() -> NonZeroU32 {
    nonzero(4)
}

fn default_steps() -> NonZeroU32 {
    nonzero(400)
}

impl Group {
    pub fn only(test: survive::Test) -> Group {
        Group {
            mechanisms: all(),
            storms: NonZeroU32::MIN,
            seed: test.seed,
            threads: default_threads(),
            steps: default_steps(),
            module: None,
            clock: Clock::Free,
            storm: None,
            read: None,
        }
    }

    /// A key that only makes storms from seeds.
    fn beside_a_storm(&self) -> Option<&'static str> {
        let is_set = [
            ("mechanisms", self.mechanisms.0 != all().0),
            ("storms", self.storms != default_storms()),
            ("seed", self.seed != default_seed()),
            ("threads", self.threads != default_threads()),
            ("steps", self.steps != default_steps()),
        ];
        is_set.into_iter().find_map(|(key, is_set)| is_set.then_some(key))
    }

    fn storm(&self, seed: u32) -> Storm {
        let shape = Shape {
            mechanisms: &self.mechanisms.0,
            threads: self.threads.get(),
            steps: self.steps.get(),
            module: self.module.is_some(),
        };
        Storm::new(seed, &shape)
    }
}

impl super::Group for Group {
    fn work(&self, _compared: bool) -> Vec<super::Work> {
        let storms = match (&self.storm, &self.read) {
            (Some(_), read) => read.iter().cloned().collect(),
            (None, _) => (0..self.storms.get())
                .map(|number| self.storm(self.seed + number))
                .collect::<Vec<_>>(),
        };
        let work = |storm| {
            super::Work::Survive(Work {
                storm,
                module: self.module.clone(),
                clock: self.clock,
                as_it_is: self.storm.is_some(),
            })
        };
        storms.into_iter().map(work).collect()
    }

    fn read(&mut self, suite: &Path, _kept: &Kept) -> Result<(), ConfigError> {
        let Some(file) = &self.storm else { return Ok(()) };
        let path = suite.parent().unwrap_or(Path::new("")).join(file);
        self.read = Some(read_storm(&path)?);
        Ok(())
    }

    fn misfit(&self) -> Option<String> {
        if let Some(user) = self.mechanisms.0.iter().find(|mechanism| mechanism.is_user()) {
            return Some(format!("a storm attaches to kernel functions; take {user} out"));
        }
        if self.storms.get() > MOST_STORMS || self.seed.checked_add(self.storms.get()).is_none() {
            return Some(format!(
                "a group has {MOST_STORMS} storms at most, with seeds below 2^32"
            ));
        }
        if self.threads.get() > storm::MOST_THREADS {
            return Some(format!("a storm has {} threads at most", storm::MOST_THREADS));
        }
        if self.steps.get() as usize > storm::MOST_STEPS {
            return Some(format!("a storm has {} steps at most", storm::MOST_STEPS));
        }
        if let Some(module) = self.module.as_deref().filter(|name| !is_module(name)) {
            return Some(format!("`{module}` is no module's name; expected one such as `overlay`"));
        }
        let of_module = |storm: &Storm| {
            use storm::Action::{LoadModule, UnloadModule};
            storm.steps.iter().any(|step| matches!(step.action, LoadModule | UnloadModule))
        };
        let read = self.read.as_ref();
        if let Some(key) = self.beside_a_storm().filter(|_| self.storm.is_some()) {
            return Some(format!("`storm` has its own steps; take `{key}` out"));
        }
        let without = self.module.is_none() && read.is_some_and(of_module);
        without.then(|| "the storm loads a module; name it: `module: overlay`".to_owned())
    }
}

/// Reads a storm that the agent can run. Errors have the place of the step.
fn read_storm(path: &Path) -> Result<Storm, ConfigError> {
    /// A [`Storm`].
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Placed {
        seed: u32,
        steps: Spanned<Vec<Spanned<storm::Step>>>,
    }
    let Placed { seed, steps } = config::load_regular(path)?;
    let storm = Storm { seed, steps: steps.value.iter().map(|step| step.value).collect() };
    match storm.misfit() {
        None => Ok(storm),
        Some((Some(index), why)) => Err(config::invalid(path, &steps.value[index], why)),
        Some((None, why)) => Err(config::invalid(path, &steps, why)),
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub storm: Storm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    pub clock: Clock,
    /// No smaller storm is looked for.
    #[serde(default)]
    pub as_it_is: bool,
}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::Survive(survive::Test { seed: self.storm.seed })
    }

    fn is_timed(&self) -> bool {
        false
    }

    fn may_restore(&self) -> bool {
        true
    }

    fn uses_plugin(&self) -> bool {
        false
    }

    fn clocks(&self, _cpus: u32, _backend: Backend) -> Vec<Clock> {
        vec![self.clock]
    }

    fn only_tcg(&self) -> Option<&'static str> {
        (self.clock == Clock::Exact).then_some("the exact clock needs TCG: give --accel auto")
    }

    fn exact_clock(&self) -> Option<Feature> {
        (self.clock == Clock::Exact).then_some(Feature::ExactClock { or_free: false })
    }

    fn commands(&self, _clock: Clock, _is_last: bool) -> (Vec<Command>, Duration) {
        (vec![self.command()], DEADLINE)
    }

    fn needs(&self) -> Needs {
        Needs { modules: BTreeSet::from_iter(self.module.clone()), shell: false }
    }

    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop> {
        match booted.vm.request(self.command(), DEADLINE)?? {
            Response::Survive(reply) => {
                self.require_asked(&reply)?;
                Ok(self.measurement(Some(*reply), None))
            }
            other => Err(unexpected(&other)),
        }
    }

    fn died(&self, kind: ErrorKind, title: &str) -> Option<Measurement> {
        let splat = Splat { kind, title: title.to_owned() };
        kind.is_kernel_death().then(|| self.measurement(None, Some(splat)))
    }

    fn shrink(
        &self,
        measured: Measurement,
        folder: &Path,
        run: &mut dyn FnMut(super::Work) -> Result<Measurement, Stop>,
    ) -> Measurement {
        let Measurement::Survive(mut survive) = measured else { return measured };
        if self.as_it_is {
            return Measurement::Survive(survive);
        }
        let Some((way, _)) = survive.failures().into_iter().next() else {
            return Measurement::Survive(survive);
        };
        let until = Instant::now() + SHRINKING;
        let (mut guests, mut failed) = (0, 0);
        let steps = shrink::smallest(self.storm.steps.clone(), |steps| {
            if guests == MOST_GUESTS || Instant::now() > until {
                return None;
            }
            guests += 1;
            let storm = Storm { steps: steps.to_vec(), ..self.storm.clone() };
            let work = Work { storm, ..self.clone() };
            let fails = match run(super::Work::Survive(work)) {
                Ok(Measurement::Survive(smaller)) => {
                    smaller.failures().iter().any(|(other, _)| other.is_like(&way))
                }
                _ => false,
            };
            failed += u32::from(fails);
            Some(fails)
        });
        let smallest = Storm { steps: steps.clone(), ..self.storm.clone() };
        // The steps are in the result too.
        let _ =
            serde_json::to_vec_pretty(&smallest).map(|bytes| fs::write(folder.join(STORM), bytes));
        survive.smallest = Some(Smallest { steps, guests, failed });
        Measurement::Survive(survive)
    }
}

impl Work {
    fn command(&self) -> Command {
        let Work { storm, module, .. } = self.clone();
        Command::Survive(SurviveRequest { storm, module })
    }

    fn measurement(&self, done: Option<SurviveReply>, splat: Option<Splat>) -> Measurement {
        Measurement::Survive(Survive {
            threads: self.storm.threads(),
            steps: self.storm.steps.len() as u32,
            done,
            splat,
            smallest: None,
        })
    }

    /// Rejects a reply that is not of this storm.
    fn require_asked(&self, reply: &SurviveReply) -> Result<(), Stop> {
        let steps = self.storm.steps.len() as u64 * u64::from(reply.times);
        let told: Vec<Mechanism> = reply.attached.iter().map(|one| one.mechanism).collect();
        let states = reply.states.len() == reply.times as usize + 1;
        if reply.times > 0 && reply.steps == steps && states && told == self.storm.mechanisms() {
            return Ok(());
        }
        let message = format!(
            "the guest was asked for a storm of {} steps, and answers of {} steps in {} times, with \
             {} states and {} mechanisms",
            self.storm.steps.len(),
            reply.steps,
            reply.times,
            reply.states.len(),
            told.len()
        );
        Err(Stop::Error { kind: ErrorKind::Protocol, message })
    }
}

/// The reasons why a cell fails.
pub fn reasons(cell: &Cell) -> Vec<String> {
    let Some(Measurement::Survive(survive)) = &cell.measurement else { return Vec::new() };
    let mut reasons: Vec<String> = survive.failures().into_iter().map(|(_, told)| told).collect();
    if let (Some(Smallest { steps, guests, failed }), false) =
        (&survive.smallest, reasons.is_empty())
    {
        let mut told: Vec<String> = steps.iter().take(MOST_TOLD).map(ToString::to_string).collect();
        if steps.len() > MOST_TOLD {
            told.push(format!("… {} more in {STORM}", steps.len() - MOST_TOLD));
        }
        reasons.push(format!(
            "smallest storm found: {} of {} steps, after {guests} guests of which {failed} failed \
             in the same way: {}",
            steps.len(),
            survive.steps,
            told.join("; ")
        ));
    }
    reasons
}
