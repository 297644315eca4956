// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of a run: every cell with all that its process needs, as files. Cell processes read nothing else, so
//! that what ran can be seen, and run again, afterwards:
//!
//! ```text
//! RUN/plan.json     what is common, and the jobs' names, in order
//! RUN/jobs/N.json   the job at that place, counted from 0: its process reads no other
//! ```

use super::{Budget, Clocks, Suite, TestGroup};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    num::NonZeroU32,
    path::{Path, PathBuf},
};
use tramplab_analysis::compare::Metric;
use tramplab_host::QemuProgram;
use tramplab_host::lbr::LbrFormat;
use tramplab_kernel as kernel;
use tramplab_kernel::compile::Selftests;
use tramplab_kernel::selftests::DenyList;
use tramplab_model::{
    run::{Accel, Arch, Backend, CellId, Clock, Test, Tolerance},
    selftests::{self, Name},
};
use tramplab_protocol::{Mechanism, message::Explain};
use tramplab_vm::{Snapshots, Virtme, branches::Source};

/// Names the plan's file in a cell process' environment.
pub const PLAN_ENV: &str = "TRAMPLAB_PLAN";

/// Whole, or with no more of its jobs than their names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan<J = Job> {
    pub run_dir: PathBuf,
    pub emulators: BTreeMap<Arch, Emulator>,
    pub jobs: Vec<J>,
}

/// What runs the guests of an architecture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Emulator {
    pub qemu: QemuProgram,
    /// The TCG plugin; none where no guest runs under TCG.
    pub plugin: Option<PathBuf>,
    /// The CPU's own branch records, for guests under KVM.
    #[serde(default)]
    pub lbr: Option<LbrFormat>,
    /// Where virtme-ng starts it.
    pub virtme: Option<Virtme>,
}

/// What one process does: a cell, or the cells of one test on several kernels that are compared. These belong together: no filter and no
/// shard may part them, and timed ones take turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The test's name for nextest.
    pub name: String,
    pub cells: Vec<PlannedCell>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlannedCell {
    pub id: CellId,
    pub backend: Backend,
    pub kernel_image: PathBuf,
    pub initrd: PathBuf,
    /// Where its guests may be restored from, and are kept.
    #[serde(default)]
    pub snapshots: Option<Snapshots>,
    pub cpus: u32,
    pub memory_mib: u32,
    pub append: Vec<String>,
    pub parameters: Parameters,
    /// Programs are handed the branch records they ask for.
    #[serde(default)]
    pub deliver: bool,
    /// Of these, only metrics that the cell is to measure.
    pub budgets: Vec<Budget>,
    pub tolerance: Tolerance,
    /// Known before anything boots: the cell is not run.
    pub skip: Option<String>,
    /// The test itself did not build: the cell is an error.
    #[serde(default)]
    pub unbuilt: Option<String>,
}

impl PlannedCell {
    /// Whether it counts the CPU's own branch records: under KVM there are no others.
    pub fn is_hardware(&self) -> bool {
        matches!(self.id.test, Test::LbrWaste { .. }) && self.id.accel == Accel::Kvm
    }

    /// Whether this is one of the numbers it ends with: so it is asked for, and can be had under its accelerator.
    fn measures(&self, metric: &Metric) -> bool {
        let counts = self.id.accel == Accel::Tcg;
        let is_counted = match (metric, &self.parameters) {
            (Metric::Trigger { .. }, _) => counts,
            (Metric::Instructions { .. }, Parameters::Attach(AttachParameters { clock, explain, .. })) => {
                counts && clock.exact() && explain.contains(&Explain::Exact)
            }
            _ => true,
        };
        is_counted && metric.test() == self.id.test
    }

    /// Whether another, of the same name, has the same done to the same machine.
    pub fn measures_as(&self, other: &PlannedCell) -> bool {
        self.parameters == other.parameters
            && self.append == other.append
            && (self.deliver, self.backend, self.cpus, self.memory_mib)
                == (other.deliver, other.backend, other.cpus, other.memory_mib)
    }

    /// Guests that the cell takes, one after the other.
    pub fn boots(&self) -> u32 {
        // One that is not run boots none.
        if self.skip.is_some() || self.unbuilt.is_some() { 1 } else { self.clocks().len() as u32 }
    }

    /// The clock of each guest, in order.
    pub fn clocks(&self) -> Vec<Clock> {
        match &self.parameters {
            Parameters::Attach(attach) => attach.clocks(),
            Parameters::Bench(bench) => vec![Clock::Free; bench.boots as usize],
            // Programs are then at the same addresses at every boot: arm64's JIT loads one with more or fewer instructions. With
            // several CPUs there is no exact clock, and the rest repeats without it.
            // Under virtme-ng there is none either, and x86-64's JIT loads addresses alike.
            Parameters::Trigger { throughput: false, .. }
                if self.cpus == 1 && self.backend == Backend::Qemu =>
            {
                vec![Clock::Exact]
            }
            _ => vec![Clock::Free],
        }
    }
}

/// What a test needs beside what its name says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parameters {
    LbrWaste { hits: u32 },
    Attach(AttachParameters),
    Trigger { hits: u32, throughput: bool },
    Boot,
    Bench(BenchParameters),
    TestProgs(TestProgsParameters),
    Kselftest { seconds: u32 },
    Fault,
}

