// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of JSON Schema that our schemas use. An unknown keyword is an error, so
//! that nothing is skipped.
//!
//! The library `jsonschema` would make the tests build most dependencies again, with other
//! features: it turns on `float_roundtrip` of serde_json, with which tests would read numbers in
//! another way than the program.

use regex::Regex;
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Lists the violations of the schema in a value, each with its place.
pub fn errors(root: &Value, value: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    check(root, root, value, "", &mut errors);
    errors
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, errors: &mut Vec<String>) {
    let Some(rules) = schema.as_object() else {
        if !schema.as_bool().expect("a schema is an object or a boolean") {
            errors.push(format!("{at}: false"));
        }
        return;
    };
    let fit = |rule: &Value| {
        let of = |one: &&Value| {
            let mut errors = Vec::new();
            check(root, one, value, at, &mut errors);
            errors.is_empty()
        };
        rule.as_array().expect("a list of schemas").iter().filter(of).count()
    };
    for (word, rule) in rules {
        let fits = match word.as_str() {
            "$schema" | "title" | "description" | "examples" | "default" | "$defs" => true,
            "anyOf" => fit(rule) > 0,
            "oneOf" => fit(rule) == 1,
            "not" => fit(&Value::Array(vec![rule.clone()])) == 0,
            "$ref" => {
                let name = rule
                    .as_str()
                    .and_then(|place| place.strip_prefix("#/$defs/"))
                    .expect("a local one");
                // A reference is a URL.
                let name = name.replace("%20", " ");
                check(root, &root["$defs"][&name], value, at, errors);
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
            "minItems" => {
                value.as_array().is_none_or(|list| list.len() as u64 >= rule.as_u64().unwrap())
            }
            "uniqueItems" => {
                assert_eq!(rule, true);
                let is_new = |list: &[Value]| {
                    list.split_last().is_none_or(|(one, rest)| !rest.contains(one))
                };
                value.as_array().is_none_or(|list| (0..=list.len()).all(|end| is_new(&list[..end])))
            }
            "minLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().unwrap()),
            "minProperties" => {
                value.as_object().is_none_or(|object| object.len() as u64 >= rule.as_u64().unwrap())
            }
            "maxLength" => value
                .as_str()
                .is_none_or(|text| text.chars().count() as u64 <= rule.as_u64().unwrap()),
            "pattern" => {
                value.as_str().is_none_or(|text| pattern(rule.as_str().unwrap()).is_match(text))
            }
            "format" if rule == "uint32" => {
                value.as_u64().is_none_or(|number| u32::try_from(number).is_ok())
            }
            "format" if rule == "uint64" || rule == "uint" => !value.is_number() || value.is_u64(),
            "format" if rule == "int64" => !value.is_number() || value.is_i64(),
            "format" if rule == "double" => true,
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
            "properties" | "patternProperties" => true,
            "additionalProperties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    if of_property(rules, key).next().is_none() {
                        check(root, rule, value, &format!("{at}/{key}"), errors);
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
    for (key, value) in value.as_object().into_iter().flatten() {
        for rule in of_property(rules, key) {
            check(root, rule, value, &format!("{at}/{key}"), errors);
        }
    }
}

/// The schemas that `properties` and `patternProperties` have for a key.
fn of_property<'a>(
    rules: &'a serde_json::Map<String, Value>,
    key: &'a str,
) -> impl Iterator<Item = &'a Value> {
    let of = |word| rules.get(word).and_then(Value::as_object).into_iter().flatten();
    let named = of("properties").filter(move |(name, _)| *name == key);
    named
        .chain(of("patternProperties").filter(move |(name, _)| pattern(name).is_match(key)))
        .map(|(_, rule)| rule)
}

fn pattern(text: &str) -> Regex {
    static KNOWN: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);
    let new = || Regex::new(text).unwrap();
    KNOWN.lock().unwrap().entry(text.to_owned()).or_insert_with(new).clone()
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
