// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deny lists: tests and subtests that are not run because they are known to fail. The format is
//! the tree's (`tools/testing/selftests/bpf/DENYLIST*`): one pattern per line, `test` or
//! `test/subtest`, `*` matches anything, `#` starts a reason.

use tramplab_model::tree_tests::Name;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenyList(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    test: String,
    subtest: Option<String>,
    denied: Denied,
}

/// Names the pattern that denies a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    pub pattern: String,
    /// Where the pattern is: `DENYLIST.aarch64:3`, `the suite`.
    pub place: String,
    pub reason: String,
}

impl std::fmt::Display for Denied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "denied by {} (`{}`", self.place, self.pattern)?;
        if self.reason.is_empty() { f.write_str(")") } else { write!(f, ": {})", self.reason) }
    }
}

impl DenyList {
    /// Parses a deny list of the tree. `file` is its name for messages.
    pub fn parse(text: &str, file: &str) -> DenyList {
        let entry = |(index, line): (usize, &str)| {
            let (pattern, reason) = line.split_once('#').unwrap_or((line, ""));
            entry(pattern.trim(), &format!("{file}:{}", index + 1), reason.trim())
        };
        DenyList(text.lines().enumerate().filter_map(entry).collect())
    }

    /// Makes a list of bare patterns. `place` is their origin for messages.
    pub fn of(patterns: &[String], place: &str) -> DenyList {
        DenyList(patterns.iter().filter_map(|pattern| entry(pattern.trim(), place, "")).collect())
    }

    pub fn and(mut self, other: DenyList) -> DenyList {
        self.0.extend(other.0);
        self
    }

    /// Returns the entry that denies the whole test.
    pub fn denies(&self, test: &Name) -> Option<&Denied> {
        let whole = |entry: &&Entry| entry.subtest.is_none() && glob(&entry.test, test.as_str());
        self.0.iter().find(whole).map(|entry| &entry.denied)
    }

    /// Returns the patterns that match some of its subtests, for test_progs to apply.
    pub fn of_subtests(&self, test: &Name) -> Vec<String> {
        let part = |entry: &&Entry| entry.subtest.is_some() && glob(&entry.test, test.as_str());
        self.0.iter().filter(part).map(|entry| entry.denied.pattern.clone()).collect()
    }
}

fn entry(pattern: &str, place: &str, reason: &str) -> Option<Entry> {
    if pattern.is_empty() {
        return None;
    }
    let (test, subtest) = match pattern.split_once('/') {
        Some((test, subtest)) => (test, Some(subtest.to_owned())),
        None => (pattern, None),
    };
    let denied =
        Denied { pattern: pattern.to_owned(), place: place.to_owned(), reason: reason.to_owned() };
    Some(Entry { test: test.to_owned(), subtest, denied })
}

/// Matches as test_progs does: `*` matches anything, other characters themselves.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().expect("split yields at least one");
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Linux 6.12.
    const AARCH64: &str = include_str!("testdata/6.12-DENYLIST.aarch64");
    const RISCV64: &str = include_str!("testdata/6.12-DENYLIST.riscv64");

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn applies_trees_deny_lists() {
        let list = DenyList::parse(AARCH64, "DENYLIST.aarch64");
        let denied = list.denies(&name("kprobe_multi_test")).unwrap();
        assert_eq!(
            denied.to_string(),
            "denied by DENYLIST.aarch64:4 (`kprobe_multi_test`: needs CONFIG_FPROBE)"
        );
        // Only one of its subtests is denied.
        assert_eq!(list.denies(&name("fentry_test")), None);
        assert_eq!(list.of_subtests(&name("fentry_test")), ["fentry_test/fentry_many_args"]);
        assert!(
            list.of_subtests(&name("fentry")).is_empty()
                && list.denies(&name("kprobe_multi")).is_none()
        );
        // A comment is not a pattern. test_progs handles a star within a subtest.
        let list = DenyList::parse(RISCV64, "DENYLIST.riscv64");
        assert!(list.denies(&name("exceptions")).is_some() && list.denies(&name("deny")).is_none());
        assert_eq!(list.of_subtests(&name("tailcalls")), ["tailcalls/tailcall_bpf2bpf*"]);
    }

    #[test]
    fn adds_suites_list_to_trees() {
        let own = DenyList::of(&["verifier_*".to_owned(), "d_path/basic".to_owned()], "the suite");
        let list = DenyList::parse(AARCH64, "x").and(own);
        assert_eq!(
            list.denies(&name("verifier_and")).unwrap().to_string(),
            "denied by the suite (`verifier_*`)"
        );
        assert!(list.denies(&name("kprobe_multi_test")).is_some());
        assert!(
            list.denies(&name("d_path")).is_none() && !list.of_subtests(&name("d_path")).is_empty()
        );
    }

    #[test]
    fn matches_stars_as_test_progs_does() {
        for (pattern, text, matches) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*", "", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("ab*ba", "aba", false),
            ("*a*", "bab", true),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
        }
    }
}
