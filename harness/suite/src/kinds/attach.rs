// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attach`: times rounds of attaching and detaching, and profiles one more round.

use super::{
    COMPARED_BOOTS, FEWEST_BOOTS, Kind, Needs,
    targets::{self, Hook, TargetSet},
};
use crate::{
    guest::{Booted, Stop, require_others, unexpected},
    program::{Program, Programs},
    yaml::{Mechanisms, filled, nonzero},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab_analysis::branch::Symbols;
use tramplab_analysis::profile::{How, Phase, Profile, Summary, Thread, count, estimate};
use tramplab_model::{
    function::NotAFunction,
    kinds::{
        Metric,
        attach::{self, Number, SystemCalls},
    },
    name::hex,
    run::{Accel, Attach, AttachBoot, Backend, Clock, ErrorKind, Measurement, Test},
};
use tramplab_protocol::{
    Beside, BesideSet, Functions, Mechanism,
    binary::Binary,
    counts::{self, Counts},
    message::{
        AttachReply, AttachRequest, Command, Counter, Explain, ExplainReply, ExplainRequest,
        PhaseReply, Places, Response,
    },
    pattern::Pattern,
    program as protocol,
};
use tramplab_vm::{Feature, brief};

/// Number of functions and waits in a summary. The whole profile is in its file.
const COSTS: usize = 40;
const WAITS: usize = 20;
/// Name of the file in the guest's folder that lists the attached functions, one per line.
const LIST: &str = "functions.txt";
/// Each single link waits for an RCU tasks grace period when it is detached: a thousand links take
/// minutes.
const DEADLINE: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AttachGroup")]
pub struct Group {
    pub mechanisms: Mechanisms,
    /// The user's programs. Empty: the empty program, by each mechanism.
    #[serde(default, skip_serializing_if = "Programs::is_empty")]
    pub programs: Programs,
    /// Tracers that are attached to other functions meanwhile.
    #[serde(default, skip_serializing_if = "BesideSet::is_empty")]
    pub beside: BesideSet,
    #[serde(deserialize_with = "filled")]
    #[schemars(length(min = 1))]
    pub functions: Vec<Functions>,
    /// Functions to choose from, a cell for each. Empty: all of the kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetSet>,
    pub rounds: NonZeroU32,
    /// Number of guests, each with all rounds. Guests of base and head alternate.
    pub boots: Option<NonZeroU32>,
    /// Seed that chooses the functions.
    #[serde(default)]
    pub seed: u64,
    /// Limit in seconds of guest time for each of loading, attaching and detaching, if each
    /// function has its own link.
    pub seconds: Option<NonZeroU32>,
    #[serde(default)]
    pub clock: Clocks,
    /// Profiles one more round in these ways.
    #[serde(default)]
    pub explain: BTreeSet<Explain>,
    /// Also counts what fixed system calls cost before attaching and while all is attached. It
    /// needs `explain: [exact]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub system_calls: bool,
}

/// Rounds of each timed guest, if a bisection asks for one number.
const ROUNDS: NonZeroU32 = nonzero(3);

impl Group {
    /// Measures only what the number needs; one round if there is no number.
    pub fn only(test: attach::Test, number: Option<Number>) -> Group {
        let (clock, rounds, explain) = match number {
            Some(Number::Instructions { .. } | Number::GracePeriods(_) | Number::SystemCalls) => {
                (Clocks::Exact, NonZeroU32::MIN, BTreeSet::from([Explain::Exact]))
            }
            Some(Number::EstimatedCycles(_)) => {
                (Clocks::Exact, NonZeroU32::MIN, BTreeSet::from([Explain::Estimated]))
            }
            Some(Number::ExactTime(_)) => (Clocks::Exact, NonZeroU32::MIN, BTreeSet::new()),
            Some(Number::Time(_)) => (Clocks::Free, ROUNDS, BTreeSet::new()),
            None => (Clocks::Free, NonZeroU32::MIN, BTreeSet::new()),
        };
        Group {
            mechanisms: Mechanisms(vec![test.mechanism]),
            programs: Programs::default(),
            beside: test.beside,
            functions: vec![test.functions],
            // A list's name is taken for a function: only runs know lists.
            targets: test.among.iter().filter_map(|among| among.to_string().parse().ok()).collect(),
            rounds,
            boots: None,
            seed: 0,
            seconds: None,
            clock,
            explain,
            system_calls: number == Some(Number::SystemCalls),
        }
    }

    /// Replaces the clocks and explanations by those of the command line, if it has any.
    pub fn set(&mut self, clocks: Option<Clocks>, explanations: Option<&BTreeSet<Explain>>) {
        self.clock = clocks.unwrap_or(self.clock);
        self.explain = explanations.unwrap_or(&self.explain).clone();
    }
}

impl super::Group for Group {
    fn work(&self, compared: bool) -> Vec<super::Work> {
        let boots = match (self.boots, compared) {
            (Some(boots), false) => boots.get(),
            (Some(boots), true) => boots.get().max(FEWEST_BOOTS),
            (None, false) => 1,
            (None, true) => COMPARED_BOOTS,
        };
        let beside = self.beside;
        let work = |(hook, set): (Hook, Option<TargetSet>)| -> Vec<super::Work> {
            let (mechanism, program) = (hook.mechanism, hook.program());
            let (among, of, binary) = match set {
                Some(TargetSet { name, of, binary }) => (Some(name), of, binary),
                None => (None, Vec::new(), None),
            };
            let work = |&functions: &Functions| {
                super::Work::Attach(Work {
                    test: attach::Test { mechanism, program, beside, functions, among },
                    program: hook.sent(),
                    among: of.clone(),
                    binary: binary.clone(),
                    rounds: self.rounds.get(),
                    boots,
                    seed: self.seed,
                    seconds: self.seconds.map(NonZeroU32::get),
                    clock: self.clock,
                    explain: self.explain.clone(),
                    system_calls: self.system_calls,
                    unestimated: None,
                })
            };
            self.functions.iter().map(work).collect()
        };
        let hooks = targets::hooks(&self.mechanisms, &self.programs, &self.targets);
        hooks.into_iter().flat_map(work).collect()
    }

    fn programs(&self) -> &[Program] {
        self.programs.all()
    }

    fn attached(&mut self) -> Option<(&Mechanisms, &mut Programs)> {
        Some((&self.mechanisms, &mut self.programs))
    }

    fn misfit(&self) -> Option<String> {
        let each = |functions: &Functions| {
            let single = |mechanism: &&Mechanism| !attach::fits(**mechanism, *functions);
            let mechanism = self.mechanisms.0.iter().find(single)?;
            Some(format!(
                "{mechanism} has a link for each function: {functions} is for multi mechanisms, \
                 name them in a group of their own"
            ))
        };
        let of_module = || {
            let mut programs = targets::of_mechanisms(&self.mechanisms, &self.programs);
            let is_of_module = |own: &&Program| own.function.is_some_and(|f| f.module().is_some());
            let own = programs.find(is_of_module).filter(|_| self.targets.is_empty())?;
            Some(format!(
                "the program {} is for a function of a module, and without `targets` attach tests \
                 choose functions of the image: name functions of the module (`--function`)",
                own.name()
            ))
        };
        let besides = || {
            let misfit = |&of: &Mechanism| Some((of, attach::misfit(of, self.beside)?));
            let (mechanism, misfit) = self.mechanisms.0.iter().find_map(misfit)?;
            Some(format!(
                "{misfit} cannot be attached beside the functions of {mechanism}: name tracers of \
                 other functions, as in kprobe.multi:1000"
            ))
        };
        let uncounted = || {
            let is_uncounted = self.system_calls && !self.explain.contains(&Explain::Exact);
            is_uncounted.then(|| "`system_calls` needs `explain: [exact]`".to_owned())
        };
        let unclocked = || {
            let is_unclocked = self.explain.contains(&Explain::Estimated) && !self.clock.exact();
            let why = "estimated cycles are counted by the exact clock: `clock: exact` or `both` \
                       (--clock)";
            is_unclocked.then(|| why.to_owned())
        };
        let links = self
            .functions
            .iter()
            .find_map(each)
            .or_else(besides)
            .or_else(uncounted)
            .or_else(unclocked)
            .or_else(of_module);
        links.or_else(|| targets::misfit(&self.mechanisms, &self.programs, &self.targets))
    }

    /// Attaches to all of each set: the suite's numbers are not for so few functions.
    fn trace(&mut self, sets: &[TargetSet]) -> Result<bool, NotAFunction> {
        self.functions = vec![Functions::All];
        self.targets = sets.to_vec();
        Ok(targets::misfit(&self.mechanisms, &self.programs, sets).is_none())
    }
}

/// The clocks that attach times are measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Clocks {
    #[default]
    Free,
    Exact,
    Both,
}

