// SPDX-License-Identifier: MIT OR Apache-2.0
//! `trigger`: counts and times the cost of a hit, of the empty program, a shipped one or a user's.

use super::{
    Kind, Needs,
    attach::{Counted, counted, require_events},
    lbr_waste::default_hits,
    targets::{self, Hook, TargetSet},
};
use crate::{
    guest::{
        Booted, Hits, QUICK, Stop, WARMUP, WITH_COMMAND, require_asked, require_others,
        require_patched, unexpected,
    },
    program::{Program, Programs, Shipped},
    yaml::Mechanisms,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::{collections::BTreeSet, fs, num::NonZeroU32, time::Duration};
use tramplab_analysis::{
    branch::{self, TriggerError},
    profile::{Phase, estimate},
};
use tramplab_model::{
    function::{FunctionName, NotAFunction},
    kinds::{
        Metric,
        trigger::{self, Cost, EstimatedHit},
    },
    profile::Estimate,
    run::{
        Accel, Arch, Backend, Cell, Clock, ErrorKind, Measurement, Run, Test, Trigger, TriggerCost,
    },
};
use tramplab_protocol::{
    Beside, BesideSet, Mechanism, counts,
    estimate::{HIT_COUNTS, HIT_ROUNDS},
    message::{Command, Explain, Response, TriggerReply, TriggerRequest},
    program as protocol,
};
use tramplab_vm::{Feature, Features};

/// Triggers in a timed round, and number of rounds. Each round runs with the program attached and
/// without it. All rounds together take a second under TCG.
const TIMED: u32 = 2000;
const TIMED_ROUNDS: u32 = 7;
/// Hits of a round whose events of a modelled CPU are counted. Few, so that the clock ticks in few
/// rounds.
const ESTIMATED: u32 = 25;
/// The plugin's files for an estimate, without the program and with it.
const COUNTS: u64 = HIT_COUNTS as u64;
/// Attaching and detaching in each round waits for RCU.
const DEADLINE: Duration = Duration::from_secs(120);
/// Attaching to thousands of other functions before, and detaching from them afterwards. Each
/// single link waits for a grace period on some kernels.
const BUSY: Duration = Duration::from_secs(1800);

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TriggerGroup")]
pub struct Group {
    pub mechanisms: Mechanisms,
    /// The user's programs. Empty: the empty program, by each mechanism.
    #[serde(default, skip_serializing_if = "Programs::is_empty")]
    pub programs: Programs,
    /// Small programs of tramplab's own, each by each mechanism. Empty: the empty program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shipped: Vec<Shipped>,
    /// Other programs or tracers, on the same function or on others.
    #[serde(default, skip_serializing_if = "BesideSet::is_empty")]
    pub beside: BesideSet,
    /// The traced functions. Empty: the kernel's own test functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<FunctionName>,
    /// A line for the guest's shell that hits each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// Triggers recorded per cell.
    #[serde(default = "default_hits")]
    pub hits: NonZeroU32,
    /// Times hits as well. Default: yes, unless cycles are estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<bool>,
    /// Estimates the cycles of a warm hit on the CPU as which the guest boots, by the exact clock:
    /// hits are not timed then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

impl Group {
    /// Counts hits without timing them. Estimates their cycles only if that is the cost.
    pub fn only(test: trigger::Test, cost: Option<Cost>) -> Group {
        Group {
            mechanisms: Mechanisms(vec![test.mechanism]),
            programs: Programs::default(),
            shipped: test.program.and_then(Shipped::of).into_iter().collect(),
            beside: test.beside,
            targets: Vec::from_iter(test.function),
            trigger: None,
            hits: default_hits(),
            throughput: Some(false),
            estimated: cost == Some(Cost::EstimatedCycles),
        }
    }

    /// Estimates cycles if the explanations of the command line say so, if it has any.
    pub fn set(&mut self, explanations: Option<&BTreeSet<Explain>>) {
        if let Some(all) = explanations {
            self.estimated = all.contains(&Explain::Estimated);
        }
    }
}

/// Rejects a group that asks for both clocks.
pub fn untimed_if_estimated<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Group, D::Error> {
    let group = Group::deserialize(deserializer)?;
    match (group.estimated, group.throughput) {
        (true, Some(true)) => Err(D::Error::custom(
            "`estimated` needs the exact clock, by which no hit is timed: remove `throughput: \
             true`, or estimate in a group of its own, with other mechanisms or `beside`",
        )),
        _ => Ok(group),
    }
}

impl super::Group for Group {
    fn work(&self, _compared: bool) -> Vec<super::Work> {
        let &Group { beside, throughput, estimated, .. } = self;
        let hits = self.hits.get();
        let work = |shipped: Shipped, hook: Hook, function: Option<FunctionName>| {
            let (mechanism, function) = (hook.mechanism, function.or(hook.function()));
            let command = self.trigger.clone().filter(|_| hook.is_named(function));
            let program = shipped.name().or_else(|| hook.program());
            super::Work::Trigger(Work {
                // Starting a process takes far longer than a hit.
                throughput: throughput.unwrap_or(true) && !estimated && command.is_none(),
                estimated,
                command,
                test: trigger::Test { mechanism, program, beside, function },
                program: shipped.sent().or_else(|| hook.sent()),
                hits,
                unestimated: None,
            })
        };
        let hooks = targets::hooks(&self.mechanisms, &self.programs, &self.targets);
        let shipped = match self.shipped.as_slice() {
            [] => &[Shipped::Empty],
            shipped => shipped,
        };
        let all = hooks.into_iter().map(|(hook, function)| {
            shipped.iter().map(move |&shipped| work(shipped, hook, function))
        });
        all.flatten().collect()
    }

    fn trigger(&mut self, line: &str) -> bool {
        self.trigger = Some(line.to_owned());
        true
    }

    fn trace(&mut self, sets: &[TargetSet]) -> Result<bool, NotAFunction> {
        self.targets = targets::names(sets)?;
        if self.targets.is_empty() {
            return Ok(false);
        }
        Ok(targets::misfit(&self.mechanisms, &self.programs, &self.targets).is_none())
    }

    fn programs(&self) -> &[Program] {
        self.programs.all()
    }

    fn attached(&mut self) -> Option<(&Mechanisms, &mut Programs)> {
        // A user's program does not replace shipped ones.
        self.shipped.is_empty().then_some((&self.mechanisms, &mut self.programs))
    }

    fn misfit(&self) -> Option<String> {
        let besides = self.mechanisms.0.iter().find_map(|&mechanism| {
            let misfit = self.beside.iter().find(|beside| !beside.fits(mechanism))?;
            Some(format!(
                "{misfit} cannot be attached to what {mechanism} is measured on: name another one \
                 in `beside`"
            ))
        });
        let both = !self.shipped.is_empty() && !self.programs.is_empty();
        let both = both.then(|| "a group has `shipped` or `programs`: remove one".to_owned());
        besides
            .or(both)
            .or_else(|| targets::misfit(&self.mechanisms, &self.programs, &self.targets))
            .or_else(|| targets::nameless(&self.mechanisms, &self.programs, &self.targets))
            .or_else(|| {
                targets::bad_trigger(
                    self.trigger.as_deref(),
                    &self.mechanisms,
                    &self.targets,
                    &self.programs,
                )
            })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub test: trigger::Test,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<protocol::Program>,
    /// The user's command that hits the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub hits: u32,
    pub throughput: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    /// The reason why no cycles are estimated, if they were to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unestimated: Option<String>,
}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::Trigger(self.test)
    }

    fn may_restore(&self) -> bool {
        true
    }

    fn is_timed(&self) -> bool {
        self.throughput
    }

    fn reduce_to_exact(&mut self) -> bool {
        true
    }

    fn on_this_machine(&mut self, most: u32) -> Option<String> {
        (self.throughput, self.estimated) = (true, false);
        let attached = self.test.beside.attached_with(None);
        targets::unsafe_here(self.program.as_ref(), self.command.is_some(), attached, most)
    }

    fn clocks(&self, cpus: u32, backend: Backend) -> Vec<Clock> {
        // The JIT of arm64 needs more or fewer instructions to load a program's address. The exact
        // clock keeps addresses the same at every boot. It needs one CPU, and not every backend
        // has it. The JIT of x86-64 repeats without it.
        let has_clock = Features::of(backend).has(Feature::ExactClock { or_free: true });
        let exact = !self.throughput && cpus == 1 && has_clock;
        vec![if exact { Clock::Exact } else { Clock::Free }]
    }

    fn estimates(&self) -> bool {
        self.estimated && self.command.is_none()
    }

    fn refuse_estimates(&mut self, why: String) {
        self.estimated = false;
        self.unestimated = Some(why);
    }

    fn exact_clock(&self) -> Option<Feature> {
        self.estimates().then_some(Feature::ExactClock { or_free: false })
    }

    fn too_many_cpus(&self, cpus: u32) -> Option<String> {
        (self.estimates() && cpus > 1).then(|| {
            format!(
                "cycles are estimated by the exact clock, with which QEMU runs all of a machine's \
                 {cpus} CPUs on one thread, where the plugin cannot tell them apart; use one CPU"
            )
        })
    }

    fn only_tcg(&self) -> Option<&'static str> {
        (!self.throughput).then_some(
            "instructions of a hit are counted by the plugin, which only TCG has; use --accel \
             auto, or time hits with `throughput: true`",
        )
    }

    fn needs(&self) -> Needs {
        let mut modules = targets::module(self.test.function);
        modules.extend(self.test.beside.iter().filter_map(Beside::module).map(str::to_owned));
        Needs { modules, shell: self.command.is_some() }
    }

    fn mechanisms(&self) -> Vec<Mechanism> {
        let beside = self.test.beside.iter().filter_map(Beside::mechanism);
        [self.test.mechanism].into_iter().chain(beside).collect()
    }

    fn measures(&self, metric: &Metric, accel: Accel) -> bool {
        let is_estimate =
            matches!(metric, Metric::Trigger(metric) if metric.cost == Cost::EstimatedCycles);
        accel == Accel::Tcg && (!is_estimate || self.estimates())
    }

    fn commands(&self, _clock: Clock, _is_last: bool) -> (Vec<Command>, Duration) {
        (vec![Command::Trigger(self.request())], self.within(DEADLINE))
    }

    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop> {
        self.cost(booted).map(Measurement::Trigger)
    }
}

