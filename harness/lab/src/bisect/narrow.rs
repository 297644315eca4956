// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delta debugging: which few of many differences make the good end bad. Pure.
//!
//! One binary search over the differences in order finds the last one that is needed: all before it
//! together are not bad, with it they are. It stays in, and the next search runs over those before
//! it, until what stays in is bad alone. So `k` needed differences of `n` take about `k · log2 n`
//! probes. Like ddmin it ends with a set of which nothing can be left out.

use super::Mark;
use std::collections::BTreeSet;

/// Differences, by their index.
pub type Set = BTreeSet<usize>;

/// Probes beside one that gave no answer before a part is not divided further.
const DETOURS: usize = 4;

/// A minimal set of differences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minimal {
    /// Each is needed as a whole. One has several differences if no probe between them gave an
    /// answer.
    pub parts: Vec<Set>,
}

impl Minimal {
    pub fn all(&self) -> Set {
        self.parts.iter().flatten().copied().collect()
    }
}

/// Narrows `count` differences down. None of them is good, all of them are bad. `ask` gives the
/// answer for a set; its error ends the search, which starts over when it is known.
pub fn narrow<E>(count: usize, ask: &mut dyn FnMut(&Set) -> Result<Mark, E>) -> Result<Minimal, E> {
    let mut parts: Vec<Set> = Vec::new();
    let mut candidates = count;
    while candidates > 0 && (parts.is_empty() || ask(&union(&parts))? != Mark::Bad) {
        let (good, bad) = boundary(candidates, &union(&parts), ask)?;
        parts.push((good..bad).collect());
        candidates = good;
    }
    // A later part may make an earlier one needless: the answers need not be monotone.
    let mut place = 0;
    while parts.len() > 1 && place < parts.len() {
        let mut fewer = parts.clone();
        fewer.remove(place);
        if ask(&union(&fewer))? == Mark::Bad {
            (parts, place) = (fewer, 0);
        } else {
            place += 1;
        }
    }
    Ok(Minimal { parts })
}

/// Finds two lengths such that the shorter prefix is not bad beside `kept`, and the longer one is.
/// They differ by one, unless no length between them has an answer.
fn boundary<E>(
    count: usize,
    kept: &Set,
    ask: &mut dyn FnMut(&Set) -> Result<Mark, E>,
) -> Result<(usize, usize), E> {
    let (mut good, mut bad) = (0, count);
    let mut skipped: Set = Set::new();
    while let Some(middle) = middle(good, bad, &skipped) {
        match ask(&kept.iter().copied().chain(0..middle).collect())? {
            Mark::Good => good = middle,
            Mark::Bad => bad = middle,
            Mark::Skip => drop(skipped.insert(middle)),
        }
    }
    Ok((good, bad))
}

/// The length nearest to the middle that was not skipped.
fn middle(good: usize, bad: usize, skipped: &Set) -> Option<usize> {
    let inside = good + 1..bad;
    let detours = skipped.range(inside.clone()).count();
    let centre = good + (bad - good) / 2;
    let free = inside.filter(|length| !skipped.contains(length));
    let nearest = free.min_by_key(|length| length.abs_diff(centre));
    nearest.filter(|_| detours <= DETOURS)
}

