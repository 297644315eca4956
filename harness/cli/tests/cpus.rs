// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guests that boot as modelled CPUs, on real kernels.

use crate::command::{said, stored, tramplab};
use std::{collections::BTreeMap, fs, path::Path, process::Command};
use tramplab_model::{
    profile::Estimate,
    run::{Measurement, Outcome, Run},
};
use tramplab_protocol::estimate::Event;

/// A CPU of the user's own: returns by SRSO's thunks, and retpolines, as QEMU's Milan boots.
const MILAN: &str = "\
about: A Milan with the records of a Zen 4
arch: x86_64
qemu: { cpu: EPYC-Milan, source: QEMU }
mitigations: { append: [mitigations=auto], source: the kernel's own choice }
branches: { family: amd-lbrv2, depth: 16, source: a test }
";

/// Wasted records by `any` of each kernel's cell of a mechanism, or why there is no number. A
/// kernel has the name of its configuration, without its own.
fn wasted(run: &Run, mechanism: &str) -> BTreeMap<String, Result<u32, String>> {
    let test = format!("lbr_waste/{mechanism}");
    let cells = run.cells.iter().filter(|cell| cell.id.test.name() == test);
    let of = |cell: &tramplab_model::run::Cell| {
        let kernel = run.kernels.iter().find(|kernel| kernel.name == cell.id.kernel).unwrap();
        let name = kernel.configuration.as_ref().map_or("", |point| &kernel.name[point.of.len()..]);
        let count = match (&cell.measurement, &cell.outcome) {
            (Some(Measurement::LbrWaste(waste)), _) => {
                Ok(waste.points[0].wasted["amd-lbrv2"]["any"].wasted.unwrap())
            }
            (_, Outcome::Skip { reason }) => Err(reason.clone()),
            _ => panic!("{cell:?}"),
        };
        (name.to_owned(), count)
    };
    cells.map(of).collect()
}

fn vm_test(dir: &Path, suite: &str) -> Command {
    fs::write(dir.join("suite.yaml"), suite).unwrap();
    fs::write(dir.join("milan.yaml"), MILAN).unwrap();
    let mut command = tramplab();
    command.args(["vm-test", "--accel", "tcg", "--suite"]).arg(dir.join("suite.yaml"));
    command.arg("--runs").arg(dir.join("runs")).current_dir(dir);
    command
}

/// Boots the usual guest, a Zen 4, a CPU of the user's own, and one without records.
#[test]
fn boots_guests_as_cpus_with_their_mitigations() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = std::env::var_os("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let suite = "name: t\ndescription: d\nkernels: [\"6.12\"]\nmodels: [skylake]\ntests:\n  \
                 - lbr_waste: { mechanisms: [kprobe.multi] }\n";
    let output = vm_test(dir.path(), suite)
        .args(["--model", "zen4,./milan.yaml,zen3", "--kernel"])
        .arg(kernel)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let mut found = wasted(&run, "kprobe.multi");
    let zen3 = found.remove("+zen3").unwrap().unwrap_err();
    assert!(zen3.contains("no branch records"), "{zen3}");
    let expected = [("", 12), ("+milan", 24), ("+zen4", 16)];
    assert_eq!(found, expected.map(|(name, count)| (name.to_owned(), Ok(count))).into());

    let runs = dir.path().join("runs/latest");
    let report = |model: &str| {
        let mut command = tramplab();
        command.arg("report").arg(&runs).args(["--model", model]).current_dir("/");
        command.output().unwrap()
    };
    for (model, code, words) in [
        // The run keeps the CPU: its file is not looked for.
        ("milan", 0, "Useful branch records of 16 (amd-lbrv2)"),
        ("zen4", 0, "as zen4 (AMD Zen 4"),
        ("arch-lbr", 0, "(arch-lbr)"),
        ("skylake", 2, "vm-test --suite t --model skylake"),
        ("neoverse-n1", 2, "neoverse-n1 is of arm64"),
        ("zen4,milan", 2, "takes one CPU here"),
        ("zen5", 2, "families of branch records: intel-lbr"),
    ] {
        let output = report(model);
        assert_eq!(output.status.code(), Some(code), "{model}: {}", said(&output));
        assert!(said(&output).contains(words), "{model}: {}", said(&output));
    }
    // The kernel booted in several ways: the guests of that CPU are compared.
    for (model, code, words) in [
        ("milan", 0, "+milan"),
        ("zen4", 0, "+zen4"),
        ("skylake", 2, "vm-test --suite t --model skylake"),
    ] {
        let mut command = tramplab();
        command.arg("compare").args([&runs, &runs]).args(["--model", model]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{model}: {}", said(&output));
        assert!(said(&output).contains(words), "{model}: {}", said(&output));
    }
}

/// The figures of the documentation, on both kernels that have them.
#[test]
#[ignore = "full: twelve guests"]
fn counts_off_auto_and_srso_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    let suite = "name: t\ndescription: d\nkernels: [\"7.2\", \"6.12\"]\nmodels: [zen4]\ntests:\n  \
                 - lbr_waste: { mechanisms: [fentry, kprobe.multi] }\n";
    let output = vm_test(dir.path(), suite)
        .args(["--model", "./milan.yaml", "--config-axis", "mitigations=off,auto,srso"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    for (kernel, mechanism, [off, auto, srso]) in [
        ("7.2", "fentry", [6, 6, 10]),
        ("7.2", "kprobe.multi", [12, 16, 26]),
        ("6.12", "fentry", [9, 9, 15]),
        ("6.12", "kprobe.multi", [12, 16, 24]),
    ] {
        let mut run = run.clone();
        run.cells.retain(|cell| cell.id.kernel.starts_with(kernel));
        let mut found = wasted(&run, mechanism);
        let lacking = found.remove("+mitigations-srso").unwrap().unwrap_err();
        assert!(lacking.contains("spec_rstack_overflow"), "{lacking}");
        let expected = [
            ("+mitigations-off", off),
            ("+mitigations-auto", auto),
            ("+milan+mitigations-off", off),
            ("+milan+mitigations-auto", srso),
            ("+milan+mitigations-srso", srso),
        ];
        let expected = expected.map(|(name, count)| (name.to_owned(), Ok(count)));
        assert_eq!(found, expected.into(), "{kernel} {mechanism}");
    }
}

/// Any system call is a hit. One that reads leftover registers costs something else each time.
#[test]
#[ignore = "full: two guests of a kernel where these programs may sleep"]
fn hits_all_system_calls_by_one_that_is_always_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let suite = "name: t\ndescription: d\nkernels: [\"7.2\"]\nmodels: [zen4]\ntests:\n  \
                 - trigger: { mechanisms: [tp_btf.s, raw_tp.s], throughput: false, \
                 estimated: true }\n";
    let output = vm_test(dir.path(), suite).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let cells = run.cells.iter().filter(|cell| cell.id.kernel == "7.2+zen4");
    let estimates: Vec<_> = cells
        .map(|cell| match &cell.measurement {
            Some(Measurement::Trigger(trigger)) => {
                let cost = trigger.cost.as_ref().unwrap();
                let estimate = cost.estimate.as_ref().unwrap();
                let of = |sum: &Estimate, wanted| {
                    let mut events = sum.events.iter();
                    events.find(|cost| cost.event == wanted).map_or(0, |cost| cost.count)
                };
                for sum in [&estimate.attached, &estimate.detached] {
                    let entered = [Event::SystemCall, Event::Exception].map(|event| of(sum, event));
                    assert_eq!(entered, [u64::from(estimate.hits), 0], "{sum:#?}");
                }
                estimate.cycles()
            }
            _ => panic!("{cell:?}"),
        })
        .collect();
    let [tp_btf, raw_tp] = estimates[..] else { panic!("{run:#?}") };
    assert_eq!(tp_btf, raw_tp);
}

#[test]
fn refuses_a_cpu_whose_file_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let suite = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests: [{ boot: {} }]\n";
    let records = "family: amd-lbrv2, depth: 16";
    for (from, to, words) in [
        (
            records,
            "family: amd-lbr, depth: 16",
            "no family `amd-lbr` of x86_64: expected intel-lbr",
        ),
        (records, "family: brbe, depth: 64", "no family `brbe` of x86_64"),
        (records, "family: amd-lbrv2, depth: 32", "amd-lbrv2 has no depth of 32: expected 16"),
        (records, "family: amd-lbrv2", "expected `family` and `depth`, or `none`"),
        (records, "family: amd-lbrv2, depth: 16, none: a", "expected `family` and `depth`"),
        ("arch: x86_64", "arch: arm64", "no family `amd-lbrv2` of arm64: expected brbe"),
        ("source: QEMU", "sauce: QEMU", "milan.yaml:3"),
        ("[mitigations=auto]", "[]", "expected a word `mitigations=…`"),
        ("[mitigations=auto]", "[mitigations=auto quiet]", "is no word of a command line"),
        ("[mitigations=auto]", "['\"mitigations=auto']", "is no word of a command line"),
        (
            "[mitigations=auto]",
            "[mitigations=auto, sysctl.kernel.kptr_restrict=2]",
            "kptr_restrict",
        ),
    ] {
        let mut command = vm_test(dir.path(), suite);
        fs::write(dir.path().join("milan.yaml"), MILAN.replace(from, to)).unwrap();
        let output = command.args(["--list", "--model", "./milan.yaml"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{to}: {}", said(&output));
        assert!(said(&output).contains(words), "{to}: {}", said(&output));
    }
    // Others know a CPU by its name alone.
    for (name, words) in [
        ("zen4.yaml", "another CPU is called zen4"),
        ("amd-lbrv2.yaml", "neither a family nor"),
        ("usual.yaml", "neither a family nor"),
        ("a+b.yaml", "digits, `.`, `_` and `-`"),
    ] {
        let mut command = vm_test(dir.path(), suite);
        fs::write(dir.path().join(name), MILAN).unwrap();
        let output = command.args(["--list", "--model"]).arg(format!("./{name}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {}", said(&output));
        assert!(said(&output).contains(words), "{name}: {}", said(&output));
    }
    // A suite names no file, and a CPU fits the architecture.
    let [path, file] = ["./milan.yaml", "milan.yaml"]
        .map(|name| suite.replace("tests:", &format!("models: [{name}]\ntests:")));
    let mistyped = suite.replace("{ boot: {} }", "{ lbr_waste: { mechanisms: [fexit] } }")
        + "budgets: [{ kernels: [6.12+zne4], wasted: { fexit: { any: 1 } } }]\n";
    for (suite, arguments, words) in [
        (&*path, &["--list"][..], "no name of a CPU"),
        (&file, &["--list"], "no CPU `milan.yaml`"),
        (&mistyped, &["--list"], "a budget names kernel `6.12+zne4`"),
        (suite, &["--list", "--config-axis", "model=zen4"], "CPUs are named by --model"),
        (suite, &["--model", "intel-lbr,arch-lbr"], "takes one family"),
        (suite, &["--list", "--model", "neoverse-n1", "--arch", "x86_64"], "is of arm64"),
        (suite, &["--list", "--model", "zen4,zen4"], "names zen4 twice"),
    ] {
        let output = vm_test(dir.path(), suite).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{arguments:?}: {}", said(&output));
    }
}
