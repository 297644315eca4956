// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both ends of a bisection as make configures them, and the differences that can be set.

use super::{Configs, Files, NAMED, Set, Side, Sides, Values, value, wanted};
use crate::error::Result;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};
use tramplab_kernel::kconfig::{self, WantedOption};
use tramplab_model::run::Arch;

/// Both ends as make configures them, and their differences.
pub(super) struct Ends {
    pub(super) good: Values,
    pub(super) bad: Values,
    pub(super) units: Vec<Unit>,
    /// Options that differ in the files.
    asked: usize,
    /// Options that differ in the end.
    differing: usize,
    /// Options of the bad file that no option with a prompt brings.
    lost: Vec<String>,
}

/// Options that are set together: one, or those of one choice.
pub(super) type Unit = BTreeSet<String>;

pub(super) type Configured<'a> = &'a dyn Fn(Vec<WantedOption>) -> Result<(Values, PathBuf)>;

impl Ends {
    pub(super) fn make(
        sides: &Sides,
        files: &Files,
        configured: Configured,
        arch: Arch,
    ) -> Result<Ends> {
        let (good, tree) = configured(sides.options(&sides.good))?;
        let (bad, _) = configured(sides.options(&sides.bad))?;
        let differing_options = differing(&good, &bad).cloned().collect();
        // Without the tree's Kconfig files each option counts as one that can be set.
        let asked = kconfig::asked(&differing_options, &tree, arch).unwrap_or_default();
        let units = units(&good, &bad, &asked);
        let all: Set = (0..units.len()).collect();
        // The bad end is what the search can reach.
        let (reached, _) = configured(wanted(&overlay(&good, &bad, &units, &all)))?;
        files.save(&files.config(&sides.good.id), &good)?;
        files.save(&files.config(&sides.bad.id), &reached)?;
        let count = |a: &Values, b: &Values| differing(a, b).count();
        let given = |side: &Side| -> Values {
            let pair = |wanted: &WantedOption| (wanted.option.clone(), wanted.value.clone());
            side.options.iter().map(pair).collect()
        };
        Ok(Ends {
            asked: count(&given(&sides.good), &given(&sides.bad)),
            differing: count(&good, &bad),
            lost: differing(&reached, &bad).cloned().collect(),
            good,
            bad: reached,
            units,
        })
    }

    pub(super) fn told(&self, range: &Configs) -> Vec<String> {
        let (good, bad) = (range.good.display(), range.bad.display());
        let mut lines = vec![format!(
            "{good} and {bad} differ in {} options, the configurations that make gives for them in \
             {}; {} can be set",
            self.asked,
            self.differing,
            self.units.len()
        )];
        if !self.lost.is_empty() {
            let (named, rest) = self.lost.split_at(self.lost.len().min(NAMED));
            let more =
                if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            lines.push(format!(
                "warning: left out, since no option with a prompt brings them: {}{more}",
                named.join(", ")
            ));
        }
        lines
    }
}

/// Options whose values differ.
pub(super) fn differing<'v>(a: &'v Values, b: &'v Values) -> impl Iterator<Item = &'v String> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names.into_iter().filter(move |option| value(a, option) != value(b, option))
}

/// The differences that can be set. Options without a prompt follow from others.
pub(super) fn units(
    good: &Values,
    bad: &Values,
    asked: &BTreeMap<String, kconfig::AskedOption>,
) -> Vec<Unit> {
    let mut units: Vec<(Option<usize>, Unit)> = Vec::new();
    for option in differing(good, bad) {
        let asked = asked.get(option);
        if asked.is_some_and(|asked| !asked.is_asked) {
            continue;
        }
        let choice = asked.and_then(|asked| asked.choice);
        match units.iter_mut().find(|(of, _)| choice.is_some() && *of == choice) {
            Some((_, unit)) => drop(unit.insert(option.clone())),
            None => units.push((choice, Unit::from([option.clone()]))),
        }
    }
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// The good configuration with some of the differences. Options that follow from others are left
/// for make to set.
pub(super) fn overlay(good: &Values, bad: &Values, units: &[Unit], set: &Set) -> Values {
    let settable: BTreeSet<&String> = units.iter().flatten().collect();
    let follows =
        |option: &String| value(good, option) != value(bad, option) && !settable.contains(option);
    let mut values: Values = good
        .iter()
        .filter(|(option, _)| !follows(option))
        .map(|(option, value)| (option.clone(), value.clone()))
        .collect();
    for option in set.iter().flat_map(|&place| &units[place]) {
        values.insert(option.clone(), value(bad, option).to_owned());
    }
    values
}
