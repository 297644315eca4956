// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attach rounds: samples and waits explain them, and a time budget ends them.

use super::LIMIT;
use crate::machine::spec;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tramplab_analysis::branch;
use tramplab_model::run::Arch;
use tramplab_protocol::{
    BesideSet, Functions, Mechanism,
    message::{
        AttachReply, AttachRequest, Command, Explain, ExplainReply, ExplainRequest, GuestError,
        PhaseReply, Response, Samples,
    },
};
use tramplab_vm::Vm;

/// Longer than tens of thousands of functions take on a loaded machine.
const LONG: Duration = Duration::from_secs(400);
/// Largest share of a phase's wall time that may be neither CPU time nor waiting. When a wake-up
/// preempts the thread, the scheduler charges the time until the switch to the next thread: a few
/// per cent, more on a loaded host. Lost waits would be three quarters of detaching.
const UNEXPLAINED: f64 = 0.5;

pub fn rounds_of(mechanism: Mechanism, functions: Functions, rounds: u32) -> AttachRequest {
    AttachRequest {
        mechanism,
        program: None,
        functions,
        among: Vec::new(),
        binary: None,
        beside: BesideSet::default(),
        rounds,
        seed: 1,
        seconds: None,
    }
}

pub fn count(functions: u32) -> Functions {
    Functions::Count(functions.try_into().unwrap())
}

pub fn attach(vm: &mut Vm, request: AttachRequest) -> Result<AttachReply, GuestError> {
    vm.request(Command::Attach(request), LONG).unwrap().map(|response| match response {
        Response::Attach(reply) => reply,
        other => panic!("{other:?}"),
    })
}

pub fn explain(vm: &mut Vm, attach: AttachRequest) -> ExplainReply {
    let request = ExplainRequest { attach, how: Explain::Sampled, system_calls: false };
    match vm.request(Command::Explain(request), LONG).unwrap().unwrap() {
        Response::Explain(reply) => *reply,
        other => panic!("{other:?}"),
    }
}