impl Clocks {
    pub fn free(self) -> bool {
        matches!(self, Clocks::Free | Clocks::Both)
    }

    pub fn exact(self) -> bool {
        matches!(self, Clocks::Exact | Clocks::Both)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub test: attach::Test,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<protocol::Program>,
    /// The patterns behind the test's `among`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub among: Vec<Pattern>,
    /// The file of user-space code behind the test's `among`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<Binary>,
    pub rounds: u32,
    /// Guests with the free clock.
    pub boots: u32,
    pub seed: u64,
    pub seconds: Option<u32>,
    pub clock: Clocks,
    pub explain: BTreeSet<Explain>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub system_calls: bool,
    /// The reason why no cycles are estimated, if they were to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unestimated: Option<String>,
}

impl Kind for Work {
    fn test(&self) -> Test {
        Test::Attach(self.test)
    }

    /// Guests restored from one snapshot share their random addresses. Several boots should have
    /// different addresses.
    fn may_restore(&self) -> bool {
        self.boots == 1
    }

    fn is_timed(&self) -> bool {
        self.clock.free()
    }

    fn reduce_to_exact(&mut self) -> bool {
        let exact = self.clock.exact();
        self.clock = Clocks::Exact;
        self.explain.remove(&Explain::Sampled);
        exact
    }

