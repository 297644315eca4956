// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel in several configurations: the numbers that differ, and what each setting costs.

use super::{Metric, Value, values};
use crate::branch::Model;
use std::collections::BTreeSet;
use tramplab_model::run::{Arch, Kernel, Run, Setting};

/// The points of one kernel, and the exact metrics that differ between them.
#[derive(Clone, Debug)]
pub struct Matrix<'a> {
    pub of: &'a str,
    pub arch: Arch,
    /// In the run's order. The first has the first value of every axis.
    pub points: Vec<Point<'a>>,
    pub rows: Vec<AxisRow>,
    /// Number of exact metrics that are the same at every point.
    pub same: usize,
}

#[derive(Clone, Debug)]
pub struct Point<'a> {
    pub kernel: &'a str,
    /// The CPU as which its guests booted comes first, as a setting of the axis `model`.
    pub settings: Vec<Setting>,
}

/// The setting that a CPU is, beside guests that boot as usual.
pub(super) fn model(kernel: &Kernel) -> Setting {
    let value = kernel.cpu().map_or("usual", |cpu| &cpu.name);
    Setting { axis: Setting::MODEL.to_owned(), value: value.to_owned() }
}

#[derive(Clone, Debug, PartialEq)]
pub struct AxisRow {
    pub metric: Metric,
    /// One for each point. None if it was not measured there.
    pub values: Vec<Option<Value>>,
}

/// A setting beside the first value of its axis, all else equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisStep {
    pub setting: Setting,
    /// Indices of points: before, after.
    pub pairs: Vec<(usize, usize)>,
}

/// Returns a matrix for each kernel and architecture that was measured in several configurations.
pub fn matrices(run: &Run, asked: Option<Model>) -> Vec<Matrix<'_>> {
    let mut matrices: Vec<Matrix> = Vec::new();
    let is_of_series = |kernel: &Kernel| {
        run.series.iter().any(|series| {
            series.arch == kernel.arch && series.steps.iter().any(|step| step.kernel == kernel.name)
        })
    };
    for kernel in &run.kernels {
        // Without a configuration it may be the usual world beside a CPU's.
        let configured = kernel.configuration.as_ref();
        let of = configured.map_or(&kernel.name, |configuration| &configuration.of);
        let settings = configured.map_or(&[][..], |configuration| &configuration.settings);
        if configured.is_none() && is_of_series(kernel) {
            continue;
        }
        let settings = std::iter::once(model(kernel)).chain(settings.iter().cloned()).collect();
        let point = Point { kernel: &kernel.name, settings };
        let is_it = |matrix: &&mut Matrix| (matrix.of, matrix.arch) == (of, kernel.arch);
        match matrices.iter_mut().find(is_it) {
            // The kernels of a series have the same point.
            Some(matrix) if matrix.points.iter().any(|known| known.settings == point.settings) => {}
            Some(matrix) => matrix.points.push(point),
            None => matrices.push(Matrix {
                of,
                arch: kernel.arch,
                points: vec![point],
                rows: Vec::new(),
                same: 0,
            }),
        }
    }
    matrices.retain(|matrix| matrix.points.len() > 1);
    for matrix in &mut matrices {
        let first = &matrix.points[0].settings[0];
        if matrix.points.iter().all(|point| point.settings[0] == *first) {
            matrix.points.iter_mut().for_each(|point| drop(point.settings.remove(0)));
        }
        matrix.measure(run, Model::choose(asked, matrix.arch));
    }
    matrices
}

impl<'a> Matrix<'a> {
    fn measure(&mut self, run: &Run, model: Model) {
        let of_point = |point: &Point| -> Vec<(Metric, Value)> {
            let cells = run.cells_of(self.arch, point.kernel);
            cells
                .flat_map(|cell| values(cell, model))
                .filter(|(_, value)| is_exact(value))
                .collect()
        };
        let all: Vec<Vec<(Metric, Value)>> = self.points.iter().map(of_point).collect();
        let mut seen = BTreeSet::new();
        let metrics = all.iter().flatten().map(|(metric, _)| *metric);
        let metrics: Vec<Metric> = metrics.filter(|metric| seen.insert(*metric)).collect();
        let row = |metric: Metric| {
            let find = |values: &Vec<(Metric, Value)>| {
                values.iter().find(|(found, _)| *found == metric).map(|(_, value)| value.clone())
            };
            AxisRow { metric, values: all.iter().map(find).collect() }
        };
        let (differing, same): (Vec<AxisRow>, Vec<AxisRow>) =
            metrics.into_iter().map(row).partition(AxisRow::differs);
        self.rows = differing;
        self.same = same.len();
    }

