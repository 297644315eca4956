// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of `docs/mechanisms.md`, and more, as JSON for programs: `docs/mechanisms.json`.

use super::gap;
use crate::{kinds::attach::to_attach, useful};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tramplab_analysis::branch::{Filter, Model, Useful, driver, waste};
use tramplab_model::{
    kinds::{attach, trigger::Cost},
    run::{self, Arch, Attach, Cell, LbrWaste, Measurement, Run, Test, Trigger},
    text,
};
use tramplab_protocol::{Mechanism, Point};

/// Raise it when a field changes its type or meaning, or is removed.
const VERSION: u32 = 2;
const SCHEMA_FILE: &str = "mechanisms.schema.json";

/// Costs of BPF attach mechanisms by kernel, measured by tramplab. Every list is a table with one
/// row per line. All numbers are exact. docs/mechanisms.md and docs/definitions.md of tramplab
/// explain the terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "tramplab mechanisms")]
pub struct Data {
    #[serde(rename = "$schema")]
    schema: String,
    /// The version of this format.
    #[schemars(schema_with = "version")]
    version: u32,
    /// The runs that measured it.
    pub(super) runs: Vec<String>,
    /// When the first of them began, as RFC 3339 in UTC.
    #[schemars(extend("format" = "date-time"))]
    started: String,
    /// Where they ran. Files written before 30 November 2026 lack it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) machines: Vec<String>,
    /// The part of the suite that is missing. Null if none is.
    pub(super) incomplete: Option<String>,
    models: Vec<ModelRow>,
    pub(super) kernels: Vec<KernelRow>,
    pub(super) waste: Vec<WasteRow>,
    pub(super) hits: Vec<HitRow>,
    /// Files written before 29 November 2026 lack it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) whole_hits: Vec<WholeHitRow>,
    pub(super) attach: Vec<AttachRow>,
    pub(super) missing: Vec<MissingRow>,
}

/// A modelled CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ModelRow {
    #[schemars(schema_with = "model")]
    model: String,
    #[schemars(schema_with = "arch")]
    arch: Arch,
    /// The numbers of branch records that such CPUs keep. The usual number is the last.
    depths: Vec<u32>,
}

/// A measured kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KernelRow {
    /// Its name in the other tables.
    pub(super) kernel: String,
    #[schemars(schema_with = "arch")]
    pub(super) arch: Arch,
    /// Its origin: for a kernel of Debian, the package and its version.
    pub(super) source: String,
    /// As `uname -r` prints it. Null if it never booted.
    pub(super) release: Option<String>,
    /// True if it is built with PARAVIRT_XXL. Null if unknown.
    pub(super) paravirt_xxl: Option<bool>,
}

/// Branch records (LBR or BRBE entries) that are newer than the newest one of the traced function.
/// The first entry that a tool can use on such a CPU has the index `wasted + driver`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WasteRow {
    pub(super) kernel: String,
    #[schemars(schema_with = "arch")]
    pub(super) arch: Arch,
    #[schemars(schema_with = "mechanism")]
    pub(super) mechanism: Mechanism,
    #[schemars(schema_with = "point")]
    pub(super) point: Point,
    #[schemars(schema_with = "model")]
    pub(super) model: String,
    /// In the words of perf's `branch_sample_type`.
    #[schemars(schema_with = "filter")]
    pub(super) filter: String,
    /// Null if no record of this filter touches the traced function.
    pub(super) wasted: Option<u32>,
    /// Records of the CPU's driver in Linux, which are newer than all others and not among the
    /// wasted. Null if they are not known exactly, as on a CPU without a driver that takes
    /// snapshots.
    pub(super) driver: Option<u32>,
    /// By the CPU's depth: depth - wasted - driver, or 0 if that is negative. Null if no depth has
    /// an exact number.
    #[schemars(schema_with = "by_depth")]
    pub(super) useful: Option<BTreeMap<u32, u32>>,
    /// By each other depth: depth - wasted - the records that the driver surely takes. It may take
    /// more, and so less is useful. Null if all numbers are exact, or if `wasted` is null.
    #[schemars(schema_with = "by_depth")]
    pub(super) useful_at_most: Option<BTreeMap<u32, u32>>,
}