    fn on_this_machine(&mut self, most: u32) -> Option<String> {
        self.clock = Clocks::Free;
        self.boots = self.boots.max(1);
        self.explain.retain(|how| *how == Explain::Sampled);
        self.system_calls = false;
        let attached = self.test.beside.attached_with(Some(self.test.functions));
        targets::unsafe_here(self.program.as_ref(), false, attached, most)
    }

    fn clocks(&self, _cpus: u32, _backend: Backend) -> Vec<Clock> {
        let free = if self.clock.free() { self.boots } else { 0 };
        let exact = u32::from(self.clock.exact());
        let times = |clock, count| std::iter::repeat_n(clock, count as usize);
        times(Clock::Free, free).chain(times(Clock::Exact, exact)).collect()
    }

    fn only_tcg(&self) -> Option<&'static str> {
        let counts = [Explain::Exact, Explain::Estimated].map(|how| self.explain.contains(&how));
        (self.clock.exact() || counts.contains(&true)).then_some(
            "the exact clock and profiles count instructions, which only TCG does; use --accel \
             auto, or --clock free --explain sampled",
        )
    }

    fn too_many_cpus(&self, cpus: u32) -> Option<String> {
        let or_free = if self.estimates() { "" } else { ", or --clock free" };
        (self.clock.exact() && cpus > 1).then(|| {
            format!(
                "with the exact clock QEMU runs all of a machine's {cpus} CPUs on one thread, \
                 where the plugin cannot tell them apart; use one CPU{or_free}"
            )
        })
    }

    fn estimates(&self) -> bool {
        self.explain.contains(&Explain::Estimated)
    }

    fn refuse_estimates(&mut self, why: String) {
        self.explain.remove(&Explain::Estimated);
        self.unestimated = Some(why);
    }

    fn exact_clock(&self) -> Option<Feature> {
        self.clock.exact().then_some(Feature::ExactClock { or_free: true })
    }

    fn needs(&self) -> Needs {
        let modules = self.among.iter().filter_map(Pattern::module);
        Needs { modules: modules.map(str::to_owned).collect(), shell: false }
    }

    fn mechanisms(&self) -> Vec<Mechanism> {
        let beside = self.test.beside.iter().filter_map(Beside::mechanism);
        [self.test.mechanism].into_iter().chain(beside).collect()
    }

    fn measures(&self, metric: &Metric, accel: Accel) -> bool {
        match metric {
            Metric::Attach(attach::Metric {
                number:
                    number @ (Number::Instructions { .. }
                    | Number::GracePeriods(_)
                    | Number::SystemCalls),
                ..
            }) => {
                let is_asked = self.system_calls || *number != Number::SystemCalls;
                let is_counted = self.clock.exact() && self.explain.contains(&Explain::Exact);
                accel == Accel::Tcg && is_counted && is_asked
            }
            Metric::Attach(attach::Metric { number: Number::EstimatedCycles(_), .. }) => {
                accel == Accel::Tcg && self.estimates()
            }
            _ => true,
        }
    }

