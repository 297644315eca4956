// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a report says, before it is laid out: headings, tables of text, listings, outcomes. Text is as the run has it: what lays it
//! out cleans it.

use super::{
    attach,
    comparison::{self, OfSeries},
    selftests, throughput,
};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_analysis::{
    branch::{Branch, Filter, Model, hardware, listing, trigger_listing, waste},
    profile::{Phase, Summary},
    spread::Spread,
};
use tramplab_model::table::Table;
use tramplab_model::{
    run::{
        Accel, Arch, BranchSource, CLOCKS_APART, Cell, CellId, Delivered, Kernel, LbrWaste, Machine,
        Measurement, Outcome, Run, Test, Trigger, TriggerCost, WasteCount,
    },
    text,
};
use tramplab_protocol::{BesideSet, Functions, Mechanism, Point, message::Explain};

/// What of a run is shown.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The modelled CPU; where it does not fit the kernel's architecture, that one's first.
    pub model: Option<Model>,
    /// Listings are shown for these filters.
    pub listings: Vec<Filter>,
}

#[derive(Clone, Debug)]
pub struct Document {
    pub heading: String,
    pub about: Vec<(&'static str, String)>,
    pub outcomes: Outcomes,
    /// Base against head, and patch by patch.
    pub series: Vec<OfSeries>,
    /// Kernels side by side, when there are several.
    pub comparison: Vec<Table>,
    pub sections: Vec<Section>,
}

/// One kernel.
#[derive(Clone, Debug)]
pub struct Section {
    pub heading: String,
    pub about: Vec<(&'static str, String)>,
    pub tables: Vec<Table>,
    pub listings: Vec<Listing>,
}

#[derive(Clone, Debug)]
pub struct Listing {
    pub caption: String,
    pub text: String,
}

#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// `12 cells: 9 pass, 1 fail, 1 error, 1 skip`.
    pub summary: String,
    /// What a run lacks that was interrupted, or put together from too few.
    pub lacks: Vec<String>,
    pub failures: Vec<(String, Vec<String>)>,
    pub errors: Vec<Failed>,
    /// By reason.
    pub skips: Vec<(String, Vec<String>)>,
}

/// Cells that ended in the same error.
#[derive(Clone, Debug)]
pub struct Failed {
    /// One at least.
    pub cells: Vec<String>,
    pub message: String,
    /// Of the first of them.
    pub console: Vec<String>,
}

impl Failed {
    /// `x86_64/6.12/tcg/lbr_waste/fexit and 12 more`.
    pub fn heading(&self) -> String {
        and_more(&self.cells)
    }
}

/// The first name, and how many more there are.
pub fn and_more(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// The heading of each of [`Run::notes`].
pub const NOTE: &str = "note";

/// The heading of where they come from, where it is not the plugin.
pub const BRANCH_RECORDS: &str = "branches";

impl Document {
    pub fn new(run: &Run, view: &View) -> Document {
        let groups = groups(run);
        let host = &run.host;
        let mut about = vec![
            ("suite", run.suite.name.clone()),
            ("started", run.started.clone()),
            ("host", format!("{}, {}, {} CPUs", host.os, host.cpu, host.cpus)),
            ("QEMU", qemu(run)),
            ("tramplab", run.tramplab.clone()),
        ];
        if run.cells.iter().any(|cell| cell.branch_source() == Some(BranchSource::Hardware)) {
            about.push((BRANCH_RECORDS, "hardware: the CPU's own LBR, passed through by KVM".to_owned()));
        }
        // The same on every architecture.
        if let Some(series) = run.series.first() {
            about.push(("series", series.title.clone().unwrap_or_else(|| series.name.clone())));
            about.extend(series.claim.clone().map(|claim| ("claim", claim)));
        }
        about.extend(run.notes.iter().map(|note| (NOTE, note.clone())));
        if let Some(shard) = &run.shard {
            about.push(("shard", format!("{}: {} cells in all", shard.partition, shard.cells.len())));
        }
        if let Some(joined) = &run.joined {
            let (is, of) = (joined.runs.len(), joined.expected);
            about.push(("runs", format!("{is} of {of}: {}", joined.runs.join(", "))));
        }
        Document {
            series: comparison::of_run(run, view.model),
            heading: format!("tramplab run {}", run.id),
            about,
            outcomes: outcomes(run),
            comparison: side_by_side(&groups, view),
            sections: groups.iter().map(|group| section(run, group, view)).collect(),
        }
    }
}

/// Which one ran the guests; mostly the same version for every architecture.
fn qemu(run: &Run) -> String {
    match &run.machines[..] {
        [first, others @ ..] if others.iter().all(|other| other.programs() == first.programs()) => {
            first.programs()
        }
        machines => {
            let one = |machine: &Machine| format!("{}: {}", machine.arch, machine.programs());
            machines.iter().map(one).collect::<Vec<_>>().join("; ")
        }
    }
}

/// The cells of one kernel under one accelerator.
struct Group<'a> {
    kernel: &'a str,
    arch: Arch,
    accel: Accel,
    cells: Vec<&'a Cell>,
}

impl Group<'_> {
    fn model(&self, view: &View) -> Model {
        Model::choose(view.model, self.arch)
    }

