// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about a measurement that its numbers do not show.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Remark {
    /// The object left an attribute of a map to its own user space, and the agent set it.
    MapSet {
        #[serde(deserialize_with = "crate::message::name")]
        map: String,
        attribute: MapAttribute,
        value: u32,
    },
    /// A map that the program uses had no entries after the recorded hits.
    MapEmpty {
        #[serde(deserialize_with = "crate::message::name")]
        map: String,
    },
    /// The kernel did not run the program for so many hits, by its own count.
    Missed { hits: u64, by: Missing },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MapAttribute {
    KeySize,
    ValueSize,
    MaxEntries,
}

/// The kernel's count of missed hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// `recursion_misses`: the program, or another one, ran on that CPU.
    Program,
    /// `nmissed`: the probe was being handled on that CPU, or had no room for another return.
    Probe,
}

impl fmt::Display for MapAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapAttribute::KeySize => "key_size",
            MapAttribute::ValueSize => "value_size",
            MapAttribute::MaxEntries => "max_entries",
        })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Missing::Program => "recursion_misses",
            Missing::Probe => "nmissed",
        })
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::MapSet { map, attribute, value } => write!(
                f,
                "the map {map} got {attribute} {value}, as the object leaves it to its loader"
            ),
            Remark::MapEmpty { map } => {
                write!(f, "the program's map {map} was empty after the recorded hits")
            }
            Remark::Missed { hits, by } => write!(
                f,
                "the kernel did not run the program for {hits} hits ({by}) while it was attached"
            ),
        }
    }
}
