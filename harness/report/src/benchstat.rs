// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as benchmark text of Go, which `benchstat` compares: a line for each number, or for
//! each boot of a time. The format is https://golang.org/design/14313-benchmark-format.

use crate::numbers::{self, Number, Unit};
use std::collections::BTreeSet;
use tramplab_analysis::branch::Model;
use tramplab_model::{run::Run, text};

impl Unit {
    /// Units that repeat and those that do not have different names. benchstat turns `ns` into
    /// seconds.
    fn go(self) -> &'static str {
        match self {
            Unit::UnsteadyInstructions => "unsteady-instructions",
            Unit::ExactTime => "exact-ns",
            unit => unit.word(),
        }
    }
}

pub fn render(run: &Run, asked: Option<Model>) -> String {
    let numbers = numbers::of(run, asked);
    // A line without a colon behind its first word is a comment.
    let mut out = format!("# tramplab {}\n", text::line(&run.id));
    let direction = |number: &Number| (number.unit, number.metric.definition().more_is_better);
    let units: BTreeSet<(Unit, bool)> = numbers.iter().map(direction).collect();
    for (unit, more_is_better) in units {
        let better = if more_is_better { "higher" } else { "lower" };
        let assume = if unit.repeats() { "exact" } else { "nothing" };
        out += &format!("Unit {} better={better} assume={assume}\n", unit.go());
    }
    let mut before = None;
    for number in &numbers {
        let block = (&number.kernel.name, number.kernel.arch, number.accel.name(), number.model);
        if before != Some(block) {
            let (kernel, arch, accel, model) = block;
            let kernel = text::line(kernel);
            out += &format!("\nkernel: {kernel}\narch: {arch}\naccel: {accel}\nmodel: {model}\n");
        }
        before = Some(block);
        for sample in &number.samples {
            let name = capitalised(&number.metric.to_string());
            out += &format!("Benchmark{name} 1 {sample} {}\n", number.unit.go());
        }
    }
    out
}

/// The grammar demands an upper-case letter after `Benchmark`. Names of metrics have no space, and
/// all else is allowed.
fn capitalised(metric: &str) -> String {
    let mut letters = metric.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tramplab_analysis::compare::{self, Metric, Value};
    use tramplab_model::run::CellId;
    use tramplab_testdata::{each_alone, series, stored, two_architectures};

    type Key = (String, String, String);
    /// Samples with their unit.
    type Samples = BTreeMap<Key, Vec<(f64, String)>>;

    /// Reads as the specification says, and returns the samples by kernel, architecture and metric,
    /// and the units' metadata.
    fn read(text: &str) -> (Samples, BTreeMap<String, String>) {
        let (mut samples, mut units) = (Samples::new(), BTreeMap::new());
        let mut keys: BTreeMap<&str, &str> = BTreeMap::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let Some(name) = line.strip_prefix("Benchmark") {
                assert!(name.starts_with(char::is_uppercase), "{line}");
                let [name, "1", value, unit] = fields[..] else { panic!("{line}") };
                let name = name.strip_prefix("Benchmark").unwrap();
                let metric: Metric = (name[..1].to_lowercase() + &name[1..]).parse().unwrap();
                let key = (keys["kernel"].into(), keys["arch"].into(), metric.to_string());
                let sample = (value.parse().unwrap(), unit.to_owned());
                samples.entry(key).or_default().push(sample);
                assert!(units.contains_key(unit), "{line}");
            } else if fields.first() == Some(&"Unit") {
                units.insert(fields[1].to_owned(), fields[2..].join(" "));
            } else if let Some((key, value)) = line.split_once(": ") {
                assert!(key.chars().all(|c| c.is_ascii_lowercase()), "{line}");
                keys.insert(key, value);
            } else {
                assert!(line.is_empty() || line.starts_with("# "), "{line}");
            }
        }
        (samples, units)
    }

    #[test]
    fn has_the_numbers_of_the_run() {
        let (samples, units) = read(&render(&series(), None));
        for (kernel, wasted) in
            [("6.12-source+lbr-helpers.0", 12.0), ("6.12-source+lbr-helpers.1", 10.0)]
        {
            let of = |metric: &str| {
                samples[&(kernel.to_owned(), "x86_64".to_owned(), metric.to_owned())].clone()
            };
            assert_eq!(of("lbr_waste.fexit.any"), [(wasted, "records".to_owned())]);
        }
        assert_eq!(units["records"], "better=lower assume=exact");
    }

    /// A sample for each boot, so that benchstat has what it needs to judge.
    #[test]
    fn times_have_a_sample_for_each_boot() {
        for run in each_alone().iter().chain([&stored(), &two_architectures()]) {
            let (samples, units) = read(&render(run, None));
            for cell in &run.cells {
                for (metric, value) in compare::values(cell, Model::choose(None, cell.id.arch)) {
                    let CellId { kernel, arch, .. } = &cell.id;
                    let key = (kernel.clone(), arch.to_string(), metric.to_string());
                    let found = samples.get(&key).map_or(&[][..], |all| all);
                    let expected = match &value {
                        Value::Times(ms) => ms.iter().map(|ms| (ms * 1e7).round() / 10.0).collect(),
                        Value::ExactTime(ns) => vec![*ns as f64],
                        Value::Waiting(waiting) => {
                            waiting.level().map(|ns| ns as f64).into_iter().collect()
                        }
                        value => Vec::from_iter(value.number()),
                    };
                    let numbers: Vec<f64> = found.iter().map(|(number, _)| *number).collect();
                    assert_eq!(numbers, expected, "{key:?}");
                    let Some((_, unit)) = found.first() else { continue };
                    let assumed = if unit == "ns" { "nothing" } else { "exact" };
                    assert_eq!(units[unit], format!("better=lower assume={assumed}"), "{key:?}");
                }
            }
        }
    }
}
