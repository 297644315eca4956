// SPDX-License-Identifier: MIT OR Apache-2.0
//! On a run that was recorded: the shipped series `lbr-helpers` on 6.12, patch by patch.

use super::*;
use crate::branch::{Branch, Filter, waste};
use runs::{Measured, obstacles};
use tramplab_model::kconfig::Kconfig;
use tramplab_model::{
    run::{
        Accel, Arch, Attach, Bench, BenchBoot, BranchSource, CellId, ErrorKind, LbrWaste, Measurement, Test,
        TreeTest, TriggerCost,
    },
    selftests::{End, LeftOut, Subtest},
};
use tramplab_protocol::{Beside, BesideSet, Functions, Mechanism, message::Stopped};

/// Recorded with `testdata/fixture.yaml`, as that says, and shortened by `report/testdata/store.py`.
pub fn recorded() -> Run {
    serde_json::from_str(include_str!("../../../testdata/lbr-helpers.json")).expect("the recorded run")
}

const MODEL: Model = Model::IntelLbr;

const SAME: Verdict = Verdict::Same(Difference::None);
const TOLERATED: Verdict = Verdict::Same(Difference::Tolerated);
const LAYOUT: Verdict = Verdict::Same(Difference::Layout);

/// Of the run's only series.
fn of_series<T>(run: &Run, compared: fn(&Run, &Series, Option<Model>) -> T) -> T {
    let [series] = &run.series[..] else { panic!("{} series", run.series.len()) };
    compared(run, series, None)
}

