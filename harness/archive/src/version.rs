// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's order of versions: deb-version(7).

use std::cmp::Ordering;

/// Compares versions as dpkg does: `7.3~rc7-1` comes before `7.3-1`.
pub fn compare(a: &str, b: &str) -> Ordering {
    let ((epoch_a, a), (epoch_b, b)) = (epoch(a), epoch(b));
    let ((upstream_a, revision_a), (upstream_b, revision_b)) = (revision(a), revision(b));
    numbers(epoch_a, epoch_b)
        .then_with(|| parts(upstream_a, upstream_b))
        .then_with(|| parts(revision_a, revision_b))
}

fn epoch(version: &str) -> (&str, &str) {
    version.split_once(':').unwrap_or(("", version))
}

fn revision(version: &str) -> (&str, &str) {
    version.rsplit_once('-').unwrap_or((version, ""))
}

/// Compares words and numbers in turn.
fn parts(mut a: &str, mut b: &str) -> Ordering {
    while !a.is_empty() || !b.is_empty() {
        let ((word_a, rest_a), (word_b, rest_b)) = (word(a), word(b));
        let ((number_a, rest_a), (number_b, rest_b)) = (number(rest_a), number(rest_b));
        let order = words(word_a, word_b).then_with(|| numbers(number_a, number_b));
        if order.is_ne() {
            return order;
        }
        (a, b) = (rest_a, rest_b);
    }
    Ordering::Equal
}

fn word(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| c.is_ascii_digit()).unwrap_or(text.len()))
}

fn number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `~` comes before the end, letters before all other characters.
fn words(a: &str, b: &str) -> Ordering {
    let rank = |text: &str, index: usize| match text.as_bytes().get(index) {
        Some(b'~') => -1,
        None => 0,
        Some(byte) if byte.is_ascii_alphabetic() => i32::from(*byte),
        Some(byte) => i32::from(*byte) + 256,
    };
    let length = a.len().max(b.len());
    (0..length)
        .map(|at| rank(a, at).cmp(&rank(b, at)))
        .find(|o| o.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// Numbers of any length.
fn numbers(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// A condition on a version, as in `(>= 2.38)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition<'a> {
    relation: &'a str,
    pub(crate) version: &'a str,
}

impl<'a> Condition<'a> {
    /// Reads what is between the parentheses.
    pub(crate) fn parse(text: &'a str) -> Option<Condition<'a>> {
        let (relation, version) = text.split_at(text.find(|c: char| !"<=>".contains(c))?);
        Some(Condition { relation, version: version.trim() })
    }

    pub(crate) fn holds(&self, version: &str) -> bool {
        let order = compare(version, self.version);
        match self.relation {
            "=" => order.is_eq(),
            "<<" => order.is_lt(),
            "<=" => order.is_le(),
            ">=" => order.is_ge(),
            ">>" => order.is_gt(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// As dpkg 1.21.22 compares them.
    const ORDERED: [(&str, &str, Ordering); 24] = [
        ("7.3~rc7-1", "7.3-1", Ordering::Less),
        ("7.3~rc7-1~exp1", "7.3~rc7-1", Ordering::Less),
        ("6.12.107-1~bpo12+1", "6.12.107-1", Ordering::Less),
        ("6.12.9-1", "6.12.107-1", Ordering::Less),
        ("1:10.0.13+ds-0+deb13u1", "10.0.13+ds-0+deb13u1", Ordering::Greater),
        ("0:1.0", "1.0", Ordering::Equal),
        ("1.0-0", "1.0", Ordering::Equal),
        ("1.0", "1.0-0~1", Ordering::Greater),
        ("1.00", "1.0", Ordering::Equal),
        ("1.0a", "1.0", Ordering::Greater),
        ("1.0a", "1.0+", Ordering::Less),
        ("1.0~~", "1.0~", Ordering::Less),
        ("1.0~~a", "1.0~", Ordering::Less),
        ("1.0~", "1.0", Ordering::Less),
        ("1.0a~", "1.0a", Ordering::Less),
        ("2.41-12+deb13u4", "2.41-12+deb13u10", Ordering::Less),
        ("2.41-12+b1", "2.41-12", Ordering::Greater),
        ("1-1-1", "1-1", Ordering::Greater),
        ("1.2.3", "1.2-3", Ordering::Greater),
        ("20240101", "1:0", Ordering::Less),
        ("99999999999999999999", "100000000000000000000", Ordering::Less),
        ("1.a", "1.1", Ordering::Greater),
        ("1.0-1.1", "1.0-1+b1", Ordering::Greater),
        ("6.1.0-rc1", "6.1.0", Ordering::Greater),
    ];

    #[test]
    fn orders_versions_as_dpkg_did() {
        for (a, b, expected) in ORDERED {
            assert_eq!(compare(a, b), expected, "{a} {b}");
            assert_eq!(compare(b, a), expected.reverse(), "{b} {a}");
        }
    }

    /// The table against dpkg itself, where the host has it.
    #[test]
    fn dpkg_agrees_with_the_table() {
        for (a, b, expected) in ORDERED {
            let word = match expected {
                Ordering::Less => "lt",
                Ordering::Equal => "eq",
                Ordering::Greater => "gt",
            };
            let asked = Command::new("dpkg").args(["--compare-versions", a, word, b]).status();
            assert!(asked.map_or(true, |status| status.success()), "{a} {word} {b}");
        }
    }

    #[test]
    fn conditions_hold_as_written() {
        for (condition, version, expected) in [
            (">= 2.38", "2.38", true),
            (">= 2.38", "2.38~rc1", false),
            ("<< 2", "1.9", true),
            ("<< 2", "2", false),
            ("<= 2", "2", true),
            (">> 2", "2+b1", true),
            ("= 1:1.0-1", "1.0-1", false),
        ] {
            let parsed = Condition::parse(condition).unwrap();
            assert_eq!(parsed.holds(version), expected, "{version} {condition}");
        }
    }
}
