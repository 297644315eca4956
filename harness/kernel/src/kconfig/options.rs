// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options that a tree's Kconfig files define. Only this module uses the parser library.

use super::{
    WantedOption,
    expression::{Expression, Relation},
    sources::{File, Sources, Unreadable, sourced},
};
use crate::isolated;
use nom_kconfig::{
    Attribute, Entry, KconfigFile, KconfigInput, Symbol as NomSymbol,
    attribute::{
        AndExpression, Atom, CompareOperator, Expression as NomExpression, OrExpression, Term,
        depends_on::DependsOn, expression::CompareOperand, r#type::Type,
    },
    entry::Config,
    parse_kconfig,
    symbol::ConstantSymbol,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::{Path, PathBuf},
};
use tramplab_model::run::Arch;

/// Limit for nested files and blocks.
const DEPTH: usize = 100;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownOptions {
    pub symbols: BTreeMap<String, Symbol>,
    /// The options of each choice, by its index.
    pub choices: Vec<Vec<String>>,
}

impl KnownOptions {
    /// An option that is selected but never defined does not exist.
    pub fn defines(&self, option: &str) -> bool {
        self.symbols.get(option).is_some_and(|symbol| !symbol.definitions.is_empty())
    }

    /// Returns true if somebody is asked for the option in some configuration.
    pub fn has_prompt(&self, option: &str) -> bool {
        let symbol = self.symbols.get(option);
        symbol.is_some_and(|symbol| symbol.definitions.iter().any(|at| at.prompt.is_some()))
    }
}

/// How somebody is asked for an option.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedOption {
    /// False if it only follows from others.
    pub is_asked: bool,
    /// The number of its choice.
    pub choice: Option<usize>,
}

/// Returns how somebody is asked for these options of a tree. Leaves out those that it lacks.
pub fn asked(
    options: &BTreeSet<String>,
    tree: &Path,
    arch: Arch,
) -> Result<BTreeMap<String, AskedOption>, Unreadable> {
    KnownOptions::of_tree(tree, arch, |known| {
        let asked = |option: &String| {
            let definitions = &known.symbols.get(option)?.definitions;
            let choice = definitions.iter().find_map(|at| at.choice);
            let asked = AskedOption { is_asked: known.has_prompt(option), choice };
            (!definitions.is_empty()).then(|| (option.clone(), asked))
        };
        options.iter().filter_map(asked).collect()
    })
}

/// Leaves out each set option of a choice that a later one replaces: Kconfig would keep either.
pub fn without_replaced(
    wanted: &[WantedOption],
    tree: &Path,
    arch: Arch,
) -> Result<Vec<WantedOption>, Unreadable> {
    let is_set = |wanted: &&WantedOption| wanted.value == "y";
    let names = wanted.iter().filter(is_set).map(|wanted| wanted.option.clone()).collect();
    let asked = asked(&names, tree, arch)?;
    let choice = |wanted: &WantedOption| asked.get(&wanted.option).and_then(|asked| asked.choice);
    let last: BTreeMap<usize, &str> = wanted
        .iter()
        .filter(is_set)
        .filter_map(|wanted| Some((choice(wanted)?, wanted.option.as_str())))
        .collect();
    let is_kept = |wanted: &&WantedOption| {
        !is_set(wanted) || choice(wanted).is_none_or(|choice| last[&choice] == wanted.option)
    };
    Ok(wanted.iter().filter(is_kept).cloned().collect())
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbol {
    pub kind: Option<Kind>,
    pub definitions: Vec<Definition>,
    /// Options that select it, each with its conditions.
    pub selected_by: Vec<(String, Vec<Expression>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Tristate,
    Text,
    Number,
}

/// One definition of an option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    /// All must hold. Includes the conditions of enclosing blocks.
    pub depends: Vec<Expression>,
    /// None if the option has no prompt; else the conditions for the prompt.
    pub prompt: Option<Vec<Expression>>,
    /// The first one whose condition holds counts.
    pub defaults: Vec<Preset>,
    pub ranges: Vec<String>,
    pub choice: Option<usize>,
}

/// A default value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preset {
    pub value: Expression,
    pub condition: Option<Expression>,
}

