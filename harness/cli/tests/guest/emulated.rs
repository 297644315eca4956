// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own drivers on branch records that the plugin plays.

use super::{LIMIT, recorded};
use crate::{command, exec, machine};
use std::{collections::BTreeMap, fs, path::Path, process};
use tramplab_analysis::branch::{self, Branch, DriverError, Filter, Model, driver};
use tramplab_host::config;
use tramplab_model::{
    cpu::Cpu,
    run::{Arch, BranchSource, CapturePoint, LbrWaste, Measurement, Run, Test},
};
use tramplab_protocol::{
    Mechanism,
    message::{Command, LbrWasteReply, LbrWasteRequest, Response},
    trace::{self, Kind, Record, Trace},
};
use tramplab_vm::{Snapshots, Spec, Vm};

/// The CPUs with branch records, and the words by which their drivers greet.
const CPUS: [(&str, Model, u32, &str); 3] = [
    ("zen4", Model::AmdLbrV2, 16, "16-deep LBR, core perfctr, AMD PMU driver"),
    ("skylake", Model::IntelLbr, 32, "Skylake events, 32-deep LBR, Intel PMU driver"),
    ("golden-cove", Model::ArchLbr, 32, "Architectural LBR, Sapphire Rapids events"),
];

#[test]
fn zen4_hands_over_the_records_of_the_trace() {
    hands_over_the_records_of_the_trace(CPUS[0], true);
}

#[test]
fn skylake_hands_over_the_records_of_the_trace() {
    hands_over_the_records_of_the_trace(CPUS[1], false);
}

#[test]
fn golden_cove_hands_over_the_records_of_the_trace() {
    hands_over_the_records_of_the_trace(CPUS[2], true);
}

/// In a restored guest, or in one with two CPUs, under every filter and both unions.
fn hands_over_the_records_of_the_trace(cpu: (&str, Model, u32, &str), restored: bool) {
    let (name, model, depth, greeting) = cpu;
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let cpu: Cpu = config::load(&root.join(format!("configs/cpus/{name}.yaml"))).unwrap();
    let snapshots = Snapshots { cache: dir.path().to_owned(), contents: name.to_owned() };
    let spec = Spec {
        cpu: Some(cpu.qemu.cpu),
        played: Some(format!("{model}:{depth}")),
        append: [&["loglevel=7".to_owned()][..], &cpu.mitigations.append].concat(),
        cpus: if restored { 1 } else { 2 },
        snapshots: restored.then_some(snapshots),
        ..machine::delivering(Arch::X86_64, dir.path())
    };
    let (mut vm, _) = Vm::start(&spec).unwrap();
    assert_eq!(vm.restored(), restored);
    let console = std::fs::read_to_string(dir.path().join("console.log")).unwrap();
    assert!(console.contains(greeting), "{console}");
    let events = driver::events();
    // No way to the driver has an indirect jump.
    let filters = Branch::ALL.map(Filter::of).into_iter().chain(Filter::UNIONS);
    let filters = filters.filter(|&filter| filter != Filter::of(Branch::IndJump));
    let mut number = 0;
    for filter in filters {
        let of_branch = |branch| Branch::ALL.iter().position(|&other| other == branch).unwrap();
        let event = filter.branches().map(|branch| events[of_branch(branch)]).fold(0, |a, b| a | b);
        // An interrupt may come shortly before a snapshot, and again on a starved machine.
        let (reply, trace, symbols) = loop {
            let reply = hit(&mut vm, event);
            let (trace, symbols) = recorded(&mut vm, dir.path(), number);
            number += 1;
            let symbols: branch::Symbols = symbols.into_iter().collect();
            match driver::check_emulated(model, filter, &trace, &symbols, &reply) {
                Err(DriverError::Interrupted) if number < 100 => {}
                _ => break (reply, trace, symbols),
            }
        };
        assert_eq!(branch::driver::depth(&reply), Ok(depth), "{name} {filter}");
        let check =
            |reply: &LbrWasteReply| driver::check_emulated(model, filter, &trace, &symbols, reply);
        let own = check(&reply);
        let own = own.unwrap_or_else(|error| panic!("{name} {filter}: {error}\n{reply:x?}"));
        let mut wrong = reply.clone();
        wrong.snapshot[0].1 += 1;
        assert_eq!(check(&wrong), Err(DriverError::Differs { same: 0 }), "{name} {filter}");
        // The ring of `any` is full: a record that is missing is found anywhere.
        if filter == Filter::of(Branch::Any) {
            let of_cpu = OWN.into_iter().find(|(other, ..)| *other == name).unwrap();
            assert_eq!(own, of_cpu.1[0] as usize, "{name}");
            for at in 0..depth as usize - 1 {
                let mut wrong = reply.clone();
                wrong.snapshot.remove(at);
                let found = check(&wrong);
                assert!(
                    matches!(found, Err(DriverError::Differs { .. })),
                    "{name} {at}: {found:?}"
                );
            }
        }
    }
    vm.power_off(LIMIT).unwrap();
}

