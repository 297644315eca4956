// SPDX-License-Identifier: MIT OR Apache-2.0
//! A comparison as JSON, for programs. `docs/comparison.schema.json` is made from these types.

use crate::{comparison::Verdicts, json::printed, judged::whose};
use schemars::JsonSchema;
use serde::Serialize;
use tramplab_analysis::compare::{
    self, Cause, Change, Compared, Comparison, Difference, runs::Differing,
};
use tramplab_model::code::FunctionSize;

/// Raise it when a field changes its type or meaning, or is removed.
const SCHEMA: u32 = 2;

/// The output of `compare --format json`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "tramplab comparison")]
pub struct Document {
    /// The version of this format.
    #[schemars(extend("const" = SCHEMA))]
    schema: u32,
    /// Kernel and run.
    base: String,
    head: String,
    /// The modelled CPU of wasted records, or the source of a driver's: `hardware`, `emulated`.
    model: String,
    /// In words: `1 better, 0 worse, 40 same`.
    summary: String,
    /// Reasons against the comparison.
    overlooked: Vec<String>,
    /// The causes of what is better or worse. A metric with several causes is in several findings.
    findings: Vec<Finding>,
    metrics: Vec<Metric>,
    /// Tests that were not measured on both sides.
    unmatched: Vec<Unmatched>,
    /// Tests that only the head's run has. They are not judged.
    head_only: Vec<HeadOnly>,
    /// That of `compare`.
    exit_code: u8,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Metric {
    /// As in every report: `lbr_waste.fexit.any`.
    name: String,
    unit: String,
    base: Side,
    head: Side,
    verdict: Verdict,
    /// Why it is the same although the numbers differ, or why it is not judged.
    reason: Option<String>,
    /// Only a time that was judged has one.
    ratio: Option<Ratio>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Finding {
    /// Changes of the code that a hit runs, in its order.
    code: Vec<Change>,
    /// Functions that execute more or fewer instructions as a thread attaches or detaches.
    work: Vec<Work>,
    /// The attaching thread waits for more or fewer RCU grace periods.
    waits: bool,
    /// Functions of the hit, or of attaching, whose code is longer or shorter.
    sizes: Vec<FunctionSize>,
    /// All in which the kernels differ. If this and the other lists are empty and it does not wait,
    /// the runs record no cause.
    settings: Vec<Differing>,
    moved: Vec<Share>,
}

/// A function, with its part in the change of metrics.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Work {
    function: String,
    moved: Vec<Part>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Part {
    metric: String,
    /// The part of the metric's change by this function, in the metric's unit.
    change: i64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Share {
    metric: String,
    /// The part of the metric's change by this cause, in the metric's unit. Null if the metric is
    /// no count.
    change: Option<i64>,
    /// How far the terms of the whole metric moved, the largest change first. Only estimated cycles
    /// have terms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    terms: Vec<Moved>,
}

/// Estimated cycles that are spent for one reason.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Moved {
    /// As reports name it: `mispredicted returns`.
    term: &'static str,
    change: i64,
}

/// The result of one side.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Side {
    /// In the metric's unit; of times the median of the boots. Null if it is no number: no record
    /// touches the traced function, a time budget ended the test, or it is a test's result.
    value: Option<f64>,
    /// As reports show it.
    text: String,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Verdict {
    Better,
    Worse,
    Same,
    NoDifferenceSeen,
    NotJudged,
}

/// Head / base, the geometric mean over pairs of boots, and its confidence interval.
#[derive(Serialize, JsonSchema)]
struct Ratio {
    mean: f64,
    low: f64,
    high: f64,
    pairs: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Unmatched {
    test: String,
    /// How the test ended.
    base: String,
    head: String,
    /// True if only the base measured it, which counts as worse.
    lost: bool,
}

#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct HeadOnly {
    test: String,
    head: String,
}

/// Renders a comparison. `verdicts` are the same in words.
pub fn render(comparison: &Comparison, verdicts: &Verdicts, exit_code: u8) -> String {
    let unmatched = comparison.unmatched.iter().map(|one| Unmatched {
        test: one.test.name(),
        base: one.base.clone(),
        head: one.head.clone(),
        lost: one.lost,
    });
    let head_only = comparison
        .head_only
        .iter()
        .map(|one| HeadOnly { test: one.test.name(), head: one.head.clone() });
    let document = Document {
        schema: SCHEMA,
        base: comparison.base.clone(),
        head: comparison.head.clone(),
        model: whose(comparison).to_owned(),
        summary: verdicts.summary.clone(),
        overlooked: verdicts.overlooked.clone(),
        findings: comparison.findings.iter().map(finding).collect(),
        metrics: comparison.metrics.iter().map(metric).collect(),
        unmatched: unmatched.collect(),
        head_only: head_only.collect(),
        exit_code,
    };
    printed(&document)
}

pub(crate) fn finding(finding: &compare::Finding) -> Finding {
    let moved = finding.moved.iter().map(|one| Share {
        metric: one.metric.to_string(),
        change: one.change,
        terms: one
            .terms
            .iter()
            .map(|(term, change)| Moved { term: term.name(), change: *change })
            .collect(),
    });
    let part = |(metric, change): &(compare::Metric, i64)| Part {
        metric: metric.to_string(),
        change: *change,
    };
    let of_work = |work: &compare::Work| Work {
        function: work.function.clone(),
        moved: work.parts.iter().map(part).collect(),
    };
    let mut told = Finding {
        code: Vec::new(),
        work: Vec::new(),
        waits: finding.cause == Cause::Waits,
        sizes: Vec::new(),
        settings: Vec::new(),
        moved: moved.collect(),
    };
    match &finding.cause {
        Cause::Code(changes) => told.code.clone_from(changes),
        Cause::Work(work) => told.work = work.iter().map(of_work).collect(),
        Cause::Size(sizes) => told.sizes.clone_from(sizes),
        Cause::Settings(settings) => told.settings.clone_from(settings),
        Cause::Waits | Cause::Unknown => {}
    }
    told
}

fn metric(compared: &Compared) -> Metric {
    let side = |value: &compare::Value| Side {
        // A median of nothing is no number, which JSON cannot hold.
        value: value.number().filter(|number| number.is_finite()),
        text: value.to_string(),
    };
    let (verdict, reason) = match &compared.verdict {
        compare::Verdict::Better => (Verdict::Better, None),
        compare::Verdict::Worse => (Verdict::Worse, None),
        compare::Verdict::Same(Difference::None) => (Verdict::Same, None),
        compare::Verdict::Same(Difference::Tolerated) => (Verdict::Same, Some("within tolerance")),
        compare::Verdict::Same(Difference::Layout) => (Verdict::Same, Some("layout")),
        compare::Verdict::NoDifferenceSeen => (Verdict::NoDifferenceSeen, None),
        compare::Verdict::NotJudged(reason) => (Verdict::NotJudged, Some(*reason)),
    };
    Metric {
        name: compared.metric.to_string(),
        unit: compared.metric.unit().to_owned(),
        base: side(&compared.base),
        head: side(&compared.head),
        verdict,
        reason: reason.map(str::to_owned),
        ratio: compared.ratio.map(|ratio| Ratio {
            mean: ratio.mean,
            low: ratio.low,
            high: ratio.high,
            pairs: ratio.n,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::verdicts;
    use serde_json::{Value, json};
    use tramplab_testdata::{schema, series};

    const SCHEMA: &str = include_str!("../../../docs/comparison.schema.json");

    #[test]
    fn has_each_verdict_and_follows_its_schema() {
        let mut run = series();
        let (head, of_head) = (run.series[0].head().kernel.clone(), |cell: &&mut _| {
            let cell: &tramplab_model::run::Cell = cell;
            cell.id.test.name() == "lbr_waste/kretprobe.multi"
        });
        let lost = run.cells.iter_mut().filter(|cell| cell.id.kernel == head).find(of_head);
        lost.unwrap().measurement = None;
        let comparison = compare::whole(&run, &run.series[0], None);
        let text = render(&comparison, &verdicts(&comparison, [None; 2]), 1);
        let document: Value = serde_json::from_str(&text).unwrap();
        let errors = schema::errors(&serde_json::from_str(SCHEMA).unwrap(), &document);
        assert_eq!(errors, Vec::<String>::new());
        let metrics = document["metrics"].as_array().unwrap();
        assert_eq!(metrics.len(), comparison.metrics.len());
        for (metric, compared) in metrics.iter().zip(&comparison.metrics) {
            assert_eq!(metric["name"], compared.metric.to_string());
            assert_eq!(metric["base"]["text"], compared.base.to_string());
            assert_eq!(metric["head"]["value"].is_number(), compared.head.number().is_some());
            let word = metric["verdict"].as_str().unwrap().replace('_', " ");
            assert!(compared.verdict.to_string().starts_with(&word), "{metric}");
        }
        let fexit = metrics.iter().find(|metric| metric["name"] == "lbr_waste.fexit.any");
        let expected = json!({
            "name": "lbr_waste.fexit.any",
            "unit": "records",
            "base": {"value": 12.0, "text": "12"},
            "head": {"value": 9.0, "text": "9"},
            "verdict": "better",
            "reason": null,
            "ratio": null,
        });
        assert_eq!(fexit, Some(&expected));
        let found = document["findings"].as_array().unwrap();
        assert_eq!(found.len(), comparison.findings.len());
        let expected = json!({
            "change": "went",
            "is_call": true,
            "from": "bpf_prog_*",
            "to": "bpf_get_smp_processor_id",
        });
        assert_eq!(found[0]["code"][0], expected);
        let expected = json!({"metric": "lbr_waste.fexit.any", "change": -3});
        assert_eq!(found[0]["moved"][0], expected);
        let judged = metrics.iter().filter(|metric| metric["ratio"].is_object()).count();
        let of_times = comparison.metrics.iter().filter(|compared| compared.ratio.is_some());
        assert_eq!(judged, of_times.count());
    }
}