    fn commands(&self, clock: Clock, is_last: bool) -> (Vec<Command>, Duration) {
        (self.requests(clock, is_last), DEADLINE)
    }

    fn measure(&self, booted: &mut Booted) -> Result<Measurement, Stop> {
        self.attach(booted).map(Measurement::Attach)
    }
}

impl Work {
    /// The guest handles these in order.
    fn requests(&self, clock: Clock, is_last: bool) -> Vec<Command> {
        let &Work { test, ref program, ref among, ref binary, rounds, seed, seconds, .. } = self;
        let attach::Test { mechanism, beside, functions, .. } = test;
        let (program, among, binary) = (program.clone(), among.clone(), binary.clone());
        let request = AttachRequest {
            mechanism,
            program,
            functions,
            among,
            binary,
            beside,
            rounds,
            seed,
            seconds,
        };
        let explained = |how: Explain| {
            let rounds = match how {
                // Counts repeat in every round.
                Explain::Exact | Explain::Estimated => 1,
                // More rounds give more samples.
                Explain::Sampled => rounds,
            };
            Command::Explain(ExplainRequest {
                attach: AttachRequest { rounds, ..request.clone() },
                how,
                system_calls: self.system_calls && how == Explain::Exact,
            })
        };
        // Only the last guest of a clock explains.
        let explain =
            self.explain.iter().copied().filter(|&how| is_last && self.explains(how, clock));
        std::iter::once(Command::Attach(request.clone())).chain(explain.map(explained)).collect()
    }

    /// A guest with this clock profiles a round in this way.
    fn explains(&self, how: Explain, clock: Clock) -> bool {
        match how {
            // Prefer the exact clock: there interrupts come at the same places, too.
            Explain::Exact => self.clock.exact() == (clock == Clock::Exact),
            // Prefer the free clock: it is the clock of all users of perf.
            Explain::Sampled => self.clock.free() == (clock == Clock::Free),
            // By the host's clock interrupts come elsewhere each time, and caches hold other lines.
            Explain::Estimated => clock == Clock::Exact,
        }
    }

    fn attach(&self, booted: &mut Booted) -> Result<Attach, Stop> {
        let clock = booted.clock;
        let commands = self.requests(clock, booted.is_last);
        let is_last = booted.is_last && clock == Clock::Exact;
        let mut unexplained: Vec<String> =
            self.unestimated.iter().filter(|_| is_last).cloned().collect();
        let (mut boot, mut explained) = (None, Vec::new());
        let mut counted_calls = None;
        // True once the plugin's files have no certain numbers.
        let mut is_lost = false;
        for command in &commands {
            let first = booted.counts;
            if let Command::Explain(asked) = command {
                // Also if the guest fails after it recorded a phase.
                booted.counts += files(asked);
            }
            match (command, booted.reply(command.clone(), DEADLINE)?) {
                (Command::Attach(asked), Ok(Response::Attach(reply))) => {
                    require_asked(asked, &reply)?;
                    require_others(asked.beside, &self.test.to_string(), &reply.others)?;
                    let still_attached =
                        reply.stopped.is_some_and(|stopped| stopped.detached < stopped.attached);
                    boot = Some(keep(reply, booted.folder)?);
                    if still_attached && commands.len() > 1 {
                        unexplained.push(
                            "the time budget left links attached, which a profile would count too"
                                .to_owned(),
                        );
                        break;
                    }
                }
                (Command::Explain(asked), Ok(Response::Explain(_)))
                    if is_lost && files(asked) > 0 =>
                {
                    unexplained.push(
                        "the explanation before it failed, and nobody knows which of the plugin's \
                         files are its own"
                            .to_owned(),
                    );
                }
                (Command::Explain(asked), Ok(Response::Explain(reply))) => {
                    require_calls(asked, &reply)?;
                    if let Some(calls) = reply.system_calls {
                        counted_calls = Some(system_calls(booted, calls, reply.functions)?);
                    }
                    explained.extend(explanations(booted, (asked.how, first), *reply)?);
                }
                (_, Ok(other)) => return Err(unexpected(&other)),
                // The times are valid without the profile.
                (_, Err(error)) if boot.is_some() => {
                    unexplained.push(brief(error.to_string()));
                    is_lost |= booted.counts > first;
                }
                (_, Err(error)) => return Err(error.into()),
            }
        }
        let boot =
            boot.ok_or_else(|| Stop::harness("a guest was to measure nothing".to_owned()))?;
        let (boots, exact) = match clock {
            Clock::Free => (vec![boot], None),
            Clock::Exact => (Vec::new(), Some(boot)),
        };
        Ok(Attach { boots, exact, explained, unexplained, system_calls: counted_calls })
    }
}

