// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a metric: all its histories.

use super::{Content, Verdict, counted, day, key, natural, path, steps, verdict};
use crate::{
    history::{Described, Told, described, line_of, shortened, table, text, whole},
    html::{
        page::Grid,
        plot::{
            Figure, Plot, WIDTH, bars,
            course::{self, Followed, course},
            growth, times,
        },
        room::{Room, first, shown},
        style::{Frame, SITE_JS},
        title::does,
    },
};
use askama::Template;
use std::{cmp::Reverse, collections::BTreeMap};
use tramplab_analysis::{
    compare::{Metric, Value},
    history::{Ancestry, History, MetricRow, Step},
};
use tramplab_model::{
    run::{Accel, Arch},
    table::Table,
    text as model_text,
};

#[derive(Template)]
#[template(path = "site_metric.html")]
pub struct MetricPage {
    frame: Frame,
    sentence: String,
    verdict: Verdict,
    summary: String,
    /// The metrics of the same test: link and name, and true for this one.
    siblings: Vec<(String, String, bool)>,
    figures: Vec<Figure>,
    steps: Vec<Stepped>,
    more_steps: usize,
    beside: Vec<Grid>,
    histories: Vec<Part>,
    /// Parts that found no room.
    left_out: usize,
}

struct Stepped {
    number: usize,
    worse: bool,
    /// `2026-11-03, 7.2 (x86_64, tcg; suite ci)`.
    about: String,
    subject: String,
    text: String,
    causes: Vec<String>,
    bisect: Option<String>,
}

struct Part {
    heading: String,
    guest: String,
    open: bool,
    tables: Vec<Grid>,
}

const HISTORIES: usize = 100;
const STEPS: usize = 200;
const SIBLINGS: usize = 60;

pub fn page(
    content: &Content,
    metric: Metric,
    histories: &[&History],
    metrics: &[(Metric, Vec<&History>)],
) -> MetricPage {
    let told = content.told;
    let mut room = Room::new();
    let histories = &moved_last(histories, content.ancestry)[..];
    let numbers = numbered(histories, content.ancestry);
    let (worse, better) = steps(histories);
    let (shown_histories, more) = first(histories.to_vec(), HISTORIES);
    let siblings = metrics.iter().map(|(other, _)| *other);
    let siblings = siblings.filter(|other| other.test() == metric.test());
    let siblings = siblings.map(|other| {
        let page = path(&other);
        let file = page.rsplit('/').next().unwrap_or_default().to_owned();
        (file, shown(&other.to_string()), other == metric)
    });
    let stepped = numbers
        .iter()
        .map(|(&(history, at), &number)| stepped(histories[history], at, number, told));
    let mut stepped: Vec<Stepped> = stepped.flatten().collect();
    stepped.sort_by_key(|step| step.number);
    let (stepped, more_steps) = first(stepped, STEPS);
    let stepped = room
        .keep(stepped, |step| 500 + step.text.len() + step.bisect.as_ref().map_or(0, String::len));
    let beside = room.keep(vec![Grid::new(side_by_side(histories))], Grid::size);
    let parts = shown_histories.into_iter().enumerate().map(|(number, history)| Part {
        heading: shown(&line_of(history)),
        guest: shown(&history.line.guest),
        open: number == 0,
        tables: vec![Grid::new(newest_first(history, told))],
    });
    let parts = room.keep(parts.collect(), |part: &Part| part.tables.iter().map(Grid::size).sum());
    MetricPage {
        frame: Frame::new(shown(&metric.to_string()), SITE_JS),
        sentence: sentence(metric),
        verdict: verdict(histories),
        summary: format!(
            "{}; {} to the worse, {better} to the better",
            counted(histories.len()),
            model_text::counted(worse, "step"),
        ),
        siblings: first(siblings.collect(), SIBLINGS).0,
        figures: figures(metric, histories, content.ancestry, &numbers),
        steps: stepped,
        more_steps,
        beside,
        histories: parts,
        left_out: room.left_out + more,
    }
}

/// `tramplab counts the instructions of a hit. Unit: instructions.`
fn sentence(metric: Metric) -> String {
    let does = does(metric.test().kind()).map(|does| format!("tramplab {does}. "));
    format!("{}Unit: {}.", does.unwrap_or_default(), metric.unit())
}

/// The histories with the newest steps first, then those that have a course.
pub fn moved_last<'a>(histories: &[&'a History], ancestry: Option<&Ancestry>) -> Vec<&'a History> {
    let newest = |history: &History| {
        let steps = history.rows.iter().filter(|row| row.step.is_some());
        steps.map(|row| key(row, ancestry)).max().map(|(place, day)| (place, day.to_owned()))
    };
    let mut histories = histories.to_vec();
    histories.sort_by_cached_key(|history| {
        (Reverse(newest(history)), history.rows.len() < 2, natural(&history.line.kernel))
    });
    histories
}

/// The number of each step on the page, by its history and row; the newest is 1.
fn numbered(
    histories: &[&History],
    ancestry: Option<&Ancestry>,
) -> BTreeMap<(usize, usize), usize> {
    let mut steps: Vec<(usize, usize)> = Vec::new();
    for (number, history) in histories.iter().enumerate() {
        let rows = 0..history.rows.len();
        steps.extend(rows.filter(|&at| history.rows[at].step.is_some()).map(|at| (number, at)));
    }
    steps.sort_by_key(|(history, at)| Reverse(key(&histories[*history].rows[*at], ancestry)));
    steps.into_iter().enumerate().map(|(index, step)| (step, index + 1)).collect()
}

