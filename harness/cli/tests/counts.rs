// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the exact profile of real guests with other sources.

use crate::guest::attach::{self, rounds_of};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::RangeInclusive,
    path::Path,
    time::Duration,
};
use tramplab_analysis::{
    branch::Symbols,
    profile::{Node, Phase, Profile, Thread, count},
};
use tramplab_model::{
    profile::{OfCpu, Totals},
    run::{Arch, Clock},
};
use tramplab_protocol::{
    BesideSet, Mechanism,
    counts::{self, Counts},
    estimate::Event,
    message::{
        AttachRequest, CallsReply, CallsRequest, Command, Explain, ExplainRequest, Others, Response,
    },
};
use tramplab_vm::{Deadlines, Spec, Vm, initramfs};

/// Longer than anything here takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A machine with this clock; its guest was given these orders.
fn spec(arch: Arch, dir: &Path, clock: Clock, orders: &[Command]) -> Spec {
    let machine = crate::machine::spec(arch, dir);
    let initrd = dir.join("ordered.cpio");
    initramfs::with_orders(&machine.initrd, orders, &initrd).unwrap();
    Spec { clock, initrd, deadlines: Deadlines { boot: LIMIT, silence: LIMIT }, ..machine }
}

fn request(vm: &mut Vm, command: Command) -> Response {
    vm.request(command, LIMIT).unwrap().unwrap()
}

/// Resolves the guest's `number`th profile to symbols.
fn profile(vm: &mut Vm, dir: &Path, number: u64) -> Profile {
    profile_by_cpu(vm, dir, number).0
}

fn profile_by_cpu(vm: &mut Vm, dir: &Path, number: u64) -> (Profile, Vec<OfCpu>) {
    let counts = counts(dir, number);
    let symbols = resolve(vm, count::addresses(&counts));
    let profile = count::of_counts("test", Phase::Attach, &counts, &symbols);
    (profile, count::by_cpu(&counts, &symbols))
}

fn resolve(vm: &mut Vm, addresses: Vec<u64>) -> Symbols {
    let Response::Resolve { symbols } = request(vm, Command::Resolve { addresses }) else {
        panic!()
    };
    symbols.into_iter().collect()
}

fn counts(dir: &Path, number: u64) -> Counts {
    let counts = Counts::decode(&fs::read(counts::file_name(dir, number)).unwrap()).unwrap();
    assert!(counts.vcpus.iter().all(|vcpu| vcpu.cut == 0), "calls were cut");
    counts
}

/// Counts calls in `function_graph` output, which prints `name() {` or `name();`.
fn traced_calls(trace: &str) -> BTreeMap<&str, u64> {
    let mut calls = BTreeMap::new();
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let text = line.split_once('|').map_or("", |(_, text)| text.trim());
        if let Some((name, "() {" | "();")) = text.find('(').map(|at| text.split_at(at)) {
            *calls.entry(name).or_insert(0) += 1;
        }
    }
    calls
}

/// Counts the measured thread's calls of each function below `root`, without interrupts. The
/// compiler may have split `root` into parts such as `root.isra.0`.
fn profiled_calls<'a>(profile: &'a Profile, root: &str) -> BTreeMap<&'a str, u64> {
    let name = |node: &Node| profile.functions[node.function as usize].name.as_str();
    let mut calls = BTreeMap::new();
    let mut below: Vec<bool> = Vec::new();
    for node in &profile.nodes {
        let is_below = node.parent.is_some_and(|parent| {
            below[parent as usize]
                || name(&profile.nodes[parent as usize]).split('.').next() == Some(root)
        });
        below.push(is_below);
        let measured = profile.threads[node.thread as usize].measured;
        if is_below && measured && !node.interrupt {
            *calls.entry(name(node)).or_insert(0) += node.calls;
        }
    }
    calls
}

on_each_arch!(counts_the_calls_that_function_graph_traces);

