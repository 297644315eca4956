// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a storm: threads attach, hit and detach at the same time. At quiet moments it checks that
//! every attached program runs as often as its functions are hit, and at the end that nothing is
//! left.

mod counters;
mod field;
mod iterator;
mod leaks;
mod module;
mod state;

use crate::known::Known;
use field::{Field, Live};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use tramplab_protocol::Mechanism;
use tramplab_protocol::message::GuestError;
use tramplab_protocol::storm::{
    Action, Attached, SLOTS, Step, Storm, SurviveReply, SurviveRequest, Wrong,
};

/// How often the storm runs, unless the kernel fails before. The first time fills caches; memory
/// that grows at each later time is leaked.
const TIMES: u32 = 3;
/// Hits of a check at a quiet moment.
const PULLS: u64 = 2;
/// Wrong counts that are told.
const MOST_WRONG: usize = 16;

pub fn run(request: &SurviveRequest, known: &Known) -> Result<SurviveReply, GuestError> {
    let SurviveRequest { storm, module } = request;
    if let Some((_, why)) = storm.misfit() {
        return Err(GuestError::Failed(why));
    }
    let field = Field::prepare(storm, module.as_deref(), known)?;
    let unscanned = |error| GuestError::Failed(format!("failed to have kmemleak scan: {error}"));
    leaks::forget().map_err(unscanned)?;
    let run = Run { storm, field, tally: Tally::of(storm) };
    let uncounted = |error: io::Error| match error.kind() {
        io::ErrorKind::Unsupported => GuestError::Unsupported(format!("it has {error}")),
        _ => GuestError::Failed(format!("failed to count what the storm left: {error}")),
    };
    let mut states = vec![state::settled(None).map_err(uncounted)?];
    let mut times = 0;
    while times < TIMES {
        run.once()?;
        run.field.restore_module()?;
        states.push(state::settled(states.first()).map_err(uncounted)?);
        times += 1;
        // A kernel that has failed needs no further proof, and each takes a long wait.
        if state::has_more(&states[times as usize], &states[0]) || run.tally.has_wrong() {
            break;
        }
    }
    let kmemleak = leaks::found().map_err(unscanned)?;
    let Run { field, tally, .. } = run;
    let attached = tally.attached(&field);
    if let Some(never) = attached.iter().find(|a| a.links == 0 && a.refused > 0) {
        let reason = never.reason.as_deref().unwrap_or("no reason");
        let message = format!("no program was attached by {}: {reason}", never.mechanism);
        return Err(GuestError::Failed(message));
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(SurviveReply {
        times,
        steps: count(&tally.steps),
        attached,
        runs: field.counters.read()?.iter().sum(),
        updated: count(&tally.updated),
        killed: count(&tally.killed),
        loaded: count(&tally.loaded),
        unloaded: count(&tally.unloaded),
        checked: count(&tally.checked),
        wrong: tally.wrong.into_inner().unwrap_or_else(PoisonError::into_inner),
        states,
        kmemleak,
    })
}

type Slots = [Option<Live>; SLOTS as usize];

struct Run<'a> {
    storm: &'a Storm,
    field: Field,
    tally: Tally,
}

