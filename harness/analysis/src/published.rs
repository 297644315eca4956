// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds what was published of a series against what a run measured of it.

use crate::compare::{self, Compared, Comparison, Direction, Metric, Verdict};
use statrs::statistics::Statistics;
use tramplab_model::{
    kinds::trigger::Cost,
    published::{Published, Row, Unit},
    run::{Run, Series},
};

/// Differences of hardware that are smaller, in per cent, are none: two runs of one benchmark
/// differ as much. Where hardware sees none, as much is tolerated here.
pub const SAME_PERCENT: f64 = 5.0;
/// Differences here that are smaller, in per cent, are none.
pub const LEAST_PERCENT: f64 = 1.0;

/// One publication of a series, and what a run says to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Held<'a> {
    pub published: &'a Published,
    pub series: &'a Series,
    /// Where the run's numbers come from: `as zen4 with mitigations=off`.
    pub point: String,
    /// In the order of the publication.
    pub rows: Vec<HeldRow<'a>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct HeldRow<'a> {
    pub row: &'a Row,
    /// The direction on hardware.
    pub published: Direction,
    /// The run's numbers of it: first the one that is held against it, then counts of the same
    /// hit. Empty if it was not measured.
    pub ours: Vec<Compared>,
    pub answer: Answer,
}

/// The direction of a change. `tolerated`: per cent of `before`.
fn direction(before: f64, after: f64, more_is_better: bool, tolerated: f64) -> Direction {
    let change = after - before;
    match () {
        () if change.abs() <= before * tolerated / 100.0 => Direction::Same,
        () if (change > 0.0) == more_is_better => Direction::Better,
        () => Direction::Worse,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Agrees,
    Disagrees,
    /// With the reason.
    CannotTell(&'static str),
}

impl Answer {
    pub fn name(self) -> &'static str {
        match self {
            Answer::Agrees => "agrees",
            Answer::Disagrees => "disagrees",
            Answer::CannotTell(_) => "cannot tell",
        }
    }
}

/// The publications of all series of a run that it measured on the CPU and in the configuration of
/// the publication.
pub fn held(run: &Run) -> Vec<Held<'_>> {
    let of_series = |series| of_series(run, series);
    run.series.iter().flat_map(of_series).collect()
}

fn of_series<'a>(run: &'a Run, series: &'a Series) -> Vec<Held<'a>> {
    let published: Vec<_> =
        series.published.iter().filter(|published| fits(run, series, published)).collect();
    if published.is_empty() {
        return Vec::new();
    }
    let comparison = compare::whole(run, series, None);
    let held = |published: &'a Published| Held {
        published,
        series,
        point: compare::label(run, series),
        rows: published.rows.iter().map(|row| hold(row, published.unit, &comparison)).collect(),
    };
    published.into_iter().map(held).collect()
}

/// Tells if the series' kernels booted as that CPU, in that configuration. What depends on no CPU
/// is measured as usual.
fn fits(run: &Run, series: &Series, published: &Published) -> bool {
    let base = run.kernel(series.arch, &series.base().kernel);
    let point = base.and_then(|kernel| kernel.configuration.as_ref());
    let model = point.and_then(|point| point.model.as_ref()).map(|model| model.name.as_str());
    let settings = point.map(|point| point.settings.as_slice()).unwrap_or_default();
    let has = |axis: &String, value: &String| {
        settings.iter().any(|setting| (&setting.axis, &setting.value) == (axis, value))
    };
    series.arch == published.arch
        && model == published.model.as_deref()
        && settings.len() == published.axes.len()
        && published.axes.iter().all(|(axis, value)| has(axis, value))
}

fn hold<'a>(row: &'a Row, unit: Unit, comparison: &Comparison) -> HeldRow<'a> {
    let tolerated = if unit.is_exact() { 0.0 } else { SAME_PERCENT };
    let published = direction(row.before, row.after, unit.more_is_better(), tolerated);
    let find = |metric: &Metric| comparison.metrics.iter().find(|one| one.metric == *metric);
    let Some(first) = row.metrics().iter().find_map(find) else {
        let answer = Answer::CannotTell("not measured here");
        return HeldRow { row, published, ours: Vec::new(), answer };
    };
    let answer = match (&first.verdict, first.base.number().zip(first.head.number())) {
        (Verdict::NotJudged(reason), _) => Answer::CannotTell(reason),
        (_, None) => Answer::CannotTell("no number on one side"),
        (verdict, Some((before, after))) => {
            let more_is_better = first.metric.definition().more_is_better;
            // A difference of the layout of the code is none of the series.
            let tolerated = match published {
                Direction::Same => tolerated,
                _ => tolerated.min(LEAST_PERCENT),
            };
            let ours = match verdict.is_same() {
                true => Direction::Same,
                false => direction(before, after, more_is_better, tolerated),
            };
            if ours == published { Answer::Agrees } else { Answer::Disagrees }
        }
    };
    let is_beside = |one: &&Compared| match (one.metric, first.metric) {
        (Metric::Trigger(other), Metric::Trigger(metric)) => {
            other.test == metric.test && other.cost != metric.cost && TOLD.contains(&other.cost)
        }
        _ => false,
    };
    let beside = comparison.metrics.iter().filter(is_beside);
    HeldRow { row, published, ours: [first].into_iter().chain(beside).cloned().collect(), answer }
}

