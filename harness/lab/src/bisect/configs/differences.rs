// SPDX-License-Identifier: MIT OR Apache-2.0
//! The search between two configurations.

use super::{
    Files, NAMED, Values,
    ends::{Unit, differing, overlay},
    sha256, text, value,
};
use crate::{
    bisect::{
        Commit, Mark, Next,
        narrow::{Minimal, Set, narrow},
        space::Space,
    },
    error::{Error, Result},
};
use std::collections::{BTreeMap, BTreeSet};

/// The differences of two configurations, as a bisection searches them.
pub(super) struct Differences<'a> {
    /// The files of both ends.
    pub(super) names: [String; 2],
    pub(super) ids: [String; 2],
    pub(super) good: Values,
    pub(super) bad: Values,
    pub(super) units: Vec<Unit>,
    pub(super) files: &'a Files,
    /// The configuration of each set that was asked for.
    pub(super) sets: BTreeMap<Set, String>,
    pub(super) configure: &'a dyn Fn(&Values) -> Result<Values>,
}

/// The end of a search for now.
enum Wants {
    /// This configuration has no verdict.
    Verdict(Set, String),
    Failed(Error),
}

impl Differences<'_> {
    /// Searches as far as the verdicts go.
    fn narrowed(
        &mut self,
        [good, bad]: [&str; 2],
        verdicts: &[(String, Mark)],
    ) -> Result<Minimal, Wants> {
        let mark = |id: &str| match id {
            id if id == good => Some(Mark::Good),
            id if id == bad => Some(Mark::Bad),
            id => verdicts.iter().find(|(known, _)| known == id).map(|(_, mark)| *mark),
        };
        narrow(self.units.len(), &mut |set| {
            let id = self.id(set).map_err(Wants::Failed)?;
            mark(&id).ok_or(Wants::Verdict(set.clone(), id))
        })
    }

    /// The configuration of a set. Both ends keep their names.
    fn id(&mut self, set: &Set) -> Result<String> {
        if let Some(id) = self.sets.get(set) {
            return Ok(id.clone());
        }
        let values = match set.len() {
            0 => self.good.clone(),
            all if all == self.units.len() => self.bad.clone(),
            _ => (self.configure)(&overlay(&self.good, &self.bad, &self.units, set))?,
        };
        let id = match () {
            () if values == self.good => self.ids[0].clone(),
            () if values == self.bad => self.ids[1].clone(),
            () => {
                let id = sha256(&text(&values));
                self.files.save(&self.files.config(&id), &values)?;
                id
            }
        };
        self.sets.insert(set.clone(), id.clone());
        self.files.save_sets(&self.sets)?;
        Ok(id)
    }

    /// The configuration with this id.
    fn made(&self, id: &str) -> Values {
        self.files.load(id).unwrap_or_else(|| self.bad.clone())
    }

    /// `CONFIG_FOO=y, CONFIG_BAR=n`, or how many they are.
    fn described(&self, set: &Set) -> String {
        if set.len() > NAMED {
            return format!("{} of {} differences", set.len(), self.units.len());
        }
        let options = set.iter().flat_map(|&place| &self.units[place]);
        self.assigned(options)
    }

    fn assigned<'s>(&self, options: impl Iterator<Item = &'s String>) -> String {
        let one = |option: &String| format!("CONFIG_{option}={}", value(&self.bad, option));
        options.map(one).collect::<Vec<_>>().join(", ")
    }
}

impl Space for Differences<'_> {
    fn next(&mut self, good: &str, bad: &str, verdicts: &[(String, Mark)]) -> Result<Next> {
        match self.narrowed([good, bad], verdicts) {
            Err(Wants::Failed(error)) => Err(error),
            Err(Wants::Verdict(set, id)) => {
                let left = format!("testing {} of {} differences", set.len(), self.units.len());
                Ok(Next::Test { commit: id, left })
            }
            Ok(minimal) => {
                let id = self.id(&minimal.all())?;
                self.files.save(&self.files.folder.join("without.config"), &self.good)?;
                self.files.save(&self.files.folder.join("with.config"), &self.made(&id))?;
                Ok(Next::Found(id))
            }
        }
    }

    fn commit(&self, id: &str) -> Result<Commit> {
        let [good, bad] = &self.ids;
        let set = self.sets.iter().find(|(_, known)| *known == id).map(|(set, _)| set);
        let subject = match (id, set) {
            (id, _) if id == good => self.names[0].clone(),
            (id, None) if id == bad => self.names[1].clone(),
            (_, Some(set)) => self.described(set),
            (id, None) => return Err(Error::failed(format!("no set has the configuration {id}"))),
        };
        Ok(Commit {
            id: id.to_owned(),
            subject,
            author: String::new(),
            date: String::new(),
            parents: vec![good.clone()],
        })
    }

    fn stat(&self, _: &str) -> Result<String> {
        Ok(String::new())
    }

    fn noun(&self) -> &'static str {
        "configurations"
    }

    fn headline(
        &mut self,
        question: &str,
        asked: [&str; 2],
        verdicts: &[(String, Mark)],
    ) -> Result<Option<String>> {
        let minimal = match self.narrowed(asked, verdicts) {
            Ok(minimal) => minimal,
            Err(Wants::Failed(error)) => return Err(error),
            Err(Wants::Verdict(_, id)) => {
                return Err(Error::failed(format!("configuration {id} has no verdict")));
            }
        };
        let set = minimal.all();
        let id = self.id(&set)?;
        let with = self.made(&id);
        let options: BTreeSet<&String> = set.iter().flat_map(|&place| &self.units[place]).collect();
        let many = if set.len() == 1 { "makes" } else { "together make" };
        let mut text = format!(
            "{} {many} the difference in {question}\n",
            self.assigned(options.iter().copied())
        );
        for option in &options {
            text += &format!(
                "    CONFIG_{option}: {} in {}, {} in {}\n",
                value(&self.good, option),
                self.names[0],
                value(&self.bad, option),
                self.names[1]
            );
        }
        let came: Vec<String> = differing(&self.good, &with)
            .filter(|option| !options.contains(option))
            .map(|option| format!("CONFIG_{option}={}", value(&with, option)))
            .collect();
        if !came.is_empty() {
            text += &format!("    with that come {}\n", came.join(", "));
        }
        for part in minimal.parts.iter().filter(|part| part.len() > 1) {
            text += &format!(
                "    not divided further, since no configuration between gave an answer: {}\n",
                self.described(part)
            );
        }
        Ok(Some(text))
    }
}