/// The cost of a hit of the empty program: instructions and taken branches outside of the traced
/// function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HitRow {
    pub(super) kernel: String,
    #[schemars(schema_with = "arch")]
    pub(super) arch: Arch,
    #[schemars(schema_with = "mechanism")]
    pub(super) mechanism: Mechanism,
    /// The part of the hit before or behind the function.
    #[schemars(schema_with = "point")]
    pub(super) point: Point,
    pub(super) instructions: u32,
    pub(super) branches: u32,
}

/// The costs of a hit of the empty program that have no parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WholeHitRow {
    pub(super) kernel: String,
    #[schemars(schema_with = "arch")]
    pub(super) arch: Arch,
    #[schemars(schema_with = "mechanism")]
    pub(super) mechanism: Mechanism,
    /// Mispredicted returns from a hit to the next, the callers' included. Null if not counted.
    pub(super) mispredicted_returns: Option<u32>,
    /// The same of indirect branches.
    pub(super) mispredicted_indirect: Option<u32>,
    /// Reads of memory. Null if not counted.
    #[serde(default)]
    pub(super) reads: Option<u32>,
    /// Writes of memory. Null if not counted.
    #[serde(default)]
    pub(super) writes: Option<u32>,
    /// Estimated cycles of a warm hit, on the CPU as which the guest booted. Null if it booted as
    /// none.
    pub(super) estimated_cycles: Option<u32>,
}

/// The cost to attach the empty program to many functions. Times are of the clock that counts
/// instructions, waits included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AttachRow {
    pub(super) kernel: String,
    #[schemars(schema_with = "arch")]
    pub(super) arch: Arch,
    #[schemars(schema_with = "mechanism")]
    pub(super) mechanism: Mechanism,
    pub(super) functions: u32,
    /// Links that attached to them.
    pub(super) links: u32,
    pub(super) load_ns: u64,
    pub(super) attach_ns: u64,
    pub(super) detach_ns: u64,
    /// Instructions of the attaching thread to attach. Null if they were not counted.
    pub(super) instructions: Option<u64>,
}

/// A test without numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MissingRow {
    pub(super) kernel: String,
    #[schemars(schema_with = "arch")]
    pub(super) arch: Arch,
    #[schemars(schema_with = "mechanism")]
    pub(super) mechanism: Mechanism,
    /// The table that has no row for it.
    pub(super) of: Of,
    /// `skip`: this kernel cannot. `error`: the measurement failed.
    pub(super) outcome: Lost,
    pub(super) reason: String,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Of {
    Waste,
    Hits,
    Attach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Lost {
    Skip,
    Error,
}

impl Of {
    pub(super) const ALL: [Of; 3] = [Of::Waste, Of::Hits, Of::Attach];

    pub(super) fn name(self) -> &'static str {
        match self {
            Of::Waste => "waste",
            Of::Hits => "hits",
            Of::Attach => "attach",
        }
    }
}

/// The test whose numbers a row has.
pub(super) type TestKey = (String, Arch, Mechanism, Of);

pub(super) trait OfTest {
    fn key(&self) -> TestKey;
}

macro_rules! of_test {
    ($($row:ident: |$one:ident| $of:expr;)*) => {$(
        impl OfTest for $row {
            fn key(&self) -> TestKey {
                let $one = self;
                ($one.kernel.clone(), $one.arch, $one.mechanism, $of)
            }
        }
    )*};
}
of_test! {
    WasteRow: |row| Of::Waste;
    HitRow: |row| Of::Hits;
    WholeHitRow: |row| Of::Hits;
    AttachRow: |row| Of::Attach;
    MissingRow: |row| row.of;
}

impl Data {
    pub(super) fn tests(&self) -> BTreeSet<TestKey> {
        let Data { waste, hits, attach, missing, .. } = self;
        let waste = waste.iter().map(OfTest::key);
        let hits = hits.iter().map(OfTest::key);
        let attach = attach.iter().map(OfTest::key);
        waste.chain(hits).chain(attach).chain(missing.iter().map(OfTest::key)).collect()
    }

