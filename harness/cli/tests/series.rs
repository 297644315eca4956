// SPDX-License-Identifier: MIT OR Apache-2.0
//! Series on a real kernel that is built here: the shipped ones keep their promise, and bad ones
//! are told why. The first run builds 6.12 whole (minutes). Later runs build only the files that a
//! patch touches.

use crate::command::{repository, said, stored, tramplab};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};
use tramplab_analysis::{
    branch::{
        self, Branch, Filter, Model,
        early::{Stage, taken_at},
        waste,
    },
    compare::{
        self, Cause, Change, ChangeKind, Comparison, Difference, Finding, Metric, Value, Verdict,
    },
    profile::estimate::Term,
};
use tramplab_host::{Cache, child, runs::RunDir};
use tramplab_model::{
    code::SourceLine,
    kinds::lbr_waste,
    run::{
        Arch, Built, CapturePoint, Cell, ErrorKind, LbrWaste, Measurement, Outcome, Run,
        SeriesStep, Test, WasteRow,
    },
};
use tramplab_protocol::Mechanism;

const SUITE: &str = "name: t\ndescription: d\nkernels: [6.12-source]\ntests:\n  \
                     - lbr_waste: { mechanisms: [fexit, kretprobe.multi] }\n";

fn vm_test(dir: &Path, suite: &str, arguments: &[&str]) -> Output {
    fs::write(dir.join("suite.yaml"), suite).unwrap();
    let mut command = tramplab();
    command.args(["vm-test", "--accel", "tcg", "--suite"]).arg(dir.join("suite.yaml"));
    command.arg("--runs").arg(dir.join("runs")).args(arguments).output().unwrap()
}

/// Selects patches that are bad on purpose: 1 adds a record, 2 panics at boot, 3 does not compile.
fn bad(dir: &Path, numbers: &[usize]) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad-series");
    let mut patches: Vec<_> =
        fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()).collect();
    patches.sort();
    let folder = dir.join("bad");
    fs::create_dir(&folder).unwrap();
    // `git format-patch` numbered all of them, so name the chosen ones in a quilt series.
    let mut series = String::new();
    for number in numbers {
        let patch = &patches[number - 1];
        let name = patch.file_name().unwrap().to_str().unwrap();
        fs::copy(patch, folder.join(name)).unwrap();
        series += &format!("{name}\n");
    }
    fs::write(folder.join("series"), series).unwrap();
    folder
}

/// Wasted records of `row` in `filter`: base, head.
fn wasted(comparison: &Comparison, row: &str, filter: Branch) -> [u32; 2] {
    let row: WasteRow = row.parse().unwrap();
    let metric = Metric::LbrWaste(lbr_waste::Metric { row, filter: filter.into() });
    let compared = comparison.metrics.iter().find(|compared| compared.metric == metric).unwrap();
    [&compared.base, &compared.head].map(|value| match value {
        Value::Records(Some(records)) => *records,
        other => panic!("{metric}: {other}"),
    })
}

fn less(comparison: &Comparison, row: &str, filter: Branch) -> i64 {
    let [base, head] = wasted(comparison, row, filter);
    i64::from(base) - i64::from(head)
}

