// SPDX-License-Identifier: MIT OR Apache-2.0
//! Splits the cost of a hit of a user's program by the code that runs it.
//! `docs/definitions.md` defines the three parts.

use super::{
    hit::is_behind,
    returns,
    symbols::{BESIDE, PROGRAM},
};
use tramplab_model::run::{Place, TriggerCost, TriggerPart, TriggerRecord};
use tramplab_protocol::{Point, message::Symbol, trace::Kind};

/// Open calls through which a return is looked for. Kernel stacks are less deep; a guest that lies
/// could open a million.
const DEEPEST: usize = 512;

/// The parts of a hit. They add up to the hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub mechanism: Share,
    pub program: Share,
    /// Helpers and kfuncs that the program calls.
    pub helpers: Share,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub instructions: u32,
    pub branches: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Mechanism,
    Program,
    Helpers,
}

/// Splits a hit of a program, whose code is at `program`.
pub fn split(cost: &TriggerCost, program: &Symbol) -> Split {
    let mut split = Split::default();
    for part in &cost.parts {
        let mut stack = Stack { owner: Owner::Mechanism, open: Vec::new() };
        for (index, record) in part.records.iter().enumerate() {
            // The instructions before a branch are those of the code that it leaves.
            let share = match stack.owner {
                Owner::Mechanism => &mut split.mechanism,
                Owner::Program => &mut split.program,
                Owner::Helpers => &mut split.helpers,
            };
            share.instructions = share.instructions.saturating_add(record.instructions);
            // An exit begins with the function's own `ret`.
            share.branches += u32::from(index > 0 || part.point != Point::Exit);
            stack.follow(record, program);
        }
    }
    split
}

/// The calls that are open, with those who made them.
struct Stack {
    owner: Owner,
    open: Vec<(u64, Owner)>,
}

impl Stack {
    fn follow(&mut self, record: &TriggerRecord, program: &Symbol) {
        let TriggerRecord { from, to, kind, .. } = record;
        match kind {
            kind if kind.is_call() => self.open.push((from.address, self.owner)),
            // A callback's return leads into a helper, the program's into the mechanism. Thunks
            // leave calls open that never return: a return may skip some.
            Kind::Ret => {
                let mut newest = self.open.iter().enumerate().rev().take(DEEPEST);
                let back = newest.find(|(_, (call, _))| is_behind(*call, to.address));
                if let Some((at, &(_, caller))) = back {
                    self.open.truncate(at);
                    self.owner = caller;
                    return;
                }
            }
            _ => {}
        }
        let is_callee = || self.owner != Owner::Mechanism && is_program(to);
        if is_thunk(to) {
            // It belongs to the code that came to it.
        } else if to.address == program.start || is_callee() {
            self.owner = Owner::Program;
        } else if self.owner == Owner::Program {
            self.owner = Owner::Helpers;
        }
    }
}

/// Matches the thunks by which mitigations call and return.
fn is_thunk(place: &Place) -> bool {
    let name = place.symbol.as_deref().unwrap_or_default();
    returns::is_thunk(place) || name.starts_with("__x86_indirect_")
}

/// Matches programs, but not those that are attached beside the measured one.
fn is_program(place: &Place) -> bool {
    let name = place.symbol.as_deref().unwrap_or_default();
    place.module.as_deref() == Some("bpf") && name.starts_with(PROGRAM) && !name.ends_with(BESIDE)
}

/// Returns the per cent of the bytes in a program's own function that a hit runs, rounded up. None
/// if the program has no code. The trace does not have the length of a branch. A call counts as
/// five bytes, any other branch as one.
pub fn reached(cost: &TriggerCost, program: &Symbol) -> Option<u64> {
    let is_inside = |place: &Place| (program.start..program.end).contains(&place.address);
    let runs = |part: &TriggerPart| -> Vec<(u64, u64)> {
        let pairs = part.records.windows(2).map(|pair| (&pair[0].to, &pair[1]));
        let inside = pairs.filter(|(first, last)| is_inside(first) && is_inside(&last.from));
        let run = |(first, last): (&Place, &TriggerRecord)| {
            let branch = if last.kind.is_call() { 5 } else { 1 };
            (first.address, last.from.address.saturating_add(branch))
        };
        inside.map(run).collect()
    };
    let mut all: Vec<(u64, u64)> = cost.parts.iter().flat_map(runs).collect();
    all.sort_unstable();
    let (mut bytes, mut counted) = (0, program.start);
    for (first, end) in all {
        bytes += end.saturating_sub(first.max(counted));
        counted = counted.max(end);
    }
    let size = program.end.checked_sub(program.start).filter(|&size| size > 0)?;
    Some((u128::from(bytes) * 100).div_ceil(u128::from(size)) as u64)
}
