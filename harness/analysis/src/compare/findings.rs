// SPDX-License-Identifier: MIT OR Apache-2.0
//! The causes of what changed, each told once: records that came or went together, and code before
//! a record that grew or shrank, explain the metrics of all mechanisms in whose hits they are;
//! functions that execute more or fewer instructions explain those of attaching.

use super::{
    Change, Compared, Listings, Pair, Subject, Value, Verdict,
    hunk::{self, Hunk, hunks},
    kinds, listing,
    runs::Differing,
    work::{self, difference},
};
use crate::{branch::Model, profile::estimate::Term};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::Hash,
};
use tramplab_model::{
    code::{FunctionSize, TextGrowth},
    kinds::{
        Metric,
        attach::{self, Number},
        trigger::Cost,
    },
    profile::Phase,
};
use tramplab_protocol::message::Explain;

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
    /// Functions that execute more or fewer instructions as the thread attaches or detaches.
    Work(Vec<Work>),
    /// The attaching thread waits for more or fewer RCU grace periods.
    Waits,
    /// Functions that the hit or the phase runs, and whose code is longer or shorter. No record
    /// tells more.
    Size(Vec<FunctionSize>),
    /// All in which the kernels differ. No record tells more.
    Settings(Vec<Differing>),
    /// The run records none.
    Unknown,
}

/// A function, with its part in the change of each metric, in the metric's unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub function: String,
    pub parts: Vec<(Metric, i64)>,
}

/// The part of one cause in a metric's change.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    pub metric: Metric,
    pub verdict: Verdict,
    /// In the metric's unit. None if the metric's change is not counted.
    pub change: Option<i64>,
    /// The whole metric's head / base, if both are numbers.
    pub ratio: Option<f64>,
    /// How far the terms of the whole metric moved, if it is an estimate.
    pub terms: Vec<(Term, i64)>,
}

/// A changed metric with the hunks of its code.
#[derive(Debug)]
struct Evidence {
    share: Share,
    /// With what each adds to the metric, if its records tell.
    hunks: Vec<(Vec<Change>, Option<i64>)>,
    /// The part of each function, the largest first.
    work: Vec<(String, i64)>,
    /// The thread waits for more grace periods if the metric is worse, for fewer if it is better.
    waits: bool,
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
    let all = changed.map(|compared| evidence(compared, pairs, listings, model));
    let (of_work, others): (Vec<_>, Vec<_>) = all.partition(|one| !one.work.is_empty());
    let (of_waits, of_code): (Vec<_>, Vec<_>) = others.into_iter().partition(|one| one.waits);
    let mut findings = grouped(of_code);
    // A function's part of the instructions is no part of the cycles that it is estimated at.
    let (estimated, counted) = of_work.into_iter().partition(|one| one.share.metric.is_estimate());
    findings.extend([counted, estimated].into_iter().flat_map(by_work));
    let (worse, better) = of_waits.into_iter().partition(|one| one.share.verdict == Verdict::Worse);
    findings.extend([worse, better].into_iter().filter_map(by_waits));
    findings.sort_by_key(|finding| finding.cause == Cause::Unknown);
    findings
}

/// Names functions that the head's build resized, where no record tells the cause.
pub(super) fn explain_by_size(
    findings: &mut Vec<Finding>,
    pairs: &[Pair],
    listings: &[Listings],
    text: &TextGrowth,
) {
    let unknown = findings.extract_if(.., |finding| finding.cause == Cause::Unknown);
    let mut explained: Vec<Finding> = Vec::new();
    for Finding { moved, .. } in unknown.collect::<Vec<_>>() {
        let mut groups: Vec<(Vec<FunctionSize>, Vec<Share>)> = Vec::new();
        for share in moved {
            let names = functions_of(share.metric, pairs, listings);
            let is_run = |size: &&FunctionSize| names.contains(base_name(&size.name));
            let sizes: Vec<_> = text.functions.iter().filter(is_run).cloned().collect();
            match groups.iter_mut().find(|(known, _)| *known == sizes) {
                Some((_, moved)) => moved.push(share),
                None => groups.push((sizes, vec![share])),
            }
        }
        explained.extend(groups.into_iter().map(|(sizes, moved)| {
            let cause = if sizes.is_empty() { Cause::Unknown } else { Cause::Size(sizes) };
            Finding { cause, moved }
        }));
    }
    explained.sort_by_key(|finding| finding.cause == Cause::Unknown);
    findings.extend(explained);
}

