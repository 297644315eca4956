// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weighs instructions and events of a modelled CPU: estimated cycles, and their terms.

use super::{Estimate, Function, Of, Profile, Unit};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};
use strum::{EnumCount, VariantArray};
use tramplab_model::{
    cpu::{Cycles, MILLI, hangs_on_addresses},
    kinds::trigger::EstimatedHit,
    profile::EventCost,
};
use tramplab_protocol::estimate::{Event, Events};

/// Turns a profile of instructions with events into one of estimated cycles. Also returns the parts
/// of the attaching thread's own work.
pub fn weigh(mut profile: Profile, cpu: &str, cycles: &Cycles) -> (Profile, Estimate) {
    let (mut instructions, mut events) = (0_u64, Events::new());
    // Rounding's remainders of the nodes before, so that the sum is right.
    let mut carried = [0; 2];
    for node in &mut profile.nodes {
        let is_task = Of::Task.holds(node, &profile.threads[node.thread as usize]);
        if is_task {
            instructions = instructions.saturating_add(node.own);
            add(&mut events, &node.events);
        }
        let carried = &mut carried[usize::from(is_task)];
        let milli = cycles.milli(node.own, &node.events).saturating_add(*carried);
        (node.own, *carried) = (milli / MILLI, milli % MILLI);
    }
    (profile.unit, profile.cpu) = (Unit::EstimatedCycles, Some(cpu.to_owned()));
    let cost = |(&event, &count): (&Event, &u64)| EventCost {
        event,
        count,
        cycles: count.saturating_mul(u64::from(cycles.of(event))),
    };
    let estimate = Estimate {
        cpu: cpu.to_owned(),
        instructions,
        instruction_cycles: cycles.milli(instructions, &Events::new()) / MILLI,
        events: events.iter().map(cost).collect(),
    };
    (profile, estimate)
}

/// A profile of how often an event happened, instead of cycles.
pub fn only(event: Event, mut profile: Profile) -> Profile {
    for node in &mut profile.nodes {
        node.own = node.events.get(&event).copied().unwrap_or_default();
    }
    profile
}

pub fn add(sum: &mut Events, more: &Events) {
    for (&event, &count) in more {
        let sum = sum.entry(event).or_default();
        *sum = sum.saturating_add(count);
    }
}

/// A term of an estimate: events of one nature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Term {
    Instructions,
    Returns,
    Indirect,
    Conditional,
    Taken,
    /// Predicted or not.
    AllReturns,
    Code,
    Data,
    Pages,
    Atomic,
    Serializing,
    Exceptions,
}

impl Term {
    pub const ALL: [Term; Term::COUNT] = *Term::VARIANTS.first_chunk().unwrap();

    pub fn of(event: Event) -> Term {
        match event {
            Event::MispredictedReturn => Term::Returns,
            Event::MispredictedIndirect => Term::Indirect,
            Event::MispredictedConditional => Term::Conditional,
            Event::TakenBranch => Term::Taken,
            Event::Return => Term::AllReturns,
            Event::CodeL2 | Event::CodeL3 | Event::CodeMemory => Term::Code,
            Event::DataL2 | Event::DataL3 | Event::DataMemory => Term::Data,
            Event::CodeTlb | Event::CodeWalk | Event::DataTlb | Event::DataWalk => Term::Pages,
            Event::Atomic | Event::Fence => Term::Atomic,
            Event::Serializing | Event::SystemRegister | Event::Invalidation => Term::Serializing,
            Event::Exception
            | Event::ExceptionReturn
            | Event::SystemCall
            | Event::SystemCallReturn => Term::Exceptions,
        }
    }

    /// True if its events hang on addresses.
    fn is_of_layout(self) -> bool {
        Event::ALL.iter().any(|event| Term::of(*event) == self && hangs_on_addresses(*event))
    }

    pub fn name(self) -> &'static str {
        match self {
            Term::Instructions => "instructions",
            Term::Returns => "mispredicted returns",
            Term::Indirect => "mispredicted indirect branches",
            Term::Conditional => "mispredicted conditional branches",
            Term::Taken => "taken branches",
            Term::AllReturns => "returns",
            Term::Code => "cache misses of code",
            Term::Data => "cache misses of data",
            Term::Pages => "TLB misses",
            Term::Atomic => "atomic instructions and fences",
            Term::Serializing => "serializing instructions",
            Term::Exceptions => "exceptions and system calls",
        }
    }
}

/// The terms with their estimated cycles, the largest first. Terms of 0 are left out.
pub fn terms(estimate: &Estimate) -> Vec<(Term, u64)> {
    let events = estimate.events.iter().map(|cost| (Term::of(cost.event), cost.cycles));
    let mut terms = sums(events.chain([(Term::Instructions, estimate.instruction_cycles)]));
    terms.sort_by_key(|&(term, cycles)| (Reverse(cycles), term));
    terms
}

/// A term of hits: its cycles and how often its events happened, with the program less without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfHits {
    pub cycles: i64,
    pub times: i64,
}

/// The terms of all counted hits together, as they count in its estimate.
pub fn terms_of_hits(hit: &EstimatedHit) -> BTreeMap<Term, OfHits> {
    let mut all: BTreeMap<Term, OfHits> = BTreeMap::new();
    for (estimate, sign) in [(&hit.attached, 1), (&hit.detached, -1)] {
        let events = estimate.events.iter().map(|of| (Term::of(of.event), of.cycles, of.count));
        let instructions = (Term::Instructions, estimate.instruction_cycles, estimate.instructions);
        for (term, cycles, times) in events.chain([instructions]) {
            let signed = |of: u64| i64::try_from(of).unwrap_or(i64::MAX).saturating_mul(sign);
            let sum = all.entry(term).or_default();
            sum.cycles = sum.cycles.saturating_add(signed(cycles));
            sum.times = sum.times.saturating_add(signed(times));
        }
    }
    if hit.by_layout() == 0 {
        all.retain(|term, _| !term.is_of_layout());
    }
    all
}

/// The sum of each term, in the order of the terms. Sums of 0 are left out.
fn sums(parts: impl Iterator<Item = (Term, u64)>) -> Vec<(Term, u64)> {
    let mut sums: BTreeMap<Term, u64> = BTreeMap::new();
    for (term, part) in parts {
        let sum = sums.entry(term).or_default();
        *sum = sum.saturating_add(part);
    }
    sums.into_iter().filter(|&(_, sum)| sum > 0).collect()
}

/// How often the events of each term happened in a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    pub function: Function,
    /// Estimated cycles of the function alone.
    pub own: u64,
    /// Without those that did not happen.
    pub times: Vec<(Term, u64)>,
}

/// The functions with their events, the largest amount first, then by name.
pub fn by_function(profiles: &[Profile], of: Of) -> Vec<Happened> {
    let mut functions: HashMap<&Function, (u64, Events)> = HashMap::new();
    for profile in profiles {
        let shown = |node: &&super::Node| of.holds(node, &profile.threads[node.thread as usize]);
        for node in profile.nodes.iter().filter(shown) {
            let function = &profile.functions[node.function as usize];
            let (own, events) = functions.entry(function).or_default();
            *own = own.saturating_add(node.own);
            add(events, &node.events);
        }
    }
    let happened = |(function, (own, events)): (&Function, (u64, Events))| {
        let times = sums(events.into_iter().map(|(event, count)| (Term::of(event), count)));
        Happened { function: function.clone(), own, times }
    };
    let mut all: Vec<Happened> = functions.into_iter().map(happened).collect();
    all.sort_by(|a, b| b.own.cmp(&a.own).then_with(|| a.function.cmp(&b.function)));
    all
}