/// The agent's threads have panicked nowhere that matters to the data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run<'_> {
    /// Runs the whole storm, and closes all links.
    fn once(&self) -> Result<(), GuestError> {
        let threads = self.storm.threads();
        let slots: Vec<Mutex<Slots>> = (0..threads).map(|_| Mutex::default()).collect();
        let barrier = Barrier::new(threads as usize + 1);
        let failed: Mutex<Option<GuestError>> = Mutex::new(None);
        let fail = |error: GuestError| {
            lock(&failed).get_or_insert(error);
        };
        thread::scope(|scope| {
            for thread in 0..threads {
                let (slots, barrier, fail) = (&slots[thread as usize], &barrier, &fail);
                scope.spawn(move || {
                    spread(thread);
                    for round in 0..self.storm.rounds() {
                        let mut slots = lock(slots);
                        for step in self.steps(round, thread) {
                            // A thread that ends early would make the others wait for ever.
                            let done =
                                catch_unwind(AssertUnwindSafe(|| self.step(step, &mut slots)));
                            done.unwrap_or_else(|_| {
                                fail(GuestError::Failed(format!("the agent panicked at `{step}`")));
                            });
                        }
                        drop(slots);
                        barrier.wait();
                        // The check of this quiet moment.
                        barrier.wait();
                    }
                });
            }
            for round in 0..self.storm.rounds() {
                barrier.wait();
                if let Err(error) = self.check(round, &slots) {
                    fail(error);
                }
                barrier.wait();
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn steps(&self, round: u32, thread: u32) -> impl Iterator<Item = &Step> {
        self.storm.steps.iter().filter(move |step| (step.round, step.thread) == (round, thread))
    }

    fn step(&self, step: &Step, slots: &mut Slots) {
        let Tally { steps, updated, killed, loaded, unloaded, .. } = &self.tally;
        let add = |counter: &AtomicU64, count: u64| counter.fetch_add(count, Ordering::Relaxed);
        add(steps, 1);
        match step.action {
            Action::Attach { slot, mechanism, first, functions } => {
                let counter = step.thread * SLOTS + slot;
                let Some(attached) = self.field.attach(mechanism, first, functions, counter) else {
                    return;
                };
                self.tally.note(mechanism, attached.as_ref().err().map(ToString::to_string));
                if let Ok(live) = attached {
                    // The old link is closed after the new one is made, as programs that reload do.
                    slots[slot as usize] = Some(live);
                }
            }
            Action::Detach { slot } => slots[slot as usize] = None,
            Action::Hit { times } => (0..times).for_each(|_| self.field.hit_all()),
            Action::Update { slot } => {
                let link = slots[slot as usize].as_ref().map(|live| &live.link);
                add(updated, self.field.update(link));
            }
            Action::Kill { slot } => {
                let live = slots[slot as usize].take();
                add(killed, u64::from(self.field.kill(live)));
            }
            Action::LoadModule => {
                add(loaded, u64::from(self.field.load_module()));
            }
            Action::UnloadModule => {
                add(unloaded, u64::from(self.field.unload_module()));
            }
        }
    }

    /// Compares the runs of each attached program with the hits. No other thread runs a step.
    fn check(&self, round: u32, slots: &[Mutex<Slots>]) -> Result<(), GuestError> {
        let before = self.field.counters.read()?;
        for _ in 0..PULLS {
            self.field.hit_known()?;
        }
        let after = self.field.counters.read()?;
        for (thread, slots) in slots.iter().enumerate() {
            for (slot, live) in lock(slots).iter().enumerate() {
                let counter = thread * SLOTS as usize + slot;
                let ran = after[counter].wrapping_sub(before[counter]);
                self.tally.check(round, live.as_ref(), ran);
            }
        }
        Ok(())
    }
}

/// Moves the thread to a CPU of its own, if there are enough. It inherited the agent's.
fn spread(thread: u32) {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    let cpus = online.ok().flatten().map_or(cpus, |count| count as usize).max(1);
    let mut set = nix::sched::CpuSet::new();
    let is_set = set.set(thread as usize % cpus);
    // The storm is one on any CPU.
    let _ =
        is_set.and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
}

/// Numbers of the storm so far.
struct Tally {
    steps: AtomicU64,
    updated: AtomicU64,
    killed: AtomicU64,
    loaded: AtomicU64,
    unloaded: AtomicU64,
    checked: AtomicU64,
    attached: Mutex<Vec<Attached>>,
    wrong: Mutex<Vec<Wrong>>,
}

impl Tally {
    fn of(storm: &Storm) -> Tally {
        let of =
            |mechanism| Attached { mechanism, links: 0, refused: 0, reason: None, lacking: None };
        let zero = || AtomicU64::new(0);
        Tally {
            steps: zero(),
            updated: zero(),
            killed: zero(),
            loaded: zero(),
            unloaded: zero(),
            checked: zero(),
            attached: Mutex::new(storm.mechanisms().into_iter().map(of).collect()),
            wrong: Mutex::default(),
        }
    }

    /// Notes an attempt to attach. `refused` has the kernel's reason.
    fn note(&self, mechanism: Mechanism, refused: Option<String>) {
        let mut all = lock(&self.attached);
        let Some(found) = all.iter_mut().find(|one| one.mechanism == mechanism) else { return };
        match refused {
            None => found.links += 1,
            Some(reason) => {
                found.refused += 1;
                found.reason = Some(reason);
            }
        }
    }

    fn has_wrong(&self) -> bool {
        !lock(&self.wrong).is_empty()
    }

    /// A slot without a link must not count.
    fn check(&self, round: u32, live: Option<&Live>, ran: u64) {
        self.checked.fetch_add(1, Ordering::Relaxed);
        let (expected, at_least) =
            live.map_or((0, false), |live| (live.runs * PULLS, live.at_least));
        if ran == expected || (at_least && ran > expected) {
            return;
        }
        let mut wrong = lock(&self.wrong);
        if wrong.len() < MOST_WRONG {
            let (mechanism, functions) = match live {
                Some(live) => (Some(live.mechanism), live.functions.clone()),
                None => (None, Vec::new()),
            };
            wrong.push(Wrong { round, mechanism, functions, expected, at_least, ran });
        }
    }

    fn attached(&self, field: &Field) -> Vec<Attached> {
        let mut all = lock(&self.attached).clone();
        for one in &mut all {
            one.lacking = field.lacking(one.mechanism);
        }
        all
    }
}
