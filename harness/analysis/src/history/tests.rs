// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histories of a recorded series whose three kernels are taken for commits.

use super::*;
use tramplab_model::{
    program::Program,
    run::{AttachBoot, ErrorKind, Measurement as Measured},
};
use tramplab_protocol::{Mechanism, message::AttachRound};
use tramplab_testdata::{commit as run, commits as runs};

fn found(runs: &[Run], metric: &str) -> History {
    let query = Query { metrics: vec![metric.parse().unwrap()], ..Query::default() };
    let mut found = of(runs, None, &query);
    assert_eq!((found.histories.len(), found.left_out.len()), (1, 0), "{metric}");
    found.histories.remove(0)
}

/// Each row's value and step.
fn shape(history: &History) -> Vec<String> {
    let step = |row: &MetricRow| {
        row.step.as_ref().map_or("", |step| if step.worse { " worse" } else { " better" })
    };
    let value = |row: &MetricRow| match &row.value {
        Measurement::Value(value) => value.to_string(),
        Measurement::None(ending) => ending.clone(),
    };
    history.rows.iter().map(|row| format!("{}{}", value(row), step(row))).collect()
}

#[test]
fn an_exact_metric_steps_at_every_change() {
    let runs = runs(&[0, 0, 1, 2, 2, 1]);
    let history = found(&runs, "lbr_waste.fexit.any");
    assert_eq!(shape(&history), ["12", "12", "10 better", "9 better", "9", "10 worse"]);
    assert_eq!(history.line.kernel, "linux");
    assert_eq!(history.newest_step().map(|step| (step.worse, step.since)), Some((true, 4)));
    assert_eq!(found(&runs[..5], "lbr_waste.fexit.any").newest_step(), None);
    // No kernel has a record of a conditional branch that touches the function.
    assert_eq!(shape(&found(&runs, "lbr_waste.fexit.cond")), ["-"; 6]);
    // Any union can be named, also one that no table shows and that the runs did not record.
    for union in ["any_call|cond", "call|ind_jump"] {
        let history = found(&runs, &format!("lbr_waste.fexit.{union}"));
        assert_eq!(history.rows.iter().filter(|row| row.step.is_some()).count(), 3, "{union}");
    }
}

/// Each step has the causes that the comparison of its two kernels has.
#[test]
fn a_step_has_its_causes() {
    let runs = runs(&[0, 1, 2]);
    let history = found(&runs, "lbr_waste.fexit.any");
    let steps: Vec<&Step> = history.rows.iter().filter_map(|row| row.step.as_ref()).collect();
    let series = tramplab_testdata::series();
    let walked = crate::compare::walk(&series, &series.series[0], None);
    assert_eq!((steps.len(), walked.len()), (2, 2));
    for (step, comparison) in steps.iter().zip(&walked) {
        let [finding] = &step.findings[..] else { panic!("{step:?}") };
        assert_eq!(finding.cause, comparison.findings[0].cause);
        let [share] = &finding.moved[..] else { panic!("{finding:?}") };
        assert_eq!(share.metric, history.metric);
    }
}

#[test]
fn a_history_that_no_run_continues_is_forgotten() {
    let mut runs = runs(&[2, 1, 1]);
    let is_worse = |runs: &[Run]| {
        let now = OffsetDateTime::parse("2027-01-01T00:00:00Z", &Rfc3339).unwrap();
        let found = of(runs, None, &Query { now: Some(now), ..Query::default() });
        let fexit = found.histories.into_iter().find(|history| {
            history.metric.to_string() == "lbr_waste.fexit.any" && history.line.suite == "fixture"
        });
        fexit.unwrap().newest_step().is_some_and(|step| step.worse)
    };
    assert!(is_worse(&runs[..2]));
    // Another suite goes on without it.
    runs[2].suite.name = "other".to_owned();
    for (day, expected) in [("2026-11-03", true), ("2026-12-02", true), ("2026-12-03", false)] {
        runs[2].started = format!("{day}T10:00:00Z");
        assert_eq!(is_worse(&runs), expected, "{day}");
    }
    // A wrong clock.
    runs[2].started = "9999-01-01T10:00:00Z".to_owned();
    assert!(is_worse(&runs));
}

