// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each mechanism's ring of branch records as a bar: wasted, the driver's own, useful.

use super::{
    records::{Choice, Left, by_choice, by_depth},
    room::{self, first, shown},
    switch::Choices,
};
use crate::{
    group::Group,
    kinds::lbr_waste::{self, Measured, MeasuredRow},
};
use std::collections::BTreeSet;
use tramplab_analysis::branch::{Filter, Model};
use tramplab_model::run::Run;

/// The rings of base and head, or of kernels of one architecture.
pub struct Rings {
    pub caption: String,
    /// True if a column tells the side or the kernel.
    pub several: bool,
    /// The depths in the head of the table.
    pub depths: Vec<Left>,
    pub variants: Vec<(Choice, Vec<Subject>)>,
    /// True if the tables have more.
    pub more: bool,
}

/// A mechanism and point. Sides with the same ring share one.
#[derive(Clone, PartialEq)]
pub struct Subject {
    pub name: String,
    pub rings: Vec<Ring>,
}

#[derive(Clone, PartialEq)]
pub struct Ring {
    /// `base`, or kernels.
    pub side: String,
    pub wasted: String,
    pub driver: String,
    pub useful: Vec<Left>,
    /// Records of the deepest ring; in it the ends of the wasted ones, and of the driver's behind
    /// them. None if no record touches the traced function.
    pub deepest: u32,
    pub ends: Option<[u32; 2]>,
}

impl Ring {
    /// The rings that have less room: their depths, and whether they are not shown first.
    pub fn shallower(&self) -> impl Iterator<Item = (u32, bool)> {
        let depths = self.useful.iter().filter_map(|left| Some((left.depth?, left.hidden)));
        depths.filter(|(depth, _)| *depth < self.deepest)
    }
}

/// Subjects of a side, and sides.
const SUBJECTS: usize = 60;
const SIDES: usize = 6;

impl Rings {
    pub fn size(&self) -> usize {
        let ring = |ring: &Ring| 420 + room::size(&ring.side) + 130 * ring.useful.len();
        let subject = |subject: &Subject| {
            room::size(&subject.name) + subject.rings.iter().map(ring).sum::<usize>()
        };
        let variant = |(_, subjects): &(Choice, Vec<Subject>)| {
            900 + room::size(&self.caption) + subjects.iter().map(subject).sum::<usize>()
        };
        self.variants.iter().map(variant).sum()
    }
}

/// The kernels of a picture, by the name of their side.
type Sides<'a> = Vec<(String, &'a Group<'a>)>;

/// Base and head of each series, then the kernels that no series has, for each kind of guest.
pub fn rings(run: &Run, groups: &[Group], choices: &Choices) -> Vec<Rings> {
    let guests: BTreeSet<_> = groups.iter().map(|group| (group.arch, group.accel)).collect();
    let mut all = Vec::new();
    for (arch, accel) in guests {
        let mut add = |heading: String, sides: Sides, several: bool| {
            let caption = shown(&format!("{heading} ({arch}, {})", accel.name()));
            all.extend(of(run, caption, sides, several, choices));
        };
        let is_measured = |group: &&Group| {
            (group.arch, group.accel) == (arch, accel)
                && lbr_waste::rows(group).iter().any(|row| row.measured.is_ok())
        };
        let mut rest: Vec<&Group> = groups.iter().filter(is_measured).collect();
        for series in run.series.iter().filter(|series| series.arch == arch) {
            let (base, head) = (&series.base().kernel, &series.head().kernel);
            let sides = [("base", base), ("head", head)].into_iter().flat_map(|(side, kernel)| {
                let same = groups.iter().filter(is_measured);
                same.filter(move |group| group.kernel == kernel).map(move |group| (side, group))
            });
            let sides = sides.map(|(side, group)| (side.to_owned(), group)).collect();
            add(format!("{base} beside {head}"), sides, true);
            rest.retain(|group| series.steps.iter().all(|step| step.kernel != group.kernel));
        }
        let heading = match &rest[..] {
            [group] => format!("Linux {}", group.kernel),
            _ => "Each kernel".to_owned(),
        };
        let sides: Sides = rest.into_iter().map(|group| (shown(group.kernel), group)).collect();
        let several = sides.len() > 1;
        add(heading, sides, several);
    }
    all
}

