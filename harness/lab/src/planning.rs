// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a suite and kernels to the plan of a run, and to the run before its first cell.

use crate::{
    backend::Programs,
    error::{Context, Error, Result},
    event::{Event, Tell},
    guest_root::{initramfs, with_additions, with_tree_tests},
    kernels::{self, Prepared, Ready},
    lab::{AskedSuite, Guests, Lab},
    lines::Debug,
    planned::Planned,
    programs,
    run_dir::{now, sha256},
    this_machine,
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    env, fs,
    path::Path,
    thread,
};
use tramplab_host::{busybox, lbr::LbrFormat, runs::RunDir};
use tramplab_kernel::Image;
use tramplab_model::run::{self, Accel, Arch, Backend, Cell, CellId, Run, SCHEMA, Test};
use tramplab_suite::{
    Emulator, Guest, Needs, Plan, PlannedCell, Suite,
    plan::{self, Root, Rootless},
};
use tramplab_vm::{self as vm, Feature, Features, Snapshots, branches::Source};

/// The accelerator and the source of branch records, for each architecture that has a kernel.
type Chosen = BTreeMap<Arch, (Accel, Source)>;

/// Plans a run of these kernels. Boots no guest, except once to try KVM. With `compared` the
/// kernels are measured in turns.
pub fn plan(
    lab: &Lab,
    asked: &AskedSuite,
    prepared: Prepared,
    compared: bool,
    run_dir: RunDir,
    tell: Tell,
) -> Result<Planned> {
    let Prepared { kernels, here, series, tests } = prepared;
    let suite = &asked.suite.clone().with_tests(&tests);
    let (of_guests, chosen) = match &lab.programs {
        Some(programs) => guests(lab, programs, suite, &kernels, tell)?,
        None => Default::default(),
    };
    let of_here = here.as_ref().zip(lab.this_machine);
    let guests = of_here.and_then(|(ready, most)| this_machine::guest(ready, most));
    let guests = guests.into_iter().chain(of_guests);
    let guests = Vec::from_iter(guests);
    let cells = cells(asked, suite, &guests, compared, tell)?;
    let under = Under { chosen: &chosen, cells: &cells };
    let (mut machines, emulators) = match &lab.programs {
        Some(programs) => {
            (machines(lab, programs, suite, &under)?, emulators(lab, programs, &under))
        }
        None => Default::default(),
    };
    let agent = here.as_ref().and_then(|ready| lab.built.agents.get_key_value(&ready.facts.arch));
    machines.extend(agent.map(|(&arch, agent)| this_machine::machine(arch, agent)).transpose()?);
    let builds: Vec<Cell> = kernels
        .iter()
        .filter_map(|kernel| build_cell(kernel, under.accel(kernel.facts.arch)))
        .collect();
    // A bisection has no series, and repeats its runs itself.
    let jobs = plan::jobs(cells, compared, !series.is_empty());
    let plan = Plan {
        run_dir: run_dir.path().to_owned(),
        emulators,
        here: agent
            .zip(lab.this_machine)
            .map(|((_, agent), most)| this_machine::emulator(agent, most)),
        jobs,
    };
    plan.save()
        .with_context(|| format!("failed to write the plan into {}", run_dir.path().display()))?;
    let programs = suite.programs();
    let all = || here.iter().chain(&kernels);
    let run = Run {
        schema: SCHEMA,
        id: run_dir.id(),
        started: now(),
        finished: None,
        tramplab: env!("CARGO_PKG_VERSION").to_owned(),
        command: lab.command.line(),
        options: Some(lab.command.options.clone()),
        host: host_facts(),
        suite: asked.reference.clone(),
        machines,
        tolerance: suite.tolerance,
        kernels: all().map(|kernel| kernel.facts.clone()).collect(),
        series,
        cells: builds,
        // A killed run cannot say later that it was interrupted.
        interrupted: true,
        missing: Vec::new(),
        shard: None,
        notes: Vec::new(),
        rest_of: None,
        joined: None,
        programs: programs.iter().map(|program| program.facts.clone()).collect(),
        binaries: suite.binaries(),
        lines: Vec::new(),
    };
    keep_configs(all(), &run_dir)?;
    programs::keep(&programs, &run_dir)?;
    Ok(Planned { plan, run, run_dir, debug: debug(all()) })
}

