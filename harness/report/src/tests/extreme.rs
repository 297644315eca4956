// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every form of the report, of runs whose numbers are the largest or smallest that their types
//! take.

use super::{profiles::base as base_profile, *};
use crate::{
    benchmarks, benchstat, comparison, history as histories, html, mechanisms, openmetrics, review,
    timeline,
};
use serde_json::Value;
use std::{collections::BTreeSet, num::NonZeroU32};
use tramplab_analysis::history::{self, Query};
use tramplab_model::{
    code::{FunctionSize, TextGrowth},
    profile::Waited,
    run::{Cell, CellId, PatchIds, Survive, TreeTest},
    tree_tests::{End, LeftOut},
};
use tramplab_protocol::storm::{Attached, State, SurviveReply};

/// The first that a type takes is its largest number, or its smallest.
const LARGE: [u64; 4] = [u64::MAX, i64::MAX as u64, u32::MAX as u64, u16::MAX as u64];
const SMALL: [u64; 2] = [0, 1];

/// Chooses the numbers of a place that become large; the others become small.
type Choice = fn(usize) -> bool;

const CHOICES: [Choice; 4] = [|_| true, |_| false, |n| n % 2 == 0, |n| n % 2 == 1];

/// The places of numbers. All numbers of an array are one place.
fn places(value: &Value, place: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Number(_) => drop(found.insert(place.to_owned())),
        Value::Array(all) => all.iter().for_each(|one| places(one, &format!("{place}/*"), found)),
        Value::Object(all) => {
            all.iter().for_each(|(name, one)| places(one, &format!("{place}/{name}"), found));
        }
        _ => {}
    }
}

fn replace(value: &mut Value, here: &str, place: &str, by: &mut dyn FnMut() -> u64) {
    if !place.starts_with(here) {
        return;
    }
    match value {
        Value::Number(_) if here == place => *value = by().into(),
        Value::Array(all) => {
            all.iter_mut().for_each(|one| replace(one, &format!("{here}/*"), place, by));
        }
        Value::Object(all) => all
            .iter_mut()
            .for_each(|(name, one)| replace(one, &format!("{here}/{name}"), place, by)),
        _ => {}
    }
}

/// The run with its numbers replaced, by each choice.
fn extremes(run: &Run) -> Vec<Run> {
    let value = serde_json::to_value(run).unwrap();
    let mut found = BTreeSet::new();
    places(&value, "", &mut found);
    let taken = |place: &str, numbers: &[u64]| {
        numbers.iter().copied().find(|number| {
            let mut tried = value.clone();
            replace(&mut tried, "", place, &mut || *number);
            serde_json::from_value::<Run>(tried).is_ok()
        })
    };
    let ends: Vec<(&String, u64, u64)> = found
        .iter()
        .filter_map(|place| Some((place, taken(place, &LARGE)?, taken(place, &SMALL)?)))
        .collect();
    assert!(ends.len() > 30, "{} of {}", ends.len(), found.len());
    let replaced = |is_large: Choice| {
        let mut value = value.clone();
        for (place, large, small) in &ends {
            let mut n = 0..;
            let mut by = || if n.next().is_some_and(is_large) { *large } else { *small };
            replace(&mut value, "", place, &mut by);
        }
        serde_json::from_value(value).unwrap()
    };
    CHOICES.map(replaced).into()
}

/// Cells of the kinds that no stored run has, like another cell of the run.
fn others(like: &Cell) -> Vec<Cell> {
    let cell = |test: &str, measurement| Cell {
        outcome: Outcome::Pass,
        measurement: Some(measurement),
        id: CellId { test: test.parse().unwrap(), ..like.id.clone() },
        ..like.clone()
    };
    let attached = Attached {
        mechanism: Mechanism::Fentry,
        links: 1,
        refused: 1,
        reason: None,
        lacking: None,
    };
    let done = SurviveReply {
        attached: vec![attached.clone(), attached],
        states: vec![State::default(); 4],
        ..SurviveReply::default()
    };
    let survive = Survive { threads: 1, steps: 1, done: Some(done), splat: None, smallest: None };
    let left_out = LeftOut { ok: 1, skip: 1, fail: 1 };
    let test = TreeTest {
        end: End::Ok,
        subtests: Vec::new(),
        left_out,
        denied: Vec::new(),
        failures: Vec::new(),
    };
    vec![
        cell("survive/1", Measurement::Survive(survive.clone())),
        cell("survive/2", Measurement::Survive(survive)),
        cell("test_progs/fentry_test", Measurement::TestProgs(test)),
    ]
}