/// The functions that a metric counts, as far as the cells tell.
fn functions_of(metric: Metric, pairs: &[Pair], listings: &[Listings]) -> HashSet<String> {
    let of_hit = listings.iter().filter(|listings| match (metric, listings.subject) {
        (Metric::LbrWaste(metric), Subject::Waste(row)) => metric.row == row,
        (Metric::Trigger(metric), Subject::Trigger(test, _)) => metric.test == test,
        _ => false,
    });
    let rows = of_hit.flat_map(|listings| &listings.rows);
    let lines = rows.flat_map(|row| row.base.iter().chain(&row.head));
    let mut names: HashSet<String> = lines.flat_map(listing::functions).collect();
    let pair = pairs.iter().find(|pair| pair.base.id.test == metric.test());
    if let (Metric::Attach(metric), Some(pair)) = (metric, pair)
        && let Some(phase) = profiled(metric.number)
    {
        let cells = [Some(pair.base), pair.head].into_iter().flatten();
        names.extend(cells.flat_map(|cell| work::of_cell(cell, phase)).map(|(name, _)| name));
    }
    names.into_iter().map(|name| base_name(&name).to_owned()).collect()
}

/// Without what a compiler adds to the parts and copies of a function.
fn base_name(name: &str) -> &str {
    name.split_once('.').map_or(name, |(name, _)| name)
}

/// The change of a metric that is a count, or a time that counts instructions.
fn counted(compared: &Compared) -> Option<i64> {
    match (&compared.base, &compared.head) {
        (Value::Records(Some(base)), Value::Records(Some(head)))
        | (Value::Count(base), Value::Count(head)) => {
            Some(i64::from(*head).saturating_sub(i64::from(*base)))
        }
        (Value::ExactTime(base), Value::ExactTime(head))
        | (Value::InPhase { count: base, .. }, Value::InPhase { count: head, .. }) => {
            Some(difference(*base, *head))
        }
        _ => None,
    }
}

fn evidence(compared: &Compared, pairs: &[Pair], listings: &[Listings], model: Model) -> Evidence {
    let metric = compared.metric;
    let ratio = compared.base.number().zip(compared.head.number()).map(|(base, head)| head / base);
    let ratio = ratio.filter(|ratio| ratio.is_finite());
    let (verdict, change) = (compared.verdict.clone(), counted(compared));
    let pair = pairs.iter().find(|pair| pair.base.id.test == metric.test());
    let terms = pair.map(|pair| kinds::moved_terms(metric, pair)).unwrap_or_default();
    // A hit that is estimated below 0 counts as 0, which no term tells.
    let sum = terms.iter().fold(0i64, |sum, (_, by)| sum.saturating_add(*by));
    let is_whole = change.is_some_and(|change| change.abs_diff(sum) <= terms.len() as u64);
    let terms = if is_whole { terms } else { Vec::new() };
    let share = Share { metric, verdict, change, ratio, terms };
    let hunks = match (metric, pair) {
        (Metric::LbrWaste(metric), Some(pair)) => {
            let filter = metric.filter;
            let all = kinds::waste_listings(metric.test(), pair, model, filter, hunk::MOST);
            let of_row = |listings: &&Listings| listings.subject == Subject::Waste(metric.row);
            let found = all.iter().filter(of_row).flat_map(|listings| hunks(&listings.rows));
            found.map(|hunk| (hunk.changes, Some(hunk.records))).collect()
        }
        (Metric::Trigger(metric), Some(pair)) => {
            let of_test = listings.iter().filter(|listings| match listings.subject {
                Subject::Trigger(test, _) => test == metric.test,
                Subject::Waste(_) => false,
            });
            let found = of_test.flat_map(|listings| hunks(&listings.rows));
            of_hit(metric.cost, found.collect(), pair)
        }
        _ => Vec::new(),
    };
    let work = match (metric, pair) {
        (Metric::Attach(metric), Some(pair)) => of_attaching(metric, pair, &share),
        _ => Vec::new(),
    };
    let waits = match (metric, pair) {
        (Metric::Attach(metric), Some(pair)) => is_of_waits(metric, pair, &share),
        _ => false,
    };
    let hunks = hunks.into_iter().filter(|(_, adds)| *adds != Some(0)).collect();
    Evidence { share, hunks, work, waits }
}

