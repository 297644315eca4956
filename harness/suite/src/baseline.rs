// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a run's numbers into its suite as budgets.
//!
//! Changes only numbers and adds only entries: every other byte of the file stays. The new text is
//! parsed and judged before it is returned.

use super::{
    Budget, Suite,
    budget::{self, Bounded},
    definition::{Placed, PlacedBudget},
    kinds::{lbr_waste, trigger},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use tramplab_analysis::{
    branch::{Filter, Model},
    compare::{self, Value},
};
use tramplab_host::config::{self, ConfigError, Spanned};
use tramplab_model::{
    kinds::Metric,
    run::{Arch, Cell, Outcome, Run, Test},
};

#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    #[error(
        "the run {0} was interrupted, and cells that it did not measure would have no budget; \
         measure the rest with --rerun, or run it again"
    )]
    Unfinished(String),
    #[error("no budget is written while cells end in an error: {}", .0.join(", "))]
    Errors(Vec<String>),
    #[error("the run {0} is of a series: budgets are those of kernels without patches")]
    Series(String),
    #[error("the run {id} is of the suite `{of}`, and {path} is the suite `{suite}`")]
    OtherSuite { id: String, of: String, suite: String, path: String },
    #[error(
        "the run {0} measured nothing that repeats: waste, hits counted by the plugin, or \
         attaching by the exact clock"
    )]
    Nothing(String),
    #[error("no number of the run {0} that repeats is of the suite's tests and kernels")]
    NotOwn(String),
    #[error(
        "{path}:{line}: no record of `{cell}` touches the traced function; remove the budget of \
         `{row}` in `{filter}`"
    )]
    Lost { path: String, line: u64, cell: String, row: String, filter: Filter },
    #[error("{path}:{line}: {why}")]
    Place { path: String, line: u64, why: &'static str },
    #[error("{path}: the budgets cannot be written: {why}")]
    Unfit { path: String, why: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl BaselineError {
    /// True if there is no measurement to write. The user can avoid every other error by asking for
    /// something else.
    pub fn is_without_measurement(&self) -> bool {
        matches!(
            self,
            BaselineError::Unfinished(_)
                | BaselineError::Errors(_)
                | BaselineError::Nothing(_)
                | BaselineError::NotOwn(_)
        )
    }
}

/// Returns the suite's text with the run's numbers as budgets, and the cells that it leaves out:
/// the suite would be rejected with budgets of other tests, or of kernels that are neither its own
/// nor `known`.
pub fn updated(
    text: &str,
    path: &Path,
    run: &Run,
    known: &dyn Fn(&str) -> bool,
) -> Result<(String, Vec<String>), BaselineError> {
    let suite: Suite = config::parse(text, path)?;
    check(run, &suite, path)?;
    let mut read = suite.clone();
    // Names of tests have those of programs.
    read.tests.iter_mut().try_for_each(|group| group.group_mut().read(path, &|_| None))?;
    let tests: BTreeSet<Test> = read.work(false).map(|work| work.test()).collect();
    let is_own = |cell: &Cell| {
        let kernel = &cell.id.kernel;
        tests.contains(&cell.id.test) && (suite.kernels.contains(kernel) || known(kernel))
    };
    let others = run.cells.iter().filter(|cell| !is_own(cell) && is_bounded(cell, run));
    let left_out = others.map(|cell| cell.id.name()).collect();
    let mut run = run.clone();
    run.cells.retain(is_own);
    if !run.cells.iter().any(|cell| is_bounded(cell, &run)) {
        return Err(BaselineError::NotOwn(run.id));
    }
    let run = &run;
    let placed: Placed = config::parse(text, path)?;
    let edits = placed.edits(run, path)?;
    let text = apply(text, edits, path)?;
    let now: Suite = config::parse(&text, path)?;
    let added = additions(run, &now);
    let text = if added.is_empty() { text } else { insert(&text, &added, path)? };
    verify(&text, path, run, &suite)?;
    Ok((text, left_out))
}

/// The difference as `diff -u` shows it. Empty if the texts are equal.
pub fn diff(before: &str, after: &str, path: &Path) -> String {
    if before == after {
        return String::new();
    }
    let name = path.display().to_string();
    let mut options = diffy::DiffOptions::new();
    options.set_original_filename(name.clone()).set_modified_filename(name);
    options.create_patch(before, after).to_string()
}

fn check(run: &Run, suite: &Suite, path: &Path) -> Result<(), BaselineError> {
    if run.interrupted || run.finished.is_none() {
        return Err(BaselineError::Unfinished(run.id.clone()));
    }
    if !run.series.is_empty() {
        return Err(BaselineError::Series(run.id.clone()));
    }
    if run.suite.name != suite.name {
        let path = path.display().to_string();
        let (id, of) = (run.id.clone(), run.suite.name.clone());
        return Err(BaselineError::OtherSuite { id, of, suite: suite.name.clone(), path });
    }
    let is_error = |cell: &&Cell| matches!(cell.outcome, Outcome::Error { .. });
    let errors: Vec<String> =
        run.cells.iter().filter(is_error).map(|cell| cell.id.name()).collect();
    if !errors.is_empty() {
        return Err(BaselineError::Errors(errors));
    }
    if !run.cells.iter().any(|cell| is_bounded(cell, run)) {
        return Err(BaselineError::Nothing(run.id.clone()));
    }
    Ok(())
}

/// True if it measured a number that a budget can bound.
fn is_bounded(cell: &Cell, run: &Run) -> bool {
    !lbr_waste::wasted(cell).is_empty() || !counted(cell, run).is_empty()
}

/// Instructions and branches that repeat in the next run.
fn counted(cell: &Cell, run: &Run) -> BTreeMap<Bounded, u64> {
    let model = Model::choose(None, cell.id.arch);
    let number = |metric: Metric, value: Value| match value {
        Value::Count(count) if trigger::repeats(cell, run) => Some(u64::from(count)),
        // With fewer functions than the test asks for, the number means something else.
        Value::InPhase { count, functions, repeats: true } => {
            metric.asked_for().is_none_or(|asked| asked == functions).then_some(count)
        }
        _ => None,
    };
    let values = compare::values(cell, model).into_iter();
    values
        .filter_map(|(metric, value)| Some((metric.try_into().ok()?, number(metric, value)?)))
        .collect()
}

/// A number to replace.
struct Edit {
    line: u64,
    column: u64,
    from: u64,
    to: u64,
}

impl Placed {
    /// Sets each number to the highest that the run measured. Never lowers a number that also holds
    /// for kernels or architectures that the run did not measure.
    fn edits(&self, run: &Run, path: &Path) -> Result<Vec<Edit>, BaselineError> {
        let mut edits = Vec::new();
        for Spanned { value: budget, .. } in &self.budgets {
            let cells: Vec<&Cell> =
                run.cells.iter().filter(|cell| budget.holds_for(cell, run)).collect();
            for (&row, filters) in &budget.wasted {
                for (&filter, number) in filters {
                    let mut values = Vec::new();
                    for cell in &cells {
                        let lost = || BaselineError::Lost {
                            path: path.display().to_string(),
                            line: config::place(number).0,
                            cell: cell.id.name(),
                            row: row.to_string(),
                            filter,
                        };
                        let value = lbr_waste::wasted_in(cell, row, filter)
                            .map(|count| count.ok_or_else(lost))
                            .transpose()?;
                        values.extend(value.map(|value| (of(cell), u64::from(value))));
                    }
                    edits.extend(budget.edit(&values, u64::from(number.value), number));
                }
            }
            for (bounded, number) in &budget.most {
                let value = |cell| Some((of(cell), *counted(cell, run).get(bounded)?));
                let values: Vec<_> = cells.iter().copied().filter_map(value).collect();
                edits.extend(budget.edit(&values, number.value, number));
            }
        }
        Ok(edits)
    }
}

/// A cell's architecture and kernel.
fn of(cell: &Cell) -> (Arch, &str) {
    (cell.id.arch, &cell.id.kernel)
}

impl PlacedBudget {
    fn holds_for(&self, cell: &Cell, run: &Run) -> bool {
        let is_named = |names: &Vec<String>| names.contains(&cell.id.kernel);
        self.kernels.as_ref().map_or_else(|| run.boots_as_usual(&cell.id), is_named)
            && self.arch.as_ref().is_none_or(|arches| arches.contains(&cell.id.arch))
    }

    fn edit<T>(
        &self,
        values: &[((Arch, &str), u64)],
        from: u64,
        place: &Spanned<T>,
    ) -> Option<Edit> {
        let highest = values.iter().map(|&(_, value)| value).max()?;
        let measured: BTreeSet<(Arch, &str)> = values.iter().map(|&(kernel, _)| kernel).collect();
        let all = match (&self.kernels, &self.arch) {
            (Some(kernels), Some(arches)) => arches
                .iter()
                .all(|&arch| kernels.iter().all(|kernel| measured.contains(&(arch, kernel)))),
            _ => false,
        };
        let to = if all { highest } else { highest.max(from) };
        let (line, column) = config::place(place);
        (to != from).then_some(Edit { line, column, from, to })
    }
}

fn apply(text: &str, mut edits: Vec<Edit>, path: &Path) -> Result<String, BaselineError> {
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    // Replace from the right, so that earlier columns stay valid.
    edits.sort_by_key(|edit| (edit.line, std::cmp::Reverse(edit.column)));
    for Edit { line, column, from, to } in edits {
        let error = || BaselineError::Place {
            path: path.display().to_string(),
            line,
            why: "a budget that is no plain number (an alias, hexadecimal) cannot be written anew: \
                  write it as one",
        };
        let text = lines.get_mut(line as usize - 1).ok_or_else(error)?;
        let (start, _) = text.char_indices().nth(column as usize - 1).ok_or_else(error)?;
        let end = text[start..]
            .find(|c: char| !c.is_alphanumeric())
            .map_or(text.len(), |length| start + length);
        if text[start..end].parse() != Ok(from) {
            return Err(error());
        }
        text.replace_range(start..end, &to.to_string());
    }
    Ok(lines.concat())
}

/// New budgets for numbers without an exact budget: one budget for each kernel and architecture.
fn additions(run: &Run, suite: &Suite) -> Vec<Budget> {
    let mut kernels: Vec<(Arch, &str)> = Vec::new();
    for cell in &run.cells {
        if !kernels.contains(&of(cell)) {
            kernels.push(of(cell));
        }
    }
    let budget = |&(arch, kernel): &(Arch, &str)| {
        let is_usual = run.cells_of(arch, kernel).all(|cell| run.boots_as_usual(&cell.id));
        let holds = |budget: &&Budget| budget.holds_for(arch, kernel, is_usual);
        let held: Vec<&Budget> = suite.budgets.iter().filter(holds).collect();
        let mut added = Budget {
            kernels: Some(vec![kernel.to_owned()]),
            arch: Some(vec![arch]),
            wasted: BTreeMap::new(),
            most: BTreeMap::new(),
        };
        for cell in run.cells_of(arch, kernel) {
            for (row, filters) in lbr_waste::wasted(cell) {
                let is_loose = |(filter, value): &(Filter, u32)| {
                    !held.iter().any(|held| {
                        held.wasted.get(&row).and_then(|row| row.get(filter)) == Some(value)
                    })
                };
                let loose: BTreeMap<Filter, u32> = filters.into_iter().filter(is_loose).collect();
                if !loose.is_empty() {
                    added.wasted.insert(row, loose);
                }
            }
            let is_loose = |(bounded, value): &(Bounded, u64)| {
                !held.iter().any(|held| held.most.get(bounded) == Some(value))
            };
            added.most.extend(counted(cell, run).into_iter().filter(is_loose));
        }
        added
    };
    let budgets = kernels.iter().map(budget);
    budgets.filter(|budget| !budget.wasted.is_empty() || !budget.most.is_empty()).collect()
}

/// Inserts budgets after the existing ones.
fn insert(text: &str, added: &[Budget], path: &Path) -> Result<String, BaselineError> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let Some(key) = lines.iter().position(|line| line.starts_with("budgets:")) else {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        return Ok(format!("{text}{end}budgets:\n{}", written(added, 2)));
    };
    let rest = lines[key]["budgets:".len()..].trim();
    if !(rest.is_empty() || rest.starts_with('#')) {
        let why = "expected the budgets as a list of lines that begin with `-`, to which more can \
                   be added";
        return Err(BaselineError::Place {
            path: path.display().to_string(),
            line: key as u64 + 1,
            why,
        });
    }
    let is_inside = |line: &&&str| line.trim().is_empty() || line.starts_with([' ', '-', '#']);
    let section = lines[key + 1..].iter().take_while(is_inside).count();
    // Unindented comments after the last entry belong to the next key.
    let is_entry = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    let length = lines[key + 1..][..section].iter().rposition(is_entry).map_or(0, |last| last + 1);
    let entries = &lines[key + 1..][..length];
    let dash = entries
        .iter()
        .find_map(|line| line.trim_start().starts_with('-').then(|| line.find('-'))?);
    let (before, after) = lines.split_at(key + 1 + length);
    let before = before.concat();
    let end = if before.ends_with('\n') { "" } else { "\n" };
    Ok(format!("{before}{end}{}{}", written(added, dash.unwrap_or(2)), after.concat()))
}

/// Formats budgets as YAML, with a line for each row and metric.
fn written(budgets: &[Budget], indent: usize) -> String {
    let quoted = |name: &String| serde_json::to_string(name).expect("a string");
    let mut out = String::new();
    for budget in budgets {
        let kernels: Vec<String> = budget.kernels.iter().flatten().map(quoted).collect();
        let arches: Vec<&str> = budget.arch.iter().flatten().map(|arch| arch.name()).collect();
        let mut lines = vec![
            format!("- kernels: [{}]", kernels.join(", ")),
            format!("  arch: [{}]", arches.join(", ")),
        ];
        if !budget.wasted.is_empty() {
            lines.push("  wasted:".to_owned());
        }
        for (row, filters) in &budget.wasted {
            let filters: Vec<String> =
                filters.iter().map(|(filter, most)| format!("{filter}: {most}")).collect();
            lines.push(format!("    {row}: {{ {} }}", filters.join(", ")));
        }
        if !budget.most.is_empty() {
            lines.push("  most:".to_owned());
        }
        lines.extend(budget.most.iter().map(|(bounded, most)| format!("    {bounded}: {most}")));
        out.extend(lines.into_iter().map(|line| format!("{:indent$}{line}\n", "")));
    }
    out
}

/// Checks that the run passes with the new text, and that only budgets have changed.
fn verify(text: &str, path: &Path, run: &Run, before: &Suite) -> Result<(), BaselineError> {
    let unfit = |why: String| BaselineError::Unfit { path: path.display().to_string(), why };
    let mut now: Suite = config::parse(text, path)?;
    for cell in &run.cells {
        // Ignore bounds of numbers that this run did not count.
        let known = counted(cell, run);
        let holds = now.budgets.iter().filter(|budget| {
            budget.holds_for(cell.id.arch, &cell.id.kernel, run.boots_as_usual(&cell.id))
        });
        let mut budgets: Vec<Budget> = holds.cloned().collect();
        budgets
            .iter_mut()
            .for_each(|budget| budget.most.retain(|bounded, _| known.contains_key(bounded)));
        if let Outcome::Fail { reasons } = budget::judge(cell, &budgets, now.tolerance) {
            return Err(unfit(format!(
                "{} would not pass: {}",
                cell.id.name(),
                reasons.join("; ")
            )));
        }
    }
    if !additions(run, &now).is_empty() {
        return Err(unfit("what was added is not read as it was written".to_owned()));
    }
    now.budgets.clone_from(&before.budgets);
    if format!("{now:?}") != format!("{before:?}") {
        return Err(unfit("more than budgets would change".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
