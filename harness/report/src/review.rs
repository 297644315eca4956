// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stored runs as checks of a mail, for `b4 review` (0.15 and newer): JSON with a status, a line
//! and a text. `docs/series.md` has b4's configuration.

use crate::{comparison, json::printed, mail};
use serde::Serialize;
use std::collections::BTreeMap;
use tramplab_analysis::compare::{self, Verdict};
use tramplab_model::{
    run::{Arch, Built, PatchIds, Run, Series, Step},
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

/// What a mail is in a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Cover,
    /// Counted from 0.
    Patch(usize),
}

/// Answers for a mail, from the newest run of each suite and architecture that measured its series.
/// An empty list if none did. `runs` are by start time.
pub fn render(runs: &[Run], mail: &PatchIds) -> String {
    // An unchanged patch of another version has the same patch-id: the mail itself goes first.
    let by_mail: fn(&PatchIds, &PatchIds) -> bool =
        |a, b| a.message_id.is_some() && a.message_id == b.message_id;
    let by_diff: fn(&PatchIds, &PatchIds) -> bool =
        |a, b| a.patch_id.is_some() && a.patch_id == b.patch_id;
    let found = [by_mail, by_diff].into_iter().map(|is_same| find(runs, mail, is_same));
    let found = found.into_iter().find(|found| !found.is_empty()).unwrap_or_default();
    let checks: Vec<Check> = check(&found).into_iter().collect();
    printed(&checks)
}

type Found<'a> = BTreeMap<(&'a str, Arch), (&'a Run, &'a Series, Part)>;

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
        let key = (run.suite.name.as_str(), series.arch);
        Some((key, (run, series, part(series)?)))
    });
    // A later run replaces an earlier one.
    found.collect()
}

fn check(found: &Found) -> Option<Check> {
    let several = found.len() > 1;
    let mut all = Check {
        tool: "tramplab",
        status: Status::Pass,
        summary: String::new(),
        details: String::new(),
    };
    for ((suite, arch), &(run, series, part)) in found {
        let (status, summary, details) = of_run(run, series, part);
        all.status = all.status.max(status);
        let between = if all.summary.is_empty() { "" } else { "; " };
        let name = if several { format!("{suite}, {arch}: ") } else { String::new() };
        all.summary += &format!("{between}{name}{summary}");
        all.details += &format!("run {}, suite {suite}, {arch}\n{details}\n", run.id);
    }
    all.summary = text::line(&all.summary);
    (!found.is_empty()).then_some(all)
}

/// Judges a patch by itself if the run measured it by itself, else the whole series.
fn of_run(run: &Run, series: &Series, part: Part) -> (Status, String, String) {
    let is_patch = |pair: &[Step]| match part {
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
    let status = match () {
        () if is_worse || matches!(steps[1].built, Built::Failed { .. }) => Status::Fail,
        () if trouble.is_some() || run.interrupted || comparison.is_empty() => Status::Warn,
        () => Status::Pass,
    };
    let mut verdicts = comparison::verdicts(&comparison, [None; 2]);
    if let Some(trouble) = trouble {
        verdicts.summary = format!("{trouble}: {}", verdicts.summary);
    }
    let details = mail::render_verdicts(&verdicts, true);
    let summary = match (part, walked) {
        (Part::Patch(_), None) => format!("whole series: {}", verdicts.summary),
        _ => verdicts.summary,
    };
    (status, summary, details)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
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
            ("cover@host", 0, "12 better, 0 worse, 13 same", "12 -> 9  -3"),
            ("1@host", 1, "12 better, 0 worse, 13 same", "12 -> 10  -2"),
            ("2@host", 2, "10 better, 0 worse, 15 same", "10 -> 9  -1"),
            // Sent again.
            ("v2@host", 2, "10 better, 0 worse, 15 same", "10 -> 9  -1"),
        ] {
            let checks = answer(&runs, message_id, patch_id);
            let [check] = &checks.as_array().unwrap()[..] else { panic!("{checks}") };
            assert_eq!((&check["tool"], &check["status"]), (&"tramplab".into(), &"pass".into()));
            assert!(check["summary"].as_str().unwrap().starts_with(summary), "{check}");
            let details = check["details"].as_str().unwrap();
            let line = details.lines().find(|line| line.contains(" lbr_waste.fexit.any "));
            assert!(line.unwrap().ends_with(waste), "{details}");
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
    }

    #[test]
    fn status_is_that_of_the_worst_and_of_the_newest_run() {
        let good = mailed();
        // The series the other way around is worse.
        let mut worse = mailed();
        worse.series[0].steps.reverse();
        let patches = [0, 1, 2];
        for (step, patches) in worse.series[0].steps.iter_mut().zip(patches) {
            step.patches = patches;
        }
        let mut unbuilt = mailed();
        unbuilt.series[0].steps[2].built = Built::Failed { message: "a.c:1: error".to_owned() };
        let mut stopped = mailed();
        stopped.interrupted = true;
        let status = |runs: &[Run]| answer(runs, "cover@host", 0)[0]["status"].clone();
        for (runs, expected) in [
            (vec![good.clone()], "pass"),
            (vec![worse.clone()], "fail"),
            (vec![worse.clone(), good.clone()], "pass"),
            (vec![good.clone(), unbuilt], "fail"),
            (vec![stopped.clone()], "warn"),
        ] {
            assert_eq!(status(&runs), expected);
        }
        stopped.suite.name = "other".to_owned();
        let both = answer(&[stopped, good], "cover@host", 0);
        assert_eq!(both[0]["status"], "warn");
        let summary = both[0]["summary"].as_str().unwrap();
        assert!(summary.contains("fixture, x86_64: 12 better"), "{summary}");
        assert!(summary.contains("; other, x86_64: 12 better"), "{summary}");
    }
}
