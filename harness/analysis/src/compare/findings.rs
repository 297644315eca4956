// SPDX-License-Identifier: MIT OR Apache-2.0
//! The causes of what changed, each told once: records that came or went together, and code before
//! a record that grew or shrank, explain the metrics of all mechanisms in whose hits they are.

use super::{
    Change, Compared, Listings, Pair, Subject, Value, Verdict,
    hunk::{Hunk, hunks},
    kinds,
};
use crate::branch::Model;
use tramplab_model::kinds::{
    Metric,
    trigger::{self, Cost},
};

/// One cause, with the metrics that it moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub cause: Cause,
    /// In the order of the comparison.
    pub moved: Vec<Share>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// In the order of a hit.
    Code(Vec<Change>),
    /// No record that came or went explains it.
    Unknown,
}

/// What one cause did to a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    pub metric: Metric,
    pub verdict: Verdict,
    /// In the metric's unit. None if the metric's change is not counted.
    pub change: Option<i64>,
}

/// A changed metric with the hunks of its code.
#[derive(Debug)]
struct Evidence {
    share: Share,
    /// With what each adds to the metric, if its records tell.
    hunks: Vec<(Vec<Change>, Option<i64>)>,
}

pub(super) fn of(
    metrics: &[Compared],
    pairs: &[Pair],
    listings: &[Listings],
    model: Model,
) -> Vec<Finding> {
    let is_changed =
        |compared: &&Compared| matches!(compared.verdict, Verdict::Better | Verdict::Worse);
    let changed = metrics.iter().filter(is_changed);
    grouped(changed.map(|compared| evidence(compared, pairs, listings, model)).collect())
}

/// The change of a metric that is a count.
fn counted(compared: &Compared) -> Option<i64> {
    match (&compared.base, &compared.head) {
        (Value::Records(Some(base)), Value::Records(Some(head)))
        | (Value::Count(base), Value::Count(head)) => {
            Some(i64::from(*head).saturating_sub(i64::from(*base)))
        }
        _ => None,
    }
}

fn evidence(compared: &Compared, pairs: &[Pair], listings: &[Listings], model: Model) -> Evidence {
    let share = Share {
        metric: compared.metric,
        verdict: compared.verdict.clone(),
        change: counted(compared),
    };
    let found: Vec<Hunk> = match compared.metric {
        Metric::LbrWaste(metric) => {
            let is_it = |pair: &&Pair| pair.base.id.test == compared.metric.test();
            let pair = pairs.iter().find(is_it);
            let all = pair.map_or_else(Vec::new, |pair| {
                kinds::waste_listings(metric.test(), pair, model, metric.filter, usize::MAX)
            });
            let of_row = |listings: &&Listings| listings.subject == Subject::Waste(metric.row);
            all.iter().filter(of_row).flat_map(|listings| hunks(&listings.rows)).collect()
        }
        Metric::Trigger(metric) => {
            let is_it = |listings: &&Listings| matches!(listings.subject, Subject::Trigger(test, _) if test == metric.test);
            listings.iter().filter(is_it).flat_map(|listings| hunks(&listings.rows)).collect()
        }
        _ => Vec::new(),
    };
    let adds = |hunk: &Hunk| match compared.metric {
        Metric::Trigger(trigger::Metric { cost: Cost::Instructions, .. }) => {
            Some(hunk.instructions)
        }
        Metric::Trigger(trigger::Metric { cost: Cost::Branches, .. }) | Metric::LbrWaste(_) => {
            Some(hunk.records)
        }
        _ => None,
    };
    let hunks = found.into_iter().map(|hunk| (hunk.changes.clone(), adds(&hunk)));
    Evidence { share, hunks: hunks.filter(|(_, adds)| *adds != Some(0)).collect() }
}

