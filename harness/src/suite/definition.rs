// SPDX-License-Identifier: MIT OR Apache-2.0
//! The suite file, `configs/suites/*.yaml`. Its keys are documented in `docs/suites.md`.

use crate::{
    branch::Filter,
    config::{self, ConfigError},
    run::Row,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};
use tramplab_protocol::{Mechanism, message::Fault};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    pub name: String,
    pub description: String,
    /// Names of manifests in `kernels/`.
    pub kernels: Vec<String>,
    #[serde(default)]
    pub machine: Machine,
    pub tests: Vec<TestGroup>,
    #[serde(default)]
    pub budgets: Vec<Budget>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    pub cpus: u32,
    pub memory_mib: u32,
    /// Added to the kernel's command line.
    pub append: Vec<String>,
}

impl Default for Machine {
    fn default() -> Machine {
        // One CPU: nothing else can run between the traced function and the capture but an interrupt.
        Machine { cpus: 1, memory_mib: 1024, append: Vec::new() }
    }
}

/// Tests that share their parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TestGroup {
    LbrWaste {
        mechanisms: Mechanisms,
        /// Triggers recorded per cell.
        #[serde(default = "default_hits")]
        hits: u32,
    },
    Attach {
        mechanisms: Mechanisms,
        functions: Vec<u32>,
        rounds: u32,
        /// Chooses the functions.
        #[serde(default)]
        seed: u64,
    },
    Fault {
        faults: Vec<Fault>,
    },
}

fn default_hits() -> u32 {
    8
}

/// `all`, or a list.
#[derive(Clone, Debug)]
pub struct Mechanisms(pub Vec<Mechanism>);

impl<'de> Deserialize<'de> for Mechanisms {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Mechanisms;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`all` or a list of mechanisms")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Mechanisms, E> {
                match text {
                    "all" => Ok(Mechanisms(Mechanism::ALL.to_vec())),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Mechanisms, A::Error> {
                let mut list = Vec::new();
                while let Some(mechanism) = seq.next_element()? {
                    list.push(mechanism);
                }
                Ok(Mechanisms(list))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Upper bounds that turn a measurement into pass or fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The kernels it holds for; all of the run when left out.
    #[serde(default)]
    pub kernels: Option<Vec<String>>,
    /// Most records that may be wasted, on the modelled `intel-lbr`.
    pub wasted: BTreeMap<Row, BTreeMap<Filter, u32>>,
}

impl Budget {
    pub fn holds_for(&self, kernel: &str) -> bool {
        self.kernels.as_ref().is_none_or(|names| names.iter().any(|name| name == kernel))
    }
}

/// Reads a suite.
pub fn load(path: &Path) -> Result<Suite, ConfigError> {
    config::load(path)
}
