// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a profile that is shown, and how headings name it.

use super::{How, Node, Phase, Profile, Sampling, Thread, Totals, Unit};
use tramplab_model::code::SourceLines;
use tramplab_protocol::message::Places;

/// Whose work to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The attaching thread's own.
    Task,
    /// Interrupts' work, on any thread.
    Interrupts,
    /// Other threads' own, including idle threads.
    Others,
    All,
}

impl Of {
    pub fn holds(self, node: &Node, thread: &Thread) -> bool {
        match self {
            Of::Task => !node.interrupt && thread.measured,
            Of::Interrupts => node.interrupt,
            Of::Others => !node.interrupt && !thread.measured,
            Of::All => true,
        }
    }

    /// Returns its name in headings.
    pub fn name(self) -> &'static str {
        match self {
            Of::Task => "the attaching thread",
            Of::Interrupts => "interrupts",
            Of::Others => "other threads",
            Of::All => "the attaching thread, interrupts and other threads",
        }
    }

    /// Returns its part of the totals.
    pub fn part(self, totals: Totals) -> u64 {
        match self {
            Of::Task => totals.task,
            Of::Interrupts => totals.interrupts,
            Of::Others => totals.others,
            Of::All => totals.task.saturating_add(totals.interrupts).saturating_add(totals.others),
        }
    }
}

impl How {
    /// Tells what the profile is reliable for, where both an exact and a sampled one exist. Only
    /// emulated guests have both, as the plugin needs TCG.
    pub fn believed_for(self) -> &'static str {
        match self {
            How::Exact => {
                "exact for the work done and what a change adds: it counts every instruction"
            }
            How::Sampled => {
                "sampled for time in this guest; emulation makes patching code look dear"
            }
            How::Waiting => "waiting for time off the CPU",
            How::Estimated => {
                "estimated for what a CPU of its model waits for, as far as that is modelled"
            }
        }
    }
}

/// The heading of profiles shown as one: those of a cell's phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub cell: String,
    pub phases: Vec<Phase>,
    pub unit: Unit,
    /// The heading's word for the amounts: the unit's name, or an event's.
    pub counted: &'static str,
    /// Equal ones are merged and their lost samples added.
    pub sampling: Vec<Sampling>,
    /// The modelled CPU of an estimate.
    pub cpu: Option<String>,
    pub totals: Totals,
    pub of: Of,
    /// The other profile of the same phases, exact or sampled: the two disagree.
    pub beside: Option<How>,
    /// Where the functions are among ftrace's records.
    pub places: Option<Places>,
    /// The source lines to show.
    pub lines: SourceLines,
}

impl Subject {
    /// Describes one or more profiles, which must have one unit.
    pub fn new(profiles: &[Profile], of: Of) -> Subject {
        let (cell, unit) = (profiles[0].cell.clone(), profiles[0].unit);
        let cpu = profiles[0].cpu.clone();
        let mut sampling: Vec<Sampling> = Vec::new();
        let mut totals = Totals::default();
        for profile in profiles {
            let Totals { task, interrupts, others } = profile.totals();
            totals.task = totals.task.saturating_add(task);
            totals.interrupts = totals.interrupts.saturating_add(interrupts);
            totals.others = totals.others.saturating_add(others);
            let Some(new) = &profile.sampling else { continue };
            match sampling.iter_mut().find(|s| (&s.event, s.period) == (&new.event, new.period)) {
                Some(known) => known.lost = known.lost.saturating_add(new.lost),
                None => sampling.push(new.clone()),
            }
        }
        let phases = profiles.iter().map(|profile| profile.phase).collect();
        Subject {
            cell,
            phases,
            unit,
            counted: unit.name(),
            sampling,
            cpu,
            totals,
            of,
            beside: None,
            places: None,
            lines: SourceLines::new(),
        }
    }

    pub fn total(&self) -> u64 {
        self.of.part(self.totals)
    }

    /// `attach`, `attach and detach`.
    pub fn phases(&self) -> String {
        self.phases.iter().map(|phase| phase.name()).collect::<Vec<_>>().join(" and ")
    }
}
