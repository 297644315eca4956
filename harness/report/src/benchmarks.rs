// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report for services that follow benchmarks over commits: `github-action-benchmark`
//! (`customSmallerIsBetter`) and Bencher (its Metric Format).

use crate::{
    json::printed,
    numbers::{self, Number, Unit},
};
use serde_json::{Map, Value, json};
use tramplab_analysis::{branch::Model, spread::Spread};
use tramplab_model::run::Run;

/// A list of results, of which less is better. Rates are left out: more of them is better, and one
/// file has one direction.
pub fn github(run: &Run, asked: Option<Model>) -> String {
    let entry = |number: &Number| {
        let spread = spread(number);
        let mut entry = json!({
            "name": number.name(),
            "unit": number.unit.word(),
            "value": whole(spread.median),
        });
        if number.samples.len() > 1 {
            let [min, max] = [spread.min, spread.max].map(whole);
            entry["range"] = format!("{min}..{max}").into();
            entry["extra"] = format!("median of {} boots", number.samples.len()).into();
        }
        entry
    };
    let numbers = numbers::of(run, asked);
    let is_less_better = |number: &&Number| !number.metric.definition().more_is_better;
    printed(&Value::Array(numbers.iter().filter(is_less_better).map(entry).collect()))
}

/// An object with a benchmark for each metric, which has one measure.
pub fn bencher(run: &Run, asked: Option<Model>) -> String {
    let mut benchmarks = Map::new();
    for number in &numbers::of(run, asked) {
        let spread = spread(number);
        let mut metric = json!({"value": whole(spread.median)});
        if number.samples.len() > 1 {
            metric["lower_value"] = whole(spread.min);
            metric["upper_value"] = whole(spread.max);
        }
        benchmarks.insert(number.name(), json!({ measure(number.unit): metric }));
    }
    printed(&Value::Object(benchmarks))
}

fn spread(number: &Number) -> Spread {
    Spread::of(number.samples.iter().copied()).expect("a number has a sample")
}

/// A name in lower case with dashes, which Bencher makes a measure of. `latency` and `throughput`
/// are its own, in nanoseconds and in operations per second.
fn measure(unit: Unit) -> String {
    match unit {
        Unit::Time => "latency".to_owned(),
        Unit::ExactTime => "exact-latency".to_owned(),
        Unit::Rate => "throughput".to_owned(),
        Unit::UnsteadyInstructions => "unsteady-instructions".to_owned(),
        unit => unit.word().replace('_', "-"),
    }
}

/// Writes whole numbers as integers.
fn whole(number: f64) -> Value {
    if number.fract() == 0.0 { json!(number as i64) } else { json!(number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::kinds::trigger::Cost;
    use tramplab_testdata::{commit, commit_id, schema, series, stored};

    /// After the README of github-action-benchmark, and Bencher's reference of its Metric Format.
    const GITHUB: &str = r##"{
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name", "unit", "value"],
            "additionalProperties": false,
            "properties": {
                "name": {"type": "string"},
                "unit": {"type": "string"},
                "value": {"type": "number"},
                "range": {"type": "string"},
                "extra": {"type": "string"}
            }
        }
    }"##;
    const BENCHER: &str = r##"{
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["value"],
                "additionalProperties": false,
                "properties": {
                    "value": {"type": "number"},
                    "lower_value": {"type": "number"},
                    "upper_value": {"type": "number"}
                }
            }
        }
    }"##;

    #[test]
    fn units_are_one_word() {
        for unit in Cost::counted().map(Unit::Counted) {
            let is_one = |word: &str, gap| word.chars().all(|c| c.is_ascii_lowercase() || c == gap);
            assert!(is_one(unit.word(), '_'), "{}", unit.word());
            assert!(is_one(&measure(unit), '-'), "{}", measure(unit));
        }
    }

    fn checked(form: &str, text: &str) -> Value {
        let value = serde_json::from_str(text).unwrap();
        let errors = schema::errors(&serde_json::from_str(form).unwrap(), &value);
        assert_eq!(errors, Vec::<String>::new());
        value
    }

    #[test]
    fn both_have_the_numbers_of_the_run() {
        let run = series();
        let (github, bencher) =
            (checked(GITHUB, &github(&run, None)), checked(BENCHER, &bencher(&run, None)));
        for (kernel, wasted) in [
            ("6.12-source+lbr-helpers.0", 12),
            ("6.12-source+lbr-helpers.1", 10),
            ("6.12-source", 9),
        ] {
            let name = format!("x86_64/{kernel}/tcg/lbr_waste.fexit.any");
            let entry = github.as_array().unwrap().iter().find(|entry| entry["name"] == name);
            let expected = json!({"name": name, "unit": "records", "value": wasted});
            assert_eq!(entry, Some(&expected));
            assert_eq!(bencher[&name], json!({"records": {"value": wasted}}));
        }
        let names = numbers::of(&run, None).len();
        assert_eq!(bencher.as_object().unwrap().len(), names, "no two have one name");
        assert_eq!(github.as_array().unwrap().len(), names);
    }

    #[test]
    fn times_have_their_extremes() {
        let run = stored();
        let numbers = numbers::of(&run, None);
        let timed = numbers.iter().filter(|number| number.unit == Unit::Time);
        let timed: Vec<_> = timed.filter(|number| number.samples.len() > 1).collect();
        assert!(!timed.is_empty());
        let (github, bencher) =
            (checked(GITHUB, &github(&run, None)), checked(BENCHER, &bencher(&run, None)));
        for number in timed {
            let found = &bencher[number.name()]["latency"];
            let extreme = |pick: fn(f64, f64) -> f64| number.samples.iter().copied().reduce(pick);
            assert_eq!(found["lower_value"].as_f64(), extreme(f64::min));
            assert_eq!(found["upper_value"].as_f64(), extreme(f64::max));
            let all = github.as_array().unwrap();
            let entry = all.iter().find(|entry| entry["name"] == number.name()).unwrap();
            let range = format!("{}..{}", found["lower_value"], found["upper_value"]);
            assert_eq!(entry["range"], range);
            assert_eq!((&entry["unit"], &entry["value"]), (&json!("ns"), &found["value"]));
        }
    }

    /// A number keeps its name from commit to commit, or it is another benchmark.
    #[test]
    fn commits_of_a_repository_have_one_name() {
        let names = |run: &Run| numbers::of(run, None).iter().map(Number::name).collect::<Vec<_>>();
        let (old, new) = (commit(0, 0), commit(1, 2));
        assert_eq!(names(&old), names(&new));
        assert!(names(&old)[0].starts_with("x86_64/linux/tcg/"), "{}", names(&old)[0]);
        // A run of both tells them apart.
        let mut both = old;
        both.kernels.extend(new.kernels);
        both.cells.extend(new.cells);
        let full = format!("x86_64/linux-{}/tcg/", &commit_id(1)[..12]);
        assert!(names(&both).iter().any(|name| name.starts_with(&full)));
    }
}
