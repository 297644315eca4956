// SPDX-License-Identifier: MIT OR Apache-2.0
//! Evaluates the expressions of GitHub that our files use.

use super::text;
use serde_json::Value;
use std::collections::BTreeMap;

/// Evaluates expressions. All values are strings, as GitHub compares them.
pub struct Context {
    pub values: BTreeMap<String, String>,
    pub failed: bool,
}

impl Context {
    /// Replaces each `${{ … }}` in a text by its value.
    pub fn fill(&self, text: &str) -> String {
        let mut parts = text.split("${{");
        let mut out = parts.next().unwrap().to_owned();
        for part in parts {
            let (expression, rest) = part.split_once("}}").expect("an expression ends");
            out += &self.value(expression);
            out += rest;
        }
        out
    }

    fn value(&self, expression: &str) -> String {
        let tokens = tokens(expression);
        let mut at = 0;
        let value = self.either(&tokens, &mut at);
        assert_eq!(at, tokens.len(), "{expression}");
        value
    }

    /// A step runs after a failure only if its condition asks for it.
    pub fn runs(&self, step: &Value) -> bool {
        let condition = text(&step["if"]);
        let condition =
            condition.trim().trim_start_matches("${{").trim_end_matches("}}").to_owned();
        if self.failed && !condition.contains("always()") {
            return false;
        }
        condition.is_empty() || is_true(&self.value(&condition))
    }

    fn either(&self, tokens: &[String], at: &mut usize) -> String {
        let mut value = self.both(tokens, at);
        while tokens.get(*at).is_some_and(|token| token == "||") {
            *at += 1;
            let other = self.both(tokens, at);
            if !is_true(&value) {
                value = other;
            }
        }
        value
    }

    fn both(&self, tokens: &[String], at: &mut usize) -> String {
        let mut value = self.compared(tokens, at);
        while tokens.get(*at).is_some_and(|token| token == "&&") {
            *at += 1;
            let other = self.compared(tokens, at);
            if is_true(&value) {
                value = other;
            }
        }
        value
    }

    fn compared(&self, tokens: &[String], at: &mut usize) -> String {
        let left = self.one(tokens, at);
        match tokens.get(*at).map(String::as_str) {
            Some(operator @ ("==" | "!=")) => {
                *at += 1;
                let right = self.one(tokens, at);
                ((left == right) == (operator == "==")).to_string()
            }
            _ => left,
        }
    }

    fn one(&self, tokens: &[String], at: &mut usize) -> String {
        let token = tokens[*at].clone();
        *at += 1;
        if token == "!" {
            return (!is_true(&self.one(tokens, at))).to_string();
        }
        if let Some(literal) = token.strip_prefix('\'') {
            return literal.to_owned();
        }
        if tokens.get(*at).is_some_and(|token| token == "(") {
            *at += 1;
            let mut arguments = Vec::new();
            while tokens[*at] != ")" {
                arguments.push(self.either(tokens, at));
                if tokens[*at] == "," {
                    *at += 1;
                }
            }
            *at += 1;
            return match (token.as_str(), &arguments[..]) {
                ("always", []) => "true".to_owned(),
                ("startsWith", [text, begin]) => text.starts_with(begin.as_str()).to_string(),
                ("contains", [text, part]) => text.contains(part.as_str()).to_string(),
                other => panic!("{other:?} is not known here"),
            };
        }
        if token.parse::<u32>().is_ok() {
            return token;
        }
        assert!(token.contains('.'), "{token} is not known here");
        self.values.get(&token).cloned().unwrap_or_default()
    }
}

fn is_true(value: &str) -> bool {
    !["", "false", "0"].contains(&value)
}

/// Splits an expression; a literal keeps its first quote.
fn tokens(expression: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while !rest.is_empty() {
        let length = if let Some(literal) = rest.strip_prefix('\'') {
            1 + literal.find('\'').expect("a literal ends")
        } else if ["&&", "||", "==", "!="].iter().any(|operator| rest.starts_with(operator)) {
            2
        } else {
            let word = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            rest.find(|c| !word(c)).unwrap_or(rest.len()).max(1)
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start_matches('\'').trim_start();
    }
    tokens
}
