// SPDX-License-Identifier: MIT OR Apache-2.0
//! A round: load, attach, detach, starting and ending with nothing attached. The caller passes the
//! watcher of its phases.

use crate::binary::{self, Binary, Process};
use crate::bpf::{BpfError, Link, Misses};
use crate::budget::{Budget, now_ns};
use crate::facts;
use crate::found;
use crate::hooks;
use crate::known::Known;
use crate::method::Method;
use crate::own::Measured;
use crate::tail_calls::Loaded;
use crate::target::{self, List, Target};
use crate::targets::{self, Targets};
use crate::tracefs_events;
use crate::trigger::Traced;
use std::os::fd::AsFd;
use tramplab_protocol::binary::Binary as UserBinary;
use tramplab_protocol::message::{AttachRequest, AttachRound, GuestError, Others, Remark, Stopped};
use tramplab_protocol::pattern::Pattern;
use tramplab_protocol::program::Program;
use tramplab_protocol::{Functions, Mechanism};

/// For each function that takes a user's program, so many may refuse it before it counts as
/// rejected.
const REFUSED_AT_MOST: usize = 50;

/// The watched phases of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Attach,
    Detach,
}

/// The parts of a request that determine its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    mechanism: Mechanism,
    program: Option<Program>,
    functions: Functions,
    among: Vec<Pattern>,
    binary: Option<UserBinary>,
    seed: u64,
    seconds: Option<u32>,
}

/// A request's mechanism and targets. They are kept between requests, because finding the targets
/// that the kernel refuses takes longer than a round.
#[derive(Debug)]
pub struct Prepared {
    choice: Choice,
    pub method: Method,
    measured: Measured,
    pub targets: Targets,
    /// The process that runs the binary, if the targets are in it.
    _process: Option<Process>,
    /// True once the kernel is known to accept all targets.
    settled: bool,
    /// True if a round was to find refusals and did not end well.
    refused: bool,
    /// Set after a budget ended a round. `targets` are then those that the round attached.
    pub stopped: Option<Stopped>,
    /// Hits that the kernel missed while a round's programs were attached.
    missed: Misses,
    /// Asks each link, too. It takes time between attaching and detaching, in which a grace period
    /// may begin or end.
    pub asks_links: bool,
    /// Links that no budget was left to close. They stay until the machine ends.
    pub left: usize,
}

/// The fate of links that a round's budget leaves no time to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excess {
    /// Leave them attached. After such a measurement the machine is of no more use.
    Leave,
    /// Close them anyway.
    Close,
}

/// The result of a round.
#[derive(Clone, Copy, Debug)]
struct Round {
    times: AttachRound,
    /// Functions with a loaded program; then those attached to and detached from.
    loaded: usize,
    attached: usize,
    detached: usize,
    /// True if nothing was refused. Otherwise the times do not belong to the final list.
    clean: bool,
}

/// Programs on other functions than the measured one. Dropping them detaches them.
#[derive(Debug)]
pub struct Held {
    pub others: Others,
    _links: Vec<Link>,
    _programs: Vec<Loaded>,
}

/// Runs the work of a phase with the watcher around it.
pub type Watch<'a> = dyn FnMut(Phase, &mut dyn FnMut()) -> Result<(), GuestError> + 'a;

impl Prepared {
    /// Chooses a request's targets. Takes those of `earlier` if the choice is the same.
    pub fn of(
        request: &AttachRequest,
        known: &Known,
        earlier: Option<Prepared>,
    ) -> Result<Prepared, GuestError> {
        let AttachRequest {
            mechanism,
            program,
            functions,
            among,
            binary,
            rounds,
            seed,
            seconds,
            ..
        } = request.clone();
        if rounds == 0 {
            return Err(GuestError::failed("an attach request needs at least one round"));
        }
        let choice = Choice { mechanism, program, functions, among, binary, seed, seconds };
        match earlier.filter(|earlier| earlier.choice == choice) {
            Some(earlier) => Ok(Prepared { missed: Misses::default(), ..earlier }),
            None => Prepared::choose(choice, &[], known),
        }
    }

    /// Chooses functions without the `measured` ones, as the rounds of a request with the first
    /// seed do.
    pub fn others(
        mechanism: Mechanism,
        functions: Functions,
        measured: &[Target],
        known: &Known,
    ) -> Result<Prepared, GuestError> {
        let (program, among, binary, seconds) = (None, Vec::new(), None, None);
        let choice = Choice { mechanism, program, functions, among, binary, seed: 0, seconds };
        Prepared::choose(choice, measured, known)
    }

