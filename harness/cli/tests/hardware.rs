// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path to the CPU's own branch records as far as it goes on a machine without: what is asked of whom, QEMU's own parser, and guests that must
//! be refused.

mod command;
mod kvm;
mod machine;

use command::{stderr, tramplab};
use machine::from_env;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_analysis::branch::{self, Branch, Filter, HardwareError, Model};
use tramplab_host::lbr::LbrFormat;
use tramplab_model::run::{Accel, Arch, Outcome, Test};
use tramplab_protocol::{
    Mechanism,
    message::{self, LbrWasteReply, LbrWasteRequest, Response},
};
use tramplab_vm::{Vm, cpu_model};

const LIMIT: Duration = Duration::from_secs(60);

/// A guest's answer to what a cell of hardware asks; `deliver` has the plugin hand it records.
fn asked(vm: &mut Vm, mechanism: Mechanism, deliver: bool) -> LbrWasteReply {
    let model = Model::IntelLbr;
    let deliver = deliver.then(|| model.delivered(Filter::of(Branch::Any), model.depth()));
    let hardware = branch::hardware::events();
    let request = LbrWasteRequest { mechanism, hits: 2, warmup: 1, deliver, hardware };
    match vm.request(message::Command::LbrWaste(request), LIMIT).unwrap().unwrap() {
        Response::LbrWaste(reply) => reply,
        other => panic!("{other:?}"),
    }
}

/// What both must be refused for: their kernels know of no PMU.
fn refused(reply: &LbrWasteReply) {
    let symbols = std::iter::empty().collect();
    let error = branch::hardware_waste(reply, &symbols).unwrap_err();
    assert!(matches!(&error, HardwareError::Refused(why) if !why.is_empty()), "{error}");
    assert_eq!((reply.pmu.depth, reply.hardware.len()), (None, 0));
}

#[test]
fn a_guest_without_a_pmu_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&machine::spec(Arch::X86_64, dir.path())).unwrap();
    let reply = asked(&mut vm, Mechanism::Fentry, false);
    assert_eq!(reply.snapshot_result, -2);
    refused(&reply);
    vm.power_off(LIMIT).unwrap();
}

/// The program is given records, as many as an LBR has, and they are right; they are not the CPU's all the same.
#[test]
fn a_guest_that_the_plugin_hands_records_is_refused_as_hardware() {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&machine::delivering(Arch::X86_64, dir.path())).unwrap();
    let reply = asked(&mut vm, Mechanism::Fexit, true);
    assert_eq!((reply.snapshot_result, reply.snapshot.len()), (32 * 24, 32));
    assert!(reply.snapshot[0].0 != 0);
    refused(&reply);
    vm.power_off(LIMIT).unwrap();
}

