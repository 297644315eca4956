// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that the user brings: their names in cells and metrics, and their facts in `run.json`.

use arrayvec::ArrayString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};
use tramplab_protocol::Mechanism;

/// The name of a BPF program: that of its function. It fits into one file name, with the mechanism
/// before it and the traced function behind it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength" = LONGEST))]
pub struct ProgramName(ArrayString<LONGEST>);

const LONGEST: usize = 64;
/// Stands before the program in names of cells and metrics. No symbol of C has it.
pub(crate) const OF: char = '=';

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a program: expected up to {LONGEST} letters, digits and `_`, as in \
     on_connect"
)]
pub struct NotAProgram(String);

impl ProgramName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProgramName {
    type Err = NotAProgram;

    fn from_str(text: &str) -> Result<ProgramName, NotAProgram> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let plain = text.chars().all(is_plain)
            && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        match ArrayString::from(text) {
            Ok(name) if plain => Ok(ProgramName(name)),
            _ => Err(NotAProgram(text.chars().take(80).collect())),
        }
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

tramplab_protocol::by_text!(ProgramName, NotAProgram);

/// A program that the run measured instead of the harness' own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub name: ProgramName,
    pub mechanism: Mechanism,
    /// The object file, as the command line or the suite names it.
    pub file: String,
    /// SHA-256 of the object file. A copy is `programs/SHA256.bpf.o` in the run's folder.
    pub sha256: String,
    /// Instructions in the object, before the kernel translates them. Those of functions that it
    /// calls are not included.
    pub instructions: u32,
    /// Values of its global variables, where they are not those of the object, and the programs that
    /// replace its global functions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub globals: BTreeMap<String, String>,
}

impl Program {
    /// True if both are the same code with the same values.
    pub fn is_same(&self, other: &Program) -> bool {
        (&self.sha256, &self.globals) == (&other.sha256, &other.globals)
    }

    /// `, loops=6, verbose=true`; nothing if no value was given.
    pub fn given(&self) -> String {
        self.globals.iter().map(|(name, value)| format!(", {name}={value}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_values_make_another_program() {
        let program = |globals: &[(&str, &str)]| Program {
            name: "p".parse().unwrap(),
            mechanism: Mechanism::Fentry,
            file: "p.bpf.o".to_owned(),
            sha256: "ab".to_owned(),
            instructions: 2,
            globals: globals.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        };
        let (without, with) = (program(&[]), program(&[("ms", "5"), ("all", "true")]));
        assert!(with.is_same(&with) && !with.is_same(&without));
        assert!(!with.is_same(&program(&[("ms", "6"), ("all", "true")])));
        assert_eq!((without.given(), with.given()), (String::new(), ", all=true, ms=5".to_owned()));
        // Runs before this field have no values.
        let text = serde_json::to_string(&without).unwrap();
        assert!(!text.contains("globals"), "{text}");
        assert_eq!(serde_json::from_str::<Program>(&text).unwrap(), without);
    }

    #[test]
    fn names_programs_as_c_does() {
        for name in ["on_connect", "_x9", &"a".repeat(LONGEST)] {
            assert_eq!(name.parse::<ProgramName>().unwrap().as_str(), name);
        }
        for name in ["", "9p", "a.b", "a/b", "a=b", "a@b", "ä", "a*", &"a".repeat(LONGEST + 1)] {
            assert!(name.parse::<ProgramName>().is_err(), "{name}");
        }
    }
}