    fn choose(choice: Choice, except: &[Target], known: &Known) -> Result<Prepared, GuestError> {
        let Choice { mechanism, functions, seed, .. } = choice;
        let among = hooks::among(mechanism, choice.among.clone())?;
        let mut method = Method::new(mechanism, known.btf()?)?;
        // A target that must work tells a kernel without the mechanism from a refused function.
        let process = mechanism.is_user().then(|| Binary::get()?.run()).transpose()?;
        let surely = match process {
            Some(_) => Binary::functions(mechanism).swap_remove(0),
            None => Traced::of(mechanism, known)?.target,
        };
        method.probe(&surely)?;
        let mut candidates = match &choice.binary {
            Some(own) => {
                method = method.to(Binary::of(own)?);
                binary::functions_of(own)
            }
            None => targets::candidates(mechanism, functions, &among, known)?,
        };
        target::remove(&mut candidates, except);
        let own = choice.program.as_ref().and_then(|program| program.target.as_deref());
        let own = own.map(|own| match mechanism.is_event() {
            true => tracefs_events::of_section(own).to_owned(),
            // `SEC("ksyscall/getppid")`.
            _ if candidates.iter().all(|candidate| candidate.name != own) => {
                found::kernel_name(mechanism, own)
            }
            _ => own.to_owned(),
        });
        // Other functions than the program's own would be measured in silence.
        let is_own = |own: &String| candidates.iter().any(|candidate| candidate.name == *own);
        if among.is_empty()
            && functions.count().is_some()
            && let Some(own) = own.as_ref().filter(|own| !is_own(own))
        {
            return Err(targets::not_listed(mechanism, own, known));
        }
        let unmatched = targets::unmatched(mechanism, &among, &candidates, known)?;
        let others = targets::keep_one_btf(mechanism, &mut candidates);
        let mut targets = Targets::choose(candidates, functions, seed, own.as_deref())?;
        if mechanism.is_event() {
            // Ids are known before a round is timed. Attaching tells what has none.
            targets.chosen.iter().for_each(|target| drop(tracefs_events::id(&target.name)));
        }
        targets.refused = [unmatched, others].concat();
        let measured = Measured::prepare(choice.program.as_ref())?;
        if mechanism.is_multi() {
            let program = measured.load(method, &targets.chosen[0]);
            let program = program.map_err(|error| measured.refusal(&error))?;
            targets.remove_offenders(method, program.as_fd())?;
        }
        Ok(Prepared {
            choice,
            method,
            measured,
            targets,
            _process: process,
            settled: mechanism.is_multi(),
            refused: false,
            stopped: None,
            missed: Misses::default(),
            asks_links: false,
            left: 0,
        })
    }

    /// The attributes of the program's maps that the agent set, and missed hits.
    pub fn remarks(&self) -> Vec<Remark> {
        [self.measured.remarks(), self.missed.remarks()].concat()
    }

    /// Attaches to all targets, for as long as the result lives.
    pub fn hold(mut self) -> Result<Held, GuestError> {
        let (mut clean, no_limit) = (true, Budget(None));
        let mut programs = self.load(no_limit, &mut clean)?;
        let mut links = Vec::new();
        if self.method.mechanism.is_multi() {
            let link = |list: &List| self.method.link_list(programs[0].as_fd(), list);
            links = self.lists().iter().map(link).collect::<Result<_, _>>()?;
        } else {
            self.attach(no_limit, &mut programs, &mut links, &mut clean)?;
        }
        let others = Others {
            mechanism: self.method.mechanism,
            functions: self.targets.chosen.len() as u32,
            links: links.len() as u32,
            refused: self.targets.refused.len() as u32,
        };
        Ok(Held { others, _links: links, _programs: programs })
    }

    /// The targets of each link of a multi mechanism.
    fn lists(&self) -> Vec<List> {
        let each = self.targets.chosen.len().div_ceil(self.choice.functions.links() as usize);
        self.targets.chosen.chunks(each).map(List::of).collect()
    }