/// The guests of the kernels that were built. Boots one, once, to try KVM.
fn guests<'a>(
    lab: &Lab,
    programs: &Programs,
    suite: &Suite,
    kernels: &'a [Ready],
    tell: Tell,
) -> Result<(Vec<Guest<'a>>, Chosen)> {
    let mut chosen = Chosen::new();
    let mut digests: BTreeMap<Arch, String> = BTreeMap::new();
    let mut guests = Vec::new();
    for kernel in kernels {
        let Some(image) = &kernel.image else { continue };
        let arch = image.arch;
        let initrd = initramfs(&lab.cache, &lab.built.agents[&arch], image)?;
        let (accel, branches) = match chosen.get(&arch) {
            Some(known) => known.clone(),
            None => {
                let choice = lab.choose_accel(image, &initrd, tell)?;
                let source = match suite.counts_records() {
                    true => lab.choose_branches(arch, &choice, tell)?,
                    false => Source::Virtual,
                };
                (choice.accel, source)
            }
        };
        chosen.insert(arch, (accel, branches.clone()));
        if lab.guests == Guests::Restored
            && let Entry::Vacant(unknown) = digests.entry(arch)
        {
            unknown.insert(lab.qemus[&arch].digest()?);
        }
        let snapshots = |initrd: &Path| -> Result<Option<Snapshots>> {
            let Some(emulator) = digests.get(&arch) else { return Ok(None) };
            let contents = format!("{emulator} {} {}", image.sha256, sha256(initrd)?);
            Ok(Some(Snapshots { cache: lab.cache.root().to_owned(), contents }))
        };
        let roots = Roots { lab, programs, image, initrd: &initrd, snapshots: &snapshots };
        // Scripts of the tree need a shell, programs may call one.
        let shell = Needs { shell: true, ..Needs::default() };
        let of_tree = kernel.tree_tests.as_ref().map(|_| shell.clone());
        let roots = roots.of(suite, of_tree, tell)?;
        let with_shell = match roots.get(&shell) {
            Some(Ok(root)) => &root.initrd,
            Some(Err(Rootless::Error(why) | Rootless::Skip(why)))
                if kernel.tree_tests.is_some() =>
            {
                tell(Event::Line(&format!("warning: the tree's tests have no shell: {why}")));
                &initrd
            }
            _ => &initrd,
        };
        let tree_tests = match &kernel.tree_tests {
            Some(tests) => Some((tests, with_tree_tests(&lab.cache, with_shell, tests)?)),
            None => None,
        };
        guests.push(Guest {
            image,
            snapshots: snapshots(&initrd)?,
            roots,
            initrd,
            tree_tests,
            accel,
            accel_named: lab.is_accel_named(),
            branches,
            backend: programs.backend(),
            most_attached: u32::MAX,
            undeliverable: lab.qemus[&arch].undeliverable(),
            budgets_of: kernel.budgets_of.as_deref(),
            configuration: kernel.facts.configuration.as_ref(),
        });
    }
    Ok((guests, chosen))
}

/// The plain root of a kernel's guests.
struct Roots<'a> {
    lab: &'a Lab,
    programs: &'a Programs,
    image: &'a Image,
    initrd: &'a Path,
    snapshots: &'a dyn Fn(&Path) -> Result<Option<Snapshots>>,
}

type Added = BTreeMap<Needs, std::result::Result<Root, Rootless>>;

