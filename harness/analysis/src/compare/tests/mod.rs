// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on a recorded run: the shipped series `lbr-helpers` on 6.12, patch by patch.

mod alone;
mod attach;
mod of_the_tree;
mod same;
mod trigger;

use super::*;
use crate::branch::{Branch, Filter, waste};
use runs::{Measured, obstacles};
use tramplab_model::kconfig::Kconfig;
use tramplab_model::{
    program::Program,
    run::{
        Accel, Arch, Attach, Bench, BenchBoot, Binary, BranchSource, CellId, Configuration,
        ErrorKind, Kernel, LbrWaste, Measurement, Test, TreeTest, TriggerCost,
    },
    tree_tests::{End, LeftOut, Subtest},
};
use tramplab_protocol::{
    Beside, BesideSet, Mechanism,
    message::{Condition, Stopped, Triggered},
};

pub use tramplab_testdata::series as recorded;

const MODEL: Model = Model::IntelLbr;

const SAME: Verdict = Verdict::Same(Difference::None);
const TOLERATED: Verdict = Verdict::Same(Difference::Tolerated);
const LAYOUT: Verdict = Verdict::Same(Difference::Layout);

/// Compares the run's only series.
fn of_series<T>(run: &Run, compared: fn(&Run, &Series, Option<Model>) -> T) -> T {
    let [series] = &run.series[..] else { panic!("{} series", run.series.len()) };
    compared(run, series, None)
}

fn interleaved(pairs: &[Pair]) -> Comparison {
    let (tolerance, layout) = (Tolerance::default(), Layout::default());
    compare("a", "b", pairs, MODEL, tolerance, Timing::Interleaved, &layout)
}

fn verdict<'a>(comparison: &'a Comparison, name: &str) -> &'a Compared {
    let found = comparison.metrics.iter().find(|compared| compared.metric.to_string() == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

/// Swaps base and head: each gain becomes a loss.
fn turned(mut run: Run) -> Run {
    let series = &mut run.series[0];
    series.steps.reverse();
    run
}

fn waste_of<'a>(run: &'a mut Run, kernel: &str, test: &str) -> &'a mut LbrWaste {
    let cell = run.cells.iter_mut().find(|c| c.id.kernel == kernel && c.id.test.name() == test);
    match &mut cell.expect("measured").measurement {
        Some(Measurement::LbrWaste(waste)) => waste,
        other => panic!("{other:?}"),
    }
}

#[test]
fn finds_only_the_improvements_of_the_series() {
    let comparison = of_series(&recorded(), whole);
    assert_eq!(
        (comparison.base.as_str(), comparison.head.as_str()),
        ("6.12-source+lbr-helpers.0", "6.12-source")
    );
    for (name, base, head, expected) in [
        ("lbr_waste.fexit.any", "12", "9", Verdict::Better),
        ("lbr_waste.fexit.any_return", "4", "3", Verdict::Better),
        ("lbr_waste.fexit.cond", "-", "-", SAME),
        ("lbr_waste.kretprobe_multi.any", "16", "13", Verdict::Better),
    ] {
        let compared = verdict(&comparison, name);
        assert_eq!(
            (compared.base.to_string().as_str(), compared.head.to_string().as_str()),
            (base, head),
            "{name}"
        );
        assert_eq!(compared.verdict, expected, "{name}");
    }
    let times = comparison.metrics.iter().filter(|compared| compared.metric.is_time());
    let verdicts: Vec<_> = times.map(|compared| compared.verdict.clone()).collect();
    assert_eq!(verdicts, vec![Verdict::NoDifferenceSeen; 3]);
    // Moved code costs attaching some thousand instructions of millions.
    for (name, base, head, expected) in [
        ("attach.kprobe_multi.10.load.exact", "0.071522 ms", "0.071522 ms", SAME),
        ("attach.kprobe_multi.10.attach.exact", "3.550764 ms", "3.553504 ms", TOLERATED),
        ("attach.kprobe_multi.10.detach.exact", "124.223886 ms", "124.221154 ms", TOLERATED),
        ("attach.kprobe_multi.10.attach.instructions", "3552019", "3539800", TOLERATED),
        ("attach.kprobe_multi.10.detach.instructions", "3653165", "3655903", TOLERATED),
    ] {
        let compared = verdict(&comparison, name);
        let values = [&compared.base, &compared.head].map(ToString::to_string);
        assert_eq!(values, [base, head], "{name}");
        assert_eq!(compared.verdict, expected, "{name}");
    }
    // Both sides skip fsession: there is nothing to report.
    assert_eq!(comparison.unmatched, []);
    assert_eq!(comparison.other_functions, []);
}