fn union(parts: &[Set]) -> Set {
    parts.iter().flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{collections::BTreeMap, convert::Infallible};

    /// A kernel made of options, as far as a search sees it.
    #[derive(Clone, Debug, Default)]
    struct Planted {
        count: usize,
        /// All of them together make it bad.
        culprits: Set,
        /// An option that has no effect without another one.
        depends: BTreeMap<usize, usize>,
        /// It does not build with the first and without the second.
        breaks: Vec<(usize, usize)>,
    }

    impl Planted {
        fn answer(&self, set: &Set) -> Mark {
            let mut effective = set.clone();
            // Chains of dependencies end after as many rounds as they are long.
            for _ in 0..=self.depends.len() {
                let lacks = |option: &usize| {
                    self.depends.get(option).is_some_and(|needed| !effective.contains(needed))
                };
                let lost: Set = effective.iter().copied().filter(lacks).collect();
                effective.retain(|option| !lost.contains(option));
            }
            let has = |option: &usize| effective.contains(option);
            match () {
                () if self.breaks.iter().any(|(with, without)| has(with) && !has(without)) => {
                    Mark::Skip
                }
                () if self.culprits.is_subset(&effective) => Mark::Bad,
                () => Mark::Good,
            }
        }

        /// Returns the answer, and the sets that were asked for, each once.
        fn search(&self) -> (Minimal, Vec<Set>) {
            let mut asked: Vec<Set> = Vec::new();
            let found = narrow::<Infallible>(self.count, &mut |set| {
                if !asked.contains(set) {
                    asked.push(set.clone());
                }
                Ok(self.answer(set))
            });
            (found.unwrap(), asked)
        }

        /// The culprits and all that they depend on.
        fn needed(&self) -> Set {
            let mut needed = self.culprits.clone();
            for _ in 0..=self.depends.len() {
                let more: Vec<usize> =
                    needed.iter().filter_map(|option| self.depends.get(option)).copied().collect();
                needed.extend(more);
            }
            needed
        }
    }

    #[test]
    fn finds_one_of_three_hundred_in_nine_probes() {
        for culprit in 0..300 {
            let planted = Planted { count: 300, culprits: [culprit].into(), ..Planted::default() };
            let (found, asked) = planted.search();
            assert_eq!(found.parts, [Set::from([culprit])]);
            // The last one asks whether the culprit is enough.
            assert!(asked.len() <= 10, "{culprit}: {}", asked.len());
        }
    }

    #[test]
    fn keeps_options_together_that_break_the_build_one_by_one() {
        let planted = Planted {
            count: 40,
            culprits: [20].into(),
            breaks: vec![(19, 20), (20, 21), (18, 19), (21, 22)],
            ..Planted::default()
        };
        let (found, _) = planted.search();
        let [part] = &found.parts[..] else { panic!("{found:?}") };
        assert!(part.contains(&20) && part.len() < 6, "{found:?}");
        assert_eq!(planted.answer(&Set::from_iter(0..=*part.last().unwrap())), Mark::Bad);
    }

    #[test]
    fn starts_over_from_recorded_answers() {
        let planted = Planted { count: 300, culprits: [7, 211].into(), ..Planted::default() };
        let mut answers: BTreeMap<Set, Mark> = BTreeMap::new();
        let mut probes = 0;
        // A search that knows nothing but the answers so far asks for one set at a time.
        let found = loop {
            let next = narrow(300, &mut |set| answers.get(set).copied().ok_or_else(|| set.clone()));
            match next {
                Ok(found) => break found,
                Err(set) => {
                    probes += 1;
                    assert_eq!(answers.insert(set.clone(), planted.answer(&set)), None);
                }
            }
        };
        assert_eq!(found, planted.search().0);
        assert_eq!(found.all(), planted.culprits);
        assert_eq!(probes, planted.search().1.len());
    }

    #[test]
    fn leaves_out_what_a_later_part_makes_needless() {
        // Option 1 is bad with 5, and alone, but not with any other.
        let found = narrow::<Infallible>(10, &mut |set| {
            let is_bad = set.is_superset(&Set::from([1, 5])) || *set == Set::from([1]);
            Ok(if is_bad { Mark::Bad } else { Mark::Good })
        });
        assert_eq!(found.unwrap().parts, [Set::from([1])]);
    }

    proptest! {
        /// Whatever is planted is found whole, and nothing else.
        #[test]
        fn finds_planted_culprits_with_their_dependencies(
            count in 1_usize..300,
            culprits in prop::collection::btree_set(0_usize..300, 1..4),
            depends in prop::collection::btree_map(0_usize..300, 0_usize..300, 0..40),
        ) {
            let culprits: Set = culprits.iter().map(|option| option % count).collect();
            // An option depends on an earlier one: no circles.
            let depends: BTreeMap<usize, usize> = depends
                .iter()
                .map(|(a, b)| (a % count, b % count))
                .filter(|(a, b)| b < a)
                .collect();
            let planted = Planted { count, culprits, depends, breaks: Vec::new() };
            let (found, asked) = planted.search();
            prop_assert_eq!(found.all(), planted.needed());
            prop_assert!(found.parts.iter().all(|part| part.len() == 1));
            let needed = found.parts.len();
            prop_assert!(asked.len() <= needed * (count.ilog2() as usize + 4), "{}", asked.len());
        }

        /// With probes that give no answer the result is still bad, and each part is needed.
        #[test]
        fn ends_with_a_bad_set_of_needed_parts(
            count in 2_usize..120,
            culprit in 0_usize..120,
            breaks in prop::collection::vec((0_usize..120, 0_usize..120), 0..12),
        ) {
            let culprits: Set = [culprit % count].into();
            let breaks: Vec<_> = breaks.iter().map(|(a, b)| (a % count, b % count)).collect();
            let planted = Planted { count, culprits, depends: BTreeMap::new(), breaks };
            prop_assume!(planted.answer(&(0..count).collect()) == Mark::Bad);
            let (found, _) = planted.search();
            prop_assert_eq!(planted.answer(&found.all()), Mark::Bad);
            for left_out in 0..found.parts.len() {
                let mut fewer = found.parts.clone();
                fewer.remove(left_out);
                prop_assert!(planted.answer(&union(&fewer)) != Mark::Bad);
            }
        }
    }
}
