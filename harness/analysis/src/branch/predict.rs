// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replays a trace through two predictors of a CPU: the return stack, and the last target of each
//! indirect branch. `docs/definitions.md` has the rules.

use super::{Symbols, hit};
use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
};
use tramplab_model::{
    cpu::{Returns, USUAL_RETURNS, Underflow},
    run::{Mispredicted, Predicted},
};
use tramplab_protocol::trace::{Kind, Record};

/// Bytes of x86-64's direct call. No call of arm64 has so many.
const DIRECT_CALL: u64 = 5;
/// The smallest number of triggers of which branches are predicted: the first only teaches, and the
/// last has no end.
pub const PREDICTABLE: u32 = 3;
/// The longest list of mispredicted branches that a run keeps.
const MOST: usize = 256;

/// The predictors of a CPU, with what the trace has taught them so far.
pub struct Predictors {
    /// Addresses of calls that have not returned, the newest last.
    calls: VecDeque<u64>,
    depth: usize,
    underflow: Underflow,
    /// The last target of each branch, by its address.
    targets: HashMap<u64, u64>,
}

impl Predictors {
    /// Empty predictors.
    pub fn new(returns: Option<&Returns>) -> Predictors {
        Predictors {
            calls: VecDeque::new(),
            depth: returns.map_or(USUAL_RETURNS, |returns| returns.depth.get()) as usize,
            underflow: returns.map(|returns| returns.underflow).unwrap_or_default(),
            targets: HashMap::new(),
        }
    }

    /// Follows a record. Returns true if its target was predicted, and None if the record is
    /// neither a return nor indirect.
    pub fn follow(&mut self, record: &Record) -> Option<bool> {
        let is_call = record.kind.is_call();
        if !is_call && !matches!(record.kind, Kind::IndJump | Kind::Ret) {
            return None;
        }
        let is_last = self.targets.insert(record.from, record.to) == Some(record.to);
        // CPUs know a call of the next instruction as a way to read the program counter (H. Wong,
        // "Microbenchmarking Return Address Branch Prediction").
        if is_call && record.to.wrapping_sub(record.from) != DIRECT_CALL {
            // A full stack overwrites its oldest entry.
            if self.calls.len() == self.depth {
                self.calls.pop_front();
            }
            self.calls.push_back(record.from);
        }
        match record.kind {
            Kind::Call => None,
            Kind::Ret => Some(match (self.calls.pop_back(), self.underflow) {
                (Some(call), _) => hit::is_behind(call, record.to),
                (None, Underflow::Wrong) => false,
                (None, Underflow::LastTarget) => is_last,
            }),
            _ => Some(is_last),
        }
    }
}

/// Predicts the branches from each start to the next. `starts` are the records that begin triggers.
/// None of fewer than [`PREDICTABLE`] triggers, or if interrupts fell into too many.
pub fn predicted(
    records: &[Record],
    symbols: &Symbols,
    starts: &[usize],
    interrupted: impl Fn(&Record) -> bool,
    returns: Option<&Returns>,
) -> Option<Predicted> {
    let mut predictors = Predictors::new(returns);
    let right: Vec<Option<bool>> = records.iter().map(|one| predictors.follow(one)).collect();
    let all = starts.windows(2).map(|pair| {
        let hit = pair[0]..pair[1];
        let is_clean = !records[hit.clone()].iter().any(&interrupted);
        (hit, is_clean)
    });
    let all: Vec<(Range<usize>, bool)> = all.collect();
    // The predictors have learned little before the first, and something else in an interrupt.
    let learned = all.windows(2).filter(|pair| pair.iter().all(|(_, is_clean)| *is_clean));
    let hits: Vec<Counted> = learned.map(|pair| Counted::of(&pair[1].0, records, &right)).collect();
    let agreeing = hit::most_frequent(&hits.iter().collect::<Vec<_>>(), |hit| hit);
    let hit = *agreeing.first()?;
    let of_kind = |is_ret| {
        let missed = hit.missed.iter().filter(|(.., kind)| (*kind == Kind::Ret) == is_ret);
        missed.count() as u32
    };
    let named = |&(from, to, kind): &(u64, u64, Kind)| Mispredicted {
        from: symbols.place(from),
        to: symbols.place(to),
        kind,
    };
    Some(Predicted {
        depth: predictors.depth as u32,
        hits: agreeing.len() as u32,
        returns: hit.returns,
        mispredicted_returns: of_kind(true),
        indirect: hit.indirect,
        mispredicted_indirect: of_kind(false),
        mispredicted: hit.missed.iter().take(MOST).map(named).collect(),
    })
}

/// The predicted branches of a hit.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Counted {
    returns: u32,
    indirect: u32,
    /// The mispredicted of both.
    missed: Vec<(u64, u64, Kind)>,
}