/// The number of waits itself, and a time that nothing else explains.
fn is_of_waits(metric: attach::Metric, pair: &Pair, share: &Share) -> bool {
    let Some(phase) = profiled(metric.number) else { return false };
    let more = work::grace_periods(pair, phase).filter(|more| *more != 0);
    let is_its = more.is_some_and(|more| (more > 0) == (share.verdict == Verdict::Worse));
    is_its
        && match metric.number {
            Number::GracePeriods(_) => true,
            Number::Time(_) => !goes_with_work(pair, phase, share),
            Number::ExactTime(_)
            | Number::Instructions { .. }
            | Number::EstimatedCycles(_)
            | Number::SystemCalls => false,
        }
}

/// The phase whose profile may explain a number.
fn profiled(number: Number) -> Option<Phase> {
    match number {
        Number::Time(phase) | Number::ExactTime(phase) => phase.profiled(),
        Number::Instructions { phase, .. }
        | Number::GracePeriods(phase)
        | Number::EstimatedCycles(phase) => Some(phase),
        Number::SystemCalls => None,
    }
}

/// Tells if the instructions of a phase changed in the direction of a time.
fn goes_with_work(pair: &Pair, phase: Phase, share: &Share) -> bool {
    work::percent(pair, phase).is_some_and(|percent| {
        percent.abs() > LEAST_PERCENT as f64 && (percent > 0.0) == (share.verdict == Verdict::Worse)
    })
}

fn by_waits(all: Vec<Evidence>) -> Option<Finding> {
    let moved: Vec<Share> = all.into_iter().map(|one| one.share).collect();
    (!moved.is_empty()).then_some(Finding { cause: Cause::Waits, moved })
}

/// The functions that explain the change. An instruction takes a nanosecond of the exact clock. A
/// time of the host's clock has no parts: the functions explain the work that goes the same way.
fn of_attaching(metric: attach::Metric, pair: &Pair, share: &Share) -> Vec<(String, i64)> {
    let is_count = matches!(metric.number, Number::GracePeriods(_));
    let Some(phase) = profiled(metric.number).filter(|_| !is_count) else { return Vec::new() };
    let of_work = || work::change(pair, phase).filter(|_| goes_with_work(pair, phase, share));
    let Some(change) = share.change.or_else(of_work) else { return Vec::new() };
    let how = match metric.number {
        Number::EstimatedCycles(_) => Explain::Estimated,
        _ => Explain::Exact,
    };
    explaining(work::by_function(pair, phase, how), change)
}

/// The functions with a part worth naming, if they explain at least half of the change.
fn explaining(mut work: Vec<(String, i64)>, change: i64) -> Vec<(String, i64)> {
    let change = i128::from(change);
    let part = |adds: i64| i128::from(adds).saturating_mul(100);
    work.retain(|(_, adds)| part(*adds).abs() >= change.abs().saturating_mul(LEAST_PERCENT));
    let known = work.iter().fold(0i128, |sum, (_, adds)| sum.saturating_add(part(*adds)));
    let explains = known.abs() >= change.abs().saturating_mul(50) && (known < 0) == (change < 0);
    if explains { work } else { Vec::new() }
}

/// Smaller parts of a change, in per cent, are of other functions.
const LEAST_PERCENT: i128 = 1;