    /// A round against the clock. It repeats until no target is refused.
    pub fn timed_round(&mut self) -> Result<AttachRound, GuestError> {
        loop {
            if let Some(round) = self.round(Excess::Leave, &mut unwatched, &mut || Ok(()))? {
                return Ok(round.times);
            }
        }
    }

    /// Makes sure that the kernel refuses none of the targets.
    pub fn settle(&mut self) -> Result<(), GuestError> {
        while !self.settled {
            self.round(Excess::Close, &mut unwatched, &mut || Ok(()))?;
        }
        Ok(())
    }

    /// A round with a watcher around its phases and `between` after attaching. The targets must be
    /// settled. Returns the functions it attached to.
    pub fn watched_round(
        &mut self,
        watch: &mut Watch<'_>,
        attached: &mut dyn FnMut() -> Result<(), GuestError>,
    ) -> Result<usize, GuestError> {
        let round = self.round(Excess::Leave, watch, attached)?;
        let unexpected = || {
            let refused = self.targets.refused.last().map_or("", |refusal| &refusal.function);
            GuestError::failed(format!("the kernel refused {refused}, which it had taken before"))
        };
        Ok(round.ok_or_else(unexpected)?.attached)
    }

    /// Returns none if something was refused.
    fn round(
        &mut self,
        excess: Excess,
        watch: &mut Watch<'_>,
        attached: &mut dyn FnMut() -> Result<(), GuestError>,
    ) -> Result<Option<Round>, GuestError> {
        let round = self.one_round(excess, watch, attached)?;
        let wanted = self.targets.chosen.len();
        self.left += round.attached - round.detached;
        // Loading finds most of the first refusals, so a second round may use its whole budget. But
        // targets after the last link were not tried: only a list without them surely meets no new
        // refusals.
        self.targets.keep(if round.clean || self.refused { round.attached } else { round.loaded });
        self.refused |= !round.clean;
        let ended = round.attached < wanted || round.detached < round.attached;
        if let Some(seconds) = self.choice.seconds.filter(|_| ended) {
            self.stopped = Some(Stopped {
                wanted: self.stopped.map_or(wanted as u32, |earlier| earlier.wanted),
                attached: round.attached as u32,
                detached: round.detached as u32,
                seconds,
            });
        }
        if let Some(stopped) = &mut self.stopped
            && round.clean
        {
            // An earlier round may have met refusals and ended elsewhere.
            (stopped.attached, stopped.detached) = (round.attached as u32, round.detached as u32);
            if stopped.detached == stopped.wanted {
                self.stopped = None;
            }
        }
        self.settled |= round.clean;
        Ok(round.clean.then_some(round))
    }

    fn one_round(
        &mut self,
        excess: Excess,
        watch: &mut Watch<'_>,
        attached: &mut dyn FnMut() -> Result<(), GuestError>,
    ) -> Result<Round, GuestError> {
        let multi = self.method.mechanism.is_multi();
        let budget = Budget(if multi { None } else { self.choice.seconds });
        let lists = if multi { self.lists() } else { Vec::new() };

        let before = now_ns();
        let mut clean = true;
        let mut programs = self.load(budget, &mut clean)?;
        let load_ns = now_ns() - before;

        // Allocated up front, so that its growth does not count as the links' memory.
        let mut links = Vec::with_capacity(self.targets.chosen.len());
        let taken = facts::kernel_memory_kib().map_err(GuestError::failed)?;
        let mut attach_ns = 0;
        let mut result = Ok(());
        watch(Phase::Attach, &mut || {
            let before = now_ns();
            result = if multi {
                let link = |list| self.method.link_list(programs[0].as_fd(), list);
                let made = lists.iter().try_for_each(|list| link(list).map(|one| links.push(one)));
                made.map_err(Into::into)
            } else {
                self.attach(budget, &mut programs, &mut links, &mut clean)
            };
            attach_ns = now_ns() - before;
        })?;
        result?;
        let now = facts::kernel_memory_kib().map_err(GuestError::failed)?;
        let memory_kib = now.zip(taken).map(|(now, taken)| now - taken);
        attached()?;

        if self.asks_links {
            self.missed = self.missed.and(Misses::of_links(&links)?);
        }
        let made = links.len();
        // A round that will be repeated leaves nothing behind.
        let budget = if clean && excess == Excess::Leave { budget } else { Budget(None) };
        let (mut closed, mut detach_ns) = (0, 0);
        watch(Phase::Detach, &mut || {
            let before = now_ns();
            closed = detach(budget, std::mem::take(&mut links));
            detach_ns = now_ns() - before;
        })?;
        self.missed = self.missed.and(Misses::of_programs(programs.iter().map(Loaded::as_fd))?);
        // Links of a multi mechanism are all made and closed, or the round has failed.
        let all = self.targets.chosen.len();
        let functions = |links| if multi && links > 0 { all } else { links };
        let times = AttachRound { load_ns, attach_ns, detach_ns, memory_kib };
        let loaded = if self.method.program_per_target() {
            programs.len()
        } else {
            self.targets.chosen.len()
        };
        Ok(Round { times, loaded, attached: functions(made), detached: functions(closed), clean })
    }

