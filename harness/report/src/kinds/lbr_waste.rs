// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lbr_waste`: wasted and useful branch records, and their listings.

mod beside;
mod worlds;

use super::Report;
use crate::{
    group::{ByKernel, Group},
    judged,
    parts::Listing,
    programs, useful,
    view::View,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};
use tramplab_analysis::{
    branch::{
        Branch, Driver, Filter, Model, driver,
        early::{Stage, taken_at},
        listing, waste,
    },
    compare::{Comparison, Metric},
};
use tramplab_model::{
    kinds::lbr_waste,
    run::{
        Arch, BranchSource, CapturePoint, Cell, Delivered, Kind, LbrWaste, Measurement, Run, Test,
        WasteRow,
    },
    table::Table,
};
use tramplab_protocol::Mechanism;

pub struct Waste;

impl Report for Waste {
    fn line(&self, cell: &Cell) -> String {
        let (Some(Measurement::LbrWaste(measured)), Test::LbrWaste(test)) =
            (&cell.measurement, &cell.id.test)
        else {
            return String::new();
        };
        let model = driver::model(measured, Model::choose(None, cell.id.arch));
        let points = measured.points.iter().map(|capture| {
            let row = test.row(capture.point);
            let counts = [Branch::Any, Branch::AnyReturn].map(|branch| {
                let count = waste::count_at(model, Filter::of(branch), capture, &measured.function);
                let wasted = count.wasted.map_or("-".to_owned(), |n| n.to_string());
                format!("{} {wasted}", branch.name())
            });
            format!("{row} wastes {}", counts.join(", "))
        });
        let points = points.collect::<Vec<_>>().join("; ");
        match measured.source.is_of_driver() {
            true => format!("{points} ({})", measured.source.name()),
            false => points,
        }
    }

    fn tables(&self, run: &Run, group: &Group, view: &View) -> Vec<Table> {
        let model = group.model(view);
        let rows = rows(group);
        if rows.is_empty() {
            return Vec::new();
        }
        let header = |first: &str| {
            let filters = Branch::ALL.iter().map(|branch| branch.name().to_owned());
            std::iter::once(first.to_owned()).chain(filters).collect::<Vec<_>>()
        };
        let body = |value: &dyn Fn(&Measured, Branch) -> String| {
            let row = |MeasuredRow { name, measured, .. }: &MeasuredRow| {
                let mut row = vec![name.clone()];
                match measured {
                    Ok(measured) => row.extend(Branch::ALL.map(|branch| value(measured, branch))),
                    Err(outcome) => {
                        row.push((*outcome).to_owned());
                        row.resize(Branch::ALL.len().saturating_add(1), String::new());
                    }
                }
                row
            };
            rows.iter().map(row).collect::<Vec<_>>()
        };
        let measured: Vec<(&str, Measured)> =
            rows.iter().filter_map(|row| Some((row.name.as_str(), row.measured.ok()?))).collect();
        // One accelerator has one source of records, and one machine one depth.
        let ring = measured.iter().find_map(|(_, m)| m.waste.depth);
        let depths = &useful::depths(model, ring, group.depth(view))[..];
        let whose = driver::whose(group.of_driver(), model);
        let dash = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let useful = |m: &Measured, filter: Filter, wasted: u32| {
            let driver = m.driver(run);
            slashed(depths.iter().map(|&depth| driver.useful(model, filter, depth, wasted)))
        };
        let mut tables = vec![
            Table {
                caption: format!("Wasted branch records ({whose})"),
                header: header("mechanism"),
                rows: body(&|m, branch| dash(m.wasted(model, branch))),
                notes: [
                    notes(group.arch, model, &measured),
                    programs::notes(run, Kind::LbrWaste, &group.cells),
                    programs::remarks(Kind::LbrWaste, &group.cells),
                ]
                .concat(),
            },
            Table {
                caption: format!("Useful branch records of {} ({whose})", of(depths)),
                header: header("mechanism"),
                rows: body(&|m, branch| {
                    let wasted = m.wasted(model, branch);
                    wasted.map_or_else(|| "-".to_owned(), |n| useful(m, Filter::of(branch), n))
                }),
                notes: if measured.is_empty() || group.of_driver().is_some() {
                    Vec::new()
                } else {
                    useful_notes(run, group, view, &measured)
                },
            },
            of_unions(model, &of(depths), whose, &rows, &useful),
        ];
        match &view.what_if[..] {
            [_, ..] if measured.is_empty() => {}
            filters => match group.of_driver() {
                Some(source) => tables.push(no_what_if(source)),
                None => tables.extend(
                    filters
                        .iter()
                        .flat_map(|&one| what_if(model, &of(depths), one, &measured, &useful)),
                ),
            },
        }
        tables
    }

