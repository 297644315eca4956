// SPDX-License-Identifier: MIT OR Apache-2.0
//! Storms: many threads attach, hit and detach at the same time.
//!
//! A storm is data. [`Storm::new`] makes it from a seed, and any part of its steps is a storm too,
//! so that a failure can be shrunk.

use crate::Mechanism;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Links that a thread holds at the same time.
pub const SLOTS: u32 = 4;
/// Most threads of a storm. Their CPUs and counters are limited.
pub const MOST_THREADS: u32 = 16;
/// Most steps of a storm.
pub const MOST_STEPS: usize = 20_000;
/// Most hits of one step.
pub const MOST_HITS: u32 = 10_000;
/// Steps of a thread between two quiet moments.
const ROUND: u32 = 8;
/// Functions of one link by a multi mechanism, at most.
const MOST_FUNCTIONS: u32 = 12;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Storm {
    /// The seed that it was made from.
    pub seed: u32,
    /// In the order in which each thread does its own. Threads wait for each other after a round.
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Threads wait for each other after a round.
    pub round: u32,
    pub thread: u32,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Loads a program and attaches it to `functions` functions of the agent's list, from the one
    /// at `first` on, modulo the list's length. Then closes the link that the slot had before.
    Attach { slot: u32, mechanism: Mechanism, first: u32, functions: u32 },
    /// Closes the slot's link. The program goes with it.
    Detach { slot: u32 },
    /// Hits the functions so often.
    Hit { times: u32 },
    /// Has the kernel replace programs: of the slot's link, which it refuses for tracing links, and
    /// of a link of an iterator.
    Update { slot: u32 },
    /// Hands the slot's link to a process that hits functions, and kills the process.
    Kill { slot: u32 },
    /// Loads the module.
    LoadModule,
    /// Unloads the module, unless it is in use.
    UnloadModule,
}

/// The parameters of a storm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    pub mechanisms: &'a [Mechanism],
    pub threads: u32,
    /// Steps of all threads together.
    pub steps: u32,
    /// True if a module is loaded and unloaded.
    pub module: bool,
}

impl Storm {
    /// The same seed and shape give the same storm, on every machine.
    pub fn new(seed: u32, shape: &Shape<'_>) -> Storm {
        let mut random = Random(u64::from(seed));
        let step = |index: u32| {
            let (thread, of_thread) = (index % shape.threads, index / shape.threads);
            Step { round: of_thread / ROUND, thread, action: Action::random(&mut random, shape) }
        };
        Storm { seed, steps: (0..shape.steps).map(step).collect() }
    }

    pub fn threads(&self) -> u32 {
        self.steps.iter().map(|step| step.thread + 1).max().unwrap_or(0)
    }

    pub fn rounds(&self) -> u32 {
        self.steps.iter().map(|step| step.round + 1).max().unwrap_or(0)
    }

    /// Why the agent cannot run it, if it cannot: somebody edited the file. Also returns the index
    /// of the step at fault.
    pub fn misfit(&self) -> Option<(Option<usize>, String)> {
        let count = self.steps.len();
        if !(1..=MOST_STEPS).contains(&count) {
            return Some((None, format!("a storm has 1 to {MOST_STEPS} steps, this one {count}")));
        }
        let mut round = 0;
        for (index, step) in self.steps.iter().enumerate() {
            let late = step.round < round;
            let late =
                late.then(|| format!("expected steps in the order of rounds, after {round}"));
            if let Some(why) = step.misfit().or(late) {
                return Some((Some(index), format!("the step `{step}`: {why}")));
            }
            round = step.round;
        }
        None
    }

