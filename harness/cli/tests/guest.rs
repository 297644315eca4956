// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real guests through the library: their measurements, and their failures.

mod machine;

use machine::spec;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tramplab_analysis::branch::{self, Branch, Filter, Model};
use tramplab_model::run::{Arch, ErrorKind, LbrWaste, TriggerCost};
use tramplab_protocol::{
    Beside, BesideSet, Functions, Mechanism,
    message::{
        AttachReply, AttachRequest, Command, Explain, ExplainReply, ExplainRequest, Fault, GuestError,
        LbrWasteRequest, PhaseReply, Response, Samples, Symbol, TriggerRequest,
    },
    trace::{self, Trace},
};
use tramplab_vm::{Snapshots, Spec, Vm, VmError};

const LIMIT: Duration = Duration::from_secs(60);

fn waste(arch: Arch, vm: &mut Vm, dir: &Path, number: u64, mechanism: Mechanism) -> LbrWaste {
    let request = Command::LbrWaste(LbrWasteRequest {
        mechanism,
        hits: 8,
        warmup: 3,
        deliver: None,
        hardware: Vec::new(),
    });
    let Response::LbrWaste(reply) = vm.request(request, LIMIT).unwrap().unwrap() else { panic!() };
    let (trace, symbols) = recorded(vm, dir, number);
    branch::lbr_waste(arch, &trace, &symbols.into_iter().collect(), &reply).unwrap()
}

/// Reads a trace and resolves its addresses while the program is still attached.
fn recorded(vm: &mut Vm, dir: &Path, number: u64) -> (Trace, Vec<Symbol>) {
    let trace = Trace::decode(&fs::read(trace::file_name(dir, number)).unwrap()).unwrap();
    let addresses = branch::symbols::addresses(&trace);
    let Response::Resolve { symbols } = vm.request(Command::Resolve { addresses }, LIMIT).unwrap().unwrap()
    else {
        panic!()
    };
    (trace, symbols)
}

/// One mechanism of each kind of entry and exit. Kprobes are among them, as they take exceptions.
const WAYS: [Mechanism; 6] = [
    Mechanism::Fentry,
    Mechanism::Fexit,
    Mechanism::KprobeMulti,
    Mechanism::KretprobeMulti,
    Mechanism::Kprobe,
    Mechanism::Kretprobe,
];

#[test]
fn waste_repeats_within_and_across_boots_on_x86_64() {
    waste_repeats_within_and_across_boots(Arch::X86_64);
}

#[test]
fn waste_repeats_within_and_across_boots_on_arm64() {
    waste_repeats_within_and_across_boots(Arch::Arm64);
}

