// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much the code of a kernel grew.

use std::{cmp::Reverse, collections::BTreeSet};
use tramplab_model::code::{FunctionSize, FunctionSizes, TextGrowth};

/// Functions that a run keeps. A new compiler changes all of them.
const MOST: usize = 100;

/// Compares the functions of two kernels.
pub fn growth(base: &FunctionSizes, head: &FunctionSizes) -> TextGrowth {
    let sum =
        |sizes: &FunctionSizes| sizes.0.values().fold(0_u64, |sum, size| sum.saturating_add(*size));
    let mut growth = TextGrowth {
        base: sum(base),
        head: sum(head),
        grown: 0,
        shrunk: 0,
        new: 0,
        gone: 0,
        functions: Vec::new(),
    };
    let names: BTreeSet<&String> = base.0.keys().chain(head.0.keys()).collect();
    for name in names {
        let [old, new] = [base, head].map(|sizes| sizes.0.get(name).copied());
        let counter = match (old, new) {
            (Some(old), Some(new)) if old < new => &mut growth.grown,
            (Some(old), Some(new)) if old > new => &mut growth.shrunk,
            (None, Some(_)) => &mut growth.new,
            (Some(_), None) => &mut growth.gone,
            _ => continue,
        };
        *counter = counter.saturating_add(1);
        growth.functions.push(FunctionSize { name: name.clone(), base: old, head: new });
    }
    // The sort is stable: equal changes stay in the order of names.
    growth.functions.sort_by_key(|function| Reverse(function.change().unsigned_abs()));
    growth.functions.truncate(MOST);
    growth
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(of: &[(&str, u64)]) -> FunctionSizes {
        FunctionSizes(of.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect())
    }

    #[test]
    fn lists_changed_functions_largest_change_first() {
        let base = sizes(&[("a_gone", 8), ("grown", 100), ("same", 50), ("shrunk", 40)]);
        let head = sizes(&[("grown", 108), ("new", 7), ("same", 50), ("shrunk", 10)]);
        let found = growth(&base, &head);
        assert_eq!((found.base, found.head), (198, 175));
        assert_eq!((found.grown, found.shrunk, found.new, found.gone), (1, 1, 1, 1));
        let changes: Vec<(&str, i64)> = found
            .functions
            .iter()
            .map(|function| (function.name.as_str(), function.change()))
            .collect();
        assert_eq!(changes, [("shrunk", -30), ("a_gone", -8), ("grown", 8), ("new", 7)]);
        assert_eq!(growth(&base, &base).functions, []);
    }

    #[test]
    fn keeps_only_the_largest_of_many_changes_and_counts_all() {
        let names: Vec<String> = (0..250).map(|number| format!("f{number:03}")).collect();
        let head: Vec<(&str, u64)> =
            names.iter().zip(1..).map(|(name, size)| (name.as_str(), size)).collect();
        let found = growth(&sizes(&[]), &sizes(&head));
        assert_eq!((found.new, found.functions.len()), (250, MOST));
        assert_eq!(found.functions[0].head, Some(250));
    }
}
