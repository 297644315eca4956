// SPDX-License-Identifier: MIT OR Apache-2.0
//! Firefox Profiler's format holds the stacks of the folded format.

use super::{any_profile, base, folded_of, pair, tree};
use crate::profile::{Of, Phase, Profile, Subject, Tree, Unit, firefox};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;

fn written<const SIDES: usize>(subjects: [&Subject; SIDES], tree: &Tree<SIDES>) -> Value {
    let mut out = Vec::new();
    firefox::write(subjects, tree, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

/// The stacks of one process with their weights, by the tables that the format documents.
fn stacks(profile: &Value, process: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let threads = profile["threads"].as_array().unwrap();
    for thread in threads.iter().filter(|thread| thread["processName"] == process) {
        let index = |value: &Value| value.as_u64().map(|index| index as usize);
        let name = |stack: usize| {
            let frame = index(&thread["stackTable"]["frame"][stack]).unwrap();
            let function = index(&thread["frameTable"]["func"][frame]).unwrap();
            let name = index(&thread["funcTable"]["name"][function]).unwrap();
            thread["stringArray"][name].as_str().unwrap().to_owned()
        };
        let samples = &thread["samples"];
        let weights = samples["weight"].as_array().unwrap();
        for (stack, weight) in samples["stack"].as_array().unwrap().iter().zip(weights) {
            let mut names = Vec::new();
            let mut at = index(stack);
            while let Some(stack) = at {
                names.push(name(stack));
                at = index(&thread["stackTable"]["prefix"][stack]);
            }
            names.push(thread["name"].as_str().unwrap().to_owned());
            names.reverse();
            *found.entry(names.join(";")).or_default() += weight.as_u64().unwrap();
        }
    }
    found
}

fn of_folded(folded: &str, side: usize) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (stack, counts) = line.split_once(' ').unwrap();
        (stack.to_owned(), counts.split(' ').nth(side).unwrap().parse().unwrap())
    };
    folded.lines().map(line).filter(|(_, own)| *own > 0).collect()
}

#[test]
fn each_side_is_a_process() {
    let ([base, head], tree) = pair(Unit::Samples);
    let profile = written([&base, &head], &tree);
    let folded = folded_of(&tree);
    for (side, subject) in [base, head].iter().enumerate() {
        let process = format!("{}, attach: samples", subject.cell);
        assert_eq!(stacks(&profile, &process), of_folded(&folded, side), "{process}");
    }
}

#[test]
fn an_amount_of_more_than_31_bits_is_several_samples() {
    let mut large = base();
    large.nodes[0].own = 5_000_000_000;
    let subject = Subject::new(std::slice::from_ref(&large), Of::Task);
    let profile = written([&subject], &tree(&[large], Of::Task));
    let weights = &profile["threads"][0]["samples"]["weight"];
    assert_eq!(weights.as_array().unwrap().iter().filter(|w| **w == i32::MAX).count(), 2);
    let process = format!("{}, attach: instructions", subject.cell);
    assert_eq!(stacks(&profile, &process)["tramplab-agent;main"], 5_000_000_000);
}

#[test]
fn no_amount_takes_all_memory() {
    let mut hostile = base();
    hostile.nodes[0].own = u64::MAX / 2;
    let subject = Subject::new(std::slice::from_ref(&hostile), Of::Task);
    let profile = written([&subject], &tree(&[hostile], Of::Task));
    let weights = profile["threads"][0]["samples"]["weight"].as_array().unwrap();
    assert!((1000..1100).contains(&weights.len()), "{}", weights.len());
}

proptest! {
    #[test]
    fn has_the_stacks_of_the_folded_format(drawn in any_profile()) {
        let profile = Profile { phase: Phase::Detach, ..drawn };
        let subject = Subject::new(std::slice::from_ref(&profile), Of::All);
        let tree = tree(&[profile], Of::All);
        let process = format!("{}, detach: instructions", subject.cell);
        prop_assert_eq!(
            stacks(&written([&subject], &tree), &process),
            of_folded(&folded_of(&tree), 0)
        );
    }
}