    fn facts<'a>(&self, run: &'a Run) -> Option<&'a Kernel> {
        run.kernels.iter().find(|kernel| kernel.name == self.kernel && kernel.arch == self.arch)
    }
}

/// In the run's order of kernels.
fn in_order(run: &Run) -> Vec<&Cell> {
    let order = |id: &CellId| run.kernels.iter().position(|k| k.name == id.kernel).unwrap_or(usize::MAX);
    let mut cells: Vec<&Cell> = run.cells.iter().collect();
    cells.sort_by(|a, b| (order(&a.id), &a.id).cmp(&(order(&b.id), &b.id)));
    cells
}

/// Kernel by kernel, without placebos: of these only how far they are from the tree counts.
fn groups(run: &Run) -> Vec<Group<'_>> {
    let is_placebo = |id: &CellId| run.series.iter().any(|series| series.placebos.contains(&id.kernel));
    let cells: Vec<&Cell> = in_order(run).into_iter().filter(|cell| !is_placebo(&cell.id)).collect();
    let same =
        |a: &&Cell, b: &&Cell| (&a.id.kernel, a.id.arch, a.id.accel) == (&b.id.kernel, b.id.arch, b.id.accel);
    cells
        .chunk_by(same)
        .map(|cells| {
            let CellId { kernel, arch, accel, .. } = &cells[0].id;
            Group { kernel, arch: *arch, accel: *accel, cells: cells.to_vec() }
        })
        .collect()
}

fn section(run: &Run, group: &Group, view: &View) -> Section {
    let model = group.model(view);
    let mut tables = waste_tables(run, group, view);
    tables.extend(trigger_table(group));
    tables.extend(attach::tables(&group.cells));
    tables.extend(selftests::tables(&group.cells));
    Section {
        heading: format!("Linux {} ({}, {})", group.kernel, group.arch.name(), group.accel.name()),
        about: about(run, group),
        tables,
        listings: listings(group, model, &view.listings)
            .into_iter()
            .chain(trigger_listings(group).filter(|_| !view.listings.is_empty()))
            .collect(),
    }
}

fn about(run: &Run, group: &Group) -> Vec<(&'static str, String)> {
    let mut about = Vec::new();
    if let Some(kernel) = group.facts(run) {
        about.push(("source", kernel.source.clone()));
        about.extend(kernel.build.as_ref().map(|build| ("built", build.toolchain.clone())));
    }
    if let Some(guest) = group.cells.iter().find_map(|cell| cell.guest.as_ref()) {
        // The same in all guests of a kernel with the host's clock, if all is well.
        let clocks: BTreeSet<&str> = group
            .cells
            .iter()
            .filter(|cell| cell.boot_ms.is_some())
            .filter_map(|cell| cell.clock_source())
            .flat_map(|names| names.split(CLOCKS_APART))
            .collect();
        let clocks = match clocks.is_empty() {
            true => guest.clocksource.clone(),
            false => Vec::from_iter(clocks).join(CLOCKS_APART),
        };
        let memory = guest.memory_kib / 1024;
        about
            .push(("guest", format!("{}, {} CPUs, {memory} MiB, clock {clocks}", guest.release, guest.cpus)));
        // What a CPU is not affected by adds no branches.
        let mitigated = |m: &&String| m.contains("Mitigation");
        let mitigations: Vec<&str> = guest.mitigations.iter().filter(mitigated).map(String::as_str).collect();
        let mitigations = if mitigations.is_empty() { "none".to_owned() } else { mitigations.join("; ") };
        about.push(("mitigations", mitigations));
    }
    about
}

