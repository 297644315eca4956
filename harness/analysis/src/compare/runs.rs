// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides if the numbers of two stored runs can be compared.

use super::{axes, values};
use crate::branch::Model;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use tramplab_model::cpu;
use tramplab_model::kconfig::Kconfig;
use tramplab_model::name::short;
use tramplab_model::program::Program;
use tramplab_model::run::{Accel, Backend, BranchSource, Cell, Kernel, Machine, Run, Test};
use tramplab_model::text;
use tramplab_protocol::estimate::Event;

/// One side: a run and one of its kernels, with the configuration kept beside the run.
pub struct Measured<'a> {
    pub run: &'a Run,
    pub kernel: &'a Kernel,
    pub config: Option<Kconfig>,
}

/// Reasons why the two are not comparable, one sentence each. Empty if they are.
pub fn obstacles(base: &Measured, head: &Measured) -> Vec<String> {
    let mut found = differences(base, head);
    found.extend(clock_sources(base, head));
    for run in [base.run, head.run] {
        if run.interrupted || run.finished.is_none() {
            found.push(format!("the run {} did not come to its end", run.id));
        }
    }
    found
}

/// Differences in how the two were measured, one sentence each. They may change numbers, although
/// the kernels' code is the same.
pub fn differences(base: &Measured, head: &Measured) -> Vec<String> {
    let (a, b) = (base.run, head.run);
    if base.kernel.arch != head.kernel.arch {
        let [a, b] = [base, head].map(|measured| measured.kernel.arch);
        return vec![format!("they ran on different architectures: {a} and {b}")];
    }
    let guest = |measured: &Measured| {
        let Measured { run, kernel, .. } = measured;
        let accel = measured.cells().next().map_or(Accel::Tcg, |cell| cell.id.accel);
        run.machine(kernel.arch, accel).map(|machine| kernel.guest_on(machine))
    };
    let (Some(on_a), Some(on_b)) = (guest(base), guest(head)) else {
        return vec!["a run does not say on which machine its guests ran".to_owned()];
    };
    if let Some(without) = [base, head].into_iter().find(|measured| accels(measured).is_empty()) {
        let name = &without.kernel.name;
        return vec![format!("{name} has no cell: it was not built, or the run ended before it")];
    }
    let mut found = Vec::new();
    let mut differ = |what: &str, a: &str, b: &str| {
        if a != b {
            found.push(format!("{what}: {a} and {b}"));
        }
    };
    differ("they ran under different accelerators", &accels(base), &accels(head));
    // Virtual records have neither the driver's own branches nor the end of the ring.
    if let [Some(a), Some(b)] = [sources(base), sources(head)] {
        differ("they counted branch records of different sources", &a, &b);
    }
    differ("their guests had different CPU models", &on_a.cpu, &on_b.cpu);
    // Another init has other threads and mounts, and that changes times.
    differ("different programs started their guests", on_a.vm.name(), on_b.vm.name());
    // The meaning of `-cpu max`, and so the code that the kernel patches in, differs between QEMUs.
    let qemu = |machine: &Machine| machine.qemu.clone().unwrap_or_else(|| "none".to_owned());
    differ("they ran in different QEMUs", &qemu(&on_a), &qemu(&on_b));
    let has_real_cpu = |cell: &Cell| cell.id.accel.has_real_cpu();
    if [base, head].iter().any(|measured| measured.cells().any(has_real_cpu)) {
        differ(
            "they measured the host's own CPU, and had different ones",
            &a.host.cpu,
            &b.host.cpu,
        );
    }
    let size = |machine: &Machine| {
        let cpus = text::counted(machine.cpus as usize, "CPU");
        match machine.vm {
            Backend::Qemu | Backend::VirtmeNg => format!("{cpus} with {} MiB", machine.memory_mib),
            // Another kernel takes more or less of it for itself.
            Backend::None => cpus,
        }
    };
    differ("their guests had different machines", &size(&on_a), &size(&on_b));
    let append = |machine: &Machine| format!("`{}`", machine.append.join(" "));
    differ("their guests had different command lines", &append(&on_a), &append(&on_b));
    let agent = |machine: &Machine| short(&machine.agent_sha256).to_owned();
    differ("they were measured by different guest agents", &agent(&on_a), &agent(&on_b));
    let plugin =
        |machine: &Machine| machine.plugin_sha256.as_deref().map_or("none", short).to_owned();
    differ("they were recorded by different plugins", &plugin(&on_a), &plugin(&on_b));
    let suite = |run: &Run| format!("{} ({})", run.suite.name, short(&run.suite.sha256));
    differ(
        "they ran different suites, whose seeds, rounds and hits may differ",
        &suite(a),
        &suite(b),
    );
    for program in &a.programs {
        let other = b.programs.iter().find(|other| other.name == program.name);
        if let Some(other) = other {
            let what = format!("they measured different programs {}", program.name);
            let of = |program: &Program| format!("{}{}", short(&program.sha256), program.given());
            differ(&what, &of(program), &of(other));
        }
    }
    for binary in &a.binaries {
        let other = b.binaries.iter().find(|other| other.name == binary.name);
        if let Some(other) = other {
            let what = format!("they attached to functions of different files {}", binary.name);
            differ(&what, short(&binary.sha256), short(&other.sha256));
        }
    }
    for name in STATE {
        differ(&format!("the machine's {name} differed"), &state(base, name), &state(head, name));
    }
    if let Some((test, [a, b])) = other_workload(base, head) {
        differ(
            &format!("they hit functions in different ways, such as that of {}", test.name()),
            a,
            b,
        );
    }
    let toolchain = |kernel: &'_ Kernel| kernel.build.as_ref().map(|build| build.toolchain.clone());
    if let (Some(a), Some(b)) = (toolchain(base.kernel), toolchain(head.kernel)) {
        differ("their kernels were built by different toolchains", &a, &b);
    }
    found.extend(numbers(base, head));
    found.extend(configs(base, head));
    found
}