#[test]
fn compares_each_step_with_the_one_before() {
    let steps = of_series(&recorded(), walk);
    let fexit: Vec<_> = steps
        .iter()
        .map(|step| verdict(step, "lbr_waste.fexit.any"))
        .map(|compared| format!("{} {} {}", compared.base, compared.head, compared.verdict))
        .collect();
    assert_eq!(fexit, ["12 10 better", "10 9 better"]);
}

#[test]
fn fails_cells_that_got_worse_beyond_tolerance() {
    let failed = |run: &Run| -> Vec<String> {
        let is_fail = |cell: &&Cell| matches!(cell.outcome, Outcome::Fail { .. });
        run.cells.iter().filter(is_fail).map(|cell| cell.id.name()).collect()
    };
    let mut good = recorded();
    judge(&mut good);
    assert_eq!(failed(&good), Vec::<String>::new());

    let mut worse = turned(recorded());
    judge(&mut worse);
    // The cells that got worse at each step. Both sides skip fsession, so it is not one of them.
    let cell = |kernel: &str, mechanism: &str| format!("x86_64/{kernel}/tcg/lbr_waste/{mechanism}");
    let mut expected = ["6.12-source+lbr-helpers.0", "6.12-source+lbr-helpers.1"]
        .map(|kernel| ["fexit", "kretprobe.multi"].map(|mechanism| cell(kernel, mechanism)))
        .concat();
    let mut found = failed(&worse);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);

    let mut tolerated = turned(recorded());
    tolerated.tolerance.wasted = 3;
    judge(&mut tolerated);
    assert_eq!(failed(&tolerated), Vec::<String>::new());
    // Steps of two and one more: each is tolerated, their sum is not.
    let mut sum = turned(recorded());
    sum.tolerance.wasted = 2;
    judge(&mut sum);
    assert!(
        failed(&sum).iter().all(|name| name.contains("lbr-helpers.0")) && !failed(&sum).is_empty()
    );
}

#[test]
fn fails_lost_measurements_and_keeps_errors() {
    let mut run = recorded();
    let head = |run: &mut Run, test: &str, outcome: Outcome| {
        let cell = run
            .cells
            .iter_mut()
            .find(|c| c.id.kernel == "6.12-source" && c.id.test.name() == test)
            .unwrap();
        cell.measurement = None;
        cell.outcome = outcome;
    };
    head(&mut run, "lbr_waste/fexit", Outcome::Skip { reason: "no FUNCTION_TRACER".to_owned() });
    let panic = Outcome::Error { kind: ErrorKind::Panic, message: "oh".to_owned() };
    head(&mut run, "lbr_waste/kretprobe.multi", panic.clone());
    judge(&mut run);
    let outcome = |test: &str| {
        let cell =
            run.cells.iter().find(|c| c.id.kernel == "6.12-source" && c.id.test.name() == test);
        cell.unwrap().outcome.clone()
    };
    let Outcome::Fail { reasons } = outcome("lbr_waste/fexit") else {
        panic!("{:?}", outcome("lbr_waste/fexit"))
    };
    assert!(reasons[0].contains("skip: no FUNCTION_TRACER"), "{reasons:?}");
    assert_eq!(outcome("lbr_waste/kretprobe.multi"), panic);
}

/// The same series on two architectures. A cell that got worse on one of them fails only there.
#[test]
fn judges_each_architecture_by_itself() {
    let mut run = recorded();
    let other = Series { arch: Arch::Arm64, ..run.series[0].clone() };
    // Reverse the steps on the other one: the gains become losses there.
    run.series.push(Series { steps: other.steps.iter().rev().cloned().collect(), ..other });
    let mut cells = run.cells.clone();
    cells.iter_mut().for_each(|cell| cell.id.arch = Arch::Arm64);
    for cell in &mut cells {
        let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { continue };
        for point in &mut waste.points {
            point.wasted =
                crate::branch::waste::table(Arch::Arm64, &point.records, &waste.function);
        }
    }
    run.cells.extend(cells);
    judge(&mut run);
    let failed = |arch| {
        run.cells
            .iter()
            .filter(move |cell| cell.id.arch == arch)
            .filter(|cell| matches!(cell.outcome, Outcome::Fail { .. }))
            .count()
    };
    assert_eq!(failed(Arch::X86_64), 0);
    assert!(failed(Arch::Arm64) > 0);
    let comparison = whole(&run, &run.series[1], None);
    assert_eq!(comparison.model, Model::Brbe);
    assert_eq!(verdict(&comparison, "lbr_waste.fexit.any").verdict, Verdict::Worse);
}

