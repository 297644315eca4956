// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole runs on real guests: their reports and exit codes. Interrupted runs are rows of `faults/`.

use crate::command::{said, stderr, stored, tramplab, write_script};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use tramplab_host::{Cache, runs::RunDir};
use tramplab_kernel as kernel;
use tramplab_model::profile::Phase;
use tramplab_model::run::{
    Arch, BranchSource, Cell, CellId, Clock, ErrorKind, Measurement, Outcome, Run, Setting, Test,
};
use tramplab_protocol::{Point, message::Explain};

fn vm_test(dir: &Path, suite: &str) -> Command {
    let kernel = std::env::var_os("TRAMPLAB_TEST_KERNEL_X86_64").expect("run `cargo xtask test`");
    let mut command = vm_test_of(dir, suite);
    command.arg("--kernel").arg(kernel);
    command
}

/// Uses the suite's own kernels.
fn vm_test_of(dir: &Path, suite: &str) -> Command {
    fs::write(dir.join("suite.yaml"), suite).unwrap();
    let mut command = tramplab();
    command
        .args(["vm-test", "--accel", "tcg", "--suite"])
        .arg(dir.join("suite.yaml"))
        .arg("--runs")
        .arg(dir.join("runs"));
    command
}

/// `vm-test --rerun`, with the files of the run typed again.
fn rerun(dir: &Path, run: &Path) -> Command {
    let mut command = tramplab();
    command.args(["vm-test", "--rerun"]).arg(run).arg("--suite").arg(dir.join("suite.yaml"));
    command.arg("--kernel").arg(std::env::var_os("TRAMPLAB_TEST_KERNEL_X86_64").unwrap());
    command.arg("--runs").arg(dir.join("runs"));
    command
}

/// Lists QEMU processes with this folder in their command lines.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            Some(
                String::from_utf8_lossy(&fs::read(entry.path().join("cmdline")).ok()?).into_owned(),
            )
        })
        .filter(|line| line.contains("qemu") && line.contains(dir))
        .collect()
}

const HEAD: &str = "name: t\ndescription: d\nkernels: [\"6.12\"]\ntests:\n";

#[test]
fn selects_cells_by_whole_parts_of_names() {
    let dir = tempfile::tempdir().unwrap();
    let attach =
        "  - attach: { mechanisms: [kprobe.multi], functions: [1, 100, 1000], rounds: 1 }\n";
    let list = |suite: &str, arguments: &[&str]| {
        let mut command = vm_test(dir.path(), &format!("{HEAD}{suite}"));
        let output = command.arg("--list").args(arguments).output().unwrap();
        let names = String::from_utf8_lossy(&output.stdout);
        let tests = names.lines().map(|name| name.rsplit('/').next().unwrap().to_owned());
        (output.status.code(), tests.collect::<Vec<_>>())
    };
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(list(attach, &["kprobe.multi/100"]), (Some(0), names(&["100"])));
    assert_eq!(list(attach, &["kprobe.multi/1", "multi/1000"]), (Some(0), names(&["1", "1000"])));
    assert_eq!(list(attach, &["kprobe.multi/10000"]), (Some(2), names(&[])));
    // A budget for a kernel that does not exist would never fail.
    let budgets = |kernel: &str| {
        format!(
            "  - lbr_waste: {{ mechanisms: [fexit] }}\nbudgets:\n  \
             - kernels: [\"{kernel}\"]\n    wasted: {{ fexit: {{ any: 9 }} }}\n"
        )
    };
    assert_eq!(list(&budgets("6.1"), &[]), (Some(0), names(&["fexit"])));
    assert_eq!(list(&budgets("6.21"), &[]), (Some(2), names(&[])));
    // `--clock` is no error in a suite without attach tests.
    let waste = "  - lbr_waste: { mechanisms: [fentry] }\n";
    assert_eq!(list(waste, &["--clock", "exact"]), (Some(0), names(&["fentry"])));
}