    fn listings(&self, group: &Group, view: &View) -> Vec<Listing> {
        let model = group.model(view);
        let mut listings = Vec::new();
        for MeasuredRow { test, measured, .. } in rows(group) {
            let Ok(Measured { waste, point, .. }) = measured else { continue };
            let name = test.row(waste.points[point].point).side();
            let model = driver::model(waste, model);
            for &filter in &view.listings {
                let point = &waste.points[point];
                let count = waste::count_at(model, filter, point, &waste.function);
                let wasted = count.wasted.map_or_else(String::new, |n| format!(", {n} wasted"));
                listings.push(Listing {
                    caption: format!(
                        "{name} of {}, {filter} ({}){wasted}",
                        waste.function.name,
                        driver::whose(Some(waste.source), model)
                    ),
                    text: listing(point, &waste.function, model, filter, group.lines),
                });
            }
        }
        listings
    }

    /// Waste with the filter `any`, then by each filter how guests of one kernel compare that
    /// booted as different CPUs.
    fn by_kernel(&self, run: &Run, groups: &[Group], view: &View) -> Vec<Table> {
        let mut wasted = ByKernel::new(groups);
        let mut models: Vec<&str> = Vec::new();
        for (column, group) in groups.iter().enumerate() {
            let model = group.model(view);
            for MeasuredRow { test, name, measured } in rows(group) {
                let value = match measured {
                    Ok(m) => m
                        .wasted(model, Branch::Any)
                        .map_or_else(|| "-".to_owned(), |n| n.to_string()),
                    Err(outcome) => outcome.to_owned(),
                };
                wasted.set((test, name), column, value);
            }
            let whose = driver::whose(group.of_driver(), model);
            if group.cells.iter().any(|cell| cell.branch_source().is_some())
                && !models.contains(&whose)
            {
                models.push(whose);
            }
        }
        let caption = format!("Wasted branch records by kernel (any; {})", models.join(", "));
        let of_drivers = groups.iter().filter(|group| group.of_driver().is_some()).count();
        let is_mixed = of_drivers > 0 && of_drivers < groups.len();
        let note = "A driver's records include its own; virtual ones have none of these.";
        let wasted = wasted.table(groups, caption, "mechanism", |(_, name)| name);
        let wasted = wasted.map(|table| table.noted(is_mixed.then_some(note)));
        let others = [worlds::tables(run, groups, view), beside::tables(groups, view)];
        wasted.into_iter().chain(others.into_iter().flatten()).collect()
    }

    /// A row per mechanism and point, a column per filter.
    fn compared(&self, comparison: &Comparison) -> Vec<Table> {
        let mut rows: BTreeMap<WasteRow, Vec<String>> = BTreeMap::new();
        for compared in &comparison.metrics {
            let Metric::LbrWaste(lbr_waste::Metric { row, filter }) = compared.metric else {
                continue;
            };
            let cells = rows.entry(row).or_insert_with(|| vec![String::new(); Branch::ALL.len()]);
            // The list of changes names unions.
            if let Some(column) = Branch::ALL.iter().position(|&b| Filter::of(b) == filter) {
                cells[column] = judged::sides(compared);
            }
        }
        let header =
            std::iter::once("mechanism").chain(Branch::ALL.iter().map(|branch| branch.name()));
        let rows: Vec<_> =
            rows.into_iter().map(|(row, cells)| [vec![row.to_string()], cells].concat()).collect();
        let table = (!rows.is_empty()).then(|| Table {
            caption: format!("Wasted branch records, base -> head ({})", judged::whose(comparison)),
            header: header.map(str::to_owned).collect(),
            rows,
            notes: vec!["-: no record of this filter touches the traced function.".to_owned()],
        });
        table.into_iter().collect()
    }
}

