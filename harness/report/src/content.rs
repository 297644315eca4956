// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a report before it is formatted: headings, tables of text, listings, outcomes. It
//! has text as the run has it. The formatters clean it.

use super::{
    booted,
    comparison::{self, OfSeries},
    configurations,
    group::Group,
    kinds,
};
use std::collections::{BTreeMap, BTreeSet};
use tramplab_analysis::{
    branch::{Filter, Model},
    compare, verdict,
};
use tramplab_model::{
    cpu,
    run::{Allowed, BranchSource, CLOCKS_APART, Cell, CellId, Kernel, Machine, Outcome, Run},
    table::Table,
    text,
};

/// The parts of a run to show.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The modelled CPU. If it does not fit a kernel's architecture, the architecture's first.
    pub model: Option<Model>,
    /// The depth of that CPU, if it is one and not a family.
    pub depth: Option<u32>,
    /// The name of that CPU, if it is one: guests that booted as another are shown as they booted.
    pub cpu: Option<String>,
    /// Listings are shown for these filters.
    pub listings: Vec<Filter>,
    /// So are the counts of snapshots taken earlier.
    pub what_if: Vec<Filter>,
    /// Listings also show the source lines that are known.
    pub lines: bool,
}

impl View {
    /// The model for guests that booted so. A CPU is not the model of those that booted as another.
    pub fn model_of(&self, booted: Option<&cpu::Named>) -> Option<Model> {
        let is_other = |asked: &String| booted.is_some_and(|own| own.name != *asked);
        self.model.filter(|_| !self.cpu.as_ref().is_some_and(is_other))
    }
}