/// A row per mechanism and point: what was measured, or how the cell ended instead.
fn waste_rows<'a>(group: &'a Group) -> Vec<WasteRow<'a>> {
    let mut rows = Vec::new();
    for cell in &group.cells {
        let Test::LbrWaste { mechanism } = cell.id.test else { continue };
        let Some(Measurement::LbrWaste(waste)) = &cell.measurement else {
            let name = mechanism.name().to_owned();
            rows.push(WasteRow { mechanism, name, measured: Err(cell.outcome.name()) });
            continue;
        };
        for (index, point) in waste.points.iter().enumerate() {
            let name = match waste.points.len() {
                1 => mechanism.name().to_owned(),
                _ => format!("{mechanism}/{}", point.point),
            };
            rows.push(WasteRow { mechanism, name, measured: Ok(Measured { waste, point: index }) });
        }
    }
    rows
}

struct WasteRow<'a> {
    mechanism: Mechanism,
    name: String,
    measured: Result<Measured<'a>, &'static str>,
}

#[derive(Clone, Copy)]
struct Measured<'a> {
    waste: &'a LbrWaste,
    point: usize,
}

impl Measured<'_> {
    fn count(&self, model: Model, branch: Branch) -> Option<WasteCount> {
        let model = hardware::model(self.waste, model);
        self.waste.points[self.point].wasted.get(model.name())?.get(branch.name()).copied()
    }

    fn is_hardware(&self) -> bool {
        self.waste.source == BranchSource::Hardware
    }

    fn wasted(&self, model: Model, branch: Branch) -> Option<u32> {
        self.count(model, branch)?.wasted
    }
}

fn waste_tables(run: &Run, group: &Group, view: &View) -> Vec<Table> {
    let model = group.model(view);
    let rows = waste_rows(group);
    if rows.is_empty() {
        return Vec::new();
    }
    let header = |first: &str| {
        let filters = Branch::ALL.iter().map(|branch| branch.name().to_owned());
        std::iter::once(first.to_owned()).chain(filters).collect::<Vec<_>>()
    };
    let body = |value: &dyn Fn(&Measured, Branch) -> String| {
        let row = |WasteRow { name, measured, .. }: &WasteRow| {
            let mut row = vec![name.clone()];
            match measured {
                Ok(measured) => row.extend(Branch::ALL.map(|branch| value(measured, branch))),
                Err(outcome) => {
                    row.push((*outcome).to_owned());
                    row.resize(1 + Branch::ALL.len(), String::new());
                }
            }
            row
        };
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let measured: Vec<(&str, Measured)> =
        rows.iter().filter_map(|row| Some((row.name.as_str(), row.measured.ok()?))).collect();
    // Under one accelerator all are of one source, and on one machine of one depth.
    let ring = measured.iter().find_map(|(_, m)| m.waste.depth);
    let depths = ring.as_ref().map_or_else(|| model.depths(), std::slice::from_ref);
    let whose = whose(is_hardware(group), model);
    let dash = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let useful = |m: &Measured, branch| {
        m.wasted(model, branch).map_or_else(
            || "-".to_owned(),
            |wasted| slashed(depths.iter().map(|&depth| waste::useful(depth, wasted))),
        )
    };
    vec![
        Table {
            caption: format!("Wasted branch records ({whose})"),
            header: header("mechanism"),
            rows: body(&|m, branch| dash(m.wasted(model, branch))),
            notes: waste_notes(group.arch, model, &measured),
        },
        Table {
            caption: format!("Useful branch records of {} ({whose})", slashed(depths.iter().copied())),
            header: header("mechanism"),
            rows: body(&useful),
            notes: if measured.is_empty() || is_hardware(group) {
                Vec::new()
            } else {
                useful_notes(run, group, view)
            },
        },
    ]
}

/// Virtual records have none of the driver's own: say how many a real CPU's would have.
fn useful_notes(run: &Run, group: &Group, view: &View) -> Vec<String> {
    let paravirt_xxl = group.facts(run).and_then(|kernel| kernel.paravirt_xxl);
    let driver = of_the_driver(group.model(view), paravirt_xxl);
    std::iter::once(driver).chain(of_host(run, group, view)).collect()
}

/// How many of the ring's records are the driver's own; `paravirt_xxl` is unknown of runs of older versions.
fn of_the_driver(model: Model, paravirt_xxl: Option<bool>) -> String {
    let most = |branch| model.of_the_driver(branch, paravirt_xxl.unwrap_or(true));
    let Some(any) = most(Branch::Any) else {
        return format!(
            "How many of these the driver takes is unknown: Linux has no driver that snapshots {model}."
        );
    };
    let others = Branch::ALL[1..].iter().filter_map(|&branch| Some((branch.name(), most(branch)?)));
    let others = others.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
    let others = others.collect::<Vec<_>>().join(", ");
    match paravirt_xxl {
        Some(true) => {
            format!("Of these the driver takes {any} ({others}): the kernel has PARAVIRT_XXL.")
        }
        Some(false) => "Of these the driver takes none: the kernel has no PARAVIRT_XXL.".to_owned(),
        None => format!("Of these the driver takes {any} ({others}) if the kernel has PARAVIRT_XXL."),
    }
}

/// Which model to ask for where the host's CPU is of another vendor than the one shown. The default is the same on every
/// host, so that a suite's report is.
fn of_host(run: &Run, group: &Group, view: &View) -> Option<String> {
    let shown = group.model(view);
    let host = Model::of_cpu(&run.host.cpu)?;
    let is_other = view.model.is_none() && host.arch() == group.arch && host != shown;
    let depths = slashed(host.depths().iter().copied());
    is_other
        .then(|| format!("The host's CPU is of another vendor: --model {host} shows its depth, {depths}."))
}

fn is_hardware(group: &Group) -> bool {
    group.cells.iter().any(|cell| cell.branch_source() == Some(BranchSource::Hardware))
}

/// The modelled CPU, or that it was none.
fn whose(is_hardware: bool, model: Model) -> &'static str {
    if is_hardware { BranchSource::Hardware.name() } else { model.name() }
}

