// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a hit, and the functions that it enters.

use super::{LIMIT, WAYS, recorded};
use crate::machine::spec;
use std::{collections::BTreeSet, fs, path::Path};
use tramplab_analysis::{
    branch,
    profile::{Phase, count, estimate},
};
use tramplab_host::config;
use tramplab_model::{
    cpu::Cpu,
    kinds::trigger::EstimatedHit,
    profile::Estimate,
    run::{Arch, Clock, TriggerCost},
};
use tramplab_protocol::{
    BesideSet, Mechanism,
    counts::{self, Counts},
    estimate::{Event, HIT_COUNTS},
    message::{Command, GuestError, Others, Response, TriggerReply, TriggerRequest},
};
use tramplab_vm::{Deadlines, Spec, Vm, initramfs};

pub fn set(names: &[&str]) -> BesideSet {
    BesideSet::of(names.iter().map(|name| name.parse().unwrap())).unwrap()
}

fn hit(
    vm: &mut Vm,
    dir: &Path,
    number: u64,
    mechanism: Mechanism,
    beside: BesideSet,
) -> TriggerCost {
    let what = beside.with(mechanism);
    try_hit(vm, dir, number, mechanism, beside).unwrap_or_else(|e| panic!("{what}: {e}")).0
}

/// A few hits of the empty program.
pub fn request(mechanism: Mechanism, function: Option<&str>) -> TriggerRequest {
    TriggerRequest {
        mechanism,
        program: None,
        function: function.map(str::to_owned),
        command: None,
        beside: BesideSet::default(),
        hits: 8,
        warmup: 3,
        timed: 10,
        rounds: 2,
        estimated: 0,
    }
}

/// An error is the guest's.
pub fn ask(vm: &mut Vm, request: TriggerRequest) -> Result<TriggerReply, GuestError> {
    match vm.request(Command::Trigger(request), LIMIT).unwrap()? {
        Response::Trigger(reply) => Ok(*reply),
        other => panic!("{other:?}"),
    }
}

/// As [`hit`], with the functions attached to beside it. An error is the guest's.
pub fn try_hit(
    vm: &mut Vm,
    dir: &Path,
    number: u64,
    mechanism: Mechanism,
    beside: BesideSet,
) -> Result<(TriggerCost, Vec<Others>), GuestError> {
    let reply = ask(vm, TriggerRequest { beside, ..request(mechanism, None) })?;
    assert_eq!((reply.attached_ns.len(), reply.detached_ns.len(), reply.timed), (2, 2, 10));
    let (trace, symbols) = recorded(vm, dir, number);
    let what = beside.with(mechanism);
    let cost = branch::trigger_cost(&trace, &symbols.into_iter().collect(), &reply, None)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    Ok((cost, reply.others))
}

on_each_arch!(hit_cost_repeats_and_ranks_mechanisms);

fn hit_cost_repeats_and_ranks_mechanisms(arch: Arch) {
    let mut seen = BTreeSet::new();
    for _boot in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
        let cost = |(number, mechanism)| -> TriggerCost {
            hit(&mut vm, dir.path(), number, mechanism, BesideSet::default())
        };
        let costs: Vec<TriggerCost> = (0..).zip(WAYS).map(cost).collect();
        let [fentry, fexit, kprobe, kretprobe] =
            [0, 1, 2, 3].map(|i: usize| costs[i].instructions());
        assert!(fentry < fexit && fentry < kprobe && kprobe < kretprobe, "{costs:#?}");
        let mispredicted = match arch {
            Arch::X86_64 => [0, 8, 0, 9, 0, 9],
            Arch::Arm64 => [0, 13, 0, 13, 4, 5],
        };
        for (cost, expected) in costs.iter().zip(mispredicted) {
            let predicted = cost.predicted.as_ref();
            let found = predicted.map(|all| (all.mispredicted_returns, all.mispredicted_indirect));
            assert_eq!(found, Some((expected, 0)), "{cost:#?}");
        }
        seen.insert(costs.iter().map(|cost| of_any_boot(arch, cost)).collect::<Vec<_>>());
        vm.power_off(LIMIT).unwrap();
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

/// The trampoline of 6.12 leaves a call of fexit without its return, and all returns behind it are
/// mispredicted. That of fentry returns as it was called.
#[test]
#[ignore = "full: two guests by the exact clock, over 20 s on a busy machine"]
fn trigger_estimates_repeat_and_rank_mechanisms() {
    let text = include_str!("../../../../configs/cpus/zen3.yaml");
    let cpu: Cpu = config::parse(text, Path::new("zen3.yaml")).unwrap();
    let boot = || estimated(&cpu, [Mechanism::Fentry, Mechanism::Fexit]);
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(boot);
        (boot(), second.join().unwrap())
    });
    assert_eq!(first, second);
    let [fentry, fexit] = first;
    let returns = |hit: &EstimatedHit| {
        let of = |sum: &Estimate| {
            let mut events = sum.events.iter();
            events.find(|cost| cost.event == Event::MispredictedReturn).map_or(0, |cost| cost.count)
        };
        of(&hit.attached).abs_diff(of(&hit.detached))
    };
    assert_eq!((returns(&fentry), fentry.hits), (0, 25), "{fentry:#?}");
    assert!(returns(&fexit) >= 7 * 25, "{fexit:#?}");
    let cycles = cpu.cycles.as_ref().unwrap().pipeline.mispredicted;
    assert!(fentry.cycles() > 0, "{fentry:#?}");
    // Its program and trampoline are in no cache: a line of each at least.
    let memory = cpu.cycles.as_ref().unwrap().caches.memory_cycles;
    let more = fentry.cold.unwrap() - fentry.cycles();
    assert!(more >= i64::from(2 * memory), "{fentry:#?}");
    assert!(fexit.cycles() >= fentry.cycles() + i64::from(7 * cycles), "{fentry:#?} {fexit:#?}");
}