/// Each change is within the tolerance, but their sum is not.
#[test]
fn finds_a_slow_drift() {
    let mut runs = runs(&[2; 7]);
    for (number, run) in runs.iter_mut().enumerate() {
        for cell in &mut run.cells {
            let Some(Measured::Attach(attach)) = &mut cell.measurement else { continue };
            let task = attach.explained.iter_mut().map(|one| &mut one.totals.task);
            task.for_each(|task| *task += *task / 250 * number as u64);
        }
    }
    let history = found(&runs, "attach.kprobe_multi.10.attach.instructions");
    let steps: Vec<usize> = (0..7).filter(|&row| history.rows[row].step.is_some()).collect();
    assert_eq!(runs[0].tolerance.exact_percent, 0.5);
    assert_eq!(steps, [2, 4, 6], "{:?}", shape(&history));
    // As in a comparison, nothing judges what has the idle loop in it.
    let history = found(&runs, "attach.kprobe_multi.10.attach.instructions_of_all");
    assert!(history.rows.len() > 1 && history.rows.iter().all(|row| row.step.is_none()));
}

#[test]
fn merges_runs_of_one_commit_only_if_they_agree() {
    let mut all = runs(&[2, 2, 2, 2]);
    for (number, run) in all.iter_mut().enumerate() {
        // The same commit, built and measured again. The last result differs.
        *run = Run {
            id: run.id.clone(),
            started: run.started.clone(),
            ..self::run(7, if number == 3 { 1 } else { 2 })
        };
    }
    let history = found(&all, "lbr_waste.fexit.any");
    assert_eq!(shape(&history), ["9", "10 worse"]);
    assert_eq!(history.rows[0].runs, ["run-0", "run-1", "run-2"]);
}

#[test]
fn merges_no_runs_of_different_programs() {
    let rows = |digests: [&str; 2]| {
        let mut all = runs(&[2, 2]);
        for (run, sha256) in all.iter_mut().zip(digests) {
            *run = Run { id: run.id.clone(), started: run.started.clone(), ..self::run(7, 2) };
            for cell in &mut run.cells {
                if let Test::LbrWaste(test) = &mut cell.id.test {
                    test.program = Some("p".parse().unwrap());
                }
            }
            run.programs = vec![Program {
                name: "p".parse().unwrap(),
                mechanism: Mechanism::Fexit,
                file: "p.bpf.o".to_owned(),
                sha256: sha256.to_owned(),
                instructions: 2,
                globals: Default::default(),
            }];
        }
        found(&all, "lbr_waste.fexit=p.any").rows.len()
    };
    assert_eq!((rows(["a", "a"]), rows(["a", "b"])), (1, 2));
}

/// The row names another QEMU or plugin, which may cause the step. Another machine is another
/// history.
#[test]
fn names_differences_in_how_rows_were_measured() {
    let mut all = runs(&[0, 0, 1, 1]);
    all[2].machines[0].qemu = Some("QEMU emulator version 10.1.0".to_owned());
    all[2].machines[0].plugin_sha256 = Some("ab".repeat(32));
    all[3].machines = all[2].machines.clone();
    let history = found(&all, "lbr_waste.fexit.any");
    let marked: Vec<usize> = history.rows.iter().map(|row| row.otherwise.len()).collect();
    assert_eq!(marked, [0, 0, 2, 0], "{:?}", history.rows);

    all[3].host.cpu = "another".to_owned();
    let time = found(&all, "attach.kprobe_multi.10.attach");
    assert!(time.rows[3].otherwise[0].contains("different hosts"), "{:?}", time.rows[3].otherwise);

    let is_timed =
        |cell: &&mut tramplab_model::run::Cell| cell.id.test.name() == "attach/kprobe.multi/10";
    all[1].cells.iter_mut().filter(is_timed).for_each(|cell| cell.add_clock_source("hpet"));
    let time = found(&all, "attach.kprobe_multi.10.attach");
    assert_eq!(
        time.rows[1].otherwise,
        ["their guests had different clock sources: tsc and hpet, tsc"]
    );

    all[3].machines[0].memory_mib = 4096;
    let query = Query { metrics: vec!["lbr_waste.fexit.any".parse().unwrap()], ..Query::default() };
    let rows: Vec<usize> =
        of(&all, None, &query).histories.iter().map(|history| history.rows.len()).collect();
    assert_eq!(rows, [3, 1]);
}