fn of(run: &Run, caption: String, sides: Sides, several: bool, choices: &Choices) -> Option<Rings> {
    let (sides, more_sides) = first(sides, SIDES);
    let mut more = more_sides > 0;
    let mut measured: Vec<(&str, &Group, Vec<MeasuredRow>)> = Vec::new();
    for (side, group) in &sides {
        let (rows, more_rows) = first(lbr_waste::rows(group), SUBJECTS);
        more |= more_rows > 0;
        measured.push((side, group, rows));
    }
    let mut waste = measured.iter().flat_map(|(.., rows)| rows).filter_map(|row| row.measured.ok());
    let ring = waste.next()?.waste.depth;
    let everyone = sides.iter().map(|(side, _)| side.as_str()).collect::<Vec<_>>().join(", ");
    let all = match sides.len() {
        1 => everyone.as_str(),
        2 => "both",
        _ => "all",
    };
    let variants = by_choice(choices, |model, filter| {
        let mut subjects: Vec<Subject> = Vec::new();
        for (side, group, rows) in &measured {
            for row in rows {
                let Ok(measured) = &row.measured else { continue };
                let model = Model::choose(Some(model), group.arch);
                let ring = drawn(run, measured, model, filter, choices);
                add(&mut subjects, &row.name, Ring { side: (*side).to_owned(), ..ring });
            }
        }
        for ring in subjects.iter_mut().flat_map(|subject| &mut subject.rings) {
            if ring.side == everyone {
                ring.side = all.to_owned();
            }
        }
        subjects
    });
    Some(Rings {
        caption,
        several,
        depths: by_depth(ring, choices, |depth| depth.to_string()),
        variants,
        more,
    })
}

fn drawn(run: &Run, measured: &Measured, model: Model, filter: Filter, choices: &Choices) -> Ring {
    let wasted = measured.by(model, filter);
    let driver = measured.driver(run);
    let taken = driver.takes(model, filter);
    let depth = measured.waste.depth;
    // As deep whatever the reader chooses, so that pictures can be compared.
    let depths = Model::of(model.arch()).flat_map(|model| model.depths()).copied();
    let deepest = depth.or(depths.max()).unwrap_or_default().max(choices.depth);
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    Ring {
        side: String::new(),
        wasted: dash(wasted.map(|count| count.to_string())),
        driver: taken.to_string(),
        useful: by_depth(depth, choices, |depth| {
            dash(wasted.map(|count| driver.useful(model, filter, depth, count).to_string()))
        }),
        deepest,
        ends: wasted
            .map(|count| [count, count.saturating_add(taken.least)].map(|end| end.min(deepest))),
    }
}

fn add(subjects: &mut Vec<Subject>, name: &str, ring: Ring) {
    let name = shown(name);
    let Some(subject) = subjects.iter_mut().find(|subject| subject.name == name) else {
        return subjects.push(Subject { name, rings: vec![ring] });
    };
    let is_same = |known: &&mut Ring| Ring { side: ring.side.clone(), ..(**known).clone() } == ring;
    match subject.rings.iter_mut().find(is_same) {
        Some(known) => known.side += &format!(", {}", ring.side),
        None => subject.rings.push(ring),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{content, tests, view::View};
    use askama::Template;

    #[derive(Template)]
    #[template(path = "rings.html")]
    struct Shown<'a> {
        rings: &'a [Rings],
    }

    #[test]
    fn pictures_have_few_kernels_and_their_size_covers_their_markup() {
        let mut run = tests::run();
        let cells = run.cells.clone();
        for number in 0..10 {
            let add = |mut cell: tramplab_model::run::Cell| {
                cell.id.kernel += &format!("<{number}>");
                cell
            };
            run.cells.extend(cells.iter().cloned().map(add));
        }
        let choices = Choices::new(&run, None);
        let drawn = rings(&run, &content::groups(&run, &View::default()), &choices);
        let [drawn] = &drawn[..] else { panic!() };
        let html = Shown { rings: std::slice::from_ref(drawn) }.render().unwrap();
        assert!(html.len() <= drawn.size(), "{} > {}", html.len(), drawn.size());
        assert!(drawn.more && html.contains("The tables have more."));
    }
}
