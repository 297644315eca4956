// SPDX-License-Identifier: MIT OR Apache-2.0
//! The causes of what changed, in words.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

use crate::numbers::is_grace_periods;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
};
use tramplab_analysis::{
    compare::{
        self, Cause, Change, ChangeKind, Finding, Metric, Share, Verdict, Work,
        runs::{Differing, DifferingKind},
    },
    profile::estimate::Term,
};
use tramplab_model::{
    code::FunctionSize,
    kinds::attach::{self, Number},
    run::{Cell, CellId, Series},
    table::Table,
};

/// A finding in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// `better`, `worse`, `better and worse`, or `in part worse` of metrics that are better.
    pub verdict: &'static str,
    /// `+ call and return of f in g`
    pub causes: Vec<String>,
    /// `lbr_waste of fentry, fexit: any +2, call +1`
    pub moved: Vec<String>,
    /// `patch 2/3 "bpf: Note each program"` or `preempt=none -> full`, if it is known.
    pub patch: Option<String>,
    /// The metrics that it made worse.
    pub harmed: Vec<Metric>,
    /// The kernel that has it and whose base has not.
    pub head: String,
}

/// The caption of the table.
pub const FINDINGS: &str = "Findings";
/// Causes of one finding that are named, where there is room and on a screen.
const NAMED: [usize; 2] = [50, 8];

/// The findings of a series.
pub type OfSeries<'a> = (&'a Series, Vec<Told>);

/// `patch` is the one between base and head, if there is one.
pub fn told(findings: &[Finding], head: &str, patch: Option<&str>) -> Vec<Told> {
    let one = |finding: &Finding| Told {
        verdict: verdict(finding),
        causes: causes(finding),
        moved: moved(&finding.moved),
        // Settings name themselves.
        patch: patch.filter(|_| !matches!(finding.cause, Cause::Settings(_))).map(str::to_owned),
        harmed: {
            let worse = finding.moved.iter().filter(|share| share.verdict == Verdict::Worse);
            let worse = worse.filter(|share| !is_better(&finding.cause, share));
            worse.map(|share| share.metric).collect()
        },
        head: head.to_owned(),
    };
    findings.iter().map(one).collect()
}

/// The findings as a table, if there are some.
pub fn table(findings: &[Told]) -> Option<Table> {
    let is_known = findings.iter().any(|told| told.patch.is_some());
    let mut header = vec!["verdict", "cause", "moves"];
    header.extend(is_known.then_some("patch"));
    let row = |told: &Told| {
        let words = [&told.causes, &told.moved].map(|words| words.join("; "));
        let patch = told.patch.clone().unwrap_or_default();
        let all = [told.verdict.to_owned()].into_iter().chain(words).chain([patch]);
        all.take(header.len()).collect()
    };
    (!findings.is_empty()).then(|| Table {
        caption: FINDINGS.to_owned(),
        rows: findings.iter().map(row).collect(),
        header: header.iter().copied().map(str::to_owned).collect(),
        notes: Vec::new(),
    })
}

/// The findings that tell the reason of a cell's failure.
pub fn telling<'a>(
    all: &'a [OfSeries],
    cell: &'a CellId,
    reason: &str,
) -> impl Iterator<Item = &'a Told> {
    let worse = compare::worse_metric(reason);
    let of_cell = all.iter().filter(|(series, _)| series.arch == cell.arch);
    of_cell.flat_map(move |(series, told)| {
        // The head is also judged by all patches together.
        let is_head = series.head().kernel == cell.kernel;
        let is_its = move |told: &&Told| {
            (is_head && series.steps.iter().any(|step| step.kernel == told.head))
                || told.head == cell.kernel
        };
        let harms = move |told: &&Told| worse.is_some_and(|one| told.harmed.contains(&one));
        told.iter().filter(is_its).filter(harms)
    })
}

/// A cause without its share of the change.
pub fn without_size(cause: &str) -> &str {
    cause.split_once(": ").map_or(cause, |(name, _)| name)
}