fn waste_repeats_within_and_across_boots(arch: Arch) {
    let mut seen = BTreeSet::new();
    // Twice in one boot, and once in another.
    for rounds in [2, 1] {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
        let mut number = 0;
        let mut of_this_boot = BTreeSet::new();
        for _round in 0..rounds {
            let mut found = vec![];
            for mechanism in WAYS {
                let waste = waste(arch, &mut vm, dir.path(), number, mechanism);
                number += 1;
                found.push(waste);
            }
            seen.insert(of_any_boot(arch, &found));
            of_this_boot.insert(digests(&found));
        }
        assert_eq!(of_this_boot.len(), 1, "{of_this_boot:#?}");
        vm.power_off(LIMIT).unwrap();
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

fn digests(found: &[LbrWaste]) -> Vec<String> {
    found.iter().flat_map(|waste| &waste.points).map(|point| point.digest.clone()).collect()
}

/// Returns what every boot must repeat. On x86-64 this is every record. On arm64 it is the counts:
/// the JIT loads an address with a varying number of instructions, which moves the code behind
/// them.
fn of_any_boot(arch: Arch, found: &[LbrWaste]) -> Vec<String> {
    match arch {
        Arch::X86_64 => digests(found),
        Arch::Arm64 => {
            found.iter().flat_map(|waste| &waste.points).map(|point| format!("{:?}", point.wasted)).collect()
        }
    }
}

#[test]
fn restored_guest_measures_the_same_on_x86_64() {
    restored_guest_measures_the_same(Arch::X86_64);
}

#[test]
fn restored_guest_measures_the_same_on_arm64() {
    restored_guest_measures_the_same(Arch::Arm64);
}

fn restored_guest_measures_the_same(arch: Arch) {
    let cache = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    let mut random = BTreeSet::new();
    for (start, restored, noted) in [
        ("boots, is kept, and is restored for the cell", true, None),
        ("restored", true, None),
        ("the snapshot is damaged", true, Some("its checksum is not what it was")),
        ("restored again", true, None),
        ("a QEMU that restores nothing", false, Some("out of luck")),
        ("a cache that is a file", false, Some("no snapshot was kept: ")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = spec(arch, dir.path());
        let mut snapshots = Snapshots { cache: cache.path().to_owned(), contents: "this test's".to_owned() };
        match start {
            "the snapshot is damaged" => flip_a_bit(&kept(cache.path()).unwrap()),
            "a QEMU that restores nothing" => spec.qemu.program = refusing(&spec.qemu.program, dir.path()),
            "a cache that is a file" => snapshots.cache = dir.path().join("initramfs.cpio"),
            _ => {}
        }
        spec.snapshots = Some(snapshots);
        let (mut vm, facts) = Vm::start(&spec).unwrap();
        let log = fs::read_to_string(dir.path().join("snapshot.log")).unwrap_or_default();
        assert_eq!(vm.restored(), restored, "{start}: {log}");
        assert!(noted.map_or(log.is_empty(), |words| log.contains(words)), "{start}: {log}");
        let measured: Vec<LbrWaste> = (0..)
            .zip([Mechanism::Fexit, Mechanism::Kretprobe])
            .map(|(number, mechanism)| waste(arch, &mut vm, dir.path(), number, mechanism))
            .collect();
        seen.insert(of_any_boot(arch, &measured));
        let Response::Moment(moment) = vm.request(Command::Moment, LIMIT).unwrap().unwrap() else { panic!() };
        assert!(facts.btf_bytes > 0, "{start}: {facts:?}");
        // The wall clock is right again, within the seconds that the guest takes.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(
            now.abs_diff(Duration::from_nanos(moment.realtime_ns)) < LIMIT,
            "{start}: {now:?} {moment:?}"
        );
        assert!(random.insert(moment.random), "{start}: {random:?}");
        vm.power_off(LIMIT).unwrap();
        let log = fs::read_to_string(dir.path().join("console.log")).unwrap();
        assert!(log.contains("Linux version"), "{start}: {log}");
        // Useless snapshots are removed.
        assert_eq!(kept(cache.path()).is_some(), restored, "{start}");
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

/// Each fault is a word on the kernel's command line. The guest measures, but is no model for
/// others.
#[test]
fn keeps_no_snapshot_of_a_faulty_guest() {
    for (word, clock_source, noted) in [
        ("tsc=unstable", "hpet", "Marking TSC unstable due to boot parameter"),
        ("clocksource=hpet", "hpet", "its clock source is hpet, not tsc"),
        ("maxcpus=1", "tsc", "it runs on 1 CPUs, not on 2"),
    ] {
        let (cache, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut spec = spec(Arch::X86_64, dir.path());
        spec.append.push(word.to_owned());
        spec.cpus = 2;
        spec.snapshots =
            Some(Snapshots { cache: cache.path().to_owned(), contents: "this test's".to_owned() });
        let (mut vm, facts) = Vm::start(&spec).unwrap();
        let log = fs::read_to_string(dir.path().join("snapshot.log")).unwrap_or_default();
        assert!(log.contains(noted), "{word}: {log}");
        assert_eq!((vm.restored(), kept(cache.path())), (false, None), "{word}: {log}");
        assert!(facts.clocksource.starts_with(clock_source), "{word}: {facts:?}");
        // The guest still measures.
        assert!(!waste(Arch::X86_64, &mut vm, dir.path(), 0, Mechanism::Fexit).points.is_empty());
        vm.power_off(LIMIT).unwrap();
    }
}

/// Returns the only snapshot in the cache.
fn kept(cache: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(cache.join("snapshot")).ok()?.map(|entry| entry.unwrap().path().join("state"));
    let mut kept: Vec<PathBuf> = entries.filter(|state| state.exists()).collect();
    assert!(kept.len() < 2, "{kept:?}");
    kept.pop()
}

/// A QEMU that boots guests but restores none.
fn refusing(program: &Path, dir: &Path) -> PathBuf {
    let path = dir.join("qemu");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *-incoming*) echo out of luck >&2; exit 1;; esac\n\
         exec {} \"$@\"\n",
        program.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn flip_a_bit(file: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(file).unwrap();
    let at = file.metadata().unwrap().len() - 1000;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Compares the program's records with the trace. The plugin knows the model as two sets of kinds.
#[test]
fn delivers_the_records_of_the_trace() {
    let arch = Arch::X86_64;
    let dir = tempfile::tempdir().unwrap();
    let delivering = machine::delivering(arch, dir.path());
    let mut vm = Vm::boot(&delivering).unwrap();
    let mut number = 0;
    let mut hit = |mechanism, deliver| {
        let request = Command::LbrWaste(LbrWasteRequest {
            mechanism,
            hits: 3,
            warmup: 3,
            deliver,
            hardware: Vec::new(),
        });
        let Response::LbrWaste(reply) = vm.request(request, LIMIT).unwrap().unwrap() else { panic!() };
        let (trace, symbols) = recorded(&mut vm, dir.path(), number);
        number += 1;
        let symbols: branch::Symbols = symbols.into_iter().collect();
        let waste = branch::lbr_waste(arch, &trace, &symbols, &reply).unwrap();
        (reply, trace, symbols, waste.points[0].digest.clone())
    };
    // A breakpoint on the way in, and a return probe.
    for mechanism in [Mechanism::Fentry, Mechanism::Kprobe, Mechanism::KretprobeMulti] {
        // Without delivery there is no driver.
        let (reply, _, _, plain) = hit(mechanism, None);
        assert_eq!((reply.snapshot_result, reply.snapshot.len()), (-2, 0));
        for (model, filter, depth) in [
            (Model::IntelLbr, "any", 32),
            (Model::AmdLbrV2, "any_call|cond", 16),
            (Model::ArchLbr, "any_return", 8),
        ] {
            let filter: Filter = filter.parse().unwrap();
            let what = format!("{mechanism} {model} {filter}");
            let (reply, trace, symbols, digest) = hit(mechanism, Some(model.delivered(filter, depth)));
            let delivered = branch::delivered(model, filter, depth, &trace, &symbols, &reply)
                .unwrap_or_else(|error| panic!("{what}: {error}\n{reply:x?}"));
            assert!(delivered.records > 0, "{what}");
            // Delivery happens after the trace's records, so it changes none.
            assert_eq!(digest, plain, "{what}");
            // Records of another filter do not match.
            let other = Filter::of(Branch::Call);
            assert!(branch::delivered(model, other, depth, &trace, &symbols, &reply).is_err(), "{what}");
        }
    }
    vm.power_off(LIMIT).unwrap();
}

/// Longer than tens of thousands of functions take on a loaded machine.
const LONG: Duration = Duration::from_secs(400);
/// Largest share of a phase's wall time that may be neither CPU time nor waiting. When a wake-up
/// preempts the thread, the scheduler charges the time until the switch to the next thread: a few
/// per cent, more on a loaded host. Lost waits would be three quarters of detaching.
const UNEXPLAINED: f64 = 0.5;

fn rounds_of(mechanism: Mechanism, functions: Functions, rounds: u32) -> AttachRequest {
    AttachRequest { mechanism, functions, rounds, seed: 1, seconds: None }
}

fn count(functions: u32) -> Functions {
    Functions::Count(functions.try_into().unwrap())
}

fn attach(vm: &mut Vm, request: AttachRequest) -> Result<AttachReply, GuestError> {
    vm.request(Command::Attach(request), LONG).unwrap().map(|response| match response {
        Response::Attach(reply) => reply,
        other => panic!("{other:?}"),
    })
}

fn explain(vm: &mut Vm, attach: AttachRequest) -> ExplainReply {
    let request = ExplainRequest { attach, how: Explain::Sampled };
    match vm.request(Command::Explain(request), LONG).unwrap().unwrap() {
        Response::Explain(reply) => *reply,
        other => panic!("{other:?}"),
    }
}

/// Resolves addresses to names; unknown ones become hexadecimal numbers.
fn names(vm: &mut Vm, addresses: &[u64]) -> Vec<String> {
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
    let mine: Vec<_> = samples.stacks.iter().filter(|s| s.measured && !s.stack.is_empty()).collect();
    let inner: Vec<u64> = mine.iter().map(|sample| sample.stack[0]).collect();
    let mut counts = BTreeMap::new();
    for (name, sample) in names(vm, &inner).into_iter().zip(mine) {
        *counts.entry(name).or_insert(0) += sample.count;
    }
    let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

#[test]
fn samples_and_waits_explain_a_round_on_x86_64() {
    samples_and_waits_explain_a_round(Arch::X86_64);
}

#[test]
fn samples_and_waits_explain_a_round_on_arm64() {
    samples_and_waits_explain_a_round(Arch::Arm64);
}

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
    let counted =
        |event: &str| reply.detach.counters.iter().find(|one| one.event == event).map(|one| one.count);
    assert!(counted("context-switches") >= Some(*times), "{:?}", reply.detach.counters);
    assert!(counted("task-clock") > Some(0), "{:?}", reply.detach.counters);
    assert!(counted("cycles").is_none(), "{:?}", reply.detach.counters);
    assert_eq!(stack[0], "__schedule");
    assert!(stack.iter().any(|name| name == "synchronize_rcu_tasks"), "{waits:#?}");
    assert!(*times >= 20, "{waits:#?}");
    // The kernel's stack map may lose a stack whose slot another one takes.
    let times =
        |waits: &mut dyn Iterator<Item = &(Vec<String>, u64)>| waits.map(|(_, times)| times).sum::<u64>();
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
    let budgeted = AttachRequest { seconds: Some(1), ..rounds_of(Mechanism::Kprobe, Functions::All, 9) };
    let reply = explain(&mut vm, budgeted);
    assert!((1..30_000).contains(&reply.functions), "{}", reply.functions);
    assert_eq!(reply.links, reply.functions);
    assert_adds_up(&reply.attach, "attaching kprobes until the budget ends it");
    vm.power_off(LIMIT).unwrap();
}

#[test]
fn attaches_all_functions_and_stops_at_the_time_budget_on_x86_64() {
    attaches_all_functions_and_stops_at_the_time_budget(Arch::X86_64);
}

#[test]
fn attaches_all_functions_and_stops_at_the_time_budget_on_arm64() {
    attaches_all_functions_and_stops_at_the_time_budget(Arch::Arm64);
}

fn attaches_all_functions_and_stops_at_the_time_budget(arch: Arch) {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();

    let reply = attach(&mut vm, rounds_of(Mechanism::KprobeMulti, Functions::All, 1)).unwrap();
    assert!(reply.functions.len() > 35_000, "{} functions", reply.functions.len());
    let names: BTreeSet<&String> = reply.functions.iter().collect();
    assert!(names.len() < reply.functions.len(), "namesakes are functions too");
    assert!(reply.rounds[0].memory_kib > Some(0) && reply.stopped.is_none(), "{:?}", reply.rounds);

    let budgeted = AttachRequest { seconds: Some(1), ..rounds_of(Mechanism::Fentry, Functions::All, 3) };
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

fn hit(vm: &mut Vm, dir: &Path, number: u64, mechanism: Mechanism, beside: BesideSet) -> TriggerCost {
    let request = TriggerRequest { mechanism, beside, hits: 8, warmup: 3, timed: 10, rounds: 2 };
    let Response::Trigger(reply) = vm.request(Command::Trigger(request), LIMIT).unwrap().unwrap() else {
        panic!()
    };
    assert_eq!((reply.attached_ns.len(), reply.detached_ns.len(), reply.timed), (2, 2, 10));
    let (trace, symbols) = recorded(vm, dir, number);
    let what = beside.with(mechanism);
    branch::trigger_cost(&trace, &symbols.into_iter().collect(), &reply)
        .unwrap_or_else(|e| panic!("{what}: {e}"))
}

#[test]
fn hit_cost_repeats_and_ranks_mechanisms_on_x86_64() {
    hit_cost_repeats_and_ranks_mechanisms(Arch::X86_64);
}

#[test]
fn hit_cost_repeats_and_ranks_mechanisms_on_arm64() {
    hit_cost_repeats_and_ranks_mechanisms(Arch::Arm64);
}

fn hit_cost_repeats_and_ranks_mechanisms(arch: Arch) {
    let mut seen = BTreeSet::new();
    for _boot in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
        let cost = |(number, mechanism)| -> TriggerCost {
            hit(&mut vm, dir.path(), number, mechanism, BesideSet::default())
        };
        let costs: Vec<TriggerCost> = (0..).zip(WAYS).map(cost).collect();
        let [fentry, fexit, kprobe, kretprobe] = [0, 1, 2, 3].map(|i: usize| costs[i].instructions());
        assert!(fentry < fexit && fentry < kprobe && kprobe < kretprobe, "{costs:#?}");
        seen.insert(costs.into_iter().map(|cost| cost.digest).collect::<Vec<_>>());
        vm.power_off(LIMIT).unwrap();
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

#[test]
fn sees_each_way_through_ftrace_on_x86_64() {
    let several = &["ftrace_regs_caller", "ftrace_ops_list_func", "function_trace_call"][..];
    sees_each_way_through_ftrace(
        Arch::X86_64,
        &[
            // The function calls the attached code itself.
            (Mechanism::Fentry, &[], &["bpf_trampoline_*"], &["ftrace_regs_caller", "ftrace_ops_list_func"]),
            (Mechanism::KprobeMulti, &[], &["ftrace_trampoline", "fprobe_handler"], &["ftrace_regs_caller"]),
            // The function calls ftrace, which walks its list.
            (
                Mechanism::Fentry,
                &[Beside::FunctionTracer],
                &[several, &["call_direct_funcs", "bpf_trampoline_*"]].concat(),
                &[],
            ),
            (
                Mechanism::KprobeMulti,
                &[Beside::FunctionTracer],
                &[several, &["fprobe_handler"]].concat(),
                &["ftrace_trampoline"],
            ),
        ],
    );
}

/// With CALL_OPS every traced function calls the one `ftrace_caller`, which reads the function's
/// own ops.
#[test]
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
                &[Beside::FunctionTracer],
                &[several, &["call_direct_funcs", "ftrace_caller_direct_late", "bpf_trampoline_*"]].concat(),
                &[],
            ),
            (
                Mechanism::KprobeMulti,
                &[Beside::FunctionTracer],
                &[several, &["fprobe_ftrace_entry"]].concat(),
                &["ftrace_caller_direct"],
            ),
            // The entry has a breakpoint, then the call of ftrace.
            (
                Mechanism::Fentry,
                &[Beside::Mechanism(Mechanism::Kprobe)],
                &["kprobe_brk_handler", "ftrace_caller_direct", "bpf_trampoline_*"],
                &["ftrace_ops_list_func"],
            ),
        ],
    );
}

/// The mechanism measured, tracers beside it, functions that a hit enters, functions it does not.
type Way<'a> = (Mechanism, &'a [Beside], &'a [&'a str], &'a [&'a str]);

fn sees_each_way_through_ftrace(arch: Arch, ways: &[Way]) {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
    for (number, &(mechanism, beside, through, past)) in (0..).zip(ways) {
        let beside: BesideSet = beside.iter().copied().collect();
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

/// A way for a guest to fail, and the expected error.
struct Failure {
    name: &'static str,
    spec: fn(&mut Spec),
    /// Runs once the guest has answered; `None` if it must not get that far.
    then: Option<fn(&mut Vm) -> VmError>,
    kind: ErrorKind,
    words: &'static str,
}

fn inject(vm: &mut Vm, fault: Fault) -> VmError {
    vm.request(Command::Inject(fault), LIMIT).unwrap_err()
}

fn short(spec: &mut Spec) {
    spec.deadlines.silence = Duration::from_secs(4);
}

/// The kernel's first instruction jumps to itself.
fn hanging_kernel(spec: &mut Spec) {
    let mut image = fs::read(&spec.kernel).unwrap();
    image[0x200..0x202].copy_from_slice(&[0xeb, 0xfe]);
    spec.kernel = spec.dir.join("hangs");
    fs::write(&spec.kernel, image).unwrap();
    spec.deadlines.boot = Duration::from_secs(4);
}

/// More failures are rows of the fault matrix, `faults/`.
const FAILURES: &[Failure] = &[
    Failure {
        name: "the plugin is no library",
        spec: |spec| spec.plugin = Some("Cargo.toml".into()),
        then: None,
        kind: ErrorKind::QemuStart,
        words: "plugin",
    },
    Failure {
        name: "the kernel hangs at boot",
        spec: hanging_kernel,
        then: None,
        kind: ErrorKind::BootTimeout,
        words: "first word",
    },
    Failure {
        name: "the kernel panics at boot",
        spec: |spec| spec.append.push("rdinit=/none init=/none".to_owned()),
        then: None,
        kind: ErrorKind::Panic,
        words: "Kernel panic - not syncing",
    },
    Failure {
        name: "panic",
        spec: short,
        then: Some(|vm| inject(vm, Fault::Panic)),
        kind: ErrorKind::Panic,
        words: "sysrq triggered crash",
    },
    Failure {
        name: "the agent exits",
        spec: short,
        then: Some(|vm| inject(vm, Fault::ExitAgent)),
        kind: ErrorKind::Panic,
        words: "Attempted to kill init",
    },
];

/// The architecture decides how a kernel panics; QEMU and the harness decide the rest.
#[test]
fn names_every_panic_on_arm64() {
    let panics = FAILURES.iter().filter(|failure| failure.kind == ErrorKind::Panic);
    panics.for_each(|failure| check(Arch::Arm64, failure));
}

#[test]
fn names_failures_before_the_kernel_speaks() {
    let others = FAILURES.iter().filter(|failure| failure.kind != ErrorKind::Panic);
    others.for_each(|failure| check(Arch::X86_64, failure));
}

fn check(arch: Arch, failure: &Failure) {
    let name = failure.name;
    let dir = tempfile::tempdir().unwrap();
    let mut spec = spec(arch, dir.path());
    (failure.spec)(&mut spec);
    let mut process = None;
    let error = match (Vm::boot(&spec), failure.then) {
        (Err(error), None) => error,
        (Ok(mut vm), Some(then)) => {
            process = Some(vm.process_id());
            then(&mut vm)
        }
        (Err(error), Some(_)) => {
            panic!("{name}: it did not even boot: {error}\n{:#?}", error.console_tail)
        }
        (Ok(_), None) => panic!("{name}: it booted"),
    };
    assert_eq!(error.kind, failure.kind, "{name}: {error}\n{:#?}", error.console_tail);
    assert!(error.message.contains(failure.words), "{name}: {error}");
    if matches!(error.kind, ErrorKind::Panic | ErrorKind::RcuStall) {
        assert!(error.console_tail.iter().any(|line| line.contains(failure.words)), "{name}: {error:#?}");
    }
    if let Some(process) = process {
        assert!(!Path::new(&format!("/proc/{process}")).exists(), "{name}: QEMU is still there");
    }
    let known = ["initramfs.cpio", "console.log", "qemu.log", "hangs"];
    for entry in fs::read_dir(dir.path()).unwrap() {
        let file = entry.unwrap().file_name();
        assert!(known.iter().any(|known| file == *known), "{name}: {file:?} was left behind");
    }
}