/// The phases of a round. The plugin counts each on its own.
const PHASES: u64 = 2;

/// The plugin's files for an explanation.
fn files(asked: &ExplainRequest) -> u64 {
    match asked.how {
        Explain::Exact if asked.system_calls => PHASES * 2,
        Explain::Exact => PHASES,
        // A round to fill the caches, and one that counts.
        Explain::Estimated => PHASES * 2,
        Explain::Sampled => 0,
    }
}

/// Rejects a reply that counted system calls against the request.
fn require_calls(asked: &ExplainRequest, reply: &ExplainReply) -> Result<(), Stop> {
    if asked.system_calls == reply.system_calls.is_some_and(|calls| calls > 0) {
        return Ok(());
    }
    let message = format!("the guest counted system calls: {:?}", reply.system_calls);
    Err(Stop::Error { kind: ErrorKind::Protocol, message })
}

/// Reads the counts before attaching and those while all was attached. Each is followed by a phase.
fn system_calls(booted: &mut Booted, calls: u32, functions: u32) -> Result<SystemCalls, Stop> {
    let clock = booted.clock;
    let mut counted = |number| {
        let Counted { profile, path, .. } = counted(booted, Phase::Attach, number)?;
        let _ = fs::remove_file(&path);
        Ok::<_, Stop>(profile.totals().task)
    };
    let (before, attached) = (counted(0)?, counted(2)?);
    Ok(SystemCalls { calls, before, attached, functions, clock })
}

/// Summaries of attaching and detaching. The profiles are written to the cell's folder. The
/// plugin's files begin at `first`.
fn explanations(
    booted: &mut Booted,
    (how, first): (Explain, u64),
    reply: ExplainReply,
) -> Result<Vec<Summary>, Stop> {
    let (rounds, attached, places) = (reply.rounds, reply.functions, reply.places);
    let has_calls = reply.system_calls.is_some();
    let phases = [(Phase::Attach, reply.attach), (Phase::Detach, reply.detach)];
    let mut explained = Vec::new();
    for (number, (phase, reply)) in phases.into_iter().enumerate() {
        let made = Made { booted, phase, rounds, attached, places };
        explained.push(match how {
            // The counts of system calls are before those of each phase.
            Explain::Exact if has_calls => exact(made, &reply, first + number as u64 * 2 + 1)?,
            Explain::Exact => exact(made, &reply, first + number as u64)?,
            Explain::Estimated => estimated(made, &reply, first + number as u64)?,
            Explain::Sampled => sampled(made, &reply)?,
        });
    }
    Ok(explained)
}

/// Rejects replies that do not match the request.
fn require_asked(asked: &AttachRequest, reply: &AttachReply) -> Result<(), Stop> {
    let (rounds, functions) = (reply.rounds.len(), reply.functions.len());
    let links = asked.functions.links();
    if reply.mechanism == asked.mechanism
        && (!asked.mechanism.is_multi() || reply.links == links)
        && (1..=asked.rounds as usize).contains(&rounds)
        && (functions > 0 || reply.stopped.is_some())
    {
        return Ok(());
    }
    let message = format!(
        "the guest was asked for {} rounds of {} with {}, and answers of {rounds} of {} with \
         {functions} functions by {} links",
        asked.rounds, asked.mechanism, asked.functions, reply.mechanism, reply.links
    );
    Err(Stop::Error { kind: ErrorKind::Protocol, message })
}

