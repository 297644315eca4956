// SPDX-License-Identifier: MIT OR Apache-2.0
//! One kernel in several configurations: a column for each, and what each setting costs.

use crate::{diff::as_a_diff, parts::Section, view::View};
use tramplab_analysis::{
    branch::Model,
    compare::{
        self, Layout, Timing, Value,
        axes::{AxisRow, AxisStep, Matrix, Point},
    },
};
use tramplab_model::{
    run::{Run, Tolerance},
    table::Table,
};

pub fn tables(run: &Run, view: &View) -> Vec<Table> {
    let matrices = compare::axes::matrices(run, view.model);
    // Kernels side by side show CPUs.
    let is_asked = |matrix: &&Matrix| matrix.points[0].settings.iter().any(|one| !one.is_model());
    matrices
        .iter()
        .filter(is_asked)
        .flat_map(|matrix| [values(matrix), costs(matrix)])
        .flatten()
        .collect()
}

fn values(matrix: &Matrix) -> Option<Table> {
    let first = matrix.points.first()?;
    let axes: Vec<&str> = first.settings.iter().map(|setting| setting.axis.as_str()).collect();
    let label = |point: &Point| {
        point.settings.iter().map(|setting| setting.value.clone()).collect::<Vec<_>>().join(", ")
    };
    let row = |row: &AxisRow| {
        let shown = row.values.iter().map(|value| {
            value.as_ref().map_or_else(|| "not measured".to_owned(), ToString::to_string)
        });
        std::iter::once(row.metric.to_string()).chain(shown).collect()
    };
    let caption = format!("Configurations of {} ({}): {}", matrix.of, matrix.arch, axes.join(", "));
    let header = std::iter::once("metric".to_owned()).chain(matrix.points.iter().map(label));
    let note = format!("{} exact metrics are the same in all.", matrix.same);
    Some(Table::new(caption, header, matrix.rows.iter().map(row)).noted([note]))
}

/// None if no metric differs.
fn costs(matrix: &Matrix) -> Option<Table> {
    let steps = matrix.steps();
    let cost = |row: &AxisRow, step: &AxisStep| match row.cost(step) {
        None => String::new(),
        Some((0, 0)) => "0".to_owned(),
        Some((least, most)) if least == most => format!("{least:+}"),
        Some((least, most)) => format!("{least:+}..{most:+}"),
    };
    let row = |row: &AxisRow| {
        let costs = steps.iter().map(|step| cost(row, step));
        let is_time = row.values.iter().flatten().any(|value| matches!(value, Value::ExactTime(_)));
        let unit = if is_time { ", ns" } else { "" };
        std::iter::once(format!("{}{unit}", row.metric)).chain(costs).collect()
    };
    let settings = steps.iter().map(|step| step.setting.to_string());
    let header = std::iter::once("metric".to_owned()).chain(settings);
    let caption = "Cost of each setting, beside the first value of its axis";
    let table = Table::new(caption, header, matrix.rows.iter().map(row));
    table.if_filled().filter(|_| !steps.is_empty())
}

/// The records that came and went with each setting, all others at their first value. Empty
/// without `--listing`.
pub fn sections(run: &Run, view: &View) -> Vec<Section> {
    if view.listings.is_empty() {
        return Vec::new();
    }
    let matrices = compare::axes::matrices(run, view.model);
    matrices.iter().flat_map(|matrix| of_matrix(run, view, matrix)).collect()
}

fn of_matrix(run: &Run, view: &View, matrix: &Matrix) -> Vec<Section> {
    let section = |step: &AxisStep| {
        let &(before, after) = step.pairs.first()?;
        let names = [before, after].map(|index| matrix.points[index].kernel);
        let cells = names.map(|name| run.cells_of(matrix.arch, name).collect::<Vec<_>>());
        let comparison = compare::compare(
            names[0],
            names[1],
            &compare::pair_up(&cells[0], &cells[1]),
            Model::choose(view.model, matrix.arch),
            Tolerance::default(),
            Timing::Apart,
            &Layout::ignored(),
        );
        let differing = comparison.listings.iter().filter(|listings| listings.differs());
        let sources = names.map(|name| run.lines_of(matrix.arch, name).filter(|_| view.lines));
        let listings: Vec<_> =
            differing.map(|listings| as_a_diff(listings, &comparison, sources)).collect();
        (!listings.is_empty()).then(|| Section {
            heading: format!("{} ({}): records of {}", matrix.of, matrix.arch, step.setting),
            about: Vec::new(),
            tables: Vec::new(),
            listings,
        })
    };
    matrix.steps().iter().filter_map(section).collect()
}
