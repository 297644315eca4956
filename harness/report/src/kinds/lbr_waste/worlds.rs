// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel in guests that booted as different CPUs, side by side.

use super::{Measured, WasteRow, of, rows, slashed};
use crate::{content::View, group::Group, useful};
use std::collections::BTreeMap;
use tramplab_analysis::branch::{Branch, Filter, Model};
use tramplab_model::{
    kinds::lbr_waste,
    run::{Kernel, Run, Setting},
    table::Table,
};

/// Two tables for each kernel whose guests booted as different CPUs: wasted and useful records. A
/// cell has a number for each CPU.
pub fn tables(run: &Run, groups: &[Group], view: &View) -> Vec<Table> {
    let mut worlds: Vec<Vec<&Group>> = Vec::new();
    for group in groups.iter().filter(|group| !group.is_hardware()) {
        let is_beside = |others: &&mut Vec<&Group>| {
            others.first().is_some_and(|first| point(run, first) == point(run, group))
        };
        match worlds.iter_mut().find(is_beside) {
            Some(others) => others.push(group),
            None => worlds.push(vec![group]),
        }
    }
    worlds.retain(|world| world.len() > 1);
    worlds.iter().flat_map(|world| of_worlds(run, world, view)).collect()
}

/// A group without its CPU: the groups of one point are side by side.
fn point<'a>(run: &'a Run, group: &'a Group) -> impl PartialEq + use<'a> {
    let configuration = group.facts(run).and_then(|kernel| kernel.configuration.as_ref());
    let of = configuration.map_or(group.kernel, |configuration| &configuration.of);
    let settings: &[Setting] = configuration.map_or(&[], |configuration| &configuration.settings);
    (of, settings, group.arch, group.accel)
}

fn of_worlds(run: &Run, world: &[&Group], view: &View) -> Vec<Table> {
    // The first has a CPU's records, which others are shown with.
    let Some(&first) = world.first() else { return Vec::new() };
    let model = first.model(view);
    let depths = useful::depths(model, None, first.depth(view));
    let mut all: BTreeMap<(lbr_waste::Test, String), Vec<Option<Measured>>> = BTreeMap::new();
    for (column, group) in world.iter().enumerate() {
        for WasteRow { test, name, measured } in rows(group) {
            let values = all.entry((test, name)).or_insert_with(|| vec![None; world.len()]);
            values[column] = measured.ok();
        }
    }
    all.retain(|_, values| values.iter().flatten().count() > 1);
    if all.is_empty() {
        return Vec::new();
    }
    let booted = |group: &&Group| match group.facts(run).and_then(Kernel::cpu) {
        Some(cpu) => format!("as {}", cpu.name),
        None => "as usual".to_owned(),
    };
    let booted = world.iter().map(booted).collect::<Vec<_>>().join(", ");
    let table = |caption: String, value: &dyn Fn(&Measured, Branch) -> Option<String>| {
        let cell = |values: &[Option<Measured>], branch| {
            let one = |measured: &Option<Measured>| {
                measured.as_ref().and_then(|one| value(one, branch)).unwrap_or("-".to_owned())
            };
            let all: Vec<String> = values.iter().map(one).collect();
            if all.iter().all(|one| one == "-") { "-".to_owned() } else { all.join(", ") }
        };
        let row = |((_, name), values): (&(lbr_waste::Test, String), &Vec<_>)| {
            let cells = Branch::ALL.map(|branch| cell(values, branch));
            std::iter::once(name.clone()).chain(cells).collect()
        };
        let filters = Branch::ALL.iter().map(|branch| branch.name().to_owned());
        Table {
            caption,
            header: std::iter::once("mechanism".to_owned()).chain(filters).collect(),
            rows: all.iter().map(row).collect(),
            notes: Vec::new(),
        }
    };
    let kernel = first.kernel;
    vec![
        table(format!("Wasted branch records of {kernel} {booted} ({model})"), &|m, branch| {
            m.wasted(model, branch).map(|n| n.to_string())
        }),
        table(
            format!("Useful branch records of {} on {kernel} {booted} ({model})", of(&depths)),
            &|m, branch| useful_of(run, m, model, branch, &depths),
        ),
    ]
}

fn useful_of(
    run: &Run,
    measured: &Measured,
    model: Model,
    branch: Branch,
    depths: &[u32],
) -> Option<String> {
    let wasted = measured.wasted(model, branch)?;
    let driver = measured.driver(run);
    let of = |&depth: &u32| driver.useful(model, Filter::of(branch), depth, wasted);
    Some(slashed(depths.iter().map(of)))
}
