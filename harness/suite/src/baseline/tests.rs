// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on the stored run, without the guest that was made to fail.

use super::*;
use tramplab_model::run::{BranchSource, CapturePoint, CellId, Clock, Measurement, Trigger};
use tramplab_testdata::stored;

fn run() -> Run {
    let mut run = stored();
    run.cells.retain(|cell| !matches!(cell.outcome, Outcome::Error { .. }));
    run
}

/// Comments, odd spacing and quoting, as people write them. One number is right, one too high and
/// one too low.
const SUITE: &str = "\
# SPDX-License-Identifier: MIT OR Apache-2.0
name: stored   # not mine
description: 'a b'
kernels: [\"6.1\",  '6.12', \"7.2\"]

tests: [{ lbr_waste: { mechanisms: all } }, { trigger: { mechanisms: all } },
        { attach: { mechanisms: all, functions: [10, 100, 1000], rounds: 3 } }]
# The old ones.
budgets:
    # For all: never lowered.
    - wasted: { fexit: {any: 40,   any_return: 4}, 'kprobe.session/exit': { any_call|cond: 99 } }  # wide
    - kernels: ['6.12']
      arch: [x86_64]
      wasted:
        fentry: { any: 30 }   # ü: too high
        fexit: { any: 3 }     # too low
      most: { trigger.fexit.instructions: 5, attach.fentry.10.attach.instructions: 99999999999 }

    # The last.

# Of the next key.
tolerance: { exact_percent: 1 }
";

fn update(text: &str, run: &Run) -> Result<String, String> {
    let updated = updated(text, Path::new("s.yaml"), run, &|_| true);
    updated.map(|(text, _)| text).map_err(|error| error.to_string())
}

#[test]
fn updates_numbers_and_adds_missing_budgets_only() {
    let now = update(SUITE, &run()).unwrap();
    insta::assert_snapshot!(diff(SUITE, &now, Path::new("s.yaml")));
    // A second update changes nothing. A file without budgets gets them at its end.
    assert_eq!(update(&now, &run()).unwrap(), now);
    let (bare, _) = SUITE.split_once("# The old").unwrap();
    let with = update(bare.trim_end(), &run()).unwrap();
    assert!(
        with.starts_with(bare.trim_end()) && with.contains("\nbudgets:\n  - kernels: [\"6.1\"]\n"),
        "{with}"
    );
    assert_eq!(diff(&with, &update(&with, &run()).unwrap(), Path::new("s.yaml")), "");
    // Unindented entries are a list as well.
    let margin = format!(
        "{bare}budgets:\n- wasted: {{ fexit: {{ any: 1 }} }}\ntolerance: {{ trigger: 1 }}\n"
    );
    let with = update(&margin, &run()).unwrap();
    assert!(with.contains("any: 11 } }\n- kernels: [\"6.1\"]\n  arch: [x86_64]\n"), "{with}");
    assert!(with.ends_with("\ntolerance: { trigger: 1 }\n"), "{with}");
}

/// Adds one to every metric of every cell: only the changed cell fails.
#[test]
fn passes_the_run_and_fails_anything_worse() {
    let suite: Suite = config::parse(&update(SUITE, &run()).unwrap(), Path::new("s.yaml")).unwrap();
    let judge = |cell: &Cell| {
        let holds = |budget: &&Budget| budget.holds_for(cell.id.arch, &cell.id.kernel, true);
        let mut budgets: Vec<Budget> = suite.budgets.iter().filter(holds).cloned().collect();
        // As in a plan: do not judge attaching by the host's clock.
        budgets.iter_mut().for_each(|budget| budget.most.retain(|bounded, _| *bounded != wide()));
        budget::judge(cell, &budgets, suite.tolerance)
    };
    let (mut worse, mut bounded) = (0, 0);
    for cell in run().cells {
        assert_eq!(judge(&cell), Outcome::Pass, "{}", cell.id.name());
        for change in [one_more_record, one_more_instruction, two_per_cent_more] {
            let mut changed = cell.clone();
            if change(&mut changed) {
                let outcome = judge(&changed);
                assert!(matches!(outcome, Outcome::Fail { .. }), "{}: {outcome:?}", cell.id.name());
                worse += 1;
            }
        }
        bounded += lbr_waste::wasted(&cell).len() + counted(&cell, &run()).len();
    }
    assert!(worse >= 10 && bounded >= 20, "{worse} {bounded}");
}

fn wide() -> Bounded {
    "attach.fentry.1000.attach.instructions".parse().unwrap()
}

/// Repeats the newest record.
fn one_more_record(cell: &mut Cell) -> bool {
    let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { return false };
    let twice = |point: &mut CapturePoint| point.records.insert(0, point.records[0].clone());
    waste.points.iter_mut().for_each(twice);
    true
}

fn one_more_instruction(cell: &mut Cell) -> bool {
    let Some(Measurement::Trigger(Trigger { cost: Some(cost), .. })) = &mut cell.measurement else {
        return false;
    };
    cost.parts[0].instructions += 1;
    true
}

fn two_per_cent_more(cell: &mut Cell) -> bool {
    let Some(Measurement::Attach(attach)) = &mut cell.measurement else { return false };
    let exact = attach.explained.iter_mut().filter(|one| one.clock == Clock::Exact);
    exact.map(|one| one.totals.task += one.totals.task / 50).count() > 0
}

#[test]
fn rejects_runs_that_are_no_baseline() {
    type Change = fn(&mut Run);
    let table: [(&str, Change, &str); 7] = [
        ("interrupted", |run| run.interrupted = true, "was interrupted"),
        ("killed", |run| run.finished = None, "was interrupted"),
        ("an error", |run| run.cells = stored().cells, "x86_64/6.1/tcg/fault/panic"),
        ("another suite", |run| run.suite.name = "waste".to_owned(), "is of the suite `waste`"),
        ("nothing", |run| run.cells.retain(|cell| cell.measurement.is_none()), "measured nothing"),
        ("a series", |run| run.series = tramplab_testdata::series().series, "is of a series"),
        (
            "a lost function",
            |run| {
                let is_it =
                    |id: &CellId| id.kernel == "6.12" && id.test.name() == "lbr_waste/fentry";
                let cell = run.cells.iter_mut().find(|cell| is_it(&cell.id)).unwrap();
                let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else {
                    panic!("no waste")
                };
                waste.function.end = waste.function.start;
            },
            "s.yaml:15: no record of `x86_64/6.12/tcg/lbr_waste/fentry` touches",
        ),
    ];
    for (name, change, words) in table {
        let mut run = run();
        change(&mut run);
        let error = update(SUITE, &run).unwrap_err();
        assert!(error.contains(words), "{name}: {error}");
    }
}

#[test]
fn leaves_out_what_the_suite_would_be_rejected_with() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.yaml");
    let text = "name: stored\ndescription: d\nkernels: [\"6.1\"]\ntests:\n\
                \x20 - lbr_waste: { mechanisms: [fexit] }\n";
    let (now, left_out) = updated(text, &path, &run(), &|name| name == "7.2").unwrap();
    let is_left_out = |name: &str| left_out.iter().any(|left| left == name);
    assert!(is_left_out("x86_64/6.12/tcg/lbr_waste/fexit"), "another kernel: {left_out:?}");
    assert!(is_left_out("x86_64/6.1/tcg/trigger/fexit"), "another test: {left_out:?}");
    assert!(!is_left_out("x86_64/6.1/tcg/lbr_waste/fexit"), "{left_out:?}");
    std::fs::write(&path, &now).unwrap();
    let budgets = crate::load(&path, &|_| None).unwrap().budgets;
    assert!(budgets.len() == 1 && budgets[0].wasted.len() == 1, "{now}");
}

