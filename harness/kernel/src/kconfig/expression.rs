// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kconfig conditions: their values in a configuration, and their unmet parts.

use super::Kconfig;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Symbol(String),
    Constant(String),
    /// A macro, such as a test of the compiler, or a comparison. Its value is unknown here.
    Unknown(String),
    Not(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
}

/// `n`, `m` and `y`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tristate {
    No,
    Module,
    Yes,
}

impl Tristate {
    pub fn of(text: &str) -> Tristate {
        match text {
            "y" => Tristate::Yes,
            "m" => Tristate::Module,
            _ => Tristate::No,
        }
    }
}

impl Expression {
    pub fn not(self) -> Expression {
        Expression::Not(Box::new(self))
    }

    /// The condition's value. None if it depends on an unknown part.
    pub fn value(&self, config: &Kconfig) -> Option<Tristate> {
        match self {
            Expression::Symbol(name) => Some(Tristate::of(config.get(name).unwrap_or("n"))),
            Expression::Constant(text) => Some(Tristate::of(text)),
            Expression::Unknown(_) => None,
            Expression::Not(inner) => inner.value(config).map(|value| match value {
                Tristate::No => Tristate::Yes,
                Tristate::Module => Tristate::Module,
                Tristate::Yes => Tristate::No,
            }),
            Expression::And(parts) => decide(parts, config, Tristate::No, Ord::min),
            Expression::Or(parts) => decide(parts, config, Tristate::Yes, Ord::max),
        }
    }

    /// Returns the parts that keep the condition below `needed`, or whose value is unknown.
    pub fn missing(&self, needed: Tristate, config: &Kconfig) -> Vec<&Expression> {
        match self {
            _ if self.value(config) >= Some(needed) => Vec::new(),
            Expression::And(parts) => {
                parts.iter().flat_map(|part| part.missing(needed, config)).collect()
            }
            part => vec![part],
        }
    }

    /// Formats the condition, each option with its value: `FPROBE [=n] && !MMU [=y]`.
    pub fn shown(&self, config: &Kconfig) -> String {
        let within = |part: &Expression| match part {
            Expression::And(_) | Expression::Or(_) => format!("({})", part.shown(config)),
            _ => part.shown(config),
        };
        let joined = |parts: &[Expression], word: &str| {
            parts.iter().map(within).collect::<Vec<_>>().join(word)
        };
        match self {
            Expression::Symbol(name) => format!("{name} [={}]", config.get(name).unwrap_or("n")),
            Expression::Constant(text) | Expression::Unknown(text) => text.clone(),
            Expression::Not(inner) => format!("!{}", within(inner)),
            Expression::And(parts) => joined(parts, " && "),
            Expression::Or(parts) => joined(parts, " || "),
        }
    }
}

/// Returns the minimum or maximum of all parts, unless one part decides alone.
fn decide(
    parts: &[Expression],
    config: &Kconfig,
    deciding: Tristate,
    choose: fn(Tristate, Tristate) -> Tristate,
) -> Option<Tristate> {
    let values: Vec<_> = parts.iter().map(|part| part.value(config)).collect();
    if values.contains(&Some(deciding)) {
        return Some(deciding);
    }
    values.into_iter().collect::<Option<Vec<_>>>()?.into_iter().reduce(choose)
}
