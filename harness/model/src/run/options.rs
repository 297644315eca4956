// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of the command that made a run, as data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Options by their long names without dashes, with absolute paths. A flag has no values. `--` has
/// the words without an option: names of cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct GivenOptions(pub BTreeMap<String, Vec<String>>);

/// The name of the words without an option.
pub const BARE: &str = "--";

impl GivenOptions {
    /// The words that a command line has behind the command's name.
    pub fn words(&self) -> Vec<String> {
        let options = self.0.iter().filter(|(name, _)| *name != BARE);
        let mut words: Vec<String> =
            options.flat_map(|(name, values)| option_words(name, values)).collect();
        if let Some(bare) = self.0.get(BARE) {
            words.push(BARE.to_owned());
            words.extend(bare.iter().cloned());
        }
        words
    }
}

/// The words of one option.
pub fn option_words(name: &str, values: &[String]) -> Vec<String> {
    match values {
        [] => vec![format!("--{name}")],
        values => values.iter().map(|value| format!("--{name}={value}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_flags_values_and_bare_words() {
        for (json, expected) in [
            (r"{}", ""),
            (
                r#"{"each-patch": [], "arch": ["arm64", "x86_64"]}"#,
                "--arch=arm64 --arch=x86_64 --each-patch",
            ),
            (r#"{"suite": ["ci"], "--": ["fexit", "-x"]}"#, "--suite=ci -- fexit -x"),
        ] {
            let options: GivenOptions = serde_json::from_str(json).unwrap();
            assert_eq!(options.words().join(" "), expected);
            assert_eq!(
                serde_json::to_value(&options).unwrap(),
                serde_json::from_str::<serde_json::Value>(json).unwrap()
            );
        }
    }
}
