// SPDX-License-Identifier: MIT OR Apache-2.0
//! A BPF program in place of the empty one: the user's, in its object file, or one that the agent
//! has.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{fmt, sync::Arc};

/// Bytes of the largest object. A request with it, in base64, fits into a frame.
pub const LARGEST: usize = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The name of its function in the object.
    pub name: String,
    /// The function or tracepoint in its section's name (`SEC("fentry/tcp_connect")`).
    pub target: Option<String>,
    /// The object's `license` section.
    pub license: String,
    /// Empty: the agent's object of shipped programs.
    pub object: Object,
    /// Values that replace those of the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub globals: Vec<Global>,
    /// Those of its object's prog arrays, of which it may use some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<Slot>,
    /// Programs in place of its functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Extension>,
}

impl Program {
    /// False for one that the agent has.
    pub fn is_of_user(&self) -> bool {
        !self.object.0.is_empty()
    }
}

/// A program that replaces a global function (`SEC("freplace")`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    pub function: String,
    /// The name of the program's function in the object.
    pub program: String,
}

/// A slot of a prog array that the object fills.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    pub array: String,
    pub index: u32,
    /// The name of the program's function in the object.
    pub program: String,
}

/// The value of a global variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Global {
    /// The section that holds it: `.rodata`.
    pub section: String,
    /// Its first byte in the section.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// The bytes of an object file: base64 in JSON.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Object(pub Arc<[u8]>);

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({} bytes)", self.0.len())
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        let bytes = BASE64_STANDARD.decode(String::deserialize(deserializer)?);
        Ok(Object(bytes.map_err(D::Error::custom)?.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[test]
    fn the_largest_object_fits_into_a_frame() {
        let object = Object(vec![0xa5; LARGEST].into());
        let bytes = frame::encode(&object).unwrap();
        assert_eq!(frame::read::<Object>(&mut &bytes[..]).unwrap(), Some(object));
    }

    #[test]
    fn rejects_bytes_that_are_no_base64() {
        assert!(serde_json::from_str::<Object>("\"AA=\"").is_err());
    }
}
