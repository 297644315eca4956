// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the cells of a job: boots guests, measures, judges, and leaves each result in its cell's folder.

use super::{
    Plan, PlannedCell, attach, boots, budget,
    plan::{AttachParameters, Job, Parameters},
    selftests,
};
use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};
use tramplab_analysis::branch::{self, Branch, DeliveryError, Filter, HardwareError, Model, Symbols};
use tramplab_host::runs::{RunDir, StoreError, running::OWN_ROOT};
use tramplab_model::run::{Accel, Cell, Clock, ErrorKind, LbrWaste, Measurement, Outcome, Test, Trigger};
use tramplab_protocol::{
    Mechanism, Point,
    message::{AttachRequest, Command, Facts, GuestError, LbrWasteRequest, Response, TriggerRequest},
    trace::{self, Trace},
};
use tramplab_vm as vm;
use tramplab_vm::{Deadlines, Spec, Vm, VmError};

/// Triggers before the recorded ones.
const WARMUP: u32 = 3;
/// Triggers per timed round, and rounds, each with the program attached and without: a second in all under TCG.
const TIMED: u32 = 2000;
const TIMED_ROUNDS: u32 = 7;
const QUICK: Duration = Duration::from_secs(60);
/// Attaching and detaching in each round waits for RCU.
const TRIGGER: Duration = Duration::from_secs(120);
/// Detaching single links waits for an RCU tasks grace period each: minutes for a thousand.
pub(super) const ATTACH: Duration = Duration::from_secs(3600);

/// Why a cell has no measurement.
pub(super) enum Stop {
    Skip(String),
    Error { kind: ErrorKind, message: String },
}

impl Stop {
    pub fn harness(message: String) -> Stop {
        Stop::Error { kind: ErrorKind::Harness, message }
    }
}

impl From<VmError> for Stop {
    fn from(error: VmError) -> Stop {
        Stop::Error { kind: error.kind, message: error.message }
    }
}

impl From<GuestError> for Stop {
    fn from(error: GuestError) -> Stop {
        match error {
            GuestError::Unsupported(reason) => Stop::Skip(vm::brief(reason)),
            GuestError::Failed(message) => {
                Stop::Error { kind: ErrorKind::Guest, message: vm::brief(message) }
            }
        }
    }
}

/// Runs the job's cells and writes their `cell.json`, whatever happened. Where a cell boots several guests, the cells
/// take turns, in an order that is turned around each time: what drifts on the host then falls on all alike.
pub fn run_and_save(plan: &Plan<String>, job: &Job) -> Result<Vec<Cell>, StoreError> {
    let run_dir = RunDir::new(&plan.run_dir);
    let mut cells: Vec<Running> = job.cells.iter().map(Running::new).collect();
    let boots = job.cells.iter().map(PlannedCell::boots).max().unwrap_or(0);
    let mut ended = Vec::new();
    for boot in 0..boots {
        let mut order: Vec<&mut Running> = cells.iter_mut().collect();
        if boot % 2 == 1 {
            order.reverse();
        }
        for running in order.into_iter().filter(|running| !running.is_over(boot)) {
            running.boot(plan, &run_dir, boot);
            if running.is_over(boot + 1) {
                let cell = running.finished();
                run_dir.save_cell(&cell)?;
                ended.push(cell);
            } else {
                run_dir.save_partial(&running.unfinished())?;
            }
        }
    }
    Ok(ended)
}

/// A cell between its boots.
struct Running<'a> {
    planned: &'a PlannedCell,
    cell: Cell,
    measured: Vec<Measurement>,
    stopped: Option<Stop>,
}

