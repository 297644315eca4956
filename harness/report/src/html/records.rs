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
};
use tramplab_analysis::{
    branch::{
        Filter, Model, hardware,
        listing::{Line, lines, trigger_lines},
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
    run::{Arch, Cell, LbrWaste, Measurement, Run, Series, Test, TriggerPart},
};

/// The listings of one subject: a row of the waste table, or one side of a hit.
pub struct Records {
    pub name: String,
    /// Base beside head.
    pub paired: bool,
    /// True if base and head differ in any variant.
    pub differs: bool,
    pub variants: Vec<Variant>,
}

/// A listing by some choices of the reader.
#[derive(Clone, PartialEq)]
pub struct Variant {
    /// Names of models. Empty if no model changes it.
    pub models: String,
    /// Empty if no filter changes it.
    pub filter: String,
    pub hidden: bool,
    pub sides: Vec<Wasted>,
    pub rows: Vec<RecordRow>,
    /// True if older records are left out.
    pub more: bool,
}

/// Counts of one side.
#[derive(Clone, PartialEq)]
pub struct Wasted {
    /// `base`, `head`, or nothing.
    pub side: &'static str,
    /// `12 wasted`.
    pub text: String,
    pub useful: Vec<Useful>,
}

#[derive(Clone, PartialEq)]
pub struct Useful {
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
    pub modelled: bool,
}

impl Record {
    fn new(line: &Line, choices: &Choices) -> Record {
        Record {
            index: line.index,
            lost: line.instructions.is_none() && line.index >= choices.depth as usize,
            instructions: line.instructions,
            from: shown(&line.from),
            to: shown(&line.to),
            modelled: line.modelled,
        }
    }
}

/// Records of one listing. Where nothing touches the traced function, it has the whole trace.
const RECORDS: usize = 96;

impl Records {
    pub fn size(&self) -> usize {
        let cell = |record: &Record| 100 + room::size(&record.from) + room::size(&record.to);
        let row = |row: &RecordRow| 60 + row.cells.iter().flatten().map(cell).sum::<usize>();
        let variant = |variant: &Variant| 900 + variant.rows.iter().map(row).sum::<usize>();
        200 + room::size(&self.name) + self.variants.iter().map(variant).sum::<usize>()
    }

    /// The same on every model, without a filter.
    fn fixed(name: String, paired: bool, rows: Vec<RecordRow>) -> Records {
        let (rows, more) = newest(rows);
        let variant = Variant {
            models: String::new(),
            filter: String::new(),
            hidden: false,
            sides: Vec::new(),
            rows,
            more,
        };
        Records::of(name, paired, vec![variant])
    }

    fn of(name: String, paired: bool, variants: Vec<Variant>) -> Records {
        let rows = variants.iter().flat_map(|variant| &variant.rows);
        let differs = rows.into_iter().any(|row| row.mark != Mark::None);
        Records { name, paired, differs, variants }
    }
}

/// Rows are oldest first: leaves the oldest out.
fn newest(mut rows: Vec<RecordRow>) -> (Vec<RecordRow>, bool) {
    let more = rows.len().saturating_sub(RECORDS);
    rows.drain(..more);
    (rows, more > 0)
}

/// Lists one kernel's waste.
pub fn waste_of_group(group: &Group, choices: &Choices) -> Vec<Records> {
    let mut all = Vec::new();
    for row in lbr_waste::rows(group) {
        let Ok(measured) = row.measured else { continue };
        let (waste, point) = (measured.waste, &measured.waste.points[measured.point]);
        let variants = variants(group.arch, waste, choices, |model, filter| {
            let mut listed = lines(point, &waste.function, model, filter);
            listed.reverse();
            let rows = listed.iter().map(|line| alone(line, choices));
            let wasted = waste::counted(model, filter, point, &waste.function).wasted;
            (vec![self::wasted("", wasted, waste, choices)], rows.collect())
        });
        let name = format!("{} of {}", row.test.row(point.point).side(), waste.function.name);
        all.push(Records::of(shown(&name), false, variants));
    }
    all
}

/// Lists the branches of one kernel's hits.
pub fn hits_of_group(group: &Group, choices: &Choices) -> Vec<Records> {
    let records = |(name, part): (String, &TriggerPart)| {
        let mut listed = trigger_lines(part);
        listed.reverse();
        let rows = listed.iter().map(|line| alone(line, choices));
        Records::fixed(shown(&name), false, rows.collect())
    };
    trigger::parts(group).into_iter().map(records).collect()
}

fn alone(line: &Line, choices: &Choices) -> RecordRow {
    RecordRow { mark: Mark::None, cells: vec![Some(Record::new(line, choices))] }
}

/// Lists the waste of a series' base beside that of its head.
pub fn waste_of_series(run: &Run, series: &Series, choices: &Choices) -> Vec<Records> {
    let of_pair = |pair: &Pair| {
        let Test::LbrWaste(test) = pair.base.id.test else { return None };
        let (base, head) = (waste_of(Some(pair.base))?, waste_of(pair.head)?);
        Some(beside(test, pair, [base, head], choices))
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

fn waste_of(cell: Option<&Cell>) -> Option<&LbrWaste> {
    match &cell?.measurement {
        Some(Measurement::LbrWaste(waste)) => Some(waste),
        _ => None,
    }
}

/// Lists each capture point that both sides have.
fn beside(
    test: Waste,
    pair: &Pair,
    [base, head]: [&LbrWaste; 2],
    choices: &Choices,
) -> Vec<Records> {
    let mut all = Vec::new();
    for point in &base.points {
        let Some(partner) = head.points.iter().find(|partner| partner.point == point.point) else {
            continue;
        };
        let row = test.row(point.point);
        let variants = variants(pair.base.id.arch, base, choices, |model, filter| {
            let counts = [("base", base, point), ("head", head, partner)];
            let sides = counts.map(|(side, waste, point)| {
                let count = waste::counted(model, filter, point, &waste.function);
                wasted(side, count.wasted, waste, choices)
            });
            let listings = waste_listings(test, pair, model, filter, RECORDS + 1);
            let found = listings.iter().find(|listings| listings.subject == Subject::Waste(row));
            (sides.to_vec(), found.map_or_else(Vec::new, |found| rows(found, choices)))
        });
        let name = format!("{} of {}", row.side(), base.function.name);
        all.push(Records::of(shown(&name), true, variants));
    }
    all
}

fn rows(listings: &Listings, choices: &Choices) -> Vec<RecordRow> {
    let row = |row: &compare::Row| RecordRow {
        mark: row.side().into(),
        cells: [&row.base, &row.head]
            .map(|line| line.as_ref().map(|line| Record::new(line, choices)))
            .to_vec(),
    };
    listings.rows.iter().map(row).collect()
}

/// Makes a listing by each filter and model. Models that show the same share one.
fn variants(
    arch: Arch,
    waste: &LbrWaste,
    choices: &Choices,
    of: impl Fn(Model, Filter) -> (Vec<Wasted>, Vec<RecordRow>),
) -> Vec<Variant> {
    let mut variants = Vec::new();
    for &filter in &choices.filters {
        let listed = by_model(choices, |model| {
            of(hardware::model(waste, Model::choose(Some(model), arch)), filter)
        });
        for (models, (sides, rows)) in listed {
            let (rows, more) = newest(rows);
            let is_first = models.is_empty() || models.contains(&choices.model());
            variants.push(Variant {
                models: names(&models),
                filter: filter.to_string(),
                hidden: !is_first || filter != choices.filters[0],
                sides,
                rows,
                more,
            });
        }
    }
    variants
}

fn wasted(side: &'static str, wasted: Option<u32>, of: &LbrWaste, choices: &Choices) -> Wasted {
    let Some(count) = wasted else {
        let text = format!("no such record touches {}", shown(&of.function.name));
        return Wasted { side, text, useful: Vec::new() };
    };
    let text = |depth| format!("{} of {depth} useful", waste::useful(depth, count));
    let useful = match of.depth {
        Some(depth) => vec![Useful { depth: None, hidden: false, text: text(depth) }],
        None => choices
            .depths
            .iter()
            .map(|&depth| Useful {
                depth: Some(depth),
                hidden: depth != choices.depth,
                text: text(depth),
            })
            .collect(),
    };
    Wasted { side, text: format!("{count} wasted"), useful }
}
