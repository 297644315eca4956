// SPDX-License-Identifier: MIT OR Apache-2.0
//! Explains why a wanted option is missing from the configuration that make produced.

use super::{
    Demand, Kconfig, WantedOption,
    expression::{Expression, Tristate},
    offered::Offered,
    options::{Definition, Kind, KnownOptions, Symbol},
};
use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    path::Path,
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
            (why(wanted, found(wanted, result), result, options), is_unknown)
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

fn why(wanted: &WantedOption, found: &str, result: &Kconfig, options: &KnownOptions) -> String {
    let option = &wanted.option;
    let symbol = match options.symbols.get(option) {
        // An option that is selected but never defined does not exist.
        Some(symbol) if !symbol.definitions.is_empty() => symbol,
        _ => {
            let like =
                similar(option, options).map(|name| format!(" (did you mean CONFIG_{name}?)"));
            return format!("this tree has no option CONFIG_{option}{}", like.unwrap_or_default());
        }
    };
    let value = wanted.plain();
    let is_switch = matches!(value, "y" | "m" | "n") && !wanted.value.starts_with('"');
    match symbol.kind {
        Some(Kind::Bool) if !is_switch || value == "m" => {
            return "it is a bool, expected y or n".to_owned();
        }
        Some(Kind::Tristate) if !is_switch => {
            return "it is a tristate, expected y, m or n".to_owned();
        }
        Some(Kind::Text) if !wanted.value.starts_with('"') => {
            return "it is a string, expected a \"text\"".to_owned();
        }
        Some(Kind::Number) if wanted.value.starts_with('"') || (is_switch && value != "n") => {
            return "it is a number".to_owned();
        }
        _ => {}
    }
    let lowers = is_switch && Tristate::of(value) < Tristate::of(found);
    if lowers {
        why_set(option, symbol, found, result, options)
    } else {
        why_not_set(wanted, symbol, result, options)
    }
}

/// Explains why an option is set higher than wanted.
fn why_set(
    option: &str,
    symbol: &Symbol,
    found: &str,
    result: &Kconfig,
    options: &KnownOptions,
) -> String {
    let level = Tristate::of(found);
    let selects = |(by, conditions): &&(String, Vec<Expression>)| {
        let by = Expression::Symbol(by.clone());
        let is_met = |part: &Expression| part.value(result).is_none_or(|value| value >= level);
        is_met(&by) && conditions.iter().all(is_met)
    };
    let active: Vec<_> = symbol.selected_by.iter().filter(selects).collect();
    if !active.is_empty() {
        return format!(
            "it is selected by {}",
            names(active.into_iter().map(|(by, _)| by), result)
        );
    }
    if symbol.definitions.iter().any(|at| at.choice.is_some()) {
        return format!("one of its choice must be set{}", choice_of(option, symbol, options));
    }
    match hidden(symbol, result) {
        Some(hidden) => format!("{hidden}, and its default is {found}"),
        None => format!("its prompt and dependencies allow for less, and its default is {found}"),
    }
}

/// Explains why an option is set lower than wanted, or has another value.
fn why_not_set(
    wanted: &WantedOption,
    symbol: &Symbol,
    result: &Kconfig,
    options: &KnownOptions,
) -> String {
    // For a bool, `m` is enough.
    let needed = match symbol.kind {
        Some(Kind::Tristate) => Tristate::of(wanted.plain()),
        _ => Tristate::Module,
    };
    // Prefer the definition with the fewest unmet parts. Options without a prompt are set by
    // others.
    let prompted: Vec<_> = symbol.definitions.iter().filter(|at| at.prompt.is_some()).collect();
    let nearest = nearest(symbol, needed, result);
    let mut reasons = Vec::new();
    if !nearest.is_empty() {
        reasons.push(format!("it depends on {}", nearest.join(" and ")));
    }
    if prompted.is_empty() {
        // The default does not matter while a dependency is unmet.
        if nearest.is_empty() || !symbol.selected_by.is_empty() {
            reasons.push(unasked(symbol, result));
        }
    } else if nearest.is_empty() {
        if let Some(hidden) = hidden(symbol, result) {
            reasons.push(hidden);
        } else if let Some(other) = chosen(&wanted.option, symbol, result, options) {
            reasons.push(format!("{other} [=y] of the same choice is set"));
        } else if let Some(range) = symbol.definitions.iter().flat_map(|at| &at.ranges).next() {
            reasons.push(format!("its range is {}", with_values(range, result)));
        } else if let Some(text) = prompted.iter().find_map(|at| asked_of_tools(at, result)) {
            reasons.push(format!("it depends on {}", of_tools(&text)));
        } else {
            reasons.push(
                "all its known dependencies are met; run `make menuconfig` and search for it"
                    .to_owned(),
            );
        }
    }
    reasons.extend(behind(option_names(&nearest), result, options));
    reasons.join("; ")
}

/// Returns the unmet parts of the definition that has the fewest.
fn nearest(symbol: &Symbol, needed: Tristate, result: &Kconfig) -> Vec<String> {
    let prompted = symbol.definitions.iter().any(|at| at.prompt.is_some());
    let places = symbol.definitions.iter().filter(|at| at.prompt.is_some() == prompted);
    places.map(|at| missing(&at.depends, needed, result)).min_by_key(Vec::len).unwrap_or_default()
}

/// Returns the unmet parts of the conditions without duplicates: enclosing blocks often repeat
/// them.
fn missing(conditions: &[Expression], needed: Tristate, result: &Kconfig) -> Vec<String> {
    let mut parts: Vec<_> =
        conditions.iter().flat_map(|part| part.missing(needed, result)).collect();
    let mut seen = BTreeSet::new();
    parts.retain(|part| seen.insert(part.clone()));
    parts
}

