// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the cells of a job: boots guests, measures, judges, and writes each result to its cell's
//! folder.

use super::{
    Plan, PlannedCell, boots, budget,
    guest::{Booted, Stop, forget_earlier},
    plan::Job,
};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use tramplab_analysis::compare;
use tramplab_host::{
    given,
    runs::{RunDir, StoreError, running::OWN_ROOT},
};
use tramplab_model::{
    cpu,
    run::{Accel, Allowed, Backend, Cell, Clock, ErrorKind, Measurement, Outcome, Test},
};
use tramplab_protocol::message::{Command, Facts};
use tramplab_vm as vm;
use tramplab_vm::{Deadlines, Spec, Vm, VmError};

/// Runs the job's cells and writes their `cell.json`, even after errors. Cells with several guests
/// take turns, and the order reverses each time, so that drift of the host affects all cells alike.
/// Goes on with the boots that an earlier run left in the cells' folders. If times of two cells
/// of a series seem to differ, all boot as many guests again.
pub fn run_and_save(plan: &Plan<String>, job: &Job) -> Result<Vec<Cell>, StoreError> {
    let run_dir = RunDir::new(&plan.run_dir);
    let (first, mut cells): (u32, Vec<Running>) = match begun(&run_dir, job) {
        Some((done, left)) => {
            let running = |(planned, cell)| Running::go_on(planned, cell, done);
            (done, job.cells.iter().zip(left).map(running).collect())
        }
        None => (0, job.cells.iter().map(Running::new).collect()),
    };
    let boots = job.cells.iter().map(PlannedCell::boots).max().unwrap_or(0);
    for boot in first..boots {
        for running in turns(&mut cells, boot).filter(|running| !running.is_over(boot)) {
            running.boot(plan, &run_dir, boot);
            if running.is_over(boot + 1) {
                let cell = running.finished();
                run_dir.save_cell(&cell)?;
                // A run that is stopped meanwhile has the failure.
                if matches!(cell.outcome, Outcome::Fail { .. }) {
                    running.shrink(plan, &run_dir);
                    run_dir.save_cell(&running.finished())?;
                }
            }
        }
        // After the turn: a later run goes on only with cells that have booted equally often.
        for running in cells.iter().filter(|running| !running.is_over(boot + 1)) {
            run_dir.save_partial(&running.unfinished())?;
        }
    }
    for running in &cells {
        run_dir.remove_partial(&running.cell.id);
    }
    if job.more_boots && seem_to_differ(&cells) {
        let more = cells.iter().map(Running::timed_boots).max().unwrap_or(0);
        for boot in boots..boots + more {
            turns(&mut cells, boot)
                .filter(|running| running.stopped.is_none() && running.timed_boots() > 0)
                .for_each(|running| running.boot(plan, &run_dir, boot));
        }
        // A run that is stopped meanwhile has the results of fewer boots.
        for running in &cells {
            run_dir.save_cell(&running.finished())?;
        }
    }
    Ok(cells.iter().map(Running::finished).collect())
}

/// The boots that an earlier run left of the job's cells, and their number. None unless it is the
/// same for all, as cells that are compared take turns.
pub fn begun(run_dir: &RunDir, job: &Job) -> Option<(u32, Vec<Cell>)> {
    let left = job.cells.iter().map(|planned| run_dir.load_partial(&planned.id()));
    let left: Vec<Cell> = left.collect::<Option<_>>()?;
    let done = guests(left.first()?)?;
    let fits = |(planned, cell): (&PlannedCell, &Cell)| {
        guests(cell) == Some(done) && (1..planned.boots()).contains(&done)
    };
    job.cells.iter().zip(&left).all(fits).then_some((done, left))
}

/// The folder of a guest of a cell that boots several, counted from 1.
pub fn boot_folder(number: u32) -> String {
    format!("boot-{number}")
}

/// The number of guests that measured a cell, of a kind that may have several.
fn guests(cell: &Cell) -> Option<u32> {
    let guests = match (&cell.id.test, cell.measurement.as_ref()?) {
        (Test::Attach(_), Measurement::Attach(attach)) => {
            attach.boots.len() + usize::from(attach.exact.is_some())
        }
        (Test::Bench(_), Measurement::Bench(bench)) => bench.boots.len(),
        _ => return None,
    };
    u32::try_from(guests).ok()
}

