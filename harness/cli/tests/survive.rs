// SPDX-License-Identifier: MIT OR Apache-2.0
//! Storms on real kernels: stock ones survive, and a planted bug is found, named, and shown by a
//! smaller storm.

use crate::command::{said, stored, tramplab};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::{self, sleep},
    time::Duration,
};
use tramplab_model::{
    kinds::survive::Failure,
    run::{Cell, Measurement, Outcome, Run, Survive, Test},
};
use tramplab_protocol::storm::{Action, Step, Storm};
use walkdir::WalkDir;

/// A storm that a guest under TCG has behind it in half a minute.
fn suite(kernel: &str, machine: &str, storm: &str) -> String {
    format!(
        "name: t\ndescription: d\nkernels: [\"{kernel}\"]\nmachine: {{ cpus: 2{machine} }}\n\
         tests:\n  - survive: {storm}\n"
    )
}

fn vm_test_of(dir: &Path, suite: &str, arguments: &[&str]) -> Command {
    fs::write(dir.join("suite.yaml"), suite).unwrap();
    let mut command = tramplab();
    command.args(["vm-test", "--accel", "tcg", "--suite"]).arg(dir.join("suite.yaml"));
    command.arg("--runs").arg(dir.join("runs")).args(arguments);
    command
}

fn vm_test(dir: &Path, suite: &str, arguments: &[&str]) -> Output {
    vm_test_of(dir, suite, arguments).output().unwrap()
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

/// With a module that comes and goes. The exact clock repeats the storm, in which the module is
/// unloaded in between.
#[test]
fn stock_kernel_survives_a_storm_that_repeats_on_x86_64() {
    survives_a_storm_that_repeats("x86_64");
}

#[test]
#[ignore = "full: the twin on x86-64 runs in every change"]
fn stock_kernel_survives_a_storm_that_repeats_on_arm64() {
    survives_a_storm_that_repeats("arm64");
}

fn survives_a_storm_that_repeats(arch: &str) {
    let storm = "{ storms: 1, seed: 5, steps: 120, module: overlay, clock: exact }";
    let suite = suite("6.12", "", storm);
    let measured = || {
        let dir = tempfile::tempdir().unwrap();
        let output = vm_test(dir.path(), &suite, &["--arch", arch]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let run = stored(&dir.path().join("runs"));
        let [(Outcome::Pass, survive)] = survived(&run)[..] else { panic!("{}", said(&output)) };
        survive.clone()
    };
    let [first, second] = thread::scope(|scope| {
        [scope.spawn(measured), scope.spawn(measured)].map(|run| run.join().unwrap())
    });
    assert_eq!(first, second);
    let done = first.done.unwrap();
    assert_eq!(done.steps, u64::from(first.steps * done.times));
    // Each part of the storm took place.
    assert!(done.killed > 0 && done.updated > 0 && done.unloaded > 0 && done.checked > 0);
    assert!(done.runs > 0, "{done:?}");
    for attached in done.attached.iter().filter(|attached| attached.lacking.is_none()) {
        assert!(attached.links > 0, "{attached:?}");
    }
}

const PLANTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/planted-bugs");

/// A bug of `planted-bugs`, by its word on the command line.
struct Planted {
    bug: &'static str,
    storm: &'static str,
    is_it: fn(&Failure) -> bool,
    /// Most steps of the smallest storm.
    smallest: usize,
}

/// A program is leaked for each trampoline link that is closed.
const LEAK: Planted = Planted {
    bug: "program",
    storm: "{ storms: 1, threads: 2, steps: 60, mechanisms: [fentry, fexit, kprobe.multi] }",
    is_it: |way| matches!(way, Failure::Left(kinds) if kinds.contains(&"programs")),
    smallest: 1,
};

/// One of two programs that are attached at the same time may never be called.
const LOST: Planted = Planted {
    bug: "lost",
    storm: "{ storms: 1, seed: 5, threads: 4, steps: 400, mechanisms: [fentry, fexit] }",
    is_it: |way| *way == Failure::WrongRuns,
    smallest: 40,
};

const STORM: &str =
    "{ storms: 1, threads: 4, steps: 160, mechanisms: [fentry, fexit, kprobe, kprobe.multi] }";

/// Bugs that only a debug kernel shows.
const DEBUG: [Planted; 4] = [
    Planted {
        bug: "freed",
        storm: STORM,
        is_it: |way| is_splat(way, "BUG: KASAN: slab-use-after-free in bpf_tramp_image_free"),
        smallest: 8,
    },
    Planted { bug: "link", storm: STORM, is_it: |way| *way == Failure::Kmemleak, smallest: 8 },
    Planted {
        bug: "order",
        storm: STORM,
        is_it: |way| is_splat(way, "WARNING: possible circular locking dependency detected"),
        smallest: 8,
    },
    Planted {
        bug: "rcu",
        storm: STORM,
        is_it: |way| is_splat(way, "WARNING: suspicious RCU usage"),
        smallest: 8,
    },
];

fn is_splat(way: &Failure, start: &str) -> bool {
    matches!(way, Failure::Splat(title) if title.starts_with(start))
}

/// The base does not know the word and survives. The head fails, and so does a smaller storm.
fn assert_found(planted: &Planted, machine: &str, options: &[&str]) {
    let Planted { bug, storm, is_it, smallest: most } = planted;
    let dir = tempfile::tempdir().unwrap();
    let machine = format!(", append: [tramplab_plant={bug}]{machine}");
    let suite = suite("6.12-source", &machine, storm);
    let options = [&["--series", PLANTED], options].concat();
    let output = vm_test(dir.path(), &suite, &options);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let runs = dir.path().join("runs");
    let run = stored(&runs);
    let [(Outcome::Pass, _), (Outcome::Fail { reasons }, survive)] = survived(&run)[..] else {
        panic!("{}", said(&output))
    };
    assert!(reasons.iter().any(|reason| reason.contains("smallest storm found")), "{reasons:?}");
    let ways: Vec<Failure> = survive.failures().into_iter().map(|(way, _)| way).collect();
    assert!(is_it(&ways[0]), "{ways:?}");
    let smallest = &survive.smallest.as_ref().unwrap().steps;
    assert!(smallest.len() <= *most, "{smallest:?}");
    let is_attach = |step: &Step| matches!(step.action, Action::Attach { .. });
    assert!(smallest.iter().any(is_attach), "{smallest:?}");
    // The file of the failed cell is a storm that fails by itself.
    let head = run.cells.iter().find(|cell| matches!(cell.outcome, Outcome::Fail { .. })).unwrap();
    let kept = tramplab_host::runs::RunDir::new(runs.join("latest")).cell(&head.id);
    let storm: Storm = serde_json::from_slice(&fs::read(kept.join("storm.json")).unwrap()).unwrap();
    assert_eq!(&storm.steps, smallest);
}

#[test]
#[ignore = "full: builds a kernel and shrinks"]
fn a_planted_leak_is_found_and_shrunk() {
    assert_found(&LEAK, "", &[]);
}

/// The storm has failed, and smaller ones run.
#[test]
#[ignore = "full: builds a kernel"]
fn a_failure_is_kept_if_shrinking_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let machine = format!(", append: [tramplab_plant={}]", LEAK.bug);
    let suite = suite("6.12-source", &machine, LEAK.storm);
    let mut command = vm_test_of(dir.path(), &suite, &["--series", PLANTED]);
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let child = &mut running.0;
    let smaller = || {
        let mut files = WalkDir::new(dir.path().join("runs")).into_iter().flatten();
        files.any(|entry| entry.file_name() == "smaller")
    };
    while !smaller() {
        assert_eq!(child.try_wait().unwrap(), None);
        sleep(Duration::from_millis(50));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let run = stored(&dir.path().join("runs"));
    let [(Outcome::Pass, _), (Outcome::Fail { .. }, survive)] = survived(&run)[..] else {
        panic!("{:?}", run.cells)
    };
    assert!((LEAK.is_it)(&survive.failures()[0].0), "{survive:?}");
    assert_eq!(survive.smallest, None);
    assert!(!smaller());
}

/// A child that dies with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "full: shrinks for minutes"]
fn a_lost_program_is_found() {
    assert_found(&LOST, "", &[]);
}

#[test]
#[ignore = "full: builds debug kernels and shrinks: an hour"]
fn bugs_are_found_by_a_debug_kernel() {
    let machine = ", memory_mib: 3072, boot_seconds: 900";
    let debug = ["--config-axis", "debug=y"];
    DEBUG.iter().for_each(|planted| assert_found(planted, machine, &debug));
}

/// Two bugs of 7.2, explained in docs/survive.md, and the patches that follow from the explanation.
#[test]
#[ignore = "full: builds kernels; asks about them, not about the program"]
fn stale_frames_of_return_probes_are_found_and_mended() {
    let dir = tempfile::tempdir().unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stale-frames");
    // The exact clock repeats when the memory of a link becomes that of the next.
    let groups = ["called-null", "called-null-of-session", "index-zero"]
        .map(|storm| format!("  - survive: {{ storm: {folder}/{storm}.json, clock: exact }}\n"));
    let suite = format!(
        "name: t\ndescription: d\nkernels: [\"7.2-source\"]\nmachine: {{ cpus: 2 }}\ntests:\n{}",
        groups.concat()
    );
    let series = ["--arch", "x86_64", "--series", folder, "--each-patch"];
    let output = vm_test(dir.path(), &suite, &series);
    let run = stored(&dir.path().join("runs"));
    let ways = survived(&run).into_iter().map(|(outcome, survive)| {
        // The storm of a file is run as it is.
        assert_eq!(survive.smallest, None);
        let way = survive.failures().into_iter().map(|(_, told)| told).next();
        assert_eq!(way.is_none(), *outcome == Outcome::Pass);
        way
    });
    let null = Some("oops: BUG: kernel NULL pointer dereference");
    let warned = Some("warning: WARNING: kernel/trace/fprobe.c");
    // Of the base, and with one patch and with both.
    let expected = [[null, None, None], [null, None, None], [warned, warned, None]].concat();
    let is_expected = ways.zip(expected).map(|(way, start)| match (way, start) {
        (Some(way), Some(start)) => way.starts_with(start),
        (way, start) => way.is_none() && start.is_none(),
    });
    assert_eq!(Vec::from_iter(is_expected), [true; 9], "{}", said(&output));
}