/// The counts of a hit that stand beside what is held against a publication.
const TOLD: [Cost; 3] = [Cost::Instructions, Cost::MispredictedReturns, Cost::MispredictedIndirect];

impl HeldRow<'_> {
    /// The number of a hit's cost, before and after.
    pub fn cost(&self, cost: Cost) -> Option<&Compared> {
        let is_it =
            |one: &&Compared| matches!(one.metric, Metric::Trigger(metric) if metric.cost == cost);
        self.ours.iter().find(is_it)
    }
}

impl Held<'_> {
    /// The number of rows with this answer.
    pub fn count(&self, wanted: fn(Answer) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(row.answer)).count()
    }

    /// How the order of the hits after the series agrees with that of the publication: the rank
    /// correlation (Spearman's) with the head's numbers of a cost. None for fewer than five.
    pub fn rank_correlation(&self, cost: Cost) -> Option<f64> {
        let both = |row: &HeldRow| Some((row.row.after, row.cost(cost)?.head.number()?));
        let pairs: Vec<(f64, f64)> = self.rows.iter().filter_map(both).collect();
        let (published, ours): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        if ours.len() < 5 {
            return None;
        }
        let [a, b] = [ranks(&published), ranks(&ours)];
        let correlation = a.iter().covariance(b.iter()) / (a.iter().std_dev() * b.iter().std_dev());
        // A rate falls as a cost rises.
        let sign = if self.published.unit.more_is_better() { -1.0 } else { 1.0 };
        Some(sign * correlation).filter(|correlation: &f64| correlation.is_finite())
    }
}