fn counts_the_calls_that_function_graph_traces(arch: Arch) {
    const TIMES: u32 = 20;
    let dir = tempfile::tempdir().unwrap();
    // By the host's clock, a busy host would have a timer interrupt in every attempt.
    let orders = [Command::Calls(CallsRequest { times: TIMES })];
    let mut vm = Vm::boot(&spec(arch, dir.path(), Clock::Exact, &orders)).unwrap();
    let Response::Calls(reply) = request(&mut vm, orders[0].clone()) else { panic!() };
    let CallsReply { root, trace, traceable } = reply;
    let profile = profile(&mut vm, dir.path(), 0);
    vm.power_off(LIMIT).unwrap();

    let traceable: BTreeSet<&str> = traceable.iter().map(String::as_str).collect();
    let traced = traced_calls(&trace);
    // This function calls every system call's function, or jumps to it. In the latter case it owns
    // that function's calls.
    let system_calls = match arch {
        Arch::X86_64 => "x64_sys_call",
        Arch::Arm64 => "invoke_syscall",
    };
    let mut profiled = profiled_calls(&profile, system_calls);
    profiled.retain(|name, _| traceable.contains(name));
    assert_eq!(profiled, traced, "{trace}");
    assert!(traced.len() > 10 && traced[&*root] == u64::from(TIMES), "{traced:?}");
}

#[test]
fn joins_two_cpus_in_one_profile() {
    // arm64 patches code without the help of other CPUs.
    let arch = Arch::X86_64;
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&Spec { cpus: 2, ..spec(arch, dir.path(), Clock::Free, &[]) }).unwrap();
    // The other CPU is idle, except that it must take notice of patched code.
    let command = explain(attach(Mechanism::KprobeMulti, 100, 1), Explain::Exact);
    let Response::Explain(_) = request(&mut vm, command) else { panic!() };
    for number in 0..2 {
        let counts = counts(dir.path(), number);
        assert_eq!(counts.vcpus.len(), 2);
        let counted: u64 =
            counts.vcpus.iter().flat_map(|vcpu| &vcpu.blocks).map(|block| block.instructions).sum();
        let (profile, by_cpu) = profile_by_cpu(&mut vm, dir.path(), number);
        assert_is_split(&profile, &by_cpu);
        assert_eq!(profile.nodes.iter().map(|node| node.own).sum::<u64>(), counted);
        let threads: BTreeSet<_> = profile
            .threads
            .iter()
            .map(|thread| (&thread.command, thread.pid, thread.measured))
            .collect();
        assert_eq!(threads.len(), profile.threads.len(), "a thread twice: {:?}", profile.threads);
        assert_eq!(threads.iter().filter(|thread| thread.2).count(), 1, "{threads:?}");
        let anywhere = |name: &str, wanted: fn(&Node, &Thread) -> bool| {
            profile.nodes.iter().any(|node| {
                profile.functions[node.function as usize].name == name
                    && wanted(node, &profile.threads[node.thread as usize])
            })
        };
        // The attaching thread asks for it; the other CPU does it in an interrupt.
        assert!(anywhere("text_poke_bp_batch", |node, thread| thread.measured && !node.interrupt));
        assert!(anywhere("do_sync_core", |node, thread| !thread.measured && node.interrupt));
    }
    vm.power_off(LIMIT).unwrap();
}

/// The attaching thread stays on its CPU. The other one has only the work of interrupts, and of
/// threads that they wake.
fn assert_is_split(whole: &Profile, by_cpu: &[OfCpu]) {
    let [first, second] = by_cpu else { panic!("{by_cpu:?}") };
    let (totals, sum) =
        (whole.totals(), |of: fn(&Totals) -> u64| of(&first.totals) + of(&second.totals));
    assert_eq!(
        (totals.task, totals.interrupts, totals.others),
        (sum(|of| of.task), sum(|of| of.interrupts), sum(|of| of.others))
    );
    let (own, other) = if first.totals.task > 0 { (first, second) } else { (second, first) };
    assert!(own.totals.task == totals.task && other.totals.interrupts > 0, "{by_cpu:?}");
}

#[test]
fn one_cpu_is_not_split_and_interrupts_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(Arch::X86_64, dir.path(), Clock::Free, &[])).unwrap();
    let command = explain(attach(Mechanism::KprobeMulti, 100, 1), Explain::Exact);
    let Response::Explain(_) = request(&mut vm, command) else { panic!() };
    let (profile, by_cpu) = profile_by_cpu(&mut vm, dir.path(), 0);
    vm.power_off(LIMIT).unwrap();
    assert_eq!(by_cpu, []);
    let in_interrupts = |node: &&Node| node.interrupt;
    let mut names = profile
        .nodes
        .iter()
        .filter(in_interrupts)
        .map(|node| profile.functions[node.function as usize].name.as_str());
    assert!(!names.any(|name| name == "do_sync_core"));
}

