// SPDX-License-Identifier: MIT OR Apache-2.0
//! Published numbers of a series: of a real machine, before and after.

use crate::{arch::Arch, kinds::Metric};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The numbers of one publication, of one machine in one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Title, author, date and message-id.
    pub source: String,
    /// Kernel, CPU and configuration, as its author names them.
    pub machine: String,
    /// The architecture of the machine.
    #[serde(default = "x86_64")]
    pub arch: Arch,
    /// The modelled CPU that is nearest, by its name in `configs/cpus/`. None for numbers that do
    /// not depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The same configuration by axes: `mitigations: "off"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub axes: BTreeMap<String, String>,
    pub unit: Unit,
    #[schemars(length(min = 1))]
    pub rows: Vec<Row>,
}

fn x86_64() -> Arch {
    Arch::X86_64
}

/// One number before and after the series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its counterpart here: a metric, such as `lbr_waste.fexit.any`, or a hit with all its
    /// costs: `trigger.fexit`.
    pub of: String,
    /// Without the series, in the publication's unit.
    pub before: f64,
    /// With it.
    pub after: f64,
    /// Why it differs here, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The unit of published numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unit {
    /// Million hits per second.
    #[serde(rename = "M/s")]
    MillionHits,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Wasted branch records.
    #[serde(rename = "records")]
    Records,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::MillionHits => "M/s",
            Unit::Seconds => "s",
            Unit::Nanoseconds => "ns",
            Unit::Records => "records",
        }
    }

    pub fn more_is_better(self) -> bool {
        self == Unit::MillionHits
    }

    /// Numbers that are the same at every run.
    pub fn is_exact(self) -> bool {
        self == Unit::Records
    }
}

impl Row {
    /// The metrics that may stand for it, the nearest to hardware first. Empty if it names none.
    pub fn metrics(&self) -> Vec<Metric> {
        let named = |suffix: &&str| format!("{}.{suffix}", self.of).parse().ok();
        let of_hit = ["estimated_cycles", "instructions"];
        match self.of.parse() {
            Ok(metric) => vec![metric],
            Err(_) => of_hit.iter().filter_map(named).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_a_metric_or_a_hit() {
        let row = |of: &str| Row { of: of.to_owned(), before: 1.0, after: 2.0, why: None };
        let names = |of: &str| -> Vec<String> {
            row(of).metrics().iter().map(ToString::to_string).collect()
        };
        assert_eq!(names("lbr_waste.fexit.any"), ["lbr_waste.fexit.any"]);
        let hit = ["trigger.fexit.estimated_cycles", "trigger.fexit.instructions"];
        assert_eq!(names("trigger.fexit"), hit);
        for unknown in ["trigger.nothing", "fexit", ""] {
            assert_eq!(names(unknown), Vec::<String>::new(), "{unknown}");
        }
    }
}
