// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listings of branch records that the reader switches by CPU model, filter and depth. Every choice
//! is counted here and written into the page, whose script only hides and shows.

use super::{
    room::{self, shown},
    switch::{Choices, by_model, names},
};
use crate::{
    group::Group,
    kinds::{lbr_waste, trigger},
    useful,
};
use tramplab_analysis::{
    branch::{
        Driver, Filter, Model, driver,
        listing::{Line, lines},
        waste,
    },
    compare::{
        self, Listings, Pair, Side, Subject,
        kinds::{hit_listings, waste_listings},
        pair_up,
    },
};
use tramplab_model::{
    kinds::lbr_waste::Test as Waste,
    run::{Arch, CapturePoint, Cell, LbrWaste, Measurement, Run, Series, Test},
};

/// The listings of one subject: a row of the waste table, or one side of a hit.
pub struct Records {
    pub name: String,
    /// Base beside head.
    pub paired: bool,
    /// True if base and head differ in any variant.
    pub differs: bool,
    pub counts: Vec<Counts>,
    pub variants: Vec<Variant>,
}

/// The choices of the reader that show something.
#[derive(Clone, PartialEq)]
pub struct Choice {
    /// Names of models. Empty if no model changes it.
    pub models: String,
    /// Empty if no filter changes it.
    pub filter: String,
    pub hidden: bool,
}

/// The counts of a listing. Models that list the same records may have other counts, since their
/// drivers differ.
#[derive(Clone, PartialEq)]
pub struct Counts {
    pub choice: Choice,
    pub sides: Vec<Wasted>,
}

/// A listing by some choices of the reader.
#[derive(Clone, PartialEq)]
pub struct Variant {
    pub choice: Choice,
    pub rows: Vec<RecordRow>,
    /// True if older records are left out.
    pub more: bool,
}

/// Counts of one side.
#[derive(Clone, PartialEq)]
pub struct Wasted {
    /// `base`, `head`, or nothing.
    pub side: &'static str,
    /// `12 wasted, driver 5`.
    pub text: String,
    pub useful: Vec<Left>,
}

/// The useful records of a ring.
#[derive(Clone, PartialEq)]
pub struct Left {
    /// None if the CPU has only this depth.
    pub depth: Option<u32>,
    pub hidden: bool,
    pub text: String,
}

#[derive(Clone, PartialEq)]
pub struct RecordRow {
    pub mark: Mark,
    /// One cell, or base and head.
    pub cells: Vec<Option<Record>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    None,
    Went,
    Came,
    Moved,
}

impl Mark {
    /// The sign before the row.
    pub fn sign(self) -> &'static str {
        match self {
            Mark::None => "",
            Mark::Went => "−",
            Mark::Came => "+",
            Mark::Moved => "~",
        }
    }

    /// The word for it, for those who do not see the sign, and the class in the style sheet.
    pub fn word(self) -> &'static str {
        match self {
            Mark::None => "",
            Mark::Went => "went",
            Mark::Came => "came",
            Mark::Moved => "moved",
        }
    }
}

impl From<Side> for Mark {
    fn from(side: Side) -> Mark {
        match side {
            Side::Both => Mark::None,
            Side::Moved => Mark::Moved,
            Side::Base => Mark::Went,
            Side::Head => Mark::Came,
        }
    }
}

#[derive(Clone, PartialEq)]
pub struct Record {
    pub index: usize,
    /// True if a ring of the depth shown first no longer has it.
    pub lost: bool,
    pub instructions: Option<u32>,
    pub from: String,
    pub to: String,
    pub note: Option<&'static str>,
}

impl Record {
    fn new(line: &Line, choices: &Choices) -> Record {
        Record {
            index: line.index,
            lost: line.instructions.is_none() && line.index >= choices.depth as usize,
            instructions: line.instructions,
            from: shown(&line.from),
            to: shown(&line.to),
            note: line.note.text(),
        }
    }
}

/// Records of one listing. Where nothing touches the traced function, it has the whole trace.
const RECORDS: usize = 96;

impl Records {
    pub fn size(&self) -> usize {
        let cell = |record: &Record| 100 + room::size(&record.from) + room::size(&record.to);
        let row = |row: &RecordRow| 60 + row.cells.iter().flatten().map(cell).sum::<usize>();
        let variant = |variant: &Variant| 300 + variant.rows.iter().map(row).sum::<usize>();
        let variants = self.variants.iter().map(variant).sum::<usize>();
        200 + room::size(&self.name) + 600 * self.counts.len() + variants
    }

