// SPDX-License-Identifier: MIT OR Apache-2.0
//! Explains why a wanted option is missing from the configuration that make produced.

use super::{
    Demand, Kconfig, WantedOption,
    expression::{Expression, Tristate},
    offered::Offered,
    options::{KnownOptions, Preset, Select, Symbol},
};
use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    path::Path,
    slice,
};
use tramplab_model::run::Arch;

/// Most options named in one list.
const NAMED: usize = 6;

/// Most steps along a chain of options that set each other.
const STEPS: usize = 6;

/// A wanted option that make did not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    pub wanted: WantedOption,
    /// The option's actual value; `n` if it is not set.
    pub found: String,
    pub why: String,
    /// The tree does not define the option.
    pub is_unknown: bool,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unmet { wanted, found, why, .. } = self;
        write!(f, "{}: {wanted} did not survive (it is {found}): {why}", wanted.place())
    }
}

/// Returns the wanted options that are not in the result, each with a reason. Reads the tree's
/// Kconfig files only if something is missing.
pub fn unmet(wanted: &[WantedOption], result: &Kconfig, tree: &Path, arch: Arch) -> Vec<Unmet> {
    let missing: Vec<_> = wanted.iter().filter(|wanted| is_missing(wanted, result)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let reasons = KnownOptions::of_tree(tree, arch, |options| reasons(&missing, result, options));
    // If the tree cannot be read, report the option rather than ignore it.
    let reasons = reasons.unwrap_or_else(|error| {
        let why = format!("its dependencies are not known, {error}");
        vec![Some((why, false)); missing.len()]
    });
    let explained = missing.into_iter().zip(reasons);
    explained.filter_map(|(wanted, reason)| Some(explain(wanted, result, reason?))).collect()
}

/// Returns the wanted options that a tree does not define: none if its files cannot be read.
pub fn undefined(wanted: &[WantedOption], tree: &Path, arch: Arch) -> Vec<Unmet> {
    let mut unmet = unmet(wanted, &Kconfig::default(), tree, arch);
    unmet.retain(|unmet| unmet.is_unknown);
    unmet
}

/// Returns why each option is missing. None if the tree need not have it.
fn reasons(
    missing: &[&WantedOption],
    result: &Kconfig,
    options: &KnownOptions,
) -> Vec<Option<(String, bool)>> {
    let offered = Offered::new(options);
    let is_demanded = |wanted: &WantedOption| match wanted.demand {
        Demand::WhereOffered => offered.has(&wanted.option),
        Demand::WherePrompted => options.has_prompt(&wanted.option),
        _ => true,
    };
    let why = |wanted: &&WantedOption| {
        is_demanded(wanted).then(|| {
            let is_unknown = !options.defines(&wanted.option);
            (why(wanted, result, options), is_unknown)
        })
    };
    missing.iter().map(why).collect()
}

fn is_missing(wanted: &WantedOption, result: &Kconfig) -> bool {
    let found = found(wanted, result);
    // Options that guests need may select it.
    let is_more = wanted.demand == Demand::WherePrompted && wanted.value == "m" && found == "y";
    wanted.demand != Demand::Never && found != wanted.plain() && !is_more
}

fn found<'a>(wanted: &WantedOption, result: &'a Kconfig) -> &'a str {
    result.get(&wanted.option).unwrap_or("n")
}

fn explain(
    wanted: &WantedOption,
    result: &Kconfig,
    (mut why, is_unknown): (String, bool),
) -> Unmet {
    if wanted.demand == Demand::WhereOffered {
        why += &format!(
            "; for a kernel without it, write `# CONFIG_{} is not set` into a fragment of the \
             manifest's",
            wanted.option
        );
    }
    Unmet { wanted: wanted.clone(), found: found(wanted, result).to_owned(), why, is_unknown }
}

fn why(wanted: &WantedOption, result: &Kconfig, options: &KnownOptions) -> String {
    let option = &wanted.option;
    let symbol = match options.symbols.get(option) {
        Some(symbol) if options.defines(option) => symbol,
        _ => {
            let like = similar(option, options);
            let like = like.map(|name| format!(" (did you mean CONFIG_{name}?)"));
            return format!("this tree has no option CONFIG_{option}{}", like.unwrap_or_default());
        }
    };
    let [value, found] = [wanted.plain(), found(wanted, result)].map(Tristate::of);
    let is_unmet = |part: &Expression| part.value(result).is_some();
    let is_active =
        |select: &&Select| !missing(&by_select(select), found, result).iter().any(is_unmet);
    let active: Vec<&Select> = symbol.selected_by.iter().filter(is_active).collect();
    if value < found && !active.is_empty() {
        return format!("it is selected by {}", names(&active, result));
    }
    // For a bool, `m` is enough.
    let needed = if symbol.is_tristate { value.max(Tristate::Module) } else { Tristate::Module };
    let lacks = lacks(option, needed, result, options);
    match chosen(option, symbol, result, options) {
        _ if !lacks.is_empty() => lacks.join("; "),
        Some(other) => format!("{other} [=y] of the same choice is set"),
        None => "no known condition forbids it; search for it in `make menuconfig`, which shows \
                 its type and range"
            .to_owned(),
    }
}

