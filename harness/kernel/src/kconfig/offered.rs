// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options that a tree offers to an architecture: those that some configuration has. An
//! architecture declares its features by selecting options without a prompt (`HAVE_RETHOOK`). An
//! option that depends on an unselected one is not available there.

use super::{
    expression::{Expression, Tristate},
    options::{KnownOptions, Symbol},
};
use std::collections::BTreeSet;

/// Computed for all options together, because they depend on each other in circles.
pub struct Offered<'a> {
    /// Options that may be set. Rather too many than too few, except for options that depend on one
    /// that is always a module.
    may: BTreeSet<&'a str>,
    /// Options that are set in every configuration. Rather too few than too many.
    always: BTreeSet<&'a str>,
}

impl<'a> Offered<'a> {
    pub fn new(options: &'a KnownOptions) -> Offered<'a> {
        let mut offered = Offered { may: BTreeSet::new(), always: BTreeSet::new() };
        // The set `always` narrows the set `may`, but is empty in the first round.
        for _ in 0..2 {
            offered.may.clear();
            grow(options, &mut offered, |offered| &mut offered.may, Offered::symbol_may);
            grow(options, &mut offered, |offered| &mut offered.always, Offered::symbol_must);
        }
        offered
    }

    pub fn has(&self, option: &str) -> bool {
        self.may.contains(option)
    }

    fn symbol_may(&self, symbol: &Symbol) -> bool {
        let all = |conditions: &[Expression]| conditions.iter().all(|part| self.may(part));
        let selected =
            symbol.selected_by.iter().any(|(by, when)| self.may.contains(by.as_str()) && all(when));
        selected
            || symbol.definitions.iter().any(|at| {
                let preset = at.defaults.iter().any(|preset| {
                    self.may(&preset.value)
                        && preset.condition.as_ref().is_none_or(|part| self.may(part))
                });
                all(&at.depends) && (preset || at.prompt.as_deref().is_some_and(all))
            })
    }

    fn symbol_must(&self, symbol: &Symbol) -> bool {
        let all = |conditions: &[Expression]| conditions.iter().all(|part| self.must(part));
        let selected = symbol
            .selected_by
            .iter()
            .any(|(by, when)| self.always.contains(by.as_str()) && all(when));
        // Several definitions may each have defaults. A prompt anywhere lets the user say no.
        let unasked = symbol.definitions.iter().all(|at| at.prompt.is_none());
        let preset = match symbol.definitions.as_slice() {
            [at] => at.defaults.first().is_some_and(|preset| {
                all(&at.depends)
                    && self.must(&preset.value)
                    && preset.condition.iter().all(|part| self.must(part))
            }),
            _ => false,
        };
        selected || (unasked && preset)
    }

    /// True if the expression can be more than `n`.
    fn may(&self, expression: &Expression) -> bool {
        match expression {
            Expression::Symbol(name) => self.may.contains(name.as_str()),
            Expression::Constant(text) => Tristate::of(text) > Tristate::No,
            // The values of macros and numbers are unknown here.
            Expression::Macro(_) | Expression::Compare(..) => true,
            Expression::Not(inner) => !self.must(inner),
            Expression::And(parts) => parts.iter().all(|part| self.may(part)),
            Expression::Or(parts) => parts.iter().any(|part| self.may(part)),
        }
    }

    /// True if the expression is never `n`.
    fn must(&self, expression: &Expression) -> bool {
        match expression {
            Expression::Symbol(name) => self.always.contains(name.as_str()),
            Expression::Constant(text) => Tristate::of(text) > Tristate::No,
            Expression::Macro(_) | Expression::Compare(..) => false,
            Expression::Not(inner) => !self.may(inner),
            Expression::And(parts) => parts.iter().all(|part| self.must(part)),
            Expression::Or(parts) => parts.iter().any(|part| self.must(part)),
        }
    }
}

/// Adds the options that the rule accepts until nothing changes.
fn grow<'a>(
    options: &'a KnownOptions,
    offered: &mut Offered<'a>,
    set: for<'b> fn(&'b mut Offered<'a>) -> &'b mut BTreeSet<&'a str>,
    rule: fn(&Offered<'a>, &Symbol) -> bool,
) {
    loop {
        let known = set(offered).clone();
        let more: Vec<&str> = options
            .symbols
            .iter()
            .filter(|(name, symbol)| !known.contains(name.as_str()) && rule(offered, symbol))
            .map(|(name, _)| name.as_str())
            .collect();
        if more.is_empty() {
            return;
        }
        set(offered).extend(more);
    }
}