#[test]
fn lists_tests_without_a_cell_on_the_head() {
    let mut run = recorded();
    run.cells
        .retain(|cell| cell.id.kernel != "6.12-source" || cell.id.test.name() != "lbr_waste/fexit");
    let comparison = of_series(&run, whole);
    let names: Vec<_> =
        comparison.unmatched.iter().map(|u| (u.test.name(), u.head.as_str(), u.lost)).collect();
    assert_eq!(names, [("lbr_waste/fexit".to_owned(), "not in the run", false)]);
    assert!(!comparison.is_empty());
    run.cells.retain(|cell| cell.id.kernel != "6.12-source");
    assert!(of_series(&run, whole).is_empty());
}

/// The base was interrupted, or did not select the test.
#[test]
fn lists_tests_only_on_the_head_without_judging_them() {
    let mut run = recorded();
    assert_eq!(of_series(&run, whole).head_only, []);
    let base = run.series[0].base().kernel.clone();
    run.cells.retain(|cell| cell.id.kernel != base || cell.id.test.name() != "lbr_waste/fexit");
    let comparison = of_series(&run, whole);
    let test: Test = "lbr_waste/fexit".parse().unwrap();
    assert_eq!(comparison.head_only, [HeadOnly { test, head: "pass".to_owned() }]);
    assert!(
        comparison.unmatched.iter().all(|unmatched| unmatched.test.name() != "lbr_waste/fexit")
    );
    judge(&mut run);
    assert!(run.cells.iter().all(|cell| !matches!(cell.outcome, Outcome::Fail { .. })));
}

#[test]
fn judges_a_lost_function_worse_than_any_number() {
    let mut run = recorded();
    let waste = waste_of(&mut run, "6.12-source", "lbr_waste/fexit");
    for counts in waste.points[0].wasted.values_mut() {
        counts.values_mut().for_each(|count| count.wasted = None);
    }
    run.tolerance.wasted = 1000;
    let comparison = of_series(&run, whole);
    let compared = verdict(&comparison, "lbr_waste.fexit.any");
    assert_eq!(compared.verdict, Verdict::Worse);
    // The other way round it is a gain.
    let comparison = of_series(&turned(run), whole);
    assert_eq!(verdict(&comparison, "lbr_waste.fexit.any").verdict, Verdict::Better);
}

#[test]
fn shows_times_of_separate_runs_without_judging_them() {
    let run = recorded();
    let series = &run.series[0];
    let [base, head] = sides(&run, series.arch, &series.base().kernel, &series.head().kernel);
    let pairs = pair_up(&base, &head);
    let comparison =
        compare("a", "b", &pairs, MODEL, run.tolerance, Timing::Apart, &Layout::default());
    let compared = verdict(&comparison, "attach.kprobe_multi.10.attach");
    assert!(matches!(compared.verdict, Verdict::NotJudged(_)) && compared.ratio.is_none());
    assert!(compared.base.to_string().contains(" ms ("), "{}", compared.base);
}

