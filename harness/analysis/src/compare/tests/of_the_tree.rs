// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cells of the tree's own tests.

use super::*;
use tramplab_model::kinds::{bench, test_progs};

/// A cell of one of the tree's own tests, on `kernel`.
fn own_test(
    kernel: &str,
    accel: Accel,
    test: Test,
    measured: Result<Measurement, Outcome>,
) -> Cell {
    let id = CellId { kernel: kernel.to_owned(), arch: Arch::X86_64, accel, test };
    let mut cell = Cell { duration_ms: 1, ..Cell::without_result(id, Outcome::Pass) };
    match measured {
        Ok(measurement) => {
            // As the cell would judge itself.
            let failed =
                matches!(&measurement, Measurement::TestProgs(test) if test.end == End::Fail);
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

/// A test for each pair of ends of base and head, on the kernels of the recorded series.
fn with_each_pair_of_ends() -> (Run, [String; 2]) {
    let test = |name: &str| Test::TestProgs(test_progs::Test { test: name.parse().unwrap() });
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
    let skip = || Err(Outcome::Skip { reason: tramplab_model::tree_tests::absent("test", "new") });
    let denied = || Err(Outcome::Skip { reason: "denied by DENYLIST:1 (`allowed`)".to_owned() });
    let error =
        || Err(Outcome::Error { kind: ErrorKind::Guest, message: "killed by SIGSEGV".to_owned() });
    let (ok, fail) = (End::Ok, End::Fail);
    // The test is ok, but a subtest no longer runs.
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
    (run, [base, head])
}

#[test]
fn fails_tests_of_the_tree_that_got_worse_and_names_new_ones() {
    let (mut run, [base, head]) = with_each_pair_of_ends();
    let comparison = whole(&run, &run.series[0], None);
    for (name, expected) in [
        ("kept", SAME),
        ("fewer", Verdict::Worse),
        ("broken", Verdict::Worse),
        ("mended", Verdict::Better),
    ] {
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
    let reason_of =
        |index| run.cells_of(Arch::X86_64, &head).nth(index).unwrap().outcome.reason().unwrap();
    assert_eq!(
        reason_of(1),
        format!("test_progs.fewer.result is worse than on {base}: ok (1 ok) -> ok")
    );
    let broken = run.cells_of(Arch::X86_64, &head).nth(2).unwrap();
    let Outcome::Fail { reasons } = &broken.outcome else { panic!("{:?}", broken.outcome) };
    assert_eq!(reasons[0], "test_progs says that it fails, of its subtests sub");
    assert_eq!(
        reasons[1],
        format!("test_progs.broken.result is worse than on {base}: ok (1 ok) -> fail")
    );
}

/// Half the rate in six boots each: a verdict under KVM, never one under TCG.
#[test]
fn judges_throughput_only_under_kvm() {
    let test = || Test::Bench(bench::Test { benchmark: "trig-fentry".parse().unwrap() });
    let bench = |factor: f64| {
        let boots = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]
            .map(|rate| BenchBoot { hits: vec![rate * factor; 3] });
        Ok(Measurement::Bench(Bench { producers: 1, boots: boots.to_vec() }))
    };
    for (accel, head, expected) in [
        (Accel::Kvm, 0.5, Some(Verdict::Worse)),
        (Accel::Kvm, 2.0, Some(Verdict::Better)),
        (Accel::Kvm, 1.0, Some(Verdict::NoDifferenceSeen)),
        (Accel::Tcg, 0.5, None),
    ] {
        let [a, b] = [("a", 1.0), ("b", head)]
            .map(|(kernel, factor)| own_test(kernel, accel, test(), bench(factor)));
        let pairs = pair_up(&[&a], &[&b]);
        let comparison = interleaved(&pairs);
        let compared = verdict(&comparison, "bench.trig-fentry.rate");
        match expected {
            Some(expected) => assert_eq!(compared.verdict, expected, "{accel:?} {head}"),
            None => assert!(matches!(compared.verdict, Verdict::NotJudged(_))),
        }
        assert_eq!("bench.trig-fentry.rate".parse::<Metric>().unwrap(), compared.metric);
    }
}

/// One second in three has a hit, so it counts as measured, but the median is 0.
#[test]
fn judges_guests_in_which_almost_nothing_ran() {
    let test = || Test::Bench(bench::Test { benchmark: "trig-fentry".parse().unwrap() });
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
        let comparison = interleaved(&pairs);
        let compared = verdict(&comparison, "bench.trig-fentry.rate");
        match expected {
            Some(expected) => assert_eq!(compared.verdict, expected, "{base} {head}"),
            None => {
                assert!(matches!(compared.verdict, Verdict::NotJudged(_)), "{:?}", compared.verdict)
            }
        }
    }
}

/// A run names only the first subtests, so the names may differ.
#[test]
fn compares_numbers_of_subtests_if_some_are_unnamed() {
    let test = |ok: &[&str], more: u32| {
        let subtests =
            ok.iter().map(|&name| Subtest { name: name.to_owned(), end: End::Ok }).collect();
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
        let id = || Test::TestProgs(test_progs::Test { test: "t".parse().unwrap() });
        let [a, b] =
            [("a", base), ("b", head)].map(|(kernel, ran)| own_test(kernel, Accel::Tcg, id(), ran));
        let comparison = interleaved(&pair_up(&[&a], &[&b]));
        let compared = verdict(&comparison, "test_progs.t.result");
        assert_eq!(compared.verdict, expected, "{} {}", compared.base, compared.head);
    }
}
