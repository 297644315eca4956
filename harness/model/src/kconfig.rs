// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel's configuration as a map of its options.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The options that are set; `CONFIG_` is left off their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kconfig(BTreeMap<String, String>);

/// A required option that is not built in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub option: &'static str,
    /// It is built as a module. Nothing loads modules in the guest.
    pub module: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CONFIG_{}", self.option)?;
        if self.module { f.write_str(" (a module is not enough: it must be `y`)") } else { Ok(()) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line} is no kernel configuration: `{text}`; expected `CONFIG_NAME=value` or a comment"
)]
pub struct NotKconfig {
    pub line: usize,
    pub text: String,
}

impl Kconfig {
    pub fn parse(text: &str) -> Result<Kconfig, NotKconfig> {
        let mut options = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let option = line.strip_prefix("CONFIG_").and_then(|rest| rest.split_once('='));
            let Some((name, value)) = option else {
                return Err(NotKconfig { line: index + 1, text: line.chars().take(80).collect() });
            };
            options.insert(name.to_owned(), value.trim_matches('"').to_owned());
        }
        // Reject an empty file: every kernel has options.
        if options.is_empty() {
            return Err(NotKconfig { line: 1, text: String::new() });
        }
        Ok(Kconfig(options))
    }

    /// The value: `y`, `m`, a number or the text of a string. None when it is not set.
    pub fn get(&self, option: &str) -> Option<&str> {
        self.0.get(option).map(String::as_str)
    }

    /// Options whose values differ, with both values.
    pub fn differences<'a>(
        &'a self,
        other: &'a Kconfig,
    ) -> Vec<(&'a str, Option<&'a str>, Option<&'a str>)> {
        let names: BTreeSet<&str> =
            self.0.keys().chain(other.0.keys()).map(String::as_str).collect();
        let both = |name: &'a str| (name, self.get(name), other.get(name));
        names.into_iter().map(both).filter(|(_, a, b)| a != b).collect()
    }

    /// The options that are not built in.
    pub fn missing(&self, options: &[&'static str]) -> Vec<Missing> {
        let missing = |option: &&'static str| match self.get(option) {
            Some("y") => None,
            value => Some(Missing { option, module: value == Some("m") }),
        };
        options.iter().filter_map(missing).collect()
    }
}