impl Parameters {
    /// Leaves what is the same at every boot; says whether that is anything.
    fn reduce_to_exact(&mut self) -> bool {
        match self {
            Parameters::LbrWaste { .. } | Parameters::Trigger { .. } => true,
            Parameters::Attach(attach) => {
                let exact = attach.clock.exact();
                attach.clock = Clocks::Exact;
                attach.explain.remove(&Explain::Sampled);
                exact
            }
            Parameters::Boot
            | Parameters::Bench(_)
            | Parameters::TestProgs(_)
            | Parameters::Kselftest { .. }
            | Parameters::Fault => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchParameters {
    pub seconds: u32,
    pub producers: u32,
    /// Guests, one after the other.
    pub boots: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestProgsParameters {
    /// What of it is not run, beside what the tree says; and once the kernel is known also that.
    pub deny: Vec<String>,
    /// It may take.
    pub seconds: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachParameters {
    pub rounds: u32,
    /// Guests with the host's clock.
    pub boots: u32,
    pub seed: u64,
    pub seconds: Option<u32>,
    pub clock: Clocks,
    pub explain: BTreeSet<Explain>,
}

impl AttachParameters {
    /// The clock of each guest, in order.
    pub fn clocks(&self) -> Vec<Clock> {
        let free = if self.clock.free() { self.boots } else { 0 };
        let exact = u32::from(self.clock.exact());
        let times = |clock, count| std::iter::repeat_n(clock, count as usize);
        times(Clock::Free, free).chain(times(Clock::Exact, exact)).collect()
    }
}

/// A kernel that cells run on.
pub struct Guest<'a> {
    pub image: &'a kernel::Image,
    pub initrd: PathBuf,
    pub snapshots: Option<Snapshots>,
    /// Its tree's own tests, with a root that has them; none of a kernel that was not built here.
    pub selftests: Option<(&'a Selftests, PathBuf)>,
    pub accel: Accel,
    /// The accelerator was asked for by name: no cell runs under another.
    pub accel_named: bool,
    /// Whose branch records are counted.
    pub branches: Source,
    /// Why its emulator can hand it no branch records, if it cannot.
    pub undeliverable: Option<String>,
    pub backend: Backend,
    /// Whose budgets hold for it: that of a patched kernel is the kernel the patches are on. None of a placebo.
    pub budgets_of: Option<&'a str>,
}

/// Expands a suite into cells, on kernels each with its initramfs. `compared` says whether the kernels are: then timed
/// cells have as many boots as statistics need.
pub fn cells(suite: &Suite, kernels: &[Guest], compared: bool) -> Vec<PlannedCell> {
    let mut cells = Vec::new();
    for guest in kernels {
        let &Guest {
            image,
            ref initrd,
            ref snapshots,
            ref selftests,
            accel,
            accel_named,
            ref branches,
            backend,
            ref undeliverable,
            budgets_of,
        } = guest;
        let holds = |budget: &&Budget| budgets_of.is_some_and(|name| budget.holds_for(image.arch, name));
        let budgets: Vec<Budget> = suite.budgets.iter().filter(holds).cloned().collect();
        for (test, mut parameters) in suite.tests.iter().flat_map(|group| tests(group, compared)) {
            if budgets_of.is_none() && !parameters.reduce_to_exact() {
                continue;
            }
            let is_waste = matches!(test, Test::LbrWaste { .. });
            let deliver = asks_for_records(&test) && suite.delivers_records();
            let undeliverable = undeliverable.clone().filter(|_| deliver);
            // The plugin's records are of guests under TCG, whatever the others run under.
            let is_virtual = deliver && !is_waste || is_waste && *branches == Source::Virtual;
            let is_counted = takes_tcg(&parameters) && !accel_named;
            let accel = if is_virtual || is_counted { Accel::Tcg } else { accel };
            let recordless = match branches {
                Source::None(reason) if is_waste => Some(reason.clone()),
                _ => None,
            };
            let own = test.is_of_the_tree();
            let skip = match own {
                true => refused(&test, &mut parameters, selftests.as_ref().map(|(selftests, _)| *selftests)),
                false => {
                    skip_reason(&test, &parameters, suite.machine.cpus.get(), accel, image).or(recordless)
                }
            };
            let skip = skip.or(undeliverable);
            let skip = virtme_lacks(backend, &parameters, image).or(skip);
            let unbuilt = selftests
                .as_ref()
                .and_then(|(selftests, _)| selftests.record.broken(&test).map(str::to_owned));
            let root = selftests.as_ref().filter(|_| own).map_or(initrd, |(_, root)| root);
            let mut cell = PlannedCell {
                id: CellId { kernel: image.name.clone(), arch: image.arch, accel, test: test.clone() },
                backend,
                kernel_image: image.image.clone(),
                initrd: root.clone(),
                snapshots: snapshots.clone().filter(|_| may_restore(&parameters)),
                cpus: suite.machine.cpus.get(),
                memory_mib: suite.machine.memory_mib.get(),
                append: suite.machine.append.clone(),
                unbuilt: unbuilt.filter(|_| skip.is_none()),
                skip,
                parameters,
                deliver,
                budgets: Vec::new(),
                tolerance: suite.tolerance,
            };
            let mut budgets = budgets.clone();
            for budget in &mut budgets {
                budget.most.retain(|bounded, _| cell.measures(&bounded.metric()));
                // Budgets of waste are of virtual records: the CPU's are other ones.
                if cell.is_hardware() {
                    budget.wasted.clear();
                }
            }
            cell.budgets = budgets;
            cells.push(cell);
        }
    }
    // Two groups may name the same cell; it is measured once.
    let mut seen = BTreeSet::new();
    cells.retain(|cell| seen.insert(cell.id.clone()));
    cells
}

/// Whether the plugin counts it, or the exact clock times it: only TCG has them.
fn takes_tcg(parameters: &Parameters) -> bool {
    match parameters {
        Parameters::Trigger { throughput, .. } => !throughput,
        Parameters::Attach(AttachParameters { clock, explain, .. }) => {
            clock.exact() || explain.contains(&Explain::Exact)
        }
        Parameters::LbrWaste { .. }
        | Parameters::Boot
        | Parameters::Bench(_)
        | Parameters::TestProgs(_)
        | Parameters::Kselftest { .. }
        | Parameters::Fault => false,
    }
}

/// Whether programs of its guest ask for branch records.
fn asks_for_records(test: &Test) -> bool {
    match test {
        Test::LbrWaste { .. } => true,
        Test::TestProgs { test } => test.as_str() == selftests::SNAPSHOT_TEST,
        _ => false,
    }
}

/// Whether the measurement is that of a guest that has booted. Whether it boots is not; and several guests are asked for where each is to have
/// its addresses at random, which those that are restored from one have in common.
fn may_restore(parameters: &Parameters) -> bool {
    match parameters {
        Parameters::Attach(attach) => attach.boots == 1,
        Parameters::LbrWaste { .. } | Parameters::Trigger { .. } | Parameters::Fault => true,
        // What is kept is of the root without the tree's tests.
        Parameters::Bench(_) | Parameters::TestProgs(_) | Parameters::Kselftest { .. } | Parameters::Boot => {
            false
        }
    }
}

/// One process per cell, or where kernels are compared per test.
pub fn jobs(cells: Vec<PlannedCell>, compared: bool) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for cell in cells {
        let joins = |job: &&mut Job| {
            let first = &job.cells[0].id;
            compared && (first.arch, first.accel, &first.test) == (cell.id.arch, cell.id.accel, &cell.id.test)
        };
        match jobs.iter_mut().find(joins) {
            Some(job) => job.cells.push(cell),
            None => jobs.push(Job { name: String::new(), cells: vec![cell] }),
        }
    }
    for job in &mut jobs {
        let (first, last) = (&job.cells[0].id, &job.cells[job.cells.len() - 1].id);
        let kernel =
            if first == last { first.kernel.clone() } else { format!("{}..{}", first.kernel, last.kernel) };
        job.name = CellId { kernel, ..first.clone() }.name();
    }
    jobs
}

/// Boots of timed cells that are compared, where the suite does not say.
const COMPARED_BOOTS: u32 = 6;
/// With fewer no statistics are made: nothing would be judged, and that would look like a pass.
const FEWEST_BOOTS: u32 = 4;

pub(super) fn tests(group: &TestGroup, compared: bool) -> Vec<(Test, Parameters)> {
    match group {
        TestGroup::LbrWaste { mechanisms, hits } => mechanisms
            .0
            .iter()
            .map(|&mechanism| (Test::LbrWaste { mechanism }, Parameters::LbrWaste { hits: hits.get() }))
            .collect(),
        TestGroup::Attach { mechanisms, functions, rounds, boots, seed, seconds, clock, explain } => {
            let boots = match (boots, compared) {
                (Some(boots), false) => boots.get(),
                (Some(boots), true) => boots.get().max(FEWEST_BOOTS),
                (None, false) => 1,
                (None, true) => COMPARED_BOOTS,
            };
            let parameters = Parameters::Attach(AttachParameters {
                rounds: rounds.get(),
                boots,
                seed: *seed,
                seconds: seconds.map(NonZeroU32::get),
                clock: *clock,
                explain: explain.clone(),
            });
            let sizes = |&mechanism: &Mechanism| {
                functions.iter().map(move |&functions| Test::Attach { mechanism, functions })
            };
            mechanisms.0.iter().flat_map(sizes).map(|test| (test, parameters.clone())).collect()
        }
        &TestGroup::Trigger { ref mechanisms, beside, hits, throughput } => mechanisms
            .0
            .iter()
            .map(|&mechanism| {
                let parameters = Parameters::Trigger { hits: hits.get(), throughput };
                (Test::Trigger { mechanism, beside }, parameters)
            })
            .collect(),
        TestGroup::Boot {} => vec![(Test::Boot, Parameters::Boot)],
        TestGroup::Bench { triggers, seconds, producers } => {
            // Only side by side with another kernel's, boot by boot, would they say anything of it.
            let boots = if compared { COMPARED_BOOTS } else { 1 };
            let parameters = BenchParameters { seconds: seconds.get(), producers: producers.get(), boots };
            let test = |&benchmark: &Name| (Test::Bench { benchmark }, Parameters::Bench(parameters.clone()));
            triggers.iter().map(test).collect()
        }
        TestGroup::TestProgs { tests, deny, seconds } => {
            let parameters = TestProgsParameters { deny: deny.clone(), seconds: seconds.get() };
            let test = |&test: &Name| (Test::TestProgs { test }, Parameters::TestProgs(parameters.clone()));
            tests.iter().map(test).collect()
        }
        TestGroup::Kselftest { programs, seconds } => {
            let parameters = || Parameters::Kselftest { seconds: seconds.get() };
            programs.iter().map(|&program| (Test::Kselftest { program }, parameters())).collect()
        }
        TestGroup::Fault { faults } => {
            faults.iter().map(|&fault| (Test::Fault { fault }, Parameters::Fault)).collect()
        }
    }
}

/// Why a cell cannot be run under virtme-ng.
fn virtme_lacks(backend: Backend, parameters: &Parameters, image: &kernel::Image) -> Option<String> {
    if backend == Backend::Qemu {
        return None;
    }
    let missing = image.not_built_in(&kernel::kconfig::VIRTME_NEEDS);
    if !missing.is_empty() {
        return Some(format!(
            "virtme-ng's root is a virtiofs, and the kernel has not built in {}",
            missing.join(", ")
        ));
    }
    match parameters {
        Parameters::Bench(_) | Parameters::TestProgs(_) | Parameters::Kselftest { .. } => Some(
            "the tree's own tests are packed into the guest's root, and virtme-ng's is the host's; use --vm qemu"
                .to_owned(),
        ),
        Parameters::Attach(attach) if attach.clock.exact() => Some(
            "the exact clock needs a guest that nothing reaches from outside while it measures, and virtme-ng's root comes from \
             the host when the host has the time; use --clock free, or --vm qemu"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Why a test of the tree's own is not run; else what of it is not.
fn refused(test: &Test, parameters: &mut Parameters, selftests: Option<&Selftests>) -> Option<String> {
    let Some(selftests) = selftests else {
        return Some(
            "the tree's own tests are built with a kernel, and this one was built elsewhere".to_owned(),
        );
    };
    if let Test::Kselftest { program } = test
        && !selftests.record.programs.contains(program)
    {
        return Some(selftests::absent("program", program));
    }
    let (Test::TestProgs { test }, Parameters::TestProgs(parameters)) = (test, parameters) else {
        return None;
    };
    if !selftests.record.tests.contains_key(test) {
        return Some(selftests::absent("test", test));
    }
    let list = selftests.denied.clone().and(DenyList::of(&parameters.deny, "the suite"));
    if let Some(denied) = list.denies(test) {
        return Some(denied.to_string());
    }
    parameters.deny = list.of_subtests(test);
    None
}

/// Tests of the trees that no kernel's tree has: their names are wrong. `trees` are those of all kernels of the run.
pub fn unknown_tests(suite: &Suite, trees: &[&Selftests]) -> Vec<Test> {
    let known = |test: &Test| {
        trees.iter().any(|Selftests { record, .. }| match test {
            Test::TestProgs { test } => record.tests.contains_key(test),
            Test::Kselftest { program } => record.programs.contains(program),
            _ => true,
        })
    };
    if trees.is_empty() {
        return Vec::new();
    }
    let named = suite.tests.iter().flat_map(|group| tests(group, false)).map(|(test, _)| test);
    named.filter(|test| !known(test)).collect()
}

fn skip_reason(
    test: &Test,
    parameters: &Parameters,
    cpus: u32,
    accel: Accel,
    image: &kernel::Image,
) -> Option<String> {
    let mechanism: Mechanism = match *test {
        Test::LbrWaste { mechanism } | Test::Attach { mechanism, .. } | Test::Trigger { mechanism, .. } => {
            mechanism
        }
        Test::Bench { .. }
        | Test::TestProgs { .. }
        | Test::Kselftest { .. }
        | Test::Fault { .. }
        | Test::Build
        | Test::Boot => return None,
    };
    if accel == Accel::Kvm && takes_tcg(parameters) {
        return Some(match parameters {
            Parameters::Attach(_) => "the exact clock and exact profiles count instructions, which only TCG does; use --accel auto, or --clock free --explain sampled".to_owned(),
            _ => "instructions of a hit are counted by the plugin, which only TCG has; use --accel auto, or time hits with `throughput: true`".to_owned(),
        });
    }
    if matches!(parameters, Parameters::Attach(attach) if attach.clock.exact()) && cpus > 1 {
        return Some(format!(
            "with the exact clock QEMU runs all of a machine's {cpus} CPUs on one thread, where the plugin cannot tell them apart; use `machine: {{ cpus: 1 }}`, or --clock free"
        ));
    }
    let mut missing = image.missing_for(mechanism);
    if let Test::Trigger { beside, .. } = test {
        missing.extend(beside.mechanisms().flat_map(|mechanism| image.missing_for(mechanism)));
    }
    let options: BTreeSet<String> = missing.iter().map(ToString::to_string).collect();
    let options: Vec<String> = options.into_iter().collect();
    (!options.is_empty()).then(|| format!("the kernel is built without {}", options.join(", ")))
}

/// Of one of the tree's own tests, in seconds: less than what ends a cell from outside (`.config/nextest.toml`), its guest's boot included.
const LONGEST: u32 = 3000;

/// Something beside a mechanism that cannot be attached to the same function.
pub fn misfit(suite: &Suite) -> Option<String> {
    let own = suite.tests.iter().find_map(|group| match group {
        TestGroup::Bench { seconds, .. }
        | TestGroup::TestProgs { seconds, .. }
        | TestGroup::Kselftest { seconds, .. } => Some(seconds.get()).filter(|&seconds| seconds > LONGEST),
        _ => None,
    });
    if let Some(seconds) = own {
        return Some(format!("`seconds: {seconds}` is more than a cell may take: {LONGEST} at most"));
    }
    let all = suite.tests.iter().flat_map(|group| tests(group, false));
    all.into_iter().find_map(|(test, _)| {
        let Test::Trigger { mechanism, beside } = test else { return None };
        let misfit = beside.iter().find(|beside| !beside.fits(mechanism))?;
        Some(format!(
            "{misfit} cannot be attached to what {mechanism} is measured on: name another one in `beside`"
        ))
    })
}

/// A test that two groups name with different parameters: only one of them could be measured.
pub fn contradiction(suite: &Suite) -> Option<String> {
    let all: Vec<(Test, Parameters)> = suite.tests.iter().flat_map(|group| tests(group, false)).collect();
    let differs = |(index, (test, parameters)): (usize, &(Test, Parameters))| {
        let other = all[..index].iter().find(|(earlier, _)| earlier == test)?;
        (other.1 != *parameters).then(|| test.name())
    };
    all.iter().enumerate().find_map(differs)
}

/// Names of kernels in budgets that are neither the suite's nor this run's.
pub fn other_kernels<'a>(suite: &'a Suite, cells: &[PlannedCell]) -> BTreeSet<&'a str> {
    let named = suite.budgets.iter().flat_map(|budget| budget.kernels.iter().flatten());
    let is_run = |name: &str| cells.iter().any(|cell| cell.id.kernel == name);
    named
        .map(String::as_str)
        .filter(|name| !suite.kernels.iter().any(|own| own == name) && !is_run(name))
        .collect()
}

/// Budgets that this run cannot judge by: of a kernel that it does not run, or of numbers that it
/// does not measure, as under KVM. [`load`](super::load) has refused those of no test at all.
pub fn idle_budgets(suite: &Suite, cells: &[PlannedCell]) -> Vec<String> {
    let known =
        |name: &String| cells.iter().any(|cell| &cell.id.kernel == name) || suite.kernels.contains(name);
    let mut idle = Vec::new();
    for budget in &suite.budgets {
        for name in budget.kernels.iter().flatten().filter(|name| !known(name)) {
            idle.push(format!("a budget names kernel `{name}`, which the suite does not run"));
        }
        let is_measured = |metric: Metric| cells.iter().any(|cell| cell.measures(&metric));
        for bounded in budget.most.keys().filter(|bounded| !is_measured(bounded.metric())) {
            let how = match bounded.metric() {
                Metric::Instructions { .. } => {
                    " with `clock: exact` (or both) and `explain: [exact]` under TCG"
                }
                _ => " under TCG",
            };
            idle.push(format!(
                "a budget names `{bounded}`, which this run does not measure; it takes a test{how}"
            ));
        }
    }
    idle
}

impl Plan {
    /// Whether anything is measured against the host's clock, and so must run alone.
    pub fn is_timed(&self) -> bool {
        self.cells().any(|cell| match &cell.parameters {
            Parameters::Attach(attach) => attach.clock.free(),
            Parameters::Trigger { throughput, .. } => *throughput,
            Parameters::Bench(_) => true,
            Parameters::LbrWaste { .. }
            | Parameters::TestProgs(_)
            | Parameters::Kselftest { .. }
            | Parameters::Boot
            | Parameters::Fault => false,
        })
    }

    pub fn cells(&self) -> impl Iterator<Item = &PlannedCell> {
        self.jobs.iter().flat_map(|job| &job.cells)
    }

    pub fn path(run_dir: &Path) -> PathBuf {
        run_dir.join("plan.json")
    }

    pub fn save(&self) -> io::Result<()> {
        fs::create_dir_all(self.run_dir.join(JOBS))?;
        for (number, job) in self.jobs.iter().enumerate() {
            fs::write(job_path(&self.run_dir, number), serde_json::to_vec_pretty(job)?)?;
        }
        let names = Plan {
            run_dir: self.run_dir.clone(),
            emulators: self.emulators.clone(),
            jobs: self.jobs.iter().map(|job| job.name.clone()).collect(),
        };
        fs::write(Plan::path(&self.run_dir), serde_json::to_vec_pretty(&names)?)
    }

    pub fn load(path: &Path) -> io::Result<Plan> {
        let names = Plan::names(path)?;
        let jobs = (0..names.jobs.len()).map(|number| names.job(number)).collect::<io::Result<_>>()?;
        Ok(Plan { run_dir: names.run_dir, emulators: names.emulators, jobs })
    }
}

const JOBS: &str = "jobs";

fn job_path(run_dir: &Path, number: usize) -> PathBuf {
    run_dir.join(JOBS).join(format!("{number}.json"))
}

impl Plan<String> {
    pub fn names(path: &Path) -> io::Result<Plan<String>> {
        let plan: Plan<String> = serde_json::from_slice(&fs::read(path)?)?;
        // The folder may have been brought elsewhere.
        Ok(Plan { run_dir: path.parent().unwrap_or(Path::new("")).to_owned(), ..plan })
    }

    /// The job at this place.
    pub fn job(&self, number: usize) -> io::Result<Job> {
        let path = job_path(&self.run_dir, number);
        let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
        read.map_err(|error| {
            io::Error::new(error.kind(), format!("failed to read {}: {error}", path.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_host::config;
    use tramplab_kernel::kconfig::Kconfig;

    fn suite(text: &str) -> Suite {
        config::parse(&format!("name: t\ndescription: d\nkernels: [a, b]\n{text}"), Path::new("t.yaml"))
            .unwrap()
    }

    fn image(name: &str, config: Option<&str>) -> kernel::Image {
        kernel::Image {
            name: name.to_owned(),
            arch: Arch::X86_64,
            image: "bzImage".into(),
            vmlinux: None,
            config: config.map(|text| Kconfig::parse(text).unwrap()),
            config_file: None,
            modules: Vec::new(),
            source: String::new(),
            sha256: String::new(),
        }
    }

    fn cells(suite: &Suite, images: &[kernel::Image], accel: Accel) -> Vec<PlannedCell> {
        super::cells(suite, &guests(images, accel), false)
    }

    fn guests(images: &[kernel::Image], accel: Accel) -> Vec<Guest<'_>> {
        let backend = Backend::Qemu;
        let guest = |image| Guest {
            image,
            snapshots: None,
            initrd: "initrd".into(),
            selftests: None,
            accel,
            accel_named: false,
            branches: if accel == Accel::Kvm {
                Source::None("no LBR here".to_owned())
            } else {
                Source::Virtual
            },
            backend,
            undeliverable: None,
            budgets_of: Some("a"),
        };
        images.iter().map(guest).collect()
    }

    fn names(cells: &[PlannedCell]) -> Vec<String> {
        cells.iter().map(|cell| cell.id.name()).collect()
    }

    #[test]
    fn a_cell_per_kernel_test_and_size_and_each_once() {
        let suite = suite(
            "tests:\n  - lbr_waste: { mechanisms: [fexit, fexit] }\n  \
             - attach: { mechanisms: [kprobe.multi], functions: [1, 10], rounds: 2 }\n",
        );
        let cells = cells(&suite, &[image("a", None), image("b", None)], Accel::Tcg);
        let of = |kernel: &str| {
            ["lbr_waste/fexit", "attach/kprobe.multi/1", "attach/kprobe.multi/10"]
                .map(|test| format!("x86_64/{kernel}/tcg/{test}"))
        };
        assert_eq!(names(&cells), [of("a"), of("b")].concat());
        assert!(cells.iter().all(|cell| cell.skip.is_none()));
    }

    #[test]
    fn records_are_delivered_when_asked_and_where_the_emulator_can() {
        const TESTS: &str =
            "tests:\n  - lbr_waste: { mechanisms: [fexit] }\n  - trigger: { mechanisms: [fexit] }\n";
        let images = [image("a", None)];
        for (experiments, too_old, expected) in [
            ("", true, [(false, None), (false, None)]),
            ("experiments: [deliver_records]\n", false, [(true, None), (false, None)]),
            ("experiments: [deliver_records]\n", true, [(true, Some("too old")), (false, None)]),
        ] {
            let mut guests = guests(&images, Accel::Tcg);
            guests[0].undeliverable = too_old.then(|| "too old".to_owned());
            let cells = super::cells(&suite(&format!("{experiments}{TESTS}")), &guests, false);
            let found: Vec<_> = cells.iter().map(|cell| (cell.deliver, cell.skip.as_deref())).collect();
            assert_eq!(found, expected, "{experiments:?} {too_old}");
        }
        // Of the tree's own tests one asks for them; it wants the plugin, whatever the others run under.
        const OWN: &str = "experiments: [deliver_records]\ntests:\n  - test_progs: { tests: [get_branch_snapshot, fentry_test] }\n";
        let tests = with_tests(&["get_branch_snapshot", "fentry_test"]);
        for (experiment, too_old, expected) in [
            (OWN, false, (true, Accel::Tcg, None)),
            (OWN, true, (true, Accel::Tcg, Some("too old"))),
            (&OWN[OWN.find('\n').unwrap() + 1..], true, (false, Accel::Kvm, None)),
        ] {
            let mut guests = guests(&images, Accel::Kvm);
            guests[0].undeliverable = too_old.then(|| "too old".to_owned());
            guests[0].selftests = Some((&tests, "with".into()));
            let [asks, other] = &super::cells(&suite(experiment), &guests, false)[..] else { panic!() };
            assert_eq!((asks.deliver, asks.id.accel, asks.skip.as_deref()), expected);
            assert_eq!((other.deliver, other.id.accel, &other.skip), (false, Accel::Kvm, &None));
        }
    }

    #[test]
    fn a_test_is_not_asked_for_in_two_ways() {
        let attach = |more: &str| {
            let group = format!("  - attach: {{ mechanisms: [fentry], functions: [1], {more} }}\n");
            suite(&format!(
                "tests:\n  - attach: {{ mechanisms: [fentry], functions: [1, 1], rounds: 2 }}\n{group}"
            ))
        };
        assert_eq!(contradiction(&attach("rounds: 2")), None);
        for more in ["rounds: 3", "rounds: 2, clock: exact", "rounds: 2, seconds: 9"] {
            assert_eq!(contradiction(&attach(more)).as_deref(), Some("attach/fentry/1"), "{more}");
        }
    }

    #[test]
    fn what_cannot_be_attached_beside_is_named() {
        let beside = |name: &str| {
            misfit(&suite(&format!(
                "tests:\n  - trigger: {{ mechanisms: [kprobe.multi, fentry], beside: [{name}] }}\n"
            )))
        };
        assert_eq!(beside("function_tracer"), None);
        assert!(
            beside("tp_btf")
                .unwrap()
                .starts_with("tp_btf cannot be attached to what kprobe.multi is measured on")
        );
        // All mechanisms of a group have the same beside.
        assert!(misfit(&suite("tests:\n  - trigger: { mechanisms: all, beside: [fentry] }\n")).is_some());
    }

    #[test]
    fn cells_that_are_compared_share_a_process() {
        let suite = suite(
            "tests:\n  - lbr_waste: { mechanisms: [fexit] }\n  \
             - attach: { mechanisms: [kprobe.multi], functions: [1, 10], rounds: 2 }\n  \
             - attach: { mechanisms: [fentry], functions: [1], rounds: 2, boots: 9 }\n",
        );
        let images = [image("a", None), image("a+s", None)];
        let jobs = jobs(super::cells(&suite, &guests(&images, Accel::Tcg), true), true);
        let shape = |job: &Job| {
            let boots = job.cells.iter().map(|cell| match &cell.parameters {
                Parameters::Attach(attach) => attach.boots,
                _ => 1,
            });
            (job.name.clone(), boots.collect::<Vec<_>>())
        };
        let expected = [
            ("x86_64/a..a+s/tcg/lbr_waste/fexit", vec![1, 1]),
            ("x86_64/a..a+s/tcg/attach/kprobe.multi/1", vec![6, 6]),
            ("x86_64/a..a+s/tcg/attach/kprobe.multi/10", vec![6, 6]),
            ("x86_64/a..a+s/tcg/attach/fentry/1", vec![9, 9]),
        ];
        assert_eq!(
            jobs.iter().map(shape).collect::<Vec<_>>(),
            expected.map(|(name, boots)| (name.to_owned(), boots))
        );
        // Nothing is compared: each cell is a job of its own name.
        let cells = cells(&suite, &images, Accel::Tcg);
        let alone = super::jobs(cells.clone(), false);
        assert_eq!(alone.iter().map(|job| job.name.clone()).collect::<Vec<_>>(), names(&cells));
    }

    /// One kernel on two architectures: neither its budgets nor its accelerator nor its jobs are the other's.
    #[test]
    fn architectures_share_nothing_but_the_suite() {
        let suite = suite(
            "tests:\n  - lbr_waste: { mechanisms: [fexit] }\n\
             budgets:\n  - { arch: [arm64], wasted: { fexit: { any: 5 } } }\n  \
             - { wasted: { fexit: { any_return: 3 } } }\n",
        );
        let on = |name: &str, arch| kernel::Image { arch, ..image(name, None) };
        let images =
            [on("a", Arch::X86_64), on("a", Arch::Arm64), on("a+s", Arch::X86_64), on("a+s", Arch::Arm64)];
        let mut guests = guests(&images, Accel::Kvm);
        guests.iter_mut().filter(|guest| guest.image.arch == Arch::Arm64).for_each(|g| g.accel = Accel::Tcg);
        let cells = super::cells(&suite, &guests, true);
        let budgets: Vec<usize> = cells.iter().map(|cell| cell.budgets.len()).collect();
        assert_eq!(budgets, [1, 2, 1, 2]);
        let jobs: Vec<String> = jobs(cells, true).into_iter().map(|job| job.name).collect();
        assert_eq!(jobs, ["x86_64/a..a+s/kvm/lbr_waste/fexit", "arm64/a..a+s/tcg/lbr_waste/fexit"]);
    }

    #[test]
    fn what_a_kernel_or_host_cannot_is_skipped_with_the_reason() {
        let suite = suite(
            "tests:\n  - lbr_waste: { mechanisms: [kprobe.multi, raw_tp] }\n  \
             - attach: { mechanisms: [kprobe.multi], functions: [1], rounds: 1 }\n  \
             - trigger: { mechanisms: [kprobe.multi, raw_tp] }\n",
        );
        let kernels = [image("a", Some("CONFIG_TRACEPOINTS=y\nCONFIG_FUNCTION_TRACER=y\n"))];
        let reasons = |accel| -> Vec<Option<String>> {
            cells(&suite, &kernels, accel).into_iter().map(|cell| cell.skip).collect()
        };
        let fprobe = Some("the kernel is built without CONFIG_FPROBE".to_owned());
        assert_eq!(reasons(Accel::Tcg), [fprobe.clone(), None, fprobe.clone(), fprobe.clone(), None]);
        let [waste, raw_tp, attach, trigger, timed] = &reasons(Accel::Kvm)[..] else { panic!() };
        assert_eq!(waste, &fprobe);
        assert!(raw_tp.as_ref().is_some_and(|reason| reason.contains("LBR")));
        assert_eq!((attach, trigger), (&fprobe, &fprobe));
        // Under KVM there is still the clock.
        assert_eq!(*timed, None);
    }

    #[test]
    fn waste_runs_where_its_records_come_from() {
        let suite = suite(
            "tests:\n  - lbr_waste: { mechanisms: [fentry] }\n  - attach: { mechanisms: [fentry], functions: [1], rounds: 1 }\n\
             budgets:\n  - { wasted: { fentry: { any: 5 } } }\n",
        );
        let images = [image("a", None)];
        let with = |branches: Source| {
            let guests = vec![Guest { branches, ..guests(&images, Accel::Kvm).remove(0) }];
            let [waste, attach]: [PlannedCell; 2] = super::cells(&suite, &guests, false).try_into().unwrap();
            assert_eq!((attach.id.accel, attach.is_hardware(), attach.skip), (Accel::Kvm, false, None));
            let judged = waste.budgets.iter().any(|budget| !budget.wasted.is_empty());
            (waste.id.accel, waste.is_hardware(), judged, waste.skip)
        };
        let format = serde_json::from_str("5").unwrap();
        // The plugin's take TCG, whatever the rest runs under.
        assert_eq!(with(Source::Virtual), (Accel::Tcg, false, true, None));
        // The CPU's are not judged by budgets, which are of virtual ones.
        assert_eq!(with(Source::Hardware(format)), (Accel::Kvm, true, false, None));
        let (accel, _, _, skip) = with(Source::None("no LBR".to_owned()));
        assert_eq!((accel, skip.as_deref()), (Accel::Kvm, Some("no LBR")));
    }

    #[test]
    fn what_is_attached_beside_is_part_of_the_name_and_of_what_it_takes() {
        let suite = suite(
            "tests:\n  - trigger: { mechanisms: [raw_tp] }\n  \
             - trigger: { mechanisms: [raw_tp], beside: [function_tracer] }\n  \
             - trigger: { mechanisms: [raw_tp], beside: [function_tracer, kprobe.multi] }\n",
        );
        assert_eq!(contradiction(&suite), None);
        assert_eq!(suite.mechanisms(), [Mechanism::KprobeMulti, Mechanism::RawTp]);
        let kernels = [image("a", Some("CONFIG_TRACEPOINTS=y\nCONFIG_FUNCTION_TRACER=y\n"))];
        let cells = cells(&suite, &kernels, Accel::Tcg);
        let expected = [
            ("trigger/raw_tp", None),
            ("trigger/raw_tp+function_tracer", None),
            (
                "trigger/raw_tp+kprobe.multi+function_tracer",
                Some("the kernel is built without CONFIG_FPROBE"),
            ),
        ];
        let found: Vec<_> = cells.iter().map(|cell| (cell.id.test.name(), cell.skip.as_deref())).collect();
        assert_eq!(found, expected.map(|(name, skip)| (name.to_owned(), skip)));
    }

    fn attach_of(cell: &PlannedCell) -> &AttachParameters {
        let Parameters::Attach(attach) = &cell.parameters else { panic!("{:?}", cell.parameters) };
        attach
    }

    #[test]
    fn the_exact_clock_is_one_guest_more_or_the_only_one() {
        use Clock::{Exact, Free};
        let images = [image("a", None), image("a+s", None)];
        for (clock, alone, compared) in [
            ("", vec![Free], vec![Free; 6]),
            (", clock: free, boots: 2", vec![Free; 2], vec![Free; 4]),
            (", clock: exact, boots: 2", vec![Exact], vec![Exact]),
            (", clock: both", vec![Free, Exact], [vec![Free; 6], vec![Exact]].concat()),
            (
                ", clock: both, boots: 5",
                [vec![Free; 5], vec![Exact]].concat(),
                [vec![Free; 5], vec![Exact]].concat(),
            ),
        ] {
            let suite = suite(&format!(
                "tests:\n  - attach: {{ mechanisms: [fentry], functions: [1], rounds: 2{clock} }}\n"
            ));
            for (is_compared, clocks) in [(false, alone), (true, compared)] {
                for cell in super::cells(&suite, &guests(&images, Accel::Tcg), is_compared) {
                    assert_eq!(attach_of(&cell).clocks(), clocks, "{clock} {is_compared}");
                    assert_eq!(cell.boots() as usize, clocks.len(), "{clock} {is_compared}");
                }
            }
        }
    }

    #[test]
    fn what_a_suite_says_of_attaching_reaches_every_cell() {
        let suite = suite(
            "tests:\n  - attach: { mechanisms: [fentry, kprobe.multi], functions: [10, all], rounds: 3, seed: 7, \
             seconds: 20, clock: exact, explain: [sampled, exact] }\n  \
             - attach: { mechanisms: [fexit], functions: [all], rounds: 1 }\n",
        );
        let planned = cells(&suite, &[image("a", None)], Accel::Tcg);
        let expected = ["fentry/10", "fentry/all", "kprobe.multi/10", "kprobe.multi/all", "fexit/all"];
        assert_eq!(names(&planned), expected.map(|test| format!("x86_64/a/tcg/attach/{test}")));
        let shape = |cell| {
            let AttachParameters { rounds, boots: _, seed, seconds, clock, explain } = attach_of(cell);
            (*rounds, *seed, *seconds, *clock, explain.iter().copied().collect::<Vec<_>>())
        };
        let both = vec![Explain::Exact, Explain::Sampled];
        for cell in &planned[..4] {
            assert_eq!(shape(cell), (3, 7, Some(20), Clocks::Exact, both.clone()));
        }
        assert_eq!(shape(&planned[4]), (1, 0, None, Clocks::Free, vec![]));

        // The command line's word counts instead of the suite's, for every group; what it does not say stays.
        let sampled = BTreeSet::from([Explain::Sampled]);
        let told =
            cells(&suite.clone().with(Some(Clocks::Both), Some(&sampled)), &[image("a", None)], Accel::Tcg);
        for cell in &told {
            assert_eq!((attach_of(cell).clock, &attach_of(cell).explain), (Clocks::Both, &sampled));
        }
        let untold = cells(&suite.with(None, None), &[image("a", None)], Accel::Tcg);
        assert_eq!(
            untold.iter().map(shape).collect::<Vec<_>>(),
            planned.iter().map(shape).collect::<Vec<_>>()
        );
    }

    #[test]
    fn hits_that_are_only_counted_are_counted_under_the_exact_clock() {
        for (more, cpus, clock) in [
            (", throughput: false", 1, Clock::Exact),
            (", throughput: false", 2, Clock::Free),
            ("", 1, Clock::Free),
        ] {
            let text = format!(
                "machine: {{ cpus: {cpus} }}\ntests:\n  - trigger: {{ mechanisms: [fentry]{more} }}\n"
            );
            let cells = cells(&suite(&text), &[image("a", None)], Accel::Tcg);
            assert_eq!(cells[0].clocks(), [clock], "{text}");
        }
    }

    #[test]
    fn what_counts_instructions_needs_tcg_and_the_exact_clock_one_cpu() {
        use Accel::{Kvm, Tcg};
        // Under TCG, under KVM because it was there, under KVM by name: what the cell runs under, or why it does not.
        const COUNTED: [Result<Accel, &str>; 3] = [Ok(Tcg), Ok(Tcg), Err("only TCG")];
        const ANYWHERE: [Result<Accel, &str>; 3] = [Ok(Tcg), Ok(Kvm), Ok(Kvm)];
        const NOWHERE: [Result<Accel, &str>; 3] =
            [Err("on one thread"), Err("on one thread"), Err("only TCG")];
        let attach =
            |keys: &str| format!("attach: {{ mechanisms: [fentry], functions: [1], rounds: 1, {keys} }}");
        let trigger = |keys: &str| format!("trigger: {{ mechanisms: [fentry], {keys} }}");
        for (test, cpus, expected) in [
            (attach(""), 1, ANYWHERE),
            (attach("explain: [sampled]"), 1, ANYWHERE),
            (attach("explain: [exact]"), 1, COUNTED),
            (attach("clock: exact"), 1, COUNTED),
            (attach("clock: both"), 1, COUNTED),
            (attach("clock: free, explain: [exact]"), 2, COUNTED),
            (attach("clock: exact"), 2, NOWHERE),
            (attach("clock: both"), 4, NOWHERE),
            (trigger("throughput: true"), 1, ANYWHERE),
            (trigger("throughput: false"), 1, COUNTED),
            (trigger("throughput: false"), 2, COUNTED),
        ] {
            let suite = suite(&format!("machine: {{ cpus: {cpus} }}\ntests:\n  - {test}\n"));
            let images = [image("a", None)];
            for ((accel, accel_named), expected) in
                [(Tcg, false), (Kvm, false), (Kvm, true)].iter().zip(expected)
            {
                let guest = Guest { accel_named: *accel_named, ..guests(&images, *accel).remove(0) };
                let cell = &super::cells(&suite, &[guest], false)[0];
                let what =
                    format!("{test} {cpus} {accel:?} {accel_named}: {:?} {:?}", cell.id.accel, cell.skip);
                match expected {
                    Ok(under) => assert!(cell.skip.is_none() && cell.id.accel == under, "{what}"),
                    Err(words) => {
                        assert!(cell.skip.as_ref().is_some_and(|why| why.contains(words)), "{what}")
                    }
                }
            }
        }
    }

    #[test]
    fn the_suite_of_ci_is_exact_and_judges_only_the_kernels_that_its_budgets_name() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/suites/ci.yaml");
        let suite = crate::load(&path).unwrap();
        let shipped: Vec<kernel::Image> = suite.kernels.iter().map(|name| image(name, None)).collect();
        let own = [image("tree", None)];
        for accel in [Accel::Tcg, Accel::Kvm] {
            let cells = |images| {
                let mut guests = guests(images, accel);
                for guest in &mut guests {
                    guest.branches = Source::Virtual;
                    guest.budgets_of = Some(&guest.image.name);
                }
                super::cells(&suite, &guests, false)
            };
            for cell in cells(&shipped) {
                let name = cell.id.name();
                assert_eq!((cell.id.accel, cell.skip.as_deref()), (Accel::Tcg, None), "{name}");
                let is_waste = matches!(cell.id.test, Test::LbrWaste { .. });
                assert!(is_waste || cell.clocks() == [Clock::Exact], "{name}");
            }
            let judged: BTreeSet<String> = cells(&shipped)
                .iter()
                .filter(|cell| {
                    cell.budgets.iter().any(|budget| match cell.id.test {
                        Test::LbrWaste { mechanism } => {
                            budget.wasted.keys().any(|row| row.mechanism == mechanism)
                        }
                        _ => budget.most.keys().any(|bounded| bounded.metric().test() == cell.id.test),
                    })
                })
                .map(|cell| format!("{}/{}", cell.id.kernel, cell.id.test.name()))
                .collect();
            for kernel in &suite.kernels {
                for test in ["lbr_waste/fexit", "trigger/fentry", "attach/fentry/10"] {
                    assert!(judged.contains(&format!("{kernel}/{test}")), "{kernel} {test}");
                }
            }
            assert!(cells(&own).iter().all(|cell| cell.budgets.is_empty()));
            for images in [&shipped[..], &own] {
                assert_eq!(idle_budgets(&suite, &cells(images)), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused_where_they_stand() {
        let whole = |key: &str, value: &str| {
            let mut keys = vec![("mechanisms", "[fentry]"), ("functions", "[1]"), ("rounds", "1")];
            keys.retain(|(known, _)| *known != key);
            keys.push((key, value));
            let keys: String =
                keys.into_iter().map(|(key, value)| format!("      {key}: {value}\n")).collect();
            format!("name: t\ndescription: d\nkernels: [a]\ntests:\n  - attach:\n{keys}")
        };
        for (key, value, line, words) in [
            ("seconds", "0", 9, "nonzero"),
            ("seconds", "-1", 9, "-1"),
            ("clock", "fast", 9, "free, exact, both"),
            ("explain", "[perf]", 9, "exact, sampled"),
            ("explain", "exact", 9, "sequence"),
            ("functions", "[0]", 8, "above 0"),
            ("functions", "[most]", 8, "`all`"),
            ("functions", "[]", 8, "at least one"),
            ("functions", "all", 8, "sequence"),
            ("budget_seconds", "5", 9, "seconds"),
        ] {
            let error =
                config::parse::<Suite>(&whole(key, value), Path::new("t.yaml")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("t.yaml:{line}:")), "{key}: {value}: {error}");
            assert!(error.contains(words), "{key}: {value}: {error}");
        }
    }

    /// A kernel whose tree has the tests, and denies some on its architecture.
    fn with_tests(tests: &[&str]) -> Selftests {
        let file = |name: &&str| (name.parse().unwrap(), format!("{name}.c"));
        let broken = [("bench", "bench.c:3: error"), ("test_progs/added", "progs/added.c:3: error")];
        let told = |(name, reason)| (name, serde_json::json!({ "reason": reason, "lasts": true }));
        let broken: BTreeMap<_, _> =
            broken.into_iter().filter(|_| tests.contains(&"added")).map(told).collect();
        Selftests {
            root: "root".into(),
            record: serde_json::from_value(serde_json::json!({
                "key": "k", "seconds": 1.0, "programs": ["perf_events/mmap"], "clang": "clang 19", "contents": "c",
                "broken": broken,
                "tests": tests.iter().map(file).collect::<BTreeMap<Name, String>>(),
            }))
            .unwrap(),
            denied: DenyList::parse("module_attach # no module\nfentry_test/many\n", "DENYLIST.aarch64"),
        }
    }

    #[test]
    fn the_trees_own_tests_run_where_the_tree_has_them_and_does_not_deny_them() {
        let suite = suite(
            "tests:\n  - bench: { triggers: [trig-fentry], seconds: 3 }\n  - test_progs: { tests: [fentry_test, module_attach, d_path], \
             deny: [\"fentry_test/few\", \"d_*\"] }\n  - kselftest: { programs: [perf_events/mmap, other/none] }\n",
        )
        .with_tests(&["fentry_test", "added"].map(|name| name.parse().unwrap()).into());
        let images = [image("a", None), image("b", None), image("c", None)];
        let [old, new] =
            [with_tests(&["fentry_test", "module_attach", "d_path"]), with_tests(&["fentry_test", "added"])];
        let mut guests = guests(&images, Accel::Tcg);
        guests[0].selftests = Some((&old, "with-old".into()));
        guests[1].selftests = Some((&new, "with-new".into()));
        let cells = super::cells(&suite, &guests, false);
        let found: Vec<_> = cells
            .iter()
            .map(|cell| (cell.id.kernel.as_str(), cell.id.test.name(), cell.skip.as_deref()))
            .collect();
        let elsewhere =
            Some("the tree's own tests are built with a kernel, and this one was built elsewhere");
        let expected = [
            ("a", "bench/trig-fentry", None),
            ("a", "test_progs/fentry_test", None),
            (
                "a",
                "test_progs/module_attach",
                Some("denied by DENYLIST.aarch64:1 (`module_attach`: no module)"),
            ),
            ("a", "test_progs/d_path", Some("denied by the suite (`d_*`)")),
            ("a", "test_progs/added", Some("this kernel's tree has no test `added`")),
            ("a", "kselftest/perf_events/mmap", None),
            ("a", "kselftest/other/none", Some("this kernel's tree has no program `other/none`")),
            ("b", "bench/trig-fentry", None),
            ("b", "test_progs/fentry_test", None),
            ("b", "test_progs/module_attach", Some("this kernel's tree has no test `module_attach`")),
            ("b", "test_progs/d_path", Some("this kernel's tree has no test `d_path`")),
            ("b", "test_progs/added", None),
            ("b", "kselftest/perf_events/mmap", None),
            ("b", "kselftest/other/none", Some("this kernel's tree has no program `other/none`")),
            ("c", "bench/trig-fentry", elsewhere),
            ("c", "test_progs/fentry_test", elsewhere),
            ("c", "test_progs/module_attach", elsewhere),
            ("c", "test_progs/d_path", elsewhere),
            ("c", "test_progs/added", elsewhere),
            ("c", "kselftest/perf_events/mmap", elsewhere),
            ("c", "kselftest/other/none", elsewhere),
        ];
        assert_eq!(found, expected.map(|(kernel, test, skip)| (kernel, test.to_owned(), skip)));
        let Parameters::TestProgs(parameters) = &cells[1].parameters else {
            panic!("{:?}", cells[1].parameters)
        };
        assert_eq!(parameters.deny, ["fentry_test/many", "fentry_test/few"]);
        assert_eq!((&cells[1].initrd, cells[1].boots()), (&PathBuf::from("with-old"), 1));
        // What does not build is said in its own cell, where the tree has it.
        let unbuilt: Vec<_> =
            cells.iter().filter_map(|cell| Some((cell.id.name(), cell.unbuilt.as_deref()?))).collect();
        let expected =
            [("bench/trig-fentry", "bench.c:3: error"), ("test_progs/added", "progs/added.c:3: error")];
        assert_eq!(unbuilt, expected.map(|(test, error)| (format!("x86_64/b/tcg/{test}"), error)));
        guests[1].backend = Backend::VirtmeNg;
        let others = super::cells(&suite, &guests, false);
        let by_virtme = others.iter().filter(|cell| cell.id.kernel == "b");
        by_virtme
            .for_each(|cell| assert!(cell.skip.as_ref().unwrap().contains("virtme-ng"), "{:?}", cell.skip));
        guests[1].backend = Backend::Qemu;
        // Compared, benchmarks take turns; a test's word does not change with repetition.
        let compared = super::cells(&suite, &guests, true);
        assert_eq!((compared[0].boots(), compared[1].boots()), (COMPARED_BOOTS, 1));
        assert_eq!(unknown_tests(&suite, &[&old, &new]), ["kselftest/other/none".parse().unwrap()]);
        let wrong = suite.with_tests(&["fentry_tset".parse().unwrap()].into());
        let [first, _] = &unknown_tests(&wrong, &[&old, &new])[..] else { panic!("{wrong:?}") };
        assert_eq!(first.name(), "test_progs/fentry_tset");
    }

    #[test]
    fn a_budget_that_can_never_fail_is_reported() {
        let suite = suite(
            "tests:\n  - lbr_waste: { mechanisms: [fexit] }\n\
             budgets:\n  - wasted: { fexit: { any: 9 } }\n  - kernels: [c]\n    wasted: { fexit: { any: 8 } }\n",
        );
        let cells = cells(&suite, &[image("a", None)], Accel::Tcg);
        let idle = idle_budgets(&suite, &cells);
        assert!(idle.len() == 1 && idle[0].contains("`c`"), "{idle:?}");
        // The budget of another kernel does not hold for this one.
        assert_eq!(cells[0].budgets.len(), 1);
    }
}
