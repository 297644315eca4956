// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded runs of the shipped series on 7.2, each alone: they keep their claims.

use super::*;
use tramplab_testdata::each_alone;

/// The change of a number of instructions, base to head, in per cent.
fn percent(comparison: &Comparison, name: &str) -> f64 {
    let compared = verdict(comparison, name);
    let [base, head] = [&compared.base, &compared.head].map(|value| match value {
        Value::InPhase { count, repeats: true, .. } => *count as f64,
        other => panic!("{name}: {other}"),
    });
    (head - base) / base * 100.0
}

fn nanoseconds(value: &Value) -> u64 {
    match value {
        Value::Waiting(waiting) => waiting.median,
        other => panic!("{other}"),
    }
}

#[test]
fn each_series_alone_keeps_its_claim() {
    let [single, lookups, hash] = each_alone().map(|run| of_series(&run, whole));
    for (comparison, name, expected, judged) in [
        (&single, "attach.fentry.1.attach.instructions", 6, Verdict::Worse),
        (&single, "attach.fentry.100.attach.instructions", 61, Verdict::Worse),
        (&lookups, "attach.fentry.100.attach.instructions", -36, Verdict::Better),
        (&lookups, "attach.fentry.100.detach.instructions", -36, Verdict::Better),
        (&hash, "attach.fentry_multi.10000.attach.instructions", -5, Verdict::Better),
        (&hash, "attach.fentry_multi.10000.detach.instructions", -22, Verdict::Better),
    ] {
        assert_eq!(percent(comparison, name).round() as i64, expected, "{name}");
        assert_eq!(verdict(comparison, name).verdict, judged, "{name}");
    }
    // Without single direct ops nearly all of detaching is waiting; with them nearly nothing is.
    let detach = verdict(&single, "attach.fentry.100.detach.exact");
    let work = verdict(&single, "attach.fentry.100.detach.instructions");
    let waiting = |time: &Value, work: &Value| match work {
        // An instruction takes a nanosecond of the exact clock.
        Value::InPhase { count, .. } => 1.0 - *count as f64 / nanoseconds(time) as f64,
        other => panic!("{other}"),
    };
    assert!(waiting(&detach.base, &work.base) > 0.95);
    assert!(waiting(&detach.head, &work.head) < 0.02);
    // The trial takes back most of what single direct ops cost.
    let name = "attach.fentry.100.attach.instructions";
    let count = |value: &Value| value.to_string().parse::<f64>().unwrap();
    let before = count(&verdict(&single, name).base);
    let mended = count(&verdict(&lookups, name).head);
    assert_eq!(((mended - before) / before * 100.0).round() as i64, 3);
}

/// 7.2 as it is is the head of one run and the base of another, each in guests of its own.
#[test]
fn exact_numbers_of_one_kernel_are_equal_in_two_runs() {
    let [single, lookups, _] = each_alone().map(|run| of_series(&run, whole));
    assert_eq!(single.head, lookups.base);
    let mut compared = 0;
    for ours in &single.metrics {
        let theirs = verdict(&lookups, &ours.metric.to_string());
        assert_eq!(ours.head, theirs.base, "{}", ours.metric);
        compared += 1;
    }
    assert_eq!(compared, 21);
}
