// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares hits of a function that the user names: attaches the capturing program and tries all
//! workloads.

use crate::bpf::BpfError;
use crate::capture::Capture;
use crate::hooked;
use crate::hooks;
use crate::known::Known;
use crate::link::Heartbeat;
use crate::method::Method;
use crate::names::{self, NameError};
use crate::target::Target;
use crate::test_functions::SYSCALL_PREFIX;
use crate::trigger::{self, Found, Hit, Trigger};
use crate::workload::Workload;
use std::os::fd::AsFd;
use tramplab_protocol::Mechanism;
use tramplab_protocol::message::{GuestError, Triggered};
use tramplab_protocol::pattern;

/// Runs of a workload before its hits are counted, and runs whose hits are.
const WARMUP: usize = 3;
const RUNS: usize = 5;

pub fn prepare(
    mechanism: Mechanism,
    name: &str,
    command: Option<&str>,
    known: &Known,
    heartbeat: Option<&Heartbeat>,
) -> Result<Hit, GuestError> {
    let unsupported = |reason: String| Err(GuestError::Unsupported(reason));
    if mechanism.is_tracepoint() {
        return unsupported(format!("{mechanism} attaches to tracepoints, not to {name}"));
    }
    let method = Method::new(mechanism, known.btf()?)?;
    let full = kernel_name(mechanism, name);
    let name = &*full;
    hooks::check(mechanism, name, known)?;
    let (module, plain) = pattern::split(name);
    let function = match module {
        None => known.symbols()?.function(name),
        Some(module) => {
            known.modules.require(module)?;
            known.symbols()?.function_of(module, plain)
        }
    };
    let Some(function) = function else {
        return Err(missing(mechanism, name, known));
    };
    if let (None, Some(of)) = (module, &function.module) {
        return Err(NameError::InModule { name: name.to_owned(), module: of.clone() }.into());
    }
    hooked::check(name)?;
    let described = match module {
        None => known.btf()?.function(name).map(|id| (0, id)),
        // Programs beside a kprobe may need it, the kprobe does not.
        Some(module) if !method.attaches_by_btf() => {
            known.modules.function(module, plain).unwrap_or(None)
        }
        Some(module) => known.modules.function(module, plain)?,
    };
    let (btf, btf_id) = match described {
        Some(found) => found,
        None if !method.attaches_by_btf() => (0, 0),
        None => return Err(missing(mechanism, name, known)),
    };
    let target = Target { name: name.to_owned(), btf_id, btf, address: function.start };
    let refusal = |error: BpfError| match error.is_out_of_resources() {
        true => GuestError::failed(error),
        false => {
            let refusal = format!("it refuses {mechanism} on {name}: {error}");
            // Not being told the reason must not hide the refusal.
            let reason = names::reason_of_refusal(mechanism, name, known).ok().flatten();
            GuestError::Unsupported(match reason {
                Some(reason) => format!("{reason}; {refusal}"),
                None => refusal,
            })
        }
    };
    let attach = || method.link(method.load_empty(&target)?.as_fd(), &target).map(drop);
    attach().map_err(refusal)?;
    let workloads = match command {
        Some(line) => vec![Workload::command(line)?],
        None => Workload::all(trigger::runner(known), module),
    };
    let found = find(&target, workloads, method, known, heartbeat)?;
    Ok(Hit { method, target, trigger: Trigger::Found(found), function })
}

/// The kernel's function for a system call or a hook, or the name as it is.
pub fn kernel_name(mechanism: Mechanism, name: &str) -> String {
    mechanism.kernel_name(name, SYSCALL_PREFIX)
}

/// The reason why the tables lack a function.
pub fn missing(mechanism: Mechanism, name: &str, known: &Known) -> GuestError {
    match names::reason_of_one(mechanism, name, known) {
        Ok(Some(reason)) => reason.into(),
        // The tables changed meanwhile.
        Ok(None) => GuestError::failed(format!("the kernel lists {name}, and did not before")),
        Err(error) => error,
    }
}

