// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists, numbers and texts in suite files.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, num::NonZeroU32};
use tramplab_protocol::Mechanism;

pub(crate) const fn nonzero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("a constant above 0")
}

/// A text that is not blank.
pub(crate) fn words<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.trim() {
        "" => Err(serde::de::Error::custom("it is empty; expected words")),
        words => Ok(words.to_owned()),
    }
}

/// `all` (of the kernel), `user` (of user space), or a list of at least one mechanism.
#[derive(Clone, Debug)]
pub struct Mechanisms(pub Vec<Mechanism>);

impl JsonSchema for Mechanisms {
    fn schema_name() -> Cow<'static, str> {
        "Mechanisms".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`all` (of the kernel), `user` (of user space), or a list.",
            "anyOf": [
                { "type": "string", "enum": ["all", "user"] },
                {
                    "type": "array",
                    "items": generator.subschema_for::<Mechanism>(),
                    "minItems": 1,
                },
            ],
        })
    }
}

impl Serialize for Mechanisms {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Mechanisms {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Mechanisms;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`all`, `user` or a list of at least one mechanism")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Mechanisms, E> {
                match text {
                    "all" => Ok(Mechanisms(Mechanism::KERNEL.to_vec())),
                    "user" => Ok(Mechanisms(Mechanism::USER.to_vec())),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<Mechanisms, A::Error> {
                let mut list = Vec::new();
                while let Some(mechanism) = seq.next_element()? {
                    list.push(mechanism);
                }
                if list.is_empty() {
                    return Err(serde::de::Error::invalid_length(0, &self));
                }
                Ok(Mechanisms(list))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Rejects an empty list, as it would run nothing and pass.
pub(crate) fn filled<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() {
        return Err(serde::de::Error::invalid_length(0, &"at least one entry"));
    }
    Ok(list)
}
