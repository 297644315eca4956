// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of traced functions, in suites and in the names of cells and metrics.

use arrayvec::ArrayString;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use tramplab_protocol::pattern::{self, NotAPattern, Pattern};

/// A function of the kernel image, as kallsyms names it. It fits into one file name, with the
/// mechanism before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FunctionName(ArrayString<LONGEST>);

const LONGEST: usize = 128;
/// Stands before the function in names of cells and metrics. No symbol of C has it.
const MARK: char = '@';

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAFunction {
    #[error(
        "`{0}` is a pattern, which only attach tests take; lbr_waste and trigger tests have cells \
         for each function: name them (a file with a name per line also does)"
    )]
    Pattern(String),
    #[error(
        "`{0}` names a module, which only attach tests take; lbr_waste and trigger tests trace \
         functions of the kernel image"
    )]
    Module(String),
    #[error(
        "`{0}` is no name of a function: expected up to {LONGEST} letters, digits, `_` and `.`, as \
         in __sys_bpf"
    )]
    Malformed(String),
}

impl FunctionName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits `fexit@__sys_bpf`. None if the part behind the mark is no name.
    pub(crate) fn split(name: &str) -> Option<(&str, Option<FunctionName>)> {
        match name.split_once(MARK) {
            Some((before, function)) => Some((before, Some(function.parse().ok()?))),
            None => Some((name, None)),
        }
    }
}

impl FromStr for FunctionName {
    type Err = NotAFunction;

    fn from_str(text: &str) -> Result<FunctionName, NotAFunction> {
        let shown = || text.chars().take(80).collect();
        if text.contains(['*', '?', '[']) {
            return Err(NotAFunction::Pattern(shown()));
        }
        if text.contains(':') {
            return Err(NotAFunction::Module(shown()));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let plain = text.chars().all(is_plain)
            && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        match ArrayString::from(text) {
            Ok(name) if plain => Ok(FunctionName(name)),
            _ => Err(NotAFunction::Malformed(shown())),
        }
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for FunctionName {
    type Error = NotAFunction;

    fn try_from(text: String) -> Result<FunctionName, NotAFunction> {
        text.parse()
    }
}

impl From<FunctionName> for String {
    fn from(name: FunctionName) -> String {
        name.0.as_str().to_owned()
    }
}

/// The functions that an attach test chooses from: a pattern, or the name of a list of patterns. It
/// has the characters of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Among(ArrayString<{ pattern::LONGEST }>);

impl Among {
    /// Splits `all@tcp_*`. None if the part behind the mark is no name.
    pub(crate) fn split(name: &str) -> Option<(&str, Option<Among>)> {
        match name.split_once(MARK) {
            Some((before, among)) => Some((before, Some(among.parse().ok()?))),
            None => Some((name, None)),
        }
    }
}

impl FromStr for Among {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Among, NotAPattern> {
        text.parse::<Pattern>()?;
        Ok(Among(ArrayString::from(text).expect("a pattern is short enough")))
    }
}

impl fmt::Display for Among {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for Among {
    type Error = NotAPattern;

    fn try_from(text: String) -> Result<Among, NotAPattern> {
        text.parse()
    }
}

impl From<Among> for String {
    fn from(among: Among) -> String {
        among.0.as_str().to_owned()
    }
}

/// `@__sys_bpf`; nothing without a function.
pub(crate) struct At<T>(pub Option<T>);

impl<T: fmt::Display> fmt::Display for At<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(function) => write!(f, "{MARK}{function}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_names_from_patterns_and_modules() {
        for name in ["__sys_bpf", "do_open.constprop.0", "_x"] {
            assert_eq!(name.parse::<FunctionName>().unwrap().as_str(), name);
        }
        let error = |text: &str| text.parse::<FunctionName>().unwrap_err();
        for text in ["tcp_*", "vfs_rea?", "[ab]"] {
            assert_eq!(error(text), NotAFunction::Pattern(text.to_owned()));
        }
        assert_eq!(error("ext4:ext4_read"), NotAFunction::Module("ext4:ext4_read".to_owned()));
        let long = "a".repeat(LONGEST + 1);
        for text in ["", "9p", "a b", "a/b", "a@b", "..", "a\n", &long] {
            assert!(matches!(error(text), NotAFunction::Malformed(_)), "{text}");
        }
    }
}