/// Resolves addresses to names; unknown ones become hexadecimal numbers.
pub fn names(vm: &mut Vm, addresses: &[u64]) -> Vec<String> {
    let addresses = addresses.to_vec();
    match vm.request(Command::Resolve { addresses: addresses.clone() }, LIMIT).unwrap().unwrap() {
        Response::Resolve { symbols } => {
            let symbols: branch::Symbols = symbols.into_iter().collect();
            let named = addresses.into_iter().map(|address| symbols.place(address));
            named.map(|place| place.symbol.unwrap_or(format!("{:#x}", place.address))).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn assert_adds_up(phase: &PhaseReply, what: &str) {
    let waited: u64 = phase.waits.iter().map(|wait| wait.ns).sum();
    let rest = phase.wall_ns as f64 - (phase.cpu_ns + waited) as f64;
    let share = rest / phase.wall_ns as f64;
    assert!(share.abs() < UNEXPLAINED, "{what}: {share:.3} of {} ns is unexplained", phase.wall_ns);
}

/// Counts the measured thread's samples by function, most frequent first.
fn top(vm: &mut Vm, samples: &Samples) -> Vec<(String, u64)> {
    let mine: Vec<_> =
        samples.stacks.iter().filter(|s| s.measured && !s.stack.is_empty()).collect();
    let inner: Vec<u64> = mine.iter().map(|sample| sample.stack[0]).collect();
    let mut counts = BTreeMap::new();
    for (name, sample) in names(vm, &inner).into_iter().zip(mine) {
        *counts.entry(name).or_insert(0) += sample.count;
    }
    let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

on_each_arch!(samples_and_waits_explain_a_round);

fn samples_and_waits_explain_a_round(arch: Arch) {
    let system_call = match arch {
        Arch::X86_64 => "entry_SYSCALL_64",
        Arch::Arm64 => "el0t_64_sync",
    };
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();

    let reply = explain(&mut vm, rounds_of(Mechanism::Fentry, count(10), 2));
    assert_eq!((reply.functions, reply.links), (10, 10));
    assert_adds_up(&reply.attach, "attaching fentry");
    assert_adds_up(&reply.detach, "detaching fentry");
    // Detaching waits one grace period for each link of each round.
    let waits: Vec<(Vec<String>, u64)> =
        reply.detach.waits.iter().map(|wait| (names(&mut vm, &wait.stack), wait.count)).collect();
    let (stack, times) = &waits[0];
    // Same counters as `perf stat`: each wait is a context switch. There is no PMU, so no cycles.
    let counted = |event: &str| {
        reply.detach.counters.iter().find(|one| one.event == event).map(|one| one.count)
    };
    assert!(counted("context-switches") >= Some(*times), "{:?}", reply.detach.counters);
    assert!(counted("task-clock") > Some(0), "{:?}", reply.detach.counters);
    assert!(counted("cycles").is_none(), "{:?}", reply.detach.counters);
    assert_eq!(stack[0], "__schedule");
    assert!(stack.iter().any(|name| name == "synchronize_rcu_tasks"), "{waits:#?}");
    assert!(*times >= 20, "{waits:#?}");
    // The kernel's stack map may lose a stack whose slot another one takes.
    let times = |waits: &mut dyn Iterator<Item = &(Vec<String>, u64)>| {
        waits.map(|(_, times)| times).sum::<u64>()
    };
    let lost = times(&mut waits.iter().filter(|(stack, _)| stack.is_empty()));
    assert!(lost * 10 <= times(&mut waits.iter()), "stacks were lost: {waits:#?}");
    let samples = reply.detach.samples.unwrap();
    assert!(samples.stacks.iter().any(|s| s.command == "swapper" && s.pid == 0 && !s.measured));
    let samples = reply.attach.samples.unwrap();
    assert_eq!(samples.lost, 0);
    let top_five: Vec<(String, u64)> = top(&mut vm, &samples).into_iter().take(5).collect();
    // arm64 has two functions of this name, and few samples.
    assert!(top_five.iter().any(|(name, _)| name.ends_with("ftrace_replace_code")), "{top_five:?}");
    assert!(top_five.iter().all(|(name, _)| !name.starts_with("0x")), "{top_five:?}");

    let reply = explain(&mut vm, rounds_of(Mechanism::KprobeMulti, count(1000), 3));
    assert_eq!((reply.functions, reply.links), (1000, 1));
    for (phase, what) in [(reply.attach, "attaching"), (reply.detach, "detaching")] {
        assert_adds_up(&phase, what);
        let samples = phase.samples.unwrap();
        assert_eq!(samples.lost, 0);
        // Every kernel stack begins with a system call. perf cannot unwind a few of them.
        let (mut seen, mut from_entry) = (0, 0);
        for sample in samples.stacks.iter().filter(|s| s.measured && !s.stack.is_empty()) {
            let outermost = names(&mut vm, &sample.stack[sample.stack.len() - 1..]).remove(0);
            seen += sample.count;
            from_entry += if outermost.starts_with(system_call) { sample.count } else { 0 };
        }
        assert!(seen >= 15 && from_entry * 10 >= seen * 9, "{what}: {from_entry} of {seen}");
    }

    // In one second only some functions attach: the explained round has the same ones as
    // the plain round before it.
    let budgeted =
        AttachRequest { seconds: Some(1), ..rounds_of(Mechanism::Kprobe, Functions::All, 9) };
    let reply = explain(&mut vm, budgeted);
    assert!((1..30_000).contains(&reply.functions), "{}", reply.functions);
    assert_eq!(reply.links, reply.functions);
    assert_adds_up(&reply.attach, "attaching kprobes until the budget ends it");
    vm.power_off(LIMIT).unwrap();
}

on_each_arch!(
    attaches_all_functions_and_stops_at_the_time_budget,
    ignore = "full: attaches to all functions of a kernel"
);

fn attaches_all_functions_and_stops_at_the_time_budget(arch: Arch) {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();

    let reply = attach(&mut vm, rounds_of(Mechanism::KprobeMulti, Functions::All, 1)).unwrap();
    assert!(reply.functions.len() > 35_000, "{} functions", reply.functions.len());
    let names: BTreeSet<&String> = reply.functions.iter().collect();
    assert!(names.len() < reply.functions.len(), "namesakes are functions too");
    assert!(reply.rounds[0].memory_kib > Some(0) && reply.stopped.is_none(), "{:?}", reply.rounds);

    let budgeted =
        AttachRequest { seconds: Some(1), ..rounds_of(Mechanism::Fentry, Functions::All, 3) };
    let reply = attach(&mut vm, budgeted).unwrap();
    let stopped = reply.stopped.expect("thousands of links take more than a second");
    assert_eq!(reply.rounds.len(), 1);
    assert_eq!(reply.functions.len() as u32, stopped.attached);
    assert!((1..stopped.wanted).contains(&stopped.attached), "{stopped:?}");
    assert!((1..=stopped.attached).contains(&stopped.detached), "{stopped:?}");
    // Detaching waits longer than attaching works, so links are left. No measurement may run beside
    // them.
    let again = attach(&mut vm, rounds_of(Mechanism::Fentry, count(1), 1));
    assert_eq!(again.is_err(), stopped.detached < stopped.attached, "{stopped:?}, then {again:?}");
    vm.power_off(LIMIT).unwrap();
}

on_each_arch!(
    attaches_to_what_the_user_names,
    ignore = "full: several guests; a round of attaching runs in every change"
);

fn attaches_to_what_the_user_names(arch: Arch) {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
    let mut among = |mechanism, functions, patterns: &[&str]| {
        let among = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        let request = AttachRequest { among, ..rounds_of(mechanism, functions, 1) };
        attach(&mut vm, request).map(|reply| {
            assert_eq!(reply.rounds.len(), 1);
            let mut functions = reply.functions;
            functions.sort_unstable();
            functions
        })
    };
    // kprobes attach to all that ftrace lists, so they are the yardstick.
    let listed = among(Mechanism::Kprobe, Functions::All, &["tcp_v4_*"]).unwrap();
    assert!(listed.len() > 10, "{listed:?}");
    assert!(listed.iter().all(|name| name.starts_with("tcp_v4_")), "{listed:?}");
    let described = among(Mechanism::Fentry, Functions::All, &["tcp_v4_*"]);
    // arm64 6.1 has no direct calls.
    if let Ok(described) = described {
        assert!(described.len() > 10, "{described:?}");
        assert!(described.iter().all(|name| listed.contains(name)), "{described:?}");
    }
    // Two patterns, which overlap, and a name: each function once.
    let patterns = ["tcp_v4_*", "tcp_v4_connect", "vfs_read"];
    let both = among(Mechanism::Kprobe, Functions::All, &patterns).unwrap();
    assert_eq!(both.len(), listed.len() + 1);
    assert_eq!(both.last().unwrap(), "vfs_read");
    // The user may name what no choice of ours takes.
    let unsafe_ones = among(Mechanism::Kprobe, Functions::All, &["bpf_prog_load"]).unwrap();
    assert_eq!(unsafe_ones, ["bpf_prog_load"]);
    let chosen = among(Mechanism::Kprobe, count(3), &["tcp_v4_*"]).unwrap();
    assert_eq!(chosen.len(), 3);
    assert!(chosen.iter().all(|name| listed.contains(name)), "{chosen:?}");
    // The kernel may lack kprobe.multi, as arm64 6.12 does.
    if let Ok(by_address) = among(Mechanism::KprobeMulti, Functions::All, &["tcp_v4_*"]) {
        assert_eq!(by_address, listed);
    }
    for (functions, patterns) in [
        (Functions::All, &["tcp_v5_*"][..]),
        (Functions::All, &["nosuch:*", "tcp_v5_*"]),
        (count(2), &["vfs_read"]),
    ] {
        let error = among(Mechanism::Kprobe, functions, patterns).unwrap_err();
        assert!(matches!(error, GuestError::Unsupported(_)), "{patterns:?}: {error}");
    }
    // Names and patterns without a function are told, as those that the kernel refuses.
    for mechanism in [Mechanism::Kprobe, Mechanism::Fentry, Mechanism::KprobeMulti] {
        let patterns =
            ["vfs_read", "c_next", "start_kernel", "no_such", "tcp_v4_*", "tcp_v5_*", "nosuch:*"];
        let among = patterns.map(|pattern| pattern.parse().unwrap()).to_vec();
        let request = AttachRequest { among, ..rounds_of(mechanism, count(1), 1) };
        let Ok(reply) = attach(&mut vm, request) else { continue };
        let told: Vec<&str> = reply.refused.iter().map(|one| &*one.function).collect();
        let missing = ["c_next", "start_kernel", "no_such", "tcp_v5_*", "nosuch:*"];
        assert_eq!(told, missing, "{mechanism}");
        for (refusal, words) in reply.refused.iter().zip([
            "functions have the name c_next",
            "start_kernel is __init",
            "the kernel has no function no_such",
        ]) {
            assert!(refusal.reason.contains(words), "{mechanism}: {refusal:?}");
        }
    }
}
