// SPDX-License-Identifier: MIT OR Apache-2.0
//! One guest of an attach cell: its rounds against the clock, and a further one that is explained.

use super::{
    cell::{ATTACH, Stop, of_plugin, resolve_addresses, unexpected},
    plan::{AttachParameters, PlannedCell},
};
use sha2::{Digest, Sha256};
use std::{fs, path::Path};
use tramplab_analysis::profile::{How, Phase, Profile, Summary, Thread, count};
use tramplab_model::run::{Accel, Attach, AttachBoot, Clock, ErrorKind, Measurement};
use tramplab_protocol::{
    counts::{self, Counts},
    message::{AttachReply, AttachRequest, Command, Counter, Explain, ExplainRequest, PhaseReply, Response},
};
use tramplab_vm::{Vm, brief};

/// Functions of a summary; the whole profile is in its file.
const COSTS: usize = 40;
const WAITS: usize = 20;
/// The list of what was attached to, a name per line, in the guest's folder.
const LIST: &str = "functions.txt";

/// What is asked of this guest, in this order: under the exact clock these are its orders.
pub fn commands(request: &AttachRequest, explain: &[Explain]) -> Vec<Command> {
    let explained = |&how: &Explain| {
        // Exact counts are the same in every round; samples are the more the better.
        let rounds = if how == Explain::Exact { 1 } else { request.rounds };
        Command::Explain(ExplainRequest { attach: AttachRequest { rounds, ..request.clone() }, how })
    };
    std::iter::once(Command::Attach(request.clone())).chain(explain.iter().map(explained)).collect()
}

/// How a round is explained in a guest with this clock.
pub fn explained_by(parameters: &AttachParameters, clock: Clock) -> Vec<Explain> {
    let wanted = |how| match how {
        // Where there is an exact clock, so that interrupts come at the same places as well.
        Explain::Exact => parameters.clock.exact() == (clock == Clock::Exact),
        // Where the host's time passes, as for any user of perf.
        Explain::Sampled => parameters.clock.free() == (clock == Clock::Free),
    };
    parameters.explain.iter().copied().filter(|&how| wanted(how)).collect()
}

/// Measures in a guest; `folder` is where its plugin writes, `cell` the cell's.
pub fn measure(
    vm: &mut Vm,
    planned: &PlannedCell,
    commands: &[Command],
    clock: Clock,
    folder: &Path,
    cell: &Path,
) -> Result<Measurement, Stop> {
    let (mut boot, mut explained, mut unexplained) = (None, Vec::new(), Vec::new());
    for command in commands {
        match (command, vm.request(command.clone(), ATTACH)?) {
            (Command::Attach(asked), Ok(Response::Attach(reply))) => {
                require_asked(asked, &reply)?;
                let still_attached = reply.stopped.is_some_and(|stopped| stopped.detached < stopped.attached);
                boot = Some(keep(reply, folder)?);
                if still_attached && commands.len() > 1 {
                    unexplained.push(
                        "the links that its time budget left over would have been explained along".to_owned(),
                    );
                    break;
                }
            }
            (Command::Explain(ExplainRequest { how, .. }), Ok(Response::Explain(reply))) => {
                let (rounds, attached) = (reply.rounds, reply.functions);
                let phases = [(Phase::Attach, reply.attach), (Phase::Detach, reply.detach)];
                for (number, (phase, reply)) in phases.into_iter().enumerate() {
                    let made = Made { cell, planned, clock, phase, rounds, attached };
                    explained.push(match how {
                        Explain::Exact => exact(vm, &made, &reply, number as u64, folder)?,
                        Explain::Sampled => sampled(vm, &made, &reply)?,
                    });
                }
            }
            (_, Ok(other)) => return Err(unexpected(&other)),
            // The times stand without it.
            (_, Err(error)) if boot.is_some() => unexplained.push(brief(error.to_string())),
            (_, Err(error)) => return Err(error.into()),
        }
    }
    let boot = boot.ok_or_else(|| Stop::harness("a guest was to measure nothing".to_owned()))?;
    Ok(Measurement::Attach(match clock {
        Clock::Free => Attach { boots: vec![boot], exact: None, explained, unexplained },
        Clock::Exact => Attach { boots: Vec::new(), exact: Some(boot), explained, unexplained },
    }))
}

/// A guest that attached nothing, never, or something else, has measured nothing.
fn require_asked(asked: &AttachRequest, reply: &AttachReply) -> Result<(), Stop> {
    let (rounds, functions) = (reply.rounds.len(), reply.functions.len());
    if reply.mechanism == asked.mechanism
        && (1..=asked.rounds as usize).contains(&rounds)
        && (functions > 0 || reply.stopped.is_some())
    {
        return Ok(());
    }
    let message = format!(
        "the guest was asked for {} rounds of {}, and answers of {rounds} of {} with {functions} functions",
        asked.rounds, asked.mechanism, reply.mechanism
    );
    Err(Stop::Error { kind: ErrorKind::Protocol, message })
}

