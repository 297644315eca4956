// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of an object that can replace its global functions.

use super::object::{self, File, code};
use crate::symbols::named;
use ::object::{Object as _, ObjectSymbol as _};
use std::collections::{BTreeMap, BTreeSet};

/// The replaceable functions of an object, and its extensions.
#[derive(Debug, Default)]
pub struct Extensions {
    functions: BTreeSet<String>,
    /// By name, with the function in the section's name.
    programs: BTreeMap<String, Option<String>>,
}

impl Extensions {
    /// None of a damaged object.
    pub fn of(bytes: &[u8]) -> Extensions {
        let mut found = Extensions::default();
        let Ok(file) = File::parse(bytes) else { return found };
        for (symbol, name) in named(file.symbols(), bytes.len()) {
            let Ok(Some(section)) = code(&file, &symbol) else { continue };
            if section == object::FUNCTIONS {
                if symbol.is_global() {
                    found.functions.insert(name.to_owned());
                }
                continue;
            }
            if let Some(function) = object::extended(section) {
                let function = Some(function.to_owned()).filter(|name| !name.is_empty());
                found.programs.insert(name.to_owned(), function);
            }
        }
        found
    }

    /// The functions that a program of the object can replace.
    pub fn replaceable(&self) -> impl Iterator<Item = &str> {
        let wanted: BTreeSet<Option<&str>> = self.programs.values().map(Option::as_deref).collect();
        let all = self.functions.iter().map(String::as_str);
        all.filter(move |function| wanted.contains(&None) || wanted.contains(&Some(function)))
    }

    pub fn is_function(&self, name: &str) -> bool {
        self.functions.contains(name)
    }

    /// True if the program can replace the function.
    pub fn can(&self, program: &str, function: &str) -> bool {
        let section = self.programs.get(program);
        section.is_some_and(|of| of.as_deref().is_none_or(|of| of == function))
    }

    /// The programs that can replace a function.
    pub fn of_function(&self, function: &str) -> Vec<&str> {
        let programs = self.programs.keys().map(String::as_str);
        programs.filter(|program| self.can(program, function)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::object::tests::elf;

    #[test]
    fn finds_functions_and_their_extensions() {
        let programs = [
            (".text", "policy", 2),
            ("kprobe", "p", 2),
            ("freplace/policy", "a", 2),
            ("?freplace", "b", 2),
            ("freplace/other", "c", 2),
        ];
        let found = Extensions::of(&elf(&programs).bytes());
        let names = ["policy", "p", "a"].map(|name| found.is_function(name));
        assert_eq!(names, [true, false, false]);
        assert_eq!(found.of_function("policy"), ["a", "b"]);
        assert!(!found.can("c", "policy") && !found.can("p", "policy"));
        assert!(!Extensions::of(b"text").is_function("policy"));
    }
}
