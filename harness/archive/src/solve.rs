// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packages that one package needs on an empty system.

use crate::{
    index::Entry,
    version::{self, Condition},
};
use std::collections::HashMap;

/// All versions of all packages.
pub(crate) struct Universe<'a> {
    named: HashMap<&'a str, Vec<Entry<'a>>>,
    provided: HashMap<&'a str, Vec<Entry<'a>>>,
}

/// `libfoo:any (>= 1.2)`
#[derive(Clone, Copy)]
struct Dependency<'a> {
    name: &'a str,
    condition: Option<Condition<'a>>,
}

impl<'a> Dependency<'a> {
    fn parse(text: &'a str) -> Option<Dependency<'a>> {
        let (name, condition) = match text.split_once('(') {
            Some((name, rest)) => (name, Some(Condition::parse(rest.split_once(')')?.0)?)),
            None => (text, None),
        };
        let name = name.trim();
        Some(Dependency { name: name.split_once(':').map_or(name, |(name, _)| name), condition })
    }

    fn is_met_by(&self, entry: &Entry<'_>) -> bool {
        let holds = |version: &str| self.condition.is_none_or(|condition| condition.holds(version));
        (entry.name == self.name && holds(entry.version)) || self.is_provided_by(entry)
    }

    /// A provider without a version meets no condition.
    fn is_provided_by(&self, entry: &Entry<'_>) -> bool {
        provisions(entry).any(|(name, version)| {
            name == self.name
                && match (self.condition, version) {
                    (None, _) => true,
                    (Some(condition), Some(version)) => condition.holds(version),
                    (Some(_), None) => false,
                }
        })
    }
}

fn provisions<'a>(entry: &Entry<'a>) -> impl Iterator<Item = (&'a str, Option<&'a str>)> {
    entry
        .provides
        .split(',')
        .filter_map(|text| Dependency::parse(text.trim()))
        .map(|provided| (provided.name, provided.condition.map(|condition| condition.version)))
}

impl<'a> Universe<'a> {
    pub fn new(entries: impl Iterator<Item = Entry<'a>>) -> Universe<'a> {
        let mut universe = Universe { named: HashMap::new(), provided: HashMap::new() };
        for entry in entries {
            universe.named.entry(entry.name).or_default().push(entry);
            if !entry.provides.is_empty() {
                for (name, _) in provisions(&entry) {
                    universe.provided.entry(name).or_default().push(entry);
                }
            }
        }
        for versions in universe.named.values_mut() {
            versions.sort_by(|a, b| version::compare(b.version, a.version));
        }
        for providers in universe.provided.values_mut() {
            providers.sort_by_key(|entry| entry.name);
        }
        universe
    }

    /// The package and all that it needs, without what is only recommended. Fails with the
    /// dependency that nothing meets.
    pub fn closure(&self, package: &'a str) -> Result<Vec<Entry<'a>>, String> {
        let mut chosen: HashMap<&str, Entry<'a>> = HashMap::new();
        let mut waiting = vec![package];
        while let Some(alternatives) = waiting.pop() {
            let wanted: Vec<_> = alternatives.split('|').filter_map(Dependency::parse).collect();
            if wanted.iter().any(|wanted| chosen.values().any(|entry| wanted.is_met_by(entry))) {
                continue;
            }
            let found = wanted.iter().find_map(|wanted| self.choose(wanted, &chosen));
            let entry = found.ok_or_else(|| alternatives.trim().to_owned())?;
            chosen.insert(entry.name, entry);
            // Those named first are taken from the end first.
            let needed = entry.pre_depends.split(',').chain(entry.depends.split(','));
            let at = waiting.len();
            waiting.extend(needed.filter(|text| !text.trim().is_empty()));
            waiting[at..].reverse();
        }
        Ok(chosen.into_values().collect())
    }

    fn choose(
        &self,
        wanted: &Dependency<'_>,
        chosen: &HashMap<&str, Entry<'a>>,
    ) -> Option<Entry<'a>> {
        let fits = |entry: &&Entry<'a>| !chosen.contains_key(entry.name) && wanted.is_met_by(entry);
        let named = self.named.get(wanted.name).into_iter().flatten().find(fits);
        let found = named.or_else(|| self.provided.get(wanted.name)?.iter().find(fits));
        found.copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Index;

    fn plan(index: &Index, package: &str) -> Result<Vec<String>, String> {
        let universe = Universe::new(index.entries());
        let closure = universe.closure(package)?;
        let mut plan: Vec<_> =
            closure.iter().map(|entry| format!("{}={}", entry.name, entry.version)).collect();
        plan.sort();
        Ok(plan)
    }

    /// apt 2.6 made the plan from the same lists: trixie's of November 2026, on an empty system.
    #[test]
    fn finds_what_apt_would_install() {
        let index = Index::of(include_str!("testdata/qemu-system-x86.index").to_owned());
        let apt: Vec<&str> = include_str!("testdata/qemu-system-x86.plan").lines().collect();
        assert_eq!(plan(&index, "qemu-system-x86").unwrap(), apt);
    }

    #[test]
    fn chooses_among_alternatives_versions_and_providers() {
        for (packages, expected) in [
            ("a|1|b | c|;b|1||;c|1||", Ok("a=1 b=1")),
            ("a|1|x | c|;b|1||;c|1||", Ok("a=1 c=1")),
            // One that is needed anyway is not added to.
            ("a|1|c, b | c|;b|1||;c|1||", Ok("a=1 c=1")),
            ("a|1|b (>= 2) | c|;b|1||;c|1||", Ok("a=1 c=1")),
            ("a|1|b (>= 2)|;b|1||;b|3||;b|2||", Ok("a=1 b=3")),
            ("a|1|b (<< 3)|;b|1||;b|3||;b|2||", Ok("a=1 b=2")),
            ("a|1|v|;c|1||v;b|1||v", Ok("a=1 b=1")),
            ("a|1|v (>= 2)|;b|1||v;c|1||v (= 2)", Ok("a=1 c=1")),
            ("a|1|b:any|;b|1||", Ok("a=1 b=1")),
            ("a|1|b|;b|1|a|", Ok("a=1 b=1")),
            ("a|1|b (>= 2)|;b|1||", Err("b (>= 2)")),
            ("a|1|b|;b|1|x | y|", Err("x | y")),
            ("b|1||", Err("a")),
        ] {
            let lines = packages.split(';').map(|package| {
                let fields: Vec<&str> = package.splitn(3, '|').collect();
                let (depends, provides) = fields[2].rsplit_once('|').unwrap();
                format!("{}\t{}\tall\t\t0\t0\t\t{depends}\t\t{provides}\n", fields[0], fields[1])
            });
            let index = Index::of(lines.collect());
            let found = plan(&index, "a").map(|plan| plan.join(" "));
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{packages}");
        }
    }
}
