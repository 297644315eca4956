// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kconfig conditions: their values in a configuration, and their unmet parts.

use super::Kconfig;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Symbol(String),
    Constant(String),
    Compare(Box<Expression>, Relation, Box<Expression>),
    /// A macro, such as a test of the compiler. Its value is unknown here.
    Macro(String),
    Not(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
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

    fn is(met: bool) -> Tristate {
        if met { Tristate::Yes } else { Tristate::No }
    }
}

impl Expression {
    pub fn not(self) -> Expression {
        Expression::Not(Box::new(self))
    }

    /// The condition's value. None if it depends on a macro.
    pub fn value(&self, config: &Kconfig) -> Option<Tristate> {
        match self {
            Expression::Symbol(name) => Some(Tristate::of(config.get(name).unwrap_or("n"))),
            Expression::Constant(text) => Some(Tristate::of(text)),
            Expression::Macro(_) => None,
            Expression::Not(inner) => inner.value(config).map(|value| match value {
                Tristate::No => Tristate::Yes,
                Tristate::Module => Tristate::Module,
                Tristate::Yes => Tristate::No,
            }),
            Expression::Compare(left, relation, right) => {
                let (left, right) = (left.text(config)?, right.text(config)?);
                Some(Tristate::is(relation.holds(&left, &right)))
            }
            Expression::And(parts) => decide(parts, config, Tristate::No, Ord::min),
            Expression::Or(parts) => decide(parts, config, Tristate::Yes, Ord::max),
        }
    }

    /// The text of a comparison's operand.
    fn text(&self, config: &Kconfig) -> Option<String> {
        match self {
            Expression::Symbol(name) => Some(config.get(name).unwrap_or("n").to_owned()),
            Expression::Constant(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// Returns the parts that keep the condition below `needed`, with their options' values.
    /// Unknown parts count as met.
    pub fn missing(&self, needed: Tristate, config: &Kconfig) -> Vec<String> {
        if self.value(config).is_none_or(|value| value >= needed) {
            return match self {
                // One part may be unknown while another is unmet.
                Expression::And(parts) => {
                    parts.iter().flat_map(|part| part.missing(needed, config)).collect()
                }
                _ => Vec::new(),
            };
        }
        match self {
            Expression::And(parts) => {
                parts.iter().flat_map(|part| part.missing(needed, config)).collect()
            }
            Expression::Or(_) => vec![format!("({})", self.shown(config))],
            _ => vec![self.shown(config)],
        }
    }

    /// Returns the macros in the condition.
    pub fn macros(&self) -> Vec<&str> {
        match self {
            Expression::Macro(text) => vec![text],
            Expression::Symbol(_) | Expression::Constant(_) => Vec::new(),
            Expression::Not(inner) => inner.macros(),
            Expression::Compare(left, _, right) => [left.macros(), right.macros()].concat(),
            Expression::And(parts) | Expression::Or(parts) => {
                parts.iter().flat_map(Expression::macros).collect()
            }
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
            Expression::Constant(text) | Expression::Macro(text) => text.clone(),
            Expression::Not(inner) => format!("!{}", within(inner)),
            Expression::Compare(left, relation, right) => {
                format!("{} {} {}", within(left), relation.sign(), within(right))
            }
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

impl Relation {
    /// Compares numbers by value and other texts by their bytes.
    fn holds(self, left: &str, right: &str) -> bool {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => text.parse::<i64>().ok(),
        };
        let order = match (number(left), number(right)) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => left.cmp(right),
        };
        match self {
            Relation::Equal => order.is_eq(),
            Relation::NotEqual => order.is_ne(),
            Relation::Less => order.is_lt(),
            Relation::LessOrEqual => order.is_le(),
            Relation::Greater => order.is_gt(),
            Relation::GreaterOrEqual => order.is_ge(),
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Relation::Equal => "=",
            Relation::NotEqual => "!=",
            Relation::Less => "<",
            Relation::LessOrEqual => "<=",
            Relation::Greater => ">",
            Relation::GreaterOrEqual => ">=",
        }
    }
}
