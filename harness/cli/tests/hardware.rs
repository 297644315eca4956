// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path to the CPU's own branch records, as far as a machine without them goes: the decision,
//! QEMU's parser, and guests to reject.

use crate::{
    command::{self, stderr, tramplab},
    kvm,
    machine::{self, from_env},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tramplab_analysis::branch::{self, Branch, DriverError, Filter, Model, driver::Cpu};
use tramplab_host::lbr::LbrFormat;
use tramplab_model::run::{Accel, Arch, Outcome, Test};
use tramplab_protocol::{
    Mechanism,
    message::{self, LbrWasteReply, LbrWasteRequest, Response},
};
use tramplab_vm::{Vm, cpu_model};

const LIMIT: Duration = Duration::from_mins(5);

/// Asks a guest as a cell of hardware branches does. With `deliver` the plugin delivers records.
fn asked(vm: &mut Vm, mechanism: Mechanism, deliver: bool) -> LbrWasteReply {
    let model = Model::IntelLbr;
    let deliver = deliver.then(|| model.delivered(Filter::of(Branch::Any), model.depth()));
    let events = branch::driver::events();
    let request = LbrWasteRequest {
        mechanism,
        program: None,
        function: None,
        command: None,
        hits: 2,
        warmup: 1,
        deliver,
        events,
    };
    match vm.request(message::Command::LbrWaste(request), LIMIT).unwrap().unwrap() {
        Response::LbrWaste(reply) => *reply,
        other => panic!("{other:?}"),
    }
}

/// Both guests must be rejected: their kernels know no PMU.
fn refused(reply: &LbrWasteReply) {
    let symbols = std::iter::empty().collect();
    let error = branch::driver_waste(Cpu::Passed, reply, &symbols).unwrap_err();
    assert!(matches!(&error, DriverError::Refused(why) if !why.is_empty()), "{error}");
    assert_eq!((reply.pmu.depth, reply.of_driver.len()), (None, 0));
}

#[test]
fn rejects_guest_without_pmu() {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&machine::spec(Arch::X86_64, dir.path())).unwrap();
    let reply = asked(&mut vm, Mechanism::Fentry, false);
    assert_eq!(reply.snapshot_result, -2);
    refused(&reply);
    vm.power_off(LIMIT).unwrap();
}

/// The program gets as many records as an LBR has, and they are right. Still they are not the
/// CPU's.
#[test]
fn rejects_records_from_the_plugin_as_hardware() {
    let dir = tempfile::tempdir().unwrap();
    let mut vm = Vm::boot(&machine::delivering(Arch::X86_64, dir.path())).unwrap();
    let reply = asked(&mut vm, Mechanism::Fexit, true);
    assert_eq!((reply.snapshot_result, reply.snapshot.len()), (32 * 24, 32));
    assert!(reply.snapshot[0].0 != 0);
    refused(&reply);
    vm.power_off(LIMIT).unwrap();
}