    /// The part of the suite that is missing.
    pub fn incomplete(&self) -> Option<&str> {
        self.incomplete.as_deref()
    }

    /// Adds what newer runs measured on the same kernels, in place of the same tests' numbers.
    /// `Err` says which kernel is another one.
    pub fn update(mut self, newer: Data) -> Result<Data, String> {
        for kernel in &newer.kernels {
            let own = self
                .kernels
                .iter()
                .find(|it| (&it.kernel, it.arch) == (&kernel.kernel, kernel.arch));
            match own {
                Some(own) if own.source != kernel.source => {
                    let KernelRow { kernel: name, arch, source, .. } = kernel;
                    return Err(format!("{name} {arch} was {}, and is {source}", own.source));
                }
                Some(_) => {}
                None => self.kernels.push(kernel.clone()),
            }
        }
        let measured = newer.tests();
        join(&mut self.runs, newer.runs);
        self.started = self.started.min(newer.started);
        join(&mut self.machines, newer.machines);
        join(&mut self.models, newer.models);
        let kernels = &self.kernels;
        replace(&mut self.waste, newer.waste, &measured, kernels);
        replace(&mut self.hits, newer.hits, &measured, kernels);
        replace(&mut self.whole_hits, newer.whole_hits, &measured, kernels);
        replace(&mut self.attach, newer.attach, &measured, kernels);
        replace(&mut self.missing, newer.missing, &measured, kernels);
        self.incomplete = gap(&self);
        Ok(self)
    }

    /// Reads what [`Data::text`] wrote. None of another version.
    pub fn read(text: &str) -> serde_json::Result<Option<Data>> {
        let data: Data = serde_json::from_str(text)?;
        Ok((data.version == VERSION).then_some(data))
    }

    pub fn text(&self) -> serde_json::Result<Vec<u8>> {
        Ok(text::json(one_row_a_line(self)?.as_bytes()).into_owned())
    }
}

fn join<T: PartialEq>(all: &mut Vec<T>, newer: Vec<T>) {
    for one in newer {
        if !all.contains(&one) {
            all.push(one);
        }
    }
}

fn replace<R: OfTest>(
    rows: &mut Vec<R>,
    newer: Vec<R>,
    measured: &BTreeSet<TestKey>,
    kernels: &[KernelRow],
) {
    rows.retain(|row| !measured.contains(&row.key()));
    rows.extend(newer);
    let place = |row: &R| {
        let (name, arch, mechanism, of) = row.key();
        let of_kernel = |kernel: &KernelRow| (&kernel.kernel, kernel.arch) == (&name, arch);
        (kernels.iter().position(of_kernel), of, mechanism)
    };
    rows.sort_by_key(place);
}

pub fn data(run: &Run) -> Data {
    let of_kernels = || run.kernels.iter().flat_map(|of| run.cells_of(of.arch, &of.name));
    let mut data = Data {
        schema: SCHEMA_FILE.to_owned(),
        version: VERSION,
        runs: match &run.joined {
            Some(joined) => joined.runs.clone(),
            None => vec![run.id.clone()],
        },
        started: run.started.clone(),
        machines: run
            .machines
            .iter()
            .map(|machine| format!("{} on {}", machine.arch, machine.programs()))
            .collect(),
        incomplete: None,
        models: models(run),
        kernels: run.kernels.iter().map(|kernel| kernel_row(run, kernel)).collect(),
        waste: Vec::new(),
        hits: Vec::new(),
        whole_hits: Vec::new(),
        attach: Vec::new(),
        missing: Vec::new(),
    };
    for cell in of_kernels() {
        let Some((mechanism, _)) = tested(&cell.id.test) else { continue };
        match &cell.measurement {
            Some(Measurement::LbrWaste(waste)) => {
                data.waste.extend(waste_rows(run, cell, mechanism, waste));
            }
            Some(Measurement::Trigger(hit)) => {
                data.hits.extend(hit_rows(cell, mechanism, hit));
                data.whole_hits.extend(whole_hit_row(cell, mechanism, hit));
            }
            Some(Measurement::Attach(attach)) => {
                data.attach.extend(attach_row(cell, mechanism, attach));
            }
            _ => {}
        }
    }
    let measured = data.tests();
    for cell in of_kernels() {
        let Some((mechanism, of)) = tested(&cell.id.test) else { continue };
        if !measured.contains(&(cell.id.kernel.clone(), cell.id.arch, mechanism, of)) {
            data.missing.push(missing_row(cell, mechanism, of));
        }
    }
    data.incomplete = gap(&data);
    data
}