impl Counted {
    fn of(hit: &Range<usize>, records: &[Record], right: &[Option<bool>]) -> Counted {
        let mut counted = Counted { returns: 0, indirect: 0, missed: Vec::new() };
        for (record, right) in records[hit.clone()].iter().zip(&right[hit.clone()]) {
            let Some(right) = right else { continue };
            match record.kind {
                Kind::Ret => counted.returns += 1,
                _ => counted.indirect += 1,
            }
            if !right {
                counted.missed.push((record.from, record.to, record.kind));
            }
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    const SITE: u64 = 0x1000;

    /// A call from the `site`th place to the `to`th, or a return behind the `site`th.
    fn record(kind: Kind, site: u64, to: u64) -> Record {
        let at = |number: u64| SITE * (number + 1);
        let (from, to) = match kind {
            Kind::Ret => (0x10, at(site) + 5),
            _ => (at(site), at(to) + 0x800),
        };
        Record { from, to, kind, instructions: 1, accesses: None }
    }

    /// The same by going back from each return through all of the trace.
    fn naive(records: &[Record], depth: usize, underflow: Underflow) -> Vec<Option<bool>> {
        let is_call = |one: &Record| one.kind.is_call();
        let last = |index: usize| {
            let kinds = [Kind::Ret, Kind::Call, Kind::IndCall, Kind::IndJump];
            let mut before = records[..index].iter().rev();
            let same =
                before.find(|one| one.from == records[index].from && kinds.contains(&one.kind));
            same.is_some_and(|same| same.to == records[index].to)
        };
        let mut answers = Vec::new();
        for (index, one) in records.iter().enumerate() {
            answers.push(match one.kind {
                Kind::Ret => {
                    // All calls that are open, and which of them the stack has kept.
                    let mut open: Vec<(u64, bool)> = Vec::new();
                    for before in &records[..index] {
                        if is_call(before) {
                            let mut kept = open.iter_mut().filter(|(_, kept)| *kept);
                            let full = kept.by_ref().count() == depth;
                            if full {
                                open.iter_mut().find(|(_, kept)| *kept).unwrap().1 = false;
                            }
                            open.push((before.from, true));
                        } else if before.kind == Kind::Ret {
                            // Entries that were overwritten are no longer there to return to.
                            if open.last().is_some_and(|(_, kept)| *kept) {
                                open.pop();
                            }
                        }
                    }
                    Some(match open.last() {
                        Some((call, true)) => one.to == call + 5,
                        _ if underflow == Underflow::LastTarget => last(index),
                        _ => false,
                    })
                }
                Kind::IndJump | Kind::IndCall => Some(last(index)),
                _ => None,
            });
        }
        answers
    }

    proptest! {
        #[test]
        fn predicts_as_a_naive_model(
            branches in prop::collection::vec((0..6_usize, 0..4_u64, 0..3_u64), 0..80),
            depth in 1..5_u32,
            last_target in any::<bool>(),
        ) {
            use Kind::{Call, Cond, IndCall, IndJump, Ret};
            let kinds = [Call, Call, Ret, IndCall, IndJump, Cond];
            let records: Vec<Record> =
                branches.iter().map(|&(kind, site, to)| record(kinds[kind], site, to)).collect();
            let underflow = if last_target { Underflow::LastTarget } else { Underflow::Wrong };
            let depth = NonZeroU32::new(depth).unwrap();
            let returns = Returns { depth, underflow, source: String::new() };
            let mut predictors = Predictors::new(Some(&returns));
            let found: Vec<_> = records.iter().map(|one| predictors.follow(one)).collect();
            prop_assert_eq!(found, naive(&records, depth.get() as usize, underflow));
        }
    }

    #[test]
    fn a_call_of_the_next_instruction_is_no_call() {
        let at = |kind, from, to| Record { from, to, kind, instructions: 1, accesses: None };
        for (offset, expected) in [(5, true), (6, false)] {
            let mut predictors = Predictors::new(None);
            let records = [
                at(Kind::Call, 0x100, 0x200),
                at(Kind::Call, 0x200, 0x200 + offset),
                at(Kind::Ret, 0x210, 0x105),
            ];
            let right: Vec<_> = records.iter().map(|one| predictors.follow(one)).collect();
            assert_eq!(right, [None, None, Some(expected)], "{offset}");
        }
    }

    /// The trampoline of a hit returns to the function's caller, over the head of the call in the
    /// function: each return of the callers is then one entry behind.
    #[test]
    fn an_imbalance_is_paid_in_the_callers() {
        let [call, ret] = [Kind::Call, Kind::Ret];
        let hit = |returns: &[u64]| -> Vec<Record> {
            let calls = (0..5).map(|site| record(call, site, site + 1));
            calls.chain(returns.iter().map(|&site| record(ret, site, 0))).collect()
        };
        for (returns, wrong) in [(&[4, 3, 2, 1, 0][..], 0), (&[3, 2, 1, 0], 4)] {
            let hit = hit(returns);
            let records = hit.repeat(4);
            let starts: Vec<usize> = (0..4).map(|number| number * hit.len()).collect();
            let symbols = Symbols::default();
            let found = predicted(&records, &symbols, &starts, |_| false, None).unwrap();
            assert_eq!((found.returns, found.mispredicted_returns), (returns.len() as u32, wrong));
            assert_eq!((found.hits, found.mispredicted.len() as u32), (2, wrong));
            assert_eq!((found.depth, found.indirect), (16, 0));
            assert_eq!(predicted(&records, &symbols, &starts[..2], |_| false, None), None);
            assert_eq!(predicted(&records, &symbols, &starts, |_| true, None), None);
        }
    }

    #[test]
    fn leaves_out_interrupted_hits_and_those_behind_them() {
        let hit = [record(Kind::Call, 0, 1), record(Kind::Ret, 0, 0)];
        let mut records = hit.repeat(6);
        // In the third hit.
        records[5].kind = Kind::Interrupt;
        let starts: Vec<usize> = (0..6).map(|number| 2 * number).collect();
        let symbols = Symbols::default();
        for (interrupts, hits) in [(true, 2), (false, 4)] {
            let is_interrupt = |one: &Record| interrupts && one.kind == Kind::Interrupt;
            let found = predicted(&records, &symbols, &starts, is_interrupt, None).unwrap();
            // Without the rule the third is of another form than the others.
            assert_eq!(found.hits, if interrupts { hits } else { hits - 1 });
        }
    }
}