impl Work {
    /// The time limit of a request that takes so long without other functions.
    fn within(&self, alone: Duration) -> Duration {
        match self.command {
            _ if self.test.beside.has_others() => BUSY,
            Some(_) => WITH_COMMAND,
            None => alone,
        }
    }

    fn request(&self) -> TriggerRequest {
        let &Work { test, ref program, ref command, hits, throughput, .. } = self;
        let trigger::Test { mechanism, beside, function, .. } = test;
        TriggerRequest {
            mechanism,
            program: program.clone(),
            function: function.map(String::from),
            command: command.clone(),
            beside,
            hits,
            warmup: WARMUP,
            timed: TIMED,
            rounds: if throughput { TIMED_ROUNDS } else { 0 },
            // Under the exact clock the guest's root has the request before anybody asks for a CPU.
            estimated: if self.estimates() { ESTIMATED } else { 0 },
        }
    }

    fn cost(&self, booted: &mut Booted) -> Result<Trigger, Stop> {
        let (command, first) = (Command::Trigger(self.request()), booted.counts);
        // Also if the guest fails after it counted.
        booted.counts += if self.estimates() { 2 * COUNTS } else { 0 };
        let reply = match booted.ask(command, self.within(DEADLINE))? {
            Response::Trigger(reply) => reply,
            other => return Err(unexpected(&other)),
        };
        require_others(self.test.beside, &self.test.attached(), &reply.others)?;
        require_patched(self.test.beside, &self.test.attached(), reply.replacement.is_some())?;
        let trigger::Test { mechanism, function, .. } = self.test;
        let told = Hits {
            mechanism: reply.mechanism,
            function: &reply.function,
            trigger: reply.trigger.as_ref(),
            hits: reply.hits,
            points: &reply.points,
        };
        require_asked(mechanism, function, self.command.as_deref(), self.hits, &told)?;
        self.require_estimated(&reply)?;
        let counted = match booted.planned.accel {
            // The plugin needs TCG.
            Accel::Kvm | Accel::Native => None,
            Accel::Tcg => {
                let (trace, symbols) = booted.trace()?;
                let returns = booted.planned.returns();
                Some(branch::trigger_cost(&trace, &symbols, &reply, returns))
            }
        };
        let estimate = self.estimate(booted, first, &reply)?;
        for number in first..booted.counts {
            let _ = fs::remove_file(counts::file_name(booted.folder, number));
        }
        booted.vm.request(Command::Release, self.within(QUICK))??;
        let mut counted = counted.transpose();
        if let Ok(Some(cost)) = &mut counted {
            // From one hit of a command to the next a process starts, whose branches vary.
            cost.predicted.take_if(|_| self.command.is_some());
        }
        let is_unpredicted = |cost: &TriggerCost| {
            cost.predicted.is_none() && self.command.is_none() && self.hits >= branch::PREDICTABLE
        };
        let is_interrupted = match &counted {
            Ok(cost) => cost.as_ref().is_some_and(is_unpredicted),
            Err(error) => matches!(error, TriggerError::Interrupted { .. }),
        };
        if is_interrupted && booted.may_repeat() {
            return self.cost(booted);
        }
        let mut cost = match counted {
            Err(error) if error.is_of_function() => return Err(Stop::Skip(error.to_string())),
            Err(error) => {
                let message = error.to_string();
                return Err(Stop::Error { kind: ErrorKind::Trace, message });
            }
            Ok(cost) => cost,
        };
        let (estimate, unestimated) = match estimate {
            Some(Ok(estimate)) => (Some(estimate), None),
            Some(Err(why)) => (None, Some(why)),
            None => (None, None),
        };
        if let Some(cost) = &mut cost {
            cost.estimate = estimate.map(Box::new);
        }
        Ok(Trigger {
            mechanism,
            function: reply.function,
            program: self.program.is_some().then_some(reply.program),
            trigger: reply.trigger,
            unestimated,
            others: reply.others,
            cost,
            timed: reply.timed,
            attached_ns: reply.attached_ns,
            detached_ns: reply.detached_ns,
            // A guest has nothing to count.
            counters: match booted.planned.accel {
                Accel::Native => reply.counters,
                Accel::Kvm | Accel::Tcg => Vec::new(),
            },
        })
    }