/// The mechanism of a test of the suite, and its table.
fn tested(test: &Test) -> Option<(Mechanism, Of)> {
    match test {
        Test::LbrWaste(test) => Some((test.mechanism, Of::Waste)),
        Test::Trigger(test) => Some((test.mechanism, Of::Hits)),
        Test::Attach(test) => Some((test.mechanism, Of::Attach)),
        _ => None,
    }
}

fn models(run: &Run) -> Vec<ModelRow> {
    let is_measured = |arch| run.kernels.iter().any(|kernel| kernel.arch == arch);
    let arches = Arch::ALL.into_iter().filter(|&arch| is_measured(arch));
    let row = |model: Model| ModelRow {
        model: model.name().to_owned(),
        arch: model.arch(),
        depths: model.depths().to_vec(),
    };
    arches.flat_map(Model::of).map(row).collect()
}

fn kernel_row(run: &Run, kernel: &run::Kernel) -> KernelRow {
    let mut guests = run.cells_of(kernel.arch, &kernel.name).filter_map(|cell| cell.guest.as_ref());
    KernelRow {
        kernel: kernel.name.clone(),
        arch: kernel.arch,
        source: kernel.source.clone(),
        release: guests.next().map(|guest| guest.release.clone()),
        paravirt_xxl: kernel.paravirt_xxl,
    }
}

fn waste_rows(run: &Run, cell: &Cell, mechanism: Mechanism, measured: &LbrWaste) -> Vec<WasteRow> {
    let arch = cell.id.arch;
    let models = Model::of(arch).filter(|&model| driver::model(measured, model) == model);
    let mut rows = Vec::new();
    for (model, point) in models.flat_map(|model| measured.points.iter().map(move |p| (model, p))) {
        let driver = useful::driver(run, cell, measured, &point.records);
        rows.extend(Filter::measured().map(|filter| {
            let wasted = waste::counted(model, filter, point, &measured.function).wasted;
            let (mut exact, mut at_most) = (BTreeMap::new(), BTreeMap::new());
            let of_depths =
                |wasted| useful::depths(model, None, None).into_iter().map(move |d| (d, wasted));
            for (depth, wasted) in wasted.into_iter().flat_map(of_depths) {
                match driver.useful(model, filter, depth, wasted) {
                    Useful::Exactly(count) => exact.insert(depth, count),
                    Useful::AtMost(count) => at_most.insert(depth, count),
                };
            }
            WasteRow {
                kernel: cell.id.kernel.clone(),
                arch,
                mechanism,
                point: point.point,
                model: model.name().to_owned(),
                filter: filter.to_string(),
                wasted,
                driver: driver.takes(model, filter).exactly(),
                useful: Some(exact).filter(|map| !map.is_empty()),
                useful_at_most: Some(at_most).filter(|map| !map.is_empty()),
            }
        }));
    }
    rows
}

fn hit_rows(cell: &Cell, mechanism: Mechanism, hit: &Trigger) -> Vec<HitRow> {
    let parts = hit.cost.iter().flat_map(|cost| &cost.parts);
    parts
        .map(|part| HitRow {
            kernel: cell.id.kernel.clone(),
            arch: cell.id.arch,
            mechanism,
            point: part.point,
            instructions: part.instructions,
            branches: part.branches,
        })
        .collect()
}

