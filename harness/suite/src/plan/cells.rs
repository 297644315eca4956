// SPDX-License-Identifier: MIT OR Apache-2.0
//! A suite's cells on the kernels of a run.

use super::{Job, PlannedCell};
use crate::{
    Budget, Suite,
    kinds::{Needs, Work},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};
use tramplab_kernel::{self as kernel, compile::TreeTests};
use tramplab_model::run::{Accel, Arch, Backend, CellId, Configuration, ErrorKind, with_words};
use tramplab_vm::{Feature, Features, Snapshots, branches::Source};

/// A kernel that cells run on.
pub struct Guest<'a> {
    pub image: &'a kernel::Image,
    pub initrd: PathBuf,
    pub snapshots: Option<Snapshots>,
    /// Roots with additions; or the reason why there is none.
    pub roots: BTreeMap<Needs, Result<Root, Rootless>>,
    /// The tests of its tree, and a root with them. None if the kernel was not built here.
    pub tree_tests: Option<(&'a TreeTests, PathBuf)>,
    pub accel: Accel,
    /// True if the user named the accelerator: no cell runs under another.
    pub accel_named: bool,
    /// The source of branch records.
    pub branches: Source,
    /// The reason why its emulator cannot hand branch records to programs. None if it can.
    pub undeliverable: Option<String>,
    pub backend: Backend,
    /// Functions and programs that a cell attaches at once on this machine, at most. Guests have no
    /// such limit.
    pub most_attached: u32,
    /// The kernel whose budgets hold. For a patched kernel it is the base. None for a placebo.
    pub budgets_of: Option<&'a str>,
    /// How the kernel is configured and booted, if not as usual. Only budgets that name it hold.
    pub configuration: Option<&'a Configuration>,
}

/// A guest's root, and the snapshots of guests with it.
#[derive(Clone, Debug)]
pub struct Root {
    pub initrd: PathBuf,
    pub snapshots: Option<Snapshots>,
}

/// Why a kernel's guests have no root with what a cell needs.
#[derive(Clone, Debug)]
pub enum Rootless {
    /// The kernel has no such module.
    Skip(String),
    /// This machine failed to read it.
    Error(String),
}

/// Expands a suite into cells. If the kernels are `compared`, timed cells have as many boots as
/// statistics need.
pub fn cells(suite: &Suite, kernels: &[Guest], compared: bool) -> Vec<PlannedCell> {
    let on = |guest| suite.work(compared).filter_map(move |work| planned(suite, guest, work));
    // Two groups may name the same cell. Measure it once.
    let mut seen = BTreeSet::new();
    kernels.iter().flat_map(on).filter(|cell| seen.insert(cell.id())).collect()
}