fn hit(vm: &mut Vm, event: u64) -> LbrWasteReply {
    let request = Command::LbrWaste(LbrWasteRequest {
        mechanism: Mechanism::Fexit,
        program: None,
        function: None,
        command: None,
        hits: 2,
        warmup: 3,
        deliver: None,
        events: vec![event],
    });
    match vm.request(request, LIMIT).unwrap().unwrap() {
        Response::LbrWaste(reply) => *reply,
        other => panic!("{other:?}"),
    }
}

/// By CPU: the driver's own records under `any`, `any_call`, `any_return` and `call`, with
/// PARAVIRT_XXL; and how many more an exit sees under the calls if the entry took a snapshot, too:
/// its driver calls after it has started the ring again. On Zen 4 a return is three records (SRSO).
const OWN: [(&str, [u32; 4], u32); 3] =
    [("zen4", [9, 5, 2, 5], 0), ("skylake", [5, 3, 2, 3], 4), ("golden-cove", [3, 2, 1, 2], 3)];

/// Every mechanism, filter and CPU, on three kernels: the virtual count of a guest without a driver
/// and the driver's own records make the emulated one.
#[test]
#[ignore = "full: five minutes of guests"]
fn virtual_and_driver_make_emulated() {
    let dir = tempfile::tempdir().unwrap();
    let measured = |branches: &str, qemu: &str| {
        let runs = dir.path().join(branches);
        let mut command = command::tramplab();
        command.args(["vm-test", "--suite", "waste", "--arch", "x86_64", "--branches", branches]);
        command.args(["--kernel", "6.1", "--kernel", "6.12", "--kernel", "7.2"]);
        command.env("TRAMPLAB_QEMU_X86_64", machine::from_env(qemu));
        command.args(CPUS.iter().flat_map(|(name, ..)| ["--model", name]));
        let output = command.arg("--runs").arg(&runs).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", command::said(&output));
        command::stored(&runs)
    };
    let traced = measured("virtual", "TRAMPLAB_QEMU_X86_64");
    let emulated = measured("emulated", "TRAMPLAB_QEMU_DELIVERING_X86_64");
    let expected = points(&traced, BranchSource::Virtual);
    let found = points(&emulated, BranchSource::Emulated);
    let mut numbers = 0;
    for ((kernel, row), (waste, point)) in &found {
        let (_, of_trace) = expected[&(kernel.clone(), row.clone())];
        let cpu = kernel.split('+').next_back().unwrap();
        let (_, own, restarted) = OWN.into_iter().find(|(name, ..)| *name == cpu).unwrap();
        let family = waste.family.as_deref().unwrap();
        let depth = waste.depth.unwrap();
        for branch in Branch::ALL {
            let own = match branch {
                Branch::Any => own[0],
                Branch::AnyCall => own[1],
                Branch::AnyReturn => own[2],
                Branch::Call => own[3],
                _ => 0,
            };
            let is_restarted =
                row == "kprobe.session/exit" && matches!(branch, Branch::AnyCall | Branch::Call);
            let own = own + if is_restarted { restarted } else { 0 };
            let count = |point: &CapturePoint| point.wasted[family][branch.name()].wasted;
            let held = count(of_trace).map(|wasted| wasted + own).filter(|&all| all < depth);
            assert_eq!(count(point), held, "{kernel} {row} {}", branch.name());
            numbers += 1;
        }
    }
    assert!(numbers > 500, "{numbers}");
}

/// The capture points of a run by kernel and row.
fn points(
    run: &Run,
    source: BranchSource,
) -> BTreeMap<(String, String), (&LbrWaste, &CapturePoint)> {
    let mut points = BTreeMap::new();
    for cell in &run.cells {
        let (Some(Measurement::LbrWaste(waste)), Test::LbrWaste(test)) =
            (&cell.measurement, &cell.id.test)
        else {
            continue;
        };
        for point in waste.points.iter().filter(|_| waste.source == source) {
            let key = (cell.id.kernel.clone(), test.row(point.point).to_string());
            points.insert(key, (waste, point));
        }
    }
    points
}

/// Source, target and perf's type of a branch.
type Entry = (u64, u64, u32);
/// A sample of arm64's driver, newest first.
type Sample = Vec<Entry>;
/// The same of the trace; no type if the trace cannot tell it.
type Recorded = (u64, u64, Option<u32>);