/// Starts QEMU under KVM with this CPU model, in the form `host,name=value`; returns its error.
fn qemu_with(program: &Path, cpu: &str) -> String {
    // QEMU would wait for ever if it took the option.
    let output = Command::new("timeout")
        .arg("300")
        .arg(program)
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-S"])
        .args(["-accel", "kvm", "-cpu", cpu])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "QEMU took {cpu}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Both QEMUs parse the options that tramplab writes. They fail only because there is no KVM with
/// this LBR.
#[test]
fn qemu_knows_the_lbr_options() {
    if Arch::host() != Some(Arch::X86_64) {
        return;
    }
    for variable in ["TRAMPLAB_QEMU_X86_64", "TRAMPLAB_QEMU_DELIVERING_X86_64"] {
        let program: PathBuf = from_env(variable);
        // No CPU has these formats, so that a machine with an LBR rejects them too.
        for format in ["0x8", "0x3e"] {
            let number: u8 = u8::from_str_radix(&format[2..], 16).unwrap();
            let lbr: LbrFormat = serde_json::from_str(&number.to_string()).unwrap();
            let cpu = cpu_model(Accel::Kvm, Arch::X86_64, Some(lbr));
            assert_eq!(cpu, format!("host,pmu=on,lbr-fmt={format}"));
            let said = qemu_with(&program, &cpu);
            let no_kvm = said.contains("KVM")
                && (said.contains("/dev/kvm") || said.contains("failed to initialize"));
            let no_lbr = said
                .contains(&format!("the lbr-fmt value ({format}) does not match the host value"));
            assert!(no_kvm || no_lbr, "{said}");
        }
        // QEMU checks option names before it asks KVM for an LBR, so a misspelt one is seen.
        let said = qemu_with(&program, "host,pmu=on,lbr-format=0x8");
        let seen = said.contains("lbr-format") && said.contains("not found");
        assert!(seen || said.contains("/dev/kvm"), "{said}");
        // The properties exist and have these types, with or without KVM.
        let help = Command::new(&program)
            .args(["-machine", "none", "-device", "max-x86_64-cpu,help"])
            .output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        for property in ["lbr-fmt=<uint64>", "pmu=<bool>"] {
            assert!(
                help.lines().any(|line| line.trim_start().starts_with(property)),
                "{property}: {help}"
            );
        }
    }
}

/// Writes a suite with one kernel and fentry to `dir`.
fn suite(dir: &Path, test: &str) -> PathBuf {
    let path = dir.join("suite.yaml");
    let text = format!(
        "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n  \
         - {test}: {{ mechanisms: [fentry] }}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn rejects_contradicting_options_before_boot() {
    let foreign = if Arch::host() == Some(Arch::X86_64) { "arm64" } else { "x86_64" };
    for (test, arguments, code, words) in [
        (
            "lbr_waste",
            &["--branches", "hardware", "--accel", "tcg"][..],
            2,
            "needs KVM; remove --accel tcg",
        ),
        ("trigger", &["--branches", "hardware"], 2, "--branches applies only to lbr_waste tests"),
        (
            "lbr_waste",
            &["--branches", "hardware", "--experiment", "deliver-records"],
            2,
            "delivers virtual branch records",
        ),
        (
            "lbr_waste",
            &["--branches", "real"],
            2,
            "possible values: auto, emulated, hardware, virtual",
        ),
        // This fails on every machine: a CPU records no branches of an emulated guest.
        ("lbr_waste", &["--branches", "hardware", "--arch", foreign], 3, "this machine emulates"),
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

/// Runs follow the doctor's answer, and give the same reason.
#[test]
fn runs_follow_the_doctor() {
    let output = tramplab().args(["doctor", "--json"]).output().unwrap();
    let checkup: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for fact in ["arch", "vendor", "kernel", "offer", "enable_mediated_pmu", "perf_event_paranoid"]
    {
        assert!(checkup["host"].get(fact).is_some(), "{fact}: {checkup}");
    }
    let Some(reason) = checkup["branches"]["virtual"].as_str() else {
        assert!(checkup["branches"]["hardware"].is_u64(), "{checkup}");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let mut command = tramplab();
    command
        .arg("vm-test")
        .arg("--suite")
        .arg(suite(dir.path(), "lbr_waste"))
        .arg("--runs")
        .arg(&runs);
    let output = command.args(["--branches", "hardware"]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains(&format!("--branches hardware asks: {reason}")),
        "{reason:?} is missing in {said}"
    );
    assert!(!runs.exists());
}

/// None of these cells boots a guest under KVM.
#[test]
#[ignore = "full: a whole run; the decision has its own tests"]
fn counts_under_tcg_where_kvm_runs_guests() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    kvm::remember(&cache);
    let suite = dir.path().join("suite.yaml");
    let tests = "  - lbr_waste: { mechanisms: [fentry] }\n  \
                 - trigger: { mechanisms: [fentry], throughput: false }\n\
                 \x20 - attach: { mechanisms: [fentry], functions: [1], rounds: 1, \
                 clock: exact, explain: [exact] }\n";
    let budgets = "budgets:\n  - wasted: { fentry: { any: 100 } }\n    \
                   most: { trigger.fentry.instructions: 1 }\n";
    fs::write(&suite, format!("name: t\ndescription: d\nkernels: [a]\ntests:\n{tests}{budgets}"))
        .unwrap();
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
        assert_eq!(is_fail, matches!(cell.id.test, Test::Trigger(_)), "{:?}", cell.outcome);
        assert!(is_fail || cell.outcome == Outcome::Pass, "{:?}", cell.outcome);
    }
    assert_eq!(run.cells.len(), 3);
}
