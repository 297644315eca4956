// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stored runs as checks of a mail, for `b4 review` (0.15 and newer): JSON with a status, a line
//! and a text. `docs/series.md` has b4's configuration.

use crate::{comparison, json::printed, mail};
use serde::Serialize;
use std::collections::BTreeMap;
use tramplab_analysis::compare::{self, Verdict};
use tramplab_model::{
    run::{Arch, Built, PatchIds, Run, Series, SeriesStep},
    text,
};

/// b4's order, from good to bad. b4 has no word for "not measured": that is a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Pass,
    Warn,
    Fail,
}

/// b4 keeps one check for each mail and tool.
#[derive(Serialize)]
struct Check {
    tool: &'static str,
    status: Status,
    summary: String,
    details: String,
}

/// The place of a mail in a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Cover,
    /// Counted from 0.
    Patch(usize),
}

/// Answers for a mail, from the newest run of each suite, architecture and base that measured its
/// series.
/// An empty list if none did. `runs` are by start time.
pub fn render(runs: &[Run], mail: &PatchIds) -> String {
    // An unchanged patch of another version has the same patch-id: the mail itself goes first.
    let by_mail: fn(&PatchIds, &PatchIds) -> bool =
        |a, b| a.message_id.is_some() && a.message_id == b.message_id;
    let by_diff: fn(&PatchIds, &PatchIds) -> bool =
        |a, b| a.patch_id.is_some() && a.patch_id == b.patch_id;
    let of_mail = find(runs, mail, by_mail);
    let checked = match of_mail.is_empty() {
        true => check(&find(runs, mail, by_diff), false),
        false => check(&of_mail, true),
    };
    let checks: Vec<Check> = checked.into_iter().collect();
    printed(&checks)
}

/// By suite, architecture and base.
type Found<'a> = BTreeMap<(&'a str, Arch, &'a str), (&'a Run, &'a Series, Part)>;

fn find<'a>(
    runs: &'a [Run],
    mail: &PatchIds,
    is_same: fn(&PatchIds, &PatchIds) -> bool,
) -> Found<'a> {
    let part = |series: &Series| {
        let cover = PatchIds { message_id: series.cover.clone(), patch_id: None };
        let of_patch = || series.ids.iter().position(|ids| is_same(ids, mail));
        if is_same(&cover, mail) { Some(Part::Cover) } else { of_patch().map(Part::Patch) }
    };
    let series = runs.iter().flat_map(|run| run.series.iter().map(move |series| (run, series)));
    let found = series.filter_map(|(run, series)| {
        let key = (run.suite.name.as_str(), series.arch, series.base().kernel.as_str());
        Some((key, (run, series, part(series)?)))
    });
    // A later run replaces an earlier one.
    found.collect()
}

/// `is_own`: the runs are of the mail itself, not of another version of it.
fn check(found: &Found, is_own: bool) -> Option<Check> {
    let several = found.len() > 1;
    let mut all = Check {
        tool: "tramplab",
        status: Status::Pass,
        summary: String::new(),
        details: String::new(),
    };
    for ((suite, arch, base), &(run, series, part)) in found {
        let (status, summary, details) = of_run(run, series, part, is_own);
        all.status = all.status.max(status);
        let between = if all.summary.is_empty() { "" } else { "; " };
        let name = if several { format!("{suite}, {arch}, {base}: ") } else { String::new() };
        all.summary += &format!("{between}{name}{summary}");
        all.details += &format!("run {}, suite {suite}, {arch}, {base}\n{details}\n", run.id);
    }
    all.summary = text::line(&all.summary);
    (!found.is_empty()).then_some(all)
}