/// The user compares a machine with its guest anyway.
#[test]
fn pairs_cells_of_two_accelerators_unless_the_other_side_has_both() {
    let mut run = recorded();
    let native: Vec<Cell> = run
        .cells
        .iter()
        .cloned()
        .map(|mut cell| {
            cell.id.accel = Accel::Native;
            cell
        })
        .collect();
    let tests = native.len();
    run.cells.retain(|cell| cell.id.kernel == "6.12-source");
    let tcg: Vec<&Cell> = run.cells.iter().collect();
    let of_kernel = |cell: &&Cell| cell.id.kernel == "6.12-source";
    let native: Vec<&Cell> = native.iter().filter(of_kernel).collect();
    assert!(!native.is_empty() && native.len() < tests);
    let paired = |base: &[&Cell], head: &[&Cell]| {
        pair_across(base, head)
            .iter()
            .filter_map(|pair| Some(pair.head?.id.accel))
            .collect::<Vec<_>>()
    };
    assert_eq!(paired(&tcg, &native), vec![Accel::Native; native.len()]);
    assert!(pair_up(&tcg, &native).iter().all(|pair| pair.head.is_none()));
    // Each is paired once.
    let both = [&native[..], &tcg].concat();
    assert_eq!(paired(&tcg, &both), vec![Accel::Tcg; tcg.len()]);
    assert_eq!(paired(&both, &tcg), vec![Accel::Tcg; tcg.len()]);
}

/// Only the records of the two helpers are removed.
#[test]
fn lists_removed_records() {
    let comparison = of_series(&recorded(), whole);
    let fexit = comparison.listings.iter().find(|l| l.subject.to_string() == "fexit").unwrap();
    let ends = |side: Side| -> Vec<String> {
        let rows = fexit.rows.iter().filter(|row| row.side() == side);
        let function = |place: &str| place.split('+').next().unwrap().to_owned();
        rows.map(|row| row.base.as_ref().or(row.head.as_ref()).unwrap())
            .map(|line| format!("{} {}", function(&line.from), function(&line.to)))
            .collect()
    };
    let program = "bpf_prog_9feef8d9677eb6ca_capture_fexit";
    let went = [
        format!("{program} bpf_get_smp_processor_id"),
        format!("bpf_get_smp_processor_id {program}"),
        format!("{program} bpf_get_branch_snapshot"),
    ];
    assert_eq!(ends(Side::Base), went);
    assert_eq!(ends(Side::Both).len() + ends(Side::Moved).len(), 10);
    // The real snapshot replaces the modelled one.
    let last = fexit.rows.last().unwrap();
    assert!(last.head.as_ref().is_some_and(|line| line.index == 0));
    // No record is lost: each side is its whole listing.
    for (side, wasted) in [(0, 12), (1, 9)] {
        let lines = fexit.rows.iter().filter_map(|row| [&row.base, &row.head][side].as_ref());
        let indices: Vec<usize> = lines.map(|line| line.index).collect();
        assert_eq!(indices, (0..=wasted).rev().collect::<Vec<_>>());
    }
}

/// The recorded counts match the recorded records.
#[test]
fn recorded_counts_match_recorded_records() {
    for cell in recorded().cells {
        let Some(Measurement::LbrWaste(measured)) = cell.measurement else { continue };
        for point in measured.points {
            let any =
                waste::count(MODEL, Filter::of(Branch::Any), &point.records, &measured.function);
            assert_eq!(
                Some(any.wasted),
                point.wasted[MODEL.name()].get("any").map(|count| count.wasted)
            );
        }
    }
}

fn configured(append: &[&str], cpus: Option<u32>) -> Option<Configuration> {
    let point = serde_json::json!({ "of": "k", "settings": [], "append": append, "cpus": cpus });
    Some(serde_json::from_value(point).unwrap())
}

/// A CPU's file may change: then estimates do, of the same kernel.
#[test]
fn estimates_by_other_numbers_are_not_compared() {
    let model = |width| {
        let mut cycles = crate::profile::tests::estimates::cycles();
        cycles.pipeline.width = std::num::NonZeroU32::new(width).unwrap();
        let cpu = serde_json::json!({
            "about": "", "arch": "x86_64",
            "qemu": {"cpu": "max", "source": "a test"},
            "mitigations": {"append": [], "source": "a test"},
            "branches": {"none": "a test", "source": "a test"},
            "cycles": cycles,
        });
        tramplab_model::cpu::Named {
            name: "zen9".to_owned(),
            cpu: serde_json::from_value(cpu).unwrap(),
        }
    };
    let booted = |model, is_estimated: bool| {
        let mut run = recorded();
        let configuration = configured(&[], None);
        run.kernels[0].configuration =
            configuration.map(|of| tramplab_model::run::Configuration { model, ..of });
        let attaches = run.cells.iter_mut().filter_map(|cell| match &mut cell.measurement {
            Some(Measurement::Attach(attach)) => Some(attach),
            _ => None,
        });
        for attach in attaches.filter(|_| is_estimated) {
            let how = tramplab_protocol::message::Explain::Estimated;
            attach.explained.iter_mut().for_each(|summary| summary.how = how);
        }
        run
    };
    let base = booted(Some(model(6)), true);
    let doubts = |head: &Run| {
        let measured = |run| Measured { run, kernel: &run.kernels[0], config: None };
        obstacles(&measured(&base), &measured(head)).join("\n")
    };
    assert_eq!(doubts(&base), "");
    assert_eq!(doubts(&booted(None, false)), "");
    let found = doubts(&booted(Some(model(4)), true));
    assert_eq!(found, "they estimated cycles by different numbers of the CPU zen9");
    // Nothing else hangs on them, nor on the words of a source.
    assert_eq!(doubts(&booted(Some(model(4)), false)), "");
    let mut reworded = model(6);
    reworded.cpu.cycles.as_mut().unwrap().caches.source = "another".to_owned();
    assert_eq!(doubts(&booted(Some(reworded), true)), "");
}