/// `16 / 32`.
fn slashed(numbers: impl Iterator<Item = u32>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(" / ")
}

fn waste_notes(arch: Arch, model: Model, rows: &[(&str, Measured)]) -> Vec<String> {
    let mut notes = Vec::new();
    if rows.iter().any(|(_, m)| Branch::ALL.iter().any(|&b| m.wasted(model, b).is_none())) {
        notes.push("-: no record of this filter touches the traced function.".to_owned());
    }
    if rows.iter().any(|(_, m)| m.is_hardware()) {
        notes.extend(hardware_notes(rows));
        notes.extend(disagreeing(rows));
        return notes;
    }
    let same = |other: &Model| {
        rows.iter().all(|(_, m)| Branch::ALL.iter().all(|&b| m.wasted(model, b) == m.wasted(*other, b)))
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
    let is_modelled = |m: &Measured| m.waste.points[m.point].records.first().is_some_and(|r| r.modelled);
    if rows.iter().any(|(_, m)| is_modelled(m)) {
        notes.push(match arch {
            Arch::X86_64 => {
                "Record #00 is modelled: without a PMU driver this kernel patches the static call out.".to_owned()
            }
            Arch::Arm64 => {
                "Record #00 is modelled: this kernel's helper returns without a call, as its architecture has no static one.".to_owned()
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
        let clean = waste.hits.saturating_sub(waste.interrupted_hits);
        if waste.agreeing_hits < clean {
            notes.push(format!("{name}: only {} of {clean} undisturbed hits agree.", waste.agreeing_hits));
        }
    }
    notes
}

/// What is otherwise than with virtual records.
fn hardware_notes(rows: &[(&str, Measured)]) -> Vec<String> {
    let depth = rows.iter().find_map(|(_, m)| m.waste.depth).unwrap_or_default();
    let mut notes = vec![format!(
        "Read from the CPU's own LBR of {depth} records: not to be compared with virtual records, and nothing older than the ring is seen."
    )];
    let drivers: BTreeSet<usize> =
        rows.iter().filter_map(|(_, m)| hardware::of_the_driver(&m.waste.points[m.point].records)).collect();
    if let (Some(least), Some(most)) = (drivers.first(), drivers.last())
        && *most > 0
    {
        let count = if least == most { most.to_string() } else { format!("{least} to {most}") };
        notes.push(format!(
            "In any, {count} of the wasted are the driver's own, from before it stopped the LBR; virtual records have none of these."
        ));
    }
    notes
}

/// Of the experiment that hands records to the guest's programs, if it was asked for.
fn delivered(rows: &[(&str, Measured)]) -> Option<String> {
    let cells: BTreeMap<Mechanism, &Delivered> = rows
        .iter()
        .filter_map(|(_, measured)| Some((measured.waste.mechanism, measured.waste.delivered.as_ref()?)))
        .collect();
    let Delivered { model, filter, depth, .. } = *cells.values().next()?;
    let names: Vec<&str> = cells.keys().map(|mechanism| mechanism.name()).collect();
    Some(format!(
        "Experiment: in the guest, the programs of these were handed {depth} entries each ({model}, {filter}), all as in the trace: {}.",
        names.join(", ")
    ))
}

/// The trigger cells, measured or not.
fn triggers<'a>(
    group: &'a Group,
) -> impl Iterator<Item = ((Mechanism, BesideSet), Result<&'a Trigger, &'static str>)> + use<'a> {
    group.cells.iter().filter_map(|cell| {
        let Test::Trigger { mechanism, beside } = cell.id.test else { return None };
        let measured = match &cell.measurement {
            Some(Measurement::Trigger(trigger)) => Ok(trigger),
            _ => Err(cell.outcome.name()),
        };
        Some(((mechanism, beside), measured))
    })
}

fn trigger_table(group: &Group) -> Option<Table> {
    let mut notes = Vec::new();
    let mut rows = Vec::new();
    for ((mechanism, beside), measured) in triggers(group) {
        let name = beside.with(mechanism);
        let mut row = vec![name.clone()];
        match measured {
            Ok(trigger) => {
                let exact = |of: &dyn Fn(&TriggerCost) -> Option<u32>| {
                    trigger.cost.as_ref().and_then(of).map_or_else(|| "-".to_owned(), |n| n.to_string())
                };
                let at = |point| exact(&|cost| Some(cost.part(point)?.instructions));
                row.extend([at(Point::Entry), at(Point::Exit)]);
                row.push(exact(&|cost| Some(cost.instructions())));
                row.push(exact(&|cost| Some(cost.branches())));
                row.push(throughput::overhead_ns(trigger).map_or_else(String::new, |ns| format!("{ns:.0}")));
                let rate = throughput::hits_per_second(trigger);
                row.push(rate.map_or_else(String::new, |rate| format!("{rate:.0}")));
                notes.extend(trigger.cost.as_ref().and_then(|cost| disagreement(&name, cost)));
            }
            Err(outcome) => {
                row.push(outcome.to_owned());
                row.resize(TRIGGER_HEADER.len(), String::new());
            }
        }
        rows.push(row);
    }
    if group.accel == Accel::Kvm {
        notes.push("Under KVM nothing counts instructions and branches: only times are measured.".to_owned());
    }
    let caption =
        "Cost of a hit of the empty program: instructions, taken branches, guest time with it less without, median (min..max)"
            .to_owned();
    let header = TRIGGER_HEADER.map(str::to_owned).to_vec();
    (!rows.is_empty()).then_some(Table { caption, header, rows, notes })
}

const TRIGGER_HEADER: [&str; 7] =
    ["mechanism", "at entry", "at exit", "instructions", "branches", "ns", "hits/s"];

fn disagreement(name: &str, cost: &TriggerCost) -> Option<String> {
    let clean = cost.hits.saturating_sub(cost.interrupted_hits);
    let agree = cost.agreeing_hits;
    (agree < clean).then(|| format!("{name}: only {agree} of {clean} undisturbed hits agree."))
}

/// What each hit runs, part by part.
fn trigger_listings<'a>(group: &'a Group) -> impl Iterator<Item = Listing> + use<'a> {
    triggers(group).flat_map(|((mechanism, beside), measured)| {
        let trigger = measured.ok();
        let parts = trigger.and_then(|trigger| trigger.cost.as_ref()).map_or(&[][..], |cost| &cost.parts);
        parts.iter().map(move |part| Listing {
            caption: format!(
                "{} of {}, a hit at {}: {} instructions, {} branches",
                beside.with(mechanism),
                trigger.map_or("", |trigger| &trigger.function.name),
                part.point,
                part.instructions,
                part.branches
            ),
            text: trigger_listing(part),
        })
    })
}