/// As if KVM had it: `name=value` of `-cpu host`.
fn qemu_with(program: &Path, cpu: &str) -> String {
    // One that takes it would wait for ever.
    let output = Command::new("timeout")
        .arg("60")
        .arg(program)
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-S"])
        .args(["-accel", "kvm", "-cpu", cpu])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "QEMU took {cpu}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// QEMU's parser takes what the decision writes, in both of QEMUs that we use: where it ends, it is for want of a KVM that has this LBR.
#[test]
fn qemu_knows_the_options() {
    if Arch::host() != Some(Arch::X86_64) {
        return;
    }
    for variable in ["TRAMPLAB_QEMU_X86_64", "TRAMPLAB_QEMU_DELIVERING_X86_64"] {
        let program: PathBuf = from_env(variable);
        // Formats that no CPU has, so that a machine with an LBR refuses them too.
        for format in ["0x8", "0x3e"] {
            let number: u8 = u8::from_str_radix(&format[2..], 16).unwrap();
            let lbr: LbrFormat = serde_json::from_str(&number.to_string()).unwrap();
            let cpu = cpu_model(Accel::Kvm, Arch::X86_64, Some(lbr));
            assert_eq!(cpu, format!("host,pmu=on,lbr-fmt={format}"));
            let said = qemu_with(&program, &cpu);
            let no_kvm =
                said.contains("KVM") && (said.contains("/dev/kvm") || said.contains("failed to initialize"));
            let no_lbr =
                said.contains(&format!("the lbr-fmt value ({format}) does not match the host value"));
            assert!(no_kvm || no_lbr, "{said}");
        }
        // A slip would be seen: QEMU looks at the options before it asks KVM for an LBR.
        let said = qemu_with(&program, "host,pmu=on,lbr-format=0x8");
        let seen = said.contains("lbr-format") && said.contains("not found");
        assert!(seen || said.contains("/dev/kvm"), "{said}");
        // Whatever there is of KVM, the properties are there and of these types.
        let help =
            Command::new(&program).args(["-machine", "none", "-device", "max-x86_64-cpu,help"]).output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        for property in ["lbr-fmt=<uint64>", "pmu=<bool>"] {
            assert!(help.lines().any(|line| line.trim_start().starts_with(property)), "{property}: {help}");
        }
    }
}

/// A suite of one kernel's fentry, in `dir`.
fn suite(dir: &Path, test: &str) -> PathBuf {
    let path = dir.join("suite.yaml");
    let text = format!(
        "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  - {test}: {{ mechanisms: [fentry] }}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn what_does_not_go_together_is_said_before_anything_boots() {
    let foreign = if Arch::host() == Some(Arch::X86_64) { "arm64" } else { "x86_64" };
    for (test, arguments, code, words) in [
        ("lbr_waste", &["--branches", "hardware", "--accel", "tcg"][..], 2, "takes KVM, and --accel tcg"),
        ("trigger", &["--branches", "hardware"], 2, "--branches applies only to lbr_waste tests"),
        (
            "lbr_waste",
            &["--branches", "hardware", "--experiment", "deliver-records"],
            2,
            "hands out virtual branch records",
        ),
        ("lbr_waste", &["--branches", "real"], 2, "possible values: auto, hardware, virtual"),
        // On every machine: its CPU has no branches of guests that are emulated.
        ("lbr_waste", &["--branches", "hardware", "--arch", foreign], 3, "are emulated on this machine"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let mut command = tramplab();
        command.arg("vm-test").arg("--suite").arg(suite(dir.path(), test)).arg("--runs").arg(&runs);
        let output = command.args(arguments).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {words:?} is missing in {said}");
        assert!(!runs.exists(), "{arguments:?}: a run was left behind");
    }
}

/// The doctor's answer is the one that runs go by, in words and as what is sent to others.
#[test]
fn this_machine_is_asked_once_and_answers_the_same() {
    let output = tramplab().args(["doctor", "--json"]).output().unwrap();
    let checkup: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for fact in ["arch", "vendor", "kernel", "offer", "enable_mediated_pmu", "perf_event_paranoid"] {
        assert!(checkup["host"].get(fact).is_some(), "{fact}: {checkup}");
    }
    let Some(reason) = checkup["branches"]["virtual"].as_str() else {
        assert!(checkup["branches"]["hardware"].is_u64(), "{checkup}");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let mut command = tramplab();
    command.arg("vm-test").arg("--suite").arg(suite(dir.path(), "lbr_waste")).arg("--runs").arg(&runs);
    let output = command.args(["--branches", "hardware"]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains(&format!("--branches hardware asks: {reason}")), "{reason:?} is missing in {said}");
    assert!(!runs.exists());
}

/// None of these cells boots a guest under KVM.
#[test]
fn counts_under_tcg_where_kvm_runs_guests() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    kvm::remember(&cache);
    let suite = dir.path().join("suite.yaml");
    let tests = "  - lbr_waste: { mechanisms: [fentry] }\n  - trigger: { mechanisms: [fentry], throughput: false }\n\
                 \x20 - attach: { mechanisms: [fentry], functions: [1], rounds: 1, clock: exact, explain: [exact] }\n";
    let budgets =
        "budgets:\n  - wasted: { fentry: { any: 100 } }\n    most: { trigger.fentry.instructions: 1 }\n";
    fs::write(&suite, format!("name: t\ndescription: d\nkernels: [a]\ntests:\n{tests}{budgets}")).unwrap();
    let mut command = tramplab();
    command.arg("vm-test").arg("--suite").arg(&suite).arg("--runs").arg(dir.path().join("runs"));
    command.arg("--kernel").arg(from_env("TRAMPLAB_TEST_KERNEL_X86_64")).args(["--arch", "x86_64"]);
    let output = command.env("TRAMPLAB_CACHE", &cache).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let run = command::stored(&dir.path().join("runs"));
    assert_eq!(run.machines[0].cpu, "max");
    for cell in &run.cells {
        assert_eq!(cell.id.accel, Accel::Tcg);
        let is_fail = matches!(cell.outcome, Outcome::Fail { .. });
        assert_eq!(is_fail, matches!(cell.id.test, Test::Trigger { .. }), "{:?}", cell.outcome);
        assert!(is_fail || cell.outcome == Outcome::Pass, "{:?}", cell.outcome);
    }
    assert_eq!(run.cells.len(), 3);
}