/// Makes one finding of all hunks that have a change in common, and one of what they leave of each
/// metric's change.
fn grouped(all: Vec<Evidence>) -> Vec<Finding> {
    let mut groups: Vec<Vec<Change>> = Vec::new();
    let hunks = all.iter().flat_map(|evidence| &evidence.hunks).map(|(changes, _)| changes);
    for changes in hunks.filter(|changes| !changes.is_empty()) {
        let mut merged = Vec::new();
        groups.retain_mut(|group| {
            let is_met =
                changes.iter().any(|one| group.iter().any(|other| one.is_of_one_cause(other)));
            if is_met {
                merged.append(group);
            }
            !is_met
        });
        for change in changes {
            if !merged.contains(change) {
                merged.push(change.clone());
            }
        }
        groups.push(merged);
    }
    let mut findings: Vec<Finding> = groups
        .into_iter()
        .map(|changes| Finding { cause: Cause::Code(changes), moved: Vec::new() })
        .collect();
    let mut unknown = Finding { cause: Cause::Unknown, moved: Vec::new() };
    for Evidence { share, hunks } in all {
        let mut explained = 0i64;
        for (finding, adds) in added(&findings, &hunks, share.change) {
            explained = explained.saturating_add(adds);
            let share = Share { change: Some(adds), ..share.clone() };
            findings[finding].moved.push(share);
        }
        let left = share.change.map(|change| change.saturating_sub(explained));
        if left != Some(0) {
            unknown.moved.push(Share { change: left, ..share });
        }
    }
    findings.retain(|finding| !finding.moved.is_empty());
    findings.extend((!unknown.moved.is_empty()).then_some(unknown));
    findings
}