/// The PMU of arm64 overflows, and its driver samples. Each sample is a part of what the plugin
/// recorded meanwhile, under the same filter and without a gap.
#[test]
fn samples_of_arm64_are_parts_of_the_trace() {
    for (depth, cpu) in [(32, "max,pauth-impdef=on"), (64, "neoverse-n2,pauth-impdef=on")] {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = Spec {
            cpu: Some(cpu.to_owned()),
            played: Some(format!("{}:{depth}", Model::Brbe)),
            ..machine::delivering(Arch::Arm64, dir.path())
        };
        let program = dir.path().join("samples");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/samples_branches.c");
        let made = process::Command::new("aarch64-linux-gnu-gcc")
            .args(["-static", "-o"])
            .args([&program, &source])
            .status();
        assert!(made.unwrap().success());
        exec::pack(&mut spec, &program, "samples");
        let mut vm = Vm::boot(&spec).unwrap();
        let said = exec::said(&mut vm, &["/own/samples"], None);
        vm.power_off(LIMIT).unwrap();
        let first = format!("32-bit program: 42\ndepth {depth}\n");
        assert!(said.starts_with(&first), "{said}");
        // BRBE has no mode of call stacks.
        let refused = nix::errno::Errno::EOPNOTSUPP as i32;
        assert!(said.ends_with(&format!("event stack {refused}\n")), "{said}");
        for (number, name) in (0..).zip(["user", "kernel", "both", "returns"]) {
            let trace = fs::read(trace::file_name(dir.path(), number)).unwrap();
            let trace = Trace::decode(&trace).unwrap();
            let of_trace = |record: &Record| entry(name, record).map(|entry| (entry, record.kind));
            let (recorded, kinds): (Vec<_>, Vec<_>) =
                trace.vcpus[0].records.iter().filter_map(of_trace).unzip();
            let samples = samples(&said, name);
            let full = samples.iter().filter(|sample| sample.len() == depth).count();
            assert!(full > 0, "{depth} {name}: {said}");
            let mut behind = Vec::new();
            for sample in samples.iter().filter(|sample| !sample.is_empty()) {
                let end = end_of(sample, &recorded);
                let end = end.unwrap_or_else(|| panic!("{depth} {name}: {sample:x?}"));
                behind.extend(kinds.get(end));
            }
            // An overflow freezes the records before its own interrupt is one.
            assert!(name != "both" || behind.contains(&Kind::Interrupt), "{behind:?}");
            // Neither a changed record nor a missing one is overlooked.
            let sample = samples.iter().find(|sample| sample.len() == depth).unwrap();
            let mut wrong = sample.clone();
            wrong[depth / 2].1 += 4;
            assert_eq!(end_of(&wrong, &recorded), None, "{name}");
            // The kernel's loops repeat records.
            if name == "user" {
                let mut wrong = sample.clone();
                wrong.remove(depth / 2);
                assert_eq!(end_of(&wrong, &recorded), None);
            }
        }
    }
}

fn samples(said: &str, name: &str) -> Vec<Sample> {
    let mut lines = said.lines();
    let mut samples = Vec::new();
    while let Some(line) = lines.next() {
        let Some(count) = line.strip_prefix(&format!("sample {name} ")) else { continue };
        let entry = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let hex = |word| u64::from_str_radix(word, 16).unwrap();
            (hex(words[0]), hex(words[1]), words[2].parse().unwrap())
        };
        samples.push(lines.by_ref().take(count.parse().unwrap()).map(entry).collect());
    }
    samples
}

/// A branch as BRBE records it for one of the program's events. Perf's type is none for an
/// exception, of which the trace does not say the class.
fn entry(name: &str, record: &Record) -> Option<Recorded> {
    let is_seen = |address: u64| name != if address >> 63 == 1 { "user" } else { "kernel" };
    let is_chosen = match record.kind {
        Kind::Ret => true,
        Kind::Iret => name != "user",
        Kind::Syscall | Kind::Int | Kind::Interrupt => matches!(name, "kernel" | "both"),
        _ => name != "returns",
    };
    // `PERF_BR_*`.
    let of_perf = match record.kind {
        Kind::Cond => Some(1),
        Kind::Jump => Some(2),
        Kind::IndJump => Some(3),
        Kind::Call => Some(4),
        Kind::IndCall => Some(5),
        Kind::Ret => Some(6),
        Kind::Syscall => Some(7),
        Kind::Iret => Some(11),
        Kind::Sysret | Kind::Int | Kind::Interrupt => None,
    };
    let end = |address| if is_seen(address) { address } else { 0 };
    let is_recorded = is_chosen && (is_seen(record.from) || is_seen(record.to));
    is_recorded.then(|| (end(record.from), end(record.to), of_perf))
}

/// The place behind a sample in what was recorded.
fn end_of(sample: &Sample, recorded: &[Recorded]) -> Option<usize> {
    let is_same = |((from, to, of_perf), record): (&Entry, &Recorded)| {
        (*from, *to) == (record.0, record.1) && record.2.is_none_or(|known| known == *of_perf)
    };
    let mut windows = recorded.windows(sample.len());
    let start = windows.position(|window| sample.iter().rev().zip(window).all(is_same));
    start.map(|start| start + sample.len())
}