/// Estimates a hit of each mechanism in one guest.
fn estimated<const N: usize>(cpu: &Cpu, mechanisms: [Mechanism; N]) -> [EstimatedHit; N] {
    let cycles = cpu.cycles.as_ref().unwrap();
    let orders = mechanisms.map(|mechanism| {
        let request = request(mechanism, None);
        Command::Trigger(TriggerRequest { rounds: 0, estimated: 25, ..request })
    });
    let dir = tempfile::tempdir().unwrap();
    let machine = spec(Arch::X86_64, dir.path());
    let initrd = dir.path().join("ordered.cpio");
    initramfs::with_orders(&machine.initrd, &orders, &initrd).unwrap();
    let modelled = Some(cycles.parts(cpu.returns.as_ref()).unwrap());
    let deadlines = Deadlines { boot: LIMIT, silence: LIMIT };
    let machine = Spec { clock: Clock::Exact, initrd, modelled, deadlines, ..machine };
    let mut vm = Vm::boot(&machine).unwrap();
    let mut file = 0;
    let hits = orders.map(|order| {
        let Response::Trigger(reply) = vm.request(order, LIMIT).unwrap().unwrap() else { panic!() };
        let each = u64::from(HIT_COUNTS);
        let places = [0, each - 1, each, 2 * each - 1];
        let [cold_detached, detached, cold_attached, attached] = places.map(|place| {
            let bytes = fs::read(counts::file_name(dir.path(), file + place)).unwrap();
            let counts = Counts::decode(&bytes).unwrap();
            let addresses = count::addresses(&counts);
            let resolve = Command::Resolve { addresses };
            let Response::Resolve { symbols } = vm.request(resolve, LIMIT).unwrap().unwrap() else {
                panic!()
            };
            let symbols = symbols.into_iter().collect();
            let profile = count::of_counts("test", Phase::Attach, &counts, &symbols);
            estimate::weigh(profile, "zen3", cycles).1
        });
        file += 2 * each;
        let cold =
            EstimatedHit { hits: 1, attached: cold_attached, detached: cold_detached, cold: None };
        EstimatedHit { hits: reply.estimated, attached, detached, cold: Some(cold.cycles()) }
    });
    vm.power_off(LIMIT).unwrap();
    hits
}

/// Returns the facts that every boot must repeat: data accesses, and the branches with their
/// instructions. On arm64 only the functions and their branches, as code that loads an address may
/// have an instruction more or less.
pub fn of_any_boot(arch: Arch, cost: &TriggerCost) -> (String, Option<u32>, Option<u32>) {
    let branches = match arch {
        Arch::X86_64 => cost.digest.clone(),
        Arch::Arm64 => {
            let records = cost.parts.iter().flat_map(|part| &part.records);
            let functions = records.map(|record| {
                let names = [&record.from, &record.to].map(|place| place.symbol.as_deref());
                (record.kind, names.map(|name| name.map(branch::stable_name)))
            });
            format!("{:?}", functions.collect::<Vec<_>>())
        }
    };
    assert!(cost.reads().is_some_and(|reads| reads > 0), "{cost:#?}");
    (branches, cost.reads(), cost.writes())
}