    /// The same on every model, without a filter.
    fn fixed(name: String, paired: bool, rows: Vec<RecordRow>) -> Records {
        let (rows, more) = newest(rows);
        let choice = Choice { models: String::new(), filter: String::new(), hidden: false };
        Records::of(name, paired, Vec::new(), vec![Variant { choice, rows, more }])
    }

    fn of(name: String, paired: bool, counts: Vec<Counts>, variants: Vec<Variant>) -> Records {
        let rows = variants.iter().flat_map(|variant| &variant.rows);
        let differs = rows.into_iter().any(|row| row.mark != Mark::None);
        Records { name, paired, differs, counts, variants }
    }
}

/// Rows are oldest first: leaves the oldest out.
fn newest(mut rows: Vec<RecordRow>) -> (Vec<RecordRow>, bool) {
    let more = rows.len().saturating_sub(RECORDS);
    rows.drain(..more);
    (rows, more > 0)
}

/// Lists one kernel's waste.
pub fn waste_of_group(run: &Run, group: &Group, choices: &Choices) -> Vec<Records> {
    let mut all = Vec::new();
    for row in lbr_waste::rows(group) {
        let Ok(measured) = row.measured else { continue };
        let (waste, point) = (measured.waste, &measured.waste.points[measured.point]);
        let captured = Captured { side: "", waste, point, driver: measured.driver(run) };
        let counts = counts(group.arch, waste, choices, |model, filter| {
            vec![captured.wasted(model, filter, choices)]
        });
        let variants = variants(group.arch, waste, choices, |model, filter| {
            let mut listed = lines(point, &waste.function, model, filter);
            listed.reverse();
            listed.iter().map(|line| alone(line, choices)).collect()
        });
        let name = format!("{} of {}", row.test.row(point.point).side(), waste.function.name);
        all.push(Records::of(shown(&name), false, counts, variants));
    }
    all
}

/// Lists the branches of one kernel's hits.
pub fn hits_of_group(_: &Run, group: &Group, choices: &Choices) -> Vec<Records> {
    let records = |(name, mut listed): (String, Vec<Line>)| {
        listed.reverse();
        let rows = listed.iter().map(|line| alone(line, choices));
        Records::fixed(shown(&name), false, rows.collect())
    };
    trigger::lists(group).into_iter().map(records).collect()
}

fn alone(line: &Line, choices: &Choices) -> RecordRow {
    RecordRow { mark: Mark::None, cells: vec![Some(Record::new(line, choices))] }
}

/// Lists the waste of a series' base beside that of its head.
pub fn waste_of_series(run: &Run, series: &Series, choices: &Choices) -> Vec<Records> {
    let of_pair = |pair: &Pair| {
        let Test::LbrWaste(test) = pair.base.id.test else { return None };
        let (base, head) = (Measured::of(Some(pair.base))?, Measured::of(pair.head)?);
        Some(beside(run, test, pair, [base, head], choices))
    };
    changed_first(of_pairs(run, series, |pair| of_pair(pair).unwrap_or_default()))
}

/// Lists the branches of the base's hits beside those of the head's.
pub fn hits_of_series(run: &Run, series: &Series, choices: &Choices) -> Vec<Records> {
    let records = |found: &Listings| {
        Records::fixed(shown(&found.subject.to_string()), true, rows(found, choices))
    };
    let of_pair = |pair: &Pair| match pair.base.id.test {
        Test::Trigger(test) => hit_listings(test, pair).iter().map(records).collect(),
        _ => Vec::new(),
    };
    changed_first(of_pairs(run, series, of_pair))
}

/// Lists each test of base and head.
fn of_pairs(run: &Run, series: &Series, of_pair: impl Fn(&Pair) -> Vec<Records>) -> Vec<Records> {
    let cells = |kernel: &str| run.cells_of(series.arch, kernel).collect::<Vec<&Cell>>();
    let (base, head) = (cells(&series.base().kernel), cells(&series.head().kernel));
    pair_up(&base, &head).iter().flat_map(of_pair).collect()
}

fn changed_first(mut all: Vec<Records>) -> Vec<Records> {
    all.sort_by_key(|records| !records.differs);
    all
}

#[derive(Clone, Copy)]
struct Measured<'a> {
    cell: &'a Cell,
    waste: &'a LbrWaste,
}