/// Stored runs with a cell of each kind and kernel, and with cells of the other kinds.
fn stored() -> [Run; 2] {
    [run(), series()].map(|mut run| {
        let mut seen = BTreeSet::new();
        run.cells.retain(|cell| {
            let kind = cell.measurement.as_ref().map(|_| cell.id.test.kind().name());
            seen.insert((cell.id.kernel.clone(), kind))
        });
        for kernel in &run.kernels {
            let like = run.cells.iter().find(|cell| cell.id.kernel == kernel.name).cloned();
            run.cells.extend(like.iter().flat_map(others));
        }
        for series in &mut run.series {
            let name = "f".to_owned();
            let functions = vec![FunctionSize { name, base: Some(1), head: Some(2) }];
            let [base, head] = [1, 2];
            let text = TextGrowth { base, head, grown: 1, shrunk: 1, new: 1, gone: 1, functions };
            series.text = Some(text);
            series.base = NonZeroU32::new(1);
            series.ids = vec![PatchIds::default()];
            series.ids[0].message_id = Some(MAIL.to_owned());
        }
        run
    })
}

const MAIL: &str = "1@example.org";

#[test]
fn every_form_takes_every_number() {
    let mail = PatchIds { message_id: Some(MAIL.to_owned()), patch_id: None };
    for run in stored().iter().flat_map(extremes) {
        let view = with_listings();
        let plain = terminal::render(&run, &view, terminal::Style::default());
        assert!(plain.contains("Links of storms"), "{plain}");
        assert!(run.cells.iter().map(cell_line).all(|line| !line.is_empty()));
        for page in [
            markdown::render(&run, &view),
            html::render(&run, None, &[base_profile()]),
            mechanisms::render(&mechanisms::data::data(&run)),
            mail::render(&run, &view),
            github::summary(&run, &view, 20_000),
            benchstat::render(&run, None),
            benchmarks::github(&run, None),
            benchmarks::bencher(&run, None),
            timeline::render(&run),
            review::render(std::slice::from_ref(&run), &mail),
        ] {
            assert!(!page.is_empty());
        }
        github::annotations(&run);
        parse(&junit::render(&run).unwrap());
        let found = history::of(&[run.clone(), run], None, &Query::default());
        for history in &found.histories {
            let table = histories::table(history, &histories::Told::default());
            assert!(!terminal::table(&table).is_empty());
        }
        openmetrics::render(&found.histories);
        histories::json(&found, &histories::Told::default());
    }
}

/// The tables of a run's cells and of its series, by the start of their captions.
fn tables(run: &Run, caption: &str) -> Vec<Table> {
    let sections = Document::new(run, &View::default()).sections;
    let tables = sections.into_iter().flat_map(|section| section.tables);
    tables.filter(|table| table.caption.starts_with(caption)).collect()
}

#[test]
fn waits_in_one_place_add_up_to_the_maximum() {
    let mut run = run();
    let attaches = run.cells.iter_mut().filter_map(|cell| match &mut cell.measurement {
        Some(Measurement::Attach(attach)) => Some(attach),
        _ => None,
    });
    let summary = attaches
        .flat_map(|attach| &mut attach.explained)
        .find(|summary| !summary.waits.is_empty())
        .unwrap();
    let wait = Waited { ns: u64::MAX, count: u64::MAX, ..summary.waits[0].clone() };
    summary.waits = vec![wait.clone(), wait];
    summary.wall_ns = u64::MAX;
    let row = &tables(&run, "What it waited for")[0].rows[0];
    assert_eq!(row[2..5], ["18446744073709.55", "100.0 %", "18446744073709551615"]);
}

#[test]
fn links_of_storms_add_up_to_the_maximum() {
    let [mut run, _] = stored();
    for cell in &mut run.cells {
        let Some(Measurement::Survive(survive)) = &mut cell.measurement else { continue };
        for attached in &mut survive.done.as_mut().unwrap().attached {
            (attached.links, attached.refused) = (u64::MAX, u64::MAX);
        }
    }
    let most = u64::MAX.to_string();
    let row = &tables(&run, "Links of storms")[0].rows[0];
    assert_eq!(row[1..3], [most.clone(), most.clone()]);
    let row = &tables(&run, "Storms")[0].rows[0];
    assert_eq!(row[4..6], [most.clone(), most.clone()]);
    let survive = run.cells.iter().find(|cell| cell.id.test.kind().name() == "survive").unwrap();
    assert!(cell_line(survive).contains(&format!("{most} links")));
}

#[test]
fn text_that_grows_by_the_maximum_is_told() {
    for (base, head, change) in
        [(0, u64::MAX, "+18446744073709551615"), (u64::MAX, 0, "-18446744073709551615")]
    {
        let [_, mut run] = stored();
        let text = run.series[0].text.as_mut().unwrap();
        (text.base, text.head) = (base, head);
        let whole = comparison::of_run(&run, &View::default()).remove(0).whole;
        let table = |table: &&Table| table.caption.starts_with("Size of the functions");
        let found = whole.tables.iter().find(table).expect("a table of sizes");
        assert_eq!(found.rows[0][3], change);
    }
}