/// The conditions of a machine without guests that move times and that users set.
const STATE: [&str; 4] = ["scaling governor", "turbo", "SMT", "microcode"];

/// Unknown in guests.
fn state(measured: &Measured, name: &str) -> String {
    let mut conditions =
        measured.cells().filter_map(|cell| cell.guest.as_ref()).flat_map(|facts| &facts.conditions);
    let found = conditions.find(|condition| condition.name == name);
    found.map_or_else(|| "unknown".to_owned(), |condition| condition.value.clone())
}

/// Tells if both estimated cycles on one CPU by different numbers, whatever their sources.
fn numbers(base: &Measured, head: &Measured) -> Option<String> {
    let of = |measured: &Measured| {
        let cpu::Named { name, cpu } = measured.kernel.cpu()?;
        let cycles = cpu.cycles.as_ref()?;
        let of_cell = |cell: &Cell| values(cell, Model::choose(None, cell.id.arch));
        let mut found = measured.cells().flat_map(of_cell);
        found.any(|(metric, _)| metric.is_estimate()).then_some(())?;
        let costs = Event::ALL.map(|event| cycles.of(event));
        Some((name.clone(), cycles.parts(cpu.returns.as_ref()), cycles.pipeline.width, costs))
    };
    let (a, b) = (of(base)?, of(head)?);
    let name = &a.0;
    (*name == b.0 && a != b)
        .then(|| format!("they estimated cycles by different numbers of the CPU {name}"))
}

impl<'a> Measured<'a> {
    /// The kernel's cells that have a guest.
    fn cells(&self) -> impl Iterator<Item = &'a Cell> {
        let cells = self.run.cells_of(self.kernel.arch, &self.kernel.name);
        cells.filter(|cell| cell.id.test != Test::Build)
    }
}

/// Something that is set on one of two kernels and not on the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Differing {
    pub kind: DifferingKind,
    /// `preempt`, `CONFIG_KASAN`, `spectre_v2`.
    pub name: String,
    /// None if it is not set.
    pub base: Option<String>,
    pub head: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum DifferingKind {
    /// An axis of `--config-axis`; `model` is the CPU as which guests boot.
    Axis,
    /// An option of the kernel's configuration.
    Option,
    /// A vulnerability, with its state in the guests.
    Mitigation,
}