/// Finds the workload that hits the target the fewest times.
pub fn find(
    target: &Target,
    mut workloads: Vec<Workload>,
    method: Method,
    known: &Known,
    heartbeat: Option<&Heartbeat>,
) -> Result<Found, GuestError> {
    let capture = known.capture()?;
    let program = capture.load(method, target)?;
    let link = method.link(program.as_fd(), target)?;
    let mut counts: Vec<Vec<u64>> = Vec::new();
    let run = |workload: &Workload| {
        let _held = heartbeat.map(Heartbeat::hold);
        let mut of_one = Vec::new();
        for _run in 0..WARMUP + RUNS {
            let (ran, result) = counted(capture, || workload.run());
            result?;
            of_one.push(ran);
        }
        Ok::<_, GuestError>(of_one.split_off(WARMUP))
    };
    for workload in &workloads {
        counts.push(run(workload)?);
    }
    let is_hit = counts.iter().flatten().any(|&runs| runs > 0);
    if !is_hit && !workloads.iter().any(Workload::is_command) {
        for workload in Workload::larger() {
            counts.push(run(&workload)?);
            workloads.push(workload);
        }
    }
    drop(link);
    let points = method.mechanism.points().len() as u64;
    let names = workloads.iter().map(|workload| &*workload.name);
    let (place, hits) = choose(&names.zip(counts).collect::<Vec<_>>(), points, &target.name)?;
    Ok(Found { workload: workloads.swap_remove(place), hits })
}

/// How often the program ran while `work` did. Reading that makes no system call.
fn counted<T>(capture: &Capture, work: impl FnOnce() -> T) -> (u64, T) {
    capture.reset();
    let result = work();
    (capture.runs(), result)
}

/// Chooses the workload with the fewest hits: its place, and its hits. `counts` has the workloads'
/// names, and the program's runs for each run of a workload. The lowest one counts: other code may
/// hit the function meanwhile.
fn choose(
    counts: &[(&str, Vec<u64>)],
    points: u64,
    function: &str,
) -> Result<(usize, u32), GuestError> {
    let mut refused = Vec::new();
    let mut found: Vec<(usize, u32)> = Vec::new();
    for (place, (name, runs)) in counts.iter().enumerate() {
        let lowest = runs.iter().copied().min().unwrap_or(0);
        let hits = u32::try_from(lowest / points).unwrap_or(u32::MAX);
        if (1..=Triggered::MOST).contains(&hits) && lowest.is_multiple_of(points) {
            found.push((place, hits));
        } else if runs.iter().any(|&runs| runs > 0) {
            let runs: Vec<String> = runs.iter().map(u64::to_string).collect();
            refused.push(format!("{name} runs the program {} times", runs.join(", ")));
        }
    }
    let fewest = found.into_iter().min_by_key(|&(_, hits)| hits);
    fewest.ok_or_else(|| {
        GuestError::Unsupported(match refused.is_empty() {
            true => {
                let tried: Vec<&str> = counts.iter().map(|(name, _)| *name).collect();
                format!(
                    "nothing hits {function}; tried: {}; name a command of the guest's shell that \
                     hits it, as in --trigger ': >/tmp/one'",
                    tried.join(", ")
                )
            }
            false => format!(
                "no workload hits {function} at each run, and at most {} times: {}",
                Triggered::MOST,
                refused.join("; ")
            ),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_the_first_workload_with_the_fewest_hits() {
        type Case<'a> = (&'a [(&'static str, [u64; 3])], u64, Option<(&'static str, u32)>);
        let table: [Case; 8] = [
            (&[("a", [0; 3]), ("b", [2; 3]), ("c", [1; 3]), ("d", [1; 3])], 1, Some(("c", 1))),
            // Other code hit it once more.
            (&[("a", [4, 3, 3]), ("b", [6; 3])], 1, Some(("a", 3))),
            (&[("a", [4; 3])], 2, Some(("a", 2))),
            // A session that ran at one side only.
            (&[("a", [3; 3])], 2, None),
            (&[("a", [0, 0, 1])], 1, None),
            (&[("a", [64; 3])], 1, Some(("a", 64))),
            (&[("a", [65; 3])], 1, None),
            (&[("a", [0; 3])], 1, None),
        ];
        for (counts, points, expected) in table {
            let all: Vec<(&str, Vec<u64>)> =
                counts.iter().map(|(name, runs)| (*name, runs.to_vec())).collect();
            let chosen = choose(&all, points, "f").map(|(place, hits)| (counts[place].0, hits));
            match expected {
                Some(expected) => assert_eq!(chosen, Ok(expected), "{counts:?}"),
                None => {
                    assert!(matches!(chosen, Err(GuestError::Unsupported(_))), "{counts:?}");
                }
            }
        }
    }
}