/// Writes the useful records of each depth, of so many wasted ones.
type WriteUseful<'a> = &'a dyn Fn(&Measured, Filter, u32) -> String;

/// Wasted and useful records by filters that are unions, which only wide columns have room for.
fn of_unions(
    model: Model,
    depths: &str,
    whose: &str,
    rows: &[MeasuredRow],
    useful: WriteUseful,
) -> Table {
    let both = |measured: &Measured, filter| match measured.by(model, filter) {
        Some(wasted) => format!("{wasted}, {}", useful(measured, filter, wasted)),
        None => "-".to_owned(),
    };
    let header = Filter::UNIONS.iter().map(Filter::to_string);
    let row = |MeasuredRow { name, measured, .. }: &MeasuredRow| {
        let mut row = vec![name.clone()];
        row.extend(Filter::UNIONS.map(|filter| match measured {
            Ok(measured) => both(measured, filter),
            Err(outcome) => (*outcome).to_owned(),
        }));
        row
    };
    Table {
        caption: format!("Wasted, and useful of {depths}, by unions of filters ({whose})"),
        header: std::iter::once("mechanism".to_owned()).chain(header).collect(),
        rows: rows.iter().map(row).collect(),
        notes: Vec::new(),
    }
}

/// Wasted and useful records, a column per place where the kernel could take the snapshot. The last
/// is where it does.
fn what_if(
    model: Model,
    depths: &str,
    filter: Filter,
    rows: &[(&str, Measured)],
    useful: WriteUseful,
) -> [Table; 2] {
    let table = |what: &str, value: WriteUseful, notes: &[&str]| {
        let row = |(name, measured): &(&str, Measured)| {
            let value = |wasted: Option<u32>| match wasted {
                Some(wasted) => value(measured, filter, wasted),
                None => "-".to_owned(),
            };
            let values = measured.early(model, filter).into_iter().map(value);
            std::iter::once((*name).to_owned()).chain(values).collect()
        };
        let header = ["mechanism"].into_iter().chain(Stage::ALL.map(Stage::name)).chain(["today"]);
        Table {
            caption: format!("{what} {IF_TAKEN} ({model}, {filter})"),
            header: header.map(str::to_owned).collect(),
            rows: rows.iter().map(row).collect(),
            notes: notes.iter().map(|&note| note.to_owned()).collect(),
        }
    };
    [
        table(
            WASTED,
            &|_, _, wasted| wasted.to_string(),
            &[
                "An earlier snapshot's own call is added by rule, as record #00.",
                "-: the mechanism has no such place, or no record of this filter touches the \
                 traced function.",
            ],
        ),
        table(&format!("Useful branch records of {depths}"), useful, &[]),
    ]
}

const WASTED: &str = "Wasted branch records";
const IF_TAKEN: &str = "if the snapshot were taken at …";

fn no_what_if(source: BranchSource) -> Table {
    Table {
        caption: format!("{WASTED} {IF_TAKEN} ({})", source.name()),
        header: Vec::new(),
        rows: Vec::new(),
        notes: vec![
            "Not known: a driver's records begin in the driver and end with its ring.".to_owned(),
        ],
    }
}

fn of(depths: &[u32]) -> String {
    slashed(depths.iter().copied())
}

/// A row per mechanism and point, with the measurement, or how the cell ended without one.
pub fn rows<'a>(group: &'a Group) -> Vec<MeasuredRow<'a>> {
    let mut rows = Vec::new();
    for cell in &group.cells {
        let Test::LbrWaste(test) = cell.id.test else { continue };
        let Some(Measurement::LbrWaste(waste)) = &cell.measurement else {
            let name = test.to_string();
            rows.push(MeasuredRow { test, name, measured: Err(cell.outcome.name()) });
            continue;
        };
        for (index, point) in waste.points.iter().enumerate() {
            let name = test.row(point.point).to_string();
            let measured = Ok(Measured { cell, waste, point: index });
            rows.push(MeasuredRow { test, name, measured });
        }
    }
    rows
}

pub struct MeasuredRow<'a> {
    pub test: lbr_waste::Test,
    pub name: String,
    pub measured: Result<Measured<'a>, &'static str>,
}

#[derive(Clone, Copy)]
pub struct Measured<'a> {
    cell: &'a Cell,
    pub waste: &'a LbrWaste,
    pub point: usize,
}