impl Roots<'_> {
    /// A root for each set of additions that a cell of the suite needs, or the tests of the tree.
    fn of(&self, suite: &Suite, of_tree: Option<Needs>, tell: Tell) -> Result<Added> {
        let mut all: BTreeSet<Needs> = suite.work(false).map(|work| work.kind().needs()).collect();
        all.extend(of_tree);
        all.remove(&Needs::default());
        if !Features::of(self.programs.backend()).has(Feature::PackedFiles) {
            return Ok(Added::new());
        }
        let cache = &self.lab.cache;
        let mut step = |line: &str| tell(Event::Step(line));
        let busybox = match all.iter().any(|needs| needs.shell) {
            true => Some(busybox::provision(cache, self.image.arch, &mut step)),
            false => None,
        };
        let modules = match all.iter().any(|needs| !needs.modules.is_empty()) {
            true => self.image.loadable(cache, &mut step)?,
            false => None,
        };
        let root = |needs: Needs| {
            let files = match (&modules, needs.modules.is_empty()) {
                (_, true) => Vec::new(),
                // Other cells can do without it.
                (Some(all), false) => match all.with_dependencies(&needs.modules) {
                    Ok(Ok(files)) => files,
                    Ok(Err(why)) => return Ok((needs, Err(Rootless::Skip(why.to_string())))),
                    Err(error) => return Ok((needs, Err(Rootless::Error(error.to_string())))),
                },
                (None, false) => {
                    let reason = format!(
                        "the modules of {} are not known: it is an image without a package, or \
                         built without modules",
                        self.image.name
                    );
                    return Ok((needs, Err(Rootless::Skip(reason))));
                }
            };
            let busybox = match &busybox {
                Some(Ok(busybox)) if needs.shell => Some(&**busybox),
                // Other cells can do without it.
                Some(Err(error)) if needs.shell => {
                    let message = format!("failed to fetch the guest's busybox: {error}");
                    return Ok((needs, Err(Rootless::Error(message))));
                }
                _ => None,
            };
            let initrd = with_additions(cache, self.initrd, &files, busybox)?;
            let snapshots = (self.snapshots)(&initrd)?;
            Ok((needs, Ok(Root { initrd, snapshots })))
        };
        all.into_iter().map(root).collect()
    }
}

/// The cells of a suite on these guests. Rejects a contradictory suite; warns of idle budgets.
pub fn cells(
    asked: &AskedSuite,
    suite: &Suite,
    guests: &[Guest],
    compared: bool,
    tell: Tell,
) -> Result<Vec<PlannedCell>> {
    let file = &asked.reference.file;
    if let Some(name) = plan::contradiction(suite) {
        return Err(Error::Usage(format!(
            "{file}: {name} is asked for twice, with different rounds, clock or the like: a test \
             is measured once"
        )));
    }
    let cells = plan::cells(suite, guests, compared);
    let unknown = |name: &&str| !kernels::is_known(name);
    if let Some(name) = plan::other_kernels(suite, &cells).into_iter().find(unknown) {
        return Err(Error::Usage(format!(
            "{file}: a budget names kernel `{name}`; expected one of the suite, of this run, or of \
             kernels/"
        )));
    }
    // No budget applies to this machine.
    if cells.iter().any(|cell| cell.backend != Backend::None) {
        for warning in plan::idle_budgets(suite, &cells) {
            tell(Event::Line(&format!("warning: {file}: {warning}")));
        }
    }
    let has_waste_budgets = suite.budgets.iter().any(|budget| !budget.wasted.is_empty());
    if has_waste_budgets && cells.iter().any(|cell| cell.of_driver().is_some()) {
        tell(Event::Line(
            "budgets of waste apply to virtual branch records only; a driver's are not judged",
        ));
    }
    Ok(cells)
}

/// How the guests of each architecture run.
struct Under<'a> {
    chosen: &'a Chosen,
    cells: &'a [PlannedCell],
}

impl Under<'_> {
    /// TCG for an architecture without a guest.
    fn accel(&self, arch: Arch) -> Accel {
        self.chosen.get(&arch).map_or(Accel::Tcg, |(accel, _)| *accel)
    }

    fn lbr(&self, arch: Arch) -> Option<LbrFormat> {
        match self.chosen.get(&arch) {
            Some(&(_, Source::Hardware(format))) => Some(format),
            _ => None,
        }
    }

    /// The cells of one architecture may run under both accelerators.
    fn runs(&self, arch: Arch, accel: Accel) -> bool {
        self.cells.iter().any(|cell| (cell.arch, cell.accel) == (arch, accel))
    }

    /// The guests' CPU model.
    fn cpu(&self, arch: Arch) -> String {
        let of = |accel| vm::cpu_model(accel, arch, self.lbr(arch));
        match (self.runs(arch, Accel::Kvm), self.runs(arch, Accel::Tcg)) {
            (true, true) => format!("{}; under TCG {}", of(Accel::Kvm), of(Accel::Tcg)),
            (true, false) => of(Accel::Kvm),
            (false, true) => of(Accel::Tcg),
            (false, false) => of(self.accel(arch)),
        }
    }

    /// Only TCG has plugins.
    fn needs_plugin(&self, arch: Arch) -> bool {
        self.accel(arch) == Accel::Tcg || self.runs(arch, Accel::Tcg)
    }
}