/// Each line of the README's report, up to where it is shortened, is in the report of its command.
#[test]
#[ignore = "full: the whole suite `waste` on two kernels"]
fn the_readme_shows_lines_of_its_report() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, sample) = readme.split_once("From `vm-test --suite waste").unwrap();
    let report = sample.split("```").nth(1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut command = tramplab();
    command.args(["vm-test", "--suite", "waste", "--series", "kprobe-multi-inline"]);
    let output = command.arg("--runs").arg(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let shown: Vec<&str> = report.lines().filter(|line| !line.is_empty()).collect();
    assert!(shown.len() > 5, "{shown:?}");
    for line in shown {
        let whole = line.split('…').next().unwrap();
        assert!(said(&output).contains(whole), "{line:?} is not in\n{}", said(&output));
    }
}

#[test]
fn shipped_series_keep_their_promise() {
    let dir = tempfile::tempdir().unwrap();
    let output = vm_test(dir.path(), SUITE, &["--series", "kprobe-multi-inline", "--lines"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let comparison = compare::whole(&run, &run.series[0], None);
    assert_eq!(less(&comparison, "kretprobe.multi", Branch::Any), 1, "{}", said(&output));
    assert_eq!(less(&comparison, "fexit", Branch::Any), 0);
    // The report names the record that went.
    assert!(said(&output).contains("- [#"), "{}", said(&output));
    assert!(said(&output).contains("kprobe_multi_link_exit_handler+"), "{}", said(&output));
    // The lines of the calls that one of the patch's sides has: `(FILE:LINE) -> …`.
    assert!(said(&output).contains("(kernel/trace/bpf_trace.c:"), "{}", said(&output));
    is_inlined(&run);
    assert_lines_as_of_binutils(&run);
    let inlined = RunDir::new(fs::canonicalize(dir.path().join("runs/latest")).unwrap());
    shows_instructions_that_changed(inlined.path());

    let output = vm_test(
        dir.path(),
        SUITE,
        &["--series", "lbr-helpers", "--each-patch", "--format", "markdown"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let comparison = compare::whole(&run, &run.series[0], None);
    for row in ["fexit", "kretprobe.multi"] {
        assert_eq!(less(&comparison, row, Branch::Any), 3, "{row}: {}", said(&output));
        assert_eq!(less(&comparison, row, Branch::AnyReturn), 1, "{row}");
    }
    // Patch 1 saves the helper's call and return, patch 2 the call of the other helper.
    let steps = compare::walk(&run, &run.series[0], None);
    let each: Vec<i64> = steps.iter().map(|step| less(step, "fexit", Branch::Any)).collect();
    assert_eq!(each, [2, 1]);
    assert!(said(&output).contains("### Patch by patch"), "{}", said(&output));
    // A reviewer's mail is found by them.
    let ids: BTreeSet<_> =
        run.series[0].ids.iter().filter_map(|ids| ids.patch_id.as_ref()).collect();
    assert_eq!(ids.len(), 2, "{:?}", run.series[0].ids);
    // Builds have no start, all that ran in guests has.
    assert!(run.cells.iter().all(|cell| cell.started.is_some() != (cell.id.test == Test::Build)));
    // Every kernel says that it was built, and how.
    assert!(
        run.kernels.iter().all(|kernel| kernel.build.is_some() && kernel.image_sha256.is_some())
    );

    // Compare both stored runs without a guest. Their heads are different kernels of one tree.
    let compare = |extra: &[&str]| {
        let latest = dir.path().join("runs/latest");
        tramplab().arg("compare").arg(inlined.path()).arg(latest).args(extra).output().unwrap()
    };
    let kernels =
        ["--base-kernel", "6.12-source+kprobe-multi-inline", "--head-kernel", "6.12-source"];
    let output = compare(&kernels);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let changed = "lbr_waste.kretprobe_multi: any ";
    assert!(said(&output).contains(changed), "{}", said(&output));
    assert!(!said(&output).contains("[#"), "{}", said(&output));
    // All tables and records.
    let full = compare(&[&kernels[..], &["--listing"]].concat());
    assert!(said(&full).contains("lbr_waste.kretprobe_multi.any"), "{}", said(&full));
    assert!(said(&full).contains("[#"), "{}", said(&full));
    let output = compare(&[kernels[0], kernels[1], "--head-kernel", "6.12-source+kprobe"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    // A run measured by another agent is rejected, unless with --anyway.
    let mut other = RunDir::load(inlined.path()).unwrap();
    other.machines[0].agent_sha256 = "0".repeat(64);
    inlined.save(&other).unwrap();
    let output = compare(&kernels);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("different guest agents: 000000000000 and "),
        "{}",
        said(&output)
    );
    let output = compare(&[&kernels[..], &["--anyway"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
}

/// The base has the patch that prepares it: the letter's records before and after.
#[test]
#[ignore = "full: builds another 6.12 whole, ten minutes"]
fn the_letters_series_keeps_its_promise() {
    let dir = tempfile::tempdir().unwrap();
    let suite = SUITE.replace("6.12-source", "letter-2024");
    let output = vm_test(dir.path(), &suite, &["--series", "letter-2024"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let comparison = compare::whole(&run, &run.series[0], None);
    for (row, filter, expected) in [
        ("fexit", Branch::Any, [9, 6]),
        ("fexit", Branch::AnyReturn, [3, 2]),
        ("kretprobe.multi", Branch::Any, [18, 14]),
        ("kretprobe.multi", Branch::AnyReturn, [3, 2]),
    ] {
        assert_eq!(wasted(&comparison, row, filter), expected, "{row}: {}", said(&output));
    }
}

/// Checks what the run says of the code: the function has no size on the head, and where it was
/// inlined, source lines name it.
fn is_inlined(run: &Run) {
    const INLINED: &str = "kprobe_multi_link_prog_run";
    let series = &run.series[0];
    let text = series.text.as_ref().expect("sizes of the functions of both kernels");
    let function = text.functions.iter().find(|function| function.name == INLINED);
    let function = function.unwrap_or_else(|| panic!("{text:?}"));
    assert!(function.base.is_some_and(|size| size > 0) && function.head.is_none(), "{function:?}");
    assert!(text.gone >= 1 && text.base > 1 << 20, "{text:?}");
    let lines_in = |step: &SeriesStep, symbol: &str| -> Vec<Vec<SourceLine>> {
        let places = run.lines_of(series.arch, &step.kernel).expect("debug information");
        let in_symbol = |(place, _): &(&String, _)| {
            place.rsplit_once('+').is_some_and(|(name, _)| name == symbol)
        };
        places.iter().filter(in_symbol).map(|(_, lines)| lines.clone()).collect()
    };
    let names = |lines: &[SourceLine]| lines.iter().any(|line| line.function == INLINED);
    for (step, function) in
        [(series.base(), INLINED), (series.head(), "kprobe_multi_link_exit_handler")]
    {
        let found = lines_in(step, function);
        assert!(found.iter().any(|lines| names(lines)), "{}: {found:#?}", step.kernel);
        for lines in found {
            let own = lines.last().expect("never empty");
            assert_eq!((&*own.function, &*own.file), (function, "kernel/trace/bpf_trace.c"));
            assert!(own.line > 0, "{lines:?}");
        }
    }
}

/// Disassembles functions: one that the patch changes, one that it does not, and an unknown one.
fn shows_instructions_that_changed(run: &Path) {
    let disassemble = |function: &str| {
        tramplab().arg("report").arg(run).args(["--disassemble", function]).output().unwrap()
    };
    let output = disassemble("kprobe_multi_link_handler");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = said(&output);
    let calls = |mark: &str, function: &str| {
        let is_call = |line: &&str| line.starts_with(mark) && line.contains(function);
        text.lines().filter(is_call).count()
    };
    assert_eq!(calls("- ", "kprobe_multi_link_prog_run"), 1, "{text}");
    assert_eq!(calls("+ ", "__rcu_read_lock"), 1, "{text}");
    let output = disassemble("kprobe_multi_link_prog_run");
    assert!(said(&output).contains(" -> 0 instructions"), "{}", said(&output));
    let output = disassemble("fprobe_handler");
    assert!(said(&output).contains(" instructions, the same on "), "{}", said(&output));
    assert_eq!(disassemble("no_such_function").status.code(), Some(2));
}

/// Compares the source lines of both kernels with those that `addr2line` of binutils finds.
fn assert_lines_as_of_binutils(run: &Run) {
    let cache = Cache::located(true).unwrap();
    let output = |command: &mut Command| child::run(command, Duration::from_mins(10)).unwrap();
    for step in &run.series[0].steps {
        let kernel = run.kernels.iter().find(|kernel| kernel.name == step.kernel).unwrap();
        let key = &kernel.build.as_ref().unwrap().key;
        let vmlinux = cache.path("kernel-debug", key).join("vmlinux");
        let symbols = output(Command::new("nm").arg(&vmlinux)).stdout;
        let address = |place: &str| -> String {
            let (symbol, offset) = place.split_once("+0x").unwrap();
            let found = symbols.lines().filter_map(|line| line.split_once(' '));
            let mut found = found.filter(|(_, kind)| kind[2..] == *symbol);
            let start = u64::from_str_radix(found.next().unwrap().0, 16).unwrap();
            format!("{:#x}", start + u64::from_str_radix(offset, 16).unwrap())
        };
        let places = run.lines_of(kernel.arch, &kernel.name).unwrap();
        let deep = places.values().filter(|lines| lines.len() > 1).count();
        assert!(deep >= 12, "{deep} of {} places are in inlined functions", places.len());
        let mut command = Command::new("addr2line");
        command.args(["--addresses", "--inlines", "--functions", "--exe"]).arg(&vmlinux);
        let text = output(command.args(places.keys().map(|place| address(place)))).stdout;
        // For each address: itself, then a function and its line, the innermost first.
        let text = format!("\n{text}");
        let expected = text.split("\n0x").skip(1).map(|lines| -> Vec<&str> {
            lines.lines().skip(1).map(|line| line.split(" (discr").next().unwrap()).collect()
        });
        let expected: Vec<Vec<&str>> = expected.collect();
        assert_eq!(places.len(), expected.len());
        for ((place, lines), expected) in places.iter().zip(expected) {
            assert_eq!(lines.len() * 2, expected.len(), "{place}: {lines:?}, {expected:?}");
            for (SourceLine { function, file, line }, expected) in
                lines.iter().zip(expected.chunks(2))
            {
                let is_same =
                    function == expected[0] && expected[1].ends_with(&format!("/{file}:{line}"));
                assert!(is_same, "{place}: {lines:?}, {expected:?}");
            }
        }
    }
}

/// An older version, and a reply with its own diff.
#[test]
#[ignore = "full: builds a kernel; a shipped series runs in every change"]
fn notes_the_mails_left_out_of_a_series() {
    let dir = tempfile::tempdir().unwrap();
    let shipped =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/patches/kprobe-multi-inline");
    let patch = shipped.join("0001-bpf-Make-kprobe_multi_link_prog_run-__always_inline.patch");
    let patch = fs::read_to_string(patch).unwrap();
    let titled = |title: &str| patch.replacen("[PATCH]", title, 1);
    let mbox = [titled("[PATCH]"), titled("[PATCH v2]"), titled("Re: [PATCH v2]")].concat();
    let file = dir.path().join("inline.mbox");
    fs::write(&file, mbox).unwrap();
    let suite = SUITE.replace(", kretprobe.multi", "");
    let output = vm_test(dir.path(), &suite, &["--series", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let notes = stored(&dir.path().join("runs")).notes;
    let [reply, older] = &notes[..] else { panic!("{notes:?}") };
    assert!(
        reply.starts_with("left out a reply") && older.ends_with("version 2 is there too"),
        "{notes:?}"
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains(older), "{}", said(&output));
}

#[test]
#[ignore = "full: builds kernels; a shipped series runs in every change"]
fn finds_each_bad_patch() {
    let dir = tempfile::tempdir().unwrap();
    let series = bad(dir.path(), &[1, 2, 3]);
    let suite = SUITE.replace(", kretprobe.multi", "");
    let output =
        vm_test(dir.path(), &suite, &["--series", series.to_str().unwrap(), "--each-patch"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let steps = &run.series[0].steps;
    let cell = |step: usize, test: &str| -> &Cell {
        let is_it =
            |cell: &&Cell| cell.id.kernel == steps[step].kernel && cell.id.test.name() == test;
        run.cells
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("step {step} has no {test}: {}", said(&output)))
    };
    // The base passes.
    assert_eq!(cell(0, "lbr_waste/fexit").outcome, Outcome::Pass);
    // Patch 1 adds one record: the jump it puts in.
    let Outcome::Fail { reasons } = &cell(1, "lbr_waste/fexit").outcome else {
        panic!("{}", said(&output))
    };
    assert!(
        reasons.iter().any(|reason| reason.contains("lbr_waste.fexit.any is worse")),
        "{reasons:?}"
    );
    let added = &compare::walk(&run, &run.series[0], None)[0];
    assert_eq!(less(added, "fexit", Branch::Any), -1);
    assert!(added.metrics.iter().all(|compared| compared.verdict != Verdict::Better));
    // Patch 2 builds, but does not boot.
    assert_eq!(cell(2, "build").outcome, Outcome::Pass);
    for (test, start) in
        [("boot", "Kernel panic"), ("lbr_waste/fexit", "does not boot: Kernel panic")]
    {
        let Cell { outcome: Outcome::Error { kind: ErrorKind::Panic, message }, .. } =
            cell(2, test)
        else {
            panic!("{}", said(&output))
        };
        assert!(
            message.starts_with(start) && message.contains("this kernel is not to boot"),
            "{message}"
        );
    }
    // Patch 3 does not build. The compiler's message names the patch.
    let Outcome::Error { kind: ErrorKind::Build, message } = &cell(3, "build").outcome else {
        panic!("{}", said(&output))
    };
    for words in [
        "patch 3",
        "Call what is not there",
        "kernel/bpf/trampoline.c",
        "tramplab_no_such_function",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert!(matches!(steps[3].built, Built::Failed { .. }));
    assert!(!run.cells.iter().any(|c| c.id.kernel == steps[3].kernel && c.id.test != Test::Build));
    for words in ["does not build", "1 of 2 cells fail", "panic"] {
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
    }
}

/// Patch 1 changes a comment, patch 2 adds an unused function, patch 3 makes each attach some per
/// cent dearer.
#[test]
#[ignore = "full: builds kernels; a shipped series runs in every change"]
fn slower_attach_is_worse_but_moved_code_is_not() {
    const SUITE: &str = "name: t\ndescription: d\nkernels: [6.12-source]\ntests:\n  \
                         - attach: { mechanisms: [fentry], \
                         functions: [1], rounds: 1, clock: exact, explain: [exact] }\nbudgets:\n  \
                         - most: { attach.fentry.1.attach.instructions: 100000000 }\n";
    let dir = tempfile::tempdir().unwrap();
    let series = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dear-series");
    let arguments = ["--series", series.to_str().unwrap(), "--each-patch", "--placebos", "1"];
    let output = vm_test(dir.path(), SUITE, &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let [comment, uncalled, dearer] = &compare::walk(&run, &run.series[0], None)[..] else {
        panic!("{}", said(&output))
    };
    assert!(comment.metrics.len() >= 5, "{comment:?}");
    let all = |comparison: &Comparison, is: fn(&Verdict) -> bool| {
        let other: Vec<_> =
            comparison.metrics.iter().filter(|metric| !is(&metric.verdict)).collect();
        assert!(other.is_empty(), "{other:#?}");
    };
    all(comment, |verdict| *verdict == Verdict::Same(Difference::None));
    all(uncalled, |verdict| !matches!(verdict, Verdict::Better | Verdict::Worse));
    assert!(uncalled.metrics.iter().any(|metric| metric.base != metric.head), "{uncalled:#?}");
    // The placebo is measured, but neither judged nor shown.
    let [placebo] = &run.series[0].placebos[..] else { panic!("{:?}", run.series) };
    let measured =
        run.cells_of(Arch::host().unwrap(), placebo).filter(|cell| cell.measurement.is_some());
    assert_eq!(measured.count(), 1, "{}", said(&output));
    assert!(!said(&output).contains(&format!("Linux {placebo}")), "{}", said(&output));
    let of = |name: &str| {
        let found = dearer.metrics.iter().find(|compared| compared.metric.to_string() == name);
        found.unwrap_or_else(|| panic!("no {name}: {}", said(&output)))
    };
    for name in ["attach.fentry.1.attach.instructions", "attach.fentry.1.attach.exact"] {
        assert_eq!(of(name).verdict, Verdict::Worse, "{name}: {:?}", of(name));
    }
    // The changed function leads the table of changes.
    let kernels = &run.series[0].steps;
    let output = tramplab()
        .args(["profile", "--phase", "attach", "--base", &kernels[2].kernel])
        .arg(dir.path().join("runs/latest"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let first = said(&output)
        .lines()
        .find(|line| line.contains("register_ftrace_direct"))
        .map(str::to_owned);
    assert!(first.is_some_and(|line| line.contains('+')), "{}", said(&output));
}

/// One patch: a nop where programs are run, a loop of 40,000 instructions where a direct call is
/// attached, and a second of sleep where it is detached.
#[test]
#[ignore = "full: builds kernels; a shipped series runs in every change"]
fn small_costs_are_worse_and_a_time_after_more_boots() {
    const SUITE: &str = "name: t\ndescription: d\nkernels: [6.12-source]\ntests:\n  \
                         - trigger: { mechanisms: [fentry, kprobe.multi], throughput: false }\n  \
                         - attach: { mechanisms: [fentry], functions: [1], rounds: 1, clock: \
                         both, boots: 4, explain: [exact] }\n";
    let dir = tempfile::tempdir().unwrap();
    let series = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dear-hits");
    let output = vm_test(dir.path(), SUITE, &["--series", series.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let comparison = compare::whole(&run, &run.series[0], None);
    let of = |name: &str| {
        let found = comparison.metrics.iter().find(|compared| compared.metric.to_string() == name);
        found.unwrap_or_else(|| panic!("no {name}: {}", said(&output)))
    };
    for mechanism in ["fentry", "kprobe_multi"] {
        let hit = of(&format!("trigger.{mechanism}.instructions"));
        let [Value::Count(base), Value::Count(head)] = [&hit.base, &hit.head] else {
            panic!("{hit:?}")
        };
        assert_eq!((head - base, hit.verdict.clone()), (1, Verdict::Worse), "{hit:?}");
        let branches = of(&format!("trigger.{mechanism}.branches"));
        assert_eq!(branches.verdict, Verdict::Same(Difference::None), "{branches:?}");
    }
    for name in ["attach.instructions", "attach.exact", "detach"] {
        let name = format!("attach.fentry.1.{name}");
        assert_eq!(of(&name).verdict, Verdict::Worse, "{name}: {:?}", of(&name));
    }
    // Nothing else is a cost.
    let worse = comparison.metrics.iter().filter(|compared| compared.verdict == Verdict::Worse);
    assert_eq!(worse.count(), 5, "{}", said(&output));
    let boots = |cell: &Cell| match &cell.measurement {
        Some(Measurement::Attach(attach)) => Some((attach.boots.len(), attach.exact.is_some())),
        _ => None,
    };
    let boots: Vec<_> = run.cells.iter().filter_map(boots).collect();
    assert_eq!(boots, [(8, true); 2]);
}

/// Three patches on a base, each of which costs one thing: a call that never returns, a lock, and
/// records of functions that fill two cache lines. No instruction shows it.
#[test]
#[ignore = "full: builds kernels, one of them whole; terms are told by unit tests in every change"]
fn each_cost_is_found_by_its_own_term_and_not_by_instructions() {
    const SUITE: &str = "name: t\ndescription: d\nkernels: [6.12-source]\ntests:\n  \
                         - trigger: { mechanisms: [fentry], throughput: false }\n  \
                         - attach: { mechanisms: [fentry], functions: [1], rounds: 1, \
                         clock: exact }\n";
    let dir = tempfile::tempdir().unwrap();
    let series = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/one-cost/series.yaml");
    let series = series.to_str().unwrap();
    let asked = ["--explain", "exact,estimated", "--model", "zen3"];
    let of_series = ["--series", series, "--each-patch", "--config-axis", "mitigations=off"];
    let output = vm_test(dir.path(), SUITE, &[&asked[..], &of_series].concat());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let steps = compare::walk(&run, &run.series[0], None);
    let [returns, atomic, padded] = &steps[..] else { panic!("{}", said(&output)) };

    let hit = ["trigger.fentry.mispredicted_returns", "trigger.fentry.estimated_cycles"];
    let attach =
        ["attach", "detach"].map(|phase| format!("attach.fentry.1.{phase}.estimated_cycles"));
    let attach = attach.each_ref().map(String::as_str);
    for (step, expected, term) in [
        (returns, &hit[..], Term::Returns),
        (atomic, &hit[1..], Term::Atomic),
        (padded, &attach, Term::Data),
    ] {
        let is_worse = |compared: &&compare::Compared| compared.verdict == Verdict::Worse;
        let worse = step.metrics.iter().filter(is_worse);
        let worse: Vec<String> = worse.map(|compared| compared.metric.to_string()).collect();
        assert_eq!(worse, expected, "{:#?}", step.findings);
        assert_eq!(step.count(|verdict| *verdict == Verdict::Better), 0);
        // It is nearly all of the change.
        let [Finding { moved, .. }] = &step.findings[..] else { panic!("{:#?}", step.findings) };
        for share in moved.iter().filter(|share| share.metric.is_estimate()) {
            let (first, by) = share.terms[0];
            assert_eq!(first, term, "{share:?}");
            assert!(20 * (share.change.unwrap() - by).abs() <= by, "{share:?}");
        }
    }
    // The finding names the returns that pay.
    let Cause::Code(changes) = &returns.findings[0].cause else { panic!("{:?}", returns.findings) };
    let pays = |change: &Change| change.kind == ChangeKind::Mispredicted;
    assert!(changes.len() > 3 && changes.iter().all(pays), "{changes:?}");
}

/// The answers of `docs/published.md`, measured again.
#[test]
#[ignore = "full: builds kernels; recorded runs are held against publications in every change"]
fn what_was_published_has_the_answers_of_the_page() {
    const PAGE: &str = include_str!("../../../docs/published.md");
    const ZEN4: &[&str] =
        &["--model=zen4", "--config-axis=mitigations=off", "--explain=exact,estimated"];
    const HITS: &[&str] = &[
        "trigger/fentry",
        "trigger/fexit",
        "trigger/fmod_ret",
        "trigger/raw_tp",
        "trigger/tp",
        "trigger/kprobe",
        "trigger/kprobe.multi",
        "trigger/kretprobe",
        "trigger/kretprobe.multi",
        "trigger/kprobe.multi+kprobe.multi:all",
        "trigger/kretprobe.multi+kretprobe.multi:all",
    ];
    const UPROBES: &[&str] = &[
        "trigger/uprobe@user_nop",
        "trigger/uprobe@user_frame",
        "trigger/uprobe@user_ret",
        "trigger/uprobe@user_nop10",
        "trigger/uretprobe@user_nop",
        "trigger/uretprobe@user_nop10",
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut command = tramplab();
    command.arg("published").arg("-o").arg(dir.path().join("page.md"));
    for (series, options, cells) in [
        (
            "call-ops",
            &["--arch=arm64"][..],
            &[
                "trigger/kprobe.multi",
                "trigger/kprobe.multi+function_tracer",
                "trigger/kprobe.multi+function_tracer:1",
            ][..],
        ),
        ("jmp-mode", ZEN4, HITS),
        ("kprobe-multi-inline", ZEN4, &["trigger/kprobe.multi"]),
        ("letter-2024", &[], &["lbr_waste/fexit", "lbr_waste/kretprobe.multi"]),
        ("migrate-inline", ZEN4, &["trigger/fentry"]),
        ("single-direct-ops", &[], &["attach/fentry/100"]),
        ("uprobe-syscall", &["--model=golden-cove", "--explain=exact,estimated"], UPROBES),
    ] {
        let runs = dir.path().join(series);
        let mut measures = tramplab();
        measures.args(["vm-test", "--accel=tcg", "--suite=published", "--series", series]);
        let output = measures.arg("--runs").arg(&runs).args(options).args(cells).output().unwrap();
        let errors =
            stored(&runs).cells.iter().any(|cell| matches!(cell.outcome, Outcome::Error { .. }));
        assert!(!errors, "{}", said(&output));
        command.arg("--run").arg(runs.join(stored(&runs).id));
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let page = fs::read_to_string(dir.path().join("page.md")).unwrap();
    // A row and its answer: `| trigger.fexit | … | agrees |`.
    let answers = |page: &str| -> BTreeSet<(String, String)> {
        let is_row = |line: &&str| {
            let name = line.trim_start_matches(['|', ' ', '`']);
            ["trigger.", "lbr_waste.", "attach."].iter().any(|start| name.starts_with(start))
        };
        let rows = page.lines().filter(is_row);
        let cells = rows.map(|row| row.split(" | ").map(str::to_owned).collect::<Vec<_>>());
        cells.map(|cells| (cells[..3].join(" "), cells.last().unwrap().clone())).collect()
    };
    assert!(answers(PAGE).len() >= 27);
    assert_eq!(answers(&page), answers(PAGE), "{page}");
}

/// One patch: hits are dearer, but the kernel records cheap ones before the agent records its own.
/// The first recording was the one that counted.
#[test]
#[ignore = "full: builds kernels; the plugin's oracles have such a kernel in every change"]
fn a_kernel_that_records_hits_itself_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let series = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forged-hits");
    let suite = SUITE.replace("fexit, kretprobe.multi", "fexit");
    let output = vm_test(dir.path(), &suite, &["--series", series.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let outcome = |step: &SeriesStep| {
        let waste = |cell: &&Cell| {
            cell.id.kernel == step.kernel && matches!(cell.id.test, Test::LbrWaste(_))
        };
        run.cells.iter().find(waste).unwrap().outcome.clone()
    };
    assert_eq!(outcome(run.series[0].base()), Outcome::Pass);
    let Outcome::Error { kind: ErrorKind::Trace, message } = outcome(run.series[0].head()) else {
        panic!("{}", said(&output))
    };
    assert!(message.contains("the kernel itself executed a magic instruction (Arm)"), "{message}");
}

/// One patch: the kernel snapshots the branch stack at the start of `__bpf_prog_enter_recur` and of
/// `kprobe_multi_link_prog_run`, and programs get a copy. The base's traces tell what that wastes.
#[test]
#[ignore = "full: builds kernels; a shipped series runs in every change"]
fn what_if_counts_agree_with_a_kernel_that_snapshots_early() {
    // At a session's exit some filters reach back to its entry, where the patch leaves records too.
    const MOVED: [(Mechanism, Stage); 5] = [
        (Mechanism::Fentry, Stage::ProgEnter),
        (Mechanism::Fexit, Stage::ProgEnter),
        (Mechanism::FmodRet, Stage::ProgEnter),
        (Mechanism::KprobeMulti, Stage::ProgRun),
        (Mechanism::KretprobeMulti, Stage::ProgRun),
    ];
    let names: Vec<&str> = MOVED.iter().map(|(mechanism, _)| mechanism.name()).collect();
    let mechanisms = format!("[{}]", names.join(", "));
    let suite = SUITE.replace("[fexit, kretprobe.multi]", &mechanisms);
    let dir = tempfile::tempdir().unwrap();
    let series = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/early-snapshot");
    let output = vm_test(dir.path(), &suite, &["--series", series.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let steps = &run.series[0];
    let waste = |kernel: &str, mechanism: Mechanism| -> Option<LbrWaste> {
        let mut cells = run.cells_of(Arch::host().unwrap(), kernel);
        cells.find_map(|cell| match &cell.measurement {
            Some(Measurement::LbrWaste(waste)) if waste.mechanism == mechanism => {
                Some(waste.clone())
            }
            _ => None,
        })
    };
    let mut compared = 0;
    for (mechanism, stage) in MOVED {
        let base = waste(&steps.base().kernel, mechanism);
        let head = waste(&steps.head().kernel, mechanism);
        // 6.12 has no fprobe on arm64.
        let (Some(base), Some(head)) = (base, head) else {
            assert!(Arch::host() == Some(Arch::Arm64), "{mechanism}: {}", said(&output));
            continue;
        };
        for (before, moved) in base.points.iter().zip(&head.points) {
            let name = format!("{mechanism}/{}", before.point);
            let early = taken_at(stage, mechanism, &before.records, &base.function)
                .unwrap_or_else(|| panic!("{name} does not pass {stage:?}"));
            // A driver's call in the kernel is direct on x86-64 only; the patch's always is.
            let is_alike = early[0].kind == moved.records[0].kind;
            assert!(is_alike || Arch::host() == Some(Arch::Arm64), "{name}");
            let filters = Filter::measured();
            for filter in filters.filter(|&f| is_alike || f == Filter::of(Branch::Any)) {
                for model in Model::of(Arch::host().unwrap()) {
                    let what_if = waste::count(model, filter, &early, &base.function);
                    let measured = waste::counted(model, filter, moved, &head.function);
                    assert_eq!(what_if.wasted, measured.wasted, "{name} {filter} {model}");
                    compared += usize::from(measured.wasted.is_some());
                }
            }
            // The snapshots see the same branches, and fewer of them wasted than today's.
            assert_eq!(branch::digest(&early[1..]), branch::digest(&moved.records[1..]), "{name}");
            let default = Model::choose(None, Arch::host().unwrap());
            let any = |point: &CapturePoint| point.wasted[default.name()]["any"].wasted;
            assert!(any(moved) < any(before), "{name}: {:?}", any(moved));
        }
    }
    assert!(compared >= 6, "{compared}");
}

#[test]
#[ignore = "full: builds kernels; a shipped series runs in every change"]
fn names_the_first_patch_that_does_not_build() {
    let dir = tempfile::tempdir().unwrap();
    let series = bad(dir.path(), &[1, 3]);
    let output = vm_test(dir.path(), SUITE, &["--series", series.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("patch 2 (bpf: Call what is not there)"), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    // Nothing is measured, as there is no head to compare. make's output is kept.
    assert!(run.cells.iter().all(|cell| cell.id.test == Test::Build), "{:?}", run.cells);
    let head = &run.series[0].head().kernel;
    let log = RunDir::new(dir.path().join("runs/latest")).build_log(Arch::host().unwrap(), head);
    assert!(fs::read_to_string(log).unwrap().contains("tramplab_no_such_function"));
}

#[test]
fn rejects_patch_that_does_not_apply_and_shows_its_hunk() {
    let dir = tempfile::tempdir().unwrap();
    // The third patch applies only on top of the first.
    let series = bad(dir.path(), &[2, 3]);
    let output = vm_test(dir.path(), SUITE, &["--series", series.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    for words in
        ["patch 2", "kernel/bpf/trampoline.c", "@@ ", "tramplab_no_such_function", "git says"]
    {
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
    }
    assert!(!dir.path().join("runs/latest").exists());
}

#[test]
fn rejects_impossible_series() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        (&["--series", "no-such"][..], "failed to find the series `no-such`"),
        (&["--series", "lbr-helpers", "--kernel", "6.12"], "prebuilt"),
        (
            &["--series", "lbr-helpers", "--kernel", "a", "--kernel", "b"],
            "name it with one --kernel",
        ),
        (&["--each-patch"], "--series"),
        (&["--series", "v6.12..HEAD"], "from no git repository on this machine"),
        (&["--series", "v6.12...HEAD"], "failed to find the series"),
    ] {
        let output = vm_test(dir.path(), SUITE, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{arguments:?}: {}", said(&output));
        let kept = fs::read_dir(dir.path().join("runs")).map_or(0, Iterator::count);
        assert_eq!(kept, 0, "{arguments:?}");
    }
}

/// Three jumps for a call and its return: a record more as the kernel boots without mitigations, a
/// record less as it boots on a Zen 4, whose returns are three records each.
#[test]
#[ignore = "full: builds a kernel"]
fn names_the_configuration_in_which_a_series_is_worse() {
    let dir = tempfile::tempdir().unwrap();
    let patches = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/two-signs");
    let suite = "name: t\ndescription: d\nkernels: [6.12-source]\nmodels: [zen4]\ntests:\n  \
                 - lbr_waste: { mechanisms: [kprobe.multi] }\nbudgets:\n  \
                 - { kernels: [6.12-source], wasted: { kprobe.multi: { any: 99 } } }\n  \
                 - { kernels: [6.12-source+zen4], wasted: { kprobe.multi: { any: 1 } } }\n";
    let output = vm_test(dir.path(), suite, &["--series", patches.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let run = stored(&dir.path().join("runs"));
    let changes: Vec<i64> = run
        .series
        .iter()
        .map(|series| less(&compare::whole(&run, series, None), "kprobe.multi", Branch::Any))
        .collect();
    assert_eq!(changes, [-1, 1]);
    let failed = |name: &str| {
        let cell = run
            .cells
            .iter()
            .find(|cell| cell.id.kernel == name && cell.id.test.name() == "lbr_waste/kprobe.multi");
        match &cell.unwrap_or_else(|| panic!("no cell of {name}")).outcome {
            Outcome::Fail { reasons } => reasons.join("; "),
            other => panic!("{name}: {other:?}"),
        }
    };
    assert!(failed("6.12-source+two-signs").contains("worse than on 6.12-source:"));
    // A budget that names the configuration holds for base and head.
    for name in ["6.12-source+zen4", "6.12-source+zen4+two-signs"] {
        assert!(failed(name).contains("budget"), "{}", failed(name));
    }
    let sentence = "worse as usual; better as zen4; better in one, worse in another: \
                    lbr_waste.kprobe_multi.any";
    assert!(said(&output).contains(sentence), "{}", said(&output));
    for format in ["mail", "junit", "markdown", "html"] {
        let mut command = tramplab();
        command.arg("report").arg(dir.path().join("runs/latest")).args(["--format", format]);
        let output = command.output().unwrap();
        // Mail breaks lines, Markdown marks some letters.
        let words: Vec<String> = said(&output).split_whitespace().map(str::to_owned).collect();
        let is_said = words.join(" ").contains("worse as usual; better as zen4; better in one");
        assert!(is_said, "{format}: {}", said(&output));
    }
}