impl<'a> Running<'a> {
    fn new(planned: &'a PlannedCell) -> Running<'a> {
        let cell = Cell::without_result(planned.id.clone(), Outcome::Pass);
        Running { planned, cell, measured: Vec::new(), stopped: None }
    }

    /// After so many boots.
    fn is_over(&self, boots: u32) -> bool {
        self.stopped.is_some() || boots >= self.planned.boots()
    }

    fn boot(&mut self, plan: &Plan<String>, run_dir: &RunDir, boot: u32) {
        let mut folder = run_dir.cell(&self.cell.id);
        if self.planned.boots() > 1 {
            folder.push(format!("boot-{}", boot + 1));
        }
        let started = Instant::now();
        let result = match fs::create_dir_all(&folder) {
            Ok(()) => {
                let own = run_dir.cell(&self.cell.id);
                run(plan, self.planned, boot, Folders { guest: &folder, cell: &own }, &mut self.cell)
            }
            Err(error) => Err(Stop::harness(format!("failed to create {}: {error}", folder.display()))),
        };
        self.cell.duration_ms += started.elapsed().as_millis() as u64;
        match result {
            Ok(measurement) => self.measured.push(measurement),
            Err(stop) => self.stopped = Some(stop),
        }
    }

    /// What there is if no other boot ends: it is kept, and no result.
    fn unfinished(&self) -> Cell {
        let (done, all) = (self.measured.len(), self.planned.boots());
        let message = format!("ended after {done} of {all} boots");
        let outcome = Outcome::Error { kind: ErrorKind::Harness, message };
        Cell { outcome, measurement: merged(self.measured.clone()), ..self.cell.clone() }
    }

    fn finished(&self) -> Cell {
        let mut cell = Cell { measurement: merged(self.measured.clone()), ..self.cell.clone() };
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
        // What some boots measured before one failed is no measurement of the cell.
        if !matches!(cell.outcome, Outcome::Pass | Outcome::Fail { .. }) {
            cell.measurement = None;
        }
        cell
    }
}

/// The boots of one cell as one measurement.
fn merged(measured: Vec<Measurement>) -> Option<Measurement> {
    measured.into_iter().reduce(|all, next| match (all, next) {
        (Measurement::Attach(mut all), Measurement::Attach(next)) => {
            all.boots.extend(next.boots);
            all.exact = all.exact.or(next.exact);
            all.explained.extend(next.explained);
            all.unexplained.extend(next.unexplained);
            Measurement::Attach(all)
        }
        (Measurement::Bench(mut all), Measurement::Bench(next)) => {
            all.boots.extend(next.boots);
            Measurement::Bench(all)
        }
        (all, _) => all,
    })
}

/// Where things are written.
#[derive(Clone, Copy)]
struct Folders<'a> {
    /// By this guest: console, traces.
    guest: &'a Path,
    /// Of the cell, which may have several guests.
    cell: &'a Path,
}

/// What a guest is to do beyond saying what it is.
struct Task {
    clock: Clock,
    /// Of an attach cell or a trigger cell.
    commands: Vec<Command>,
    /// How long the commands may take where they are orders: the guest says nothing before it has done them all.
    silence: Duration,
}

impl Task {
    fn new(planned: &PlannedCell, boot: u32) -> Task {
        let clocks = planned.clocks();
        let clock = clocks[boot as usize];
        match (&planned.id.test, &planned.parameters) {
            (&Test::Attach { mechanism, functions }, Parameters::Attach(parameters)) => {
                let &AttachParameters { rounds, seed, seconds, .. } = parameters;
                let request = AttachRequest { mechanism, functions, rounds, seed, seconds };
                // Once: in the last guest of its clock.
                let last = clocks.get(boot as usize + 1) != Some(&clock);
                let explain = if last { attach::explained_by(parameters, clock) } else { Vec::new() };
                Task { clock, commands: attach::commands(&request, &explain), silence: ATTACH }
            }
            (&Test::Trigger { mechanism, beside }, &Parameters::Trigger { hits, throughput }) => {
                let rounds = if throughput { TIMED_ROUNDS } else { 0 };
                let request =
                    TriggerRequest { mechanism, beside, hits, warmup: WARMUP, timed: TIMED, rounds };
                Task { clock, commands: vec![Command::Trigger(request)], silence: TRIGGER }
            }
            _ => Task { clock, commands: Vec::new(), silence: Duration::ZERO },
        }
    }

    /// What the guest finds in its root, so that nothing reaches it from outside while it measures.
    fn orders(&self) -> Option<Vec<Command>> {
        let facts = std::iter::once(Command::Facts);
        (self.clock == Clock::Exact).then(|| facts.chain(self.commands.iter().cloned()).collect())
    }
}

