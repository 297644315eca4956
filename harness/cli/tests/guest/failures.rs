// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that fail: the error names the reason.

use super::{LIMIT, waste};
use crate::machine::spec;
use std::{fs, path::Path, time::Duration};
use tramplab_model::run::{Arch, ErrorKind};
use tramplab_protocol::{
    Mechanism,
    message::{Command, Fault},
};
use tramplab_vm::{Spec, Vm, VmError};

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
#[ignore = "full: each panic is a guest; replayed ones run in every change"]
fn names_every_panic_on_arm64() {
    let panics = FAILURES.iter().filter(|failure| failure.kind == ErrorKind::Panic);
    panics.for_each(|failure| check(Arch::Arm64, failure));
}

#[test]
fn names_failures_before_the_kernel_speaks() {
    let others = FAILURES.iter().filter(|failure| failure.kind != ErrorKind::Panic);
    others.for_each(|failure| check(Arch::X86_64, failure));
}

#[test]
fn an_allowed_warning_ends_no_measurement_on_x86_64() {
    allowed_warning(Arch::X86_64);
}

#[test]
#[ignore = "full: the twin on x86-64 runs in every change"]
fn an_allowed_warning_ends_no_measurement_on_arm64() {
    allowed_warning(Arch::Arm64);
}

fn allowed_warning(arch: Arch) {
    let booted = |dir: &Path, words: &str| {
        let mut spec = spec(arch, dir);
        spec.allow = vec![words.to_owned()];
        let mut vm = Vm::boot(&spec).unwrap();
        let answer = vm.request(Command::Inject(Fault::Warning), LIMIT);
        (vm, answer)
    };
    let dir = tempfile::tempdir().unwrap();
    let (mut vm, answer) = booted(dir.path(), "WARNING: ");
    answer.unwrap().unwrap();
    waste(arch, &mut vm, dir.path(), 0, Mechanism::Fentry);
    let allowed = vm.power_off(LIMIT).unwrap();
    let [line] = &allowed[..] else { panic!("{allowed:?}") };
    assert!(line.contains("+0x"), "{line}");

    let dir = tempfile::tempdir().unwrap();
    let (vm, answer) = booted(dir.path(), "kernel/no/such/file.c");
    let error = answer.err().unwrap_or_else(|| vm.power_off(LIMIT).unwrap_err());
    assert_eq!(error.kind, ErrorKind::Warning, "{error}");
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
        assert!(
            error.console_tail.iter().any(|line| line.contains(failure.words)),
            "{name}: {error:#?}"
        );
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