/// Returns the options of those parts that are only an unset option: `HAVE_RETHOOK [=n]`.
fn option_names(parts: &[String]) -> Vec<String> {
    let name =
        |part: &String| part.strip_suffix(" [=n]").filter(|name| is_name(name)).map(str::to_owned);
    parts.iter().filter_map(name).collect()
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Explains why options without a prompt are unset, and follows the options named there. The last
/// reason is one that the user can act on.
fn behind(options_named: Vec<String>, result: &Kconfig, options: &KnownOptions) -> Vec<String> {
    let mut waiting: VecDeque<String> = options_named.into();
    let mut seen = BTreeSet::new();
    let mut reasons = Vec::new();
    while let Some(option) = waiting.pop_front() {
        let Some(symbol) = options.symbols.get(&option) else { continue };
        let is_asked_for = symbol.definitions.iter().any(|at| at.prompt.is_some());
        if is_asked_for || reasons.len() == STEPS || !seen.insert(option.clone()) {
            continue;
        }
        let parts = if symbol.selected_by.is_empty() {
            let parts = nearest(symbol, Tristate::Module, result);
            if !parts.is_empty() {
                reasons.push(format!("{option} depends on {}", parts.join(" and ")));
            } else if let Some(text) =
                symbol.definitions.iter().find_map(|at| asked_of_tools(at, result))
            {
                reasons.push(format!("{option} depends on {}", of_tools(&text)));
            }
            parts
        } else {
            // Only a selector that is already set counts.
            let lacks = |(by, when): &(String, Vec<Expression>)| {
                let set = Expression::Symbol(by.clone()).value(result) > Some(Tristate::No);
                set.then(|| (by.clone(), missing(when, Tristate::Module, result)))
            };
            let Some((by, parts)) =
                symbol.selected_by.iter().filter_map(lacks).min_by_key(|(_, parts)| parts.len())
            else {
                continue;
            };
            if !parts.is_empty() {
                let by = Expression::Symbol(by).shown(result);
                reasons.push(format!(
                    "{option} is selected by {by} only with {}",
                    parts.join(" and ")
                ));
            }
            parts
        };
        waiting.extend(option_names(&parts));
    }
    reasons
}

/// Returns the macros of a condition that depends on the build's tools.
fn asked_of_tools(at: &Definition, result: &Kconfig) -> Option<String> {
    let conditions = at.depends.iter().chain(at.prompt.iter().flatten());
    let mut unknown = conditions.filter(|part| part.value(result).is_none());
    unknown.next().map(|part| part.macros().join(" and "))
}

fn of_tools(text: &str) -> String {
    format!("{text}, which the compiler and the other tools decide")
}

/// `2 NR_CPUS_END [=512]`.
fn with_values(range: &str, result: &Kconfig) -> String {
    let shown = |word: &str| match result.get(word) {
        Some(value) => format!("{word} [={value}]"),
        None => word.to_owned(),
    };
    range.split_whitespace().map(shown).collect::<Vec<_>>().join(" ")
}

/// Explains who sets an option without a prompt.
fn unasked(symbol: &Symbol, result: &Kconfig) -> String {
    match symbol.selected_by.as_slice() {
        [] => match symbol.definitions.iter().find_map(|at| asked_of_tools(at, result)) {
            Some(text) => format!("it depends on {}", of_tools(&text)),
            None => "it has no prompt: only its default sets it".to_owned(),
        },
        by => format!(
            "it has no prompt: it is set by what selects it, {}",
            names(by.iter().map(|(by, _)| by), result)
        ),
    }
}

/// Explains why the option's prompt is not shown. None if it is.
fn hidden(symbol: &Symbol, result: &Kconfig) -> Option<String> {
    let prompts: Vec<_> = symbol.definitions.iter().filter_map(|at| at.prompt.as_ref()).collect();
    if prompts.is_empty() {
        return Some(unasked(symbol, result));
    }
    let missing = |conditions: &Vec<Expression>| -> Vec<String> {
        conditions.iter().flat_map(|part| part.missing(Tristate::Module, result)).collect()
    };
    let nearest = prompts.into_iter().map(missing).min_by_key(Vec::len).unwrap_or_default();
    (!nearest.is_empty()).then(|| format!("it can be set only with {}", nearest.join(" and ")))
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

fn choice_of(option: &str, symbol: &Symbol, options: &KnownOptions) -> String {
    let choices = symbol.definitions.iter().filter_map(|at| at.choice);
    let others: Vec<_> = choices
        .flat_map(|choice| &options.choices[choice])
        .filter(|other| *other != option)
        .collect();
    let names: Vec<_> = others.into_iter().take(NAMED).map(String::as_str).collect();
    if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
}

fn names<'a>(options: impl Iterator<Item = &'a String>, result: &Kconfig) -> String {
    let mut names: Vec<_> = options.collect();
    names.dedup();
    let shown = |name: &&String| Expression::Symbol((*name).clone()).shown(result);
    let more = if names.len() > NAMED {
        format!(" and {} more", names.len() - NAMED)
    } else {
        String::new()
    };
    format!("{}{more}", names.iter().take(NAMED).map(shown).collect::<Vec<_>>().join(", "))
}

/// Returns the option with the most similar name, if it is similar enough.
fn similar<'a>(option: &str, options: &'a KnownOptions) -> Option<&'a String> {
    let defined = options.symbols.iter().filter(|(_, symbol)| !symbol.definitions.is_empty());
    let near = defined.map(|(name, _)| (strsim::damerau_levenshtein(option, name), name));
    let (distance, name) = near.min()?;
    (distance <= 1 + option.len() / 4).then_some(name)
}