#[test]
fn reports_fail_skip_and_error_with_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let suite = format!(
        "{HEAD}  - lbr_waste: {{ mechanisms: [fexit, fentry, fsession] }}\n  \
         - fault: {{ faults: [panic] }}\n\
         budgets:\n  - wasted: {{ fexit: {{ any: 1 }}, fentry: {{ any: 1000 }} }}\n"
    );
    let output =
        vm_test(dir.path(), &suite).args(["--listing", "--branches", "virtual"]).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for words in
        ["budget 1", "sysrq triggered crash", "BPF_TRACE_FSESSION", "bpf_fentry_test1+0x", "[#00] "]
    {
        assert!(text.contains(words), "{words:?} is missing in: {text}");
    }
    let run = stored(&dir.path().join("runs"));
    let outcomes: Vec<&Outcome> = run.cells.iter().map(|cell| &cell.outcome).collect();
    assert!(
        matches!(
            outcomes[..],
            [
                Outcome::Fail { .. },
                Outcome::Pass,
                Outcome::Skip { .. },
                Outcome::Error { kind: ErrorKind::Panic, .. }
            ]
        ),
        "{outcomes:#?}"
    );
    let sources: Vec<_> = run.cells.iter().filter_map(Cell::branch_source).collect();
    assert_eq!(sources, [BranchSource::Virtual; 2]);
    assert!(!run.interrupted);
    // The stored run gives the same report and exit code.
    let report = |format: &str| {
        let output = tramplab()
            .args(["report", "--format", format])
            .arg(dir.path().join("runs/latest"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(report("junit").contains("<error"));
    assert!(report("markdown").contains("| fexit"));
    assert_eq!(serde_json::from_str::<Run>(&report("json")).unwrap(), run);

    // A run with errors only ends with 3.
    let output = vm_test(dir.path(), &suite)
        .args(["-E", "test(/fault/)", "--message-format", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(stderr(&output).contains("error x86_64/"), "{}", stderr(&output));
    let run = stored(&dir.path().join("runs"));
    let told = events(&output.stdout, &run);
    let names: Vec<&str> = told.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["run_started", "cell_started", "cell_finished", "run_ended"]);
    let reason = told[2]["reason"].as_str().unwrap();
    assert!(reason.contains("sysrq triggered crash"), "{reason}");
    assert_eq!(told[3]["exit_code"], 3);
    // A run with skips only ends with 0.
    let output = vm_test(dir.path(), &suite).arg("lbr_waste/fsession").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // A reader that lost an event must not take the run for a whole one.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = vm_test(dir.path(), &suite)
        .args(["lbr_waste/fsession", "--message-format", "json"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(stderr(&output).contains("standard output"), "{}", stderr(&output));
    assert_eq!(processes_of(dir.path()), Vec::<String>::new());
}

/// Reads the events of `--message-format json`. They follow their schema and agree with the run.
fn events(stdout: &[u8], run: &Run) -> Vec<Value> {
    let schema = include_str!("../../../docs/events.schema.json");
    let schema = serde_json::from_str(schema).unwrap();
    let lines = str::from_utf8(stdout).unwrap().lines();
    let events: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in &events {
        assert_eq!(tramplab_testdata::schema::errors(&schema, event), [""; 0], "{event}");
    }
    let (first, last) = (&events[0], events.last().unwrap());
    assert_eq!((&first["event"], &last["event"]), (&json!("run_started"), &json!("run_ended")));
    assert_eq!(last["interrupted"], run.interrupted);
    let counts = last["counts"].as_object().unwrap();
    for outcome in ["pass", "fail", "error", "skip"] {
        let of = run.cells.iter().filter(|cell| cell.outcome.name() == outcome);
        assert_eq!(counts[outcome], of.count(), "{outcome}");
    }
    assert_eq!(counts["missing"], run.missing.len());
    let finished: BTreeMap<&str, &Value> = events
        .iter()
        .filter(|event| event["event"] == "cell_finished")
        .map(|event| (event["name"].as_str().unwrap(), event))
        .collect();
    assert_eq!(finished.len(), run.cells.len());
    for cell in &run.cells {
        let event = finished[&*cell.id.name()];
        assert_eq!(event["outcome"], cell.outcome.name());
        assert_eq!(event["reason"], json!(cell.outcome.reason()));
        assert_eq!(event["id"], serde_json::to_value(&cell.id).unwrap());
    }
    events
}

/// The run is interrupted after its first cell. `--rerun` measures the others, and takes over that
/// one.
#[test]
fn reruns_the_missing_cells_of_an_interrupted_run() {
    let dir = tempfile::tempdir().unwrap();
    let suite =
        format!("{HEAD}  - lbr_waste: {{ mechanisms: [fentry, fexit, kprobe, kretprobe] }}\n");
    let mut child = vm_test(dir.path(), &suite)
        .args(["-j", "1", "--message-format", "json", "lbr_waste"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("pass ")));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{rest:#?}");
    let latest = dir.path().join("runs/latest");
    let first = fs::canonicalize(&latest).unwrap();
    let hint = format!("cargo xtask vm-test --rerun {}", first.display());
    let line = rest.iter().find(|line| line.contains(&hint));
    let line = line.unwrap_or_else(|| panic!("{rest:#?}"));
    let report = tramplab().arg("report").arg(&latest).output().unwrap();
    assert_eq!(report.status.code(), Some(130), "{}", said(&report));
    assert!(said(&report).contains(&hint), "{}", said(&report));
    let lacking = RunDir::load(&first).unwrap();
    assert!(!lacking.cells.is_empty() && !lacking.missing.is_empty(), "{lacking:#?}");
    let told = events(&output.stdout, &lacking);
    assert_eq!(told[0]["cells"].as_array().unwrap().len(), 4);
    assert_eq!(told.last().unwrap()["exit_code"], 130);
    // A cell that started has finished, or the interrupt stopped it.
    let of = |kind: &str| told.iter().filter(|event| event["event"] == kind).count();
    assert_eq!(of("cell_started"), of("cell_finished") + of("cell_stopped"), "{told:#?}");

    let rerun = |of: &Path| rerun(dir.path(), of).output().unwrap();
    let untyped = tramplab().args(["vm-test", "--rerun"]).arg(&latest).output().unwrap();
    assert_eq!(untyped.status.code(), Some(2), "{}", said(&untyped));
    assert!(stderr(&untyped).contains(" --suite /"), "{}", said(&untyped));
    // The line that was printed is whole.
    let words = shell_words::split(line.split_once("cargo xtask ").unwrap().1).unwrap();
    let output = tramplab().args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let second = fs::canonicalize(&latest).unwrap();
    let whole = RunDir::load(&second).unwrap();
    assert!(whole.cells.len() == 4 && !whole.interrupted && whole.missing.is_empty(), "{whole:#?}");
    assert!(whole.notes.iter().any(|note| note.contains(&lacking.id)), "{:?}", whole.notes);
    // The command line is that of the first run. Its results have events as well.
    let told = events(&output.stdout, &whole);
    assert_eq!(told[0]["cells"].as_array().unwrap().len(), lacking.missing.len());
    for cell in &lacking.cells {
        let kept = whole.cells.iter().find(|kept| kept.id == cell.id);
        assert_eq!(kept, Some(cell));
        assert!(RunDir::new(&second).cell(&cell.id).join("console.log").exists());
    }

    // A whole run has nothing to measure again, and another suite has no cell in common.
    let refused = |of: &Path, words: &str| {
        let output = rerun(of);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
    };
    refused(&second, "has a result of every cell");
    fs::write(dir.path().join("suite.yaml"), format!("{HEAD}  - boot: {{}}\n")).unwrap();
    refused(&first, "they are of different suites");
    refused(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")), "is not a run");
}

/// The run is killed in the last boot of its cell. `--rerun` boots only that one again.
#[test]
#[ignore = "full: boots four guests, one after the other"]
fn goes_on_with_the_boots_of_a_killed_run() {
    let dir = tempfile::tempdir().unwrap();
    let suite = format!(
        "{HEAD}  - attach: {{ mechanisms: [fentry], functions: [1], rounds: 1, boots: 3 }}\n"
    );
    let mut child =
        vm_test(dir.path(), &suite).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let latest = dir.path().join("runs/latest");
    let cell_of = |id: &CellId| RunDir::new(&latest).load_partial(id);
    let boots = |cell: &Cell| match &cell.measurement {
        Some(Measurement::Attach(attach)) => attach.boots.clone(),
        other => panic!("{other:?}"),
    };
    let partial = loop {
        assert!(child.try_wait().unwrap().is_none(), "it ended before its last boot");
        std::thread::sleep(Duration::from_millis(20));
        let missing = RunDir::load(&latest).map(|run| run.missing).unwrap_or_default();
        let partial = missing.first().and_then(cell_of);
        if let Some(partial) = partial.filter(|partial| boots(partial).len() == 2) {
            break partial;
        }
    };
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let killed = RunDir::load(&latest).unwrap();
    assert_eq!(killed.missing, std::slice::from_ref(&partial.id));

    let output = rerun(dir.path(), &latest).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let whole = RunDir::load(&latest).unwrap();
    let [cell] = &whole.cells[..] else { panic!("{whole:#?}") };
    assert_eq!((boots(cell).len(), &boots(cell)[..2]), (3, &boots(&partial)[..]));
    let note = format!("goes on behind 2 boots of run {}", killed.id);
    assert!(whole.notes.iter().any(|told| told.contains(&note)), "{:?}", whole.notes);
    let folder = RunDir::new(&latest).cell(&cell.id);
    for boot in 1..=3 {
        assert!(folder.join(format!("boot-{boot}/console.log")).exists(), "{boot}");
    }
    assert!(!RunDir::new(&latest).partial(&cell.id).exists());
}

/// Retpolines cost kprobe.multi records. A prebuilt kernel has no other configuration.
#[test]
#[ignore = "full: builds kernels of two configurations"]
fn lays_configurations_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let suite = format!("{HEAD}  - lbr_waste: {{ mechanisms: [kprobe.multi] }}\n");
    let output = vm_test(dir.path(), &suite)
        .args(["--config-axis", "mitigations=off,auto"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let wasted = |value: &str| {
        let is_it = |settings: &[Setting]| matches!(settings, [one] if one.value == value);
        let kernel = run.kernels.iter().find(|kernel| {
            kernel.configuration.as_ref().is_some_and(|point| is_it(&point.settings))
        });
        let kernel = &kernel.unwrap_or_else(|| panic!("{:?}", run.kernels)).name;
        let cell = run.cells.iter().find(|cell| cell.id.kernel == *kernel).unwrap();
        let Some(Measurement::LbrWaste(waste)) = &cell.measurement else { panic!("{cell:?}") };
        waste.points[0].wasted["intel-lbr"]["any"].wasted.unwrap()
    };
    let (off, auto) = (wasted("off"), wasted("auto"));
    assert!(auto > off, "{off} {auto}");
    let cost = "lbr_waste.kprobe_multi.any";
    let text = said(&output);
    let costs = text.split("Cost of each setting").nth(1).unwrap_or_else(|| panic!("{text}"));
    let row = costs.lines().find(|line| line.trim().starts_with(&format!("{cost} "))).unwrap();
    assert!(row.contains(&format!("+{}", auto - off)), "{row}");

    let output =
        vm_test(dir.path(), &suite).args(["--config-axis", "preempt=none,full"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("built here"), "{}", said(&output));
}

/// A kernel's watchdog in a guest that gets a quarter of a CPU is doubted, and heard once more.
#[test]
#[ignore = "full: two guests, starved"]
fn repeats_what_a_watchdog_says_in_a_starved_guest() {
    let qemu = std::env::var("TRAMPLAB_QEMU_X86_64").expect("run `cargo xtask test`");
    let suite = format!("{HEAD}  - fault: {{ faults: [rcu_stall] }}\n");
    for (starves, kind) in [("once", ErrorKind::RcuStall), ("always", ErrorKind::Starved)] {
        let dir = tempfile::tempdir().unwrap();
        let (mark, wrapper) = (dir.path().join("mark"), dir.path().join("qemu"));
        fs::write(&mark, "").unwrap();
        let forget = if starves == "once" { format!("rm {}", mark.display()) } else { "".into() };
        let text = format!(
            "#!/bin/bash\n\
             case \" $* \" in *\" -kernel \"*) if [ -e {mark} ]; then\n\
                 {forget}\n\
                 cpu=$(awk '/^Cpus_allowed_list/ {{ split($2, c, /[-,]/); print c[1] }}' \\\n\
                     /proc/self/status)\n\
                 taskset -cp \"$cpu\" $$ >/dev/null\n\
                 while :; do :; done &\n\
                 renice -n 5 $$ >/dev/null\n\
             fi;; esac\n\
             exec {qemu} \"$@\"\n",
            mark = mark.display(),
        );
        write_script(&wrapper, &text);
        let mut command = vm_test(dir.path(), &suite);
        let output = command.arg("--cold").env("TRAMPLAB_QEMU_X86_64", &wrapper).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        let run = stored(&dir.path().join("runs"));
        let [cell] = &run.cells[..] else { panic!("{}", said(&output)) };
        // A busy machine may starve the second guest as well.
        let is_busy = cell.starved_ms.is_some_and(|ms| ms > cell.duration_ms / 2);
        let is_as_expected = |found| found == kind || (is_busy && found == ErrorKind::Starved);
        let how = &cell.outcome;
        assert!(matches!(how, &Outcome::Error { kind, .. } if is_as_expected(kind)), "{how:?}");
        let first = cell.repeated.as_ref().expect("a first attempt");
        assert!(first.starts_with("starved host: ") && first.contains("stall"), "{first}");
        assert!(processes_of(dir.path()).is_empty());
    }
}

/// Base and head in another configuration than the kernel's own.
#[test]
fn a_series_is_compared_in_each_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let suite = "name: t\ndescription: d\nkernels: [6.12-source]\ntests:\n  - lbr_waste: { \
                 mechanisms: [fexit] }\n";
    let listed = |axis: &str| {
        let planted = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/planted-bugs");
        let options = ["--list", "--series", planted, "--config-axis", axis];
        vm_test_of(dir.path(), suite).args(options).output().unwrap()
    };
    for values in ["full", "none,full"] {
        let output = listed(&format!("preempt={values}"));
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let text = said(&output);
        for value in values.split(',') {
            let base = format!("6.12-source+preempt-{value}");
            let job = format!("x86_64/{base}..{base}+planted-bugs/tcg/lbr_waste/fexit");
            assert!(text.contains(&job), "{text}");
        }
        assert_eq!(text.matches("lbr_waste/fexit").count(), values.split(',').count(), "{text}");
    }
}

/// The module of a kernel that is built here. The build without it is the kernel's own.
#[test]
#[ignore = "full: builds a kernel"]
fn measures_a_function_in_a_module_of_its_own_build() {
    let dir = tempfile::tempdir().unwrap();
    let suite = "name: t\ndescription: d\nkernels: [6.12-source]\ntests:\n  - lbr_waste:\n      \
                 mechanisms: [fexit]\n      targets: [\"fuse:fuse_init_fs_context\"]\n";
    let axis = ["--config-axis", "CONFIG_FUSE_FS=m,n"];
    let output = vm_test_of(dir.path(), suite).args(axis).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let of = |value: &str| {
        let is_it = |cell: &&Cell| {
            cell.id.kernel.ends_with(value) && matches!(cell.id.test, Test::LbrWaste(_))
        };
        run.cells.iter().find(is_it).unwrap()
    };
    let Some(Measurement::LbrWaste(waste)) = &of("-m").measurement else {
        panic!("{:?}", of("-m"))
    };
    assert_eq!(waste.function.module.as_deref(), Some("fuse"));
    assert!(waste.points[0].wasted["intel-lbr"]["any"].wasted.is_some());
    let Outcome::Skip { reason } = &of("-n").outcome else { panic!("{:?}", of("-n")) };
    assert_eq!(reason, "the kernel has no module fuse");
}

on_each_arch!(measures_hits_beside_a_live_patch, ignore = "full: builds a kernel");

/// The tracer leads to the function of the patch, and not back into the patched one.
fn measures_hits_beside_a_live_patch(arch: Arch) {
    const KERNELS: [&str; 2] = ["7.2-livepatch", "7.2"];
    let group = |rest: &str| {
        format!(
            "  - trigger:\n      mechanisms: [fentry, fexit, kprobe, kretprobe.multi]\n      \
             throughput: false\n{rest}"
        )
    };
    let (target, beside) = ("      targets: [cmdline_proc_show]\n", "      beside: [livepatch]\n");
    let suite = format!(
        "name: t\ndescription: d\nkernels: {KERNELS:?}\ntests:\n{}{}{}",
        group(target),
        group(&format!("{target}{beside}")),
        group(beside),
    );
    let dir = tempfile::tempdir().unwrap();
    let output = vm_test_of(dir.path(), &suite).args(["--arch", arch.name()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    // The patch replaces the guest's own command line.
    assert!(!serde_json::to_string(&run).unwrap().contains("this has been live patched"));
    let of = |kernel: &str, test: String| {
        let is_it = |cell: &&Cell| cell.id.kernel == kernel && cell.id.test.name() == test;
        run.cells.iter().find(is_it).unwrap_or_else(|| panic!("{test}: {:?}", run.cells))
    };
    for mechanism in ["fentry", "fexit", "kprobe", "kretprobe.multi"] {
        let cost = |test: String| match &of(KERNELS[0], test).measurement {
            Some(Measurement::Trigger(trigger)) => trigger.cost.clone().unwrap(),
            other => panic!("{other:?}"),
        };
        let alone = cost(format!("trigger/{mechanism}@cmdline_proc_show"));
        let beside = cost(format!("trigger/{mechanism}+livepatch@cmdline_proc_show"));
        assert!(alone.instructions() < beside.instructions(), "{alone:#?} {beside:#?}");
        for (cost, function) in
            [(&alone, "cmdline_proc_show"), (&beside, "livepatch_cmdline_proc_show")]
        {
            let to = &cost.part(Point::Entry).unwrap().records.last().unwrap().to;
            assert_eq!(to.symbol.as_deref(), Some(function), "{cost:#?}");
        }
        for (kernel, test, words) in [
            (
                KERNELS[0],
                format!("trigger/{mechanism}+livepatch"),
                "does not replace bpf_fentry_test1",
            ),
            (
                "7.2",
                format!("trigger/{mechanism}+livepatch@cmdline_proc_show"),
                "no module livepatch_sample",
            ),
        ] {
            let Outcome::Skip { reason } = &of(kernel, test).outcome else { panic!("{kernel}") };
            assert!(reason.contains(words), "{reason}");
        }
    }
}

/// The kernel warns, as it was asked to. The fault's cell cannot pass: it expects the end.
#[test]
fn tells_allowed_warnings_until_their_last_day() {
    for (until, is_allowed) in [("9999-12-31", true), ("2025-12-31", false)] {
        let dir = tempfile::tempdir().unwrap();
        let suite = format!(
            "{HEAD}  - fault: {{ faults: [warning] }}\n\
             allow:\n  - {{ warning: 'WARNING: ', reason: it was asked to, until: {until} }}\n"
        );
        let output = vm_test(dir.path(), &suite).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        let [cell] = &stored(&dir.path().join("runs")).cells[..] else { panic!() };
        let Outcome::Error { kind, .. } = &cell.outcome else { panic!("{cell:?}") };
        assert_eq!(*kind == ErrorKind::Warning, !is_allowed, "{cell:?}");
        let reasons: Vec<&str> = cell.allowed.iter().map(|one| &*one.reason).collect();
        assert_eq!(reasons, if is_allowed { &["it was asked to"][..] } else { &[] });
        let text = said(&output);
        assert_eq!(text.contains("(it was asked to)"), is_allowed, "{text}");
        assert_eq!(text.contains("is an error again"), !is_allowed, "{text}");
    }
}

/// QEMU fails once. The rerun measures what was lost and says how it ended before.
#[test]
#[ignore = "full: several runs; a rerun runs in every change"]
fn reruns_the_cells_that_ended_as_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let real = std::env::var("TRAMPLAB_QEMU_X86_64").expect("run `cargo xtask test`");
    let (qemu, fails) = (dir.path().join("qemu"), dir.path().join("fails"));
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *virtio-serial*) [ -e {0} ] && rm {0} && exit 1;; esac\n\
         exec {real} \"$@\"\n",
        fails.display()
    );
    write_script(&qemu, &text);
    fs::write(&fails, "").unwrap();
    let suite = format!("{HEAD}  - lbr_waste: {{ mechanisms: [fentry, fexit] }}\n");
    let with = |mut command: Command| command.env("TRAMPLAB_QEMU_X86_64", &qemu).output().unwrap();
    let mut first = vm_test(dir.path(), &suite);
    first.args(["--cold", "-j", "1"]);
    let output = with(first);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let latest = dir.path().join("runs/latest");
    let lost = RunDir::load(&latest).unwrap();
    let is_error = |cell: &&Cell| matches!(cell.outcome, Outcome::Error { .. });
    assert!(!lost.interrupted && lost.cells.iter().any(|cell| is_error(&cell)), "{lost:#?}");

    let output = with(rerun(dir.path(), &latest));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let whole = RunDir::load(&latest).unwrap();
    let passed = whole.cells.iter().filter(|cell| cell.outcome == Outcome::Pass).count();
    assert_eq!((whole.cells.len(), passed), (2, 2), "{whole:#?}");
    assert!(whole.command.contains(&"--accel=tcg".to_owned()), "{:?}", whole.command);
    for cell in lost.cells.iter().filter(is_error).filter(|cell| cell.id.test != Test::Boot) {
        let name = cell.id.name();
        assert!(whole.notes.iter().any(|note| note.contains(&name)), "{:?}", whole.notes);
    }
}

/// A distribution's kernel without its package lacks the modules of virtio.
#[test]
fn names_the_missing_virtio_option() {
    let dir = tempfile::tempdir().unwrap();
    let shipped = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels"));
    let mut manifests = kernel::find("6.1", shipped).unwrap().into_iter();
    let manifest = manifests.find(|manifest| manifest.arch == Arch::X86_64).unwrap();
    let image = kernel::fetch(&manifest, &Cache::open(true).unwrap(), &mut |_| ()).unwrap();
    let suite = format!("{HEAD}  - boot: {{}}\n");
    let output = vm_test_of(dir.path(), &suite).arg("--kernel").arg(&image.image).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let Outcome::Error { kind: ErrorKind::Guest, message } = &run.cells[0].outcome else {
        panic!("{:#?}", run.cells[0])
    };
    assert!(message.contains("gave up") && message.contains("CONFIG_VIRTIO_CONSOLE"), "{message}");
}

#[test]
fn boots_a_panicking_kernel_once() {
    let dir = tempfile::tempdir().unwrap();
    let suite = format!(
        "machine: {{ append: [\"rdinit=/none\", \"init=/none\"] }}\n{HEAD}  \
         - lbr_waste: {{ mechanisms: [fentry, fexit, kprobe, kretprobe, \
         kprobe.multi, kretprobe.multi] }}\n"
    );
    let output = vm_test(dir.path(), &suite).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let names: Vec<String> = run.cells.iter().map(|cell| cell.id.test.name()).collect();
    assert_eq!((names.len(), names[0].as_str()), (7, "boot"), "{names:?}");
    for (number, cell) in run.cells.iter().enumerate() {
        let Outcome::Error { kind: ErrorKind::Panic, message } = &cell.outcome else {
            panic!("{cell:?}")
        };
        let start = if number == 0 { "Kernel panic" } else { "does not boot: Kernel panic" };
        assert!(message.starts_with(start), "{message}");
        assert_eq!(cell.console_tail.is_empty(), number > 0, "{cell:?}");
    }
    // One QEMU ran; its console is kept with the cell that failed. All other cells share one line.
    let latest = fs::canonicalize(dir.path().join("runs/latest")).unwrap();
    let files = |name: &str| {
        let all = walkdir::WalkDir::new(latest.join("cells")).into_iter().flatten();
        all.filter(|entry| entry.file_name() == name).count()
    };
    assert_eq!((files("qemu.log"), files("console.log")), (1, 2));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("does not boot: Kernel panic").count(), 1, "{text}");
}

/// Sums the folded stacks of a profile.
fn folded_total(dir: &Path, arguments: &[&str]) -> u64 {
    let output = tramplab()
        .args(["profile", "--format", "folded"])
        .arg(dir.join("runs/latest"))
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(count).sum()
}

#[test]
fn times_attach_by_both_clocks_and_explains_it_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let suite = format!(
        "{HEAD}  - attach: {{ mechanisms: [kprobe.multi], functions: [100], rounds: 2, \
         clock: both, explain: [exact, sampled] }}\n"
    );
    let output = vm_test(dir.path(), &suite).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let run = stored(&dir.path().join("runs"));
    let Some(Measurement::Attach(attach)) = &run.cells[0].measurement else { panic!("{said}") };
    let exact = attach.exact.as_ref().unwrap();
    assert_eq!((attach.boots.len(), exact.rounds.len(), exact.functions), (1, 2, 100));
    // Both clocks attach the same functions, and the lists are kept.
    assert_eq!(attach.boots[0].list_sha256, exact.list_sha256);
    let folder = RunDir::new(dir.path().join("runs/latest")).cell(&run.cells[0].id);
    for boot in ["boot-1", "boot-2"] {
        let list = fs::read_to_string(folder.join(boot).join("functions.txt")).unwrap();
        assert_eq!(list.lines().count(), 100);
    }
    for summary in &attach.explained {
        let phase = summary.phase.name();
        let file = folder.join(&summary.file);
        assert!(file.exists(), "{}", file.display());
        let how = match summary.how {
            Explain::Exact => {
                assert_eq!(summary.clock, Clock::Exact);
                assert!(summary.totals.task > 1_000_000, "{phase}: {:?}", summary.totals);
                // The exact clock counts the instructions of all threads.
                assert!(summary.wall_ns > summary.totals.task, "{phase}: {summary:?}");
                let waits = if summary.phase == Phase::Detach { 3 } else { 0 };
                assert_eq!(summary.grace_periods, Some(waits), "{phase}");
                "exact"
            }
            Explain::Sampled => {
                assert_eq!(summary.clock, Clock::Free);
                // Three clocks of the guest, each read at its own moment.
                let most = summary.wall_ns + summary.wall_ns / 100;
                assert!(summary.cpu_ns + summary.waited_ns <= most, "{phase}: {summary:?}");
                assert_eq!(summary.grace_periods, None, "{phase}");
                "sampled"
            }
            Explain::Estimated => panic!("the suite does not ask for it"),
        };
        let total = folded_total(dir.path(), &["--phase", phase, "--how", how]);
        assert_eq!(total, summary.totals.task, "{phase} {how}");
        assert!(
            summary.functions.iter().any(|cost| cost.function.name.contains("ftrace")),
            "{summary:#?}"
        );
    }
    assert_eq!(attach.explained.len(), 4);
    for words in ["exact", "What the attaching thread did", "on CPU", "remainder"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // The guests' orders and the plugin's raw counts are removed.
    let mut left = Vec::new();
    for entry in walkdir::WalkDir::new(&folder).into_iter().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        left.extend((name.ends_with(".cpio") || name.ends_with(".bin")).then_some(name));
    }
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(processes_of(dir.path()), Vec::<String>::new());
}

/// Runs every measurement on both architectures in one run, with one report.
#[test]
#[ignore = "full: each architecture runs in every change"]
fn runs_two_architectures_in_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let suite = "name: t\ndescription: d\nkernels: [\"7.2\"]\ntests:\n  \
                 - lbr_waste: { mechanisms: [fexit, fexit.multi] }\n  \
                 - trigger: { mechanisms: [fentry], beside: [function_tracer] }\n  \
                 - attach: { mechanisms: [kprobe.multi], functions: [10], rounds: 1, \
                 clock: both, explain: [exact] }\n";
    let output = vm_test_of(dir.path(), suite)
        .args(["--arch", "arm64,x86_64", "--listing"])
        .output()
        .unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let run = stored(&dir.path().join("runs"));
    let arches: Vec<Arch> = run.machines.iter().map(|machine| machine.arch).collect();
    assert_eq!(arches, Arch::ALL);
    let outcomes = |arch: Arch| -> Vec<(String, &str)> {
        let cells = run.cells.iter().filter(|cell| cell.id.arch == arch);
        cells.map(|cell| (cell.id.test.name(), cell.outcome.name())).collect()
    };
    let expected = |multi| {
        [
            ("lbr_waste/fexit", "pass"),
            ("lbr_waste/fexit.multi", multi),
            ("trigger/fentry+function_tracer", "pass"),
            ("attach/kprobe.multi/10", "pass"),
        ]
        .map(|(name, outcome)| (name.to_owned(), outcome))
    };
    assert_eq!(outcomes(Arch::X86_64), expected("pass"));
    // arm64 has no single direct ops; the kernel itself says so.
    assert_eq!(outcomes(Arch::Arm64), expected("skip"));
    for words in [
        "7.2 x86_64 | 7.2 arm64",
        "Wasted branch records (brbe)",
        "Wasted branch records (intel-lbr)",
        "CONFIG_HAVE_SINGLE_FTRACE_DIRECT_OPS",
        // From the listing of a hit with several tracers.
        "ftrace_ops_list_func",
        "call_direct_funcs",
    ] {
        assert!(said.contains(words), "{words:?} is missing in: {said}");
    }
    let run_dir = RunDir::new(dir.path().join("runs/latest"));
    for arch in Arch::ALL {
        let config = fs::read_to_string(run_dir.config(arch, "7.2")).unwrap();
        let option = if arch == Arch::Arm64 { "CONFIG_ARM64=y" } else { "CONFIG_X86_64=y" };
        assert!(config.contains(option), "{arch}");
        let cell = run.cells.iter().find(|cell| {
            cell.id.arch == arch && matches!(cell.measurement, Some(Measurement::Attach(_)))
        });
        let Some(Measurement::Attach(attach)) = &cell.unwrap().measurement else { unreachable!() };
        for summary in &attach.explained {
            let total = folded_total(dir.path(), &["--phase", summary.phase.name(), arch.name()]);
            assert_eq!(total, summary.totals.task, "{arch} {}", summary.phase.name());
        }
    }
    assert_eq!(processes_of(dir.path()), Vec::<String>::new());
}
