// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options that a tree's Kconfig files define. Only this module uses the parser library.

use super::expression::{Expression, Relation};
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
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::Read,
    path::{Component, Path, PathBuf},
    thread,
};
use tramplab_model::run::Arch;

/// 6.12 has 1700 files with 6 MiB in all; the largest has 100 KiB.
const FILES: usize = 20_000;
const FILE_SIZE: u64 = 4 << 20;
/// Limit for nested files, blocks and parentheses: the library recurses for each.
const DEPTH: usize = 100;
/// Help texts contain lines that look like the start of a block.
const BLOCKS: usize = 2000;
const STACK: usize = 512 << 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read this tree's Kconfig files: {0}")]
pub struct Unreadable(String);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub symbols: BTreeMap<String, Symbol>,
    /// The options of each choice, by its index.
    pub choices: Vec<Vec<String>>,
}

impl Options {
    /// Returns true if somebody is asked for the option in some configuration.
    pub fn has_prompt(&self, option: &str) -> bool {
        let symbol = self.symbols.get(option);
        symbol.is_some_and(|symbol| symbol.definitions.iter().any(|at| at.prompt.is_some()))
    }
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

impl Options {
    /// Reads all Kconfig files of one architecture, from the top one on.
    pub fn read(tree: &Path, arch: Arch) -> Result<Options, Unreadable> {
        let source_arch = match arch {
            Arch::X86_64 => "x86",
            Arch::Arm64 => "arm64",
        };
        let mut visited = 0;
        check(tree, Path::new("Kconfig"), source_arch, 0, &mut visited)?;
        let tree = tree.to_owned();
        let read = move || {
            let variables = HashMap::from([("SRCARCH", source_arch)]);
            let top = PathBuf::from("Kconfig");
            let file = KconfigFile::new_with_vars(tree, top, &variables, &HashMap::new());
            let text = file.read_to_string().map_err(|error| Unreadable(error.to_string()))?;
            let (rest, kconfig) =
                parse_kconfig(KconfigInput::new_extra(&text, file)).map_err(|error| {
                    Unreadable(format!(
                        "no entry of a kind that is known at {}:{}",
                        error.filename.display(),
                        error.line
                    ))
                })?;
            if !rest.fragment().trim().is_empty() {
                return Err(Unreadable(format!(
                    "no entry of a kind that is known at Kconfig:{}",
                    rest.location_line()
                )));
            }
            let mut options = Options::default();
            options.add(kconfig.entries, &Surrounding::default());
            Ok(options)
        };
        let thread = thread::Builder::new().stack_size(STACK).spawn(read);
        let thread = thread.map_err(|error| Unreadable(error.to_string()))?;
        thread.join().unwrap_or_else(|_| Err(Unreadable("the parser has a bug".to_owned())))
    }

    fn add(&mut self, entries: Vec<Entry>, around: &Surrounding) {
        for entry in entries {
            match entry {
                Entry::Config(config) | Entry::MenuConfig(config) => self.define(config, around),
                Entry::If(block) => {
                    let mut within = around.clone();
                    within.depends.push(convert(&block.condition));
                    self.add(block.entries, &within);
                }
                Entry::Menu(menu) => {
                    let mut within = around.clone();
                    within.depends.extend(menu.depends_on.iter().map(dependency));
                    within.visible.extend(menu.visible.flatten().as_ref().map(convert));
                    self.add(menu.entries, &within);
                }
                Entry::Choice(choice) => {
                    let mut within = around.clone();
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
                    self.add(choice.entries, &within);
                }
                Entry::Source(source) => {
                    for kconfig in source.kconfigs {
                        self.add(kconfig.entries, around);
                    }
                }
                Entry::Comment(_)
                | Entry::VariableAssignment(_)
                | Entry::FunctionCall(_)
                | Entry::Function(_)
                | Entry::MainMenu(_) => {}
            }
        }
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

/// Checks that the library, which has no limits, can safely parse a tree: a series that adds
/// `source "Kconfig"` to Kconfig must not end the process.
fn check(
    tree: &Path,
    file: &Path,
    source_arch: &str,
    depth: usize,
    visited: &mut usize,
) -> Result<(), Unreadable> {
    let refused = |why: String| Err(Unreadable(format!("{}: {why}", file.display())));
    let is_plain =
        file.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !is_plain {
        return refused("the path leads outside the tree".to_owned());
    }
    *visited += 1;
    if depth > DEPTH || *visited > FILES {
        return refused(format!("more than {DEPTH} files deep, or more than {FILES} files in all"));
    }
    let mut text = String::new();
    let path = tree.join(file);
    // A link could lead to a device.
    match fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_file() && metadata.len() <= FILE_SIZE => {}
        Ok(_) => return refused("expected a file of at most 4 MiB".to_owned()),
        // Perhaps only a line of a help text. Otherwise the library reports the missing file.
        Err(_) => return Ok(()),
    }
    let opened =
        fs::File::open(&path).and_then(|file| file.take(FILE_SIZE).read_to_string(&mut text));
    if let Err(error) = opened {
        return refused(error.to_string());
    }
    let mut blocks = 0usize;
    let mut parentheses = 0usize;
    for line in text.lines() {
        let line = line.trim();
        if ["if ", "menu ", "choice"].iter().any(|word| line.starts_with(word)) {
            blocks += 1;
        } else if ["endif", "endmenu", "endchoice"].iter().any(|word| line.starts_with(word)) {
            blocks = blocks.saturating_sub(1);
        }
        parentheses += line.matches(['(', '!']).count();
        if blocks > BLOCKS || parentheses > DEPTH {
            return refused("blocks or conditions nest too deep".to_owned());
        }
        if !line.ends_with('\\') {
            parentheses = 0;
        }
        if let Some(rest) = line.strip_prefix("source") {
            let name = rest.trim().trim_matches('"').replace("$(SRCARCH)", source_arch);
            if rest.starts_with([' ', '\t', '"']) && !name.is_empty() {
                check(tree, &PathBuf::from(name), source_arch, depth + 1, visited)?;
            }
        }
    }
    Ok(())
}
