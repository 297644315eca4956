// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of functions that a measurement attaches to.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, num::NonZeroU32};

/// A number, or all functions that the mechanism can attach to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Functions {
    Count(NonZeroU32),
    All,
}

const ALL: &str = "all";

impl fmt::Display for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Functions::Count(count) => f.pad(&count.to_string()),
            Functions::All => f.pad(ALL),
        }
    }
}

impl Serialize for Functions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Functions::Count(count) => serializer.serialize_u32(count.get()),
            Functions::All => serializer.serialize_str(ALL),
        }
    }
}

impl<'de> Deserialize<'de> for Functions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Functions, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Functions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of functions above 0, or `all`")
            }
            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Functions, E> {
                let count = u32::try_from(count).ok().and_then(NonZeroU32::new);
                count
                    .map(Functions::Count)
                    .ok_or_else(|| E::custom("expected a number of functions above 0"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Functions, E> {
                match text {
                    ALL => Ok(Functions::All),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_a_number_or_all() {
        let count = |n| Functions::Count(NonZeroU32::new(n).unwrap());
        for (text, functions) in
            [("1", count(1)), ("40000", count(40000)), ("\"all\"", Functions::All)]
        {
            assert_eq!(serde_json::from_str::<Functions>(text).unwrap(), functions);
            assert_eq!(serde_json::to_string(&functions).unwrap(), text);
        }
        for bad in ["0", "-1", "\"many\"", "5000000000", "1.5"] {
            assert!(serde_json::from_str::<Functions>(bad).is_err(), "{bad}");
        }
        assert!(count(u32::MAX) < Functions::All);
    }
}