    /// The mechanisms that it attaches by, each once.
    pub fn mechanisms(&self) -> Vec<Mechanism> {
        let of = |step: &Step| match step.action {
            Action::Attach { mechanism, .. } => Some(mechanism),
            _ => None,
        };
        let mut all: Vec<Mechanism> = self.steps.iter().filter_map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Step {
    fn misfit(&self) -> Option<String> {
        let slot = match self.action {
            Action::Attach { slot, .. }
            | Action::Detach { slot }
            | Action::Update { slot }
            | Action::Kill { slot } => slot,
            Action::Hit { .. } | Action::LoadModule | Action::UnloadModule => 0,
        };
        match self.action {
            _ if self.thread >= MOST_THREADS => {
                Some(format!("expected a thread below {MOST_THREADS}"))
            }
            _ if self.round as usize >= MOST_STEPS => {
                Some(format!("expected a round below {MOST_STEPS}"))
            }
            _ if slot >= SLOTS => Some(format!("expected a slot below {SLOTS}")),
            Action::Attach { functions: 0, .. } => {
                Some("expected at least one function".to_owned())
            }
            Action::Attach { mechanism, .. } if mechanism.is_user() => {
                Some("expected a mechanism of kernel functions".to_owned())
            }
            Action::Hit { times } if times > MOST_HITS => {
                Some(format!("expected at most {MOST_HITS} hits"))
            }
            _ => None,
        }
    }
}

impl Action {
    fn random(random: &mut Random, shape: &Shape<'_>) -> Action {
        let slot = random.below(SLOTS);
        match random.below(100) {
            0..=44 if !shape.mechanisms.is_empty() => {
                let at = random.below(shape.mechanisms.len() as u32) as usize;
                let mechanism = shape.mechanisms[at];
                // Most links share a few functions.
                let among = if random.below(4) == 0 { 64 } else { 12 };
                let first = random.below(among);
                let many = 1 + random.below(MOST_FUNCTIONS);
                let functions = if mechanism.is_multi() { many } else { 1 };
                Action::Attach { slot, mechanism, first, functions }
            }
            0..=64 => Action::Detach { slot },
            65..=89 => Action::Hit { times: 1 + random.below(8) },
            90..=92 => Action::Update { slot },
            93..=94 => Action::Kill { slot },
            95..=96 if shape.module => Action::LoadModule,
            97..=99 if shape.module => Action::UnloadModule,
            _ => Action::Hit { times: 1 },
        }
    }
}

/// The generator SplitMix64: a storm must not depend on the version of a package.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u32) -> u32 {
        (self.next() % u64::from(limit)) as u32
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "round {}, thread {}: {}", self.round, self.thread, self.action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Attach { slot, mechanism, first, functions: 1 } => {
                write!(f, "attach {mechanism} to function {first} as link {slot}")
            }
            Action::Attach { slot, mechanism, first, functions } => {
                let last = first.saturating_add(*functions).saturating_sub(1);
                write!(f, "attach {mechanism} to functions {first} to {last} as link {slot}")
            }
            Action::Detach { slot } => write!(f, "close link {slot}"),
            Action::Hit { times } => write!(f, "hit {times} times"),
            Action::Update { slot } => write!(f, "update link {slot} and an iterator's"),
            Action::Kill { slot } => write!(f, "kill a process that holds link {slot}"),
            Action::LoadModule => f.write_str("load the module"),
            Action::UnloadModule => f.write_str("unload the module"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurviveRequest {
    pub storm: Storm,
    /// The module that steps load and unload, by the kernel's name.
    pub module: Option<String>,
}

/// Numbers of all runs of a storm in one guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SurviveReply {
    /// How often the agent ran the storm.
    pub times: u32,
    /// Steps that were done, of all times.
    pub steps: u64,
    /// By mechanism, in the order of their names in suites.
    pub attached: Vec<Attached>,
    /// Runs of the programs at any time.
    pub runs: u64,
    /// Programs of links that the kernel replaced.
    pub updated: u64,
    /// Processes that were killed with a link.
    pub killed: u64,
    /// Loads of the module.
    pub loaded: u64,
    /// Unloads of the module.
    pub unloaded: u64,
    /// Checks of a link at a quiet moment.
    pub checked: u64,
    /// The first 16 checks that found a wrong number of runs.
    pub wrong: Vec<Wrong>,
    /// The kernel's state before the first time, and after each.
    pub states: Vec<State>,
    /// The reports of kmemleak. None if the kernel has no kmemleak.
    pub kmemleak: Option<Vec<String>>,
}

/// Attempts to attach by a mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attached {
    pub mechanism: Mechanism,
    /// Links made.
    pub links: u64,
    /// Attempts that the kernel refused.
    pub refused: u64,
    /// The kernel's last reason for a refusal.
    pub reason: Option<String>,
    /// Why the kernel does not have the mechanism.
    pub lacking: Option<String>,
}

/// A program that ran too seldom, or too often, for the hits of a quiet moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Wrong {
    /// The round of the storm.
    pub round: u32,
    /// None if the link was closed.
    pub mechanism: Option<Mechanism>,
    pub functions: Vec<String>,
    /// Runs that its hits should have made.
    pub expected: u64,
    /// True if functions are hit by others too, so that more runs are right.
    pub at_least: bool,
    /// Runs of the program.
    pub ran: u64,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { expected, ran, .. } = self;
        let Some(mechanism) = self.mechanism else {
            return write!(f, "a program ran {ran} times after its link was closed");
        };
        let functions = self.functions.join(", ");
        let least = if self.at_least { "at least " } else { "" };
        write!(f, "{mechanism} on {functions} ran {ran} times instead of {least}{expected}")
    }
}