/// The names of tens of thousands of functions are a file of their own.
fn keep(reply: AttachReply, folder: &Path) -> Result<AttachBoot, Stop> {
    let list: String = reply.functions.iter().map(|name| format!("{name}\n")).collect();
    let path = folder.join(LIST);
    fs::write(&path, &list)
        .map_err(|error| Stop::harness(format!("failed to write {}: {error}", path.display())))?;
    let list_sha256 = Sha256::digest(&list).iter().map(|byte| format!("{byte:02x}")).collect();
    let AttachReply { mechanism: _, functions, refused, programs, links, rounds, stopped } = reply;
    Ok(AttachBoot {
        functions: functions.len() as u32,
        list_sha256,
        refused,
        programs,
        links,
        rounds,
        stopped,
    })
}

/// What a profile was made of.
struct Made<'a> {
    cell: &'a Path,
    planned: &'a PlannedCell,
    clock: Clock,
    phase: Phase,
    rounds: u32,
    attached: u32,
}

impl Made<'_> {
    fn name(&self) -> String {
        self.planned.id.name()
    }

    fn save(&self, profile: &Profile, how: How) -> Result<String, Stop> {
        let file = how.file(self.phase);
        let path = self.cell.join(&file);
        let failed = |error: &dyn std::fmt::Display| {
            Stop::harness(format!("failed to write {}: {error}", path.display()))
        };
        // What a guest answered is in it: what could not be read again is not written.
        profile.check().map_err(|wrong| Stop::Error {
            kind: ErrorKind::Protocol,
            message: format!("what the guest says makes no profile: {wrong}"),
        })?;
        let bytes = serde_json::to_vec(profile).map_err(|error| failed(&error))?;
        fs::write(&path, bytes).map_err(|error| failed(&error))?;
        Ok(file)
    }

    fn summary(&self, how: Explain, reply: &PhaseReply, profile: &Profile, file: String) -> Summary {
        let mut functions = profile.costs();
        functions.truncate(COSTS);
        Summary {
            phase: self.phase,
            how,
            clock: self.clock,
            rounds: self.rounds,
            attached: self.attached,
            wall_ns: reply.wall_ns,
            cpu_ns: reply.cpu_ns,
            unit: profile.unit,
            totals: profile.totals(),
            functions,
            waits: Vec::new(),
            waited_ns: 0,
            counters: counted(&reply.counters, self.planned.id.accel),
            file,
        }
    }
}

/// What the kernel counts itself, and under KVM what the CPU does: cycles of the PMU that QEMU emulates for arm64 are the time again.
fn counted(counters: &[Counter], accel: Accel) -> Vec<Counter> {
    let is_kernels =
        |counter: &&Counter| ["task-clock", "context-switches"].contains(&counter.event.as_str());
    counters.iter().filter(|counter| accel == Accel::Kvm || is_kernels(counter)).cloned().collect()
}

/// The plugin's counts, named. The `number`th of this guest.
fn exact(vm: &mut Vm, made: &Made, reply: &PhaseReply, number: u64, folder: &Path) -> Result<Summary, Stop> {
    let path = counts::file_name(folder, number);
    let error = |message: String| Stop::Error { kind: ErrorKind::Trace, message };
    let counts = Counts::decode(&of_plugin(folder, &path, "counts")?)
        .map_err(|e| error(format!("{}: {e}", path.display())))?;
    if let Some(fault) = counts.fault() {
        return Err(error(fault));
    }
    let symbols = resolve_addresses(vm, count::addresses(&counts))?;
    let profile = count::of_counts(&made.name(), made.phase, &counts, &symbols);
    let file = made.save(&profile, How::Exact)?;
    // All of it is in the profile now. Failing only leaves it there.
    let _ = fs::remove_file(&path);
    Ok(made.summary(Explain::Exact, reply, &profile, file))
}

fn sampled(vm: &mut Vm, made: &Made, reply: &PhaseReply) -> Result<Summary, Stop> {
    let Some(samples) = &reply.samples else {
        return Err(Stop::Error {
            kind: ErrorKind::Protocol,
            message: "the guest explains by samples, and sent none".to_owned(),
        });
    };
    let stacks = samples.stacks.iter().map(|sample| &sample.stack);
    let stacks = stacks.chain(reply.waits.iter().map(|wait| &wait.stack));
    let symbols = resolve_addresses(vm, count::stack_addresses(stacks))?;
    let profile = count::of_samples(&made.name(), made.phase, samples, &symbols);
    let file = made.save(&profile, How::Sampled)?;
    let thread = profile.threads.iter().find(|thread| thread.measured).cloned().unwrap_or_else(Thread::agent);
    let waiting = count::of_waits(&made.name(), made.phase, &reply.waits, thread, &symbols);
    made.save(&waiting, How::Waiting)?;
    let mut summary = made.summary(Explain::Sampled, reply, &profile, file);
    summary.waited_ns = reply.waits.iter().fold(0, |sum, wait| sum.saturating_add(wait.ns));
    summary.waits = count::waited(&reply.waits, &symbols);
    summary.waits.truncate(WAITS);
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_cpu_has_no_cycles() {
        let counter = |event: &str| Counter { event: event.to_owned(), count: 1, estimated: false };
        let all = ["cycles", "task-clock", "context-switches"].map(counter);
        let names = |accel| counted(&all, accel).into_iter().map(|one| one.event).collect::<Vec<_>>();
        assert_eq!(names(Accel::Tcg), ["task-clock", "context-switches"]);
        assert_eq!(names(Accel::Kvm), ["cycles", "task-clock", "context-switches"]);
    }
}
