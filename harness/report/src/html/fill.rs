// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a run to its page: the tables, listings and verdicts of the other reports, in the page's
//! order. What matters most comes first, as later parts may find no room.

use super::{
    figures,
    page::{
        Block, Changes, Chapter, Choice, Endings, Failed, Finding, Grid, Judged, Listed, Page,
        Part, Switches,
    },
    plot::flame::{self, Flame},
    records::{self, Records},
    rings::{Rings, rings},
    room::{self, Room, first, shown},
    style::{self, Frame},
    switch::{Choices, by_model, names},
    title::{sentence, title},
};
use crate::{
    comparison, configurations, content,
    findings::Told,
    group::Group,
    kinds,
    outcomes::{self, Outcomes},
    view::View,
};
use tramplab_analysis::{branch::Model, profile::Profile, verdict::verdict};
use tramplab_model::{
    kinds::Kind,
    run::{Run, Series},
    table::Table,
};

/// Cells, kernels and skips that a list names.
const LISTED: usize = 200;
/// Series, each in several configurations.
const SERIES: usize = 16;
/// Lines of a console.
const CONSOLE: usize = 200;

pub fn page(run: &Run, asked: Option<Model>, profiles: &[Profile]) -> Page {
    let choices = Choices::new(run, asked);
    let mut room = Room::new();
    let outcomes = outcomes::outcomes(run);
    let (summary, lacks) = (shown(&outcomes.summary), outcomes.lacks.clone());
    let (groups, _) = first(content::groups(run, &View::default()), LISTED);
    let rings = room.keep(rings(run, &groups, &choices), Rings::size);
    let changes = changes(run, &choices, &mut room);
    let endings = endings(outcomes, &mut room);
    let chapters = chapters(run, &groups, profiles, &choices, &mut room);
    let switches = chapters.iter().any(|chapter| chapter.switched).then(|| switches(&choices));
    Page {
        frame: Frame::new(shown(&title(run)), style::JS),
        sentence: sentence(run),
        verdict: verdict(run),
        summary,
        lacks: lacks.iter().map(|lack| shown(lack)).collect(),
        about: pairs(
            [("run", run.id.clone())].into_iter().chain(content::about_run(run)).collect(),
        ),
        rings,
        changes,
        switches,
        chapters,
        endings,
        left_out: room.left_out,
    }
}

fn pairs(pairs: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    let (pairs, _) = first(pairs, LISTED);
    pairs.into_iter().map(|(name, value)| (name.to_owned(), shown(&value))).collect()
}

fn switches(choices: &Choices) -> Switches {
    let choice = |value: String, chosen| Choice { value, chosen };
    let models = choices.models.iter();
    Switches {
        models: models
            .map(|&model| choice(model.name().to_owned(), model == choices.model()))
            .collect(),
        filters: choices
            .filters
            .iter()
            .map(|filter| choice(filter.to_string(), *filter == choices.filters[0]))
            .collect(),
        depths: choices
            .depths
            .iter()
            .map(|depth| choice(depth.to_string(), *depth == choices.depth))
            .collect(),
    }
}

/// The other reports' view of a model.
fn view(model: Model) -> View {
    View { model: Some(model), ..View::default() }
}

fn grids(tables: Vec<Table>, room: &mut Room) -> Vec<Grid> {
    room.keep(tables.into_iter().map(Grid::new).collect(), Grid::size)
}

/// Base against head, by model.
fn changes(run: &Run, choices: &Choices, room: &mut Room) -> Vec<Changes> {
    let by_model = by_model(choices, |model| comparison::of_run(run, &view(model)));
    let (series, _) = first(run.series.iter().enumerate().collect(), SERIES);
    let mut all = Vec::new();
    for (index, _) in series {
        let of_first = &by_model[0].1[index];
        let mut judged = Vec::new();
        for (models, of_run) in &by_model {
            let verdicts = &of_run[index].whole;
            judged.push(Judged {
                models: names(models),
                hidden: !judged.is_empty(),
                summary: shown(&verdicts.summary),
                overlooked: verdicts.overlooked.iter().take(LISTED).map(|why| shown(why)).collect(),
                findings: findings(&verdicts.findings, room),
                tables: grids(verdicts.tables.clone(), room),
            });
        }
        let mut walk = of_first.walk.clone();
        let walked = walk.split_off(walk.len().min(1));
        all.push(Changes {
            heading: shown(&of_first.whole.heading),
            judged,
            walk: grids(walk, room),
            walked: grids(walked, room),
        });
    }
    all
}