/// Writes the names of the functions, tens of thousands at most, to a file.
fn keep(reply: AttachReply, folder: &Path) -> Result<AttachBoot, Stop> {
    let list: String = reply.functions.iter().map(|name| format!("{name}\n")).collect();
    let path = folder.join(LIST);
    fs::write(&path, &list)
        .map_err(|error| Stop::harness(format!("failed to write {}: {error}", path.display())))?;
    let list_sha256 = hex(&Sha256::digest(&list));
    let AttachReply { functions, refused, programs, links, others, rounds, stopped, .. } = reply;
    Ok(AttachBoot {
        functions: functions.len() as u32,
        list_sha256,
        refused,
        programs,
        links,
        others,
        rounds,
        stopped,
    })
}

/// The guest and the phase that a profile is made from.
struct Made<'a, 'b> {
    booted: &'a mut Booted<'b>,
    phase: Phase,
    rounds: u32,
    attached: u32,
    places: Option<Places>,
}

impl Made<'_, '_> {
    fn name(&self) -> String {
        self.booted.planned.id().name()
    }

    fn save(&self, profile: &Profile, how: How) -> Result<String, Stop> {
        let file = how.file(self.phase);
        let path = self.booted.cell.join(&file);
        let failed = |error: &dyn std::fmt::Display| {
            Stop::harness(format!("failed to write {}: {error}", path.display()))
        };
        // The guest's answer may be anything: write only a profile that can be read again.
        profile.check().map_err(|wrong| Stop::Error {
            kind: ErrorKind::Protocol,
            message: format!("what the guest says makes no profile: {wrong}"),
        })?;
        let bytes = serde_json::to_vec(profile).map_err(|error| failed(&error))?;
        fs::write(&path, bytes).map_err(|error| failed(&error))?;
        Ok(file)
    }

    fn summary(
        &self,
        how: Explain,
        reply: &PhaseReply,
        profile: &Profile,
        file: String,
    ) -> Summary {
        let mut functions = profile.costs();
        functions.truncate(COSTS);
        Summary {
            phase: self.phase,
            how,
            clock: self.booted.clock,
            rounds: self.rounds,
            attached: self.attached,
            wall_ns: reply.wall_ns,
            cpu_ns: reply.cpu_ns,
            unit: profile.unit,
            totals: profile.totals(),
            cpus: Vec::new(),
            functions,
            waits: Vec::new(),
            waited_ns: 0,
            grace_periods: (how == Explain::Exact).then(|| profile.grace_periods()),
            counters: kept(&reply.counters, self.booted.planned.accel),
            places: self.places,
            estimate: None,
            file,
        }
    }
}

/// The kernel's own counters, and a real CPU's. QEMU's emulated PMU for arm64 counts time as
/// cycles.
fn kept(counters: &[Counter], accel: Accel) -> Vec<Counter> {
    let is_kernels =
        |counter: &&Counter| ["task-clock", "context-switches"].contains(&counter.event.as_str());
    counters.iter().filter(|one| accel.has_real_cpu() || is_kernels(one)).cloned().collect()
}

/// The `number`th file of counts of a guest's plugin.
pub(super) struct Counted {
    path: PathBuf,
    pub counts: Counts,
    symbols: Symbols,
    pub profile: Profile,
}

/// Reads a file of counts, and names its addresses.
pub(super) fn counted(booted: &mut Booted, phase: Phase, number: u64) -> Result<Counted, Stop> {
    let path = counts::file_name(booted.folder, number);
    let error = |message: String| Stop::Error { kind: ErrorKind::Trace, message };
    let counts = Counts::decode(&booted.of_plugin(&path, "counts")?)
        .map_err(|e| error(format!("{}: {e}", path.display())))?;
    if let Some(fault) = counts.fault() {
        return Err(error(fault));
    }
    let symbols = booted.resolve(count::addresses(&counts))?;
    let profile = count::of_counts(&booted.planned.id().name(), phase, &counts, &symbols);
    Ok(Counted { path, counts, symbols, profile })
}

fn exact(made: Made, reply: &PhaseReply, number: u64) -> Result<Summary, Stop> {
    let Counted { path, counts, symbols, profile } = counted(made.booted, made.phase, number)?;
    let file = made.save(&profile, How::Exact)?;
    // The profile has all counts. If this fails, the file just stays.
    let _ = fs::remove_file(&path);
    let cpus = count::by_cpu(&counts, &symbols);
    Ok(Summary { cpus, ..made.summary(Explain::Exact, reply, &profile, file) })
}

