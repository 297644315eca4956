// SPDX-License-Identifier: MIT OR Apache-2.0
//! `attach`: how long it takes to attach to many functions, and the instructions that it executes.

use super::{Definition, Repeats, attached, plain};
use crate::{
    function::{AT, Among},
    guest::Clock,
    name::{Marked, split},
    profile::{self, Summary},
    program::ProgramName,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU32};
use strum::{EnumString, IntoStaticStr};
use tramplab_protocol::{Beside, BesideSet, Functions, Mechanism, message};

pub const TEST_SYNTAX: &str = "attach/MECHANISM[=PROGRAM][+BESIDE]/FUNCTIONS[@AMONG]";
pub const METRIC_SYNTAX: &str = "attach.MECHANISM[=PROGRAM][+BESIDE].FUNCTIONS[@AMONG].PHASE (wall \
     time), \
     attach.MECHANISM[=PROGRAM][+BESIDE].FUNCTIONS[@AMONG].PHASE.exact (the exact clock), \
     attach.MECHANISM[=PROGRAM][+BESIDE].FUNCTIONS[@AMONG].PHASE.grace_periods, \
     attach.MECHANISM[=PROGRAM][+BESIDE].FUNCTIONS[@AMONG].[PHASE.]instructions, \
     attach.MECHANISM[=PROGRAM][+BESIDE].FUNCTIONS[@AMONG].PHASE.estimated_cycles, \
     attach.MECHANISM[=PROGRAM][+BESIDE].FUNCTIONS[@AMONG].syscall_instructions";

/// The last parts of metrics' names.
const SYSTEM_CALLS: &str = "syscall_instructions";
const ESTIMATED: &str = "estimated_cycles";

/// `fentry/100`, `kprobe.multi/all`, `kprobe.multi/12x1000`, `kprobe.multi=on_hit/all@tcp_*`,
/// `fentry+kprobe.multi:1000/100`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "AttachTest")]
pub struct Test {
    pub mechanism: Mechanism,
    /// The user's program. None: the empty one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramName>,
    /// Tracers that are attached to other functions meanwhile.
    #[serde(default, skip_serializing_if = "BesideSet::is_empty")]
    pub beside: BesideSet,
    pub functions: Functions,
    /// The functions to choose from. None: all of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub among: Option<Among>,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        let (name, among) = split(name, AT)?;
        let (name, count) = name.split_once('/')?;
        let (mechanism, program, beside) = beside(name)?;
        Some(Test { mechanism, program, beside, functions: functions(mechanism, count)?, among })
    }

    /// The name without the functions.
    pub fn attached(self) -> String {
        self.beside.with(attached(self.mechanism, self.program))
    }

    /// `100`, `all`, `all@tcp_*`.
    pub fn functions(self) -> String {
        format!("{}{}", self.functions, Marked(AT, self.among))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.attached(), self.functions())
    }
}

fn functions(mechanism: Mechanism, word: &str) -> Option<Functions> {
    let functions = word.parse().ok()?;
    fits(mechanism, functions).then_some(functions)
}

/// Parses a mechanism with its program and tracers of other functions.
fn beside(name: &str) -> Option<(Mechanism, Option<ProgramName>, BesideSet)> {
    super::beside(name).filter(|(mechanism, _, set)| misfit(*mechanism, *set).is_none())
}

/// A tracer that cannot be beside attaching by a mechanism: of the measured functions, or of a kind
/// that does not go together.
pub fn misfit(mechanism: Mechanism, set: BesideSet) -> Option<Beside> {
    set.iter().find(|beside| !beside.is_of_others() || !beside.fits(mechanism))
}

/// False for several links of a mechanism that has a link for each function.
pub fn fits(mechanism: Mechanism, functions: Functions) -> bool {
    mechanism.is_multi() || !matches!(functions, Functions::Links { .. })
}

/// One number of an attach cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metric {
    pub test: Test,
    pub number: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// By the host's clock.
    Time(Phase),
    /// By the exact clock.
    ExactTime(Phase),
    Instructions {
        phase: profile::Phase,
        whose: Whose,
    },
    /// Times that the attaching thread waits for an RCU grace period.
    GracePeriods(profile::Phase),
    /// Instructions of the fixed system calls, while all is attached.
    SystemCalls,
    /// Estimated cycles of the attaching thread on the guest's CPU, without its interrupts.
    EstimatedCycles(profile::Phase),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Phase {
    Load,
    Attach,
    Detach,
}