#[test]
fn names_the_line_that_cannot_be_rewritten() {
    let (head, _) = SUITE.split_once("budgets:").unwrap();
    for (budgets, words) in [
        ("budgets: []\n", "s.yaml:9: expected the budgets as a list"),
        (
            "budgets: [{ wasted: { fexit: { any: 90 } } }]\n",
            "s.yaml:9: expected the budgets as a list",
        ),
        (
            "budgets:\n  - wasted: { fexit: { any: 0x3 } }\n",
            "s.yaml:10: a budget that is no plain number",
        ),
        (
            "budgets:\n  - wasted: { fexit: { any: &a 3 } }\n  - wasted: { fentry: { any: *a } }\n",
            "a budget that is no plain number",
        ),
        ("budgets:\n  - wasted: { fexit: { any: 3 } }\n  tests: []\n", "s.yaml:11"),
    ] {
        let error = update(&format!("{head}{budgets}"), &run()).unwrap_err();
        assert!(error.contains(words), "{budgets}: {error}");
    }
}

/// On arm64 a hit without the exact clock may have other instructions at the next boot.
#[test]
fn sets_no_budget_for_numbers_that_do_not_repeat() {
    let mut run = run();
    for cell in &mut run.cells {
        cell.id.arch = Arch::Arm64;
    }
    run.machines[0].arch = Arch::Arm64;
    run.kernels.iter_mut().for_each(|kernel| kernel.arch = Arch::Arm64);
    let text =
        "name: stored\ndescription: d\nkernels: [a]\ntests:\n  - trigger: { mechanisms: all }\n";
    let error = update(text, &run).unwrap_err();
    assert!(error.contains("no number of the run"), "{error}");
    let times = |cell: &mut Cell| {
        if let Some(Measurement::Trigger(trigger)) = &mut cell.measurement {
            trigger.attached_ns.clear();
            trigger.detached_ns.clear();
        }
    };
    run.cells.iter_mut().for_each(times);
    assert!(update(text, &run).unwrap().contains("trigger.fexit.instructions: 190"));
}

#[test]
fn sets_no_budget_for_hardware_records() {
    let mut run = run();
    let is_waste = |cell: &Cell| matches!(cell.measurement, Some(Measurement::LbrWaste(_)));
    run.cells.retain(is_waste);
    assert!(update(SUITE, &run).unwrap().contains("fexit"));
    for cell in &mut run.cells {
        let Some(Measurement::LbrWaste(waste)) = &mut cell.measurement else { unreachable!() };
        waste.source = BranchSource::Hardware;
    }
    assert!(update(SUITE, &run).unwrap_err().contains("measured nothing that repeats"));
}

/// A budget without kernels is for those that boot as usual, and a CPU's kernel gets its own.
#[test]
fn keeps_the_numbers_of_a_cpu_apart() {
    let mut run = run();
    let usual = update(SUITE, &run).unwrap();
    let zen4 = |name: &str| format!("{name}+zen4");
    let mut kernels = run.kernels.clone();
    for kernel in &mut kernels {
        kernel.configuration = Some(Default::default());
        kernel.name = zen4(&kernel.name);
    }
    let mut cells = run.cells.clone();
    for cell in &mut cells {
        cell.id.kernel = zen4(&cell.id.kernel);
        one_more_record(cell);
    }
    let names: Vec<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    run.kernels.extend(kernels);
    run.cells.extend(cells);
    let both = update(SUITE, &run).unwrap();
    let lines: Vec<&str> = both.lines().collect();
    let kept = usual.lines().filter(|line| lines.contains(line)).count();
    assert_eq!(kept, usual.lines().count(), "{both}");
    for name in names {
        assert!(both.contains(&format!("kernels: [\"{name}\"]")), "{name}: {both}");
    }
}