/// One column per kernel: `any` waste, what a hit costs, and the median attach time.
fn side_by_side(groups: &[Group], view: &View) -> Vec<Table> {
    if groups.len() < 2 {
        return Vec::new();
    }
    let mut wasted: BTreeMap<(Mechanism, String), Vec<String>> = BTreeMap::new();
    let mut attach: BTreeMap<(Mechanism, Functions), Vec<String>> = BTreeMap::new();
    let mut counted: BTreeMap<(Mechanism, Functions), Vec<String>> = BTreeMap::new();
    let mut hits: BTreeMap<(Mechanism, BesideSet), Vec<String>> = BTreeMap::new();
    fn cell<K: Ord>(
        rows: &mut BTreeMap<K, Vec<String>>,
        key: K,
        column: usize,
        columns: usize,
    ) -> &mut String {
        &mut rows.entry(key).or_insert_with(|| vec![String::new(); columns])[column]
    }
    for (column, group) in groups.iter().enumerate() {
        let model = group.model(view);
        for WasteRow { mechanism, name, measured } in waste_rows(group) {
            let value = match measured {
                Ok(m) => m.wasted(model, Branch::Any).map_or_else(|| "-".to_owned(), |n| n.to_string()),
                Err(outcome) => outcome.to_owned(),
            };
            *cell(&mut wasted, (mechanism, name), column, groups.len()) = value;
        }
        for (key, measured) in triggers(group) {
            let value = match measured.map(|trigger| &trigger.cost) {
                Ok(Some(cost)) => format!("{} / {}", cost.instructions(), cost.branches()),
                Ok(None) => "-".to_owned(),
                Err(outcome) => outcome.to_owned(),
            };
            *cell(&mut hits, key, column, groups.len()) = value;
        }
        for one in &group.cells {
            let Test::Attach { mechanism, functions } = one.id.test else { continue };
            let value = match &one.measurement {
                Some(Measurement::Attach(attach)) => {
                    let median =
                        Spread::of_ns(attach.rounds_of_a_clock().map(|r| r.attach_ns)).map(|s| s.median);
                    let median = median.map_or_else(String::new, |median| format!("{median:.2}"));
                    match attach.stopped().filter(|stopped| stopped.attached < stopped.wanted) {
                        Some(stopped) => format!("{median} for {}", stopped.attached),
                        None => median,
                    }
                }
                _ => one.outcome.name().to_owned(),
            };
            *cell(&mut attach, (mechanism, functions), column, groups.len()) = value;
            if let Some(instructions) = instructions(one) {
                *cell(&mut counted, (mechanism, functions), column, groups.len()) = instructions.to_string();
            }
        }
    }
    let several_accels = groups.iter().map(|g| g.accel).collect::<BTreeSet<_>>().len() > 1;
    let several_archs = groups.iter().map(|g| g.arch).collect::<BTreeSet<_>>().len() > 1;
    let column = |group: &Group| {
        let mut name = group.kernel.to_owned();
        if several_archs {
            name += &format!(" {}", group.arch.name());
        }
        if several_accels {
            name += &format!(" {}", group.accel.name());
        }
        name
    };
    let header = |first: &str| std::iter::once(first.to_owned()).chain(groups.iter().map(column)).collect();
    let table = |caption: &str, first, rows: Vec<Vec<String>>| {
        (!rows.is_empty()).then(|| Table {
            caption: caption.to_owned(),
            header: header(first),
            rows,
            notes: Vec::new(),
        })
    };
    let wasted = wasted.into_iter().map(|((_, name), values)| [vec![name], values].concat()).collect();
    let mut models: Vec<&str> = Vec::new();
    for group in groups.iter().filter(|group| group.cells.iter().any(|cell| cell.branch_source().is_some())) {
        let model = whose(is_hardware(group), group.model(view));
        if !models.contains(&model) {
            models.push(model);
        }
    }
    let models = models.join(", ");
    let [attach, counted] = [attach, counted].map(|rows| {
        let row = |((mechanism, functions), values): ((Mechanism, Functions), Vec<String>)| {
            [vec![format!("{mechanism}/{functions}")], values].concat()
        };
        rows.into_iter().map(row).collect::<Vec<_>>()
    });
    let hits = hits
        .into_iter()
        .map(|((mechanism, beside), values)| [vec![beside.with(mechanism)], values].concat())
        .collect();
    [
        table(&format!("Wasted branch records by kernel (any; {models})"), "mechanism", wasted),
        table("Instructions / branches of a hit by kernel", "mechanism", hits),
        table("Median attach time by kernel, ms of guest time", "mechanism/functions", attach),
        table(
            "Instructions of the attaching thread to attach, by kernel (exact)",
            "mechanism/functions",
            counted,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Of the attaching thread, to attach; where they were counted.
fn instructions(cell: &Cell) -> Option<u64> {
    let Some(Measurement::Attach(attach)) = &cell.measurement else { return None };
    let counted = |summary: &&Summary| summary.phase == Phase::Attach && summary.how == Explain::Exact;
    attach.explained.iter().find(counted).map(|summary| summary.totals.task)
}

fn listings(group: &Group, model: Model, filters: &[Filter]) -> Vec<Listing> {
    let mut listings = Vec::new();
    for WasteRow { name, measured, .. } in waste_rows(group) {
        let Ok(Measured { waste, point }) = measured else { continue };
        let is_hardware = waste.source == BranchSource::Hardware;
        let model = hardware::model(waste, model);
        for &filter in filters {
            let point = &waste.points[point];
            let count = waste::count_at(model, filter, point, &waste.function);
            let wasted = count.wasted.map_or_else(String::new, |n| format!(", {n} wasted"));
            listings.push(Listing {
                caption: format!(
                    "{name} of {}, {filter} ({}){wasted}",
                    waste.function.name,
                    whose(is_hardware, model)
                ),
                text: listing(point, &waste.function, model, filter),
            });
        }
    }
    listings
}

/// Why a run is no pass, in a line.
pub fn why(run: &Run) -> String {
    let Outcomes { summary, lacks, failures, errors, .. } = outcomes(run);
    let failed = failures.first().map(|(cell, reasons)| format!("{cell}: {}", reasons.join("; ")));
    let error = || errors.first().map(|error| format!("{}: {}", error.heading(), error.message));
    let first = failed.or_else(error).map(|first| format!("first {first}"));
    let nothing = || Some("no number was measured, or none on both sides of a series".to_owned());
    let lacks = (!lacks.is_empty()).then(|| lacks.join(" "));
    let why = lacks.or(first).or_else(nothing).unwrap_or_default();
    text::line(&format!("{summary}; {why}"))
}

fn outcomes(run: &Run) -> Outcomes {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut errors: Vec<(&Outcome, Failed)> = Vec::new();
    let mut skips: Vec<(String, Vec<String>)> = Vec::new();
    for cell in in_order(run) {
        *counts.entry(cell.outcome.name()).or_default() += 1;
        let name = cell.id.name();
        match &cell.outcome {
            Outcome::Pass => {}
            Outcome::Fail { reasons } => failures.push((name, reasons.clone())),
            Outcome::Error { kind, message } => {
                // A compiler says more than a line: the rest stands where otherwise the console does.
                let (first, rest) = message.split_once('\n').unwrap_or((message, ""));
                let console = rest.lines().chain(cell.console_tail.iter().map(String::as_str));
                let console: Vec<String> = console.map(str::to_owned).collect();
                let message = format!("{kind}: {first}");
                match errors.iter_mut().find(|(known, _)| **known == cell.outcome) {
                    Some((_, known)) => known.cells.push(name),
                    None => errors.push((&cell.outcome, Failed { cells: vec![name], message, console })),
                }
            }
            Outcome::Skip { reason } => {
                let reason = text::line(reason);
                match skips.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, cells)) => cells.push(name),
                    None => skips.push((reason, vec![name])),
                }
            }
        }
    }
    let parts = ["pass", "fail", "error", "skip"].map(|outcome| {
        let count = counts.get(outcome).copied().unwrap_or_default();
        format!("{count} {outcome}")
    });
    Outcomes {
        summary: format!("{} cells: {}", run.cells.len(), parts.join(", ")),
        lacks: run.interruption().into_iter().chain(run.shortage()).collect(),
        failures,
        errors: errors.into_iter().map(|(_, failed)| failed).collect(),
        skips,
    }
}
