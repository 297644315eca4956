// SPDX-License-Identifier: MIT OR Apache-2.0
//! The causes of what changed, in words.

// A stranger's run may have any number: saturate, or use floating point.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::disallowed_methods))]

use std::collections::BTreeSet;
use tramplab_analysis::compare::{Cause, Change, ChangeKind, Finding, Share, Verdict};
use tramplab_model::table::Table;

/// A finding in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// `better`, `worse` or both.
    pub verdict: &'static str,
    /// `+ call and return of f in g`
    pub causes: Vec<String>,
    /// `lbr_waste of fentry, fexit: any +2, call +1`
    pub moved: Vec<String>,
    /// `patch 2/3 "bpf: Note each program"`, if it is known.
    pub patch: Option<String>,
}

/// The caption of the table.
pub const FINDINGS: &str = "Findings";
/// Changes of one finding that are named, where there is room and where not.
const NAMED: [usize; 2] = [50, 8];

/// `patch` is the one between base and head, if there is one.
pub fn told(findings: &[Finding], patch: Option<&str>) -> Vec<Told> {
    let one = |finding: &Finding| Told {
        verdict: verdict(finding),
        causes: causes(&finding.cause),
        moved: moved(&finding.moved),
        patch: patch.map(str::to_owned),
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

impl Told {
    /// `worse: patch 2/3 "bpf: Note each program"`, then lines for causes and kinds of test.
    pub fn lines(&self) -> Vec<String> {
        let head = match &self.patch {
            Some(patch) => format!("{}: {patch}", self.verdict),
            None => self.verdict.to_owned(),
        };
        let more = self.causes.len().saturating_sub(NAMED[1]);
        let more = (more > 0).then(|| format!("and {more} more, in HTML and Markdown"));
        let causes = self.causes.iter().take(NAMED[1]).chain(&more);
        [&head].into_iter().chain(causes).chain(&self.moved).cloned().collect()
    }
}

fn verdict(Finding { cause, moved }: &Finding) -> &'static str {
    let is_better = |share: &Share| match (cause, share.change) {
        (Cause::Code(_), Some(change)) => (change < 0) != share.metric.definition().more_is_better,
        // The rest of a change may go the other way.
        _ => share.verdict == Verdict::Better,
    };
    let better = moved.iter().filter(|share| is_better(share)).count();
    match better {
        0 => "worse",
        all if all == moved.len() => "better",
        _ => "better and worse",
    }
}

fn causes(cause: &Cause) -> Vec<String> {
    let Cause::Code(changes) = cause else {
        return vec!["no cause found in the records".to_owned()];
    };
    let mut words: Vec<String> = Vec::new();
    let mut told = BTreeSet::new();
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

fn mark(kind: ChangeKind) -> char {
    if kind == ChangeKind::Came { '+' } else { '-' }
}

/// `lbr_waste of fentry, fexit: any +2, call +1; trigger of fentry: instructions +9`
fn moved(shares: &[Share]) -> Vec<String> {
    // By kind of test and by what changed how, in the order of the metrics.
    let mut subjects: Vec<(String, Vec<String>)> = Vec::new();
    for Share { metric, change, ratio, .. } in shares {
        let name = metric.to_string();
        let (subject, number) = name.rsplit_once('.').unwrap_or((&name, ""));
        let change = match (change, ratio) {
            (Some(change), _) => format!(" {change:+}"),
            (None, Some(ratio)) => format!(" {:+.1} %", 100.0 * (ratio - 1.0)),
            (None, None) => String::new(),
        };
        let number = format!("{number}{change}");
        match subjects.iter_mut().find(|(of, _)| of == subject) {
            Some((_, numbers)) => numbers.push(number),
            None => subjects.push((subject.to_owned(), vec![number])),
        }
    }
    let mut groups: Vec<(&str, Vec<&str>, &[String])> = Vec::new();
    for (subject, numbers) in &subjects {
        let (kind, of) = subject.split_once('.').unwrap_or((subject, ""));
        match groups.iter_mut().find(|(of, _, same)| *of == kind && same == numbers) {
            Some((_, names, _)) => names.push(of),
            None => groups.push((kind, vec![of], numbers)),
        }
    }
    let words = groups.into_iter().map(|(kind, names, numbers)| {
        format!("{kind} of {}: {}", names.join(", "), numbers.join(", "))
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
            (Cause::Unknown, vec!["no cause found in the records"]),
        ] {
            assert_eq!(causes(&cause), expected, "{cause:?}");
        }
    }

    #[test]
    fn many_causes_are_cut_and_counted() {
        let names: Vec<String> = (0..60).map(|number| format!(">f{number}")).collect();
        let changes: Vec<_> = names.iter().map(|to| (Came, "x", to.as_str())).collect();
        let found = [Finding { cause: code(&changes), moved: Vec::new() }];
        let told = told(&found, None).remove(0);
        assert_eq!(told.causes.len(), 51);
        assert_eq!(told.causes[50], "and 10 more");
        let lines = told.lines();
        assert_eq!((lines.len(), lines[8].as_str()), (10, "+ x -> f7"));
        assert_eq!(lines[9], "and 43 more, in HTML and Markdown");
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
                shares(&[
                    ("lbr_waste.fentry.any", Worse, Some(-1)),
                    ("lbr_waste.fexit.any", Worse, Some(1)),
                ]),
                "better and worse",
                vec!["lbr_waste of fentry: any -1", "lbr_waste of fexit: any +1"],
            ),
            (
                shares(&[("attach.fentry.10.attach.instructions", Better, None)]),
                "better",
                vec!["attach of fentry.10.attach: instructions -50.0 %"],
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