    /// Loads the programs of all targets, or of as many as the budget allows.
    fn load(&mut self, budget: Budget, clean: &mut bool) -> Result<Vec<Loaded>, GuestError> {
        if !self.method.program_per_target() {
            let program = self.measured.load(self.method, &self.targets.chosen[0]);
            return Ok(vec![program.map_err(|error| self.measured.refusal(&error))?]);
        }
        let mut programs = Vec::with_capacity(self.targets.chosen.len());
        let deadline = budget.from(now_ns());
        while programs.len() < self.targets.chosen.len()
            && deadline.allows(programs.len(), now_ns())
        {
            let index = programs.len();
            match self.measured.load(self.method, &self.targets.chosen[index]) {
                Ok(program) => programs.push(program),
                Err(error) => {
                    *clean = false;
                    self.refuse(index, &error)?;
                }
            }
        }
        Ok(programs)
    }

    /// As [`Targets::refuse`]. A user's program may fit hardly any function: gives up in time. The
    /// targets before `index` take it.
    fn refuse(&mut self, index: usize, error: &BpfError) -> Result<bool, GuestError> {
        let own = matches!(self.measured, Measured::Own(_));
        if own && self.targets.refused.len() >= REFUSED_AT_MOST * (index + 1) {
            return Err(self.measured.refusal(error));
        }
        // The program's own refusal says more than that too few functions take it.
        self.targets.refuse(index, error).map_err(|too_few| match own {
            true => self.measured.refusal(error),
            false => too_few,
        })
    }

    /// Makes a link for every target, or for as many as the budget allows.
    fn attach(
        &mut self,
        budget: Budget,
        programs: &mut Vec<Loaded>,
        links: &mut Vec<Link>,
        clean: &mut bool,
    ) -> Result<(), GuestError> {
        let deadline = budget.from(now_ns());
        loop {
            let index = links.len();
            let program_index = if self.method.program_per_target() { index } else { 0 };
            let (Some(target), Some(program)) =
                (self.targets.chosen.get(index), programs.get(program_index))
            else {
                return Ok(());
            };
            if !deadline.allows(index, now_ns()) {
                return Ok(());
            }
            match self.method.link(program.as_fd(), target) {
                Ok(link) => links.push(link),
                Err(error) => {
                    *clean = false;
                    let replaced = self.refuse(index, &error)?;
                    if self.method.program_per_target() {
                        self.replace_program(programs, index, replaced)?;
                    }
                }
            }
        }
    }

    /// Adjusts the programs after a target was refused, whether replaced or dropped.
    fn replace_program(
        &mut self,
        programs: &mut Vec<Loaded>,
        index: usize,
        mut replaced: bool,
    ) -> Result<(), GuestError> {
        while replaced {
            match self.measured.load(self.method, &self.targets.chosen[index]) {
                Ok(program) => {
                    programs[index] = program;
                    return Ok(());
                }
                Err(error) => replaced = self.refuse(index, &error)?,
            }
        }
        programs.remove(index);
        Ok(())
    }
}

fn unwatched(_: Phase, work: &mut dyn FnMut()) -> Result<(), GuestError> {
    work();
    Ok(())
}

/// Closes links until the budget is used up, and returns their number. The rest stays attached
/// until the machine ends.
fn detach(budget: Budget, links: Vec<Link>) -> usize {
    let deadline = budget.from(now_ns());
    let mut links = links.into_iter();
    let mut closed = 0;
    while links.len() > 0 && deadline.allows(closed, now_ns()) {
        drop(links.next());
        closed += 1;
    }
    links.for_each(std::mem::forget);
    closed
}