fn turns<'a, 'b>(
    cells: &'b mut [Running<'a>],
    boot: u32,
) -> impl Iterator<Item = &'b mut Running<'a>> {
    let mut order: Vec<&mut Running> = cells.iter_mut().collect();
    if boot % 2 == 1 {
        order.reverse();
    }
    order.into_iter()
}

/// True if times of two cells that a comparison judges seem to differ: of neighbours, or of the
/// first and the last.
fn seem_to_differ(cells: &[Running]) -> bool {
    // Placebos, between base and head, have no times.
    let timed = cells.iter().filter(|running| running.timed_boots() > 0);
    let measured: Vec<Cell> = timed.map(Running::finished).collect();
    let neighbours = measured.windows(2).map(|pair| (&pair[0], &pair[1]));
    let mut pairs = neighbours.chain(measured.first().zip(measured.last()));
    let tolerance = cells.first().map(|running| running.planned.tolerance).unwrap_or_default();
    pairs.any(|(base, head)| compare::seem_to_differ(base, head, tolerance))
}

/// A cell between its boots.
struct Running<'a> {
    planned: &'a PlannedCell,
    cell: Cell,
    /// The measurement of the `done` boots.
    measured: Option<Measurement>,
    done: u32,
    stopped: Option<Stop>,
}