impl Measured<'_> {
    pub fn by(&self, model: Model, filter: Filter) -> Option<u32> {
        let model = driver::model(self.waste, model);
        let point = &self.waste.points[self.point];
        waste::counted(model, filter, point, &self.waste.function).wasted
    }

    /// Wasted records at each [`Stage`] and today.
    fn early(&self, model: Model, filter: Filter) -> Vec<Option<u32>> {
        let LbrWaste { mechanism, function, .. } = self.waste;
        let records = &self.waste.points[self.point].records;
        let wasted = |stage| {
            let taken = taken_at(stage, *mechanism, records, function)?;
            waste::count(model, filter, &taken, function).wasted
        };
        Stage::ALL.into_iter().map(wasted).chain([self.by(model, filter)]).collect()
    }

    pub fn driver(&self, run: &Run) -> Driver {
        useful::driver(run, self.cell, self.waste, &self.waste.points[self.point].records)
    }

    fn point(&self) -> &CapturePoint {
        &self.waste.points[self.point]
    }

    fn wasted(&self, model: Model, branch: Branch) -> Option<u32> {
        self.by(model, Filter::of(branch))
    }
}

fn useful_notes(run: &Run, group: &Group, view: &View, rows: &[(&str, Measured)]) -> Vec<String> {
    let drivers: Vec<Driver> = rows.iter().map(|(_, measured)| measured.driver(run)).collect();
    let driver = useful::note(group.model(view), &drivers);
    driver.into_iter().chain(of_host(run, group, view)).collect()
}

/// The model to ask for, if the host's CPU is of another vendor than the one shown. The default
/// does not depend on the host, so that a suite's report does not either.
fn of_host(run: &Run, group: &Group, view: &View) -> Option<String> {
    let shown = group.model(view);
    let host = Model::of_cpu(&run.host.cpu)?;
    let is_other =
        view.model.is_none() && group.cpu.is_none() && host.arch() == group.arch && host != shown;
    let depths = slashed(host.depths().iter().copied());
    is_other.then(|| {
        format!(
            "The host's CPU is of another vendor: --model {host} shows these for it (depth \
             {depths})."
        )
    })
}

/// `16 / 32`.
fn slashed(numbers: impl Iterator<Item = impl ToString>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(" / ")
}

fn notes(arch: Arch, model: Model, rows: &[(&str, Measured)]) -> Vec<String> {
    let mut notes = Vec::new();
    if rows.iter().any(|(_, m)| Branch::ALL.iter().any(|&b| m.wasted(model, b).is_none())) {
        notes.push("-: no record of this filter touches the traced function.".to_owned());
    }
    let exceeds_any = |m: &Measured| {
        let of = |branch| m.wasted(model, branch);
        Branch::ALL.iter().any(|&branch| of(branch) > of(Branch::Any))
    };
    if rows.iter().any(|(_, m)| exceeds_any(m)) {
        notes.push(
            "More than `any`: the newest record of the filter that touches the traced function is \
             an older one."
                .to_owned(),
        );
    }
    if let Some((_, first)) = rows.iter().find(|(_, m)| m.waste.source.is_of_driver()) {
        notes.extend(driver_notes(first.waste, rows));
        notes.extend(disagreeing(rows));
        return notes;
    }
    let same = |other: &Model| {
        rows.iter()
            .all(|(_, m)| Branch::ALL.iter().all(|&b| m.wasted(model, b) == m.wasted(*other, b)))
    };
    let others: Vec<Model> = Model::of(arch).filter(|&other| other != model).collect();
    let (same, different): (Vec<Model>, Vec<Model>) = others.into_iter().partition(same);
    let names = |models: &[Model]| models.iter().map(|m| m.name()).collect::<Vec<_>>().join(", ");
    if !rows.is_empty() && !same.is_empty() {
        notes.push(format!("The same on {}.", names(&same)));
    }
    if !different.is_empty() {
        notes.push(format!("Different on {}.", names(&different)));
    }
    let is_modelled =
        |m: &Measured| m.waste.points[m.point].records.first().is_some_and(|r| r.modelled);
    if rows.iter().any(|(_, m)| is_modelled(m)) {
        notes.push(match arch {
            Arch::X86_64 => {
                "Record #00 is modelled: without a PMU driver this kernel patches the static call \
                 out."
                    .to_owned()
            }
            Arch::Arm64 => {
                "Record #00 is modelled: this kernel's helper returns without a call, as \
                 its architecture has no static one."
                    .to_owned()
            }
        });
    }
    notes.extend(delivered(rows));
    notes.extend(disagreeing(rows));
    notes
}