/// None if it measures nothing on a placebo.
fn planned(suite: &Suite, guest: &Guest, mut work: Work) -> Option<PlannedCell> {
    let image = guest.image;
    if guest.budgets_of.is_none() && !work.kind_mut().reduce_to_exact() {
        return None;
    }
    let elsewhere = match guest.backend {
        Backend::None => work.kind_mut().on_this_machine(guest.most_attached),
        Backend::Qemu | Backend::VirtmeNg => None,
    };
    let is_waste = matches!(work, Work::LbrWaste(_));
    let deliver = work.kind().asks_for_records() && suite.delivers_records();
    // The plugin records only under TCG.
    let emulated = is_waste && guest.branches == Source::Emulated;
    let is_virtual = deliver && !is_waste || is_waste && guest.branches == Source::Virtual;
    let is_counted = work.kind().only_tcg().is_some() && !guest.accel_named;
    let accel = if is_virtual || emulated || is_counted { Accel::Tcg } else { guest.accel };
    let is_own = work.test().is_of_the_tree();
    let own_cpus = guest.configuration.and_then(|configuration| configuration.cpus);
    let cpus = own_cpus.unwrap_or(suite.machine.cpus.get());
    let foreign = foreign(accel, guest);
    let cannot = match is_own {
        true => refused(&mut work, guest),
        false => unfit(&work, cpus, accel, guest),
    };
    // A kernel that is only listed has no roots.
    let root = guest.roots.get(&work.kind().needs());
    let (unloadable, unread) = match root {
        Some(Err(Rootless::Skip(reason))) => (Some(reason.clone()), None),
        Some(Err(Rootless::Error(message))) => (None, Some((ErrorKind::Harness, message.clone()))),
        Some(Ok(_)) | None => (None, None),
    };
    let (plain, snapshots) = match root {
        Some(Ok(Root { initrd, snapshots })) => (initrd, snapshots),
        _ => (&guest.initrd, &guest.snapshots),
    };
    let skip = elsewhere
        .or_else(|| backend_lacks(&work, guest))
        .or(foreign)
        .or(cannot)
        .or(unloadable)
        .or_else(|| recordless(guest).filter(|_| deliver || is_waste))
        .or_else(|| guest.undeliverable.clone().filter(|_| deliver))
        .or_else(|| unplayed(&work, guest).filter(|_| emulated));
    let of_point = guest.configuration.map_or(&[][..], |configuration| &configuration.append);
    // Where KASLR puts a module of arm64, its calls reach ftrace directly or through a PLT entry,
    // which is a record more (K `arch/arm64/mm/init.c`, module_init_limits).
    let has_modules = !work.kind().needs().modules.is_empty();
    let fixed = (has_modules && image.arch == Arch::Arm64).then(|| "nokaslr".to_owned());
    let own = guest.tree_tests.as_ref();
    let unbuilt = own.and_then(|(tree_tests, _)| tree_tests.record.broken(&work.test()));
    let unbuilt = unbuilt.map(|message| (ErrorKind::Build, message.to_owned()));
    let mut cell = PlannedCell {
        kernel: image.name.clone(),
        configuration: guest.configuration.map(Configuration::name),
        arch: image.arch,
        accel,
        backend: guest.backend,
        kernel_image: image.image.clone(),
        initrd: own.filter(|_| is_own).map_or(plain, |(_, root)| root).clone(),
        snapshots: snapshots.clone().filter(|_| work.kind().may_restore()),
        cpus,
        memory_mib: suite.machine.memory_mib.get(),
        boot_seconds: suite.machine.boot_seconds.get(),
        append: with_words(&suite.machine.append, of_point).into_iter().chain(fixed).collect(),
        cpu: guest.configuration.and_then(|configuration| configuration.cpu.clone()),
        model: guest.configuration.and_then(|point| point.model.clone()),
        shows: guest.configuration.map_or_else(Vec::new, |point| point.shows.clone()),
        error: unread.or(unbuilt).filter(|_| skip.is_none()),
        skip,
        work,
        deliver,
        emulated,
        budgets: Vec::new(),
        tolerance: suite.tolerance,
        allow: suite.allow.clone(),
    };
    if let Err(why) = cell.estimated()
        && cell.work.kind().estimates()
    {
        cell.work.kind_mut().refuse_estimates(why);
    }
    cell.budgets = budgets(suite, guest, &cell);
    Some(cell)
}

/// The suite's budgets for the kernel, with bounds only of metrics that the cell measures.
fn budgets(suite: &Suite, guest: &Guest, cell: &PlannedCell) -> Vec<Budget> {
    let is_usual = guest.configuration.is_none();
    // They are of guests.
    let is_judged = guest.backend != Backend::None;
    let holds = |budget: &&Budget| {
        let of = guest.budgets_of.filter(|_| is_judged);
        of.is_some_and(|name| budget.holds_for(cell.arch, name, is_usual))
    };
    let mut budgets: Vec<Budget> = suite.budgets.iter().filter(holds).cloned().collect();
    for budget in &mut budgets {
        budget.most.retain(|bounded, _| cell.measures(&bounded.metric()));
        // Budgets of waste hold for virtual records only.
        if cell.of_driver().is_some() {
            budget.wasted.clear();
        }
    }
    budgets
}

/// The reason why one of the tree's own tests is not run.
fn refused(work: &mut Work, guest: &Guest) -> Option<String> {
    match &guest.tree_tests {
        Some((tree_tests, _)) => work.kind_mut().refuse(tree_tests),
        None => Some(
            "the tree's own tests are built with a kernel, and this one was built elsewhere"
                .to_owned(),
        ),
    }
}

