// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a suite: the same for all architectures, or each architecture's own.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use std::{borrow::Cow, collections::BTreeMap, fmt};
use tramplab_model::run::Arch;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Kernels {
    Same(Vec<String>),
    Own(BTreeMap<Arch, Vec<String>>),
}

impl Kernels {
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let (same, own) = match self {
            Kernels::Same(names) => (Some(names), None),
            Kernels::Own(own) => (None, Some(own.values())),
        };
        same.into_iter().chain(own.into_iter().flatten()).flatten()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }
}

impl<'de> Deserialize<'de> for Kernels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Kernels, D::Error> {
        struct ListOrMap;

        impl<'de> Visitor<'de> for ListOrMap {
            type Value = Kernels;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of at least one kernel, or one for each architecture")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Kernels, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                filled(names.len(), &self)?;
                Ok(Kernels::Same(names))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kernels, A::Error> {
                let mut own = BTreeMap::new();
                while let Some((arch, names)) = map.next_entry::<Arch, Vec<String>>()? {
                    filled(names.len(), &self)?;
                    if own.insert(arch, names).is_some() {
                        return Err(A::Error::custom(format!("{arch} is named twice")));
                    }
                }
                filled(own.len(), &self)?;
                Ok(Kernels::Own(own))
            }
        }

        fn filled<E: Error>(length: usize, expected: &ListOrMap) -> Result<(), E> {
            if length == 0 { Err(E::invalid_length(0, expected)) } else { Ok(()) }
        }

        deserializer.deserialize_any(ListOrMap)
    }
}

impl JsonSchema for Kernels {
    fn schema_name() -> Cow<'static, str> {
        "Kernels".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let list = json_schema!({ "type": "array", "items": { "type": "string" }, "minItems": 1 });
        let own: BTreeMap<_, _> = Arch::ALL.map(|arch| (arch.name(), &list)).into();
        json_schema!({
            "description": "Names of manifests: a list, or one for each architecture.",
            "anyOf": [list, {
                "type": "object",
                "properties": own,
                "additionalProperties": false,
                "minProperties": 1,
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tramplab_host::config;

    #[test]
    fn reads_a_list_or_one_for_each_architecture() {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let own = [(Arch::X86_64, list(&["6.12"])), (Arch::Arm64, list(&["7.2", "a"]))];
        for (text, expected) in [
            ("[\"6.12\", a]", Ok(Kernels::Same(list(&["6.12", "a"])))),
            ("{x86_64: [\"6.12\"], arm64: [\"7.2\", a]}", Ok(Kernels::Own(own.into()))),
            ("[]", Err("invalid length 0")),
            ("{}", Err("invalid length 0")),
            ("{arm64: []}", Err("invalid length 0")),
            ("{riscv: [a]}", Err("riscv")),
            ("a", Err("expected a list of at least one kernel, or one for each architecture")),
        ] {
            match (config::parse::<Kernels>(text, Path::new("k")), expected) {
                (Ok(found), Ok(expected)) => {
                    assert_eq!(found, expected, "{text}");
                    let json = serde_json::to_string(&found).unwrap();
                    assert_eq!(serde_json::from_str::<Kernels>(&json).unwrap(), found, "{json}");
                }
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{text}: {error}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