impl Phase {
    pub const ALL: [Phase; 3] = [Phase::Load, Phase::Attach, Phase::Detach];

    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Nobody profiles the loading of programs.
    pub fn profiled(self) -> Option<profile::Phase> {
        match self {
            Phase::Load => None,
            Phase::Attach => Some(profile::Phase::Attach),
            Phase::Detach => Some(profile::Phase::Detach),
        }
    }

    pub fn ns(self, round: &message::AttachRound) -> u64 {
        match self {
            Phase::Load => round.load_ns,
            Phase::Attach => round.attach_ns,
            Phase::Detach => round.detach_ns,
        }
    }
}

impl Number {
    /// True for a count in which the idle loop is.
    pub fn has_idle_loop(self) -> bool {
        matches!(self, Number::Instructions { whose: Whose::All, .. })
    }
}

/// Whose instructions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
pub enum Whose {
    /// Those of the attaching thread, without its interrupts.
    #[strum(serialize = "instructions")]
    Thread,
    /// Those of all threads, including workers and the idle loop.
    #[strum(serialize = "instructions_of_all")]
    All,
}

impl Whose {
    pub const ALL: [Whose; 2] = [Whose::Thread, Whose::All];
}

impl Metric {
    /// `fentry.1000.attach`, `kprobe.multi.all@tcp_*.detach.exact`, `fentry.1000.instructions`. A
    /// name without a phase means the instructions of attaching.
    pub fn parse(name: &str) -> Option<Metric> {
        let (rest, last) = name.rsplit_once('.')?;
        // A part of `rest` that is no phase belongs to the test.
        let phased = rest.rsplit_once('.');
        let (test, number) = match last {
            "exact" => {
                let (test, phase) = phased?;
                (test, Number::ExactTime(phase.parse().ok()?))
            }
            "grace_periods" => {
                let (test, phase) = phased?;
                (test, Number::GracePeriods(phase.parse().ok()?))
            }
            ESTIMATED => {
                let (test, phase) = phased?;
                (test, Number::EstimatedCycles(phase.parse().ok()?))
            }
            SYSTEM_CALLS => (rest, Number::SystemCalls),
            _ => match last.parse::<Phase>() {
                Ok(phase) => (rest, Number::Time(phase)),
                Err(_) => {
                    let whose = last.parse().ok()?;
                    let of = |phase| Number::Instructions { phase, whose };
                    match phased.and_then(|(test, phase)| Some((test, phase.parse().ok()?))) {
                        Some((test, phase)) => (test, of(phase)),
                        None => (rest, of(profile::Phase::Attach)),
                    }
                }
            },
        };
        let (test, among) = split(test, AT)?;
        let (of, count) = test.rsplit_once('.')?;
        let (mechanism, program, beside) = beside(of)?;
        let functions = functions(mechanism, count)?;
        let test = Test { mechanism, program, beside, functions, among };
        Some(Metric { test, number })
    }

    /// The number of functions that the test asks for. None if it asks for all.
    pub fn asked_for(&self) -> Option<u32> {
        self.test.functions.count().map(NonZeroU32::get)
    }

    pub fn definition(&self) -> Definition {
        let (unit, repeats) = match self.number {
            Number::Time(_) => ("ms", Repeats::InManyBoots),
            Number::ExactTime(_) => ("ms", Repeats::Nearly),
            Number::Instructions { whose: Whose::Thread, .. } => ("instructions", Repeats::Always),
            // Other threads run while detaching waits for grace periods.
            Number::Instructions { whose: Whose::All, .. } => ("instructions", Repeats::Nearly),
            Number::GracePeriods(_) => ("grace periods", Repeats::Always),
            Number::SystemCalls => ("instructions", Repeats::Always),
            Number::EstimatedCycles(_) => ("estimated cycles", Repeats::Always),
        };
        Definition::less_is_better(unit, repeats)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.", plain(&self.test.attached()), self.test.functions())?;
        match self.number {
            Number::Time(phase) => f.write_str(phase.name()),
            Number::ExactTime(phase) => write!(f, "{}.exact", phase.name()),
            Number::GracePeriods(phase) => write!(f, "{}.grace_periods", phase.name()),
            Number::SystemCalls => f.write_str(SYSTEM_CALLS),
            Number::EstimatedCycles(phase) => write!(f, "{}.{ESTIMATED}", phase.name()),
            Number::Instructions { phase, whose } => {
                write!(f, "{}.{}", phase.name(), <&str>::from(whose))
            }
        }
    }
}

