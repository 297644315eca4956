// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's numbers, for the formats of other benchmark tools.

use tramplab_analysis::{
    branch::{Model, driver},
    compare::{self, Metric, Value},
    history::line_of,
};
use tramplab_model::{
    kinds::{attach, trigger::Cost},
    run::{Accel, BranchSource, Cell, Kernel, Run},
};

/// One cell's result for one metric.
pub struct Number<'a> {
    pub kernel: &'a Kernel,
    /// The kernel's name without the commit, as long as the run has only one such kernel: tools
    /// that follow a number over commits know it by its name.
    pub line: String,
    pub accel: Accel,
    /// The modelled CPU of wasted records, or the source of a driver's: `hardware`, `emulated`.
    pub model: &'static str,
    pub metric: Metric,
    pub unit: Unit,
    /// One for each boot, of times and rates. At least one.
    pub samples: Vec<f64>,
}

/// Units of samples. Numbers that repeat have other units than those that do not, because tools
/// choose their statistics by the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    Records,
    Instructions,
    /// Counted under the host's clock, so they do not repeat.
    UnsteadyInstructions,
    /// Another number of a hit.
    Counted(Cost),
    /// Nanoseconds of the host's clock.
    Time,
    /// Nanoseconds of the exact clock.
    ExactTime,
    /// Waits for a grace period.
    GracePeriods,
    EstimatedCycles,
    /// Hits per second. More is better.
    Rate,
}

impl Unit {
    pub fn repeats(self) -> bool {
        !matches!(self, Unit::Time | Unit::Rate | Unit::UnsteadyInstructions)
    }

    /// The usual word for it.
    pub fn word(self) -> &'static str {
        match self {
            Unit::Records => "records",
            Unit::Instructions | Unit::UnsteadyInstructions => "instructions",
            Unit::Counted(cost) => cost.name(),
            Unit::Time | Unit::ExactTime => "ns",
            Unit::GracePeriods => "grace_periods",
            Unit::EstimatedCycles => "estimated_cycles",
            Unit::Rate => "hits/s",
        }
    }

    /// None of a result that is no number.
    pub fn of(metric: &Metric, value: &Value) -> Option<Unit> {
        Some(match value {
            Value::Records(_) => Unit::Records,
            Value::Count(_) => match metric {
                Metric::Trigger(of) if of.cost != Cost::Instructions => Unit::Counted(of.cost),
                _ => Unit::Instructions,
            },
            Value::InPhase { .. } if is_grace_periods(metric) => Unit::GracePeriods,
            Value::InPhase { .. } if metric.is_estimate() => Unit::EstimatedCycles,
            Value::InPhase { repeats: true, .. } => Unit::Instructions,
            Value::InPhase { repeats: false, .. } => Unit::UnsteadyInstructions,
            Value::Times(_) | Value::PerHit(_) => Unit::Time,
            Value::ExactTime(_) | Value::Waiting(_) => Unit::ExactTime,
            Value::Rates(..) => Unit::Rate,
            Value::Stopped(_) | Value::Ended(_) => return None,
        })
    }
}

/// Returns all numbers of a run, kernel by kernel. Measurements without a number are left out: a
/// trace without the traced function, a time budget that ended a test, results of the tree's tests.
pub fn of<'a>(run: &'a Run, asked: Option<Model>) -> Vec<Number<'a>> {
    let numbers = |kernel: &'a Kernel| {
        let cells = run.cells_of(kernel.arch, &kernel.name);
        cells.flat_map(move |cell| of_cell(run, kernel, cell, asked))
    };
    run.kernels.iter().flat_map(numbers).collect()
}

fn of_cell<'a>(
    run: &'a Run,
    kernel: &'a Kernel,
    cell: &'a Cell,
    asked: Option<Model>,
) -> Vec<Number<'a>> {
    let model = Model::of_kernel(asked, run, kernel);
    let name = driver::whose(cell.branch_source(), model);
    let line = line_of(kernel);
    let is_of_line = |other: &&Kernel| other.arch == kernel.arch && line_of(other) == line;
    let is_alone = run.kernels.iter().filter(is_of_line).count() == 1;
    let line = if is_alone { line } else { kernel.name.clone() };
    let number = |(metric, value): (Metric, Value)| {
        let samples = samples(&value);
        let unit = Unit::of(&metric, &value).filter(|_| !samples.is_empty())?;
        let line = line.clone();
        Some(Number { kernel, line, accel: cell.id.accel, model: name, metric, unit, samples })
    };
    compare::values(cell, model).into_iter().filter_map(number).collect()
}

pub(crate) fn is_grace_periods(metric: &Metric) -> bool {
    matches!(metric, Metric::Attach(of) if matches!(of.number, attach::Number::GracePeriods(_)))
}

/// In the unit of [`Unit::of`]. Times were ns before they were ms: a median has a half at most. A
/// number that is none, such as the median of no rounds, is no sample.
fn samples(value: &Value) -> Vec<f64> {
    let all = match value {
        Value::Times(ms) => ms.iter().map(|ms| (ms * 1e7).round() / 10.0).collect(),
        Value::Rates(millions, _) => millions.iter().map(|millions| millions * 1e6).collect(),
        Value::ExactTime(ns) => vec![*ns as f64],
        Value::Waiting(waiting) => waiting.level().map(|ns| ns as f64).into_iter().collect(),
        other => other.number().into_iter().collect::<Vec<f64>>(),
    };
    all.into_iter().filter(|sample| sample.is_finite()).collect()
}

impl Number<'_> {
    /// Names it among all of the run: `x86_64/6.12/tcg/lbr_waste.fexit.any`. Emulated records have
    /// the accelerator of virtual ones and are named: `x86_64/6.12/tcg/emulated/…`.
    pub fn name(&self) -> String {
        let Number { kernel, line, accel, metric, model, .. } = self;
        let emulated = BranchSource::Emulated.name();
        let of = if *model == emulated { format!("{emulated}/") } else { String::new() };
        format!("{}/{line}/{}/{of}{metric}", kernel.arch, accel.name())
    }
}
