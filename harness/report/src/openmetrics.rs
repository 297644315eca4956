// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histories as OpenMetrics text (version 1.0), for Prometheus: a gauge for each unit, a series for
//! each history, a sample at the start of each row's first run.

use crate::numbers::Unit;
use std::collections::BTreeMap;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tramplab_analysis::{
    compare::Value,
    history::{History, MetricRow},
};
use tramplab_model::{kinds::trigger::Cost, text};

/// The gauge of a unit: its name, which ends with the unit, the unit, and its help.
fn gauge(unit: Unit) -> [&'static str; 3] {
    let of_hits = |cost: Cost| [cost.name(), cost.name(), cost.definition().help];
    match unit {
        Unit::Records => ["wasted_records", "records", "Wasted branch records."],
        Unit::Instructions | Unit::UnsteadyInstructions => of_hits(Cost::Instructions),
        Unit::Counted(cost) => of_hits(cost),
        Unit::Time | Unit::ExactTime => ["time_seconds", "seconds", Cost::Time.definition().help],
        Unit::GracePeriods => {
            ["grace_periods", "grace_periods", "Waits of attaching for a grace period."]
        }
        Unit::EstimatedCycles => {
            ["estimated_cycles", "estimated_cycles", "Estimated cycles of a modelled CPU."]
        }
        Unit::Rate => {
            ["hits_per_second", "per_second", "Hits per second of guest time; more is better."]
        }
    }
}

pub fn render(histories: &[History]) -> String {
    // Lines of one family must stand together.
    let mut families: BTreeMap<Unit, String> = BTreeMap::new();
    for history in histories {
        for (unit, line) in lines(history) {
            *families.entry(unit).or_default() += &line;
        }
    }
    let mut out = String::new();
    for (unit, lines) in families {
        let [name, unit, help] = gauge(unit);
        out += &format!(
            "# TYPE tramplab_{name} gauge\n# UNIT tramplab_{name} {unit}\n\
             # HELP tramplab_{name} {help}\n{lines}"
        );
    }
    out + "# EOF\n"
}

/// The samples of a history, by time, with their unit. With `--tree` the rows are in another order.
fn lines(history: &History) -> impl Iterator<Item = (Unit, String)> {
    let samples = history.rows.iter().filter_map(|row| {
        // Runs have a valid start, unless somebody edited them.
        let started = OffsetDateTime::parse(&row.started, &Rfc3339).ok()?;
        Some((started, number(history, row)?))
    });
    // Several commits of one run started at one time, which can have one sample: the last one.
    let samples: BTreeMap<OffsetDateTime, (Unit, f64)> = samples.collect();
    let History { metric, line, .. } = history;
    // Escaped as the specification asks for.
    let label = |name: &str, value: &str| {
        let value = text::line(value).replace('\\', "\\\\").replace('"', "\\\"");
        format!("{name}=\"{value}\"")
    };
    let of_driver = line.of_driver.map(|source| label("branches", source.name()));
    let labels = [
        label("metric", &metric.to_string()),
        label("kernel", &line.kernel),
        label("arch", line.arch.name()),
        label("accel", line.accel.name()),
        label("suite", &line.suite),
        label("guest", &line.guest),
    ];
    let labels = labels.into_iter().chain(of_driver).collect::<Vec<_>>().join(",");
    samples.into_iter().map(move |(at, (unit, number))| {
        let ([name, ..], at) = (gauge(unit), at.unix_timestamp());
        (unit, format!("tramplab_{name}{{{labels}}} {number} {at}\n"))
    })
}

fn number(history: &History, row: &MetricRow) -> Option<(Unit, f64)> {
    let value = row.value()?;
    let unit = match Unit::of(&history.metric, value)? {
        Unit::UnsteadyInstructions => Unit::Instructions,
        Unit::ExactTime => Unit::Time,
        unit => unit,
    };
    let number = value.number().filter(|number| number.is_finite())?;
    let number = match value {
        Value::Times(_) | Value::ExactTime(_) | Value::Waiting(_) => number / 1e3,
        Value::PerHit(_) => number / 1e9,
        Value::Rates(..) => number * 1e6,
        _ => number,
    };
    Some((unit, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_analysis::history::{self, Query};
    use tramplab_model::run::Run;
    use tramplab_testdata::{commits, stored};

    fn of_runs(runs: &[Run], metric: &str) -> String {
        let query = Query { metrics: vec![metric.parse().unwrap()], ..Query::default() };
        render(&history::of(runs, None, &query).histories)
    }

    /// The specification asks for it.
    #[test]
    fn a_gauge_ends_with_its_unit() {
        let others = [
            Unit::Records,
            Unit::Instructions,
            Unit::Time,
            Unit::Rate,
            Unit::GracePeriods,
            Unit::EstimatedCycles,
        ];
        for unit in Cost::counted().map(Unit::Counted).chain(others) {
            let [name, unit, _] = gauge(unit);
            assert!(name.ends_with(unit), "{name} {unit}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        }
    }

    #[test]
    fn a_history_is_a_series() {
        let text = of_runs(&commits(&[0, 1, 1, 2]), "lbr_waste.fexit.any_call|cond");
        let lines: Vec<&str> = text.lines().collect();
        let [kind, unit, help, first, _, _, last, eof] = lines[..] else { panic!("{text}") };
        assert_eq!(kind, "# TYPE tramplab_wasted_records gauge");
        assert_eq!(unit, "# UNIT tramplab_wasted_records records");
        assert!(help.starts_with("# HELP tramplab_wasted_records "));
        assert_eq!(eof, "# EOF");
        let labels = "{metric=\"lbr_waste.fexit.any_call|cond\",kernel=\"linux\",arch=\"x86_64\",\
                      accel=\"tcg\",suite=\"fixture\",guest=\"1 CPU, 1024 MiB, -cpu max\"}";
        // 2026-11-01 and 2026-11-04, 10:00 UTC.
        assert_eq!(first, format!("tramplab_wasted_records{labels} 8 1793527200"));
        assert_eq!(last, format!("tramplab_wasted_records{labels} 6 1793786400"));
    }

    #[test]
    fn times_are_in_seconds_and_escaped_labels_stay_on_their_line() {
        let mut run = stored();
        run.suite.name = "a\"b\\c\nd".to_owned();
        let found = history::of(&[run], None, &Query::default());
        let text = render(&found.histories);
        let times = found.histories.iter().filter(|history| history.metric.is_time());
        let [row] = &times.clone().next().unwrap().rows[..] else { panic!("one row") };
        let seconds = row.value().unwrap().number().unwrap() / 1e3;
        let metric = times.clone().next().unwrap().metric;
        let line = text.lines().find(|line| line.contains(&format!("metric=\"{metric}\"")));
        let line = line.unwrap();
        assert!(line.contains("suite=\"a\\\"b\\\\c d\""), "{line}");
        assert!(line.contains(&format!("}} {seconds} 17")), "{line}");
        assert_eq!(text.matches("# EOF").count(), 1);
        assert_eq!(text.matches("# TYPE tramplab_time_seconds gauge").count(), 1);
    }

    /// Prometheus rejects two samples at one time.
    #[test]
    fn one_time_has_one_sample() {
        let mut runs = commits(&[0, 1]);
        runs[1].started = runs[0].started.clone();
        let text = of_runs(&runs, "lbr_waste.fexit.any");
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples.len(), 1, "{text}");
        assert!(samples[0].contains("} 10 "), "{text}");
    }
}
