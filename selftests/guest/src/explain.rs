// SPDX-License-Identifier: MIT OR Apache-2.0
//! Explains where a round's time goes. It runs rounds like [`crate::attach`], watches each phase,
//! and adds the rounds up.

use crate::budget::now_ns;
use crate::counting::Counting;
use crate::functions;
use crate::kallsyms::Kallsyms;
use crate::known::Known;
use crate::measuring_cpu;
use crate::rounds::{Phase, Prepared, Watch};
use crate::sampling::{Sampler, Tally};
use crate::stat::Stat;
use crate::waiting::Waiting;
use crate::workload;
use nix::time::{ClockId, clock_gettime};
use tramplab_protocol::{
    magic::Magic,
    message::{AttachRequest, Explain, ExplainReply, ExplainRequest, GuestError, PhaseReply},
};

/// Passes of the fixed system calls that are counted. Caches are refilled in some passes only.
const PASSES: u32 = 10;
/// Passes before, after which each takes the same way through the kernel.
const WARM_UP: u32 = 30;

/// Explains the rounds of a request. Also returns the names at the moment when everything was
/// attached.
pub fn explain(
    request: &ExplainRequest,
    prepared: &mut Prepared,
    known: &Known,
) -> Result<(ExplainReply, Kallsyms), GuestError> {
    // Unwatched rounds find the targets that the kernel refuses.
    prepared.settle()?;
    if request.system_calls && (request.how != Explain::Exact || request.attach.rounds != 1) {
        return Err(GuestError::failed("system calls are counted only in one exact round"));
    }
    let mut system_calls = None;
    let (done, [attach, detach]) = match request.how {
        Explain::Sampled => {
            let mut watched = Sampled::new()?;
            let watch = &mut |phase, work: &mut dyn FnMut()| watched.watch(phase, work);
            let done = rounds(&request.attach, prepared, known, watch, &mut || ())?;
            let scheduler =
                done.names.function("__schedule").map(|symbol| symbol.start..symbol.end);
            let phases = watched.finish(scheduler.as_ref())?;
            (done, phases)
        }
        Explain::Exact => {
            let counting = Counting::new(known.symbols()?, known.btf()?)?;
            let mut count = || {
                if request.system_calls {
                    system_calls = Some(count_system_calls(&counting));
                }
            };
            count();
            let mut watched = Exact::new(&counting, Magic::Profile);
            let watch = &mut |phase, work: &mut dyn FnMut()| watched.watch(phase, work);
            let done = rounds(&request.attach, prepared, known, watch, &mut count)?;
            (done, watched.finish())
        }
        Explain::Estimated => {
            let counting = Counting::new(known.symbols()?, known.btf()?)?;
            // Its counts are not read.
            let mut warming = Exact::new(&counting, Magic::Estimate);
            let watch = &mut |phase, work: &mut dyn FnMut()| warming.watch(phase, work);
            prepared.watched_round(watch, &mut || Ok(()))?;
            if prepared.stopped.is_some() {
                return Err(GuestError::failed(
                    "its time budget ended the round that fills caches",
                ));
            }
            let mut watched = Exact::new(&counting, Magic::Estimate);
            let watch = &mut |phase, work: &mut dyn FnMut()| watched.watch(phase, work);
            let done = rounds(&request.attach, prepared, known, watch, &mut || ())?;
            (done, watched.finish())
        }
    };
    let Done { rounds, functions: attached_to, names } = done;
    let AttachRequest { mechanism, functions: wanted, .. } = request.attach;
    let links = if mechanism.is_multi() { wanted.links() } else { attached_to };
    // Reading the list takes time, which no phase has.
    let attached = prepared.targets.chosen.iter().map(|target| &*target.name);
    let is_traced = !mechanism.is_tracepoint() && !mechanism.is_user();
    let list = functions::available().ok().filter(|_| is_traced);
    let places = list.and_then(|list| functions::places(&list, attached));
    let reply = ExplainReply {
        rounds,
        functions: attached_to,
        links,
        attach,
        detach,
        system_calls,
        places,
    };
    Ok((reply, names))
}

/// Counts the fixed system calls. Returns their number.
fn count_system_calls(counting: &Counting) -> u32 {
    let passes = |number| (0..number).map(|_| workload::fixed()).sum();
    let _: u32 = passes(WARM_UP);
    counting.during(Magic::Profile, || passes(PASSES))
}

/// Phases whose instructions the plugin counts.
struct Exact<'a> {
    counting: &'a Counting,
    what: Magic,
    attach: PhaseReply,
    detach: PhaseReply,
}

