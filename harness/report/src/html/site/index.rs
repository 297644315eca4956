// SPDX-License-Identifier: MIT OR Apache-2.0
//! The front page: what stepped lately, then every metric.

use super::{
    Content, Verdict, chapter, counted, day, key, metric::moved_last, natural, path, steps, verdict,
};
use crate::{
    findings::{REST, without_size},
    history::{CAUSES, Told, change, described, line_of, shortened, text, whole},
    html::{
        room::{self, Room, first, shown},
        style::{Frame, SITE_JS},
    },
};
use askama::Template;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};
use tramplab_analysis::{
    compare::Metric,
    history::{Ancestry, History, MetricRow, Step},
};
use tramplab_model::text as model_text;

#[derive(Template)]
#[template(path = "site_index.html")]
pub struct Index {
    frame: Frame,
    sentence: &'static str,
    verdict: Verdict,
    about: Vec<(&'static str, String)>,
    /// Steps to the worse, then those to the better; newest first.
    moved: [Moved; 2],
    chapters: Vec<(&'static str, Vec<Listed>)>,
    left_out: Vec<String>,
    /// Parts that found no room.
    full: usize,
}

/// The steps in one direction.
struct Moved {
    id: &'static str,
    title: &'static str,
    none: &'static str,
    at: Vec<At>,
    more: usize,
}

/// All that stepped at one state of one kernel.
struct At {
    /// The commit or release.
    state: String,
    subject: String,
    about: String,
    open: bool,
    count: String,
    /// Those of the metrics, each once.
    causes: Vec<String>,
    bisect: Option<String>,
    rows: Vec<Stepped>,
    more: usize,
}

struct Stepped {
    href: String,
    metric: String,
    unit: &'static str,
    from: String,
    to: String,
    change: String,
    /// The newest number.
    now: String,
}

/// A metric of the list.
struct Listed {
    href: String,
    metric: String,
    unit: &'static str,
    worse: usize,
    better: usize,
    /// The day of the newest step.
    last: String,
    /// Course, newest number and kernel of histories, those with the newest steps first.
    courses: Vec<[String; 3]>,
    more: usize,
}

/// States that a list shows, and those that it unfolds.
const STATES: usize = 40;
const OPEN: usize = 3;
const STEPS: usize = 200;
const KERNELS: usize = 12;
const COURSES: usize = 3;
const LEFT_OUT: usize = 50;

const SENTENCE: &str = "tramplab boots kernels in guests and measures what tracing with BPF costs \
                        there. These pages follow each number from run to run.";

pub fn page(content: &Content, metrics: &[(Metric, Vec<&History>)], more: usize) -> Index {
    let mut room = Room::new();
    let all: Vec<&History> = content.found.histories.iter().collect();
    let moved = [true, false].map(|worse| moved(content, &all, worse, &mut room));
    let mut chapters: Vec<(&'static str, Vec<Listed>)> = Vec::new();
    for kind in crate::kinds::ORDER {
        let of_kind = metrics.iter().filter(|(metric, _)| metric.test().kind() == kind);
        let listed = of_kind
            .map(|(metric, histories)| listed(metric, histories, content.ancestry))
            .collect();
        let listed = room.keep(listed, |listed: &Listed| {
            let courses = listed.courses.iter().flatten().map(|text| 50 + room::size(text));
            350 + room::size(&listed.metric) + courses.sum::<usize>()
        });
        if !listed.is_empty() {
            chapters.push((chapter(kind), listed));
        }
    }
    let (mut left_out, more_left_out) = first(content.found.left_out.clone(), LEFT_OUT);
    if more_left_out > 0 {
        left_out.push(format!("and {more_left_out} more"));
    }
    Index {
        frame: Frame::new("Metrics over runs".to_owned(), SITE_JS),
        sentence: SENTENCE,
        verdict: verdict(&all),
        about: about(content, &all, metrics.len()),
        moved,
        chapters,
        left_out: left_out.iter().map(|why| shown(why)).collect(),
        full: room.left_out + more,
    }
}

fn about(content: &Content, all: &[&History], metrics: usize) -> Vec<(&'static str, String)> {
    let started = all.iter().flat_map(|history| &history.rows).map(|row| row.started.as_str());
    let times: BTreeSet<&str> = started.collect();
    let span = times.first().zip(times.last()).map_or(String::new(), |(oldest, newest)| {
        format!("first numbers from {} to {}", day(oldest), day(newest))
    });
    let order = match content.told.tree.as_deref() {
        Some(tree) => format!("commits as {tree} has them"),
        None => "time of the runs".to_owned(),
    };
    let kernels = kernels(all);
    [
        ("runs", format!("{}, {span}", content.runs)),
        ("metrics", format!("{metrics}, with {}", counted(all.len()))),
        ("kernels", kernels),
        ("order", order),
    ]
    .map(|(name, value)| (name, shown(&value)))
    .to_vec()
}

/// The histories' kernels: `6.12 (x86_64, tcg), 7.2 (x86_64, tcg)`.
fn kernels(histories: &[&History]) -> String {
    let name = |history: &&History| {
        let line = &history.line;
        format!("{} ({}, {})", line.kernel, line.arch, line.accel.name())
    };
    let names: BTreeSet<String> = histories.iter().map(name).collect();
    let mut names = Vec::from_iter(names);
    names.sort_by_key(|name| natural(name));
    let (names, more) = first(names, KERNELS);
    let more = (more > 0).then(|| format!("{more} more"));
    names.into_iter().chain(more).collect::<Vec<_>>().join(", ")
}

/// The steps in one direction, grouped by the state of the kernel: the newest day first, its
/// kernels in the order of their names, and of a kernel the newest state first.
fn moved(content: &Content, all: &[&History], worse: bool, room: &mut Room) -> Moved {
    // Releases repeat, as a package is measured again with another QEMU or suite: the day counts
    // too.
    type State = (String, String, String);
    let mut by_state: BTreeMap<State, Vec<(&History, usize)>> = BTreeMap::new();
    for history in all {
        let is_step = |row: &MetricRow| row.step.as_ref().is_some_and(|step| step.worse == worse);
        for at in (0..history.rows.len()).filter(|&at| is_step(&history.rows[at])) {
            let MetricRow { kernel, started, .. } = &history.rows[at];
            let state = (kernel.label().to_owned(), line_of(history), day(started).to_owned());
            by_state.entry(state).or_default().push((history, at));
        }
    }
    let mut groups: Vec<_> = by_state.into_iter().collect();
    groups.sort_by_cached_key(|((_, line, day), steps)| {
        let (history, at) = steps[0];
        let (place, started) = key(&history.rows[at], content.ancestry);
        (Reverse(day.clone()), natural(line), Reverse((place, started.to_owned())))
    });
    let (groups, more) = first(groups, STATES);
    let groups =
        groups.into_iter().map(|((state, line, _), steps)| at(content.told, state, line, steps));
    let size = |at: &At| {
        let causes = at.causes.iter().map(|cause| 20 + room::size(cause)).sum::<usize>();
        800 + at.rows.len() * 400 + causes + at.bisect.as_ref().map_or(0, String::len)
    };
    let mut at = room.keep(groups.collect(), size);
    at.iter_mut().enumerate().for_each(|(number, at)| at.open = number < OPEN);
    let (id, title, none) = match worse {
        true => ("worse", "Got worse", "Nothing got worse."),
        false => ("better", "Got better", "Nothing got better."),
    };
    Moved { id, title, none, at, more }
}

fn at(told: &Told, state: String, line: String, steps: Vec<(&History, usize)>) -> At {
    let (first_of_all, place) = steps[0];
    let row = &first_of_all.rows[place];
    let described = steps.iter().filter_map(|(history, at)| {
        Some(described(history, *at, history.rows[*at].step.as_ref()?, told))
    });
    let (mut bisect, mut causes): (Option<String>, Vec<String>) = (None, Vec::new());
    for one in described {
        bisect = bisect.or(one.bisect);
        // The metrics have other shares of one cause.
        let names = one.causes.iter().map(|cause| without_size(cause));
        for cause in names.filter(|cause| *cause != REST).map(shown) {
            if causes.len() < CAUSES && !causes.contains(&cause) {
                causes.push(cause);
            }
        }
    }
    let count = model_text::counted(steps.len(), "metric");
    let (steps, more) = first(steps, STEPS);
    let stepped = |(history, at): &(&History, usize)| {
        Some(stepped(history, *at, history.rows[*at].step.as_ref()?))
    };
    At {
        state: shown(&state),
        subject: row.kernel.title.as_deref().map_or(String::new(), shortened),
        about: shown(&format!("{line}, {}", day(&row.started))),
        open: false,
        count,
        causes,
        bisect: bisect.map(|command| shown(&command)),
        rows: steps.iter().filter_map(stepped).collect(),
        more,
    }
}

fn stepped(history: &History, at: usize, step: &Step) -> Stepped {
    let row = &history.rows[at];
    let now = history.rows.iter().rev().find(|row| row.value().is_some());
    Stepped {
        href: path(&history.metric),
        metric: shown(&history.metric.to_string()),
        unit: history.metric.unit(),
        from: shown(&text(&history.rows[step.since])),
        to: shown(&text(row)),
        change: match &step.ratio {
            Some(ratio) => shown(&ratio.to_string()),
            None => change(row),
        },
        now: now.map_or(String::new(), |row| shown(&text(row))),
    }
}

fn listed(metric: &Metric, histories: &[&History], ancestry: Option<&Ancestry>) -> Listed {
    let (worse, better) = steps(histories);
    let (courses, more) = first(moved_last(histories, ancestry), COURSES);
    let course = |history: &&History| {
        let [_, _, now, _, _, course] = whole(history);
        [course, shown(&now), shown(&kernels(&[history]))]
    };
    let stepped = histories.iter().flat_map(|history| &history.rows);
    let stepped = stepped.filter(|row| row.step.is_some()).map(|row| row.started.as_str());
    Listed {
        href: path(metric),
        metric: shown(&metric.to_string()),
        unit: metric.unit(),
        worse,
        better,
        last: stepped.max().map_or(String::new(), |started| shown(day(started))),
        courses: courses.iter().map(course).collect(),
        more,
    }
}
