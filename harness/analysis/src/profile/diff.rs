// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares base and head: which functions changed most.

use super::{Function, How, Space, Subject, Tree, Unit, tree::add};
use std::{cmp::Reverse, collections::BTreeMap};
use tramplab_model::table::Table;

/// Rows that fit a screen.
const ROWS: usize = 30;

/// The change of a function's own amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub function: Function,
    pub interrupt: bool,
    /// Scaled by [`Scale`].
    pub base: u64,
    pub head: u64,
}

impl Change {
    pub fn difference(&self) -> i128 {
        i128::from(self.head) - i128::from(self.base)
    }
}

/// The factor for the base's counts. Instructions and times are compared as they are. The number of
/// samples only shows how long the phase took on that machine on that day, so their shares are
/// compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale(Option<f64>);

impl Scale {
    pub fn new(unit: Unit, tree: &Tree<2>) -> Scale {
        let [base, head] = [0, 1].map(|side| tree.total(side));
        Scale((unit == Unit::Samples && base > 0 && head > 0).then(|| head as f64 / base as f64))
    }

    pub fn base(self, count: u64) -> u64 {
        self.0.map_or(count, |factor| (count as f64 * factor).round() as u64)
    }

    /// Returns `None` if counts are not scaled.
    pub fn factor(self) -> Option<f64> {
        self.0
    }
}

/// Lists functions whose own amount changed: the largest change first, then by name.
pub fn changes(tree: &Tree<2>, scale: Scale) -> Vec<Change> {
    let mut sums: BTreeMap<(&Function, bool), [u64; 2]> = BTreeMap::new();
    for place in &tree.places {
        let frame = &tree.frames[place.frame as usize];
        add(sums.entry((&frame.function, frame.interrupt)).or_default(), place.own);
    }
    let change = |((function, interrupt), [base, head]): ((&Function, bool), [u64; 2])| Change {
        function: function.clone(),
        interrupt,
        base: scale.base(base),
        head,
    };
    let mut changes: Vec<Change> = sums.into_iter().map(change).collect();
    changes.retain(|change| change.difference() != 0);
    // The sort is stable: equal changes stay ordered by name.
    changes.sort_by_key(|change| Reverse(change.difference().unsigned_abs()));
    changes
}

/// Returns the percentage of each side that was spent in call paths that the other side lacks.
pub fn unmatched(tree: &Tree<2>) -> [f64; 2] {
    let mut alone = [0_u64; 2];
    for (place, totals) in tree.places.iter().zip(tree.totals()) {
        for side in 0..2 {
            if totals[1 - side] == 0 {
                alone[side] = alone[side].saturating_add(place.own[side]);
            }
        }
    }
    [0, 1].map(|side| match tree.total(side) {
        0 => 0.0,
        total => alone[side] as f64 * 100.0 / total as f64,
    })
}

/// Formats a difference in percent of the base's total; `None` if that is 0.
pub fn of_base(difference: i128, total: u64) -> Option<String> {
    (total > 0).then(|| format!("{:+.2} %", difference as f64 * 100.0 / total as f64))
}

/// Makes the table of [`changes`].
pub fn table(base: &Subject, head: &Subject, tree: &Tree<2>) -> Table {
    let scale = Scale::new(head.unit, tree);
    let changes = changes(tree, scale);
    let totals = [scale.base(tree.total(0)), tree.total(1)];
    let row = |name: String, base: u64, head: u64| {
        let difference = i128::from(head) - i128::from(base);
        let share = of_base(difference, totals[0]).unwrap_or_else(|| "-".to_owned());
        vec![name, base.to_string(), head.to_string(), format!("{difference:+}"), share]
    };
    let mut rows: Vec<Vec<String>> = changes
        .iter()
        .take(ROWS)
        .map(|change| {
            row(name(&change.function, interrupt_mark(change.interrupt)), change.base, change.head)
        })
        .collect();
    if let Some(rest) = changes.get(ROWS..).filter(|rest| !rest.is_empty()) {
        let sum = |of: fn(&Change) -> u64| rest.iter().map(of).fold(0, u64::saturating_add);
        let count = format!("{} more that changed", rest.len());
        rows.push(row(count, sum(|change| change.base), sum(|change| change.head)));
    }
    rows.push(row("all".to_owned(), totals[0], totals[1]));
    let side = |side: &Subject| match &side.cpu {
        Some(cpu) => format!("{} ({cpu}, modelled)", side.cell),
        None => side.cell.clone(),
    };
    let mut notes = vec![format!("base: {}", side(base)), format!("head: {}", side(head))];
    notes.extend(
        scale
            .factor()
            .map(|factor| format!("the base's samples times {factor:.3}, to equal totals")),
    );
    if head.beside.is_some() {
        notes.extend(
            [How::Exact, How::Sampled].map(|how| format!("believe {}", how.believed_for())),
        );
    }
    let (unit, of) = (head.counted, head.of.name());
    let caption = format!("What changed in {}: {unit} of {of}, by function", head.phases());
    Table::new(caption, ["function", "base", "head", "change", "of base"], rows).noted(notes)
}

fn interrupt_mark(interrupt: bool) -> &'static str {
    if interrupt { "_[i]" } else { "" }
}

/// Names a function with its module: two modules may have functions of one name.
pub fn name(function: &Function, mark: &str) -> String {
    match &function.space {
        Space::Kernel => format!("{}{mark}", function.name),
        Space::Module(module) => format!("{}{mark} [{module}]", function.name),
        Space::User => format!("{}{mark} [user]", function.name),
    }
}