#[test]
fn shows_failures_as_rows_without_a_level() {
    let mut all = runs(&[0, 1, 2, 0]);
    let cell =
        all[1].cells.iter_mut().find(|cell| cell.id.test.name() == "lbr_waste/fexit").unwrap();
    cell.outcome = Outcome::Error { kind: ErrorKind::Panic, message: "oh".to_owned() };
    cell.measurement = None;
    all[2].cells.retain(|cell| cell.id.test == Test::Build);
    all[2].cells[0].outcome = Outcome::Error { kind: ErrorKind::Build, message: "no".to_owned() };
    let history = found(&all, "lbr_waste.fexit.any");
    assert_eq!(shape(&history), ["12", "error: panic", "does not build", "12"]);
}

/// Scaled boots of real runs, with their scatter. From row 9 on, all take half as long again.
#[test]
fn a_time_steps_only_beyond_its_scatter() {
    let mut all = runs(&[2; 16]);
    let mut slower = all.clone();
    for (number, run) in slower.iter_mut().enumerate().skip(9) {
        for cell in &mut run.cells {
            let Some(Measured::Attach(attach)) = &mut cell.measurement else { continue };
            let rounds = attach.boots.iter_mut().flat_map(|boot: &mut AttachBoot| &mut boot.rounds);
            rounds.for_each(|round: &mut AttachRound| {
                round.attach_ns += round.attach_ns / 2 + number as u64
            });
        }
    }
    for all in [&mut all, &mut slower] {
        for (number, run) in all.iter_mut().enumerate() {
            for cell in &mut run.cells {
                let Some(Measured::Attach(attach)) = &mut cell.measurement else { continue };
                // Two of the boots each, so that medians differ like boots.
                let boots = attach.boots.clone();
                attach.boots = (0..2)
                    .map(|boot| boots[(number * 5 + boot * 3) % boots.len()].clone())
                    .collect();
            }
        }
    }
    let metric = "attach.kprobe_multi.10.attach";
    assert!(
        found(&all, metric).rows.iter().all(|row| row.step.is_none()),
        "{:?}",
        shape(&found(&all, metric))
    );
    let history = found(&slower, metric);
    let steps: Vec<usize> = (0..16).filter(|&row| history.rows[row].step.is_some()).collect();
    assert_eq!(steps, [9], "{:?}", shape(&history));
    assert!(history.rows[9].step.as_ref().unwrap().worse);
    // The fourth row of the new level reveals the step.
    assert_eq!(
        found(&slower[..12], metric).rows.iter().filter(|row| row.step.is_some()).count(),
        0
    );
    assert!(found(&slower[..13], metric).newest_step().is_some());
    assert_eq!(found(&slower[..14], metric).newest_step(), None);
}

/// With an eighth more time and a scatter of a twentieth, four rows do not show the step. It is
/// new only once.
#[test]
fn reports_a_late_step_once() {
    let scatter = [1.04, 0.95, 1.05, 0.97, 1.02, 0.96, 1.01, 1.04, 0.95, 1.03];
    let mut all = runs(&[2; 20]);
    for (number, run) in all.iter_mut().enumerate() {
        let level = if number < 10 { 10e6 } else { 11.2e6 };
        for cell in &mut run.cells {
            let Some(Measured::Attach(attach)) = &mut cell.measurement else { continue };
            let rounds = attach.boots.iter_mut().flat_map(|boot: &mut AttachBoot| &mut boot.rounds);
            rounds.for_each(|round: &mut AttachRound| {
                round.attach_ns = (level * scatter[number % 10]) as u64
            });
        }
    }
    let metric = "attach.kprobe_multi.10.attach";
    let shown = |rows: usize| found(&all[..rows], metric).rows.iter().any(|row| row.step.is_some());
    let first = (1..=20).find(|&rows| shown(rows)).unwrap();
    assert!(first > 10 + step::FEWEST, "{first}");
    let new: Vec<usize> =
        (1..=20).filter(|&rows| found(&all[..rows], metric).newest_step().is_some()).collect();
    assert_eq!(new, [first]);
}