    /// Reads the counts with the program and without it, which begin at file `first`. Call it while
    /// all is attached. None if nobody asked for it; the inner error tells why there is none.
    fn estimate(
        &self,
        booted: &mut Booted,
        first: u64,
        reply: &TriggerReply,
    ) -> Result<Option<Result<EstimatedHit, String>>, Stop> {
        if let Some(why) = &self.unestimated {
            return Ok(Some(Err(why.clone())));
        }
        if !self.estimated {
            return Ok(None);
        }
        if let Some(why) = self.unestimated(reply) {
            return Ok(Some(Err(why.to_owned())));
        }
        let (cpu, cycles, _) = booted.planned.estimated().map_err(Stop::harness)?;
        let mut weighed = |number| {
            let Counted { profile, counts, .. } = counted(booted, Phase::Attach, number)?;
            require_events(&counts)?;
            Ok::<_, Stop>(estimate::weigh(profile, cpu, cycles).1)
        };
        let mut hits = |first| {
            let end = first + COUNTS;
            let rounds = end - u64::from(HIT_ROUNDS)..end;
            let rounds: Vec<Estimate> = rounds.map(&mut weighed).collect::<Result<_, _>>()?;
            Ok::<_, Stop>((weighed(first)?, least(rounds)))
        };
        let (cold_detached, detached) = hits(first)?;
        let (cold_attached, attached) = hits(first + COUNTS)?;
        let cold =
            EstimatedHit { hits: 1, attached: cold_attached, detached: cold_detached, cold: None };
        // All hits of a pull behind its first one are warm.
        let is_one = reply.trigger.as_ref().is_none_or(|trigger| trigger.hits <= 1);
        let cold = is_one.then(|| cold.cycles());
        Ok(Some(Ok(EstimatedHit { hits: reply.estimated, attached, detached, cold })))
    }