/// The reasons of a cell's failure that no finding tells. None if findings tell all.
pub fn untold(all: &[OfSeries], cell: &CellId, reasons: &[String]) -> Option<Vec<String>> {
    let is_untold = |reason: &&String| telling(all, cell, reason).next().is_none();
    let left: Vec<String> = reasons.iter().filter(is_untold).cloned().collect();
    (reasons.is_empty() || !left.is_empty()).then_some(left)
}

/// Functions that are named of a number that exceeds its budget.
const DEAREST: usize = 3;

/// The reasons of a cell's failure, each budget's with the functions that cost most and the way to
/// see all: once for each row or phase of the cell.
pub fn with_the_dearest(cell: &Cell, reasons: Vec<String>) -> Vec<String> {
    let mut known = Vec::new();
    let told = reasons.into_iter().map(|reason| {
        let Some(metric) = compare::exceeded_metric(&reason) else { return reason };
        let name = metric.to_string();
        let is_phase = matches!(metric, Metric::Attach(_));
        let subject = if is_phase { &name } else { parted(metric, &name).0 }.to_owned();
        let parts = compare::parts(cell, metric);
        if parts.is_empty() || known.contains(&subject) {
            return reason;
        }
        known.push(subject);
        let named = parts.iter().take(DEAREST).map(|(name, part)| format!("{name} {part}"));
        let more = parts.len().saturating_sub(DEAREST);
        let named: Vec<String> =
            named.chain((more > 0).then(|| format!("{more} more functions"))).collect();
        let way = match metric {
            Metric::Attach(_) => "`profile` shows all",
            _ => "`report --listing any` shows all",
        };
        format!("{reason}: {}; {way}", named.join(", "))
    });
    told.collect()
}

impl Told {
    /// `worse: patch 2/3 "bpf: Note each program"`
    pub fn heading(&self) -> String {
        match &self.patch {
            Some(patch) => format!("{}: {patch}", self.verdict),
            None => self.verdict.to_owned(),
        }
    }

    /// `worse: patch 2/3 "bpf: Note each program": + call and return of f in g`
    pub fn sentence(&self) -> String {
        format!("{}: {}", self.heading(), self.cause())
    }

    /// The first cause, without its size.
    pub fn cause(&self) -> &str {
        self.causes.first().map_or("", |cause| without_size(cause))
    }

    /// The heading, then lines for causes and kinds of test.
    pub fn lines(&self) -> Vec<String> {
        let head = self.heading();
        let more = self.causes.len().saturating_sub(NAMED[1]);
        let more = (more > 0).then(|| format!("and {more} more, in HTML and Markdown"));
        let causes = self.causes.iter().take(NAMED[1]).chain(&more);
        [&head].into_iter().chain(causes).chain(&self.moved).cloned().collect()
    }
}

/// True for a part that makes its metric better.
fn is_better(cause: &Cause, share: &Share) -> bool {
    match (cause, share.change) {
        (Cause::Code(_), Some(change)) => (change < 0) != share.metric.definition().more_is_better,
        _ => share.verdict == Verdict::Better,
    }
}

fn verdict(Finding { cause, moved }: &Finding) -> &'static str {
    let better = moved.iter().filter(|share| is_better(cause, share)).count();
    // A part may go the other way than its metrics.
    let is_of = |verdict: Verdict| moved.iter().any(|share| share.verdict == verdict);
    match better {
        0 if is_of(Verdict::Worse) => "worse",
        0 => "in part worse",
        all if all < moved.len() => "better and worse",
        _ if is_of(Verdict::Better) => "better",
        _ => "in part better",
    }
}

/// Terms come behind the first cause: lists of changes are cut.
fn causes(finding: &Finding) -> Vec<String> {
    let terms = of_terms(&finding.moved);
    let is_known = finding.moved.iter().all(|share| !share.terms.is_empty()) && !terms.is_empty();
    let mut others = match finding.cause {
        Cause::Unknown if is_known => Vec::new(),
        _ => of_cause(finding),
    }
    .into_iter();
    let first = others.next();
    first.into_iter().chain(terms).chain(others).collect()
}