impl KnownOptions {
    /// Returns what `work` finds in the options of a tree. Both run in a process of their own: the
    /// files are a stranger's, and the library has no limits.
    pub fn of_tree<T: Serialize + DeserializeOwned + Send>(
        tree: &Path,
        arch: Arch,
        work: impl FnOnce(&KnownOptions) -> T + Send,
    ) -> Result<T, Unreadable> {
        let sources = Sources::read(tree, arch)?;
        let found = isolated::run(|| KnownOptions::parse(&sources).map(|options| work(&options)));
        found.unwrap_or_else(|error| Err(Unreadable(error.to_string())))
    }

    pub(super) fn parse(sources: &Sources) -> Result<KnownOptions, Unreadable> {
        let mut files = sources.files.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let mut options = KnownOptions::default();
        let top = files.first_mut().map(mem::take).unwrap_or_default();
        options.add(top, &mut files, &Surrounding::default())?;
        Ok(options)
    }

    /// Adds entries. `files` has those of the files that they may source.
    fn add(
        &mut self,
        entries: Vec<Entry>,
        files: &mut [Vec<Entry>],
        around: &Surrounding,
    ) -> Result<(), Unreadable> {
        if around.depth > DEPTH {
            return Err(Unreadable(format!("files and blocks nest more than {DEPTH} deep")));
        }
        for entry in entries {
            match entry {
                Entry::Config(config) | Entry::MenuConfig(config) => self.define(config, around),
                Entry::If(block) => {
                    let mut within = around.within();
                    within.depends.push(convert(&block.condition));
                    self.add(block.entries, files, &within)?;
                }
                Entry::Menu(menu) => {
                    let mut within = around.within();
                    within.depends.extend(menu.depends_on.iter().map(dependency));
                    within.visible.extend(menu.visible.flatten().as_ref().map(convert));
                    self.add(menu.entries, files, &within)?;
                }
                Entry::Choice(choice) => {
                    let mut within = around.within();
                    within.choice = Some(self.choices.len());
                    self.choices.push(Vec::new());
                    for attribute in &choice.options {
                        match attribute {
                            Attribute::DependsOn(depends) => {
                                within.depends.push(dependency(depends))
                            }
                            Attribute::Prompt(prompt) => {
                                within.visible.extend(prompt.r#if.as_ref().map(convert))
                            }
                            Attribute::Type(of) => {
                                within.visible.extend(of.r#if.as_ref().map(convert))
                            }
                            _ => {}
                        }
                    }
                    self.add(choice.entries, files, &within)?;
                }
                Entry::Comment(comment) => {
                    // Each file is sourced once.
                    let file = sourced(&comment.prompt).and_then(|number| files.get_mut(number));
                    let entries = file.map(mem::take).unwrap_or_default();
                    self.add(entries, files, &around.within())?;
                }
                Entry::Source(_)
                | Entry::VariableAssignment(_)
                | Entry::FunctionCall(_)
                | Entry::Function(_)
                | Entry::MainMenu(_) => {}
            }
        }
        Ok(())
    }

    fn define(&mut self, config: Config, around: &Surrounding) {
        let mut definition = Definition {
            depends: around.depends.clone(),
            choice: around.choice,
            ..Definition::default()
        };
        let mut kind = None;
        let prompt = |condition: Option<&NomExpression>| {
            let mut visible = around.visible.clone();
            visible.extend(condition.map(convert));
            Some(visible)
        };
        let mut selects = Vec::new();
        for attribute in &config.attributes {
            match attribute {
                Attribute::DependsOn(depends) => definition.depends.push(dependency(depends)),
                Attribute::Prompt(at) => definition.prompt = prompt(at.r#if.as_ref()),
                Attribute::Range(range) => definition.ranges.push(range.to_string()),
                Attribute::Default(at) => {
                    definition.defaults.push(preset(&at.expression, at.r#if.as_ref()));
                }
                Attribute::Select(select) => {
                    let condition = select.r#if.as_ref().map(convert);
                    selects.push((select.symbol.clone(), condition.into_iter().collect()));
                }
                Attribute::Type(of) => {
                    let (this, text) = match &of.r#type {
                        Type::Bool(text) => (Kind::Bool, text.is_some()),
                        Type::Tristate(text) => (Kind::Tristate, text.is_some()),
                        Type::String(text) => (Kind::Text, text.is_some()),
                        Type::Hex(text) | Type::Int(text) => (Kind::Number, text.is_some()),
                        Type::DefBool(_) => (Kind::Bool, false),
                        Type::DefTristate(_) => (Kind::Tristate, false),
                    };
                    kind = Some(this);
                    if let Type::DefBool(value) | Type::DefTristate(value) = &of.r#type {
                        definition.defaults.push(preset(value, of.r#if.as_ref()));
                    }
                    if text {
                        definition.prompt = prompt(of.r#if.as_ref());
                    }
                }
                _ => {}
            }
        }
        if let Some(choice) = around.choice {
            self.choices[choice].push(config.symbol.clone());
        }
        for (selected, condition) in selects {
            self.symbols
                .entry(selected)
                .or_default()
                .selected_by
                .push((config.symbol.clone(), condition));
        }
        let symbol = self.symbols.entry(config.symbol).or_default();
        symbol.kind = kind.or(symbol.kind);
        symbol.definitions.push(definition);
    }
}

/// The conditions that a block imposes on its entries.
#[derive(Clone, Default)]
struct Surrounding {
    depends: Vec<Expression>,
    visible: Vec<Expression>,
    choice: Option<usize>,
    depth: usize,
}

impl Surrounding {
    fn within(&self) -> Surrounding {
        Surrounding { depth: self.depth + 1, ..self.clone() }
    }
}

/// Parses one file.
fn parse(file: &File) -> Result<Vec<Entry>, Unreadable> {
    let unknown = |line: u32| {
        let place = file.path.display();
        Unreadable(format!("no entry of a kind that is known at {place}:{line}"))
    };
    let input = KconfigFile::new(PathBuf::new(), file.path.clone());
    let (rest, kconfig) = parse_kconfig(KconfigInput::new_extra(&file.text, input))
        .map_err(|error| unknown(error.line))?;
    if rest.fragment().trim().is_empty() {
        Ok(kconfig.entries)
    } else {
        Err(unknown(rest.location_line()))
    }
}

fn preset(value: &NomExpression, condition: Option<&NomExpression>) -> Preset {
    Preset { value: convert(value), condition: condition.map(convert) }
}

fn dependency(depends: &DependsOn) -> Expression {
    let expression = convert(&depends.expression);
    match &depends.r#if {
        Some(condition) => Expression::Or(vec![convert(condition).not(), expression]),
        None => expression,
    }
}

fn convert(expression: &NomExpression) -> Expression {
    match expression {
        OrExpression::Term(term) => convert_and(term),
        OrExpression::Expression(parts) => Expression::Or(parts.iter().map(convert_and).collect()),
    }
}

fn convert_and(expression: &AndExpression) -> Expression {
    match expression {
        AndExpression::Term(term) => convert_term(term),
        AndExpression::Expression(parts) => {
            Expression::And(parts.iter().map(convert_term).collect())
        }
    }
}

fn convert_term(term: &Term) -> Expression {
    match term {
        Term::Not(atom) => convert_atom(atom).not(),
        Term::Atom(atom) => convert_atom(atom),
    }
}

fn convert_atom(atom: &Atom) -> Expression {
    match atom {
        Atom::Symbol(symbol) => convert_symbol(symbol),
        Atom::Macro(text) => Expression::Macro(text.to_string()),
        Atom::Parenthesis(inner) => convert(inner),
        Atom::Compare(compare) => {
            let operand = |operand: &CompareOperand| match operand {
                CompareOperand::Symbol(symbol) => Box::new(convert_symbol(symbol)),
                CompareOperand::Macro(text) => Box::new(Expression::Macro(text.to_string())),
            };
            let relation = match compare.operator {
                CompareOperator::GreaterThan => Relation::Greater,
                CompareOperator::GreaterOrEqual => Relation::GreaterOrEqual,
                CompareOperator::LowerThan => Relation::Less,
                CompareOperator::LowerOrEqual => Relation::LessOrEqual,
                CompareOperator::Equal => Relation::Equal,
                CompareOperator::NotEqual => Relation::NotEqual,
            };
            Expression::Compare(operand(&compare.left), relation, operand(&compare.right))
        }
    }
}

fn convert_symbol(symbol: &NomSymbol) -> Expression {
    match symbol {
        NomSymbol::NonConstant(name) if name.starts_with('$') => Expression::Macro(name.clone()),
        NomSymbol::NonConstant(name) => Expression::Symbol(name.clone()),
        NomSymbol::Constant(ConstantSymbol::String(text)) => Expression::Constant(text.clone()),
        NomSymbol::Constant(constant) => Expression::Constant(constant.to_string()),
    }
}
