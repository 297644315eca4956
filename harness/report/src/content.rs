// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a report before it is formatted: headings, tables of text, listings, outcomes. It
//! has text as the run has it. The formatters clean it.

use super::{
    booted,
    comparison::{self, OfSeries},
    configurations,
    group::Group,
    kinds,
    outcomes::{Outcomes, in_order, outcomes_beside},
    parts::Section,
    published,
    view::View,
};
use std::collections::BTreeSet;
use tramplab_analysis::{compare, verdict};
use tramplab_model::{
    run::{Accel, Backend, BranchSource, CLOCKS_APART, Cell, CellId, Kernel, Machine, Run},
    table::Table,
    text,
};
use tramplab_protocol::message::Condition;

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

/// Says why a run without an error measured nothing.
const MISSED: &str = "every cell of the named functions was skipped, so that none of them was \
                      measured (exit code 3): the reasons say if a name or a program is wrong";
/// The same of a run whose kernels did not take the words of their command line.
const NOT_TAKEN: &str = "every cell was skipped, as no kernel took all switches of its command \
                         line, so that nothing was measured (exit code 3)";
/// The same of a run whose guests' drivers had no emulated records.
const RECORDLESS: &str = "every waste cell was skipped, so that no emulated branch records were \
                          counted (exit code 3): the reasons say why";
/// The heading of each of [`Run::notes`].
pub const NOTE: &str = "note";

/// The heading of the verdict of a series in several configurations.
pub const VERDICT: &str = "verdict";
/// Names the rows of published numbers.
pub const PUBLISHED: &str = "published";

/// The heading of the source of branch records, if it is not the plugin.
pub const BRANCH_RECORDS: &str = "branches";

impl Document {
    pub fn new(run: &Run, view: &View) -> Document {
        let groups = groups(run, view);
        let series = comparison::of_run(run, view);
        // The cells were judged by the default model.
        let is_judged = view.model.is_none();
        let told = series.iter().map(|one| one.whole.findings.clone());
        let findings: Vec<_> = run.series.iter().zip(told).filter(|_| is_judged).collect();
        Document {
            outcomes: outcomes_beside(run, &findings),
            series,
            heading: heading(run),
            about: about_run(run),
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

    /// The facts that the reader of a series' verdict needs first.
    pub fn about_series(&self) -> Vec<(&'static str, String)> {
        let later = ["started", "host", "QEMU", "tramplab"];
        self.about.iter().filter(|(name, _)| !later.contains(name)).cloned().collect()
    }
}

pub(crate) fn heading(run: &Run) -> String {
    format!("tramplab run {}", run.id)
}

fn of_driver(source: BranchSource, cell: &Cell) -> Option<&'static str> {
    match source {
        BranchSource::Virtual => None,
        BranchSource::Hardware if cell.id.accel == Accel::Native => {
            Some("hardware: the CPU's own branch records")
        }
        BranchSource::Hardware => Some("hardware: the CPU's own LBR, passed through by KVM"),
        BranchSource::Emulated => {
            Some("emulated: the kernel's own driver, on a CPU's LBR that the plugin plays")
        }
    }
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
    // The tables tell the sources of a run that has several.
    let sources = run.cells.iter().filter_map(|cell| Some(of_driver(cell.branch_source()?, cell)));
    if let [Some(told)] = Vec::from_iter(sources.collect::<BTreeSet<_>>())[..] {
        about.push((BRANCH_RECORDS, told.to_owned()));
    }
    // The series is the same on every architecture.
    if let Some(series) = run.series.first() {
        about.push(("series", series.title.clone().unwrap_or_else(|| series.name.clone())));
        about.extend(series.claim.clone().map(|claim| ("claim", claim)));
    }
    about.extend(published::lines(run).into_iter().map(|line| (PUBLISHED, line)));
    let agreements = compare::agreements(run, None);
    let so_far = if run.interrupted { "so far, " } else { "" };
    about.extend(
        agreements.iter().map(|one| (VERDICT, format!("{so_far}{}: {}", one.arch, one.sentence()))),
    );
    about.extend(run.notes.iter().map(|note| (NOTE, note.clone())));
    if verdict::misses_all_functions(run) {
        about.push((NOTE, MISSED.to_owned()));
    }
    if verdict::misses_all_switches(run) {
        about.push((NOTE, NOT_TAKEN.to_owned()));
    }
    if verdict::misses_all_records(run) {
        about.push((NOTE, RECORDLESS.to_owned()));
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
    let of_guests = run.machines.iter().filter(|machine| machine.vm != Backend::None);
    match &Vec::from_iter(of_guests)[..] {
        [] => "none".to_owned(),
        [first, others @ ..] if others.iter().all(|other| other.programs() == first.programs()) => {
            first.programs()
        }
        machines => {
            let one = |machine: &&Machine| format!("{}: {}", machine.arch, machine.programs());
            machines.iter().map(one).collect::<Vec<_>>().join("; ")
        }
    }
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
        let is_here = group.accel == Accel::Native;
        let whose = if is_here { "this machine" } else { "guest" };
        about.push((whose, format!("{}, {cpus}, {memory} MiB, clock {clocks}", guest.release)));
        about.push(("booted", booted::how(run, group, guest)));
        about.push(("mitigations", booted::mitigations(guest)));
        let (bad, good): (Vec<_>, Vec<_>) =
            guest.conditions.iter().partition(|condition| condition.spoils.is_some());
        let shown = |condition: &&Condition| match &condition.spoils {
            Some(why) => format!("{} {}: {why}", condition.name, condition.value),
            None => format!("{} {}", condition.name, condition.value),
        };
        for (name, some, between) in [("spoils times", bad, "; "), ("conditions", good, ", ")] {
            let some: Vec<String> = some.iter().map(shown).collect();
            about.extend((!some.is_empty()).then(|| (name, some.join(between))));
        }
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