#[test]
#[ignore = "full: several guests; the cost of a hit runs in every change"]
fn sees_each_way_through_ftrace_on_x86_64() {
    let several = &["ftrace_regs_caller", "ftrace_ops_list_func", "function_trace_call"][..];
    sees_each_way_through_ftrace(
        Arch::X86_64,
        &[
            // The function calls the attached code itself.
            (
                Mechanism::Fentry,
                &[],
                &["bpf_trampoline_*"],
                &["ftrace_regs_caller", "ftrace_ops_list_func"],
            ),
            (
                Mechanism::KprobeMulti,
                &[],
                &["ftrace_trampoline", "fprobe_handler"],
                &["ftrace_regs_caller"],
            ),
            // The function calls ftrace, which walks its list.
            (
                Mechanism::Fentry,
                &["function_tracer"],
                &[several, &["call_direct_funcs", "bpf_trampoline_*"]].concat(),
                &[],
            ),
            (
                Mechanism::KprobeMulti,
                &["function_tracer"],
                &[several, &["fprobe_handler"]].concat(),
                &["ftrace_trampoline"],
            ),
            // Each ops has a copy of ftrace's code: a tracer of another function changes nothing.
            (
                Mechanism::KprobeMulti,
                &["function_tracer:10"],
                &["ftrace_trampoline", "fprobe_handler"],
                several,
            ),
        ],
    );
}

/// With CALL_OPS every traced function calls the one `ftrace_caller`, which reads the function's
/// own ops.
#[test]
#[ignore = "full: several guests; the cost of a hit runs in every change"]
fn sees_each_way_through_ftrace_on_arm64() {
    let several = &["ftrace_caller", "ftrace_ops_list_func", "function_trace_call"][..];
    sees_each_way_through_ftrace(
        Arch::Arm64,
        &[
            // A `bl` does not reach the trampoline.
            (
                Mechanism::Fentry,
                &[],
                &["ftrace_caller", "ftrace_caller_direct", "bpf_trampoline_*"],
                &["ftrace_ops_list_func", "call_direct_funcs"],
            ),
            // A single ops is called directly.
            (
                Mechanism::KprobeMulti,
                &[],
                &["ftrace_caller", "fprobe_ftrace_entry"],
                &["ftrace_ops_list_func", "ftrace_caller_direct"],
            ),
            (
                Mechanism::Fentry,
                &["function_tracer"],
                &[several, &["call_direct_funcs", "ftrace_caller_direct_late", "bpf_trampoline_*"]]
                    .concat(),
                &[],
            ),
            (
                Mechanism::KprobeMulti,
                &["function_tracer"],
                &[several, &["fprobe_ftrace_entry"]].concat(),
                &["ftrace_caller_direct"],
            ),
            // Each function has its own ops, so a tracer of another function changes nothing.
            (
                Mechanism::KprobeMulti,
                &["function_tracer:1"],
                &["ftrace_caller", "fprobe_ftrace_entry"],
                &several[1..],
            ),
            // The entry has a breakpoint, then the call of ftrace.
            (
                Mechanism::Fentry,
                &["kprobe"],
                &["kprobe_brk_handler", "ftrace_caller_direct", "bpf_trampoline_*"],
                &["ftrace_ops_list_func"],
            ),
        ],
    );
}

/// The mechanism measured, tracers beside it, functions that a hit enters, functions it does not.
type Way<'a> = (Mechanism, &'a [&'a str], &'a [&'a str], &'a [&'a str]);

fn sees_each_way_through_ftrace(arch: Arch, ways: &[Way]) {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
    for (number, &(mechanism, beside, through, past)) in (0..).zip(ways) {
        let beside = set(beside);
        let cost = hit(&mut vm, dir.path(), number, mechanism, beside);
        let records = cost.parts.iter().flat_map(|part| &part.records);
        let entered: BTreeSet<String> = records
            .filter(|record| record.to.offset == 0)
            .filter_map(|record| record.to.symbol.as_deref())
            .map(|symbol| branch::stable_name(symbol).into_owned())
            .collect();
        let what = beside.with(mechanism);
        for name in through {
            assert!(entered.contains(*name), "{what} does not go through {name}: {entered:#?}");
        }
        for name in past {
            assert!(!entered.contains(*name), "{what} goes through {name}: {entered:#?}");
        }
    }
    vm.power_off(LIMIT).unwrap();
}
