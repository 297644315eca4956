// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exact profile of real guests, against what is known from elsewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab::{
    profile::{Cost, Node, Phase, Profile, count},
    run::{Accel, Arch, Clock},
    vm::{Deadlines, QemuProgram, Spec, Vm, initramfs},
};
use tramplab_protocol::{
    Functions, Mechanism,
    counts::{self, Counts},
    message::{AttachRequest, CallsReply, CallsRequest, Command, Explain, ExplainRequest, Response},
};

/// Beyond what anything here takes on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

fn from_env(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`")).into()
}

/// A machine with this clock that was given these orders.
fn spec(dir: &Path, clock: Clock, orders: &[Command]) -> Spec {
    let (root, initrd) = (dir.join("root.cpio"), dir.join("initramfs.cpio"));
    initramfs::build(&from_env("TRAMPLAB_AGENT"), &[], &root).unwrap();
    initramfs::with_orders(&root, orders, &initrd).unwrap();
    Spec {
        qemu: QemuProgram { program: from_env("TRAMPLAB_QEMU"), arguments: vec![], environment: vec![] },
        arch: Arch::X86_64,
        accel: Accel::Tcg,
        clock,
        kernel: from_env("TRAMPLAB_TEST_KERNEL"),
        initrd,
        cpus: 1,
        memory_mib: 1024,
        append: vec![],
        plugin: Some(from_env("TRAMPLAB_PLUGIN")),
        dir: dir.to_owned(),
        deadlines: Deadlines { boot: LIMIT, silence: LIMIT },
    }
}

fn request(vm: &mut Vm, command: Command) -> Response {
    vm.request(command, LIMIT).unwrap().unwrap()
}

/// The `number`th profile of a guest, named.
fn profile(vm: &mut Vm, dir: &Path, number: u64) -> Profile {
    let counts = counts(dir, number);
    let command = Command::Resolve { addresses: count::addresses(&counts) };
    let Response::Resolve { symbols } = request(vm, command) else { panic!() };
    count::of_counts("test", Phase::Attach, &counts, &symbols.into_iter().flatten().collect())
}

fn counts(dir: &Path, number: u64) -> Counts {
    let counts = Counts::decode(&fs::read(counts::file_name(dir, number)).unwrap()).unwrap();
    assert!(counts.vcpus.iter().all(|vcpu| vcpu.cut == 0), "calls were cut");
    counts
}

/// How often each function was called that `function_graph` printed, as `name() {` or `name();`.
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

/// How often each function was called below `root`, interrupts left out.
fn profiled_calls<'a>(profile: &'a Profile, root: &str) -> BTreeMap<&'a str, u64> {
    let name = |node: &Node| profile.functions[node.function as usize].name.as_str();
    let mut calls = BTreeMap::new();
    let mut below: Vec<bool> = Vec::new();
    for node in &profile.nodes {
        let is_below = node
            .parent
            .is_some_and(|parent| below[parent as usize] || name(&profile.nodes[parent as usize]) == root);
        below.push(is_below);
        if is_below && !node.interrupt {
            *calls.entry(name(node)).or_insert(0) += node.calls;
        }
    }
    calls
}

#[test]
fn calls_are_those_that_the_kernels_own_tracer_sees() {
    const TIMES: u32 = 20;
    /// Calls all system calls' functions; not traceable itself.
    const SYSTEM_CALLS: &str = "x64_sys_call";
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(spec(dir.path(), Clock::Free, &[])).unwrap();
    let Response::Calls(reply) = request(&mut vm, Command::Calls(CallsRequest { times: TIMES })) else {
        panic!()
    };
    let CallsReply { root, trace, traceable } = reply;
    let profile = profile(&mut vm, dir.path(), 0);
    vm.power_off(LIMIT).unwrap();

    let traceable: BTreeSet<&str> = traceable.iter().map(String::as_str).collect();
    let traced = traced_calls(&trace);
    let mut profiled = profiled_calls(&profile, SYSTEM_CALLS);
    profiled.retain(|name, _| traceable.contains(name));
    assert_eq!(profiled, traced, "{trace}");
    assert_eq!(traced[&*root], u64::from(TIMES));
}

fn attach(mechanism: Mechanism, functions: u32, rounds: u32) -> AttachRequest {
    let functions = Functions::Count(functions.try_into().unwrap());
    AttachRequest { mechanism, functions, rounds, seed: 1, seconds: None }
}

fn explain(attach: AttachRequest, how: Explain) -> Command {
    Command::Explain(ExplainRequest { attach, how })
}

/// A guest that keeps to its own clock repeats bit for bit: what it answers, times included, and all that was counted.
#[test]
fn under_the_exact_clock_two_boots_are_one() {
    let attach = attach(Mechanism::Fentry, 3, 2);
    let orders = [Command::Facts, Command::Attach(attach.clone()), explain(attach, Explain::Exact)];
    let boot = || {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(spec(dir.path(), Clock::Exact, &orders)).unwrap();
        let answers: Vec<Response> = orders.iter().map(|command| request(&mut vm, command.clone())).collect();
        let profiles: Vec<(Counts, Profile)> =
            (0..2).map(|number| (counts(dir.path(), number), profile(&mut vm, dir.path(), number))).collect();
        (answers, profiles)
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(boot);
        (boot(), second.join().unwrap())
    });
    assert_eq!(first.0, second.0);
    for ((counts, profile), (same_counts, same_profile)) in first.1.iter().zip(&second.1) {
        assert!(counts == same_counts, "the counts differ");
        assert!(profile == same_profile, "the profiles differ");
        let totals = profile.totals();
        assert!(totals.task > 100_000 && totals.interrupts > 0 && totals.others > 0, "{totals:?}");
    }
}

/// Shares of the attaching thread's work by function, in per cent, most first.
fn shares(profile: &Profile) -> Vec<(String, f64)> {
    let total = profile.totals().task as f64;
    let share = |cost: Cost| (cost.function.name, 100.0 * cost.own as f64 / total);
    profile.costs().into_iter().map(share).collect()
}

#[test]
fn samples_agree_with_the_exact_profile() {
    for (mechanism, functions, rounds) in [(Mechanism::KprobeMulti, 1000, 20), (Mechanism::Fentry, 10, 10)] {
        let dir = tempfile::tempdir().unwrap();
        let orders = [
            explain(attach(mechanism, functions, 1), Explain::Exact),
            explain(attach(mechanism, functions, rounds), Explain::Sampled),
        ];
        let t = std::time::Instant::now();
        let mut vm = Vm::boot(spec(dir.path(), Clock::Exact, &orders)).unwrap();
        let Response::Explain(_) = request(&mut vm, orders[0].clone()) else { panic!() };
        let exact: Vec<Profile> = (0..2).map(|number| profile(&mut vm, dir.path(), number)).collect();
        let Response::Explain(sampled) = request(&mut vm, orders[1].clone()) else { panic!() };
        println!("{mechanism} {:?}", t.elapsed());
        for (exact, phase) in exact.iter().zip([sampled.attach, sampled.detach]) {
            let samples = phase.samples.unwrap();
            let addresses = count::stack_addresses(samples.stacks.iter().map(|s| &s.stack));
            let Response::Resolve { symbols } = request(&mut vm, Command::Resolve { addresses }) else {
                panic!()
            };
            let symbols = symbols.into_iter().flatten().collect();
            let sampled = count::of_samples("test", Phase::Attach, &samples, &symbols);
            println!("exact {:?} sampled {:?}", exact.totals(), sampled.totals());
            let s = shares(&sampled);
            let e = shares(exact);
            for (name, share) in e.iter().take(12) {
                println!(
                    "{name} exact {share:.2} sampled {:.2}",
                    s.iter().find(|x| x.0 == *name).map_or(0.0, |x| x.1)
                );
            }
            println!("--");
            for (name, share) in s.iter().take(12) {
                println!(
                    "{name} sampled {share:.2} exact {:.2}",
                    e.iter().find(|x| x.0 == *name).map_or(0.0, |x| x.1)
                );
            }
        }
    }
}