impl Exact<'_> {
    fn new(counting: &Counting, what: Magic) -> Exact<'_> {
        let (attach, detach) = Default::default();
        Exact { counting, what, attach, detach }
    }

    fn watch(&mut self, phase: Phase, work: &mut dyn FnMut()) -> Result<(), GuestError> {
        let phased = match phase {
            Phase::Attach => &mut self.attach,
            Phase::Detach => &mut self.detach,
        };
        let (wall, cpu) = (now_ns(), cpu_ns());
        self.counting.during(self.what, work);
        phased.cpu_ns += cpu_ns() - cpu;
        phased.wall_ns += now_ns() - wall;
        Ok(())
    }

    fn finish(self) -> [PhaseReply; 2] {
        [self.attach, self.detach]
    }
}

/// The completed rounds.
struct Done {
    rounds: u32,
    functions: u32,
    /// Symbols at the moment when everything was attached, in the last round.
    names: Kallsyms,
}

/// Runs watched rounds. After a round that its budget ended it stops, as rounds of different lists
/// do not add up. Calls `attached` while the targets of a round are attached.
fn rounds(
    request: &AttachRequest,
    prepared: &mut Prepared,
    known: &Known,
    watch: &mut Watch<'_>,
    attached: &mut dyn FnMut(),
) -> Result<Done, GuestError> {
    let mut done = 0;
    loop {
        let mut names = None;
        let functions = prepared.watched_round(watch, &mut || {
            attached();
            // Reading the symbols at least twice takes time, in which a grace period may begin or
            // end. Do it only in the last round. With a budget, any round may be the last.
            if done + 1 == request.rounds || request.seconds.is_some() {
                names = Some(known.names()?);
            }
            Ok(())
        })?;
        done += 1;
        if done == request.rounds || prepared.stopped.is_some() {
            let names = names.expect("read while everything was attached");
            return Ok(Done { rounds: done, functions: functions as u32, names });
        }
    }
}

/// Phases explained by the guest's own means, which work under every accelerator.
struct Sampled {
    thread: u32,
    waiting: Waiting,
    sampler: Sampler,
    attach: Phased,
    detach: Phased,
}

/// The data of a phase, from all rounds.
struct Phased {
    wall_ns: u64,
    cpu_ns: u64,
    tally: Tally,
    stat: Stat,
}

impl Phased {
    fn new() -> Phased {
        Phased { wall_ns: 0, cpu_ns: 0, tally: Tally::default(), stat: Stat::open() }
    }
}

/// The BPF program's number for a phase.
fn number(phase: Phase) -> u32 {
    match phase {
        Phase::Attach => 1,
        Phase::Detach => 2,
    }
}

impl Sampled {
    fn new() -> Result<Sampled, GuestError> {
        let thread = nix::unistd::gettid().as_raw() as u32;
        Ok(Sampled {
            thread,
            waiting: Waiting::attach(thread)?,
            sampler: Sampler::open(measuring_cpu::get() as i32)?,
            attach: Phased::new(),
            detach: Phased::new(),
        })
    }

    fn watch(&mut self, phase: Phase, work: &mut dyn FnMut()) -> Result<(), GuestError> {
        let phased = match phase {
            Phase::Attach => &mut self.attach,
            Phase::Detach => &mut self.detach,
        };
        // Outermost, so that no profile contains the cost of switching it.
        phased.stat.switch(true)?;
        self.sampler.start()?;
        self.waiting.start(number(phase));
        let (wall, cpu) = (now_ns(), cpu_ns());
        work();
        let (cpu, wall) = (cpu_ns() - cpu, now_ns() - wall);
        self.waiting.stop();
        self.sampler.stop()?;
        phased.stat.switch(false)?;
        phased.wall_ns += wall;
        phased.cpu_ns += cpu;
        self.sampler.drain(&mut phased.tally).map_err(GuestError::failed)
    }

    /// Returns the replies for attaching and detaching.
    fn finish(
        self,
        scheduler: Option<&std::ops::Range<u64>>,
    ) -> Result<[PhaseReply; 2], GuestError> {
        let Sampled { thread, waiting, sampler, attach, detach } = self;
        let reply = |phase, Phased { wall_ns, cpu_ns, tally, stat }| {
            Ok::<_, GuestError>(PhaseReply {
                wall_ns,
                cpu_ns,
                waits: waiting.of_phase(number(phase), scheduler)?,
                samples: Some(sampler.finish(tally, thread)),
                counters: stat.read()?,
            })
        };
        Ok([reply(Phase::Attach, attach)?, reply(Phase::Detach, detach)?])
    }
}

/// Nanoseconds on a CPU, by the scheduler's account of this thread.
fn cpu_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}