#[test]
fn names_each_obstacle_to_a_comparison() {
    let base = recorded();
    let side = |run: &Run| -> Vec<String> {
        let measured = |run, kernel| Measured { run, kernel, config: None };
        obstacles(
            &measured(&base, &base.kernels[0]),
            &Measured { run, kernel: &run.kernels[0], config: None },
        )
    };
    assert_eq!(side(&base), Vec::<String>::new());
    type Change = fn(&mut Run);
    let table: [(&str, Change); 14] = [
        ("has no cell: it was not built", |run| run.cells.clear()),
        ("CPU models: max and host", |run| run.machines[0].cpu = "host".to_owned()),
        ("different QEMUs", |run| run.machines[0].qemu = Some("QEMU 11".to_owned())),
        ("machines: 1 CPU with 1024 MiB and 2 CPUs", |run| run.machines[0].cpus = 2),
        ("command lines: `` and `mitigations=auto`", |run| {
            run.machines[0].append = vec!["mitigations=auto".to_owned()]
        }),
        ("command lines: `` and `sysctl.kernel.bpf_stats_enabled=1`", |run| {
            run.kernels[0].configuration = configured(&["sysctl.kernel.bpf_stats_enabled=1"], None);
        }),
        ("machines: 1 CPU with 1024 MiB and 4 CPUs", |run| {
            run.kernels[0].configuration = configured(&[], Some(4));
        }),
        ("the machine's SMT differed: unknown and on", |run| {
            let on = Condition { name: "SMT".to_owned(), value: "on".to_owned(), spoils: None };
            let facts = run.cells.iter_mut().filter_map(|cell| cell.guest.as_mut());
            facts.for_each(|facts| facts.conditions = vec![on.clone()]);
        }),
        ("guest agents", |run| run.machines[0].agent_sha256 = "0".repeat(64)),
        ("plugins", |run| run.machines[0].plugin_sha256 = None),
        ("suites", |run| run.suite.sha256 = "0".repeat(64)),
        ("architectures: x86_64 and arm64", |run| run.kernels[0].arch = Arch::Arm64),
        ("different sources: virtual and hardware", |run| {
            for cell in &mut run.cells {
                if let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement {
                    waste.source = BranchSource::Hardware;
                }
            }
        }),
        ("accelerators: tcg and kvm", |run| {
            run.cells.iter_mut().for_each(|cell| cell.id.accel = tramplab_model::run::Accel::Kvm);
        }),
    ];
    for (words, change) in table {
        let mut run = recorded();
        change(&mut run);
        let found = side(&run).join("\n");
        assert!(found.contains(words), "{words}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
    // The same machine, by the suite or by an axis.
    let mut run = recorded();
    run.machines[0].append = vec!["mitigations=auto".to_owned()];
    let by_suite = run.clone();
    run = recorded();
    run.kernels[0].configuration = configured(&["mitigations=auto"], Some(1));
    let [a, b] =
        [&by_suite, &run].map(|run| Measured { run, kernel: &run.kernels[0], config: None });
    assert_eq!(obstacles(&a, &b), Vec::<String>::new());
    // Another host means another CPU under KVM, but not under TCG.
    let mut run = recorded();
    run.host.cpu = "another".to_owned();
    assert_eq!(side(&run), Vec::<String>::new());
    // Building a kernel needs no guest.
    let is_built = |cell: &Cell| cell.id.test == Test::Build;
    run.cells.iter_mut().filter(|cell| is_built(cell)).for_each(|cell| cell.id.accel = Accel::Kvm);
    assert_eq!(side(&run), Vec::<String>::new());
    run.cells.iter_mut().for_each(|cell| cell.id.accel = Accel::Kvm);
    assert!(side(&run).iter().any(|found| found.contains("measured the host's own CPU")));
    // Configurations are compared by their options if the files are there, else by their hashes.
    let mut run = recorded();
    run.kernels[0].config_sha256 = Some("0".repeat(64));
    let measured = |run, kernel, text: Option<&str>| Measured {
        run,
        kernel,
        config: text.map(|text| Kconfig::parse(text).unwrap()),
    };
    let found = |a: Option<&str>, b: Option<&str>| {
        obstacles(&measured(&base, &base.kernels[0], a), &measured(&run, &run.kernels[0], b))
            .join("\n")
    };
    let (one, other) =
        (Some("CONFIG_A=y\nCONFIG_HZ=250\n"), Some("CONFIG_HZ=1000\nCONFIG_A=y\nCONFIG_B=m\n"));
    assert_eq!(
        found(one, other),
        "their kernels' configurations differ in 2 options: CONFIG_B (n and m), CONFIG_HZ (250 and \
         1000)"
    );
    assert_eq!(found(one, one), "");
    assert!(found(None, None).ends_with("and 000000000000"), "{}", found(None, None));
}

/// A second kernel of the run, which `change` makes of the first.
#[test]
fn settings_are_the_cause_if_nothing_else_differs() {
    fn set(kernel: &mut Kernel, axis: &str, value: &str) {
        let setting = serde_json::json!({ "axis": axis, "value": value });
        let point = serde_json::json!({ "of": "k", "settings": [setting], "append": [] });
        kernel.configuration = Some(serde_json::from_value(point).unwrap());
    }
    fn boot_as_zen4(run: &mut Run, kernel: &str) {
        let cpu = serde_json::json!({ "about": "a", "arch": "x86_64",
            "qemu": { "cpu": "EPYC-Genoa", "source": "s" }, "branches": { "source": "s" },
            "mitigations": { "append": [], "source": "s" } });
        let model = serde_json::json!({ "name": "zen4", "cpu": cpu });
        let point = serde_json::json!({ "of": "k", "settings": [], "append": [],
            "cpu": "EPYC-Genoa", "model": model });
        let last = run.kernels.last_mut().unwrap();
        last.configuration = Some(serde_json::from_value(point).unwrap());
        for cell in run.cells.iter_mut().filter(|cell| cell.id.kernel == kernel) {
            let states = cell.guest.iter_mut().flat_map(|guest| &mut guest.mitigations);
            states.filter(|line| line.starts_with("retbleed")).for_each(|line| {
                *line = "retbleed: Mitigation: untrained return thunk".to_owned();
            });
        }
    }
    let rebuilt = |run: &mut Run| run.kernels.last_mut().unwrap().image_sha256 = None;
    let with = |run: &mut Run, change: fn(&mut Kernel)| change(run.kernels.last_mut().unwrap());
    let (old, new) = (Some("CONFIG_HZ=250\n"), Some("CONFIG_HZ=1000\nCONFIG_A=y\n"));
    let options = "CONFIG_A=n>y CONFIG_HZ=250>1000";
    type Change<'a> = &'a dyn Fn(&mut Run);
    let table: [(Change, Option<&str>, String); 9] = [
        (&|_| (), new, String::new()),
        (&|run| with(run, |kernel| set(kernel, "lsm", "bpf")), old, "lsm=n>bpf".to_owned()),
        (
            &|run| {
                rebuilt(run);
                with(run, |kernel| set(kernel, "preempt", "full"));
            },
            new,
            format!("preempt=n>full {options}"),
        ),
        // An axis of compilers.
        (
            &|run| {
                rebuilt(run);
                with(run, |kernel| set(kernel, "compiler", "clang"));
                with(run, |kernel| kernel.build.as_mut().unwrap().toolchain = "clang".to_owned());
            },
            old,
            "compiler=n>clang".to_owned(),
        ),
        (&rebuilt, new, options.to_owned()),
        (&rebuilt, None, String::new()),
        (&|run| boot_as_zen4(run, "k2"), old, "model=usual>zen4 retbleed".to_owned()),
        // Something else differs as well.
        (
            &|run| {
                rebuilt(run);
                with(run, |kernel| kernel.build.as_mut().unwrap().toolchain = "clang".to_owned());
            },
            new,
            String::new(),
        ),
        (&|run| with(run, |kernel| kernel.source += ", patched"), new, String::new()),
    ];
    for (place, (change, config, expected)) in table.into_iter().enumerate() {
        let mut run = recorded();
        let first = run.kernels[0].clone();
        let cells = run.cells_of(first.arch, &first.name).cloned().collect::<Vec<_>>();
        run.kernels.push(Kernel { name: "k2".to_owned(), ..first });
        run.cells.extend(cells.into_iter().map(|mut cell| {
            "k2".clone_into(&mut cell.id.kernel);
            cell
        }));
        change(&mut run);
        let side = |kernel, config: Option<&str>| Measured {
            run: &run,
            kernel,
            config: config.map(|text| Kconfig::parse(text).unwrap()),
        };
        let head = run.kernels.last().unwrap();
        let found = runs::settings_apart(&side(&run.kernels[0], old), &side(head, config));
        let told = found.iter().map(|Differing { kind, name, base, head }| match kind {
            runs::DifferingKind::Mitigation => name.clone(),
            _ => {
                let [base, head] = [base, head].map(|value| value.as_deref().unwrap_or("n"));
                format!("{name}={base}>{head}")
            }
        });
        assert_eq!(told.collect::<Vec<_>>().join(" "), expected, "{place}");
    }
}

/// Another command costs other records on the way to the function, and other hits of it.
#[test]
fn does_not_compare_hits_of_different_commands() {
    let by = |workload: &str| {
        let mut run = recorded();
        for cell in &mut run.cells {
            if let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement {
                waste.trigger = Some(Triggered { workload: workload.to_owned(), hits: 1 });
            }
        }
        run
    };
    let found = |a: &Run, b: &Run| {
        let measured = |run, kernel| Measured { run, kernel, config: None };
        obstacles(&measured(a, &a.kernels[0]), &measured(b, &b.kernels[0])).join("\n")
    };
    let (one, other) = (by("cat a"), by("cat b"));
    assert_eq!((found(&one, &one), found(&one, &recorded())), (String::new(), String::new()));
    let said = found(&one, &other);
    assert!(said.ends_with(": cat a and cat b") && said.lines().count() == 1, "{said}");
}

#[test]
fn does_not_compare_programs_of_one_name() {
    let with = |sha256: &str| {
        let (name, mechanism) = ("on_hit".parse().unwrap(), Mechanism::Fexit);
        let (file, sha256) = ("/a.bpf.o".to_owned(), sha256.to_owned());
        let globals = Default::default();
        Run {
            programs: vec![Program { name, mechanism, file, sha256, instructions: 2, globals }],
            ..recorded()
        }
    };
    let found = |a: &Run, b: &Run| {
        obstacles(
            &Measured { run: a, kernel: &a.kernels[0], config: None },
            &Measured { run: b, kernel: &b.kernels[0], config: None },
        )
    };
    let (one, other) = (with("a"), with("b"));
    assert_eq!(found(&one, &one), Vec::<String>::new());
    assert_eq!(found(&one, &recorded()), Vec::<String>::new());
    assert_eq!(found(&one, &other), ["they measured different programs on_hit: a and b"]);
    let mut given = one.clone();
    given.programs[0].globals = [("ms".to_owned(), "5".to_owned())].into();
    let differs = "they measured different programs on_hit: a and a, ms=5";
    assert_eq!(found(&one, &given), [differs]);
    let of_file = |sha256: &str| {
        let (name, sha256) = ("libc.so.6".parse().unwrap(), sha256.to_owned());
        Run { binaries: vec![Binary { name, sha256 }], ..recorded() }
    };
    let (one, other) = (of_file("a"), of_file("b"));
    assert_eq!(found(&one, &one), Vec::<String>::new());
    let differs = "they attached to functions of different files libc.so.6: a and b";
    assert_eq!(found(&one, &other), [differs]);
}