/// The files of the first round are `number` and the next; those of the second follow.
fn estimated(made: Made, reply: &PhaseReply, number: u64) -> Result<Summary, Stop> {
    let _ = fs::remove_file(counts::file_name(made.booted.folder, number));
    let Counted { path, counts, profile, .. } = counted(made.booted, made.phase, number + PHASES)?;
    require_events(&counts)?;
    let (cpu, cycles, _) = made.booted.planned.estimated().map_err(Stop::harness)?;
    let (profile, estimate) = estimate::weigh(profile, cpu, cycles);
    let file = made.save(&profile, How::Estimated)?;
    let _ = fs::remove_file(&path);
    let estimate = Some(estimate);
    Ok(Summary { estimate, ..made.summary(Explain::Estimated, reply, &profile, file) })
}

/// Rejects counts of a plugin that modelled no CPU.
pub(super) fn require_events(counts: &Counts) -> Result<(), Stop> {
    if counts.vcpus.iter().all(|vcpu| !vcpu.events.is_empty()) {
        return Ok(());
    }
    let message = "the plugin counted no events of a CPU".to_owned();
    Err(Stop::Error { kind: ErrorKind::Trace, message })
}

fn sampled(made: Made, reply: &PhaseReply) -> Result<Summary, Stop> {
    let Some(samples) = &reply.samples else {
        return Err(Stop::Error {
            kind: ErrorKind::Protocol,
            message: "the guest explains by samples, and sent none".to_owned(),
        });
    };
    let stacks = samples.stacks.iter().map(|sample| &sample.stack);
    let stacks = stacks.chain(reply.waits.iter().map(|wait| &wait.stack));
    let symbols = made.booted.resolve(count::stack_addresses(stacks))?;
    let profile = count::of_samples(&made.name(), made.phase, samples, &symbols);
    let file = made.save(&profile, How::Sampled)?;
    let thread = profile
        .threads
        .iter()
        .find(|thread| thread.measured)
        .cloned()
        .unwrap_or_else(Thread::agent);
    let waiting = count::of_waits(&made.name(), made.phase, &reply.waits, thread, &symbols);
    made.save(&waiting, How::Waiting)?;
    let mut summary = made.summary(Explain::Sampled, reply, &profile, file);
    summary.waited_ns = reply.waits.iter().fold(0, |sum, wait| sum.saturating_add(wait.ns));
    summary.waits = count::waited(&reply.waits, &symbols);
    summary.waits.truncate(WAITS);
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_protocol::message::AttachRound;

    #[test]
    fn rejects_a_reply_with_other_links() {
        let asked = |mechanism, functions: &str| AttachRequest {
            mechanism,
            program: None,
            functions: functions.parse().unwrap(),
            among: Vec::new(),
            binary: None,
            beside: BesideSet::default(),
            rounds: 1,
            seed: 0,
            seconds: None,
        };
        let told = |mechanism, links| AttachReply {
            mechanism,
            functions: vec!["f".to_owned(); 6],
            refused: Vec::new(),
            programs: 1,
            links,
            others: Vec::new(),
            rounds: vec![AttachRound { load_ns: 1, attach_ns: 1, detach_ns: 1, memory_kib: None }],
            stopped: None,
            remarks: Vec::new(),
        };
        use Mechanism::{Fentry, KprobeMulti};
        for (mechanism, functions, links, fits) in [
            (KprobeMulti, "6", 1, true),
            (KprobeMulti, "2x3", 2, true),
            (Fentry, "6", 6, true),
            (KprobeMulti, "6", 6, false),
            (KprobeMulti, "2x3", 1, false),
        ] {
            let result = require_asked(&asked(mechanism, functions), &told(mechanism, links));
            assert_eq!(result.is_ok(), fits, "{mechanism} {functions} {links}");
        }
    }

    #[test]
    fn drops_pmu_counters_under_tcg() {
        let counter = |event: &str| Counter { event: event.to_owned(), count: 1, estimated: false };
        let all = ["cycles", "task-clock", "context-switches"].map(counter);
        let names = |accel| kept(&all, accel).into_iter().map(|one| one.event).collect::<Vec<_>>();
        assert_eq!(names(Accel::Tcg), ["task-clock", "context-switches"]);
        assert_eq!(names(Accel::Kvm), ["cycles", "task-clock", "context-switches"]);
    }
}