fn disagreeing(rows: &[(&str, Measured)]) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, Measured { waste, .. }) in rows {
        let clean = waste.hits.saturating_sub(waste.interrupted_hits.unwrap_or_default());
        if waste.agreeing_hits < clean {
            notes.push(format!(
                "{name}: only {} of {clean} undisturbed hits agree.",
                waste.agreeing_hits
            ));
        }
    }
    notes
}

/// Differences to virtual records.
fn driver_notes(first: &LbrWaste, rows: &[(&str, Measured)]) -> Vec<String> {
    let depth = first.depth.unwrap_or_default();
    let lbr = match &first.family {
        Some(family) => format!("an emulated LBR ({family})"),
        None => "the CPU's own LBR".to_owned(),
    };
    let mut notes = vec![format!(
        "Read from {lbr} of {depth} records: not to be compared with virtual records, and nothing \
         older than the ring is seen."
    )];
    if rows.iter().any(|(_, m)| !m.point().traced.is_empty()) {
        notes.extend(counted_driver(rows));
        return notes;
    }
    let drivers: BTreeSet<usize> = rows
        .iter()
        .filter_map(|(_, m)| driver::of_the_driver(&m.waste.points[m.point].records))
        .collect();
    if let (Some(least), Some(most)) = (drivers.first(), drivers.last())
        && *most > 0
    {
        let count = if least == most { most.to_string() } else { format!("{least} to {most}") };
        notes.push(format!(
            "In any, {count} of the wasted are the driver's own, from before it stopped the LBR; \
             virtual records have none of these."
        ));
    }
    notes
}

/// The driver's own records among the wasted: the difference to the virtual count of the same
/// guest. It is one for each filter; rows with another one are named.
fn counted_driver(rows: &[(&str, Measured)]) -> Vec<String> {
    let own = |measured: &Measured, branch: Branch| {
        let point = measured.point();
        let emulated = point.wasted.values().next()?.get(branch.name())?.wasted?;
        let traced = point.traced.get(branch.name())?.wasted?;
        Some(i64::from(emulated).saturating_sub(i64::from(traced)))
    };
    let mut usual = Vec::new();
    let mut others: Vec<String> = Vec::new();
    for branch in Branch::ALL {
        let counts: Vec<(&str, i64)> =
            rows.iter().filter_map(|(name, m)| Some((*name, own(m, branch)?))).collect();
        let times = |count: i64| counts.iter().filter(|(_, other)| *other == count).count();
        let Some(&(_, most)) =
            counts.iter().max_by_key(|(_, count)| (times(*count), Reverse(*count)))
        else {
            continue;
        };
        usual.push(format!("{} {most}", branch.name()));
        let odd = counts.iter().filter(|(_, count)| *count != most);
        others.extend(odd.map(|(name, count)| format!("{name} {} {count}", branch.name())));
    }
    let mut notes = vec![format!(
        "The driver's own among the wasted, counted against the trace of the same guest: {}.",
        usual.join(", ")
    )];
    if !others.is_empty() {
        notes.push(format!("Another number: {}.", others.join(", ")));
    }
    notes
}

/// Cells whose programs were handed records, if the suite asks for that experiment.
fn delivered(rows: &[(&str, Measured)]) -> Option<String> {
    let cells: BTreeMap<Mechanism, &Delivered> = rows
        .iter()
        .filter_map(|(_, measured)| {
            Some((measured.waste.mechanism, measured.waste.delivered.as_ref()?))
        })
        .collect();
    let Delivered { model, filter, depth, .. } = *cells.values().next()?;
    let names: Vec<&str> = cells.keys().map(|mechanism| mechanism.name()).collect();
    Some(format!(
        "Experiment: these mechanisms' programs received {depth} entries each in the guest \
         ({model}, {filter}), all equal to the trace: {}.",
        names.join(", ")
    ))
}
