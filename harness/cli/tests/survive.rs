// SPDX-License-Identifier: MIT OR Apache-2.0
//! Storms on real kernels: stock ones survive, and a planted bug is found, named, and shown by a
//! smaller storm.

mod command;

use command::{said, stored, tramplab};
use std::{fs, path::Path, process::Output};
use tramplab_model::{
    kinds::survive::Failure,
    run::{Cell, Measurement, Outcome, Run, Survive, Test},
};
use tramplab_protocol::storm::{Action, Storm};

/// A storm that a guest under TCG has behind it in half a minute.
fn suite(kernel: &str, append: &str, storm: &str) -> String {
    format!(
        "name: t\ndescription: d\nkernels: [\"{kernel}\"]\nmachine: {{ cpus: 2, append: [{append}] \
         }}\ntests:\n  - survive: {storm}\n"
    )
}

fn vm_test(dir: &Path, suite: &str, arguments: &[&str]) -> Output {
    fs::write(dir.join("suite.yaml"), suite).unwrap();
    let mut command = tramplab();
    command.args(["vm-test", "--accel", "tcg", "--suite"]).arg(dir.join("suite.yaml"));
    command.arg("--runs").arg(dir.join("runs")).args(arguments).output().unwrap()
}

/// The storms of a run, which all have a verdict of the kernel.
fn survived(run: &Run) -> Vec<(&Outcome, &Survive)> {
    let cells = run.cells.iter().filter(|cell| matches!(cell.id.test, Test::Survive(_)));
    let mut all = Vec::new();
    for Cell { outcome, measurement, .. } in cells {
        match measurement {
            Some(Measurement::Survive(survive)) => all.push((outcome, survive)),
            _ => panic!("{outcome:?}"),
        }
    }
    all
}

/// With a module that comes and goes.
#[test]
fn a_stock_kernel_survives_a_storm() {
    let dir = tempfile::tempdir().unwrap();
    // The exact clock repeats the storm, in which the module is unloaded in between.
    let storm = "{ storms: 1, seed: 5, steps: 120, module: overlay, clock: exact }";
    let suite = suite("6.12", "", storm);
    let output = vm_test(dir.path(), &suite, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let [(Outcome::Pass, survive)] = survived(&run)[..] else { panic!("{}", said(&output)) };
    let done = survive.done.as_ref().unwrap();
    assert_eq!(done.steps, u64::from(survive.steps * done.times));
    // Each part of the storm took place.
    assert!(done.killed > 0 && done.updated > 0 && done.unloaded > 0 && done.checked > 0);
    assert!(done.runs > 0, "{done:?}");
    for attached in done.attached.iter().filter(|attached| attached.lacking.is_none()) {
        assert!(attached.links > 0, "{attached:?}");
    }
}

/// The head leaks a program for each trampoline link that is closed. The smallest storm has one.
#[test]
fn a_planted_leak_is_found_and_shrunk() {
    let dir = tempfile::tempdir().unwrap();
    let planted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planted-bugs");
    let storm = "{ storms: 1, threads: 2, steps: 60, mechanisms: [fentry, fexit, kprobe.multi] }";
    let suite = suite("6.12-source", "tramplab_plant=program", storm);
    let output = vm_test(dir.path(), &suite, &["--series", planted.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let runs = dir.path().join("runs");
    let run = stored(&runs);
    // The base does not know the word.
    let [(Outcome::Pass, _), (Outcome::Fail { reasons }, survive)] = survived(&run)[..] else {
        panic!("{}", said(&output))
    };
    let ways: Vec<Failure> = survive.failures().into_iter().map(|(way, _)| way).collect();
    assert!(matches!(&ways[0], Failure::Left(left) if left.contains(&"programs")), "{ways:?}");
    assert!(reasons[0].contains("programs"), "{reasons:?}");
    let smallest = &survive.smallest.as_ref().unwrap().steps;
    let is_attach = |action: Action| matches!(action, Action::Attach { .. });
    assert!(smallest.len() == 1 && is_attach(smallest[0].action), "{smallest:?}");
    // The file of the failed cell is a storm that fails by itself.
    let head = run.cells.iter().find(|cell| matches!(cell.outcome, Outcome::Fail { .. })).unwrap();
    let kept = tramplab_host::runs::RunDir::new(runs.join("latest")).cell(&head.id);
    let storm: Storm = serde_json::from_slice(&fs::read(kept.join("storm.json")).unwrap()).unwrap();
    assert_eq!(&storm.steps, smallest);
}
