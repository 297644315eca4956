// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of JSON Schema that KCIDB's schema and ours use. An unknown keyword is an error, so
//! that nothing is skipped.
//!
//! A library for JSON Schema would make the tests build most dependencies again, with other
//! features.

use regex::RegexBuilder;
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Lists the violations of the schema in a value, each with its place.
pub fn errors(root: &Value, value: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    check(root, root, value, "", &mut errors);
    errors
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, errors: &mut Vec<String>) {
    let none = serde_json::Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    for (word, rule) in schema.as_object().expect("a schema is an object") {
        let fits = match word.as_str() {
            "$schema" | "title" | "description" | "examples" | "$defs" => true,
            "$ref" => {
                let name = rule
                    .as_str()
                    .and_then(|place| place.strip_prefix("#/$defs/"))
                    .expect("a local one");
                check(root, &root["$defs"][name], value, at, errors);
                true
            }
            "type" => match rule.as_array() {
                Some(several) => several.iter().any(|one| is_of_type(value, one)),
                None => is_of_type(value, rule),
            },
            "const" => value == rule,
            "enum" => rule.as_array().expect("a list").contains(value),
            "minimum" => value.as_f64().is_none_or(|number| Some(number) >= rule.as_f64()),
            "maximum" => value.as_f64().is_none_or(|number| Some(number) <= rule.as_f64()),
            "minProperties" => {
                value.as_object().is_none_or(|object| object.len() as u64 >= rule.as_u64().unwrap())
            }
            "maxLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() as u64 <= rule.as_u64().unwrap()),
            "pattern" => {
                // The schema writes a zero byte as `\0`.
                let pattern =
                    RegexBuilder::new(rule.as_str().unwrap()).octal(true).build().unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "format" if rule == "uint32" => {
                value.as_u64().is_none_or(|number| u32::try_from(number).is_ok())
            }
            "format" if rule == "uint64" => !value.is_number() || value.is_u64(),
            "format" => value.as_str().is_none_or(|text| match rule.as_str().unwrap() {
                "date-time" => OffsetDateTime::parse(text, &Rfc3339).is_ok(),
                "uri" => text
                    .split_once("://")
                    .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty()),
                other => panic!("format {other}"),
            }),
            "required" => rule
                .as_array()
                .unwrap()
                .iter()
                .all(|key| value.get(key.as_str().unwrap()).is_some()),
            "additionalProperties" => {
                assert_eq!(rule, false);
                value
                    .as_object()
                    .is_none_or(|object| object.keys().all(|key| properties.contains_key(key)))
            }
            "properties" => {
                for (key, schema) in properties {
                    if let Some(value) = value.get(key) {
                        check(root, schema, value, &format!("{at}/{key}"), errors);
                    }
                }
                true
            }
            "items" => {
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, value, &format!("{at}/{index}"), errors);
                }
                true
            }
            other => panic!("the schema says `{other}`"),
        };
        if !fits {
            errors.push(format!("{at}: {word}: {rule}"));
        }
    }
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().expect("a type's name") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    }
}