/// Explains what an option lacks to be set. Follows the options without a prompt among that: the
/// last reason is one that the user can act on.
fn lacks(option: &str, needed: Tristate, result: &Kconfig, options: &KnownOptions) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut seen = BTreeSet::new();
    let mut waiting = VecDeque::from([(option.to_owned(), needed)]);
    while let Some((name, needed)) = waiting.pop_front() {
        let is_followed = name == option || !options.has_prompt(&name);
        let symbol = options.symbols.get(&name).filter(|_| is_followed && reasons.len() < STEPS);
        let (Some(symbol), true) = (symbol, seen.insert(name.clone())) else { continue };
        let parts = nearest(symbol, needed, result);
        if parts.is_empty() {
            continue;
        }
        waiting.extend(parts.iter().filter_map(|part| match part {
            Expression::Symbol(name) => Some((name.clone(), Tristate::Module)),
            _ => None,
        }));
        let it = if name == option { "it" } else { &name };
        reasons.push(format!("{it} depends on {}", Expression::And(parts).shown(result)));
    }
    reasons
}

/// Returns the unmet conditions of the prompt that lacks the fewest. Without a prompt, a default or
/// another option sets the option.
fn nearest(symbol: &Symbol, needed: Tristate, result: &Kconfig) -> Vec<Expression> {
    let definitions = &symbol.definitions;
    let by_prompt = definitions.iter().filter_map(|at| {
        let prompt = at.prompt.as_ref()?;
        Some([&at.depends[..], prompt].concat())
    });
    let mut ways: Vec<Vec<Expression>> = by_prompt.collect();
    if ways.is_empty() {
        let by_default = definitions.iter().flat_map(|at| {
            at.defaults.iter().map(|Preset { value, condition }| {
                [&at.depends[..], slice::from_ref(value), condition.as_slice()].concat()
            })
        });
        ways.extend(by_default.chain(symbol.selected_by.iter().map(by_select)));
    }
    let lacking = ways.iter().map(|way| missing(way, needed, result));
    lacking.min_by_key(Vec::len).unwrap_or_default()
}

/// The conditions under which another option selects this one.
fn by_select((by, when): &Select) -> Vec<Expression> {
    [&[Expression::Symbol(by.clone())], &when[..]].concat()
}

/// Returns the unmet parts, or else those whose value is unknown. Enclosing blocks often repeat
/// them.
fn missing(conditions: &[Expression], needed: Tristate, result: &Kconfig) -> Vec<Expression> {
    let mut parts: Vec<Expression> = Vec::new();
    for part in conditions.iter().flat_map(|part| part.missing(needed, result)) {
        if !parts.contains(part) {
            parts.push(part.clone());
        }
    }
    let is_unmet = |part: &Expression| part.value(result).is_some();
    if parts.iter().any(is_unmet) {
        parts.retain(is_unmet);
    }
    parts
}

/// Returns another option of the same choice that is set.
fn chosen<'a>(
    option: &str,
    symbol: &Symbol,
    result: &Kconfig,
    options: &'a KnownOptions,
) -> Option<&'a String> {
    let choices = symbol.definitions.iter().filter_map(|at| at.choice);
    choices
        .flat_map(|choice| &options.choices[choice])
        .find(|other| *other != option && result.get(other) == Some("y"))
}

fn names(selects: &[&Select], result: &Kconfig) -> String {
    let shown = |(by, _): &&Select| Expression::Symbol(by.clone()).shown(result);
    let mut named: Vec<String> = selects.iter().take(NAMED).map(shown).collect();
    named.dedup();
    let more = match selects.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}

/// Returns the option with the most similar name, if it is similar enough.
fn similar<'a>(option: &str, options: &'a KnownOptions) -> Option<&'a String> {
    let defined = options.symbols.iter().filter(|(_, symbol)| !symbol.definitions.is_empty());
    let near = defined.map(|(name, _)| (strsim::damerau_levenshtein(option, name), name));
    let (distance, name) = near.min()?;
    (distance <= 1 + option.len() / 4).then_some(name)
}