fn emulators(lab: &Lab, programs: &Programs, under: &Under) -> BTreeMap<Arch, Emulator> {
    let emulator = |(&arch, qemu): (&Arch, &tramplab_host::Qemu)| {
        let launcher = programs.launcher(&lab.built.agents[&arch]);
        let plugin = under.needs_plugin(arch).then(|| lab.built.plugin.clone());
        (arch, Emulator { qemu: qemu.program.clone(), plugin, lbr: under.lbr(arch), launcher })
    };
    lab.qemus.iter().map(emulator).collect()
}

fn machines(
    lab: &Lab,
    programs: &Programs,
    suite: &Suite,
    under: &Under,
) -> Result<Vec<run::Machine>> {
    let machine = |(&arch, qemu): (&Arch, &tramplab_host::Qemu)| {
        let plugin = under.needs_plugin(arch).then(|| sha256(&lab.built.plugin)).transpose()?;
        Ok(run::Machine {
            arch,
            vm: programs.backend(),
            backend_version: programs.version().map(str::to_owned),
            qemu: Some(qemu.version.clone()),
            cpu: under.cpu(arch),
            cpus: suite.machine.cpus.get(),
            memory_mib: suite.machine.memory_mib.get(),
            append: suite.machine.append.clone(),
            agent_sha256: sha256(&lab.built.agents[&arch])?,
            plugin_sha256: plugin,
        })
    };
    lab.qemus.iter().map(machine).collect()
}

/// The build of a kernel, as a cell.
fn build_cell(kernel: &Ready, accel: Accel) -> Option<Cell> {
    let build = kernel.build.as_ref()?;
    let id = CellId {
        kernel: kernel.facts.name.clone(),
        arch: kernel.facts.arch,
        accel,
        test: Test::Build,
    };
    let duration_ms = build.taken.as_millis() as u64;
    Some(Cell { duration_ms, ..Cell::without_result(id, build.outcome.clone()) })
}

/// The kernels that have a `vmlinux`.
fn debug<'a>(kernels: impl Iterator<Item = &'a Ready>) -> Vec<Debug> {
    let one = |kernel: &Ready| {
        let vmlinux = kernel.image.as_ref()?.vmlinux.clone()?;
        Some(Debug { kernel: kernel.facts.name.clone(), arch: kernel.facts.arch, vmlinux })
    };
    kernels.filter_map(one).collect()
}

/// Keeps the kernels' configurations with the run: they tell whether it can be compared with
/// another.
fn keep_configs<'a>(kernels: impl Iterator<Item = &'a Ready>, run_dir: &RunDir) -> Result<()> {
    for kernel in kernels {
        let Some(from) = kernel.image.as_ref().and_then(|image| image.config_file.as_ref()) else {
            continue;
        };
        let to = run_dir.config(kernel.facts.arch, &kernel.facts.name);
        let copy = fs::create_dir_all(to.parent().expect("in the run's folder"))
            .and_then(|()| fs::copy(from, &to));
        copy.with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

/// The value behind a key of a file of the system.
pub fn field(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line[key.len()..].trim_start_matches([' ', '\t', ':', '=']).trim_matches('"').to_owned())
}

pub fn host_facts() -> run::Host {
    run::Host {
        os: field("/etc/os-release", "PRETTY_NAME").unwrap_or_else(|| "unknown".to_owned()),
        cpu: field("/proc/cpuinfo", "model name")
            .or_else(|| {
                // arm64 has no name for it.
                let numbers = ["CPU implementer", "CPU variant", "CPU part", "CPU revision"];
                let numbers = numbers
                    .iter()
                    .map(|key| field("/proc/cpuinfo", key))
                    .collect::<Option<Vec<_>>>()?;
                Some(format!("{} {}", env::consts::ARCH, numbers.join(" ")))
            })
            .unwrap_or_else(|| env::consts::ARCH.to_owned()),
        cpus: thread::available_parallelism().map_or(1, usize::from),
    }
}