/// 6.12 waits for two RCU tasks grace periods (`ftrace_shutdown`: rude and plain) to detach a
/// fentry link, and for three to detach a kprobe.multi link of any number of functions.
#[test]
fn detaching_waits_for_grace_periods_and_leaves_nothing_attached() {
    let explained = |mechanism, functions| explain(attach(mechanism, functions, 1), Explain::Exact);
    let called = |beside| calling(attach(Mechanism::Fentry, 1, 1), beside);
    let orders = [
        explained(Mechanism::Fentry, 1),
        explained(Mechanism::Fentry, 2),
        explained(Mechanism::Fentry, 2),
        explained(Mechanism::KprobeMulti, 10),
        called(&[]),
        called(&["kprobe.multi:1000", "fentry:2", "function_tracer:1"]),
        called(&[]),
        Command::Attach(beside(attach(Mechanism::Fentry, 1, 1), &["kprobe.multi:1000"])),
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(Arch::X86_64, dir.path(), Clock::Exact, &orders)).unwrap();
    let (last, explained) = orders.split_last().unwrap();
    for (number, order) in explained.iter().enumerate() {
        let Response::Explain(reply) = request(&mut vm, order.clone()) else { panic!() };
        assert_eq!(reply.system_calls, (number >= 4).then_some(150), "{number}");
    }
    let Response::Attach(reply) = request(&mut vm, last.clone()) else { panic!() };
    let (mechanism, functions) = (Mechanism::KprobeMulti, 1000);
    assert_eq!(reply.others, [Others { mechanism, functions, links: 1, refused: 0 }]);
    let counted = (0..8).map(|number| profile(&mut vm, dir.path(), number).grace_periods());
    // Attaching, then detaching.
    assert_eq!(counted.collect::<Vec<u64>>(), [0, 2, 0, 4, 0, 4, 0, 3]);
    // Before attaching, attaching, while attached, detaching.
    let mut instructions = |number| profile(&mut vm, dir.path(), number).totals().task;
    let alone: [u64; 4] = std::array::from_fn(|file| instructions(8 + file as u64));
    let busy: [u64; 4] = std::array::from_fn(|file| instructions(12 + file as u64));
    let again: [u64; 4] = std::array::from_fn(|file| instructions(16 + file as u64));
    // System calls hit some of the thousand functions, and only while these are attached.
    assert!(busy[0] > alone[0] + alone[0] / 20, "{alone:?} {busy:?}");
    assert!(again[0].abs_diff(alone[0]) < alone[0] / 100, "{alone:?} {again:?}");
    // A link looks up all records of ftrace, and those of traced functions take longer.
    assert!(busy[1] > alone[1], "{alone:?} {busy:?}");
    assert!(again[1].abs_diff(alone[1]) < busy[1] - alone[1], "{alone:?} {busy:?} {again:?}");
    vm.power_off(LIMIT).unwrap();
}

fn attach(mechanism: Mechanism, functions: u32, rounds: u32) -> AttachRequest {
    rounds_of(mechanism, attach::count(functions), rounds)
}

fn explain(attach: AttachRequest, how: Explain) -> Command {
    Command::Explain(ExplainRequest { attach, how, system_calls: false })
}

fn beside(attach: AttachRequest, beside: &[&str]) -> AttachRequest {
    let beside = beside.iter().map(|name| name.parse().unwrap());
    AttachRequest { beside: BesideSet::of(beside).unwrap(), ..attach }
}

/// Counts system calls, too, with other tracers beside.
fn calling(attach: AttachRequest, others: &[&str]) -> Command {
    let (attach, how) = (beside(attach, others), Explain::Exact);
    Command::Explain(ExplainRequest { attach, how, system_calls: true })
}

/// The parts of a Zen 3, with an eighth of its last level.
const ZEN3: &str = "512x8:512x8:8192x8:65536x16:64x64:64x64:2048x8:32:wrong:streams";