/// The settings in which two kernels differ, if they differ in nothing else that the runs record.
pub fn settings_apart(base: &Measured, head: &Measured) -> Vec<Differing> {
    let (a, b) = (base.kernel, head.kernel);
    let axes = |kernel: &Kernel| -> BTreeMap<String, String> {
        let settings = kernel.configuration.iter().flat_map(|one| one.settings.clone());
        let all = [axes::model(kernel)].into_iter().chain(settings);
        all.map(|one| (one.axis, one.value)).collect()
    };
    let mut found = apart(DifferingKind::Axis, &axes(a), &axes(b));
    // The points of an axis may have compilers of their own.
    let is_axis = base.run.id == head.run.id && !found.is_empty();
    let otherwise = Kernel {
        configuration: a.configuration.clone(),
        config_sha256: a.config_sha256.clone(),
        build: if is_axis { a.build.clone() } else { b.build.clone() },
        ..b.clone()
    };
    let others = Measured { run: head.run, kernel: &otherwise, config: None };
    let is_one = (&a.source, &a.commit) == (&b.source, &b.commit);
    if !is_one || !differences(base, &others).is_empty() {
        return Vec::new();
    }
    if a.image_sha256 != b.image_sha256 {
        // An image that was not built here may be of any sources.
        let configs = base.config.as_ref().zip(head.config.as_ref());
        let Some((old, new)) = configs.filter(|_| a.build.is_some() && b.build.is_some()) else {
            return Vec::new();
        };
        let option = |(name, old, new): (&str, Option<&str>, Option<&str>)| Differing {
            kind: DifferingKind::Option,
            name: format!("CONFIG_{name}"),
            base: old.map(str::to_owned),
            head: new.map(str::to_owned),
        };
        found.extend(old.differences(new).into_iter().map(option));
    }
    let states = |measured: &Measured| -> BTreeMap<String, String> {
        let guest = measured.cells().find_map(|cell| cell.guest.as_ref());
        let lines = guest.into_iter().flat_map(|guest| &guest.mitigations);
        let pairs = lines.filter_map(|line| line.split_once(": "));
        pairs.map(|(name, state)| (name.to_owned(), state.to_owned())).collect()
    };
    found.extend(apart(DifferingKind::Mitigation, &states(base), &states(head)));
    found
}

fn apart(
    kind: DifferingKind,
    base: &BTreeMap<String, String>,
    head: &BTreeMap<String, String>,
) -> Vec<Differing> {
    let names: BTreeSet<&String> = base.keys().chain(head.keys()).collect();
    let both = names.into_iter().map(|name| {
        let [base, head] = [base, head].map(|side| side.get(name).cloned());
        Differing { kind, name: name.clone(), base, head }
    });
    both.filter(|one| one.base != one.head).collect()
}

/// The first test whose function was hit by different workloads, and these.
fn other_workload<'a>(
    base: &Measured<'a>,
    head: &Measured<'a>,
) -> Option<(&'a Test, [&'a str; 2])> {
    let of = |cell: &'a Cell| Some((&cell.id.test, cell.workload()?));
    base.cells().filter_map(of).find_map(|(test, by)| {
        let (_, other) = head.cells().filter_map(of).find(|(same, _)| *same == test)?;
        (other != by).then_some((test, [by, other]))
    })
}

fn accels(measured: &Measured) -> String {
    let mut names: Vec<&str> = measured.cells().map(|cell| cell.id.accel.name()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// None if no waste was measured.
fn sources(measured: &Measured) -> Option<String> {
    let mut names: Vec<&str> =
        measured.cells().filter_map(Cell::branch_source).map(BranchSource::name).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Compares the clock sources of timed cells: the time to read the clock is part of every time.
fn clock_sources(base: &Measured, head: &Measured) -> Option<String> {
    let clocks = |measured: &Measured| {
        let model = Model::choose(None, measured.kernel.arch);
        let is_timed =
            |cell: &Cell| values(cell, model).iter().any(|(metric, _)| metric.is_by_hosts_clock());
        let timed = measured.cells().filter(|cell| is_timed(cell));
        timed.filter_map(Cell::clock_source).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (a, b) = (clocks(base), clocks(head));
    let [first, second] =
        [&a, &b].map(|names| Vec::from_iter(names.iter().map(String::as_str)).join(", "));
    let differ = !a.is_empty() && !b.is_empty() && a != b;
    differ.then(|| format!("their guests had different clock sources: {first} and {second}"))
}

/// Most options that are named.
const NAMED: usize = 6;

fn configs(base: &Measured, head: &Measured) -> Option<String> {
    let (a, b) = match (base.kernel.config_sha256.as_deref(), head.kernel.config_sha256.as_deref())
    {
        (Some(a), Some(b)) => (a, b),
        (None, None) => return None,
        (a, _) => {
            let unknown = if a.is_none() { base } else { head };
            return Some(format!("the configuration of {} is not known", unknown.kernel.name));
        }
    };
    if a == b {
        return None;
    }
    let mut text =
        format!("their kernels have different configurations: {} and {}", short(a), short(b));
    if let (Some(a), Some(b)) = (&base.config, &head.config) {
        let differences = a.differences(b);
        // The two files may differ only in comments and order.
        if differences.is_empty() {
            return None;
        }
        let all = differences.len();
        let named: Vec<String> = differences
            .into_iter()
            .take(NAMED)
            .map(|(option, a, b)| {
                format!("CONFIG_{option} ({} and {})", a.unwrap_or("n"), b.unwrap_or("n"))
            })
            .collect();
        text =
            format!("their kernels' configurations differ in {all} options: {}", named.join(", "));
        if all > NAMED {
            text += ", …";
        }
    }
    Some(text)
}