/// The findings of a metric's hunks, with what each adds. If the records do not tell, all that
/// differs in the hit must be of one finding.
fn added(
    findings: &[Finding],
    hunks: &[(Vec<Change>, Option<i64>)],
    change: Option<i64>,
) -> Vec<(usize, i64)> {
    let of = |index: usize| match &findings[index].cause {
        Cause::Code(changes) => hunks
            .iter()
            .filter(|(of, _)| of.first().is_some_and(|one| changes.contains(one)))
            .map(|(_, adds)| *adds)
            .collect(),
        Cause::Unknown => Vec::new(),
    };
    let all = (0..findings.len()).map(|index| (index, of(index)));
    let all: Vec<(usize, Vec<Option<i64>>)> = all.filter(|(_, adds)| !adds.is_empty()).collect();
    match (&all[..], change) {
        ([(index, adds)], Some(change)) if adds.contains(&None) => vec![(*index, change)],
        _ => {
            let sum =
                |adds: Vec<Option<i64>>| adds.into_iter().flatten().fold(0i64, i64::saturating_add);
            let all = all.into_iter().map(|(index, adds)| (index, sum(adds)));
            all.filter(|(_, adds)| *adds != 0).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{ChangeKind, listing::PROGRAM, walk, whole};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tramplab_testdata::{each_alone, series};

    fn change(kind: ChangeKind, from: &str, to: &str) -> Change {
        Change { kind, from: from.to_owned(), to: to.to_owned() }
    }

    /// All changes of all metrics are told, each change of the code once.
    fn check(findings: &[Finding], changed: &[(Metric, Option<i64>)]) {
        let mut sums: BTreeMap<String, Option<i64>> = BTreeMap::new();
        for Share { metric, change, .. } in findings.iter().flat_map(|finding| &finding.moved) {
            let sum = sums.entry(metric.to_string()).or_insert(Some(0));
            *sum = sum.zip(*change).map(|(sum, change)| sum + change);
        }
        let expected = changed.iter().map(|(metric, change)| (metric.to_string(), *change));
        assert_eq!(sums, expected.collect(), "{findings:#?}");
        let mut seen = Vec::new();
        for finding in findings {
            assert!(!finding.moved.is_empty(), "{finding:?}");
            match &finding.cause {
                Cause::Code(changes) => {
                    assert!(!changes.is_empty());
                    for change in changes {
                        assert!(!seen.contains(&change), "{change:?} twice: {findings:#?}");
                        seen.push(change);
                    }
                }
                Cause::Unknown => assert_eq!(findings.last(), Some(finding)),
            }
        }
    }

    #[test]
    fn recorded_series_have_their_causes() {
        for run in each_alone().iter().chain([&series()]) {
            for series in &run.series {
                let mut all = walk(run, series, None);
                all.push(whole(run, series, None));
                for comparison in all {
                    let changed = comparison.metrics.iter().filter(|compared| {
                        matches!(compared.verdict, Verdict::Better | Verdict::Worse)
                    });
                    let changed: Vec<_> =
                        changed.map(|compared| (compared.metric, counted(compared))).collect();
                    check(&comparison.findings, &changed);
                }
            }
        }
    }

    /// The shipped series `lbr-helpers`: each patch inlines one helper.
    #[test]
    fn each_patch_is_one_finding_in_all_mechanisms() {
        use ChangeKind::{Came, Went};
        let (processor, snapshot) = ("bpf_get_smp_processor_id", "bpf_get_branch_snapshot");
        let run = series();
        let steps = walk(&run, &run.series[0], None);
        let [first, second] = &steps[..] else { panic!("two patches") };
        for (comparison, expected, any) in [
            (first, vec![change(Went, PROGRAM, processor), change(Went, processor, PROGRAM)], -2),
            (
                second,
                vec![
                    change(Went, PROGRAM, snapshot),
                    change(Went, snapshot, "perf_snapshot_branch_stack"),
                    change(Came, PROGRAM, "__static_call_return0"),
                ],
                -1,
            ),
        ] {
            let [Finding { cause, moved }] = &comparison.findings[..] else {
                panic!("{:?}", comparison.findings)
            };
            assert_eq!(*cause, Cause::Code(expected));
            for row in ["fexit", "kretprobe_multi"] {
                let name = format!("lbr_waste.{row}.any");
                let share = moved.iter().find(|share| share.metric.to_string() == name);
                assert_eq!(share.and_then(|share| share.change), Some(any), "{name}");
            }
        }
    }

    /// What nothing in the code explains stays, with its size.
    #[test]
    fn attach_times_have_no_known_cause() {
        let [run, ..] = each_alone();
        let found = whole(&run, &run.series[0], None).findings;
        assert!(found.iter().any(|finding| finding.cause == Cause::Unknown), "{found:?}");
    }

    fn evidence() -> impl Strategy<Value = Vec<Evidence>> {
        let functions = || prop::sample::select(vec!["a", "b", "c", "d"]);
        let kind =
            prop::sample::select(vec![ChangeKind::Came, ChangeKind::Went, ChangeKind::Resized]);
        let change =
            (kind, functions(), functions()).prop_map(|(kind, from, to)| change(kind, from, to));
        let adds =
            prop::option::weighted(0.8, (-5i64..5).prop_filter("it adds", |adds| *adds != 0));
        let hunks = prop::collection::vec((prop::collection::vec(change, 0..4), adds), 0..4);
        let metrics = ["lbr_waste.fexit.any", "lbr_waste.kprobe.call", "trigger.fentry.reads"];
        let change = (-9i64..9).prop_filter("it changed", |change| *change != 0);
        let all = prop::collection::vec((hunks, prop::option::weighted(0.8, change)), 0..4);
        all.prop_map(move |all| {
            let one = |(name, (hunks, change)): (&str, _)| Evidence {
                share: Share { metric: name.parse().unwrap(), verdict: Verdict::Worse, change },
                hunks,
            };
            metrics.into_iter().zip(all).map(one).collect()
        })
    }

    proptest! {
        #[test]
        fn shares_add_up_and_no_change_is_told_twice(all in evidence()) {
            let changed = all.iter().map(|evidence| (evidence.share.metric, evidence.share.change));
            let changed: Vec<_> = changed.collect();
            check(&grouped(all), &changed);
        }
    }
}