/// The measurement. Guests run one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Guests with the free clock.
    pub boots: Vec<AttachBoot>,
    /// The guest with the exact clock, if the suite asks for one. A second guest would measure the
    /// same.
    pub exact: Option<AttachBoot>,
    /// Profiles of one more round, one for each phase and method.
    pub explained: Vec<Summary>,
    /// Why a profile that was asked for is missing.
    pub unexplained: Vec<String>,
    /// Fixed system calls of the round with exact counts. Absent if the suite does not ask for
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_calls: Option<SystemCalls>,
}

/// Instructions of the same system calls before attaching and while all is attached: those of the
/// calling thread, user space included, without interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SystemCalls {
    /// The number of system calls.
    pub calls: u32,
    /// Instructions before attaching. Tracers beside are attached.
    pub before: u64,
    /// Instructions while all is attached.
    pub attached: u64,
    /// The number of functions attached to.
    pub functions: u32,
    /// They repeat by the exact clock.
    pub clock: Clock,
}

/// One guest's rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachBoot {
    /// The number of functions attached to. `functions.txt` beside the console log names them.
    pub functions: u32,
    /// The SHA-256 of `functions.txt`.
    pub list_sha256: String,
    /// Functions that the kernel refused. Others replace them, unless all functions were asked for.
    pub refused: Vec<message::Refusal>,
    /// Programs loaded in each round.
    pub programs: u32,
    /// Links made in each round.
    pub links: u32,
    /// The tracers attached to other functions meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<message::Others>,
    pub rounds: Vec<message::AttachRound>,
    /// Set if the time budget ended the rounds.
    pub stopped: Option<message::Stopped>,
}

impl Attach {
    /// Adds what a later guest of the same cell measured.
    pub fn add(&mut self, next: Attach) {
        self.boots.extend(next.boots);
        self.exact = self.exact.take().or(next.exact);
        self.explained.extend(next.explained);
        self.unexplained.extend(next.unexplained);
        self.system_calls = self.system_calls.or(next.system_calls);
    }

    /// True if the attaching thread waits for RCU grace periods in a phase: by their number, or if
    /// nobody counted them, by what kernels usually do.
    pub fn waits(&self, phase: Phase) -> bool {
        let Some(profiled) = phase.profiled() else { return false };
        let counted = self.explained.iter().filter(|one| one.phase == profiled);
        let counted = counted.filter_map(|one| one.grace_periods).max();
        counted.map_or(phase == Phase::Detach, |n| n > 0)
    }

    /// True if nobody counted grace periods, and rounds of the exact clock lie so far apart that
    /// only some of them can have waited for one.
    pub fn seems_to_wait(&self, phase: Phase) -> bool {
        let Some(profiled) = phase.profiled() else { return false };
        let rounds = || self.exact.iter().flat_map(|boot| &boot.rounds).map(|r| phase.ns(r));
        let [low, high] = [rounds().min(), rounds().max()].map(Option::unwrap_or_default);
        let is_counted = |one: &Summary| one.phase == profiled && one.grace_periods.is_some();
        high > low.saturating_add(low / 2) && !self.explained.iter().any(is_counted)
    }

    /// Rounds of guests with the free clock.
    pub fn rounds(&self) -> impl Iterator<Item = &message::AttachRound> {
        self.boots.iter().flat_map(|boot| &boot.rounds)
    }

    /// The progress of [`Attach::rounds_of_a_clock`] when the time budget ended them. None if it
    /// did not.
    pub fn stopped(&self) -> Option<message::Stopped> {
        let exact = self.exact.iter().filter(|_| self.boots.is_empty());
        // Take the boot that attached the fewest functions.
        self.boots
            .iter()
            .chain(exact)
            .filter_map(|boot| boot.stopped)
            .min_by_key(|stopped| stopped.attached)
    }

    /// Rounds of the free clock. If there are none, rounds of the exact clock.
    pub fn rounds_of_a_clock(&self) -> impl Iterator<Item = &message::AttachRound> {
        let exact = self.exact.iter().filter(|_| self.boots.is_empty());
        self.boots.iter().chain(exact).flat_map(|boot| &boot.rounds)
    }
}