fn stepped(history: &History, at: usize, number: usize, told: &Told) -> Option<Stepped> {
    let row = &history.rows[at];
    let step = row.step.as_ref()?;
    let Described { text, causes, bisect } = described(history, at, step, told);
    Some(Stepped {
        number,
        worse: step.worse,
        about: shown(&format!("{}, {}", day(&row.started), line_of(history))),
        subject: row.kernel.title.as_deref().map_or(String::new(), shortened),
        text: shown(&text),
        causes: causes.iter().map(|cause| shown(cause)).collect(),
        bisect: bisect.map(|command| shown(&command)),
    })
}

/// The history's table, without the sentences of its steps, which the page has.
fn newest_first(history: &History, told: &Told) -> Table {
    let mut table = table(history, told);
    table.rows.reverse();
    // Numbers and steps first: they fit a phone.
    let last = table.header.len() - 1;
    for row in table.rows.iter_mut().chain([&mut table.header]) {
        row[1..last].rotate_right(3);
    }
    table.notes.drain(..crate::history::steps(history));
    table
}

fn side_by_side(histories: &[&History]) -> Table {
    let header = [
        "kernel",
        "change",
        "steps",
        "first",
        "last",
        "course",
        "rows",
        "arch",
        "accelerator",
        "suite",
    ];
    let row = |history: &&History| {
        let line = &history.line;
        let [rows, first, last, change, steps, course] = whole(history);
        let numbers = [change, steps, first, last, course, rows];
        let guest = [line.arch.name(), line.accel.name(), &line.suite].map(str::to_owned);
        [line.kernel.clone()].into_iter().chain(numbers).chain(guest).collect()
    };
    Table::new("First and last number of each history", header, histories.iter().map(row))
}

/// One picture for each kind of guest, with its kernels side by side: numbers of two architectures
/// are far apart.
fn figures(
    metric: Metric,
    histories: &[&History],
    ancestry: Option<&Ancestry>,
    numbers: &BTreeMap<(usize, usize), usize>,
) -> Vec<Figure> {
    type Guest<'a> = (Arch, Accel, &'a str, &'a str);
    let mut groups: Vec<(Guest, Vec<usize>)> = Vec::new();
    for (index, history) in histories.iter().enumerate() {
        let line = &history.line;
        let guest = (line.arch, line.accel, line.suite.as_str(), line.guest.as_str());
        match groups.iter_mut().find(|(of, _)| *of == guest) {
            Some((_, group)) => group.push(index),
            None => groups.push((guest, vec![index])),
        }
    }
    let figure = |((arch, accel, suite, guest), group): (Guest, Vec<usize>)| {
        figure(metric, histories, &group, ancestry, numbers).map(|(plot, left_out)| Figure {
            caption: shown(&format!(
                "{metric} on {arch}, {}, suite {suite} ({guest})",
                accel.name()
            )),
            plot: Plot::Course(plot),
            notes: (left_out > 0)
                .then(|| format!("Not drawn: {}.", model_text::counted(left_out, "more kernel")))
                .into_iter()
                .collect(),
        })
    };
    first(groups.into_iter().filter_map(figure).collect(), HISTORIES).0
}

fn figure(
    metric: Metric,
    histories: &[&History],
    group: &[usize],
    ancestry: Option<&Ancestry>,
    numbers: &BTreeMap<(usize, usize), usize>,
) -> Option<(course::Course, usize)> {
    let rows = group.iter().flat_map(|&index| &histories[index].rows);
    // Runs of one time have one place, whatever the kernel.
    let keys: BTreeMap<_, &MetricRow> = rows.map(|row| (key(row, ancestry), row)).collect();
    let places: BTreeMap<_, usize> =
        keys.keys().enumerate().map(|(place, &key)| (key, place)).collect();
    let mut of_day: BTreeMap<&str, usize> = BTreeMap::new();
    keys.values().for_each(|row| *of_day.entry(day(&row.started)).or_default() += 1);
    let labels: Vec<String> =
        keys.values().map(|row| shown(&label(row, of_day[day(&row.started)] > 1))).collect();
    // One point is no course: the table below has it.
    if keys.len() < 2 {
        return None;
    }
    let followed = group.iter().map(|&index| {
        let history = histories[index];
        let row = |(at, row): (usize, &MetricRow)| course::Row {
            place: places[&key(row, ancestry)],
            number: row.value().and_then(Value::number),
            title: shown(&format!("{}, {}: {}", row.kernel.label(), day(&row.started), text(row))),
            step: row.step.as_ref().map(|step: &Step| course::Stepped {
                worse: step.worse,
                number: numbers[&(index, at)],
            }),
        };
        let rows = history.rows.iter().enumerate().map(row).collect();
        Followed { label: shown(&history.line.kernel), rows }
    });
    let followed: Vec<Followed> = followed.collect();
    course(&followed, &labels, metric.unit())
}

/// A commit, else the day; with the time, if the day has several.
fn label(row: &MetricRow, several: bool) -> String {
    match row.kernel.commit {
        Some(_) => row.kernel.label().to_owned(),
        None if several => row.started.get(5..19).unwrap_or_default().replace('T', " "),
        None => day(&row.started).to_owned(),
    }
}