fn findings(all: &[Told], room: &mut Room) -> Vec<Finding> {
    let texts = |texts: &[String]| texts.iter().take(LISTED).map(|text| shown(text)).collect();
    let finding = |told: &Told| Finding {
        verdict: told.verdict,
        patch: told.patch.as_deref().map_or(String::new(), shown),
        causes: texts(&told.causes),
        moved: texts(&told.moved),
    };
    room.keep(all.iter().map(finding).collect(), Finding::size)
}

fn endings(outcomes: Outcomes, room: &mut Room) -> Endings {
    let Outcomes { failures, errors, skips, allowed, .. } = outcomes;
    let list = |texts: Vec<String>| {
        let (texts, more) = first(texts, LISTED);
        let more = (more > 0).then(|| format!("and {more} more"));
        texts.iter().map(|text| shown(text)).chain(more).collect::<Vec<String>>()
    };
    let named = |(name, texts): (String, Vec<String>)| (shown(&name), list(texts));
    let size_of_named = |(name, texts): &(String, Vec<String>)| {
        100 + room::size(name) + texts.iter().map(|text| 20 + room::size(text)).sum::<usize>()
    };
    let failed = |failed: outcomes::Failed| {
        let console = &failed.console[failed.console.len().saturating_sub(CONSOLE)..];
        Failed {
            heading: shown(&failed.heading()),
            message: shown(&failed.message),
            console: console.iter().map(|line| shown(line) + "\n").collect(),
            others: list(failed.cells.into_iter().skip(1).collect()),
        }
    };
    let size = |failed: &Failed| {
        let Failed { heading, message, others, console } = failed;
        let texts = [heading, message, console].map(|text| room::size(text));
        600 + texts.iter().sum::<usize>()
            + others.iter().map(|cell| 20 + room::size(cell)).sum::<usize>()
    };
    let (failures, more_failures) = first(failures, LISTED);
    let (errors, more_errors) = first(errors, LISTED);
    let failures = room.keep(failures.into_iter().map(named).collect(), size_of_named);
    let errors = room.keep(errors.into_iter().map(failed).collect(), size);
    let by_reason = [("skipped", skips), ("with an allowed warning", allowed)];
    let [skips, allowed] = by_reason.map(|(what, by_reason)| {
        let (by_reason, _) = first(by_reason, LISTED);
        let counted = |(reason, cells): (String, Vec<String>)| {
            named((format!("{} {what}: {reason}", cells.len()), cells))
        };
        room.keep(by_reason.into_iter().map(counted).collect(), size_of_named)
    });
    Endings { failures, more_failures, errors, more_errors, skips, allowed }
}

/// The chapters that have something, in the order of every report.
fn chapters(
    run: &Run,
    groups: &[Group],
    profiles: &[Profile],
    choices: &Choices,
    room: &mut Room,
) -> Vec<Chapter> {
    let all = kinds::ORDER.into_iter().filter_map(|kind| {
        let (id, title) = named(kind)?;
        let chapter = Chapter {
            id,
            title,
            switched: kind == Kind::LbrWaste,
            figures: figures::of(kind, groups),
            flames: flames(kind, profiles, room),
            parts: parts(kind, run, groups, choices, room),
            listings: listings(kind, run, groups, choices, room),
        };
        let is_empty = chapter.parts.is_empty() && chapter.listings.is_empty();
        (!is_empty).then_some(chapter)
    });
    let mut all: Vec<Chapter> = all.collect();
    all.extend(settings(run, choices, room));
    all
}

fn flames(kind: Kind, profiles: &[Profile], room: &mut Room) -> Vec<Flame> {
    let profiles = if kind == Kind::Attach { profiles } else { &[] };
    room.keep(profiles.iter().filter_map(flame::flame).collect(), Flame::size)
}

pub fn named(kind: Kind) -> Option<(&'static str, &'static str)> {
    match kind {
        Kind::LbrWaste => Some(("records", "Branch records")),
        Kind::Trigger => Some(("hits", "Cost of a hit")),
        Kind::Attach => Some(("attach", "Attaching")),
        Kind::Bench => Some(("bench", "Benchmarks of the kernel tree")),
        Kind::TestProgs => Some(("test_progs", "The kernel tree's test_progs")),
        Kind::Kselftest => Some(("kselftest", "The kernel tree's selftests")),
        Kind::Survive => Some(("survive", "Storms")),
        Kind::Boot | Kind::Build | Kind::Fault => None,
    }
}