    /// One for each value but the first of each axis.
    pub fn steps(&self) -> Vec<AxisStep> {
        let Some(first) = self.points.first() else { return Vec::new() };
        let mut steps: Vec<AxisStep> = Vec::new();
        for (after, point) in self.points.iter().enumerate() {
            for (place, setting) in point.settings.iter().enumerate() {
                let mut wanted = point.settings.clone();
                wanted[place].clone_from(&first.settings[place]);
                let before = self.points.iter().position(|other| other.settings == wanted);
                let Some(before) = before.filter(|&before| before != after) else { continue };
                match steps.iter_mut().find(|step| step.setting == *setting) {
                    Some(step) => step.pairs.push((before, after)),
                    None => steps
                        .push(AxisStep { setting: setting.clone(), pairs: vec![(before, after)] }),
                }
            }
        }
        let place = |step: &AxisStep| {
            first.settings.iter().position(|setting| setting.axis == step.setting.axis)
        };
        steps.sort_by_key(place);
        steps
    }
}

impl AxisRow {
    fn differs(&self) -> bool {
        self.values.iter().any(|value| *value != self.values[0])
    }

    /// The least and the greatest cost of a step. None if no pair was measured.
    pub fn cost(&self, step: &AxisStep) -> Option<(i64, i64)> {
        let number = |index: usize| self.values[index].as_ref().and_then(number);
        let costs =
            step.pairs.iter().filter_map(|&(a, b)| Some(number(b)?.saturating_sub(number(a)?)));
        let costs: Vec<i64> = costs.collect();
        Some((*costs.iter().min()?, *costs.iter().max()?))
    }
}

fn is_exact(value: &Value) -> bool {
    match value {
        Value::Records(_) | Value::Count(_) | Value::ExactTime(_) => true,
        Value::InPhase { repeats, .. } => *repeats,
        Value::Times(_)
        | Value::Waiting(_)
        | Value::PerHit(_)
        | Value::Rates(..)
        | Value::Ended(_)
        | Value::Stopped(_) => false,
    }
}

fn number(value: &Value) -> Option<i64> {
    match *value {
        Value::Records(records) => records.map(i64::from),
        Value::Count(count) => Some(count.into()),
        Value::ExactTime(number) | Value::InPhase { count: number, .. } => number.try_into().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::run::Configuration;
    use tramplab_testdata::series as recorded;

    /// A recorded run whose kernels become points of two axes.
    fn run(points: &[[&str; 2]]) -> Run {
        let mut run = recorded();
        let base = run.series[0].base().kernel.clone();
        let head = run.series[0].head().kernel.clone();
        let facts = run.kernels[0].clone();
        let cells = std::mem::take(&mut run.cells);
        run.kernels.clear();
        for [a, b] in points {
            let setting = |axis: &str, value: &str| Setting {
                axis: axis.to_owned(),
                value: value.to_owned(),
            };
            let configuration = Configuration {
                of: "k".to_owned(),
                settings: vec![setting("a", a), setting("b", b)],
                ..Configuration::default()
            };
            let name = configuration.name();
            // Value 1 of `a` costs what the head of the series does not.
            let from = if *a == "1" { &head } else { &base };
            run.cells.extend(cells.iter().filter(|cell| cell.id.kernel == *from).map(|cell| {
                let mut cell = cell.clone();
                cell.id.kernel.clone_from(&name);
                cell
            }));
            run.kernels.push(tramplab_model::run::Kernel {
                name,
                configuration: Some(configuration),
                ..facts.clone()
            });
        }
        run
    }

    #[test]
    fn assigns_each_difference_to_its_axis() {
        let run = run(&[["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]]);
        let matrices = matrices(&run, None);
        let [matrix] = &matrices[..] else { panic!("{matrices:?}") };
        let names: Vec<&str> = matrix.points.iter().map(|point| point.kernel).collect();
        assert_eq!(names, ["k+a-0+b-0", "k+a-0+b-1", "k+a-1+b-0", "k+a-1+b-1"]);
        let steps = matrix.steps();
        let told: Vec<_> =
            steps.iter().map(|step| (step.setting.to_string(), step.pairs.clone())).collect();
        assert_eq!(
            told,
            [("a=1".to_owned(), vec![(0, 2), (1, 3)]), ("b=1".to_owned(), vec![(0, 1), (2, 3)]),]
        );
        let metric: Metric = "lbr_waste.fexit.any".parse().unwrap();
        let row = matrix.rows.iter().find(|row| row.metric == metric).unwrap();
        let [a, b] = [&steps[0], &steps[1]].map(|step| row.cost(step).unwrap());
        assert!(a.0 == a.1 && a.0 != 0, "{a:?}");
        assert_eq!(b, (0, 0));
        assert!(matrix.same > 0);
        assert!(matrix.rows.iter().all(|row| row.cost(&steps[1]) == Some((0, 0))));
    }

    #[test]
    fn leaves_out_what_was_not_measured() {
        let mut run = run(&[["0", "0"], ["1", "0"]]);
        run.cells.retain(|cell| cell.id.kernel == "k+a-0+b-0");
        let matrices = matrices(&run, None);
        let steps = matrices[0].steps();
        assert!(!matrices[0].rows.is_empty());
        assert!(matrices[0].rows.iter().all(|row| row.cost(&steps[0]).is_none()));
        // One point alone is compared with nothing. All kernels of a series are there.
        run.kernels.truncate(1);
        run.kernels.push(run.kernels[0].clone());
        assert!(super::matrices(&run, None).is_empty());
    }
}