#[derive(Clone, Debug)]
pub struct Document {
    pub heading: String,
    pub about: Vec<(&'static str, String)>,
    pub outcomes: Outcomes,
    /// Base against head, and patch by patch.
    pub series: Vec<OfSeries>,
    /// Kernels side by side, if there are several.
    pub comparison: Vec<Table>,
    pub sections: Vec<Section>,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub heading: String,
    pub about: Vec<(&'static str, String)>,
    pub tables: Vec<Table>,
    pub listings: Vec<Listing>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub caption: String,
    pub text: String,
}

#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// `12 cells: 9 pass, 1 fail, 1 error, 1 skip`.
    pub summary: String,
    /// Missing parts of a run that was interrupted, or joined from too few runs.
    pub lacks: Vec<String>,
    pub failures: Vec<(String, Vec<String>)>,
    pub errors: Vec<Failed>,
    /// Names of cells, by reason.
    pub skips: Vec<(String, Vec<String>)>,
    /// Names of cells, by the warning that the suite allows and its reason.
    pub allowed: Vec<(String, Vec<String>)>,
}

/// Cells that ended in the same error.
#[derive(Clone, Debug)]
pub struct Failed {
    /// At least one.
    pub cells: Vec<String>,
    pub message: String,
    /// The console of the first of them.
    pub console: Vec<String>,
}

impl Failed {
    /// `x86_64/6.12/tcg/lbr_waste/fexit and 12 more`.
    pub fn heading(&self) -> String {
        and_more(&self.cells)
    }
}

/// The first name, and the number of further names.
pub fn and_more(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// Says why a run without an error measured nothing.
const MISSED: &str = "every cell of the named functions was skipped, so that nothing was measured \
                      (exit code 3): the reasons say if a name or a program is wrong";
/// The same of a run whose kernels did not take the words of their command line.
const NOT_TAKEN: &str = "every cell was skipped, as no kernel took all switches of its command \
                         line, so that nothing was measured (exit code 3)";
/// The heading of each of [`Run::notes`].
pub const NOTE: &str = "note";

/// The heading of the verdict of a series in several configurations.
pub const VERDICT: &str = "verdict";

/// The heading of the source of branch records, if it is not the plugin.
pub const BRANCH_RECORDS: &str = "branches";

impl Document {
    pub fn new(run: &Run, view: &View) -> Document {
        let groups = groups(run, view);
        Document {
            series: comparison::of_run(run, view),
            heading: heading(run),
            about: about_run(run),
            outcomes: outcomes(run),
            comparison: configurations::tables(run, view)
                .into_iter()
                .chain(side_by_side(run, &groups, view))
                .collect(),
            sections: groups
                .iter()
                .map(|group| section(run, group, view))
                .chain(configurations::sections(run, view))
                .collect(),
        }
    }
}

pub(crate) fn heading(run: &Run) -> String {
    format!("tramplab run {}", run.id)
}

pub(crate) fn about_run(run: &Run) -> Vec<(&'static str, String)> {
    let host = &run.host;
    let mut about = vec![
        ("suite", run.suite.name.clone()),
        ("started", run.started.clone()),
        ("host", format!("{}, {}, {}", host.os, host.cpu, text::counted(host.cpus, "CPU"))),
        ("QEMU", qemu(run)),
        ("tramplab", run.tramplab.clone()),
    ];
    if run.cells.iter().any(|cell| cell.branch_source() == Some(BranchSource::Hardware)) {
        about.push((
            BRANCH_RECORDS,
            "hardware: the CPU's own LBR, passed through by KVM".to_owned(),
        ));
    }
    // The series is the same on every architecture.
    if let Some(series) = run.series.first() {
        about.push(("series", series.title.clone().unwrap_or_else(|| series.name.clone())));
        about.extend(series.claim.clone().map(|claim| ("claim", claim)));
    }
    let agreements = compare::agreements(run, None);
    about.extend(
        agreements.iter().map(|one| (VERDICT, format!("{}: {}", one.arch, one.sentence()))),
    );
    about.extend(run.notes.iter().map(|note| (NOTE, note.clone())));
    if verdict::misses_all_functions(run) {
        about.push((NOTE, MISSED.to_owned()));
    }
    if verdict::misses_all_switches(run) {
        about.push((NOTE, NOT_TAKEN.to_owned()));
    }
    if let Some(shard) = &run.shard {
        about.push((
            "shard",
            format!("{}: {} in all", shard.partition, text::counted(shard.cells.len(), "cell")),
        ));
    }
    if let Some(joined) = &run.joined {
        let (is, of) = (joined.runs.len(), joined.expected);
        about.push(("runs", format!("{is} of {of}: {}", joined.runs.join(", "))));
    }
    about
}

/// The programs that ran the guests, mostly the same for every architecture.
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

/// The cells in the run's order of kernels.
fn in_order(run: &Run) -> Vec<&Cell> {
    let order =
        |id: &CellId| run.kernels.iter().position(|k| k.name == id.kernel).unwrap_or(usize::MAX);
    let mut cells: Vec<&Cell> = run.cells.iter().collect();
    cells.sort_by(|a, b| (order(&a.id), &a.id).cmp(&(order(&b.id), &b.id)));
    cells
}

/// Groups the cells by kernel, without placebos: reports show only how far placebos are from the
/// tree.
pub(crate) fn groups<'a>(run: &'a Run, view: &View) -> Vec<Group<'a>> {
    let is_placebo =
        |id: &CellId| run.series.iter().any(|series| series.placebos.contains(&id.kernel));
    let cells: Vec<&Cell> =
        in_order(run).into_iter().filter(|cell| !is_placebo(&cell.id)).collect();
    let same = |a: &&Cell, b: &&Cell| {
        (&a.id.kernel, a.id.arch, a.id.accel) == (&b.id.kernel, b.id.arch, b.id.accel)
    };
    cells
        .chunk_by(same)
        .map(|cells| {
            let CellId { kernel, arch, accel, .. } = &cells[0].id;
            let lines = run.lines_of(*arch, kernel).filter(|_| view.lines);
            let known = run.kernel(*arch, kernel);
            let booted = known.and_then(Kernel::cpu);
            let cpu = known.and_then(|kernel| run.cpu_of(kernel));
            let cells = cells.to_vec();
            Group { kernel, arch: *arch, accel: *accel, cells, booted, cpu, lines }
        })
        .collect()
}

fn section(run: &Run, group: &Group, view: &View) -> Section {
    Section {
        heading: group.heading(),
        about: about(run, group),
        tables: kinds::all().flat_map(|kind| kind.tables(run, group, view)).collect(),
        listings: kinds::all().flat_map(|kind| kind.listings(group, view)).collect(),
    }
}

