// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real guests through the library: what they measure, and how they die.

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tramplab::{
    branch,
    run::{Accel, Arch, ErrorKind, LbrWaste, TriggerCost},
    vm::{Deadlines, QemuProgram, Spec, Vm, VmError, initramfs},
};
use tramplab_protocol::{
    Mechanism,
    message::{Command, Fault, LbrWasteRequest, Response, Symbol, TriggerReply, TriggerRequest},
    trace::{self, Trace},
};

fn from_env(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`")).into()
}

fn spec(dir: &Path) -> Spec {
    let initrd = dir.join("initramfs.cpio");
    initramfs::build(&from_env("TRAMPLAB_AGENT"), &[], &initrd).unwrap();
    Spec {
        qemu: QemuProgram { program: from_env("TRAMPLAB_QEMU"), arguments: vec![], environment: vec![] },
        arch: Arch::X86_64,
        accel: Accel::Tcg,
        kernel: from_env("TRAMPLAB_TEST_KERNEL"),
        initrd,
        cpus: 1,
        memory_mib: 1024,
        append: vec![],
        plugin: Some(from_env("TRAMPLAB_PLUGIN")),
        dir: dir.to_owned(),
        deadlines: Deadlines { boot: Duration::from_secs(60), silence: Duration::from_secs(15) },
    }
}

const LIMIT: Duration = Duration::from_secs(60);

fn waste(vm: &mut Vm, dir: &Path, number: u64, mechanism: Mechanism) -> LbrWaste {
    let request = Command::LbrWaste(LbrWasteRequest { mechanism, hits: 8, warmup: 3 });
    let Response::LbrWaste(reply) = vm.request(request, LIMIT).unwrap().unwrap() else { panic!() };
    let (trace, symbols) = recorded(vm, dir, number);
    branch::lbr_waste(Arch::X86_64, &trace, &symbols.into_iter().collect(), &reply).unwrap()
}

/// A trace, and names for its addresses while what was attached still is.
fn recorded(vm: &mut Vm, dir: &Path, number: u64) -> (Trace, Vec<Symbol>) {
    let trace = Trace::decode(&fs::read(trace::file_name(dir, number)).unwrap()).unwrap();
    let addresses = branch::symbols::addresses(&trace);
    let Response::Resolve { symbols } = vm.request(Command::Resolve { addresses }, LIMIT).unwrap().unwrap()
    else {
        panic!()
    };
    (trace, symbols.into_iter().flatten().collect())
}

#[test]
fn waste_repeats_bit_for_bit_and_across_boots() {
    let mechanisms = [Mechanism::Fentry, Mechanism::Fexit, Mechanism::KprobeMulti, Mechanism::KretprobeMulti];
    let mut seen = BTreeSet::new();
    for _boot in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(spec(dir.path())).unwrap();
        let mut number = 0;
        for _round in 0..2 {
            let mut digests = vec![];
            for mechanism in mechanisms {
                let waste = waste(&mut vm, dir.path(), number, mechanism);
                number += 1;
                digests.extend(waste.points.into_iter().map(|point| point.digest));
            }
            seen.insert(digests);
        }
        vm.power_off(LIMIT).unwrap();
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

fn hit(vm: &mut Vm, dir: &Path, number: u64, mechanism: Mechanism) -> (Trace, Vec<Symbol>, TriggerReply) {
    let request = TriggerRequest { mechanism, hits: 8, warmup: 3, timed: 10, rounds: 2 };
    let Response::Trigger(reply) = vm.request(Command::Trigger(request), LIMIT).unwrap().unwrap() else {
        panic!()
    };
    assert_eq!((reply.attached_ns.len(), reply.detached_ns.len(), reply.timed), (2, 2, 10));
    let (trace, symbols) = recorded(vm, dir, number);
    (trace, symbols, reply)
}

#[test]
fn the_cost_of_a_hit_repeats_bit_for_bit_and_knows_the_dearer_mechanism() {
    let mechanisms = [Mechanism::Fentry, Mechanism::Fexit, Mechanism::KprobeMulti, Mechanism::KretprobeMulti];
    let mut seen = BTreeSet::new();
    for _boot in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(spec(dir.path())).unwrap();
        let cost = |(number, mechanism)| -> TriggerCost {
            let (trace, symbols, reply) = hit(&mut vm, dir.path(), number, mechanism);
            branch::trigger_cost(&trace, &symbols.into_iter().collect(), &reply).unwrap()
        };
        let costs: Vec<TriggerCost> = (0..).zip(mechanisms).map(cost).collect();
        let [fentry, fexit, kprobe, kretprobe] = [0, 1, 2, 3].map(|i: usize| costs[i].instructions());
        assert!(fentry < fexit && fentry < kprobe && kprobe < kretprobe, "{costs:#?}");
        seen.insert(costs.into_iter().map(|cost| cost.digest).collect::<Vec<_>>());
        vm.power_off(LIMIT).unwrap();
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

/// One way for a guest to fail, and what must be said of it.
struct Failure {
    name: &'static str,
    spec: fn(&mut Spec),
    /// Done to the guest once it answered; none when it must not get that far.
    then: Option<fn(&mut Vm) -> VmError>,
    kind: ErrorKind,
    words: &'static str,
}

fn inject(vm: &mut Vm, fault: Fault) -> VmError {
    vm.request(Command::Inject(fault), LIMIT).unwrap_err()
}

fn after_signal(vm: &mut Vm, signal: Signal) -> VmError {
    signal::kill(Pid::from_raw(vm.process_id() as i32), signal).unwrap();
    vm.request(Command::Facts, LIMIT).unwrap_err()
}

fn short(spec: &mut Spec) {
    spec.deadlines.silence = Duration::from_secs(4);
}

/// A kernel whose first instruction jumps to itself.
fn hanging_kernel(spec: &mut Spec) {
    let mut image = fs::read(&spec.kernel).unwrap();
    image[0x200..0x202].copy_from_slice(&[0xeb, 0xfe]);
    spec.kernel = spec.dir.join("hangs");
    fs::write(&spec.kernel, image).unwrap();
    spec.deadlines.boot = Duration::from_secs(4);
}

/// A QEMU that says and does nothing.
fn sleeping_qemu(spec: &mut Spec) {
    spec.qemu.program = "/bin/sh".into();
    spec.qemu.arguments = vec!["-c".into(), "exec sleep 1000".into()];
    spec.deadlines.boot = Duration::from_secs(1);
}

const FAILURES: &[Failure] = &[
    Failure {
        name: "QEMU is missing",
        spec: |spec| spec.qemu.program = "no-such-qemu".into(),
        then: None,
        kind: ErrorKind::QemuStart,
        words: "no-such-qemu",
    },
    Failure {
        name: "the plugin is none",
        spec: |spec| spec.plugin = Some("Cargo.toml".into()),
        then: None,
        kind: ErrorKind::QemuStart,
        words: "plugin",
    },
    Failure {
        name: "QEMU hangs",
        spec: sleeping_qemu,
        then: None,
        kind: ErrorKind::BootTimeout,
        words: "first word",
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
    Failure {
        name: "RCU stall",

        spec: |_| (),
        then: Some(|vm| inject(vm, Fault::RcuStall)),
        kind: ErrorKind::RcuStall,
        words: "stall",
    },
    Failure {
        name: "the agent falls silent",
        spec: short,
        then: Some(|vm| inject(vm, Fault::Silence)),
        kind: ErrorKind::Silence,
        words: "heartbeat",
    },
    Failure {
        name: "the agent sends garbage",
        spec: short,
        then: Some(|vm| inject(vm, Fault::GarbageFrame)),
        kind: ErrorKind::Protocol,
        words: "no message",
    },
    Failure {
        name: "QEMU is killed",
        spec: short,
        then: Some(|vm| after_signal(vm, Signal::SIGKILL)),
        kind: ErrorKind::QemuExit,
        words: "signal: 9",
    },
    Failure {
        name: "QEMU stops",
        spec: short,
        then: Some(|vm| after_signal(vm, Signal::SIGSTOP)),
        kind: ErrorKind::Silence,
        words: "heartbeat",
    },
];

#[test]
fn every_failure_is_named_and_leaves_nothing() {
    // Two guests at a time, as in a run.
    let (even, odd): (Vec<_>, Vec<_>) = FAILURES.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    std::thread::scope(|scope| {
        scope.spawn(|| even.iter().for_each(|(_, failure)| check(failure)));
        scope.spawn(|| odd.iter().for_each(|(_, failure)| check(failure)));
    });
}

fn check(failure: &Failure) {
    let name = failure.name;
    let dir = tempfile::tempdir().unwrap();
    let mut spec = spec(dir.path());
    (failure.spec)(&mut spec);
    let mut process = None;
    let error = match (Vm::boot(spec), failure.then) {
        (Err(error), None) => error,
        (Ok(mut vm), Some(then)) => {
            process = Some(vm.process_id());
            then(&mut vm)
        }
        (Err(error), Some(_)) => panic!("{name}: it did not even boot: {error}\n{:#?}", error.console_tail),
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