fn run(
    plan: &Plan<String>,
    planned: &PlannedCell,
    boot: u32,
    folders: Folders,
    cell: &mut Cell,
) -> Result<Measurement, Stop> {
    if let Some(message) = &planned.unbuilt {
        return Err(Stop::Error { kind: ErrorKind::Build, message: message.clone() });
    }
    if let Some(reason) = &planned.skip {
        return Err(Stop::Skip(reason.clone()));
    }
    let arch = planned.id.arch;
    let emulator = plan
        .emulators
        .get(&arch)
        .ok_or_else(|| Stop::harness(format!("the plan names no QEMU for {arch} guests")))?;
    let own_test = matches!(
        planned.parameters,
        Parameters::Bench(_) | Parameters::TestProgs(_) | Parameters::Kselftest { .. }
    );
    let task = Task::new(planned, boot);
    let mut initrd = planned.initrd.clone();
    let mut deadlines = Deadlines::default();
    if let Some(orders) = task.orders() {
        let root = std::mem::replace(&mut initrd, folders.guest.join(OWN_ROOT));
        vm::initramfs::with_orders(&root, &orders, &initrd)
            .map_err(|error| Stop::harness(format!("failed to write {}: {error}", initrd.display())))?;
        deadlines.boot += task.silence;
    }
    let spec = Spec {
        qemu: emulator.qemu.clone(),
        arch,
        accel: planned.id.accel,
        clock: task.clock,
        kernel: planned.kernel_image.clone(),
        initrd: initrd.clone(),
        virtme: emulator.virtme.clone(),
        cpus: planned.cpus,
        memory_mib: planned.memory_mib,
        append: planned.append.clone(),
        snapshots: planned.snapshots.clone(),
        // Nothing is recorded of the tree's own tests, but for the one that asks for records; and all that they do would be slower.
        plugin: emulator
            .plugin
            .clone()
            .filter(|_| planned.id.accel == Accel::Tcg && (!own_test || planned.deliver)),
        lbr: emulator.lbr,
        dir: folders.guest.to_owned(),
        deadlines,
    };
    let run_dir = RunDir::new(&plan.run_dir);
    let kernel = boots::Kernel::of(&run_dir, &planned.id);
    let turn = kernel
        .turn(task.clock)
        .map_err(|error| Stop::harness(format!("failed to ask whether the kernel boots: {error}")))?;
    let dead = |boot: &Cell, cell: &mut Cell| {
        if planned.id.test == Test::Boot {
            cell.console_tail.clone_from(&boot.console_tail);
        }
        let (kind, message) = boots::outcome(boot, &planned.id);
        Stop::Error { kind, message }
    };
    if let boots::Turn::Dead(boot) = &turn {
        return Err(dead(boot, cell));
    }
    let started = Instant::now();
    let vm = Vm::start(&spec);
    if task.clock == Clock::Exact {
        // It holds nothing that is not kept elsewhere. Failing only leaves it there.
        let _ = fs::remove_file(&initrd);
    }
    let (mut vm, facts) = match vm {
        Ok(started) => started,
        Err(error) => {
            let took = started.elapsed().as_millis() as u64;
            if error.booted {
                kernel.has_booted();
            } else if let Some(boot) = kernel.failed(&error, folders.guest, took) {
                return Err(dead(&boot, cell));
            }
            cell.console_tail.clone_from(&error.console_tail);
            return Err(error.into());
        }
    };
    kernel.has_booted();
    drop(turn);
    // The guest that has orders is up when it has done them.
    if task.clock == Clock::Free {
        cell.boot_ms = Some(vm.boot_time().as_millis() as u64);
        cell.restored = vm.restored();
    }
    let result = measure(&mut vm, facts, planned, &task, folders, cell);
    if matches!(result, Err(Stop::Error { .. })) {
        cell.console_tail = vm.console_tail();
    }
    // A clock may fail while it is used.
    if let (Clock::Free, Some(name)) = (task.clock, vm.clock_source()) {
        cell.add_clock_source(&name);
        vm.give_up_failed_clock(&spec);
    }
    match vm.power_off(Duration::from_secs(5)) {
        // It was dying while it measured: the console only came to say so after the answer. A worse answer is no better reason.
        Err(error) if error.kind.is_kernel_death() => {
            cell.console_tail.clone_from(&error.console_tail);
            Err(error.into())
        }
        // The measurement stands even where powering off fails; dropping the VM kills it then.
        _ => result,
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
    if facts.btf_bytes == 0 && planned.id.test != Test::Boot {
        return Err(Stop::Error {
            kind: ErrorKind::Guest,
            message: "the kernel has no BTF (/sys/kernel/btf/vmlinux): build it with CONFIG_DEBUG_INFO_BTF=y"
                .to_owned(),
        });
    }
    // The exact clock's guest has another clock source, and is otherwise the same.
    match &cell.guest {
        None => cell.guest = Some(facts),
        Some(_) if task.clock == Clock::Free => cell.add_clock_source(&facts.clocksource),
        Some(_) => {}
    }
    match (&planned.id.test, &planned.parameters, task.commands.as_slice()) {
        (&Test::LbrWaste { mechanism }, &Parameters::LbrWaste { hits }, _) => {
            lbr_waste(vm, planned, mechanism, hits, folders.guest).map(Measurement::LbrWaste)
        }
        (Test::Attach { .. }, Parameters::Attach(_), commands) => {
            attach::measure(vm, planned, commands, task.clock, folders.guest, folders.cell)
        }
        (&Test::Trigger { mechanism, .. }, Parameters::Trigger { .. }, [command]) => {
            trigger(vm, planned.id.accel, mechanism, command, folders.guest).map(Measurement::Trigger)
        }
        (Test::Boot, Parameters::Boot, _) => Ok(Measurement::Boot),
        (&Test::Bench { benchmark }, Parameters::Bench(parameters), _) => {
            selftests::run::bench(vm, benchmark, parameters, folders.guest).map(Measurement::Bench)
        }
        (&Test::TestProgs { test }, Parameters::TestProgs(parameters), _) => {
            let model = Model::choose(None, planned.id.arch);
            let deliver = planned.deliver.then(|| model.delivered(Filter::of(Branch::Any), model.depth()));
            selftests::run::test_progs(vm, test, parameters, deliver, folders.guest)
                .map(Measurement::TestProgs)
        }
        (&Test::Kselftest { program }, &Parameters::Kselftest { seconds }, _) => {
            selftests::run::kselftest(vm, program, seconds, folders.guest).map(Measurement::Kselftest)
        }
        (&Test::Fault { fault }, Parameters::Fault, _) => {
            vm.request(Command::Inject(fault), QUICK)??;
            Err(Stop::harness(format!("the guest was to fail ({fault:?}), and answered")))
        }
        (test, parameters, _) => {
            Err(Stop::harness(format!("{} does not go with {parameters:?}", test.name())))
        }
    }
}

fn lbr_waste(
    vm: &mut Vm,
    planned: &PlannedCell,
    mechanism: Mechanism,
    hits: u32,
    folder: &Path,
) -> Result<LbrWaste, Stop> {
    let arch = planned.id.arch;
    let model = Model::choose(None, arch);
    let (filter, depth) = (Filter::of(Branch::Any), model.depth());
    let deliver = planned.deliver.then(|| model.delivered(filter, depth));
    let hardware = if planned.is_hardware() { branch::hardware::events() } else { Vec::new() };
    let request = LbrWasteRequest { mechanism, hits, warmup: WARMUP, deliver, hardware };
    let reply = match vm.request(Command::LbrWaste(request), QUICK)?? {
        Response::LbrWaste(reply) => reply,
        other => return Err(unexpected(&other)),
    };
    require_asked((mechanism, hits), (reply.mechanism, reply.hits), &reply.points)?;
    let stop = |message| Stop::Error { kind: ErrorKind::Trace, message };
    if planned.is_hardware() {
        let error = |error: HardwareError| stop(format!("{error}; --branches virtual does without"));
        branch::hardware::depth(&reply).map_err(error)?;
        let symbols = resolve_addresses(vm, branch::hardware::addresses(&reply))?;
        vm.request(Command::Release, QUICK)??;
        return branch::hardware_waste(&reply, &symbols).map_err(error);
    }
    let trace = read_trace(folder)?;
    let symbols = resolve(vm, &trace)?;
    vm.request(Command::Release, QUICK)??;
    let mut waste =
        branch::lbr_waste(arch, &trace, &symbols, &reply).map_err(|error| stop(error.to_string()))?;
    if planned.deliver {
        let delivered = branch::delivered(model, filter, depth, &trace, &symbols, &reply);
        waste.delivered = Some(delivered.map_err(|error| match error {
            DeliveryError::NoCall => Stop::Skip(error.to_string()),
            _ => stop(error.to_string()),
        })?);
    }
    Ok(waste)
}

fn trigger(
    vm: &mut Vm,
    accel: Accel,
    mechanism: Mechanism,
    command: &Command,
    folder: &Path,
) -> Result<Trigger, Stop> {
    let reply = match vm.request(command.clone(), TRIGGER)?? {
        Response::Trigger(reply) => reply,
        other => return Err(unexpected(&other)),
    };
    if let Command::Trigger(asked) = command {
        require_asked((mechanism, asked.hits), (reply.mechanism, reply.hits), &reply.points)?;
    }
    let cost = match accel {
        // No plugin counts there: what is left is the clock.
        Accel::Kvm => None,
        Accel::Tcg => {
            let trace = read_trace(folder)?;
            let symbols = resolve(vm, &trace)?;
            let cost = branch::trigger_cost(&trace, &symbols, &reply)
                .map_err(|error| Stop::Error { kind: ErrorKind::Trace, message: error.to_string() })?;
            Some(cost)
        }
    };
    vm.request(Command::Release, QUICK)??;
    Ok(Trigger {
        mechanism,
        function: reply.function,
        cost,
        timed: reply.timed,
        attached_ns: reply.attached_ns,
        detached_ns: reply.detached_ns,
    })
}

/// What is done with a trace takes as long as the guest says that it has hits: it says what it was asked for, or nothing that counts.
fn require_asked(asked: (Mechanism, u32), told: (Mechanism, u32), points: &[Point]) -> Result<(), Stop> {
    if asked == told && points == asked.0.points() {
        return Ok(());
    }
    let message = format!(
        "the guest was asked for {} hits of {}, and answers of {} of {} at {} points",
        asked.1,
        asked.0,
        told.1,
        told.0,
        points.len()
    );
    Err(Stop::Error { kind: ErrorKind::Protocol, message })
}

fn read_trace(folder: &Path) -> Result<Trace, Stop> {
    let path = trace::file_name(folder, 0);
    let error = |message| Stop::Error { kind: ErrorKind::Trace, message };
    Trace::decode(&of_plugin(folder, &path, "trace")?).map_err(|e| error(format!("{}: {e}", path.display())))
}

/// A file that the plugin has written.
pub(super) fn of_plugin(folder: &Path, path: &Path, what: &str) -> Result<Vec<u8>, Stop> {
    fs::read(path).map_err(|error| {
        let message = match error.kind() {
            io::ErrorKind::NotFound => {
                let words = vm::last_words(&folder.join("qemu.log"));
                let words = words.as_deref().unwrap_or("none");
                format!("the plugin left no {what}; QEMU's last words: {words}")
            }
            _ => format!("failed to read {}: {error}", path.display()),
        };
        Stop::Error { kind: ErrorKind::Trace, message }
    })
}

/// Names for every address of the trace, while what is attached still is.
fn resolve(vm: &mut Vm, trace: &Trace) -> Result<Symbols, Stop> {
    resolve_addresses(vm, branch::symbols::addresses(trace))
}

/// Addresses per request: the answer may have a name for each, and a message has its limit.
const RESOLVED_AT_ONCE: usize = 1 << 14;

pub(super) fn resolve_addresses(vm: &mut Vm, addresses: Vec<u64>) -> Result<Symbols, Stop> {
    let mut found = Vec::new();
    for some in addresses.chunks(RESOLVED_AT_ONCE) {
        match vm.request(Command::Resolve { addresses: some.to_vec() }, QUICK)?? {
            Response::Resolve { symbols } => found.extend(symbols),
            other => return Err(unexpected(&other)),
        }
    }
    Ok(found.into_iter().collect())
}

pub(super) fn unexpected(response: &Response) -> Stop {
    let message = format!("the guest's answer does not fit: {}", vm::shown(response));
    Stop::Error { kind: ErrorKind::Protocol, message }
}