fn verdict<'a>(comparison: &'a Comparison, name: &str) -> &'a Compared {
    let found = comparison.metrics.iter().find(|compared| compared.metric.to_string() == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

/// Base and head, turned around: what was gained is lost.
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
fn what_the_series_brought_is_better_and_nothing_else_differs() {
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
    // Code that moved costs attaching some thousand instructions of millions.
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
    // Both sides skip fsession: there is nothing to say.
    assert_eq!(comparison.unmatched, []);
    assert_eq!(comparison.other_functions, []);
}

#[test]
fn a_step_is_compared_with_the_one_before() {
    let steps = of_series(&recorded(), walk);
    let fexit: Vec<_> = steps
        .iter()
        .map(|step| verdict(step, "lbr_waste.fexit.any"))
        .map(|compared| format!("{} {} {}", compared.base, compared.head, compared.verdict))
        .collect();
    assert_eq!(fexit, ["12 10 better", "10 9 better"]);
}

#[test]
fn what_is_worse_fails_the_cell_that_shows_it_unless_it_is_tolerated() {
    let failed = |run: &Run| -> Vec<String> {
        let is_fail = |cell: &&Cell| matches!(cell.outcome, Outcome::Fail { .. });
        run.cells.iter().filter(is_fail).map(|cell| cell.id.name()).collect()
    };
    let mut good = recorded();
    judge(&mut good);
    assert_eq!(failed(&good), Vec::<String>::new());

    let mut worse = turned(recorded());
    judge(&mut worse);
    // Of each step, the cells that got worse; fsession, which both skip, is none of them.
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
    // Two steps of two and one: each is tolerated, both together are not.
    let mut sum = turned(recorded());
    sum.tolerance.wasted = 2;
    judge(&mut sum);
    assert!(failed(&sum).iter().all(|name| name.contains("lbr-helpers.0")) && !failed(&sum).is_empty());
}

#[test]
fn what_the_head_lost_is_a_failure_and_what_it_could_not_measure_stays_an_error() {
    let mut run = recorded();
    let head = |run: &mut Run, test: &str, outcome: Outcome| {
        let cell =
            run.cells.iter_mut().find(|c| c.id.kernel == "6.12-source" && c.id.test.name() == test).unwrap();
        cell.measurement = None;
        cell.outcome = outcome;
    };
    head(&mut run, "lbr_waste/fexit", Outcome::Skip { reason: "no FUNCTION_TRACER".to_owned() });
    let panic = Outcome::Error { kind: ErrorKind::Panic, message: "oh".to_owned() };
    head(&mut run, "lbr_waste/kretprobe.multi", panic.clone());
    judge(&mut run);
    let outcome = |test: &str| {
        let cell = run.cells.iter().find(|c| c.id.kernel == "6.12-source" && c.id.test.name() == test);
        cell.unwrap().outcome.clone()
    };
    let Outcome::Fail { reasons } = outcome("lbr_waste/fexit") else {
        panic!("{:?}", outcome("lbr_waste/fexit"))
    };
    assert!(reasons[0].contains("skip: no FUNCTION_TRACER"), "{reasons:?}");
    assert_eq!(outcome("lbr_waste/kretprobe.multi"), panic);
}

/// The same series on two architectures: what is worse on one of them fails there and nowhere else.
#[test]
fn each_architecture_is_judged_by_itself() {
    let mut run = recorded();
    let other = Series { arch: Arch::Arm64, ..run.series[0].clone() };
    // Turned around on the other one: what the series brought is lost there.
    run.series.push(Series { steps: other.steps.iter().rev().cloned().collect(), ..other });
    let mut cells = run.cells.clone();
    cells.iter_mut().for_each(|cell| cell.id.arch = Arch::Arm64);
    for cell in &mut cells {
        let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { continue };
        for point in &mut waste.points {
            point.wasted = crate::branch::waste::table(Arch::Arm64, &point.records, &waste.function);
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
fn what_the_head_has_no_cell_for_is_told_and_is_no_number() {
    let mut run = recorded();
    run.cells.retain(|cell| cell.id.kernel != "6.12-source" || cell.id.test.name() != "lbr_waste/fexit");
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
fn lists_tests_of_the_head_alone_and_judges_nothing_by_them() {
    let mut run = recorded();
    assert_eq!(of_series(&run, whole).head_only, []);
    let base = run.series[0].base().kernel.clone();
    run.cells.retain(|cell| cell.id.kernel != base || cell.id.test.name() != "lbr_waste/fexit");
    let comparison = of_series(&run, whole);
    let test: Test = "lbr_waste/fexit".parse().unwrap();
    assert_eq!(comparison.head_only, [HeadOnly { test, head: "pass".to_owned() }]);
    assert!(comparison.unmatched.iter().all(|unmatched| unmatched.test.name() != "lbr_waste/fexit"));
    judge(&mut run);
    assert!(run.cells.iter().all(|cell| !matches!(cell.outcome, Outcome::Fail { .. })));
}

#[test]
fn a_function_that_no_record_touches_any_more_is_worse_than_any_number() {
    let mut run = recorded();
    let waste = waste_of(&mut run, "6.12-source", "lbr_waste/fexit");
    for counts in waste.points[0].wasted.values_mut() {
        counts.values_mut().for_each(|count| count.wasted = None);
    }
    run.tolerance.wasted = 1000;
    let comparison = of_series(&run, whole);
    let compared = verdict(&comparison, "lbr_waste.fexit.any");
    assert_eq!(compared.verdict, Verdict::Worse);
    // The other way round something was gained.
    let comparison = of_series(&turned(run), whole);
    assert_eq!(verdict(&comparison, "lbr_waste.fexit.any").verdict, Verdict::Better);
}

#[test]
fn times_of_two_runs_are_shown_and_not_judged() {
    let run = recorded();
    let series = &run.series[0];
    let [base, head] = sides(&run, series.arch, &series.base().kernel, &series.head().kernel);
    let pairs = pair_up(&base, &head);
    let comparison = compare("a", "b", &pairs, MODEL, run.tolerance, Timing::Apart, &Layout::default());
    let compared = verdict(&comparison, "attach.kprobe_multi.10.attach");
    assert!(matches!(compared.verdict, Verdict::NotJudged(_)) && compared.ratio.is_none());
    assert!(compared.base.to_string().contains(" ms ("), "{}", compared.base);
}

/// The records that went are those of the two helpers, and no other.
#[test]
fn the_listings_show_what_went() {
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
    // The snapshot itself came instead of the modelled one.
    let last = fexit.rows.last().unwrap();
    assert!(last.head.as_ref().is_some_and(|line| line.index == 0));
    // Nothing is lost: each side is its whole listing.
    for (side, wasted) in [(0, 12), (1, 9)] {
        let lines = fexit.rows.iter().filter_map(|row| [&row.base, &row.head][side].as_ref());
        let indices: Vec<usize> = lines.map(|line| line.index).collect();
        assert_eq!(indices, (0..=wasted).rev().collect::<Vec<_>>());
    }
}

/// The recorded counts are those of the recorded records.
#[test]
fn the_recorded_run_is_consistent() {
    for cell in recorded().cells {
        let Some(Measurement::LbrWaste(measured)) = cell.measurement else { continue };
        for point in measured.points {
            let any = waste::count(MODEL, Filter::of(Branch::Any), &point.records, &measured.function);
            assert_eq!(Some(any.wasted), point.wasted[MODEL.name()].get("any").map(|count| count.wasted));
        }
    }
}

#[test]
fn incomparable_runs_are_told_by_what_makes_them_so() {
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
    let table: [(&str, Change); 10] = [
        ("CPU models: max and host", |run| run.machines[0].cpu = "host".to_owned()),
        ("different QEMUs", |run| run.machines[0].qemu = "QEMU 11".to_owned()),
        ("machines: 1 CPUs with 1024 MiB and 2 CPUs", |run| run.machines[0].cpus = 2),
        ("command lines: `` and `mitigations=auto`", |run| {
            run.machines[0].append = vec!["mitigations=auto".to_owned()]
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
    // Another host is no other CPU under TCG, and is under KVM.
    let mut run = recorded();
    run.host.cpu = "another".to_owned();
    assert_eq!(side(&run), Vec::<String>::new());
    // Building a kernel takes no guest.
    let is_built = |cell: &Cell| cell.id.test == Test::Build;
    run.cells.iter_mut().filter(|cell| is_built(cell)).for_each(|cell| cell.id.accel = Accel::Kvm);
    assert_eq!(side(&run), Vec::<String>::new());
    run.cells.iter_mut().for_each(|cell| cell.id.accel = Accel::Kvm);
    assert!(side(&run).iter().any(|found| found.contains("the host's CPU is the guest's")));
    // Configurations: told by their options where the files are there, by their hashes where not.
    let mut run = recorded();
    run.kernels[0].config_sha256 = Some("0".repeat(64));
    let measured = |run, kernel, text: Option<&str>| Measured {
        run,
        kernel,
        config: text.map(|text| Kconfig::parse(text).unwrap()),
    };
    let found = |a: Option<&str>, b: Option<&str>| {
        obstacles(&measured(&base, &base.kernels[0], a), &measured(&run, &run.kernels[0], b)).join("\n")
    };
    let (one, other) =
        (Some("CONFIG_A=y\nCONFIG_HZ=250\n"), Some("CONFIG_HZ=1000\nCONFIG_A=y\nCONFIG_B=m\n"));
    assert_eq!(
        found(one, other),
        "their kernels' configurations differ in 2 options: CONFIG_B (n and m), CONFIG_HZ (250 and 1000)"
    );
    assert_eq!(found(one, one), "");
    assert!(found(None, None).ends_with("and 000000000000"), "{}", found(None, None));
}

/// A run in which a hit of fexit on `head` was changed by `change`.
fn with_a_changed_hit(change: fn(&mut TriggerCost)) -> (Run, Run) {
    let stored: Run =
        serde_json::from_str(include_str!("../../../testdata/run.json")).expect("the stored run");
    let mut base = recorded();
    let kernel = base.series[0].base().kernel.clone();
    let mut cell = stored
        .cells
        .into_iter()
        .find(|cell| cell.id.kernel == "6.12" && cell.id.test.name() == "trigger/fexit")
        .expect("a trigger cell");
    cell.id.kernel = kernel;
    base.cells = vec![cell.clone()];
    let mut head = base.clone();
    let Some(Measurement::Trigger(trigger)) = &mut head.cells[0].measurement else { panic!("no trigger") };
    change(trigger.cost.as_mut().expect("counted"));
    (base, head)
}

#[test]
fn a_hit_that_costs_more_is_worse_and_its_listing_shows_where() {
    let dearer: fn(&mut TriggerCost) = |cost| {
        cost.parts[1].instructions += 2;
        cost.parts[1].records[3].instructions += 2;
    };
    let cheaper: fn(&mut TriggerCost) = |cost| {
        cost.parts[0].records.remove(2);
        cost.parts[0].instructions -= 4;
        cost.parts[0].branches -= 1;
    };
    let same: fn(&mut TriggerCost) = |_| {};
    type Case = (fn(&mut TriggerCost), [Verdict; 2], [usize; 3]);
    // Verdicts on instructions and branches; records that went, came, and differ.
    let table: [Case; 3] = [
        (same, [SAME, SAME], [0, 0, 0]),
        (dearer, [Verdict::Worse, SAME], [0, 0, 1]),
        (cheaper, [Verdict::Better, Verdict::Better], [1, 0, 0]),
    ];
    for (change, verdicts, sides) in table {
        let (base, head) = with_a_changed_hit(change);
        let pairs = pair_up(&[&base.cells[0]], &[&head.cells[0]]);
        let compare_with = |trigger| {
            let tolerance = Tolerance { trigger, ..Tolerance::default() };
            compare("a", "b", &pairs, MODEL, tolerance, Timing::Interleaved, &Layout::default())
        };
        let comparison = compare_with(0);
        for (name, expected) in
            ["trigger.fexit.instructions", "trigger.fexit.branches"].into_iter().zip(&verdicts)
        {
            let compared = verdict(&comparison, name);
            assert_eq!(compared.verdict, *expected, "{name}");
        }
        let name = "trigger.fexit.instructions";
        let tolerated = &compare_with(4);
        let expected = if verdicts[0] == SAME { SAME } else { TOLERATED };
        assert_eq!(verdict(tolerated, name).verdict, expected);
        // One boot proves nothing.
        assert!(matches!(verdict(&comparison, "trigger.fexit.time").verdict, Verdict::NotJudged(_)));
        let found = [Side::Base, Side::Head, Side::Moved].map(|side| {
            let rows = comparison.listings.iter().flat_map(|listings| &listings.rows);
            rows.filter(|row| row.side() == side).count()
        });
        assert_eq!(found, sides);
    }
}

/// The same mechanism alone and beside another tracer: two tests, each compared with its own.
#[test]
fn what_is_attached_beside_makes_another_test() {
    let (mut base, mut head) = with_a_changed_hit(|_| {});
    for run in [&mut base, &mut head] {
        let mut beside = run.cells[0].clone();
        let Test::Trigger { beside: set, .. } = &mut beside.id.test else { panic!("no trigger") };
        *set = [Beside::FunctionTracer].into_iter().collect();
        run.cells.push(beside);
    }
    let Some(Measurement::Trigger(trigger)) = &mut head.cells[1].measurement else { panic!("no trigger") };
    trigger.cost.as_mut().unwrap().parts[0].instructions += 1;
    let pairs = pair_up(&base.cells.iter().collect::<Vec<_>>(), &head.cells.iter().collect::<Vec<_>>());
    let comparison =
        compare("a", "b", &pairs, MODEL, Tolerance::default(), Timing::Interleaved, &Layout::default());
    for (name, expected) in
        [("trigger.fexit.instructions", SAME), ("trigger.fexit+function_tracer.instructions", Verdict::Worse)]
    {
        let compared = verdict(&comparison, name);
        assert_eq!(compared.verdict, expected, "{name}");
        assert_eq!(format!("trigger/{}", name.split('.').nth(1).unwrap()), compared.metric.test().name());
    }
    let subjects: Vec<String> = comparison.listings.iter().map(|one| one.subject.to_string()).collect();
    let expected =
        ["fexit, entry", "fexit, exit", "fexit+function_tracer, entry", "fexit+function_tracer, exit"];
    assert_eq!(subjects, expected.map(|of| format!("trigger of {of}")));
}

#[test]
fn a_side_that_was_timed_only_has_no_exact_cost_to_compare() {
    let (base, mut head) = with_a_changed_hit(|_| {});
    let Some(Measurement::Trigger(trigger)) = &mut head.cells[0].measurement else { panic!("no trigger") };
    trigger.cost = None;
    let pairs = pair_up(&[&base.cells[0]], &[&head.cells[0]]);
    let comparison =
        compare("a", "b", &pairs, MODEL, Tolerance::default(), Timing::Interleaved, &Layout::default());
    let names: Vec<String> = comparison.metrics.iter().map(|compared| compared.metric.to_string()).collect();
    assert_eq!(names, ["trigger.fexit.time"]);
}

/// The recorded attach cells of base and head, with whatever `change` does to the head's: the base's own, so that nothing
/// else differs.
fn with_a_changed_attach(change: impl Fn(&mut Attach)) -> Run {
    let mut run = recorded();
    let series = &mut run.series[0];
    series.steps.remove(1);
    let head = series.head().kernel.clone();
    let is_attach = |cell: &&Cell| matches!(cell.id.test, Test::Attach { .. });
    let base = run.cells.iter().find(is_attach).expect("an attach cell").clone();
    assert_eq!(base.id.kernel, series.base().kernel);
    let mut changed = base.clone();
    changed.id.kernel = head;
    let Some(Measurement::Attach(attach)) = &mut changed.measurement else { panic!("no attach") };
    change(attach);
    run.cells = vec![base, changed];
    run
}

/// All that takes part in the exact metrics, as `changed` has it.
fn scale(attach: &mut Attach, changed: impl Fn(u64) -> u64) {
    for round in &mut attach.exact.as_mut().expect("the exact clock").rounds {
        for ns in [&mut round.load_ns, &mut round.attach_ns, &mut round.detach_ns] {
            *ns = changed(*ns);
        }
    }
    for summary in &mut attach.explained {
        summary.totals.task = changed(summary.totals.task);
    }
}

const EXACT: [&str; 5] = [
    "attach.kprobe_multi.10.load.exact",
    "attach.kprobe_multi.10.attach.exact",
    "attach.kprobe_multi.10.detach.exact",
    "attach.kprobe_multi.10.attach.instructions",
    "attach.kprobe_multi.10.detach.instructions",
];

#[test]
fn exact_attach_metrics_have_names() {
    let count = |count| Functions::Count(std::num::NonZeroU32::new(count).unwrap());
    let (fentry, multi) = (Mechanism::Fentry, Mechanism::KprobeMulti);
    let instructions = |mechanism, functions| Metric::Instructions {
        mechanism,
        functions,
        phase: crate::profile::Phase::Attach,
        whose: Whose::Thread,
    };
    for (metric, name) in [
        (
            Metric::ExactTime { mechanism: fentry, functions: count(1000), phase: Phase::Detach },
            "attach.fentry.1000.detach.exact",
        ),
        (instructions(fentry, count(1000)), "attach.fentry.1000.attach.instructions"),
        (instructions(multi, Functions::All), "attach.kprobe_multi.all.attach.instructions"),
    ] {
        assert_eq!(metric.to_string(), name);
    }
}

#[test]
fn an_exact_difference_counts_beyond_tolerance_and_layout() {
    let per_mille = |n: u64| move |value: u64| value * n / 1000;
    type Change = Box<dyn Fn(u64) -> u64>;
    let waits = || Verdict::NotJudged("a grace period that is just missed costs another one");
    // Times to load, attach and detach; instructions to attach and detach.
    let all = |verdict: Verdict| [(); 5].map(|()| verdict.clone());
    let beyond = |verdict: Verdict| {
        let [load, attach, thread, detached] = [(); 4].map(|()| verdict.clone());
        [load, attach, waits(), thread, detached]
    };
    let table: [(&str, Change, [Verdict; 5]); 8] = [
        ("the same", Box::new(|value| value), all(SAME)),
        ("one more", Box::new(|value| value + 1), all(TOLERATED)),
        ("one less", Box::new(|value| value - 1), all(TOLERATED)),
        ("0.4 % more", Box::new(per_mille(1004)), all(TOLERATED)),
        ("0.6 % more", Box::new(per_mille(1006)), beyond(Verdict::Worse)),
        ("1 % more", Box::new(per_mille(1010)), beyond(Verdict::Worse)),
        ("twice", Box::new(per_mille(2000)), beyond(Verdict::Worse)),
        ("half", Box::new(per_mille(500)), beyond(Verdict::Better)),
    ];
    for (what, change, expected) in table {
        let mut run = with_a_changed_attach(|attach| scale(attach, &change));
        run.tolerance = Tolerance::default();
        let comparison = of_series(&run, whole);
        for (name, expected) in EXACT.iter().zip(&expected) {
            assert_eq!(verdict(&comparison, name).verdict, *expected, "{name}: {what}");
        }
        // The suite's word counts.
        run.tolerance.exact_percent = 200.0;
        let comparison = of_series(&run, whole);
        for name in EXACT {
            let found = &verdict(&comparison, name).verdict;
            assert!([SAME, TOLERATED].contains(found), "{name}: {what}, {found}");
        }
    }
}

/// A difference of twice the placebo's move is no cost; one more is.
#[test]
fn a_difference_within_the_placebos_band_is_layout() {
    let name = EXACT[1];
    for (more, expected) in [(0, LAYOUT), (1, Verdict::Worse)] {
        let moved = |value: u64| value * 11 / 10;
        let twice = |value: u64| value + 2 * (moved(value) - value) + more;
        let mut run = with_a_changed_attach(|attach| scale(attach, twice));
        run.tolerance = Tolerance::default();
        // The tree is the base.
        run.series[0].reverse = false;
        let series = run.series[0].clone();
        assert_eq!(verdict(&of_series(&run, whole), name).verdict, Verdict::Worse);
        let mut placebo = with_a_changed_attach(|attach| scale(attach, moved));
        let head = &series.head().kernel;
        let mut cells: Vec<Cell> = placebo.cells.drain(..).filter(|cell| cell.id.kernel == *head).collect();
        cells.iter_mut().for_each(|cell| cell.id.kernel = "placebo".to_owned());
        run.cells.extend(cells);
        run.series[0].placebos = vec!["placebo".to_owned()];
        assert_eq!(verdict(&of_series(&run, whole), name).verdict, expected, "{more}");
    }
}

/// Both sides' times are those of the budget: the number of functions is what differs.
#[test]
fn what_a_budget_ended_or_is_of_other_numbers_is_not_judged() {
    let stopped = Stopped { wanted: 10, attached: 7, detached: 7, seconds: 1 };
    let run = with_a_changed_attach(|attach| {
        scale(attach, |value| value * 2);
        attach.boots[0].stopped = Some(stopped);
        attach.exact.as_mut().unwrap().stopped = Some(stopped);
        attach.explained.iter_mut().for_each(|summary| summary.attached = 7);
    });
    let comparison = of_series(&run, whole);
    let attaching = |compared: &&Compared| compared.metric.to_string().starts_with("attach.");
    let judged: Vec<_> = comparison.metrics.iter().filter(attaching).collect();
    assert_eq!(judged.len(), 10);
    for Compared { metric, verdict, .. } in judged {
        assert!(matches!(verdict, Verdict::NotJudged(_)), "{metric}: {verdict}");
    }
}

#[test]
fn attaching_that_got_dearer_by_two_per_cent_fails_its_cell() {
    let mut run = with_a_changed_attach(|attach| scale(attach, |value| value * 102 / 100));
    judge(&mut run);
    let Outcome::Fail { reasons } = &run.cells[1].outcome else { panic!("{:?}", run.cells[1].outcome) };
    let metrics: Vec<&str> = reasons.iter().map(|reason| reason.split(' ').next().unwrap()).collect();
    // How long detaching waits may hang on an instruction.
    assert_eq!(metrics, [EXACT[0], EXACT[1], EXACT[3], EXACT[4]]);
    assert_eq!(run.cells[0].outcome, Outcome::Pass);
}

/// Interrupts come where the host's clock sends them, and leave the thread more or less to do. What is equal is so.
#[test]
fn instructions_counted_under_the_hosts_clock_prove_no_difference() {
    let free = |summary: &mut crate::profile::Summary| summary.clock = tramplab_model::run::Clock::Free;
    for (more, expected) in [(0, SAME), (1_000_000, Verdict::NotJudged("counted under the host's clock"))] {
        let one_side = with_a_changed_attach(|attach| {
            scale(attach, |value| value + more);
            attach.explained.iter_mut().for_each(free);
        });
        let mut both_sides = one_side.clone();
        let Some(Measurement::Attach(base)) = &mut both_sides.cells[0].measurement else { panic!() };
        base.explained.iter_mut().for_each(free);
        for run in [one_side, both_sides] {
            let comparison = of_series(&run, whole);
            for name in &EXACT[3..] {
                let compared = verdict(&comparison, name);
                assert_eq!(compared.verdict, expected, "{name}");
            }
        }
    }
}

#[test]
fn what_one_side_did_not_measure_exactly_is_not_compared() {
    let exact = |change: fn(&mut Attach)| -> Vec<String> {
        let comparison = of_series(&with_a_changed_attach(change), whole);
        let names = comparison.metrics.iter().map(|compared| compared.metric.to_string());
        names.filter(|name| EXACT.contains(&name.as_str())).collect()
    };
    assert_eq!(exact(|_| {}), EXACT);
    assert_eq!(exact(|attach| attach.exact = None), EXACT[3..]);
    assert_eq!(exact(|attach| attach.explained.clear()), EXACT[..3]);
    assert_eq!(exact(|attach| attach.exact.as_mut().unwrap().rounds.clear()), EXACT[3..]);
    // Samples are no instructions.
    let sampled = |attach: &mut Attach| {
        attach.explained.iter_mut().for_each(|one| one.how = tramplab_protocol::message::Explain::Sampled);
    };
    assert_eq!(exact(sampled), EXACT[..3]);
    // Without the host's clock there is nothing but them.
    assert_eq!(exact(|attach| attach.boots.clear()), EXACT);
}

#[test]
fn of_several_rounds_the_middle_one_is_compared() {
    let run = with_a_changed_attach(|attach| {
        let rounds = &mut attach.exact.as_mut().unwrap().rounds;
        assert_eq!(rounds.len(), 3);
        let (first, last) = (rounds[0], rounds[2]);
        // In another order, and the longest longer still.
        rounds[0] = last;
        rounds[2] = first;
        rounds.iter_mut().max_by_key(|round| round.attach_ns).unwrap().attach_ns *= 10;
    });
    let comparison = of_series(&run, whole);
    assert_eq!(verdict(&comparison, EXACT[1]).verdict, SAME);
}

#[test]
fn sides_that_attached_to_other_functions_are_told_and_judged_all_the_same() {
    let every: fn(&mut Attach) = |attach| {
        let Attach { boots, exact, .. } = attach;
        boots.iter_mut().chain(exact).for_each(|boot| boot.list_sha256 = "0".repeat(64));
    };
    let one: fn(&mut Attach) = |attach| attach.boots[0].list_sha256 = "0".repeat(64);
    let only_exact: fn(&mut Attach) = |attach| attach.exact.as_mut().unwrap().list_sha256 = "0".repeat(64);
    for change in [every, one, only_exact] {
        let run = with_a_changed_attach(change);
        let comparison = of_series(&run, whole);
        assert_eq!(comparison.other_functions, [run.cells[0].id.test.clone()]);
        assert_eq!(verdict(&comparison, EXACT[0]).verdict, SAME);
    }
    assert_eq!(of_series(&with_a_changed_attach(|_| {}), whole).other_functions, []);
}

/// The head of the recorded run, its guests with another clock source.
fn with_other_clock(change: fn(&mut tramplab_model::run::Cell)) -> Run {
    let mut run = recorded();
    let head = run.series[0].head().kernel.clone();
    run.cells.iter_mut().filter(|cell| cell.id.kernel == head).for_each(change);
    run
}

#[test]
fn times_by_different_clock_sources_are_not_judged() {
    let hpet: fn(&mut tramplab_model::run::Cell) = |cell| {
        if let Some(guest) = &mut cell.guest {
            guest.clocksource = "hpet".to_owned();
        }
    };
    let both: fn(&mut tramplab_model::run::Cell) = |cell| cell.add_clock_source("hpet");
    for (change, clocks) in [(hpet, "hpet"), (both, "hpet, tsc")] {
        let run = with_other_clock(change);
        let comparison = of_series(&run, whole);
        for Compared { metric, verdict, .. } in &comparison.metrics {
            let refused = Verdict::NotJudged("the guests had different clock sources");
            assert_eq!(*verdict == refused, metric.is_by_hosts_clock(), "{metric}");
        }
        // Of a test without a time there is nothing to say.
        let [(test, [base, head])] = &comparison.other_clocks[..] else { panic!("{comparison:?}") };
        assert_eq!(
            (test.name().as_str(), base.as_str(), head.as_str()),
            ("attach/kprobe.multi/10", "tsc", clocks)
        );
    }
    // The same counter, before and after it was measured a second time.
    assert_eq!(of_series(&recorded(), whole).other_clocks, []);
}

#[test]
fn runs_timed_by_different_clock_sources_are_incomparable() {
    let (base, head) = (
        recorded(),
        with_other_clock(|cell| {
            if cell.guest.is_some() && matches!(cell.id.test, Test::Attach { .. }) {
                cell.add_clock_source("hpet");
            }
        }),
    );
    let of = |run: &Run| {
        let kernel = run.kernels.iter().find(|kernel| kernel.name == run.series[0].head().kernel);
        kernel.cloned().unwrap()
    };
    let (a, b) = (of(&base), of(&head));
    let side = |run, kernel| Measured { run, kernel, config: None };
    let (this, other) = (side(&base, &a), side(&head, &b));
    assert_eq!(obstacles(&this, &this), Vec::<String>::new());
    assert_eq!(obstacles(&this, &other), ["their guests had different clock sources: tsc and hpet, tsc"]);
    // Nothing was timed: the clock is in no number.
    let mut untimed = with_other_clock(|cell| cell.add_clock_source("hpet"));
    untimed.cells.retain(|cell| !matches!(cell.id.test, Test::Attach { .. }));
    assert_eq!(obstacles(&this, &side(&untimed, &of(&untimed))), Vec::<String>::new());
}

#[test]
fn a_metric_is_found_by_the_name_it_is_shown_under() {
    let count = |n: u32| Functions::Count(n.try_into().unwrap());
    let mechanism = Mechanism::KprobeMulti;
    let beside: BesideSet = [Beside::FunctionTracer].into_iter().collect();
    let mut metrics = Vec::new();
    metrics
        .extend(tramplab_model::run::Row::all().map(|row| Metric::Wasted { row, filter: Branch::AnyReturn }));
    for functions in [count(1000), Functions::All] {
        metrics.extend(Phase::ALL.map(|phase| Metric::Time { mechanism, functions, phase }));
        metrics.extend(Phase::ALL.map(|phase| Metric::ExactTime { mechanism, functions, phase }));
        for phase in crate::profile::Phase::ALL {
            metrics.extend(Whose::ALL.map(|whose| Metric::Instructions {
                mechanism,
                functions,
                phase,
                whose,
            }));
        }
    }
    metrics.extend(Cost::ALL.map(|cost| Metric::Trigger { mechanism, beside, cost }));
    for metric in metrics {
        assert_eq!(metric.to_string().parse(), Ok(metric), "{metric}");
    }
    for (other, name) in [
        ("lbr_waste.kretprobe.multi.any", "lbr_waste.kretprobe_multi.any"),
        ("lbr_waste.kprobe.session/exit.any_call", "lbr_waste.kprobe_session_exit.any_call"),
        ("attach.fentry.1000.instructions", "attach.fentry.1000.attach.instructions"),
        ("attach.kprobe.multi.all.detach.exact", "attach.kprobe_multi.all.detach.exact"),
        ("trigger.fentry+kprobe.multi.branches", "trigger.fentry+kprobe_multi.branches"),
    ] {
        assert_eq!(other.parse::<Metric>().unwrap().to_string(), name);
    }
    for bad in [
        "",
        "lbr_waste",
        "lbr_waste.kretprobe_multi",
        "lbr_waste.kretprobe_multi.all",
        "lbr_waste.kfoo.any",
        "attach.fentry.0.attach",
        "attach.fentry.attach",
        "attach.fentry.10.load.instructions",
        "attach.fentry.10.attach.exact.instructions",
        "trigger.fentry+.branches",
        "trigger.fentry.records",
    ] {
        assert!(bad.parse::<Metric>().is_err(), "{bad}");
    }
    for (slip, meant) in [
        ("lbr_waste.fexitt.any", Some("lbr_waste.fexit.any")),
        ("lbr_waste.fsession.any", Some("lbr_waste.fsession_entry.any")),
        ("trigger.fentry.branch", Some("trigger.fentry.branches")),
        ("lbr_waste.nothing.any", None),
    ] {
        let text = slip.parse::<Metric>().unwrap_err().to_string();
        match meant {
            Some(meant) => assert!(text.contains(&format!("did you mean `{meant}`?")), "{text}"),
            None => assert!(!text.contains("did you mean"), "{text}"),
        }
    }
}

/// A cell of one of the tree's own tests, on `kernel`.
fn own_test(kernel: &str, accel: Accel, test: Test, measured: Result<Measurement, Outcome>) -> Cell {
    let mut cell = Cell {
        id: CellId { kernel: kernel.to_owned(), arch: Arch::X86_64, accel, test },
        outcome: Outcome::Pass,
        duration_ms: 1,
        boot_ms: None,
        restored: false,
        guest: None,
        measurement: None,
        console_tail: vec![],
    };
    match measured {
        Ok(measurement) => {
            // As the cell judges itself.
            let failed = matches!(&measurement, Measurement::TestProgs(test) if test.end == End::Fail);
            cell.outcome = if failed {
                Outcome::Fail {
                    reasons: vec!["test_progs says that it fails, of its subtests sub".to_owned()],
                }
            } else {
                Outcome::Pass
            };
            cell.measurement = Some(measurement);
        }
        Err(outcome) => cell.outcome = outcome,
    }
    cell
}

#[test]
fn a_test_of_the_trees_that_fails_on_head_only_is_a_failure_and_a_new_one_is_new() {
    let test = |name: &str| Test::TestProgs { test: name.parse().unwrap() };
    let ran = |end: End| {
        let subtests = vec![Subtest { name: "sub".to_owned(), end }];
        Ok(Measurement::TestProgs(TreeTest {
            end,
            subtests,
            left_out: LeftOut::default(),
            denied: vec![],
            failures: vec!["a:FAIL:b".to_owned()],
        }))
    };
    let skip = || Err(Outcome::Skip { reason: tramplab_model::selftests::absent("test", "new") });
    let denied = || Err(Outcome::Skip { reason: "denied by DENYLIST:1 (`allowed`)".to_owned() });
    let error = || Err(Outcome::Error { kind: ErrorKind::Guest, message: "killed by SIGSEGV".to_owned() });
    let (ok, fail) = (End::Ok, End::Fail);
    // It ends well, with a subtest that does not run any more.
    let fewer = || {
        let subtests = vec![Subtest { name: "sub".to_owned(), end: End::Skip }];
        Ok(Measurement::TestProgs(TreeTest {
            end: End::Ok,
            subtests,
            left_out: LeftOut::default(),
            denied: vec![],
            failures: vec![],
        }))
    };
    let mut run = recorded();
    let [base, head] = [run.series[0].base().kernel.clone(), run.series[0].head().kernel.clone()];
    let cells = |kernel: &str, ends: [(&str, Result<Measurement, Outcome>); 8]| {
        ends.map(|(name, measured)| own_test(kernel, Accel::Tcg, test(name), measured))
    };
    run.cells = [
        cells(
            &base,
            [
                ("kept", ran(ok)),
                ("fewer", ran(ok)),
                ("broken", ran(ok)),
                ("mended", ran(fail)),
                ("new", skip()),
                ("lost", ran(ok)),
                ("dead", ran(ok)),
                ("allowed", denied()),
            ],
        ),
        cells(
            &head,
            [
                ("kept", ran(ok)),
                ("fewer", fewer()),
                ("broken", ran(fail)),
                ("mended", ran(ok)),
                ("new", ran(ok)),
                ("lost", skip()),
                ("dead", error()),
                ("allowed", ran(ok)),
            ],
        ),
    ]
    .concat();
    let comparison = whole(&run, &run.series[0], None);
    for (name, expected) in
        [("kept", SAME), ("fewer", Verdict::Worse), ("broken", Verdict::Worse), ("mended", Verdict::Better)]
    {
        let compared = verdict(&comparison, &format!("test_progs.{name}.result"));
        assert_eq!(compared.verdict, expected, "{name}");
        assert_eq!(compared.metric.to_string().parse::<Metric>().unwrap(), compared.metric);
    }
    let unmatched: Vec<_> =
        comparison.unmatched.iter().map(|one| (one.test.name(), one.lost, one.is_new)).collect();
    let named = |name: &str, lost, is_new| (format!("test_progs/{name}"), lost, is_new);
    assert_eq!(
        unmatched,
        [
            named("new", false, true),
            named("lost", true, false),
            named("dead", true, false),
            // The base's tree has it.
            named("allowed", false, false)
        ]
    );
    judge(&mut run);
    let ends = |kernel: &str| -> Vec<&str> {
        run.cells_of(Arch::X86_64, kernel).map(|cell| cell.outcome.name()).collect()
    };
    assert_eq!(ends(&base), ["pass", "pass", "pass", "fail", "skip", "pass", "pass", "skip"]);
    assert_eq!(ends(&head), ["pass", "fail", "fail", "pass", "pass", "fail", "error", "pass"]);
    let reason_of = |index| run.cells_of(Arch::X86_64, &head).nth(index).unwrap().outcome.reason().unwrap();
    assert_eq!(reason_of(1), format!("test_progs.fewer.result is worse than on {base}: ok (1 ok) -> ok"));
    let broken = run.cells_of(Arch::X86_64, &head).nth(2).unwrap();
    let Outcome::Fail { reasons } = &broken.outcome else { panic!("{:?}", broken.outcome) };
    assert_eq!(reasons[0], "test_progs says that it fails, of its subtests sub");
    assert_eq!(reasons[1], format!("test_progs.broken.result is worse than on {base}: ok (1 ok) -> fail"));
}

/// Slower by a half, six boots each: seen under KVM, never a verdict under TCG.
#[test]
fn throughput_is_judged_only_where_it_is_the_machines() {
    let test = || Test::Bench { benchmark: "trig-fentry".parse().unwrap() };
    let bench = |factor: f64| {
        let boots = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0].map(|rate| BenchBoot { hits: vec![rate * factor; 3] });
        Ok(Measurement::Bench(Bench { producers: 1, boots: boots.to_vec() }))
    };
    for (accel, head, expected) in [
        (Accel::Kvm, 0.5, Some(Verdict::Worse)),
        (Accel::Kvm, 2.0, Some(Verdict::Better)),
        (Accel::Kvm, 1.0, Some(Verdict::NoDifferenceSeen)),
        (Accel::Tcg, 0.5, None),
    ] {
        let [a, b] =
            [("a", 1.0), ("b", head)].map(|(kernel, factor)| own_test(kernel, accel, test(), bench(factor)));
        let pairs = pair_up(&[&a], &[&b]);
        let comparison =
            compare("a", "b", &pairs, MODEL, Tolerance::default(), Timing::Interleaved, &Layout::default());
        let compared = verdict(&comparison, "bench.trig-fentry.rate");
        match expected {
            Some(expected) => assert_eq!(compared.verdict, expected, "{accel:?} {head}"),
            None => assert!(matches!(compared.verdict, Verdict::NotJudged(_))),
        }
        assert_eq!("bench.trig-fentry.rate".parse::<Metric>().unwrap(), compared.metric);
    }
}

/// A second in three has a hit, so it was measured; the median has none.
#[test]
fn a_guest_in_which_next_to_nothing_ran_is_no_noise() {
    let test = || Test::Bench { benchmark: "trig-fentry".parse().unwrap() };
    let bench = |idle: usize| {
        let hits = |boot: usize| if boot < idle { vec![0.0, 0.0, 0.001] } else { vec![1.0; 3] };
        let boots = (0..6).map(|boot| BenchBoot { hits: hits(boot) }).collect();
        Ok(Measurement::Bench(Bench { producers: 1, boots }))
    };
    for (base, head, expected) in [
        (0, 1, Some(Verdict::Worse)),
        (0, 6, Some(Verdict::Worse)),
        (6, 0, Some(Verdict::Better)),
        (1, 1, None),
    ] {
        let [a, b] = [("a", base), ("b", head)]
            .map(|(kernel, idle)| own_test(kernel, Accel::Kvm, test(), bench(idle)));
        let pairs = pair_up(&[&a], &[&b]);
        let comparison =
            compare("a", "b", &pairs, MODEL, Tolerance::default(), Timing::Interleaved, &Layout::default());
        let compared = verdict(&comparison, "bench.trig-fentry.rate");
        match expected {
            Some(expected) => assert_eq!(compared.verdict, expected, "{base} {head}"),
            None => assert!(matches!(compared.verdict, Verdict::NotJudged(_)), "{:?}", compared.verdict),
        }
    }
}

/// Which are named depends on how many there are.
#[test]
fn of_more_subtests_than_are_named_their_number_is_compared() {
    let test = |ok: &[&str], more: u32| {
        let subtests = ok.iter().map(|&name| Subtest { name: name.to_owned(), end: End::Ok }).collect();
        let left_out = LeftOut { ok: more, ..LeftOut::default() };
        Ok(Measurement::TestProgs(TreeTest {
            end: End::Ok,
            subtests,
            left_out,
            denied: vec![],
            failures: vec![],
        }))
    };
    for (base, head, expected) in [
        (test(&["a", "b"], 5), test(&["new", "a"], 5), SAME),
        (test(&["a", "b"], 5), test(&["a", "b"], 4), Verdict::Worse),
        (test(&["a", "b"], 0), test(&["a", "c"], 0), Verdict::Worse),
    ] {
        let id = || Test::TestProgs { test: "t".parse().unwrap() };
        let [a, b] = [("a", base), ("b", head)].map(|(kernel, ran)| own_test(kernel, Accel::Tcg, id(), ran));
        let comparison = compare(
            "a",
            "b",
            &pair_up(&[&a], &[&b]),
            MODEL,
            Tolerance::default(),
            Timing::Interleaved,
            &Layout::default(),
        );
        let compared = verdict(&comparison, "test_progs.t.result");
        assert_eq!(compared.verdict, expected, "{} {}", compared.base, compared.head);
    }
}