/// Objects and memory of the kernel while nothing of the storm is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct State {
    pub programs: u32,
    pub links: u32,
    pub maps: u32,
    /// Images of trampolines, by kallsyms.
    pub trampolines: u32,
    /// Functions that ftrace calls something for.
    pub ftrace: u32,
    pub kprobes: u32,
    /// Unreclaimable slab.
    pub slab_kib: u64,
    pub percpu_kib: u64,
    pub vmalloc_kib: u64,
}

impl State {
    /// The kinds of objects that must go, with their numbers. Not images of trampolines: a task
    /// that sleeps in a function that fexit traces keeps the image until it returns.
    pub fn objects(&self) -> [(&'static str, u32); 5] {
        [
            ("programs", self.programs),
            ("links", self.links),
            ("maps", self.maps),
            ("ftrace'd functions", self.ftrace),
            ("kprobes", self.kprobes),
        ]
    }

    /// The kinds of memory, in KiB.
    pub fn memory(&self) -> [(&'static str, u64); 3] {
        [("slab", self.slab_kib), ("per-CPU", self.percpu_kib), ("vmalloc", self.vmalloc_kib)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(module: bool) -> Shape<'static> {
        Shape { mechanisms: &Mechanism::KERNEL, threads: 4, steps: 1000, module }
    }

    #[test]
    fn repeats_a_storm_from_its_seed() {
        let storm = Storm::new(7, &shape(true));
        assert_eq!(storm, Storm::new(7, &shape(true)));
        assert_ne!(storm.steps, Storm::new(8, &shape(true)).steps);
        assert_eq!((storm.threads(), storm.rounds(), storm.misfit()), (4, 32, None));
        assert_eq!(storm.mechanisms(), Mechanism::KERNEL);
        let is_of_module =
            |step: &Step| matches!(step.action, Action::LoadModule | Action::UnloadModule);
        assert!(storm.steps.iter().any(is_of_module));
        assert!(!Storm::new(7, &shape(false)).steps.iter().any(is_of_module));
        let text = serde_json::to_string(&storm).unwrap();
        assert_eq!(serde_json::from_str::<Storm>(&text).unwrap(), storm);
    }

    /// Recorded storms stay valid only if a seed's steps never change.
    #[test]
    fn the_first_steps_of_a_seed_stay() {
        let steps = Storm::new(1, &shape(true)).steps;
        let said: Vec<String> = steps[..4].iter().map(ToString::to_string).collect();
        assert_eq!(said, STEPS);
    }

    const STEPS: [&str; 4] = [
        "round 0, thread 0: attach fsession.multi to functions 9 to 17 as link 1",
        "round 0, thread 1: attach fentry to function 9 as link 1",
        "round 0, thread 2: attach kretsyscall to function 3 as link 0",
        "round 0, thread 3: update link 2 and an iterator's",
    ];

    #[test]
    fn rejects_storms_that_somebody_broke() {
        let good = Storm::new(1, &shape(false));
        let with = |change: &dyn Fn(&mut Storm)| {
            let mut storm = good.clone();
            change(&mut storm);
            storm.misfit().map(|(step, _)| step)
        };
        assert_eq!(with(&|_| ()), None);
        assert_eq!(with(&|storm| storm.steps.clear()), Some(None));
        let attach =
            |mechanism, functions| Action::Attach { slot: 0, mechanism, first: 0, functions };
        let changes: [&dyn Fn(&mut Step); 7] = [
            &|step| step.thread = MOST_THREADS,
            &|step| step.round = MOST_STEPS as u32,
            &|step| step.round = 0,
            &|step| step.action = Action::Detach { slot: SLOTS },
            &|step| step.action = Action::Hit { times: MOST_HITS + 1 },
            &|step| step.action = attach(Mechanism::Fentry, 0),
            &|step| step.action = attach(Mechanism::Uprobe, 1),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(with(&|storm| change(&mut storm.steps[500])), Some(Some(500)), "{number}");
        }
    }
}