/// A machine whose plugin models this CPU.
fn modelled(spec: Spec) -> Spec {
    Spec { modelled: Some(ZEN3.parse().unwrap()), ..spec }
}

/// With the safe return each of the kernel's returns is mispredicted, by intent (K
/// `arch/x86/kernel/cpu/bugs.c`, SRSO). Without it calls and returns are balanced.
#[test]
fn estimates_mispredict_every_safe_return_and_no_other_on_x86_64() {
    let srso = ["mitigations=auto", "spectre_v2=off"];
    estimates_mispredict(
        Arch::X86_64,
        &[(Some("EPYC-Milan,hypervisor=off"), &srso, 999..=1000), (None, &[], 0..=0)],
    );
}

#[test]
fn estimates_mispredict_no_return_on_arm64() {
    estimates_mispredict(Arch::Arm64, &[(None, &[], 0..=0)]);
}

/// QEMU's CPU, words of the command line, and the mispredicted of a thousand returns.
type Returning<'a> = (Option<&'a str>, &'a [&'a str], RangeInclusive<u64>);

fn estimates_mispredict(arch: Arch, guests: &[Returning]) {
    for (cpu, append, per_mille) in guests {
        let dir = tempfile::tempdir().unwrap();
        let spec = modelled(spec(arch, dir.path(), Clock::Exact, &[]));
        let append = append.iter().map(|word| (*word).to_owned()).collect();
        let mut vm = Vm::boot(&Spec { cpu: cpu.map(str::to_owned), append, ..spec }).unwrap();
        for how in [Explain::Exact, Explain::Estimated] {
            let command = explain(attach(Mechanism::KprobeMulti, 1, 1), how);
            let Response::Explain(_) = request(&mut vm, command) else { panic!() };
        }
        // Two phases of the exact round; those of the round that warms, and of the one that counts.
        let [exact, warm] = [0, 4].map(|number| profile(&mut vm, dir.path(), number));
        vm.power_off(LIMIT).unwrap();
        let own = |node: &&Node| !node.interrupt && warm.threads[node.thread as usize].measured;
        let events = |event| -> u64 {
            let own = warm.nodes.iter().filter(own);
            own.filter_map(|node| node.events.get(&event)).sum()
        };
        let (returns, missed) = (events(Event::Return), events(Event::MispredictedReturn));
        assert!(
            returns > 10_000 && per_mille.contains(&(missed * 1000 / returns)),
            "{arch} {cpu:?}: {missed} of {returns}"
        );
        let others = [Event::DataL2, Event::CodeL2, Event::Atomic, Event::DataTlb].map(events);
        assert!(!others.contains(&0), "{arch}: {others:?}");
        // The model changes nothing in the guest: both rounds do the same work.
        let [exact, warm] = [&exact, &warm].map(|profile| profile.totals().task);
        assert!(exact.abs_diff(warm) * 100 < exact, "{arch}: {exact} {warm}");
    }
}

/// Per cent of the attaching thread's work: in a function itself, and with all it calls.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    own: f64,
    total: f64,
}

/// Shares by function, and the five functions with the largest shares of their own.
fn shares(phases: &[Profile]) -> (BTreeMap<String, Share>, Vec<String>) {
    let all: u64 = phases.iter().map(|profile| profile.totals().task).sum();
    let per_cent = |amount| 100.0 * amount as f64 / all as f64;
    let mut shares: BTreeMap<String, Share> = BTreeMap::new();
    for cost in phases.iter().flat_map(Profile::costs) {
        let share = shares.entry(cost.function.name).or_default();
        share.own += per_cent(cost.own);
        share.total += per_cent(cost.total);
    }
    let mut names: Vec<String> = shares.keys().cloned().collect();
    names.sort_by(|a, b| shares[b].own.total_cmp(&shares[a].own));
    names.truncate(5);
    (shares, names)
}

/// No sampling interrupt comes while a function keeps interrupts off. The samples of what it does
/// and calls meanwhile appear where it switches them on again, in the function itself. In these
/// phases this is the function that patches code. Compare its total, not its own share.
const INTERRUPTS_OFF: &str = "__text_poke";
/// Percentage points. With 2,500 samples, one standard deviation of a share of 20 % is 0.8.
const APART: f64 = 3.0;