/// The reason why the CPU as which the guest boots has no branch records.
fn recordless(guest: &Guest) -> Option<String> {
    guest.configuration.and_then(|point| point.model.as_ref()?.recordless())
}

/// The reason why the plugin plays no branch records for a waste test.
fn unplayed(work: &Work, guest: &Guest) -> Option<String> {
    let model = guest.configuration.and_then(|point| point.model.as_ref());
    match (guest.image.arch, model) {
        (Arch::Arm64, _) => Some(
            "no kernel has a driver that takes snapshots of BRBE, arm64's branch records; in a \
             shell --branches emulated plays them for events that sample"
                .to_owned(),
        ),
        (Arch::X86_64, None) => Some(
            "emulated branch records are those of a CPU; boot guests as one: --model zen4, \
             golden-cove or skylake"
                .to_owned(),
        ),
        (Arch::X86_64, Some(_)) => (!work.kind().asks_for_records()).then(|| {
            "a user's program keeps the records that it gets; --branches virtual counts them"
                .to_owned()
        }),
    }
}

/// The reason why the accelerator gives the guest another CPU than it is to have.
fn foreign(accel: Accel, guest: &Guest) -> Option<String> {
    let cpu = guest.configuration.and_then(|configuration| configuration.cpu.as_ref());
    let cpu = cpu.filter(|_| accel == Accel::Kvm)?;
    Some(format!("a guest under KVM has this machine's CPU, not {cpu}; give --accel tcg"))
}

/// The reason why the work cannot run on the kernel or on its machine.
fn unfit(work: &Work, cpus: u32, accel: Accel, guest: &Guest) -> Option<String> {
    let kind = work.kind();
    if accel.has_real_cpu()
        && let Some(why) = kind.only_tcg()
    {
        return Some(why.to_owned());
    }
    let missing =
        kind.mechanisms().into_iter().flat_map(|mechanism| guest.image.missing_for(mechanism));
    let options: BTreeSet<String> = missing.map(|option| option.to_string()).collect();
    let lacks = || {
        let options = Vec::from_iter(options).join(", ");
        (!options.is_empty()).then(|| format!("the kernel is built without {options}"))
    };
    let recordless = || match &guest.branches {
        Source::None(reason) if matches!(work, Work::LbrWaste(_)) => Some(reason.clone()),
        _ => None,
    };
    kind.too_many_cpus(cpus).or_else(lacks).or_else(recordless)
}

/// The reason why a cell cannot run in the backend's guests.
fn backend_lacks(work: &Work, guest: &Guest) -> Option<String> {
    let features = Features::of(guest.backend);
    let missing = guest.image.not_built_in(features.built_in).join(", ");
    if !missing.is_empty() {
        return Some(format!("{}, and the kernel has not built in {missing}", features.root));
    }
    let kind = work.kind();
    let needed = [
        (kind.needs() != Needs::default()).then_some(Feature::PackedFiles),
        kind.exact_clock(),
        work.test().is_of_the_tree().then_some(Feature::PackedTests),
    ];
    let lacks = needed.into_iter().flatten().find_map(|feature| features.lacks(feature));
    lacks.map(str::to_owned)
}

/// Makes one job per cell, or one per test and configuration if kernels are compared. With
/// `more_boots` the cells of a job boot again before their times are called different.
pub fn jobs(cells: Vec<PlannedCell>, compared: bool, more_boots: bool) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for cell in cells {
        let joins = |job: &&mut Job| {
            let first = &job.cells[0];
            compared
                && (first.arch, first.accel, first.work.test())
                    == (cell.arch, cell.accel, cell.work.test())
                && first.configuration == cell.configuration
        };
        match jobs.iter_mut().find(joins) {
            Some(job) => job.cells.push(cell),
            None => jobs.push(Job { name: String::new(), more_boots, cells: vec![cell] }),
        }
    }
    for job in &mut jobs {
        let (first, last) = (job.cells[0].id(), job.cells[job.cells.len() - 1].id());
        let kernel = if first == last {
            first.kernel.clone()
        } else {
            format!("{}..{}", first.kernel, last.kernel)
        };
        job.name = CellId { kernel, ..first }.name();
    }
    jobs
}
