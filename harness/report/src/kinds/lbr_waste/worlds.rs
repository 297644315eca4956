// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel in guests that booted as different CPUs, side by side.

use super::{Measured, MeasuredRow, of, rows, slashed};
use crate::{group::Group, useful, view::View};
use std::collections::BTreeMap;
use tramplab_analysis::branch::{Branch, Filter, Model};
use tramplab_model::{
    kinds::lbr_waste,
    run::{Run, Setting},
    table::Table,
};

/// Two tables for each kernel whose guests booted as different CPUs: wasted and useful records. A
/// cell has a number for each CPU.
pub fn tables(run: &Run, groups: &[Group], view: &View) -> Vec<Table> {
    let mut worlds: Vec<Vec<&Group>> = Vec::new();
    for group in groups.iter().filter(|group| group.of_driver().is_none()) {
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
    let patched = run.step_of(group.arch, group.kernel);
    let patched = patched.map(|(series, step)| (series.name.as_str(), step.patches));
    // The kernels of a series have names of their own for each CPU.
    let of = patched.is_none().then_some(of);
    (of, patched, settings, group.arch, group.accel)
}

/// A kernel's guests that booted as one CPU, and the model that they are shown with.
struct World<'a> {
    group: &'a Group<'a>,
    model: Model,
    depths: Vec<u32>,
    booted: String,
}

impl<'a> World<'a> {
    fn new(group: &'a Group, view: &View) -> World<'a> {
        let model = group.model(view);
        let depths = useful::depths(model, None, group.depth(view));
        let booted = match group.booted {
            Some(cpu) => format!("as {}", cpu.name),
            None => "as usual".to_owned(),
        };
        World { group, model, depths, booted }
    }
}

type Values<'a> = Vec<Option<Result<Measured<'a>, &'static str>>>;

fn of_worlds(run: &Run, groups: &[&Group], view: &View) -> Vec<Table> {
    let worlds: Vec<World> = groups.iter().map(|group| World::new(group, view)).collect();
    let mut all: BTreeMap<(lbr_waste::Test, String), Values> = BTreeMap::new();
    for (column, world) in worlds.iter().enumerate() {
        for MeasuredRow { test, name, measured } in rows(world.group) {
            let values = all.entry((test, name)).or_insert_with(|| vec![None; worlds.len()]);
            values[column] = Some(measured);
        }
    }
    let is_measured = |values: &Values| values.iter().flatten().any(Result::is_ok);
    all.retain(|_, values| is_measured(values));
    let usual = worlds.iter().find(|world| world.group.booted.is_none()).or(worlds.first());
    let Some(name) = usual.map(|world| named(run, world.group)) else { return Vec::new() };
    if all.is_empty() {
        return Vec::new();
    }
    let table = |caption: String, value: &dyn Fn(&World, &Measured, Branch) -> Option<String>| {
        let cell = |values: &Values, branch| {
            let one = |(world, measured): (&World, &Option<Result<Measured, &str>>)| match measured
            {
                Some(Ok(measured)) => value(world, measured, branch).unwrap_or("-".to_owned()),
                Some(Err(outcome)) => (*outcome).to_owned(),
                None => String::new(),
            };
            let all: Vec<String> = worlds.iter().zip(values).map(one).collect();
            if all.iter().all(|one| one == "-") { "-".to_owned() } else { all.join(", ") }
        };
        let row = |((_, name), values): (&(lbr_waste::Test, String), &Values)| {
            let cells = Branch::ALL.map(|branch| cell(values, branch));
            std::iter::once(name.clone()).chain(cells).collect()
        };
        let filters = Branch::ALL.iter().map(|branch| branch.name().to_owned());
        let rows: Vec<Vec<String>> = all.iter().map(row).collect();
        let has = |mark: &str| rows.iter().flatten().any(|cell| cell.contains(mark));
        let bound = "≤: a bound; the note below each kernel's own table says why.";
        let notes = has("≤").then(|| bound.to_owned()).into_iter().collect();
        let header = std::iter::once("mechanism".to_owned()).chain(filters).collect();
        Table { caption, header, rows, notes }
    };
    let each = |of: &dyn Fn(&World) -> String| worlds.iter().map(of).collect::<Vec<_>>().join(", ");
    let wasted = each(&|world| format!("{} ({})", world.booted, world.model));
    let useful =
        each(&|world| format!("{} ({}, of {})", world.booted, world.model, of(&world.depths)));
    vec![
        table(format!("Wasted branch records of {name}: {wasted}"), &|world, m, branch| {
            m.wasted(world.model, branch).map(|n| n.to_string())
        }),
        table(format!("Useful branch records of {name}: {useful}"), &|world, m, branch| {
            let wasted = m.wasted(world.model, branch)?;
            let driver = m.driver(run);
            let filter = Filter::of(branch);
            let of = |&depth: &u32| driver.useful(world.model, filter, depth, wasted);
            Some(slashed(world.depths.iter().map(of)))
        }),
    ]
}

/// The kernel and its configuration, without the CPU: `7.2`, `7.2, mitigations=off`.
fn named(run: &Run, group: &Group) -> String {
    let configuration = group.facts(run).and_then(|kernel| kernel.configuration.as_ref());
    let own = configuration.filter(|_| run.step_of(group.arch, group.kernel).is_none());
    let of = own.map_or(group.kernel, |configuration| &configuration.of);
    let settings = configuration.iter().flat_map(|point| &point.settings);
    std::iter::once(of.to_owned())
        .chain(settings.map(ToString::to_string))
        .collect::<Vec<_>>()
        .join(", ")
}