/// Makes one finding of all metrics that a function moved in one direction.
fn by_work(all: Vec<Evidence>) -> Vec<Finding> {
    let mut groups = Groups::default();
    let key = |(function, adds): &(String, i64)| (function.clone(), *adds > 0);
    for Evidence { work, .. } in &all {
        groups.join(work.iter().map(key));
    }
    let mut findings: BTreeMap<usize, (Vec<Work>, Vec<Share>)> = BTreeMap::new();
    let mut places: HashMap<(usize, String), usize> = HashMap::new();
    for Evidence { share, work, .. } in all {
        let group = groups.of(&key(&work[0]));
        let (functions, moved) = findings.entry(group).or_default();
        for (function, adds) in work {
            let new = functions.len();
            let place = *places.entry((group, function.clone())).or_insert(new);
            if place == new {
                functions.push(Work { function, parts: Vec::new() });
            }
            if share.change.is_some() {
                functions[place].parts.push((share.metric, adds));
            }
        }
        moved.push(share);
    }
    let finding = |(work, moved)| Finding { cause: Cause::Work(work), moved };
    findings.into_values().map(finding).collect()
}

fn of_hit(cost: Cost, hunks: Vec<Hunk>, pair: &Pair) -> Vec<(Vec<Change>, Option<i64>)> {
    // One call too many shows in all returns behind it, so these have one cause.
    let predicted = |is_indirect| {
        let changes = kinds::predictions(pair, is_indirect);
        let sum = changes.iter().fold(0i64, |sum, (_, adds)| sum.saturating_add(*adds));
        // Nothing else differs in the hit.
        let code = if let [code] = &hunks[..] { code.changes.clone() } else { Vec::new() };
        let all = code.into_iter().chain(changes.into_iter().map(|(change, _)| change));
        vec![(all.collect(), Some(sum))]
    };
    let all = |adds: fn(&Hunk) -> Option<i64>| {
        hunks.iter().map(|hunk| (hunk.changes.clone(), adds(hunk))).collect()
    };
    match cost {
        Cost::Instructions => all(|hunk| Some(hunk.instructions)),
        Cost::Branches => all(|hunk| Some(hunk.records)),
        Cost::MispredictedReturns => predicted(false),
        Cost::MispredictedIndirect => predicted(true),
        // A misprediction costs most. It is the same cause that moves those counts.
        Cost::EstimatedCycles => {
            let moved = [false, true].into_iter().flat_map(predicted);
            let mut moved = moved.filter(|(_, sum)| *sum != Some(0));
            moved.next().map_or_else(|| all(|_| None), |(changes, _)| vec![(changes, None)])
        }
        Cost::Reads | Cost::Writes | Cost::Time => all(|_| None),
    }
}

/// Makes one finding of all hunks that have a cause in common, and one of what they leave of each
/// metric's change.
fn grouped(all: Vec<Evidence>) -> Vec<Finding> {
    let mut groups = Groups::default();
    for (changes, _) in all.iter().flat_map(|evidence| &evidence.hunks) {
        groups.join(changes.iter().map(Change::cause));
    }
    let mut findings: BTreeMap<usize, Finding> = BTreeMap::new();
    let mut seen: HashSet<&Change> = HashSet::new();
    let hunks = all.iter().flat_map(|evidence| &evidence.hunks);
    for change in hunks.flat_map(|(changes, _)| changes).filter(|one| seen.insert(one)) {
        let new = || Finding { cause: Cause::Code(Vec::new()), moved: Vec::new() };
        let finding = findings.entry(groups.of(&change.cause())).or_insert_with(new);
        if let Cause::Code(changes) = &mut finding.cause {
            changes.push(change.clone());
        }
    }
    // The better and the worse.
    let mut unknown = [(); 2].map(|()| Finding { cause: Cause::Unknown, moved: Vec::new() });
    for Evidence { share, hunks, .. } in &all {
        // None: of hunks without a change of their own.
        let mut adds: BTreeMap<Option<usize>, Vec<Option<i64>>> = BTreeMap::new();
        for (changes, one) in hunks {
            let group = changes.first().map(|change| groups.of(&change.cause()));
            adds.entry(group).or_default().push(*one);
        }
        // If the records do not tell how much, all that differs must be of one cause.
        let is_one = adds.len() == 1;
        let mut left = share.change;
        for (group, adds) in adds {
            let Some(group) = group else { continue };
            let part = match share.change {
                change if is_one && (change.is_none() || adds.contains(&None)) => change,
                None => continue,
                Some(_) => Some(adds.into_iter().flatten().fold(0, i64::saturating_add)),
            };
            if part != Some(0) {
                left = left.zip(part).map(|(left, part)| left.saturating_sub(part)).or(Some(0));
                let moved = &mut findings.get_mut(&group).expect("of a hunk").moved;
                moved.push(Share { change: part, ..share.clone() });
            }
        }
        if left != Some(0) {
            let moved = &mut unknown[usize::from(share.verdict == Verdict::Worse)].moved;
            moved.push(Share { change: left, ..share.clone() });
        }
    }
    let all = findings.into_values().chain(unknown);
    all.filter(|finding| !finding.moved.is_empty()).collect()
}