impl<'a> Measured<'a> {
    fn of(cell: Option<&'a Cell>) -> Option<Measured<'a>> {
        let cell = cell?;
        match &cell.measurement {
            Some(Measurement::LbrWaste(waste)) => Some(Measured { cell, waste }),
            _ => None,
        }
    }
}

/// Lists each capture point that both sides have.
fn beside(
    run: &Run,
    test: Waste,
    pair: &Pair,
    [base, head]: [Measured; 2],
    choices: &Choices,
) -> Vec<Records> {
    let mut all = Vec::new();
    for point in &base.waste.points {
        let Some(partner) = head.waste.points.iter().find(|other| other.point == point.point)
        else {
            continue;
        };
        let (row, arch) = (test.row(point.point), pair.base.id.arch);
        let captured = [("base", base, point), ("head", head, partner)].map(|(side, of, point)| {
            let driver = useful::driver(run, of.cell, of.waste, &point.records);
            Captured { side, waste: of.waste, point, driver }
        });
        let counts = counts(arch, base.waste, choices, |model, filter| {
            captured.iter().map(|of| of.wasted(model, filter, choices)).collect()
        });
        let variants = variants(arch, base.waste, choices, |model, filter| {
            let listings = waste_listings(test, pair, model, filter, RECORDS + 1);
            let found = listings.iter().find(|listings| listings.subject == Subject::Waste(row));
            found.map_or_else(Vec::new, |found| rows(found, choices))
        });
        let name = format!("{} of {}", row.side(), base.waste.function.name);
        all.push(Records::of(shown(&name), true, counts, variants));
    }
    all
}

fn rows(listings: &Listings, choices: &Choices) -> Vec<RecordRow> {
    let row = |row: &compare::ListingRow| RecordRow {
        mark: row.side().into(),
        cells: [&row.base, &row.head]
            .map(|line| line.as_ref().map(|line| Record::new(line, choices)))
            .to_vec(),
    };
    listings.rows.iter().map(row).collect()
}

/// Counts by each filter and model.
fn counts(
    arch: Arch,
    waste: &LbrWaste,
    choices: &Choices,
    of: impl Fn(Model, Filter) -> Vec<Wasted>,
) -> Vec<Counts> {
    let counts = by_choice(choices, |model, filter| of(of_waste(arch, waste, model), filter));
    counts.into_iter().map(|(choice, sides)| Counts { choice, sides }).collect()
}

/// Makes a listing by each filter and model.
fn variants(
    arch: Arch,
    waste: &LbrWaste,
    choices: &Choices,
    of: impl Fn(Model, Filter) -> Vec<RecordRow>,
) -> Vec<Variant> {
    let listed = by_choice(choices, |model, filter| of(of_waste(arch, waste, model), filter));
    let variant = |(choice, rows)| {
        let (rows, more) = newest(rows);
        Variant { choice, rows, more }
    };
    listed.into_iter().map(variant).collect()
}

fn of_waste(arch: Arch, waste: &LbrWaste, model: Model) -> Model {
    driver::model(waste, Model::choose(Some(model), arch))
}

/// Makes something for each filter and model. Models that show the same share it.
pub fn by_choice<T: PartialEq>(
    choices: &Choices,
    of: impl Fn(Model, Filter) -> T,
) -> Vec<(Choice, T)> {
    let mut all = Vec::new();
    for &filter in &choices.filters {
        let made = by_model(choices, |model| of(model, filter));
        for (models, made) in made {
            let is_first = models.is_empty() || models.contains(&choices.model());
            let choice = Choice {
                models: names(&models),
                filter: filter.to_string(),
                hidden: !is_first || filter != choices.filters[0],
            };
            all.push((choice, made));
        }
    }
    all
}

/// A text for the depth of the CPU whose own records were counted, or for each of the choices.
pub fn by_depth(ring: Option<u32>, choices: &Choices, text: impl Fn(u32) -> String) -> Vec<Left> {
    let left = |&depth: &u32| Left {
        depth: Some(depth),
        hidden: depth != choices.depth,
        text: text(depth),
    };
    match ring {
        Some(depth) => vec![Left { depth: None, hidden: false, text: text(depth) }],
        None => choices.depths.iter().map(left).collect(),
    }
}

/// A capture point of one side.
struct Captured<'a> {
    side: &'static str,
    waste: &'a LbrWaste,
    point: &'a CapturePoint,
    driver: Driver,
}

impl Captured<'_> {
    fn wasted(&self, model: Model, filter: Filter, choices: &Choices) -> Wasted {
        let Captured { side, waste, point, driver } = self;
        let Some(count) = waste::counted(model, filter, point, &waste.function).wasted else {
            let text = format!("no such record touches {}", shown(&waste.function.name));
            return Wasted { side, text, useful: Vec::new() };
        };
        let left = |depth| {
            let useful = driver.useful(model, filter, depth, count);
            format!("{useful} of {depth} useful")
        };
        let useful = by_depth(waste.depth, choices, left);
        let taken = driver.takes(model, filter);
        let text = match taken.exactly() {
            Some(0) => format!("{count} wasted"),
            _ => format!("{count} wasted, driver {taken}"),
        };
        Wasted { side, text, useful }
    }
}