    /// Rejects a reply that counted events of another number of hits. A pull of a workload hits
    /// several times.
    fn require_estimated(&self, reply: &TriggerReply) -> Result<(), Stop> {
        let each = reply.trigger.as_ref().map_or(1, |trigger| trigger.hits.max(1));
        let wanted = (ESTIMATED / each).max(1).saturating_mul(each);
        if reply.estimated == 0 || (self.estimates() && reply.estimated == wanted) {
            return Ok(());
        }
        let told = reply.estimated;
        let message = format!("the guest counted events of {told} hits: expected {wanted}");
        Err(Stop::Error { kind: ErrorKind::Protocol, message })
    }

    /// The reason why the guest estimated nothing.
    fn unestimated(&self, reply: &TriggerReply) -> Option<&'static str> {
        (!self.estimates() || reply.estimated == 0).then_some(
            "a process starts between two hits, which costs far more cycles than a hit and differs \
             each time",
        )
    }
}

/// The round that was disturbed least.
fn least(rounds: Vec<Estimate>) -> Estimate {
    rounds.into_iter().min_by_key(Estimate::cycles).expect("several rounds")
}

/// True if the next run counts the same. Without the exact clock the JIT of arm64 generates
/// different code at every boot.
pub fn repeats(cell: &Cell, run: &Run) -> bool {
    let one_cpu = run.cpus_of(cell.id.arch, &cell.id.kernel, cell.id.accel) == Some(1);
    match &cell.measurement {
        Some(Measurement::Trigger(Trigger { attached_ns, .. })) => {
            cell.id.arch == Arch::X86_64 || (attached_ns.is_empty() && one_cpu)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_protocol::message::{Others, Symbol, Triggered};

    #[test]
    fn checks_estimated_hits_and_says_why_there_are_none() {
        let Ok(Test::Trigger(test)) = "trigger/fexit@vfs_read".parse() else { panic!() };
        let work = |command: Option<&str>| {
            let command = command.map(str::to_owned);
            Work {
                test,
                program: None,
                command,
                hits: 8,
                throughput: false,
                estimated: true,
                unestimated: None,
            }
        };
        let reply = |estimated| {
            let function = Symbol { name: "vfs_read".to_owned(), module: None, start: 1, end: 2 };
            TriggerReply {
                mechanism: test.mechanism,
                program: function.clone(),
                function,
                trigger: None,
                others: Vec::new(),
                replacement: None,
                points: Vec::new(),
                hits: 8,
                attached_ns: Vec::new(),
                detached_ns: Vec::new(),
                timed: 0,
                estimated,
                counters: Vec::new(),
                remarks: Vec::new(),
            }
        };
        for (estimated, hits, fits) in
            [(25, None, true), (24, None, false), (21, Some(7), true), (7, Some(7), false)]
        {
            let trigger = hits.map(|hits| Triggered { workload: "w".to_owned(), hits });
            let reply = TriggerReply { trigger, ..reply(estimated) };
            assert_eq!(work(None).require_estimated(&reply).is_ok(), fits, "{estimated} {hits:?}");
        }
        assert!(work(Some("true")).require_estimated(&reply(25)).is_err());
        for (command, estimated, requested, is_told) in [
            (None, 25, 25, false),
            // The agent found a workload that starts a process.
            (None, 0, 25, true),
            (Some("cat /proc/stat"), 0, 0, true),
        ] {
            let work = work(command);
            assert_eq!(work.request().estimated, requested, "{command:?}");
            let why = work.unestimated(&reply(estimated));
            assert_eq!(why.is_some_and(|why| why.contains("a process starts")), is_told);
        }
    }

    #[test]
    fn rounds_that_something_disturbed_do_not_count() {
        let rounds = [411_000, 5010, 6000].map(|instruction_cycles| Estimate {
            cpu: "zen4".to_owned(),
            instructions: 0,
            instruction_cycles,
            events: Vec::new(),
        });
        assert_eq!(least(rounds.into()).cycles(), 5010);
    }

    #[test]
    fn rejects_a_live_patch_that_was_not_asked_for_or_is_missing() {
        for (name, patched, fits) in [
            ("trigger/fexit+livepatch@cmdline_proc_show", true, true),
            ("trigger/fexit@cmdline_proc_show", false, true),
            ("trigger/fexit+livepatch@cmdline_proc_show", false, false),
            ("trigger/fexit+function_tracer@cmdline_proc_show", true, false),
        ] {
            let Ok(Test::Trigger(test)) = name.parse() else { panic!("{name}") };
            match require_patched(test.beside, name, patched) {
                Ok(()) => assert!(fits, "{name}"),
                Err(Stop::Error { kind: ErrorKind::Protocol, .. }) => assert!(!fits, "{name}"),
                Err(_) => panic!("{name}: not an error of the protocol"),
            }
        }
    }

    #[test]
    fn rejects_other_functions_than_requested() {
        let told = |mechanism, functions, links| Others { mechanism, functions, links, refused: 0 };
        use Mechanism::{Fentry, KprobeMulti};
        let thousand = told(KprobeMulti, 1000, 1);
        for (name, told, fits) in [
            ("trigger/fexit+fentry", vec![], true),
            ("trigger/fexit+function_tracer:1", vec![], true),
            ("trigger/fexit+kprobe.multi:1000", vec![thousand], true),
            ("trigger/fexit+kprobe.multi:4x250", vec![told(KprobeMulti, 1000, 4)], true),
            ("trigger/fexit+kprobe.multi:all", vec![told(KprobeMulti, 40_000, 1)], true),
            ("trigger/fexit+fentry:7", vec![told(Fentry, 7, 7)], true),
            ("trigger/fexit+fentry", vec![thousand], false),
            ("trigger/fexit+kprobe.multi:1000", vec![], false),
            ("trigger/fexit+kprobe.multi:1000", vec![told(KprobeMulti, 999, 1)], false),
            ("trigger/fexit+kprobe.multi:1000", vec![told(Fentry, 1000, 1)], false),
            ("trigger/fexit+kprobe.multi:4x250", vec![thousand], false),
            ("trigger/fexit+kprobe.multi:all", vec![told(KprobeMulti, 0, 1)], false),
            ("trigger/fexit+fentry:7", vec![told(Fentry, 7, 1)], false),
        ] {
            let Ok(Test::Trigger(test)) = name.parse() else { panic!("{name}") };
            let work = Work {
                test,
                program: None,
                command: None,
                hits: 8,
                throughput: false,
                estimated: false,
                unestimated: None,
            };
            let result = require_others(test.beside, name, &told);
            assert_eq!(result.is_ok(), fits, "{name} {told:?}");
            let is_busy = name.contains(':');
            assert_eq!(work.within(QUICK), if is_busy { BUSY } else { QUICK }, "{name}");
        }
    }
}