/// A value of an axis, and the words of that value, make a line of their own.
#[test]
fn a_configuration_has_its_own_line() {
    let mut all = runs(&[0, 1, 2, 1]);
    let configure = |run: &mut Run, words: &str| {
        let kernel = &mut run.kernels[0];
        let of = kernel.name.clone();
        kernel.name = format!("{of}+a-b");
        let point = serde_json::json!({ "of": of, "settings": [], "append": [words] });
        kernel.configuration = Some(serde_json::from_value(point).unwrap());
        let name = kernel.name.clone();
        run.cells.iter_mut().for_each(|cell| cell.id.kernel.clone_from(&name));
    };
    configure(&mut all[1], "sysctl.kernel.bpf_stats_enabled=1");
    configure(&mut all[2], "sysctl.kernel.bpf_stats_enabled=1");
    configure(&mut all[3], "sysctl.net.core.bpf_jit_harden=1");
    let query = Query { metrics: vec!["lbr_waste.fexit.any".parse().unwrap()], ..Query::default() };
    let found = of(&all, None, &query).histories;
    let found: Vec<_> = found.iter().map(|one| (&*one.line.kernel, shape(one))).collect();
    let rows = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
    for expected in [
        ("linux", rows(&["12"])),
        ("linux+a-b", rows(&["10", "9 better"])),
        ("linux+a-b", rows(&["10"])),
    ] {
        assert!(found.contains(&expected), "{expected:?}: {found:?}");
    }
    assert_eq!(found.len(), 3);
}

/// Emulated records have the accelerator of virtual ones.
#[test]
fn records_of_a_driver_have_their_own_line() {
    let mut all = runs(&[0, 1, 2]);
    for cell in &mut all[1].cells {
        let Some(tramplab_model::run::Measurement::LbrWaste(waste)) = &mut cell.measurement else {
            continue;
        };
        waste.source = BranchSource::Emulated;
        waste.family = Some("intel-lbr".to_owned());
    }
    let lines = |metric: &str| -> Vec<(Option<BranchSource>, usize)> {
        let query = Query { metrics: vec![metric.parse().unwrap()], ..Query::default() };
        let found = of(&all, None, &query).histories;
        found.iter().map(|one| (one.line.of_driver, one.rows.len())).collect()
    };
    let emulated = Some(BranchSource::Emulated);
    assert_eq!(lines("lbr_waste.fexit.any"), [(None, 2), (emulated, 1)]);
    assert_eq!(lines("attach.kprobe_multi.10.attach").len(), 1);
}

#[test]
fn groups_kernels_by_name_or_repository() {
    let mut all = runs(&[0, 1, 2]);
    let kernel = &mut all[1].kernels[0];
    // An older file has a tag and a short commit. Without a commit, the name is the line.
    kernel.source = "git /src/linux v6.12-rc1 0123456789ab".to_owned();
    kernel.name = "linux-v6.12-rc1".to_owned();
    all[1].cells.iter_mut().for_each(|cell| cell.id.kernel = "linux-v6.12-rc1".to_owned());
    assert_eq!(line_of(&all[1].kernels[0]), "linux");
    all[1].kernels[0].commit = None;
    assert_eq!(line_of(&all[1].kernels[0]), "linux-v6.12-rc1");
    let of_kernel = |name: &str| {
        let query = Query {
            metrics: vec!["lbr_waste.fexit.any".parse().unwrap()],
            kernel: Some(name.to_owned()),
            ..Query::default()
        };
        of(&all, None, &query).histories.iter().map(shape).collect::<Vec<_>>()
    };
    assert_eq!(of_kernel("linux"), [["12", "9 better"]]);
    assert_eq!(of_kernel("linux-v6.12-rc1"), [["10"]]);
    assert_eq!(of_kernel("6.1"), Vec::<Vec<String>>::new());
}