fn assert_agree(exact: &[Profile], sampled: &[Profile]) {
    let samples: u64 = sampled.iter().map(|profile| profile.totals().task).sum();
    assert!(samples > 2500, "too few samples: {samples}");
    let (exact, exact_top) = shares(exact);
    let (sampled, sampled_top) = shares(sampled);
    for name in exact_top.into_iter().chain(sampled_top) {
        let of = |shares: &BTreeMap<String, Share>| {
            let share = shares.get(&name).copied().unwrap_or_default();
            if name == INTERRUPTS_OFF { share.total } else { share.own }
        };
        let (exact, sampled) = (of(&exact), of(&sampled));
        assert!(
            (exact - sampled).abs() < APART,
            "{name}: {exact:.2} % of instructions, {sampled:.2} % of samples"
        );
    }
}

on_each_arch!(
    exact_boots_repeat_and_samples_agree_with_counts,
    ignore = "full: several boots by the exact clock"
);

/// Under its own clock a guest repeats bit for bit: all answers, times included, and all counts.
fn exact_boots_repeat_and_samples_agree_with_counts(arch: Arch) {
    // Two rounds of two phases are four profiles, one with system calls and one with estimates as
    // many.
    const PROFILES: usize = 12;
    let request_of = attach(Mechanism::Fentry, 3, 2);
    let orders = [
        Command::Facts,
        Command::Attach(request_of.clone()),
        explain(request_of, Explain::Exact),
        calling(attach(Mechanism::Fentry, 3, 1), &["fentry:2"]),
        explain(attach(Mechanism::Fentry, 3, 1), Explain::Estimated),
    ];
    let boot = || {
        let dir = tempfile::tempdir().unwrap();
        let spec = modelled(spec(arch, dir.path(), Clock::Exact, &orders));
        let mut vm = Vm::boot(&spec).unwrap();
        let answers: Vec<Response> =
            orders.iter().map(|command| request(&mut vm, command.clone())).collect();
        let profiles: Vec<(Counts, Profile)> = (0..PROFILES as u64)
            .map(|number| (counts(dir.path(), number), profile(&mut vm, dir.path(), number)))
            .collect();
        (answers, profiles, vm, dir)
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let (answers, profiles, ..) = boot();
            (answers, profiles)
        });
        (boot(), second.join().unwrap())
    });
    let (answers, profiles, vm, dir) = first;
    assert_eq!(answers, second.0);
    for ((counts, profile), (same_counts, same_profile)) in profiles.iter().zip(&second.1) {
        assert!(counts == same_counts, "the counts differ");
        assert!(profile == same_profile, "the profiles differ");
    }
    for (_, profile) in &profiles[..4] {
        let totals = profile.totals();
        assert!(totals.task > 100_000 && totals.interrupts > 0, "{totals:?}");
    }
    // A single phase may run no other thread, but two rounds leave work to others.
    assert!(profiles.iter().any(|(_, profile)| profile.totals().others > 0));
    samples_agree(arch, vm, dir.path(), profiles.len() as u64);
}

/// Compares both phases together. `number` is the guest's next profile.
fn samples_agree(arch: Arch, mut vm: Vm, dir: &Path, number: u64) {
    // A round takes half as long on arm64, which does not stop the CPUs to patch code.
    let rounds = match arch {
        Arch::X86_64 => 60,
        Arch::Arm64 => 130,
    };
    let explained = |how, rounds| explain(attach(Mechanism::KprobeMulti, 1000, rounds), how);
    let Response::Explain(_) = request(&mut vm, explained(Explain::Exact, 1)) else { panic!() };
    let exact = [0, 1].map(|phase| profile(&mut vm, dir, number + phase));
    let Response::Explain(reply) = request(&mut vm, explained(Explain::Sampled, rounds)) else {
        panic!()
    };
    let sampled = [reply.attach, reply.detach].map(|phase| {
        let samples = phase.samples.unwrap();
        let symbols = resolve(
            &mut vm,
            count::stack_addresses(samples.stacks.iter().map(|sample| &sample.stack)),
        );
        count::of_samples("test", Phase::Attach, &samples, &symbols)
    });
    assert_agree(&exact, &sampled);
}