impl<'a> Running<'a> {
    fn new(planned: &'a PlannedCell) -> Running<'a> {
        let cell = Cell::without_result(planned.id(), Outcome::Pass);
        Running { planned, cell, measured: None, done: 0, stopped: None }
    }

    /// With the boots that an earlier run left.
    fn go_on(planned: &'a PlannedCell, left: Cell, done: u32) -> Running<'a> {
        let Cell { measurement: measured, .. } = left;
        let cell = Cell { outcome: Outcome::Pass, measurement: None, ..left };
        Running { planned, cell, measured, done, stopped: None }
    }

    /// Number of planned guests that measure times.
    fn timed_boots(&self) -> u32 {
        let clocks = self.planned.clocks();
        clocks.iter().filter(|&&clock| clock == Clock::Free).count() as u32
    }

    /// True if no boot is left after `boots` boots.
    fn is_over(&self, boots: u32) -> bool {
        self.stopped.is_some() || boots >= self.planned.boots()
    }

    fn boot(&mut self, plan: &Plan<String>, run_dir: &RunDir, boot: u32) {
        let mut folder = run_dir.cell(&self.cell.id);
        if self.planned.boots() > 1 {
            folder.push(boot_folder(boot + 1));
        }
        let started = Instant::now();
        let result = match fs::create_dir_all(&folder) {
            Ok(()) => {
                let own = run_dir.cell(&self.cell.id);
                let folders = Folders { guest: &folder, cell: &own };
                run(plan, self.planned, boot, folders, &mut self.cell)
            }
            Err(error) => {
                Err(Stop::harness(format!("failed to create {}: {error}", folder.display())))
            }
        };
        self.cell.duration_ms += started.elapsed().as_millis() as u64;
        match result {
            Ok(next) => {
                self.done += 1;
                match &mut self.measured {
                    None => self.measured = Some(next),
                    Some(measured) => measured.add(next),
                }
            }
            Err(stop) => self.stopped = Some(stop),
        }
    }

    /// If a smaller test may show the failure too, looks for one. Its guests leave nothing in the
    /// cell.
    fn shrink(&mut self, plan: &Plan<String>, run_dir: &RunDir) {
        let Some(measured) = self.measured.take() else { return };
        let started = Instant::now();
        let folder = run_dir.cell(&self.cell.id);
        let smaller = run_dir.smaller(&self.cell.id);
        let mut run = |work| {
            let planned = PlannedCell { work, ..self.planned.clone() };
            let mut cell = Cell::without_result(planned.id(), Outcome::Pass);
            fs::create_dir_all(&smaller).map_err(|error| {
                Stop::harness(format!("failed to create {}: {error}", smaller.display()))
            })?;
            let folders = Folders { guest: &smaller, cell: &smaller };
            run(plan, &planned, 0, folders, &mut cell)
        };
        self.measured = Some(self.planned.work.kind().shrink(measured, &folder, &mut run));
        run_dir.remove_smaller(&self.cell.id);
        self.cell.duration_ms += started.elapsed().as_millis() as u64;
    }

    /// The cell if no other boot ends: an error with the measurement so far.
    fn unfinished(&self) -> Cell {
        let (done, all) = (self.done, self.planned.boots());
        let message = format!("ended after {done} of {all} boots");
        let outcome = Outcome::Error { kind: ErrorKind::Harness, message };
        Cell { outcome, measurement: self.measured.clone(), ..self.cell.clone() }
    }

    fn finished(&self) -> Cell {
        let mut cell = Cell { measurement: self.measured.clone(), ..self.cell.clone() };
        cell.outcome = match (&self.stopped, &cell.measurement) {
            (Some(Stop::Skip(reason)), _) => Outcome::Skip { reason: reason.clone() },
            (Some(Stop::Error { kind, message }), _) => {
                Outcome::Error { kind: *kind, message: message.clone() }
            }
            (None, Some(_)) => budget::judge(&cell, &self.planned.budgets, self.planned.tolerance),
            (None, None) => {
                let message = "no guest was booted".to_owned();
                Outcome::Error { kind: ErrorKind::Harness, message }
            }
        };
        // Boots before one that failed are no measurement of the cell.
        if !matches!(cell.outcome, Outcome::Pass | Outcome::Fail { .. }) {
            cell.measurement = None;
        }
        cell
    }
}

/// Output folders.
#[derive(Clone, Copy)]
struct Folders<'a> {
    /// This guest's folder: console, traces.
    guest: &'a Path,
    /// The cell's folder. A cell may have several guests.
    cell: &'a Path,
}

/// One of the cell's guests.
struct Task {
    clock: Clock,
    /// No later guest has the same clock.
    is_last: bool,
    /// Commands in the guest's root under the exact clock: nothing reaches it while it measures.
    orders: Option<Vec<Command>>,
    /// Time limit of the orders. The guest sends nothing before it has done all of them.
    silence: Duration,
}

impl Task {
    fn new(planned: &PlannedCell, boot: u32) -> Task {
        let clocks = planned.clocks();
        let clock_of = |boot: u32| clocks.get(boot as usize).copied();
        // Guests beyond those planned measure times once more.
        let clock = clock_of(boot).unwrap_or(Clock::Free);
        let is_last = clock_of(boot).is_some() && clock_of(boot + 1) != Some(clock);
        let (commands, silence) = planned.work.kind().commands(clock, is_last);
        let orders = (clock == Clock::Exact)
            .then(|| std::iter::once(Command::Facts).chain(commands).collect());
        Task { clock, is_last, orders, silence }
    }
}

fn run(
    plan: &Plan<String>,
    planned: &PlannedCell,
    boot: u32,
    folders: Folders,
    cell: &mut Cell,
) -> Result<Measurement, Stop> {
    if let Some((kind, message)) = planned.error.clone() {
        return Err(Stop::Error { kind, message });
    }
    if let Some(reason) = &planned.skip {
        return Err(Stop::Skip(reason.clone()));
    }
    forget_earlier(folders.guest)?;
    let task = Task::new(planned, boot);
    let spec = spec(plan, planned, &task, folders)?;
    let kind = planned.work.kind();
    let died = |error: &VmError| kind.died(error.kind, &error.message);
    let started = match planned.backend {
        // Its kernel has booted.
        Backend::None => Vm::start(&spec).map_err(|error| NotStarted::of(error, cell)),
        Backend::Qemu | Backend::VirtmeNg => {
            start(&RunDir::new(&plan.run_dir), &spec, folders, cell)
        }
    };
    let (mut vm, facts) = match started {
        Ok(started) => started,
        // Under the exact clock a guest runs the test before it answers.
        Err(NotStarted { stop, error: Some(error) })
            if error.booted && task.clock == Clock::Exact =>
        {
            return died(&error).ok_or(stop);
        }
        Err(NotStarted { stop, .. }) => return Err(stop),
    };
    // A guest with orders answers only after it has done them, so its boot time is unknown.
    if task.clock == Clock::Free {
        cell.boot_ms = Some(vm.boot_time().as_millis() as u64);
        cell.restored = vm.restored();
    }
    let mut result = measure(&mut vm, facts, planned, &task, folders, cell);
    if matches!(result, Err(Stop::Error { .. })) {
        cell.console_tail = vm.console_tail();
    }
    if let Err(Stop::Error { kind: how, message }) = &result
        && let Some(measured) = kind.died(*how, message)
    {
        result = Ok(measured);
    }
    add_starvation(cell, vm.starved());
    // The kernel may replace a clock source that fails.
    if let (Clock::Free, Some(name)) = (task.clock, vm.clock_source()) {
        cell.add_clock_source(&name);
        vm.give_up_failed_clock(&spec);
    }
    match vm.power_off(Duration::from_secs(5)) {
        // The kernel died while it measured, and the console reported it after the answer. That
        // reason is better than any answer.
        Err(error) if error.kind.is_kernel_death() || error.doubted => {
            cell.console_tail.clone_from(&error.console_tail);
            died(&error).ok_or_else(|| error.into())
        }
        Ok(warnings) => {
            allow(cell, planned, warnings);
            result
        }
        // The measurement is valid even if powering off fails. Dropping the VM kills it.
        Err(_) => result,
    }
}

/// Adds the time for which the host let one of the cell's guests wait.
fn add_starvation(cell: &mut Cell, waited: Duration) {
    if given::can_tell() {
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        cell.starved_ms = Some(cell.starved_ms.unwrap_or(0).saturating_add(waited));
    }
}

/// Keeps allowed warnings, each once, with the suite's reason.
fn allow(cell: &mut Cell, planned: &PlannedCell, warnings: Vec<String>) {
    for warning in warnings {
        let allowance = planned.allow.iter().find(|one| warning.contains(&one.warning));
        let reason = allowance.map_or_else(String::new, |one| one.reason.clone());
        let allowed = Allowed { warning, reason };
        if !cell.allowed.contains(&allowed) {
            cell.allowed.push(allowed);
        }
    }
}

/// Describes the guest to start. If the guest has orders, writes a root with them.
fn spec(
    plan: &Plan<String>,
    planned: &PlannedCell,
    task: &Task,
    folders: Folders,
) -> Result<Spec, Stop> {
    let arch = planned.arch;
    let (emulator, what) = match planned.backend {
        Backend::None => (plan.here.as_ref(), "agent for this machine".to_owned()),
        Backend::Qemu | Backend::VirtmeNg => {
            (plan.emulators.get(&arch), format!("QEMU for {arch} guests"))
        }
    };
    let emulator = emulator.ok_or_else(|| Stop::harness(format!("the plan names no {what}")))?;
    let mut initrd = planned.initrd.clone();
    let boot = Duration::from_secs(planned.boot_seconds.into());
    let mut deadlines = Deadlines { boot, ..Deadlines::default() };
    if let Some(orders) = &task.orders {
        let root = std::mem::replace(&mut initrd, folders.guest.join(OWN_ROOT));
        vm::initramfs::with_orders(&root, orders, &initrd).map_err(|error| {
            Stop::harness(format!("failed to write {}: {error}", initrd.display()))
        })?;
        deadlines.boot += task.silence;
    }
    // A test that does not need the plugin may still ask it for records.
    let records = planned.work.kind().uses_plugin() || planned.deliver;
    Ok(Spec {
        qemu: emulator.qemu.clone(),
        arch,
        accel: planned.accel,
        clock: task.clock,
        kernel: planned.kernel_image.clone(),
        initrd,
        launcher: emulator.launcher.clone(),
        cpus: planned.cpus,
        memory_mib: planned.memory_mib,
        append: planned.append.clone(),
        snapshots: planned.snapshots.clone(),
        plugin: emulator.plugin.clone().filter(|_| planned.accel == Accel::Tcg && records),
        lbr: emulator.lbr,
        played: planned.played(),
        modelled: planned.modelled(),
        cpu: planned.cpu.clone(),
        allow: planned.allow.iter().map(|allowance| allowance.warning.clone()).collect(),
        dir: folders.guest.to_owned(),
        deadlines,
    })
}

/// Why there is no guest. The error is the guest's, if there was one.
struct NotStarted {
    stop: Stop,
    error: Option<VmError>,
}

impl NotStarted {
    /// Keeps in the cell what the guest left.
    fn of(error: VmError, cell: &mut Cell) -> NotStarted {
        cell.console_tail.clone_from(&error.console_tail);
        add_starvation(cell, error.starved);
        NotStarted { stop: error.clone().into(), error: Some(error) }
    }
}

impl From<Stop> for NotStarted {
    fn from(stop: Stop) -> NotStarted {
        NotStarted { stop, error: None }
    }
}

/// Starts a guest, unless the kernel is known not to boot.
fn start(
    run_dir: &RunDir,
    spec: &Spec,
    folders: Folders,
    cell: &mut Cell,
) -> Result<(Vm, Facts), NotStarted> {
    let kernel = boots::Kernel::of(run_dir, &cell.id);
    let turn = kernel.turn(spec.clock).map_err(|error| {
        Stop::harness(format!("failed to ask whether the kernel boots: {error}"))
    })?;
    let dead = |boot: &Cell, cell: &mut Cell| {
        if cell.id.test == Test::Boot {
            cell.console_tail.clone_from(&boot.console_tail);
        }
        let (kind, message) = boots::outcome(boot, &cell.id);
        Stop::Error { kind, message }
    };
    if let boots::Turn::Dead(boot) = &turn {
        return Err(dead(boot, cell).into());
    }
    let started = Instant::now();
    let vm = Vm::start(spec);
    if spec.clock == Clock::Exact {
        // The root's parts are kept elsewhere. If this fails, the file just stays.
        let _ = fs::remove_file(&spec.initrd);
    }
    match vm {
        Ok(started) => {
            kernel.has_booted();
            Ok(started)
        }
        Err(error) => {
            let took = started.elapsed().as_millis() as u64;
            if error.booted {
                kernel.has_booted();
            } else if let Some(boot) = kernel.failed(&error, spec.clock, folders.guest, took) {
                return Err(dead(&boot, cell).into());
            }
            Err(NotStarted::of(error, cell))
        }
    }
}

fn measure(
    vm: &mut Vm,
    facts: Facts,
    planned: &PlannedCell,
    task: &Task,
    folders: Folders,
    cell: &mut Cell,
) -> Result<Measurement, Stop> {
    let unmet = [&facts.not_taken[..], &facts.missing].concat();
    if !unmet.is_empty() {
        let reason = unmet.join("; ");
        cell.guest = Some(facts);
        return Err(Stop::Skip(reason));
    }
    if facts.btf_bytes == 0 && cell.id.test != Test::Boot {
        return Err(Stop::Error {
            kind: ErrorKind::Guest,
            message: "the kernel has no BTF (/sys/kernel/btf/vmlinux): build it with \
                      CONFIG_DEBUG_INFO_BTF=y"
                .to_owned(),
        });
    }
    let lacking = cpu::lacking(&planned.shows, &facts.mitigations);
    // Under the exact clock a guest has another clock source. The other facts are the same.
    match &cell.guest {
        None => cell.guest = Some(facts),
        Some(_) if task.clock == Clock::Free => cell.add_clock_source(&facts.clocksource),
        Some(_) => {}
    }
    if let Some(lacking) = lacking {
        return Err(Stop::Skip(format!("the guest does not have this mitigation: {lacking}")));
    }
    let &Task { clock, is_last, .. } = task;
    let mut booted = Booted {
        vm,
        planned,
        clock,
        is_last,
        folder: folders.guest,
        cell: folders.cell,
        traces: 0,
        counts: 0,
        remarks: Vec::new(),
    };
    let result = planned.work.kind().measure(&mut booted);
    let result = result.and_then(|measured| booted.require_only_asked().map(|()| measured));
    for remark in booted.remarks {
        if !cell.remarks.contains(&remark) {
            cell.remarks.push(remark);
        }
    }
    result
}