/// Kernels side by side, then each kernel's tables.
fn parts(kind: Kind, run: &Run, groups: &[Group], choices: &Choices, room: &mut Room) -> Vec<Part> {
    let report = kinds::of(kind);
    let mut parts = Vec::new();
    if groups.len() > 1 {
        let tables = by_model(choices, |model| report.by_kernel(run, groups, &view(model)));
        parts.push(part("All kernels".to_owned(), Vec::new(), tables, room));
    }
    for group in groups {
        let tables = by_model(choices, |model| report.tables(run, group, &view(model)));
        let about = pairs(content::about(run, group));
        parts.push(part(group.heading(), about, tables, room));
    }
    parts.retain(|part| part.blocks.iter().any(|block| !block.tables.is_empty()));
    // One kernel's tables are the page; those of many are folded below the first table.
    let few = parts.len() <= 2;
    parts.iter_mut().enumerate().for_each(|(index, part)| part.open = few || index == 0);
    parts
}

fn part(
    heading: String,
    about: Vec<(String, String)>,
    by_model: Vec<(Vec<Model>, Vec<Table>)>,
    room: &mut Room,
) -> Part {
    let block = |(index, (models, tables)): (usize, (Vec<Model>, Vec<Table>))| Block {
        models: names(&models),
        hidden: index > 0,
        tables: grids(tables, room),
    };
    Part {
        heading: shown(&heading),
        about,
        open: true,
        blocks: by_model.into_iter().enumerate().map(block).collect(),
    }
}

/// Base beside head, then the records of kernels that no series compares.
fn listings(
    kind: Kind,
    run: &Run,
    groups: &[Group],
    choices: &Choices,
    room: &mut Room,
) -> Vec<Listed> {
    type OfSeries = fn(&Run, &Series, &Choices) -> Vec<Records>;
    type OfGroup = fn(&Run, &Group, &Choices) -> Vec<Records>;
    let (of_series, of_group): (OfSeries, OfGroup) = match kind {
        Kind::LbrWaste => (records::waste_of_series, records::waste_of_group),
        Kind::Trigger => (records::hits_of_series, records::hits_of_group),
        _ => return Vec::new(),
    };
    let mut all: Vec<Listed> = Vec::new();
    let mut add = |heading: String, records: Vec<Records>| {
        let records = room.keep(records, Records::size);
        if !records.is_empty() {
            all.push(Listed { heading: shown(&heading), records });
        }
    };
    for series in &run.series {
        let (base, head) = (&series.base().kernel, &series.head().kernel);
        let heading = format!("{base} beside {head} ({})", series.arch);
        add(heading, of_series(run, series, choices));
    }
    let is_beside = |group: &&Group| {
        let mut series = run.series.iter().filter(|series| series.arch == group.arch);
        series.any(|series| {
            [series.base(), series.head()].iter().any(|step| step.kernel == group.kernel)
        })
    };
    for group in groups.iter().filter(|group| !is_beside(group)) {
        add(group.heading(), of_group(run, group, choices));
    }
    all
}

/// One kernel in several configurations.
fn settings(run: &Run, choices: &Choices, room: &mut Room) -> Option<Chapter> {
    let tables = by_model(choices, |model| configurations::tables(run, &view(model)));
    let mut parts = vec![part("Metrics by configuration".to_owned(), Vec::new(), tables, room)];
    let sections = by_model(choices, |model| configurations::sections(run, &view(model)));
    let (_, of_first) = &sections[0];
    for (index, section) in of_first.iter().enumerate() {
        let tables = sections.iter().map(|(models, of_model)| {
            (models.clone(), of_model.get(index).map_or_else(Vec::new, |same| same.tables.clone()))
        });
        parts.push(part(section.heading.clone(), Vec::new(), tables.collect(), room));
    }
    parts.retain(|part| part.blocks.iter().any(|block| !block.tables.is_empty()));
    let chapter = Chapter {
        id: "configurations",
        title: "Configurations",
        switched: false,
        figures: Vec::new(),
        flames: Vec::new(),
        parts,
        listings: Vec::new(),
    };
    (!chapter.parts.is_empty()).then_some(chapter)
}