/// The place of each number in their order. Equal ones share the middle of their places.
fn ranks(numbers: &[f64]) -> Vec<f64> {
    let rank = |one: &f64| {
        let count =
            |is: fn(&f64, &f64) -> bool| numbers.iter().filter(|other| is(other, one)).count();
        count(|a, b| a < b) as f64 + count(|a, b| a == b) as f64 / 2.0
    };
    numbers.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Difference, Value};
    use std::collections::BTreeMap;
    use tramplab_model::run::{Arch, Configuration, Setting};
    use tramplab_testdata::series as recorded;

    fn published(model: Option<&str>, unit: Unit, rows: &[(&str, f64, f64)]) -> Published {
        let row = |&(of, before, after): &(&str, f64, f64)| Row {
            of: of.to_owned(),
            before,
            after,
            why: None,
        };
        Published {
            source: "\"Tidy\", A. Author".to_owned(),
            machine: "a machine".to_owned(),
            arch: Arch::X86_64,
            model: model.map(str::to_owned),
            axes: BTreeMap::new(),
            unit,
            rows: rows.iter().map(row).collect(),
        }
    }

    /// The recorded series wastes 12 records before and 9 after.
    #[test]
    fn answers_as_the_directions_say() {
        let of = "lbr_waste.fexit.any";
        for (unit, of, before, after, expected) in [
            (Unit::Records, of, 9.0, 6.0, Answer::Agrees),
            (Unit::Records, of, 9.0, 9.0, Answer::Disagrees),
            (Unit::Records, of, 9.0, 10.0, Answer::Disagrees),
            // A record is no noise.
            (Unit::Records, of, 100.0, 99.0, Answer::Agrees),
            // More hits per second, fewer records.
            (Unit::MillionHits, of, 100.0, 106.0, Answer::Agrees),
            (Unit::MillionHits, of, 100.0, 104.0, Answer::Disagrees),
            (Unit::Nanoseconds, of, 100.0, 106.0, Answer::Disagrees),
            (Unit::Nanoseconds, of, 0.0, 0.0, Answer::Disagrees),
            (Unit::Records, "trigger.usdt", 9.0, 6.0, Answer::CannotTell("not measured here")),
        ] {
            let mut run = recorded();
            run.series[0].published = vec![published(None, unit, &[(of, before, after)])];
            let [one] = &held(&run)[..] else { panic!("one publication") };
            assert_eq!(one.rows[0].answer, expected, "{unit:?} {of} {before} {after}");
            assert_eq!(
                one.count(|answer| answer == Answer::Agrees),
                usize::from(expected == Answer::Agrees)
            );
        }
    }

    fn compared(name: &str, base: u32, head: u32, verdict: Verdict) -> Compared {
        let (metric, ratio) = (name.parse().unwrap(), None);
        Compared { metric, base: Value::Count(base), head: Value::Count(head), verdict, ratio }
    }

    #[test]
    fn a_hit_is_judged_by_its_estimate_before_its_instructions() {
        use Verdict::{Better, NotJudged, Same, Worse};
        let run = recorded();
        let mut comparison = compare::whole(&run, &run.series[0], None);
        let fexit = |after| published(None, Unit::MillionHits, &[("trigger.fexit", 100.0, after)]);
        let names = ["trigger.fexit.instructions", "trigger.fexit.estimated_cycles"];
        for (after, estimated, expected) in [
            (150.0, (130, 26, Better), Answer::Agrees),
            (150.0, (26, 130, Worse), Answer::Disagrees),
            (150.0, (1000, 995, Better), Answer::Disagrees),
            (150.0, (130, 26, Same(Difference::Layout)), Answer::Disagrees),
            (102.0, (130, 26, Same(Difference::Layout)), Answer::Agrees),
            (102.0, (100, 96, Better), Answer::Agrees),
            (102.0, (100, 94, Better), Answer::Disagrees),
            (150.0, (130, 26, NotJudged("why")), Answer::CannotTell("why")),
        ] {
            let (base, head, verdict) = estimated.clone();
            comparison.metrics = vec![
                compared("trigger.fexit.time", 9, 1, Better),
                compared(names[0], 150, 160, Worse),
                compared(names[1], base, head, verdict),
            ];
            let published = fexit(after);
            let held = hold(&published.rows[0], published.unit, &comparison);
            assert_eq!(held.answer, expected, "{after} {estimated:?}");
            let told: Vec<String> = held.ours.iter().map(|one| one.metric.to_string()).collect();
            assert_eq!(told, [names[1], names[0]]);
        }
        comparison.metrics.pop();
        let published = fexit(150.0);
        let held = hold(&published.rows[0], published.unit, &comparison);
        assert_eq!(held.answer, Answer::Disagrees, "by instructions");
    }

    /// More hits per second where a hit costs less.
    #[test]
    fn the_order_of_costs_is_the_reverse_of_that_of_rates() {
        let run = recorded();
        let names = ["fentry", "fexit", "kprobe", "kretprobe", "raw_tp"];
        let rows: Vec<(String, f64)> = names
            .map(|name| format!("trigger.{name}"))
            .into_iter()
            .zip([170.0, 130.0, 50.0, 20.0, 190.0])
            .collect();
        let rows: Vec<_> = rows.iter().map(|(of, after)| (of.as_str(), 1.0, *after)).collect();
        for (unit, costs, expected) in [
            (Unit::MillionHits, [17, 26, 50, 227, 16], 1.0),
            (Unit::Nanoseconds, [17, 26, 50, 227, 16], -1.0),
            (Unit::MillionHits, [26, 17, 50, 227, 16], 0.9),
        ] {
            let published = published(None, unit, &rows);
            let row = |(row, cost): (&'_ Row, u32)| {
                let name = format!("{}.estimated_cycles", row.of);
                compared(&name, 1, cost, Verdict::Worse)
            };
            let rows = published.rows.iter().zip(costs).map(|(of, cost)| HeldRow {
                row: of,
                published: Direction::Worse,
                ours: vec![row((of, cost))],
                answer: Answer::Agrees,
            });
            let rows = rows.collect();
            let (series, point) = (&run.series[0], String::new());
            let held = Held { published: &published, series, point, rows };
            let found = held.rank_correlation(Cost::EstimatedCycles).unwrap();
            assert!((found - expected).abs() < 1e-9, "{unit:?} {costs:?} {found}");
            assert_eq!(held.rank_correlation(Cost::Instructions), None);
        }
    }

    #[test]
    fn equal_numbers_share_a_rank() {
        assert_eq!(ranks(&[30.0, 10.0, 20.0, 20.0]), [3.5, 0.5, 2.0, 2.0]);
    }

    /// Numbers of another CPU or configuration are not held against this run.
    #[test]
    fn only_the_published_machine_is_held_against_it() {
        let rows = [("lbr_waste.fexit.any", 9.0, 6.0)];
        let mut run = recorded();
        let mut with_axis = published(None, Unit::Records, &rows);
        with_axis.axes.insert("mitigations".to_owned(), "srso".to_owned());
        let mut of_arm64 = published(None, Unit::Records, &rows);
        of_arm64.arch = Arch::Arm64;
        let of_cpu = published(Some("zen4"), Unit::Records, &rows);
        run.series[0].published = vec![of_cpu, of_arm64, with_axis];
        assert_eq!(held(&run), []);
        for kernel in &mut run.kernels {
            kernel.configuration = Some(Configuration {
                settings: vec![Setting { axis: "mitigations".into(), value: "srso".into() }],
                ..Configuration::default()
            });
        }
        let [one] = &held(&run)[..] else { panic!("that of the axis") };
        assert_eq!((one.point.as_str(), one.rows.len()), ("with mitigations=srso", 1));
    }
}
