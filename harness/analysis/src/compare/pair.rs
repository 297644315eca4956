// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pairs the cells of a test on both sides, and finds the numbers that both measured, or the reason
//! why one did not.

use super::{Value, kinds};
use crate::branch::Model;
use tramplab_model::{
    kinds::Metric,
    run::{CLOCKS_APART, Cell, CellId, Measurement, Outcome, Test},
    tree_tests::is_absent,
};

/// The same test on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub base: &'a Cell,
    /// None if the head's run has no such cell: it was not selected, or the run ended first.
    pub head: Option<&'a Cell>,
}

impl<'a> Pair<'a> {
    pub(super) fn measurements(&self) -> (Option<&'a Measurement>, Option<&'a Measurement>) {
        let of = |cell: &'a Cell| cell.measurement.as_ref();
        (of(self.base), self.head.and_then(of))
    }
}

/// A cell that was measured on one side at most.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmatched {
    pub test: Test,
    pub base: String,
    pub head: String,
    /// True if only the base has a measurement.
    pub lost: bool,
    /// True if only the head's tree has the test, and it passed there.
    pub is_new: bool,
}

/// A test that the base's run did not select, or did not reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadOnly {
    pub test: Test,
    pub head: String,
}

/// Pairs the cells of the same test, architecture and accelerator.
pub fn pair_up<'a>(base: &[&'a Cell], head: &[&'a Cell]) -> Vec<Pair<'a>> {
    let same = |a: &Cell, b: &Cell| {
        (a.id.arch, a.id.accel, &a.id.test) == (b.id.arch, b.id.accel, &b.id.test)
    };
    let partner = |a: &'a Cell| Pair { base: a, head: head.iter().copied().find(|b| same(a, b)) };
    base.iter().map(|&a| partner(a)).collect()
}

/// Also pairs cells of the same test under two accelerators that have no partner otherwise. Only
/// for users who compare them anyway.
pub fn pair_across<'a>(base: &[&'a Cell], head: &[&'a Cell]) -> Vec<Pair<'a>> {
    let mut pairs = pair_up(base, head);
    let taken: Vec<&CellId> = pairs.iter().filter_map(|pair| Some(&pair.head?.id)).collect();
    let mut left: Vec<&Cell> =
        head.iter().copied().filter(|cell| !taken.contains(&&cell.id)).collect();
    for pair in pairs.iter_mut().filter(|pair| pair.head.is_none()) {
        let (arch, test) = (pair.base.id.arch, &pair.base.id.test);
        let other = left.iter().position(|b| (b.id.arch, &b.id.test) == (arch, test));
        pair.head = other.map(|at| left.swap_remove(at));
    }
    pairs
}

/// The head's cells that are in no pair.
pub fn head_only(pairs: &[Pair], head: &[&Cell]) -> Vec<HeadOnly> {
    let paired: Vec<&CellId> = pairs.iter().filter_map(|pair| Some(&pair.head?.id)).collect();
    let alone =
        head.iter().filter(|cell| cell.id.test != Test::Build && !paired.contains(&&cell.id));
    alone.map(|cell| HeadOnly { test: cell.id.test.clone(), head: ending(cell) }).collect()
}

/// Numbers of the base, each with the head's.
type Beside = Vec<(Metric, Value, Value)>;

/// All numbers that both cells measured. If one measured nothing, the error says how they ended. It
/// is none if there is nothing to report.
pub(super) fn values(pair: &Pair, model: Model) -> Result<Beside, Option<Box<Unmatched>>> {
    let Some(head) =
        pair.head.filter(|head| head.measurement.is_some() && pair.base.measurement.is_some())
    else {
        return Err(unmatched(pair).map(Box::new));
    };
    let heads = kinds::values(head, model);
    let beside = |(metric, base): (Metric, Value)| {
        let (_, head) = heads.iter().find(|(other, _)| *other == metric)?;
        Some((metric, base, head.clone()))
    };
    Ok(kinds::values(pair.base, model).into_iter().filter_map(beside).collect())
}

/// The clock sources of base and head, if their times cannot be compared: the sources differ, or
/// one side's guests had several.
pub(super) fn other_clocks(pair: &Pair) -> Option<[String; 2]> {
    let clocks = [pair.base.clock_source()?, pair.head?.clock_source()?];
    let is_one = clocks[0] == clocks[1] && !clocks[0].contains(CLOCKS_APART);
    (!is_one).then(|| clocks.map(str::to_owned))
}

fn unmatched(pair: &Pair) -> Option<Unmatched> {
    let base = pair.base;
    let Some(head) = pair.head else {
        let head = "not in the run".to_owned();
        let measured = base.measurement.is_some();
        return measured.then(|| Unmatched {
            test: base.id.test.clone(),
            base: ending(base),
            head,
            lost: false,
            is_new: false,
        });
    };
    // Both were built, or both skip: there is nothing to report.
    if matches!(
        (&base.outcome, &head.outcome),
        (Outcome::Pass, Outcome::Pass) | (Outcome::Skip { .. }, Outcome::Skip { .. })
    ) {
        return None;
    }
    let lost = base.measurement.is_some() && head.measurement.is_none();
    let is_new = base.id.test.is_of_the_tree()
        && matches!(&base.outcome, Outcome::Skip { reason } if is_absent(reason))
        && head.outcome == Outcome::Pass;
    Some(Unmatched {
        test: base.id.test.clone(),
        base: ending(base),
        head: ending(head),
        lost,
        is_new,
    })
}

pub fn ending(cell: &Cell) -> String {
    match &cell.outcome {
        Outcome::Pass => "pass".to_owned(),
        Outcome::Fail { .. } => "fail".to_owned(),
        Outcome::Error { kind, message } => format!("error: {kind}: {message}"),
        Outcome::Skip { reason } => format!("skip: {reason}"),
    }
}
