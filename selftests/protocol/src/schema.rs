// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regular expressions of names, for JSON Schemas. They use only what ECMAScript, Python and Rust
//! read alike. Each accepts every name that its parser accepts. It accepts more only where this
//! says so.

use crate::{Functions, Mechanism};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

/// A number above 0. Numbers beyond `u32` fit too.
const NUMBER: &str = "0*[1-9][0-9]*";
/// From 1 to 255.
const FEW: &str = "0*(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]?)";
/// Two links or more, with so many functions each.
const LINKS: &str = "0*([2-9]|[1-9][0-9]+)x0*[1-9][0-9]*";

fn one_of(names: impl Iterator<Item = Mechanism>) -> String {
    let names: Vec<String> = names.map(|name| name.name().replace('.', "[.]")).collect();
    format!("({})", names.join("|"))
}

/// [`crate::Beside`].
pub(crate) fn beside() -> String {
    let kernel = || Mechanism::KERNEL.into_iter();
    let (all, multi) = (one_of(kernel()), one_of(kernel().filter(|one| one.is_multi())));
    let others = format!("{all}:(all|(0*1x)?{NUMBER})|{multi}:{LINKS}");
    format!("^(livepatch|function_tracer(_elsewhere|:{FEW})?|({FEW}x)?{all}|{others})$")
}

/// [`crate::pattern::Pattern`]. Misplaced brackets and asterisks fit too.
pub(crate) fn pattern() -> String {
    let part = "[A-Za-z0-9_*?!\\[\\]-][A-Za-z0-9_.*?!\\[\\]-]*";
    format!("^({part}:)?{part}$")
}

impl JsonSchema for Functions {
    fn schema_name() -> Cow<'static, str> {
        "Functions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of functions; LINKSxFUNCTIONS for multi mechanisms, several \
                            links with so many functions each; or `all`.",
            "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": u32::MAX },
                { "type": "string", "pattern": format!("^(all|{NUMBER}x{NUMBER})$") },
            ],
        })
    }
}
