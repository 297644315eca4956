// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of functions that a measurement attaches to.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, num::NonZeroU32, str::FromStr};

/// A number, or all functions that the mechanism can attach to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Functions {
    Count(NonZeroU32),
    /// Several links, each to so many functions of its own. For multi mechanisms only.
    Links {
        links: NonZeroU32,
        each: NonZeroU32,
    },
    All,
}

const ALL: &str = "all";
const EXPECTED: &str = "a number of functions above 0, LINKSxFUNCTIONS such as 12x1000, or `all`";
/// The largest number of functions. More do not fit into a kernel.
const MOST: u64 = u32::MAX as u64;

/// Functions to attach to at once on the user's own machine, and programs on one function, unless
/// the user allows more: each of their hits runs a program there.
pub const MOST_HERE: u32 = 100;

impl Functions {
    /// The number of functions of all links. None for all functions.
    pub fn count(self) -> Option<NonZeroU32> {
        match self {
            Functions::Count(count) => Some(count),
            Functions::Links { links, each } => Some(links.saturating_mul(each)),
            Functions::All => None,
        }
    }

    /// The number of links that share the functions, by a multi mechanism.
    pub fn links(self) -> u32 {
        match self {
            Functions::Links { links, .. } => links.get(),
            Functions::Count(_) | Functions::All => 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not {EXPECTED}")]
pub struct NotFunctions(String);

impl FromStr for Functions {
    type Err = NotFunctions;

    fn from_str(text: &str) -> Result<Functions, NotFunctions> {
        let parsed = match text.split_once('x') {
            _ if text == ALL => Some(Functions::All),
            Some((links, each)) => several(number(links), number(each)),
            None => number(text).map(Functions::Count),
        };
        parsed.ok_or_else(|| NotFunctions(text.chars().take(80).collect()))
    }
}

fn several(links: Option<NonZeroU32>, each: Option<NonZeroU32>) -> Option<Functions> {
    let (links, each) = (links?, each?);
    let fits = u64::from(links.get()) * u64::from(each.get()) <= MOST;
    match links.get() {
        1 => Some(Functions::Count(each)),
        _ => fits.then_some(Functions::Links { links, each }),
    }
}

/// Parses digits. Rust's own parser also takes a sign.
pub(crate) fn number(text: &str) -> Option<NonZeroU32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}

impl fmt::Display for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Functions::Count(count) => f.pad(&count.to_string()),
            Functions::Links { links, each } => f.pad(&format!("{links}x{each}")),
            Functions::All => f.pad(ALL),
        }
    }
}

impl Serialize for Functions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Functions::Count(count) => serializer.serialize_u32(count.get()),
            Functions::Links { .. } | Functions::All => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Functions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Functions, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Functions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Functions, E> {
                let count = u32::try_from(count).ok().and_then(NonZeroU32::new);
                count
                    .map(Functions::Count)
                    .ok_or_else(|| E::custom("expected a number of functions above 0"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Functions, E> {
                let unexpected = || E::invalid_value(de::Unexpected::Str(text), &self);
                // A number is no text.
                let parsed = text.parse().ok().filter(|_| text.parse::<u32>().is_err());
                parsed.ok_or_else(unexpected)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).unwrap()
    }

    #[test]
    fn accepts_a_number_links_or_all() {
        let count = |number| Functions::Count(some(number));
        let twelve = Functions::Links { links: some(12), each: some(1000) };
        for (text, functions) in [
            ("1", count(1)),
            ("40000", count(40000)),
            ("\"12x1000\"", twelve),
            ("\"all\"", Functions::All),
        ] {
            assert_eq!(serde_json::from_str::<Functions>(text).unwrap(), functions);
            assert_eq!(serde_json::to_string(&functions).unwrap(), text);
            assert_eq!(functions.to_string().parse(), Ok(functions));
        }
        for bad in ["0", "-1", "\"many\"", "5000000000", "1.5", "\"7\"", "\"0x8\"", "\"2x\""] {
            assert!(serde_json::from_str::<Functions>(bad).is_err(), "{bad}");
        }
        for bad in ["", "0", "+1", "x", "2x0", "2x+1", "2x3x4", "2xall", "65536x65536", "1e3"] {
            assert_eq!(bad.parse::<Functions>(), Err(NotFunctions(bad.to_owned())));
        }
        assert_eq!("1x7".parse(), Ok(count(7)));
        assert!(count(u32::MAX) < twelve && twelve < Functions::All);
        assert_eq!((twelve.count(), twelve.links()), (Some(some(12_000)), 12));
        assert_eq!((Functions::All.count(), Functions::All.links()), (None, 1));
    }
}
