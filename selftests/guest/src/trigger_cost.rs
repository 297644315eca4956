// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures trigger cost: hits a program against the clock, attached and detached in turns, then
//! with the recorder armed. Only the trace shows that the program ran: an empty one counts nothing.
//! If asked for, the plugin also counts events of a modelled CPU: before attaching, and at the end.
//! On the user's own machine, perf counts the timed hits.

use crate::beside;
use crate::bpf::{Link, Misses};
use crate::buffers::Buffers;
use crate::counting::Counting;
use crate::hit_counters::{HitCounters, With};
use crate::hits;
use crate::kallsyms::Kallsyms;
use crate::known::Known;
use crate::link::Heartbeat;
use crate::own::{self, Measured};
use crate::tail_calls::Loaded;
use crate::trigger::{Hit, Recording, Trigger};
use crate::workload;
use std::iter;
use std::os::fd::AsFd;
use std::time::Instant;
use tramplab_protocol::estimate::HIT_ROUNDS;
use tramplab_protocol::magic::Magic;
use tramplab_protocol::message::{GuestError, TriggerReply, TriggerRequest};

/// Hits before those whose events are counted. They fill the modelled caches and teach its
/// predictors: a return stack and the targets of branches settle within a few.
const WARM: u32 = 200;
const ROUNDS: usize = HIT_ROUNDS as usize;

/// The program with its link, and the tracers beside it. Dropping them detaches and removes
/// them from kallsyms.
#[derive(Debug)]
pub struct Attached {
    _link: Link,
    _program: Loaded,
    _beside: beside::Attached,
}

/// Runs the measurement. The program stays attached while the second value lives. The third value
/// holds the names at that moment.
pub fn measure(
    request: &TriggerRequest,
    known: &Known,
    heartbeat: Option<&Heartbeat>,
) -> Result<(TriggerReply, Attached, Kallsyms), GuestError> {
    let mechanism = request.mechanism;
    let measured = Measured::prepare(request.program.as_ref())?;
    let named = request.function.as_deref();
    let (own, command) = (request.program.as_ref(), request.command.as_deref());
    let Hit { method, target, trigger, function } =
        hits::prepare(mechanism, named, command, own, known, heartbeat)?;
    let beside = beside::attach(request.beside, mechanism, &target, known)?;
    let program = measured.load(method, &target).map_err(|error| measured.refusal(&error))?;
    let attach = || {
        let link = method.link(program.as_fd(), &target);
        link.map_err(|error| beside.refusal(mechanism, &target, error))
    };
    // A round has about as many hits as asked for, and at least one trigger.
    let buffers = measured.buffers()?;
    let pulls_of = |hits: u32| (hits / trigger.hits()).max(1);
    let pulls = pulls_of(request.timed);
    let timed = || time(&trigger, request.warmup, pulls, &buffers, heartbeat);

    let mut counters = HitCounters::open();
    let mut count_events =
        |with| counters.count(with, heartbeat, || trigger.pull_all(pulls, &buffers));

    // A process that starts between hits costs far more than a hit, and differs each time.
    let estimated =
        if request.estimated > 0 && trigger.is_timed() { pulls_of(request.estimated) } else { 0 };
    let counting = match estimated {
        0 => None,
        _ => Some(Counting::new(known.symbols()?, known.btf()?)?),
    };
    let estimate = || {
        let Some(counting) = &counting else { return Ok(()) };
        let _held = heartbeat.map(Heartbeat::hold);
        let warm = iter::once(pulls_of(WARM)).chain(iter::repeat_n(estimated, ROUNDS));
        let warm = warm.map(|pulls| (Magic::Estimate, pulls));
        for (magic, pulls) in iter::once((Magic::EstimateCold, 1)).chain(warm) {
            // The plugin ends the counting before once this enters the kernel, and refuses another
            // until then.
            workload::sched_yield();
            count(counting, magic, &trigger, pulls, &buffers)?;
        }
        Ok::<_, GuestError>(())
    };

    // Before the first attach: later the function's entry was patched, and keeps what that leaves.
    if counting.is_some() {
        // The kernel patches some code when it first runs.
        trigger.pull_all(request.warmup, &buffers)?;
    }
    estimate()?;
    let mut link = attach()?;
    let (mut attached_ns, mut detached_ns) = (Vec::new(), Vec::new());
    let mut missed = Misses::default();
    let mut detach = |link: Link| {
        missed = missed.and_of_next_link(Misses::read(program.as_fd(), &link)?);
        drop(link);
        Ok::<_, GuestError>(())
    };
    let rounds = if trigger.is_timed() { request.rounds } else { 0 };
    for round in 0..rounds {
        // Rounds alternate the order, so each begins in the state in which the one before ended.
        if round % 2 == 0 {
            attached_ns.push(timed()?);
            count_events(With::Program)?;
            detach(link)?;
            detached_ns.push(timed()?);
            count_events(With::Nothing)?;
            link = attach()?;
        } else {
            detach(link)?;
            detached_ns.push(timed()?);
            count_events(With::Nothing)?;
            link = attach()?;
            attached_ns.push(timed()?);
            count_events(With::Program)?;
        }
    }
    // Last, because each attach may make another trampoline; only the final one's addresses
    // resolve.
    trigger.pull_all(request.warmup, &buffers)?;
    let recorded = trigger.pulls(request.hits);
    trigger.record(recorded, &buffers, heartbeat, Recording::Accesses, || (), || ())?;
    estimate()?;

    let empty = measured.empty_maps();
    missed = missed.and_of_next_link(Misses::read(program.as_fd(), &link)?);
    // Read the names again: before, the program did not exist.
    let names = known.names()?;
    let reply = TriggerReply {
        mechanism,
        function,
        trigger: trigger.found(),
        others: beside.others.clone(),
        replacement: beside.replacement.clone(),
        points: mechanism.points().to_vec(),
        program: own::symbol(program.as_fd(), &names)?,
        hits: recorded * trigger.hits(),
        attached_ns,
        detached_ns,
        timed: pulls * trigger.hits(),
        estimated: estimated * trigger.hits(),
        counters: counters.finish(),
        remarks: [measured.remarks(), empty, missed.remarks()].concat(),
    };
    Ok((reply, Attached { _link: link, _program: program, _beside: beside }, names))
}

/// Counts the events of `pulls` triggers. All run the same code: another copy of the loop would be
/// cold in the modelled caches and predictors.
#[inline(never)]
fn count(
    counting: &Counting,
    magic: Magic,
    trigger: &Trigger,
    pulls: u32,
    buffers: &Buffers,
) -> Result<(), GuestError> {
    counting.during(magic, || trigger.pull_all(pulls, buffers))
}

/// Nanoseconds of `pulls` triggers. Warm-up ones come first, which run into code that was just
/// patched.
fn time(
    trigger: &Trigger,
    warmup: u32,
    pulls: u32,
    buffers: &Buffers,
    heartbeat: Option<&Heartbeat>,
) -> Result<u64, GuestError> {
    let _held = heartbeat.map(Heartbeat::hold);
    trigger.pull_all(warmup, buffers)?;
    let start = Instant::now();
    trigger.pull_all(pulls, buffers)?;
    Ok(start.elapsed().as_nanos() as u64)
}