/// Judges a patch by itself if the run measured it by itself, else the whole series.
fn of_run(run: &Run, series: &Series, part: Part, is_own: bool) -> (Status, String, String) {
    let is_patch = |pair: &[SeriesStep]| match part {
        Part::Cover => false,
        Part::Patch(index) => [0, 1].map(|at| pair[at].patches as usize) == [index, index + 1],
    };
    let walked = series.steps.windows(2).position(is_patch).filter(|_| series.steps.len() > 2);
    let (steps, comparison) = match walked {
        Some(at) => {
            let mut all = compare::walk(run, series, None);
            ([&series.steps[at], &series.steps[at + 1]], all.swap_remove(at))
        }
        None => ([series.base(), series.head()], compare::whole(run, series, None)),
    };
    let trouble = comparison::trouble(run, series, steps);
    let is_worse = comparison.count(|verdict| *verdict == Verdict::Worse) > 0
        || comparison.unmatched.iter().any(|unmatched| unmatched.lost);
    let is_unbuilt = |step: &SeriesStep| matches!(step.built, Built::Failed { .. });
    // A patch that does not build keeps those behind it from being built.
    let does_not_build = match walked {
        Some(_) => is_unbuilt(steps[1]),
        None => series.steps.iter().any(is_unbuilt),
    };
    // The patches before it may be others in this version.
    let is_other = !is_own && walked.is_none();
    let is_part = run.interrupted || run.shard.is_some();
    let status = match () {
        () if is_worse || does_not_build => Status::Fail,
        () if trouble.is_some() || is_part || is_other || comparison.is_empty() => Status::Warn,
        () => Status::Pass,
    };
    let mut verdicts = comparison::verdicts(&comparison, [None; 2]);
    verdicts.title = Some(comparison::title(series, steps[1], walked.is_none()));
    if let Some(trouble) = trouble {
        verdicts.summary = format!("{trouble}: {}", verdicts.summary);
    }
    let details = mail::render_verdicts(&verdicts, true);
    let mut summary = match (part, walked) {
        (Part::Patch(_), None) if is_other => {
            format!("another version's whole series: {}", verdicts.summary)
        }
        (Part::Patch(_), None) => format!("whole series: {}", verdicts.summary),
        _ => verdicts.summary,
    };
    if run.shard.is_some() {
        summary = format!("one shard, merge the others: {summary}");
    }
    (status, summary, details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use tramplab_model::run::{Kernel, Shard};
    use tramplab_testdata::series;

    /// The series `lbr-helpers`, as if it had come by mail.
    fn mailed() -> Run {
        let mut run = series();
        run.series[0].cover = Some("cover@host".to_owned());
        let ids = |number: u32| PatchIds {
            message_id: Some(format!("{number}@host")),
            patch_id: Some(format!("{number:040x}")),
        };
        run.series[0].ids = vec![ids(1), ids(2)];
        run
    }

    fn answer(runs: &[Run], message_id: &str, patch_id: u32) -> Value {
        let mail = PatchIds {
            message_id: Some(message_id.to_owned()),
            patch_id: (patch_id > 0).then(|| format!("{patch_id:040x}")),
        };
        serde_json::from_str(&render(runs, &mail)).unwrap()
    }

    #[test]
    fn answers_for_each_mail_of_a_series() {
        let runs = [mailed()];
        for (message_id, patch_id, summary, waste) in [
            ("cover@host", 0, "12 better, 0 worse, 13 same", "any 12 -> 9,"),
            ("1@host", 1, "12 better, 0 worse, 13 same", "any 12 -> 10,"),
            ("2@host", 2, "10 better, 0 worse, 15 same", "any 10 -> 9,"),
            // Sent again.
            ("v2@host", 2, "10 better, 0 worse, 15 same", "any 10 -> 9,"),
        ] {
            let checks = answer(&runs, message_id, patch_id);
            let [check] = &checks.as_array().unwrap()[..] else { panic!("{checks}") };
            assert_eq!((&check["tool"], &check["status"]), (&"tramplab".into(), &"pass".into()));
            assert!(check["summary"].as_str().unwrap().starts_with(summary), "{check}");
            let details = check["details"].as_str().unwrap();
            let line = details.lines().find(|line| line.contains(" lbr_waste.fexit: "));
            assert!(line.unwrap().contains(waste), "{details}");
        }
        assert_eq!(answer(&runs, "other@host", 3), Value::Array(vec![]));
        let nothing = render(&runs, &PatchIds::default());
        assert_eq!(nothing, "[]\n", "older runs have no ids, and neither has this mail");
    }

    #[test]
    fn a_patch_that_was_not_measured_alone_has_the_verdict_of_its_series() {
        let mut run = mailed();
        run.series[0].steps.remove(1);
        let check = &answer(&[run], "1@host", 0)[0];
        assert!(check["summary"].as_str().unwrap().starts_with("whole series: 12 better"));
        // Another version only gets a warning: its first patch may be another.
        let mut run = mailed();
        run.series[0].steps.remove(1);
        let check = &answer(&[run], "v2@host", 2)[0];
        let summary = check["summary"].as_str().unwrap();
        assert!(summary.starts_with("another version's whole series: 12 better"), "{summary}");
        assert_eq!(check["status"], "warn");
    }

    #[test]
    fn status_is_that_of_the_worst_and_of_the_newest_run() {
        let good = mailed();
        // The results of base and head, swapped.
        let mut worse = mailed();
        let [first, last] = [0, 2].map(|at: usize| good.series[0].steps[at].kernel.clone());
        for cell in &mut worse.cells {
            match &cell.id.kernel {
                kernel if *kernel == first => cell.id.kernel.clone_from(&last),
                kernel if *kernel == last => cell.id.kernel.clone_from(&first),
                _ => {}
            }
        }
        let mut unbuilt = mailed();
        unbuilt.series[0].steps[2].built = Built::Failed { message: "a.c:1: error".to_owned() };
        let mut stopped = mailed();
        stopped.interrupted = true;
        // Measured patch by patch, with one in the middle that does not build.
        let mut middle = mailed();
        middle.series[0].steps[1].built = Built::Failed { message: "a.c:1: error".to_owned() };
        middle.series[0].steps[2].built = Built::NotReached;
        // A merged run has the series on another base too.
        let mut merged = worse.clone();
        let mut other = good.series[0].clone();
        for step in &mut other.steps {
            step.kernel = format!("other-{}", step.kernel);
        }
        let renamed = |mut kernel: Kernel| {
            kernel.name = format!("other-{}", kernel.name);
            kernel
        };
        merged.kernels.extend(good.kernels.iter().cloned().map(renamed));
        merged.series.push(other);
        let mut shard = good.clone();
        shard.shard = Some(Shard { partition: "hash:1/2".to_owned(), cells: Vec::new() });
        let status = |runs: &[Run]| answer(runs, "cover@host", 0)[0]["status"].clone();
        for (runs, expected) in [
            (vec![good.clone()], "pass"),
            (vec![worse.clone()], "fail"),
            (vec![worse.clone(), good.clone()], "pass"),
            (vec![good.clone(), unbuilt], "fail"),
            (vec![stopped.clone()], "warn"),
            (vec![middle], "fail"),
            (vec![merged], "fail"),
            (vec![shard], "warn"),
        ] {
            assert_eq!(status(&runs), expected);
        }
        stopped.suite.name = "other".to_owned();
        let both = answer(&[stopped, good], "cover@host", 0);
        assert_eq!(both[0]["status"], "warn");
        let summary = both[0]["summary"].as_str().unwrap();
        assert!(
            summary.contains("fixture, x86_64, ") && summary.contains(": 12 better"),
            "{summary}"
        );
        assert!(summary.contains("; other, x86_64, "), "{summary}");
    }
}