/// Causes that one metric has in common, as sets. A set is named by its first cause.
struct Groups<Key> {
    numbers: HashMap<Key, usize>,
    /// For each cause, another one of its set, or itself.
    parents: Vec<usize>,
}

impl<Key> Default for Groups<Key> {
    fn default() -> Self {
        Groups { numbers: HashMap::new(), parents: Vec::new() }
    }
}

impl<Key: Eq + Hash> Groups<Key> {
    fn join(&mut self, keys: impl Iterator<Item = Key>) {
        let mut first = None;
        for key in keys {
            let new = self.parents.len();
            let number = *self.numbers.entry(key).or_insert(new);
            if number == new {
                self.parents.push(new);
            }
            let (one, other) = (self.root(number), self.root(first.unwrap_or(number)));
            self.parents[one.max(other)] = one.min(other);
            first.get_or_insert(number);
        }
    }

    fn root(&mut self, mut number: usize) -> usize {
        while self.parents[number] != number {
            self.parents[number] = self.parents[self.parents[number]];
            number = self.parents[number];
        }
        number
    }

    fn of(&mut self, key: &Key) -> usize {
        let number = self.numbers[key];
        self.root(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{ChangeKind, listing::PROGRAM, walk, whole};
    use proptest::prelude::*;
    use tramplab_model::run::{Measurement, Run};
    use tramplab_testdata::{each_alone, series};

    fn change(kind: ChangeKind, from: &str, to: &str) -> Change {
        Change { kind, is_call: true, from: from.to_owned(), to: to.to_owned() }
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
                Cause::Work(work) => {
                    let names: HashSet<&str> =
                        work.iter().map(|one| one.function.as_str()).collect();
                    assert_eq!(names.len(), work.len(), "{finding:?}");
                    for (metric, part) in work.iter().flat_map(|one| &one.parts) {
                        let mut moved = finding.moved.iter();
                        let share = moved.find(|share| share.metric == *metric).expect("it moved");
                        // Together they may add up to more, if another function has less.
                        let (part, whole) = (part.abs() as f64, share.change.unwrap().abs() as f64);
                        assert!(part >= 0.01 * whole && part < 2.0 * whole, "{finding:?}");
                    }
                }
                Cause::Size(_) | Cause::Settings(_) | Cause::Waits | Cause::Unknown => {
                    let verdict = |share: &Share| share.verdict.clone();
                    let first = verdict(&finding.moved[0]);
                    assert!(finding.moved.iter().all(|share| verdict(share) == first));
                }
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
                    // The records of recorded kernels explain every count of records.
                    let unknown =
                        comparison.findings.iter().filter(|one| one.cause == Cause::Unknown);
                    for Share { metric, .. } in unknown.flat_map(|one| &one.moved) {
                        assert!(matches!(metric, Metric::Attach(_)), "{metric}");
                    }
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
            let Cause::Code(mut found) = cause.clone() else { panic!("{cause:?}") };
            found.iter_mut().for_each(|change| change.is_call = true);
            assert_eq!(found, expected);
            for row in ["fexit", "kretprobe_multi"] {
                let name = format!("lbr_waste.{row}.any");
                let share = moved.iter().find(|share| share.metric.to_string() == name);
                assert_eq!(share.and_then(|share| share.change), Some(any), "{name}");
            }
        }
    }

    /// The shipped series `single-direct-ops` looks each function up in a larger hash.
    #[test]
    fn functions_explain_what_attaching_costs() {
        let all = each_alone();
        let is_this = |run: &&Run| run.series[0].name == "single-direct-ops";
        let run = all.iter().find(is_this).expect("it is recorded");
        let found = whole(run, &run.series[0], None).findings;
        let [Finding { cause: Cause::Work(work), moved }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(moved.len(), 9);
        let metric: Metric = "attach.fentry.100.attach.instructions".parse().unwrap();
        let parts = work.iter().filter_map(|one| {
            let (_, adds) = one.parts.iter().find(|(of, _)| *of == metric)?;
            Some((one.function.as_str(), *adds))
        });
        let expected = [("ftrace_lookup_ip", 189513788), ("__ftrace_hash_rec_update", 63616410)];
        assert_eq!(parts.collect::<Vec<_>>(), expected);
        let whole = moved.iter().find(|share| share.metric == metric).unwrap().change;
        assert_eq!(whole, Some(256924470));
    }

    #[test]
    fn functions_that_explain_less_than_half_are_no_cause() {
        for (work, change, expected) in [
            (vec![("f", 60), ("g", 1), ("h", -1)], 100, vec!["f", "g", "h"]),
            (vec![("f", 995), ("g", 9)], 1000, vec!["f"]),
            // Code moved from one function to the other.
            (vec![("f", -900), ("g", 890)], -10, vec!["f", "g"]),
            (vec![("f", 49)], 100, vec![]),
            (vec![("f", -60)], 100, vec![]),
            (vec![], 100, vec![]),
        ] {
            let work = work.into_iter().map(|(function, adds)| (function.to_owned(), adds));
            let found = explaining(work.collect(), change);
            assert_eq!(found.iter().map(|(name, _)| name).collect::<Vec<_>>(), expected);
        }
    }

    /// A time of the host's clock that grows with the work has its causes, without parts.
    #[test]
    fn times_go_with_the_work_that_goes_the_same_way() {
        let all = each_alone();
        let is_this = |run: &&Run| run.series[0].name == "single-direct-ops";
        let run = all.iter().find(is_this).expect("it is recorded");
        let sides = [run.series[0].base(), run.series[0].head()].map(|step| {
            let name = "attach/fentry/100";
            let mut cells = run.cells_of(run.series[0].arch, &step.kernel);
            cells.find(|cell| cell.id.test.name() == name).expect("it is measured")
        });
        let pair = Pair { base: sides[0], head: Some(sides[1]) };
        for (name, verdict, expected) in [
            ("attach.fentry.100.attach", Verdict::Worse, true),
            ("attach.fentry.100.attach", Verdict::Better, false),
            ("attach.fentry.100.load", Verdict::Worse, false),
        ] {
            let metric: Metric = name.parse().unwrap();
            let Metric::Attach(number) = metric else { panic!("{name}") };
            let share = Share { metric, verdict, change: None, ratio: Some(1.5), terms: vec![] };
            let work = of_attaching(number, &pair, &share);
            assert_eq!(!work.is_empty(), expected, "{name}");
            if expected {
                let [finding] =
                    &by_work(vec![Evidence { share, hunks: Vec::new(), work, waits: false }])[..]
                else {
                    panic!("{name}")
                };
                let Cause::Work(work) = &finding.cause else { panic!("{finding:?}") };
                assert!(work.iter().all(|one| one.parts.is_empty()), "{work:?}");
            }
        }
    }

    /// The recorded series waits for no grace period any more, if somebody had counted.
    #[test]
    fn grace_periods_are_a_cause_of_their_own() {
        let all = each_alone();
        let is_this = |run: &&Run| run.series[0].name == "single-direct-ops";
        let mut run = all.iter().find(is_this).expect("it is recorded").clone();
        let base = run.series[0].base().kernel.clone();
        for cell in &mut run.cells {
            let Some(Measurement::Attach(attach)) = &mut cell.measurement else { continue };
            for summary in &mut attach.explained {
                let waits = cell.id.kernel == base && summary.phase == Phase::Detach;
                summary.grace_periods =
                    Some(if waits { 2 * u64::from(summary.attached) } else { 0 });
            }
        }
        let found = whole(&run, &run.series[0], None).findings;
        let waits = found.iter().find(|finding| finding.cause == Cause::Waits).unwrap();
        let moved = waits.moved.iter().map(|share| (share.metric.to_string(), share.change));
        let expected = [1, 10, 100]
            .map(|count| (format!("attach.fentry.{count}.detach.grace_periods"), Some(-2 * count)));
        assert_eq!(moved.collect::<Vec<_>>(), expected);
        assert!(waits.moved.iter().all(|share| share.verdict == Verdict::Better));
    }

    /// Where a record or the profile names functions, and no cause.
    #[test]
    fn functions_of_another_size_and_settings_explain_what_no_record_does() {
        let run = series();
        let mut comparison = whole(&run, &run.series[0], None);
        let share = |name: &str, verdict: Verdict| Share {
            metric: name.parse().unwrap(),
            verdict,
            change: None,
            ratio: None,
            terms: Vec::new(),
        };
        let unknown = |moved: Vec<Share>| Finding { cause: Cause::Unknown, moved };
        let [hit, attach, storm] = [
            share("lbr_waste.fexit.any", Verdict::Worse),
            share("attach.kprobe_multi.10.attach", Verdict::Worse),
            share("survive.7.result", Verdict::Worse),
        ];
        let waits = Finding { cause: Cause::Waits, moved: vec![hit.clone()] };
        let all = [hit.clone(), attach.clone(), storm.clone()].to_vec();
        comparison.findings = vec![waits.clone(), unknown(all)];
        let sizes = ["bpf_get_branch_snapshot", "unrelated", "ftrace_check_record"]
            .map(|name| FunctionSize { name: name.to_owned(), base: Some(8), head: Some(16) });
        let functions = sizes.to_vec();
        let text = TextGrowth {
            functions,
            ..crate::compare::growth(&Default::default(), &Default::default())
        };
        let [old, new] = [run.series[0].base(), run.series[0].head()]
            .map(|step| run.cells_of(run.series[0].arch, &step.kernel).collect::<Vec<_>>());
        let pairs = crate::compare::pair_up(&old, &new);
        let of_size = |size: &FunctionSize, share| Finding {
            cause: Cause::Size(vec![size.clone()]),
            moved: vec![share],
        };
        comparison.explain(&pairs, Some(&text), Vec::new());
        let named = [of_size(&sizes[0], hit), of_size(&sizes[2], attach)];
        let expected = [&[waits.clone()][..], &named, &[unknown(vec![storm.clone()])]].concat();
        assert_eq!(comparison.findings, expected);

        let settings = vec![Differing {
            kind: crate::compare::runs::DifferingKind::Axis,
            name: "preempt".to_owned(),
            base: None,
            head: Some("full".to_owned()),
        }];
        comparison.explain(&pairs, None, settings.clone());
        let last = Finding { cause: Cause::Settings(settings), moved: vec![storm] };
        assert_eq!(comparison.findings, [&[waits][..], &named, &[last]].concat());
    }

    #[test]
    fn one_function_in_one_direction_is_one_finding() {
        let moves = |name: &str, change: i64, work: &[(&str, i64)]| Evidence {
            share: Share {
                metric: name.parse().unwrap(),
                verdict: Verdict::Worse,
                change: Some(change),
                ratio: None,
                terms: Vec::new(),
            },
            hunks: Vec::new(),
            work: work.iter().map(|(function, adds)| ((*function).to_owned(), *adds)).collect(),
            waits: false,
        };
        let [one, ten] = ["attach.fentry.1.attach.exact", "attach.fentry.10.attach.exact"];
        let [all, kprobe] = ["attach.fentry.all.attach.exact", "attach.kprobe.1.attach.exact"];
        let found = by_work(vec![
            moves(one, 9, &[("f", 7), ("g", 2)]),
            moves(ten, 90, &[("g", 80)]),
            moves(kprobe, -8, &[("g", -8)]),
            moves(all, 5, &[("h", 5)]),
        ]);
        let told = found.iter().map(|Finding { cause, moved }| {
            let Cause::Work(work) = cause else { panic!("{cause:?}") };
            let work = work.iter().map(|one| (one.function.as_str(), one.parts.len()));
            (work.collect::<Vec<_>>(), moved.len())
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [(vec![("f", 1), ("g", 2)], 2), (vec![("g", 1)], 1), (vec![("h", 1)], 1)]
        );
    }

    #[test]
    fn hunks_with_a_cause_in_common_are_one_finding() {
        use ChangeKind::{Came, Inlined, Outlined};
        let moves = |name: &str, change: Option<i64>, hunks: Vec<(Vec<Change>, Option<i64>)>| {
            let metric = name.parse().unwrap();
            let verdict = Verdict::Worse;
            let share = Share { metric, verdict, change, ratio: None, terms: Vec::new() };
            Evidence { share, hunks, work: Vec::new(), waits: false }
        };
        let (g, k) = (change(Came, "f", "g"), change(Came, "f", "k"));
        let [one, other] = ["h", "i"].map(|caller| change(Inlined, "p", caller));
        let split = ["h", "i"].map(|caller| change(Outlined, caller, "p"));
        let [fentry, fexit] = ["lbr_waste.fentry.any", "lbr_waste.fexit.any"];
        let reads = "trigger.fentry.reads";
        for (all, expected) in [
            // One call in two mechanisms.
            (
                vec![
                    moves(fentry, Some(1), vec![(vec![g.clone()], Some(1))]),
                    moves(fexit, Some(2), vec![(vec![g.clone(), k.clone()], Some(2))]),
                ],
                vec![(vec![g.clone(), k.clone()], vec![Some(1), Some(2)])],
            ),
            // Two calls in one, of which the other has none.
            (
                vec![moves(
                    fentry,
                    Some(2),
                    vec![(vec![g.clone()], Some(1)), (vec![k.clone()], Some(1))],
                )],
                vec![(vec![g.clone()], vec![Some(1)]), (vec![k.clone()], vec![Some(1)])],
            ),
            // A function that is a part of two callers.
            (
                vec![
                    moves(fentry, Some(-1), vec![(vec![one.clone()], Some(-1))]),
                    moves(fexit, Some(-1), vec![(vec![other.clone()], Some(-1))]),
                ],
                vec![(vec![one, other], vec![Some(-1); 2])],
            ),
            (
                vec![
                    moves(fentry, Some(1), vec![(vec![split[0].clone()], Some(1))]),
                    moves(fexit, Some(1), vec![(vec![split[1].clone()], Some(1))]),
                ],
                vec![(split.to_vec(), vec![Some(1); 2])],
            ),
            // Reads are not counted by record: all must have one cause.
            (
                vec![moves(reads, Some(3), vec![(vec![g.clone()], None), (vec![g.clone()], None)])],
                vec![(vec![g.clone()], vec![Some(3)])],
            ),
            (
                vec![moves(reads, Some(3), vec![(vec![g.clone()], None), (vec![k], None)])],
                vec![(vec![], vec![Some(3)])],
            ),
            (
                vec![moves(reads, Some(3), vec![(vec![g.clone()], None), (vec![], None)])],
                vec![(vec![], vec![Some(3)])],
            ),
            // No record touches the function on one side.
            (
                vec![moves(fentry, None, vec![(vec![g.clone()], Some(1))])],
                vec![(vec![g], vec![None])],
            ),
            // More than the records tell.
            (vec![moves(fentry, Some(2), vec![])], vec![(vec![], vec![Some(2)])]),
        ] {
            let told = |Finding { cause, moved }: Finding| {
                let changes = match cause {
                    Cause::Code(changes) => changes,
                    _ => Vec::new(),
                };
                (changes, moved.iter().map(|share| share.change).collect::<Vec<_>>())
            };
            let found: Vec<_> = grouped(all).into_iter().map(told).collect();
            assert_eq!(found, expected);
        }
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
                share: Share {
                    metric: name.parse().unwrap(),
                    verdict: Verdict::Worse,
                    change,
                    ratio: None,
                    terms: Vec::new(),
                },
                hunks,
                work: Vec::new(),
                waits: false,
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