fn of_cause(Finding { cause, moved }: &Finding) -> Vec<String> {
    let changes = match cause {
        Cause::Code(changes) => changes,
        Cause::Work(work) => return of_work(work, moved),
        Cause::Waits => return vec![of_waits(moved).to_owned()],
        Cause::Size(sizes) => return sizes.iter().take(NAMED[0]).map(of_size).collect(),
        Cause::Settings(settings) => {
            let more = settings.len().saturating_sub(NAMED[0]);
            let named = settings.iter().take(NAMED[0]).map(of_setting);
            return named.chain((more > 0).then(|| format!("and {more} more"))).collect();
        }
        Cause::Unknown => return vec!["no cause recorded".to_owned()],
    };
    let mut words: Vec<String> = Vec::new();
    let folds: HashSet<[&str; 2]> = changes.iter().filter_map(called_there).collect();
    let mut told = BTreeSet::new();
    for (at, change) in changes.iter().enumerate() {
        let ends = [change.from.as_str(), change.to.as_str()];
        let is_call = matches!(change.kind, ChangeKind::Came | ChangeKind::Went);
        if is_call && folds.contains(&ends) {
            told.insert(at);
        }
    }
    for (at, change) in changes.iter().enumerate() {
        if words.len() == NAMED[0] {
            break;
        }
        if !told.insert(at) {
            continue;
        }
        let Change { kind, from, to, .. } = change;
        let answer = changes.iter().enumerate().skip(at).find(|(index, other)| {
            !told.contains(index)
                && (other.kind, &other.from, &other.to) == (change.kind, &change.to, &change.from)
                && other.is_call != change.is_call
        });
        let (caller, callee) = if change.is_call { (from, to) } else { (to, from) };
        let word = match (kind, answer) {
            (ChangeKind::Came | ChangeKind::Went, Some((index, _))) => {
                told.insert(index);
                format!("{} call and return of {callee} in {caller}", mark(*kind))
            }
            (ChangeKind::Came | ChangeKind::Went, None) => {
                format!("{} {from} -> {to}", mark(*kind))
            }
            (ChangeKind::Resized, _) => format!("~ code of {from}"),
            (ChangeKind::Inlined, _) => format!("~ {from} is a part of {to} now, or left out"),
            (ChangeKind::Outlined, _) => format!("~ {to} was a part of {from}, or is new"),
            (ChangeKind::Mispredicted, _) => format!("! {from} -> {to} is mispredicted now"),
            (ChangeKind::Predicted, _) => format!("! {from} -> {to} is predicted now"),
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let more = changes.len().saturating_sub(told.len());
    words.extend((more > 0).then(|| format!("and {more} more")));
    words
}

fn of_waits(moved: &[Share]) -> &'static str {
    match moved.iter().any(|share| share.verdict == Verdict::Worse) {
        true => "+ the thread waits for more grace periods",
        false => "- the thread waits for fewer grace periods",
    }
}

/// `~ code of f: 120 to 128 bytes`
fn of_size(FunctionSize { name, base, head }: &FunctionSize) -> String {
    let [base, head] = [base, head].map(|size| size.unwrap_or(0));
    format!("~ code of {name}: {base} to {head} bytes")
}

/// `preempt=none -> full`, `spectre_v2: Vulnerable -> Mitigation: Retpolines`
fn of_setting(Differing { kind, name, base, head }: &Differing) -> String {
    let unset = if *kind == DifferingKind::Option { "n" } else { "unset" };
    let [base, head] = [base, head].map(|value| value.as_deref().unwrap_or(unset));
    let sign = if *kind == DifferingKind::Mitigation { ": " } else { "=" };
    format!("{name}{sign}{base} -> {head}")
}

/// Names the settings that make two kernels differ, in the place of a patch.
pub fn of_settings(settings: &[Differing]) -> Option<String> {
    let axes = settings.iter().filter(|one| one.kind == DifferingKind::Axis);
    let axes: Vec<String> = axes.map(of_setting).collect();
    let first = if axes.is_empty() { settings.first().map(of_setting)? } else { axes.join(", ") };
    let more = if axes.is_empty() { settings.len().saturating_sub(1) } else { 0 };
    Some(if more > 0 { format!("{first} and {more} more") } else { first })
}

/// The call of a function that is a part of its caller on the other side: one of the two says it.
fn called_there(Change { kind, from, to, .. }: &Change) -> Option<[&str; 2]> {
    match kind {
        ChangeKind::Inlined => Some([to, from]),
        ChangeKind::Outlined => Some([from, to]),
        _ => None,
    }
}

/// Names the work of functions that are not named.
pub const REST: &str = "~ all else";
/// Smaller parts of a change, in per cent, are not named.
const LEAST: f64 = 5.0;

/// `+ ftrace_lookup_ip: 74 to 87 % of the change`. Parts in the other direction are negative. The
/// range is over the finding's numbers of instructions; without any, over its times.
fn of_work(work: &[Work], moved: &[Share]) -> Vec<String> {
    let is_count = |share: &&Share| share.metric.unit() == "instructions";
    let counts: Vec<&Share> = moved.iter().filter(is_count).collect();
    let shares = if counts.is_empty() { moved.iter().collect() } else { counts };
    if shares.iter().all(|share| share.change.is_none()) {
        // Times of the host's clock have no parts.
        return work
            .iter()
            .take(NAMED[0])
            .map(|one| format!("~ work of {}", one.function))
            .collect();
    }
    let named: Vec<_> =
        work.iter().map(|one| (one.function.as_str(), one.parts.as_slice())).collect();
    of_parts(&named, &shares, REST)
}

/// `+ cycles of mispredicted returns: 90 to 98 % of the change`, over the finding's estimates.
fn of_terms(moved: &[Share]) -> Vec<String> {
    let shares: Vec<&Share> = moved.iter().filter(|share| !share.terms.is_empty()).collect();
    let parts = |term: Term| -> Vec<(Metric, i64)> {
        let of = |share: &&Share| {
            let (_, part) = share.terms.iter().find(|(of, _)| *of == term)?;
            Some((share.metric, *part))
        };
        shares.iter().filter_map(of).collect()
    };
    let all = Term::ALL.map(|term| (format!("cycles of {}", term.name()), parts(term)));
    let named: Vec<_> = all.iter().map(|(name, parts)| (name.as_str(), parts.as_slice())).collect();
    of_parts(&named, &shares, "~ cycles of all else")
}

/// Parts of the changes of numbers, each with its name, the largest first.
fn of_parts(all: &[(&str, &[(Metric, i64)])], shares: &[&Share], others: &str) -> Vec<String> {
    let whole: BTreeMap<Metric, f64> =
        shares.iter().filter_map(|share| Some((share.metric, share.change? as f64))).collect();
    let mut rest: BTreeMap<Metric, f64> = whole.keys().map(|metric| (*metric, 100.0)).collect();
    let mut named: Vec<(f64, String)> = Vec::new();
    for (name, parts) in all {
        let known = || parts.iter().filter(|(metric, _)| whole.contains_key(metric));
        let mark = if known().any(|(_, part)| *part > 0) { '+' } else { '-' };
        let part = |(metric, part): &(Metric, i64)| (*metric, 100.0 * *part as f64 / whole[metric]);
        let parts: BTreeMap<Metric, f64> = known().map(part).collect();
        let size = parts.values().fold(0.0, |size: f64, part| size.max(part.abs()));
        if size < LEAST || named.len() == NAMED[0] {
            continue;
        }
        for (metric, part) in &parts {
            *rest.entry(*metric).or_default() -= part;
        }
        let all = whole.keys().map(|metric| parts.get(metric).copied().unwrap_or_default());
        named.push((size, format!("{mark} {name}: {} of the change", range(all))));
    }
    named.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let is_all = rest.values().all(|left| left.abs() < 1.5);
    let rest = (!is_all).then(|| format!("{others}: {}", range(rest.into_values())));
    named.into_iter().map(|(_, text)| text).chain(rest).collect()
}

/// `74 to 87 %`
fn range(percents: impl Iterator<Item = f64>) -> String {
    let (least, most) = percents.fold((f64::MAX, f64::MIN), |(a, b), one| (a.min(one), b.max(one)));
    // Adding 0 makes 0 of -0.
    let [least, most] = [least, most].map(|one| one.round() + 0.0);
    if least == most { format!("{most} %") } else { format!("{least} to {most} %") }
}

fn mark(kind: ChangeKind) -> char {
    if kind == ChangeKind::Came { '+' } else { '-' }
}

/// The test and its number: `lbr_waste.fexit` and `any`, `attach.fentry.100` and `attach.exact`.
pub fn parted(metric: Metric, name: &str) -> (&str, &str) {
    let dots: Vec<usize> = name.rmatch_indices('.').map(|(at, _)| at).collect();
    let is_phased = |metric: attach::Metric| !matches!(metric.number, Number::Time(_));
    let of_attaching = matches!(metric, Metric::Attach(metric) if is_phased(metric));
    match dots.get(usize::from(of_attaching)) {
        Some(&at) => (&name[..at], &name[at.saturating_add(1)..]),
        None => (name, ""),
    }
}

/// How far a number moved.
#[derive(Clone, Copy, PartialEq)]
enum Size {
    Unknown,
    Count(i64),
    /// The least and the most of some tests.
    Percent(f64, f64),
}

impl Size {
    fn of(Share { metric, change, ratio, .. }: &Share) -> Size {
        let percent = ratio.map(|ratio| 100.0 * (ratio - 1.0));
        // Only the percentage of millions says something.
        let is_large = matches!(metric, Metric::Attach(_)) && !is_grace_periods(metric);
        let count = change.filter(|_| !is_large || percent.is_none());
        match (count, percent) {
            (Some(change), _) => Size::Count(change),
            (None, Some(percent)) => Size::Percent(percent, percent),
            (None, None) => Size::Unknown,
        }
    }

    /// The size in both tests, if one word can say it.
    fn join(self, other: Size) -> Option<Size> {
        match (self, other) {
            (Size::Percent(a, b), Size::Percent(c, d)) => Some(Size::Percent(a.min(c), b.max(d))),
            (one, other) => (one == other).then_some(one),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Unknown => Ok(()),
            Size::Count(change) => write!(f, " {change:+}"),
            Size::Percent(a, b) => match [a, b].map(|percent| format!("{percent:+.1}")) {
                [a, b] if a == b => write!(f, " {a} %"),
                [a, b] => write!(f, " {a} to {b} %"),
            },
        }
    }
}

/// `lbr_waste of fentry, fexit: any +2, call +1; trigger of fentry: instructions +9`
fn moved(shares: &[Share]) -> Vec<String> {
    type Numbers = Vec<(String, Size)>;
    // By kind of test and by what changed how, in the order of the metrics.
    let mut subjects: Vec<(String, Numbers)> = Vec::new();
    for share in shares {
        let name = share.metric.to_string();
        let (subject, number) = parted(share.metric, &name);
        let number = (number.to_owned(), Size::of(share));
        match subjects.iter_mut().find(|(of, _)| of == subject) {
            Some((_, numbers)) => numbers.push(number),
            None => subjects.push((subject.to_owned(), vec![number])),
        }
    }
    let joined = |some: &Numbers, others: &Numbers| -> Option<Numbers> {
        let pairs = some.iter().zip(others).filter(|(a, b)| a.0 == b.0);
        let all: Option<Numbers> =
            pairs.map(|(a, b)| Some((a.0.clone(), a.1.join(b.1)?))).collect();
        all.filter(|all| all.len() == some.len() && all.len() == others.len())
    };
    let mut groups: Vec<(&str, Vec<&str>, Numbers)> = Vec::new();
    for (subject, numbers) in &subjects {
        let (kind, of) = subject.split_once('.').unwrap_or((subject, ""));
        let same = groups.iter_mut().find_map(|(of_kind, names, known)| {
            let all = joined(known, numbers).filter(|_| *of_kind == kind)?;
            Some((names, known, all))
        });
        match same {
            Some((names, known, all)) => {
                names.push(of);
                *known = all;
            }
            None => groups.push((kind, vec![of], numbers.clone())),
        }
    }
    let words = groups.into_iter().map(|(kind, names, numbers)| {
        let numbers = numbers.iter().map(|(number, size)| format!("{number}{size}"));
        format!("{kind} of {}: {}", names.join(", "), numbers.collect::<Vec<_>>().join(", "))
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChangeKind::{Came, Resized, Went};

    /// `>f` as an end is its first byte.
    fn code(changes: &[(ChangeKind, &str, &str)]) -> Cause {
        let change = |&(kind, from, to): &(ChangeKind, &str, &str)| Change {
            kind,
            is_call: to.starts_with('>'),
            from: from.to_owned(),
            to: to.trim_start_matches('>').to_owned(),
        };
        Cause::Code(changes.iter().map(change).collect())
    }

    fn shares(moved: &[(&str, Verdict, Option<i64>)]) -> Vec<Share> {
        let share = |(name, verdict, change): &(&str, Verdict, Option<i64>)| Share {
            metric: name.parse().unwrap(),
            verdict: verdict.clone(),
            change: *change,
            ratio: Some(0.5),
            terms: Vec::new(),
        };
        moved.iter().map(share).collect()
    }

    #[test]
    fn causes_are_calls_branches_and_sizes() {
        for (cause, expected) in [
            (code(&[(Came, "f", ">g"), (Came, "g", "f")]), vec!["+ call and return of g in f"]),
            // The window begins with the return.
            (code(&[(Went, "g", "f"), (Went, "f", ">g")]), vec!["- call and return of g in f"]),
            (
                code(&[(Came, "f", ">g"), (Came, "g", ">h"), (Came, "h", "g"), (Came, "g", "f")]),
                vec!["+ call and return of g in f", "+ call and return of h in g"],
            ),
            // Two calls are no call with its return.
            (code(&[(Came, "f", ">g"), (Came, "g", ">f")]), vec!["+ f -> g", "+ g -> f"]),
            (
                code(&[(Went, "f", ">g"), (Came, "g", "f"), (Went, "f", "f")]),
                vec!["- f -> g", "+ g -> f", "- f -> f"],
            ),
            (code(&[(Resized, "f", "g"), (Resized, "f", "h")]), vec!["~ code of f"]),
            (
                Cause::Size(vec![FunctionSize { name: "f".to_owned(), base: None, head: Some(8) }]),
                vec!["~ code of f: 0 to 8 bytes"],
            ),
            (
                Cause::Settings(vec![
                    differing(DifferingKind::Axis, "preempt", None, Some("full")),
                    differing(DifferingKind::Option, "CONFIG_HZ", Some("250"), None),
                    differing(DifferingKind::Mitigation, "mds", Some("Vulnerable"), None),
                ]),
                vec!["preempt=unset -> full", "CONFIG_HZ=250 -> n", "mds: Vulnerable -> unset"],
            ),
            (Cause::Unknown, vec!["no cause recorded"]),
        ] {
            let finding = Finding { cause, moved: Vec::new() };
            assert_eq!(causes(&finding), expected, "{finding:?}");
        }
    }

    fn differing(
        kind: DifferingKind,
        name: &str,
        base: Option<&str>,
        head: Option<&str>,
    ) -> Differing {
        let [base, head] = [base, head].map(|value| value.map(str::to_owned));
        Differing { kind, name: name.to_owned(), base, head }
    }

    #[test]
    fn a_budget_that_is_exceeded_names_the_dearest_functions_once() {
        let run = tramplab_testdata::series();
        let explained = |test: &str, reasons: &[&str]| {
            let head = &run.series[0].head().kernel;
            let mut cells = run.cells_of(run.series[0].arch, head);
            let cell = cells.find(|cell| cell.id.test.name() == test).unwrap();
            let all = reasons.iter().map(|reason| (*reason).to_owned()).collect();
            let told = with_the_dearest(cell, all);
            let told = told.iter().zip(reasons);
            told.map(|(told, reason)| told.strip_prefix(reason).unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let any = "fexit wastes 9 records in `any`, budget 8";
        let call = "fexit wastes 4 records in `call`, budget 3";
        let all = ": __bpf_prog_enter_recur 3, bpf_trampoline_* 2, migrate_disable 2, 2 more \
                   functions; `report --listing any` shows all";
        assert_eq!(explained("lbr_waste/fexit", &["another", any, call]), ["", all, ""]);
        let [attach, detach] = ["attach", "detach"].map(|phase| {
            format!("attach.kprobe_multi.10.{phase}.instructions is 9, budget 8 and 1 %")
        });
        let told = explained("attach/kprobe.multi/10", &[&attach, &detach]);
        for one in told {
            assert!(one.starts_with(": ftrace_check_record "), "{one}");
            assert!(one.ends_with("; `profile` shows all"), "{one}");
        }
    }

    #[test]
    fn axes_name_the_difference_before_what_follows_from_them() {
        let axis = differing(DifferingKind::Axis, "preempt", Some("none"), Some("full"));
        let options = ["CONFIG_A", "CONFIG_B"]
            .map(|name| differing(DifferingKind::Option, name, None, Some("y")));
        let [a, b] = options;
        for (settings, expected) in [
            (vec![], None),
            (vec![axis, a.clone()], Some("preempt=none -> full")),
            (vec![a.clone()], Some("CONFIG_A=n -> y")),
            (vec![a, b], Some("CONFIG_A=n -> y and 1 more")),
        ] {
            assert_eq!(of_settings(&settings).as_deref(), expected);
        }
    }

    #[test]
    fn many_causes_are_cut_and_counted() {
        let names: Vec<String> = (0..60).map(|number| format!(">f{number}")).collect();
        let changes: Vec<_> = names.iter().map(|to| (Came, "x", to.as_str())).collect();
        let found = [Finding { cause: code(&changes), moved: Vec::new() }];
        let told = told(&found, "k", None).remove(0);
        assert_eq!(told.causes.len(), 51);
        assert_eq!(told.causes[50], "and 10 more");
        let lines = told.lines();
        assert_eq!((lines.len(), lines[8].as_str()), (10, "+ x -> f7"));
        assert_eq!(lines[9], "and 43 more, in HTML and Markdown");
    }

    #[test]
    fn a_range_covers_tests_that_moved_the_same_numbers() {
        let mut all = shares(&[
            ("attach.fentry.1.attach.exact", Verdict::Worse, None),
            ("attach.fentry.10.attach.exact", Verdict::Worse, None),
            ("attach.kprobe.1.detach.exact", Verdict::Worse, None),
        ]);
        all[1].ratio = Some(1.25);
        let expected = [
            "attach of fentry.1, fentry.10: attach.exact -50.0 to +25.0 %",
            "attach of kprobe.1: detach.exact -50.0 %",
        ];
        assert_eq!(moved(&all), expected);
    }

    #[test]
    fn functions_are_parts_of_the_change() {
        let names = ["attach.fentry.1.attach.exact", "attach.fentry.10.attach.exact"];
        let moved =
            shares(&[(names[0], Verdict::Worse, Some(10)), (names[1], Verdict::Worse, Some(200))]);
        let work = |function: &str, parts: &[i64]| Work {
            function: function.to_owned(),
            parts: names
                .iter()
                .zip(parts)
                .map(|(name, part)| (name.parse().unwrap(), *part))
                .collect(),
        };
        let all = vec![work("small", &[0, 8]), work("f", &[9, 150]), work("g", &[-3])];
        let finding = Finding { cause: Cause::Work(all), moved };
        assert_eq!(
            causes(&finding),
            [
                "+ f: 75 to 90 % of the change",
                "- g: -30 to 0 % of the change",
                "~ all else: 25 to 40 %",
            ]
        );
        assert_eq!(told(&[finding], "k", None)[0].harmed.len(), 2);
        let moved = shares(&[("attach.fentry.1.attach", Verdict::Worse, None)]);
        let finding = Finding { cause: Cause::Work(vec![work("f", &[])]), moved };
        assert_eq!(causes(&finding), ["~ work of f"]);
        // A part that makes it better is not to blame.
        let moved = shares(&[("lbr_waste.fexit.any", Verdict::Worse, Some(-2))]);
        let finding = Finding { cause: code(&[(Went, "f", ">g")]), moved };
        assert_eq!(told(&[finding], "k", None)[0].harmed, []);
    }

    /// An estimate's terms are another split of the same change than its functions.
    #[test]
    fn terms_are_parts_of_an_estimate() {
        let names = ["attach.fentry.1.attach.estimated_cycles", "trigger.fexit.instructions"];
        let work = Work { function: "f".to_owned(), parts: vec![(names[0].parse().unwrap(), 100)] };
        let parts = ["- cycles of instructions: -10 % of the change"];
        let both = ["+ cycles of mispredicted returns: 108 % of the change", parts[0]];
        let rest = "~ cycles of all else: 2 %";
        for (cause, others, expected) in [
            (Cause::Unknown, &[][..], [&both[..], &[rest]].concat()),
            (
                Cause::Work(vec![work]),
                &[],
                [&["+ f: 100 % of the change"], &both[..], &[rest]].concat(),
            ),
            (
                code(&[(Resized, "f", "f")]),
                &[(names[1], Verdict::Worse, Some(2))],
                [&["~ code of f"], &both[..], &[rest]].concat(),
            ),
            // It may not be the cause of the other metric.
            (
                Cause::Unknown,
                &[(names[1], Verdict::Worse, Some(2))],
                [&["no cause recorded"], &both[..], &[rest]].concat(),
            ),
        ] {
            let mut moved = shares(&[(names[0], Verdict::Worse, Some(100))]);
            moved[0].terms =
                vec![(Term::Returns, 108), (Term::Instructions, -10), (Term::Pages, 3)];
            moved.extend(shares(others));
            assert_eq!(causes(&Finding { cause, moved }), expected);
        }
    }

    #[test]
    fn mechanisms_with_the_same_changes_stand_together() {
        use Verdict::{Better, Worse};
        for (all, direction, expected) in [
            (
                shares(&[
                    ("lbr_waste.fentry.any", Worse, Some(2)),
                    ("lbr_waste.fentry.call", Worse, Some(1)),
                    ("lbr_waste.fexit.any", Worse, Some(2)),
                    ("lbr_waste.fexit.call", Worse, Some(1)),
                    ("lbr_waste.kprobe.any", Worse, Some(1)),
                    ("trigger.fentry.instructions", Worse, Some(9)),
                ]),
                "worse",
                vec![
                    "lbr_waste of fentry, fexit: any +2, call +1",
                    "lbr_waste of kprobe: any +1",
                    "trigger of fentry: instructions +9",
                ],
            ),
            // A share may go the other way than the whole metric.
            (
                shares(&[("lbr_waste.fexit.any", Better, Some(1))]),
                "in part worse",
                vec!["lbr_waste of fexit: any +1"],
            ),
            (
                shares(&[("lbr_waste.fexit.any", Worse, Some(-1))]),
                "in part better",
                vec!["lbr_waste of fexit: any -1"],
            ),
            (
                shares(&[
                    ("lbr_waste.fentry.any", Worse, Some(-1)),
                    ("lbr_waste.fexit.any", Worse, Some(1)),
                ]),
                "better and worse",
                vec!["lbr_waste of fentry: any -1", "lbr_waste of fexit: any +1"],
            ),
            (
                shares(&[("attach.fentry.10.attach.instructions", Better, Some(-7))]),
                "better",
                vec!["attach of fentry.10: attach.instructions -50.0 %"],
            ),
        ] {
            let finding = Finding { cause: code(&[(Came, "f", "g")]), moved: all };
            assert_eq!(
                (verdict(&finding), moved(&finding.moved)),
                (direction, expected.into_iter().map(str::to_owned).collect())
            );
        }
    }
}