pub(crate) fn about(run: &Run, group: &Group) -> Vec<(&'static str, String)> {
    let mut about = Vec::new();
    if let Some(kernel) = group.facts(run) {
        about.push(("source", kernel.source.clone()));
        about.extend(kernel.build.as_ref().map(|build| ("built", build.toolchain.clone())));
    }
    if let Some(guest) = group.cells.iter().find_map(|cell| cell.guest.as_ref()) {
        // All guests of a kernel with the host's clock should have the same one.
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
        let cpus = text::counted(guest.cpus as usize, "CPU");
        about.push(("guest", format!("{}, {cpus}, {memory} MiB, clock {clocks}", guest.release)));
        about.push(("booted", booted::how(run, group, guest)));
        about.push(("mitigations", booted::mitigations(guest)));
    }
    about.extend(starvation(&group.cells).map(|said| ("host", said)));
    about
}

/// How the host starved the guests of these cells, if that is much: half of their time.
fn starvation(cells: &[&Cell]) -> Option<String> {
    let told = cells.iter().filter_map(|cell| Some((cell.starved_ms?, cell.duration_ms)));
    let (starved, all) = told.fold((0u64, 0u64), |(starved, all), (of, duration)| {
        (starved.saturating_add(of), all.saturating_add(duration))
    });
    let repeated: Vec<String> = cells
        .iter()
        .filter(|cell| cell.repeated.is_some())
        .map(|cell| cell.id.test.name())
        .collect();
    let busy = (starved > 0 && starved >= all / 2).then(|| {
        let seconds = |ms: u64| ms.div_ceil(1000);
        format!("busy: guests waited {} of {} s for a CPU", seconds(starved), seconds(all))
    });
    let repeated = (!repeated.is_empty())
        .then(|| format!("starved guests; repeated alone: {}", repeated.join(", ")));
    let said: Vec<String> = busy.into_iter().chain(repeated).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Tables with a column for each kernel. None if there is one kernel.
fn side_by_side(run: &Run, groups: &[Group], view: &View) -> Vec<Table> {
    let all = kinds::all().filter(|_| groups.len() > 1);
    all.flat_map(|kind| kind.by_kernel(run, groups, view)).collect()
}

/// The reason why a run does not pass, in a line.
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

/// Adds a cell to those of the same reason.
fn add_cell(by_reason: &mut Vec<(String, Vec<String>)>, reason: String, cell: String) {
    match by_reason.iter_mut().find(|(known, _)| *known == reason) {
        Some((_, cells)) => cells.push(cell),
        None => by_reason.push((reason, vec![cell])),
    }
}

pub(crate) fn outcomes(run: &Run) -> Outcomes {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    let mut errors: Vec<(&Outcome, Failed)> = Vec::new();
    let mut skips = Vec::new();
    let mut allowed = Vec::new();
    for cell in in_order(run) {
        *counts.entry(cell.outcome.name()).or_default() += 1;
        let name = cell.id.name();
        match &cell.outcome {
            Outcome::Pass => {}
            Outcome::Fail { reasons } => failures.push((name.clone(), reasons.clone())),
            Outcome::Error { kind, message } => {
                // A compiler or a verifier prints several lines. Show the rest in place of the
                // console.
                let (first, rest) = message.split_once('\n').unwrap_or((message, ""));
                let console = match rest.is_empty() {
                    true => cell.console_tail.clone(),
                    false => rest.lines().map(str::to_owned).collect(),
                };
                let message = format!("{kind}: {first}");
                match errors.iter_mut().find(|(known, _)| **known == cell.outcome) {
                    Some((_, known)) => known.cells.push(name.clone()),
                    None => errors.push((
                        &cell.outcome,
                        Failed { cells: vec![name.clone()], message, console },
                    )),
                }
            }
            Outcome::Skip { reason } => {
                add_cell(&mut skips, text::line(reason), name.clone());
            }
        }
        for Allowed { warning, reason } in &cell.allowed {
            add_cell(&mut allowed, text::line(&format!("{warning} ({reason})")), name.clone());
        }
    }
    let parts = ["pass", "fail", "error", "skip"].map(|outcome| {
        let count = counts.get(outcome).copied().unwrap_or_default();
        format!("{count} {outcome}")
    });
    Outcomes {
        summary: format!("{}: {}", text::counted(run.cells.len(), "cell"), parts.join(", ")),
        lacks: run.interruption().into_iter().chain(run.shortage()).collect(),
        failures,
        errors: errors.into_iter().map(|(_, failed)| failed).collect(),
        skips,
        allowed,
    }
}