fn whole_hit_row(cell: &Cell, mechanism: Mechanism, hit: &Trigger) -> Option<WholeHitRow> {
    let cost = hit.cost.as_ref()?;
    Some(WholeHitRow {
        kernel: cell.id.kernel.clone(),
        arch: cell.id.arch,
        mechanism,
        mispredicted_returns: cost.count(Cost::MispredictedReturns),
        mispredicted_indirect: cost.count(Cost::MispredictedIndirect),
        reads: cost.count(Cost::Reads),
        writes: cost.count(Cost::Writes),
        estimated_cycles: cost.count(Cost::EstimatedCycles),
    })
}

/// None if it was not timed by the exact clock.
fn attach_row(cell: &Cell, mechanism: Mechanism, measured: &Attach) -> Option<AttachRow> {
    let boot = measured.exact.as_ref().filter(|boot| boot.stopped.is_none())?;
    // Of two middle rounds the lower one, as in comparisons.
    let median = |phase: attach::Phase| {
        let mut times: Vec<u64> = boot.rounds.iter().map(|round| phase.ns(round)).collect();
        times.sort_unstable();
        times.get(times.len().checked_sub(1)? / 2).copied()
    };
    Some(AttachRow {
        kernel: cell.id.kernel.clone(),
        arch: cell.id.arch,
        mechanism,
        functions: boot.functions,
        links: boot.links,
        load_ns: median(attach::Phase::Load)?,
        attach_ns: median(attach::Phase::Attach)?,
        detach_ns: median(attach::Phase::Detach)?,
        instructions: to_attach(measured),
    })
}

fn missing_row(cell: &Cell, mechanism: Mechanism, of: Of) -> MissingRow {
    let outcome = match cell.outcome {
        run::Outcome::Skip { .. } => Lost::Skip,
        _ => Lost::Error,
    };
    // Attaching may have stopped before the last function.
    let reason = cell.outcome.reason().unwrap_or_else(|| "not measured whole".into());
    MissingRow {
        kernel: cell.id.kernel.clone(),
        arch: cell.id.arch,
        mechanism,
        of,
        outcome,
        reason: text::line(reason.lines().next().unwrap_or_default()),
    }
}

/// The JSON Schema of [`Data::text`].
pub fn schema() -> Schema {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<Data>()
}

fn version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"const": VERSION})
}

fn one_of(names: impl IntoIterator<Item = impl ToString>) -> Schema {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    json_schema!({"type": "string", "enum": names})
}

fn model(_: &mut SchemaGenerator) -> Schema {
    one_of(Model::ALL)
}

fn arch(_: &mut SchemaGenerator) -> Schema {
    one_of(Arch::ALL)
}

fn mechanism(_: &mut SchemaGenerator) -> Schema {
    one_of(Mechanism::KERNEL)
}

fn point(_: &mut SchemaGenerator) -> Schema {
    one_of([Point::Entry, Point::Exit])
}

fn filter(_: &mut SchemaGenerator) -> Schema {
    one_of(Filter::measured())
}

fn by_depth(_: &mut SchemaGenerator) -> Schema {
    let depths: BTreeMap<String, Value> = Model::ALL
        .into_iter()
        .flat_map(Model::depths)
        .map(|depth| (depth.to_string(), serde_json::json!({"type": "integer", "minimum": 0})))
        .collect();
    json_schema!({
        "type": ["object", "null"],
        "properties": depths,
        "additionalProperties": false,
        "minProperties": 1,
    })
}

/// Puts each field of the object, and each row of its tables, on a line of its own.
fn one_row_a_line(data: &Data) -> serde_json::Result<String> {
    const ROW: &str = "    ";
    let mut lines: Vec<String> = Vec::new();
    for line in serde_json::to_string_pretty(data)?.lines() {
        let of_row = line.strip_prefix(ROW).filter(|rest| rest.starts_with([' ', '}', ']']));
        match (lines.last_mut(), of_row.map(str::trim_start)) {
            (Some(row), Some(part)) => {
                if !row.ends_with(['{', '[']) && !part.starts_with(['}', ']']) {
                    row.push(' ');
                }
                row.push_str(part);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests;
