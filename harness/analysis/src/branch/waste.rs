// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the records between a snapshot and the traced function.

use super::{Branch, Filter, Model, model::Seen};
use std::collections::BTreeMap;
use tramplab_model::run::{Arch, CapturePoint, NamedRecord, Place, WasteCount};
use tramplab_protocol::message::Symbol;

/// Counts in a whole trace, newest first: more records may be wasted than a ring holds.
pub fn count(
    model: Model,
    filter: Filter,
    records: &[NamedRecord],
    function: &Symbol,
) -> WasteCount {
    count_of(&model.snapshot(filter, None, records).collect::<Vec<_>>(), function)
}

/// Counts at a capture point: in the CPU's own records where the guest asked the CPU.
pub fn count_at(
    model: Model,
    filter: Filter,
    point: &CapturePoint,
    function: &Symbol,
) -> WasteCount {
    count_of(&seen(point, model, filter, None), function)
}

/// Reads the count of a recorded point. Counts of unions are not recorded, but computed.
pub fn counted(
    model: Model,
    filter: Filter,
    point: &CapturePoint,
    function: &Symbol,
) -> WasteCount {
    let recorded = point.wasted.get(model.name()).and_then(|of| of.get(&filter.to_string()));
    recorded.copied().unwrap_or_else(|| count_at(model, filter, point, function))
}

/// Returns the records of a snapshot, newest first: those of the CPU, or those that the model keeps
/// of the trace, in a ring of this depth. The guest asks the CPU for single filters only; a union
/// of filters is computed from the records of `any`.
pub(super) fn seen(
    point: &CapturePoint,
    model: Model,
    filter: Filter,
    depth: Option<u32>,
) -> Vec<Seen<'_>> {
    match point.by_filter.get(&filter.to_string()) {
        Some(records) => records.iter().map(Seen::whole).collect(),
        None => model.snapshot(filter, depth, &point.records).collect(),
    }
}

pub(super) fn count_of(snapshot: &[Seen], function: &Symbol) -> WasteCount {
    let index_of = |rule: fn(&Seen, &Symbol) -> bool| {
        let index = snapshot.iter().position(|seen| rule(seen, function));
        index.map(|index| u32::try_from(index).expect("a trace is much shorter"))
    };
    WasteCount { wasted: index_of(touches), wasted_selftest: index_of(is_within) }
}

/// Counts for every model of the architecture and every filter, by their names.
pub fn table(
    arch: Arch,
    records: &[NamedRecord],
    function: &Symbol,
) -> BTreeMap<String, BTreeMap<String, WasteCount>> {
    let counts = |model| {
        let count = |branch: Branch| {
            (branch.name().to_owned(), count(model, branch.into(), records, function))
        };
        Branch::ALL.into_iter().map(count).collect()
    };
    Model::of(arch).map(|model| (model.name().to_owned(), counts(model))).collect()
}

/// retsnoop's rule: one end is in the function.
pub(super) fn touches(seen: &Seen, function: &Symbol) -> bool {
    seen.from.is_some_and(|p| contains(function, p))
        || seen.to.is_some_and(|p| contains(function, p))
}

/// The rule of the kernel's selftest `get_branch_snapshot`: both ends are in the function.
fn is_within(seen: &Seen, function: &Symbol) -> bool {
    seen.from.is_some_and(|p| contains(function, p))
        && seen.to.is_some_and(|p| contains(function, p))
}

pub(super) fn contains(function: &Symbol, place: &Place) -> bool {
    (function.start..function.end).contains(&place.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::model::tests::{KERNEL, record, traces};
    use proptest::prelude::*;
    use tramplab_protocol::trace::Kind;

    fn function() -> Symbol {
        Symbol {
            name: "traced".to_owned(),
            module: None,
            start: KERNEL + 0x100,
            end: KERNEL + 0x140,
        }
    }

    #[test]
    fn counts_to_the_newest_record_with_an_end_in_the_function() {
        let other = || record(KERNEL, KERNEL + 0x200, Kind::Call);
        let into = record(KERNEL + 8, KERNEL + 0x100, Kind::Call);
        let out = record(KERNEL + 0x13f, KERNEL + 8, Kind::Ret);
        let past = record(KERNEL + 0x140, KERNEL + 8, Kind::Ret);
        let within = record(KERNEL + 0x110, KERNEL + 0x120, Kind::Cond);
        let table = [
            (vec![], None, None),
            (vec![other()], None, None),
            (vec![into.clone()], Some(0), None),
            (vec![other(), other(), into.clone(), out.clone()], Some(2), None),
            (vec![other(), out, other(), within, into], Some(1), Some(3)),
            (vec![past], None, None),
        ];
        for (records, wasted, wasted_selftest) in table {
            let counted = count(Model::IntelLbr, Branch::Any.into(), &records, &function());
            assert_eq!(counted, WasteCount { wasted, wasted_selftest }, "{records:?}");
        }
    }

    #[test]
    fn counts_more_waste_than_the_ring_holds() {
        let mut records = vec![record(KERNEL, KERNEL + 0x200, Kind::Call); 40];
        records.push(record(KERNEL, KERNEL + 0x100, Kind::Call));
        let counted = count(Model::AmdLbrV2, Branch::AnyCall.into(), &records, &function());
        assert_eq!(counted.wasted, Some(40));
    }

    #[test]
    fn ignores_ends_that_the_cpu_hides() {
        // The function is in user space, and BRBE zeroes such ends.
        let traced = Symbol { name: "user".to_owned(), module: None, start: 0x1000, end: 0x2000 };
        let records = [record(0x1004, KERNEL, Kind::Syscall)];
        let wasted = |model| count(model, Branch::Any.into(), &records, &traced).wasted;
        assert_eq!((wasted(Model::IntelLbr), wasted(Model::Brbe)), (Some(0), None));
    }

    #[test]
    fn a_table_has_every_model_of_the_architecture() {
        let keys = |arch| table(arch, &[], &function()).into_keys().collect::<Vec<_>>();
        assert_eq!(keys(Arch::X86_64), ["amd-lbrv2", "arch-lbr", "intel-lbr"]);
        assert_eq!(keys(Arch::Arm64), ["brbe"]);
        for filters in table(Arch::X86_64, &[], &function()).into_values() {
            assert_eq!(filters.len(), Branch::ALL.len());
        }
    }

    proptest! {
        #[test]
        fn a_filter_wastes_no_more_than_any_if_both_see_the_same_record(
            records in traces(), at in 0usize..80,
        ) {
            let Some(target) = records.get(at) else { return Ok(()) };
            let start = target.from.address;
            let function = Symbol { name: "f".to_owned(), module: None, start, end: start + 1 };
            for model in Model::ALL {
                let any = count(model, Branch::Any.into(), &records, &function);
                for branch in Branch::ALL {
                    let counted = count(model, branch.into(), &records, &function);
                    // Only one record touches. `any` sees it too, with no fewer before it.
                    prop_assert!(counted.wasted.is_none() || counted.wasted <= any.wasted);
                    prop_assert!(any.wasted.is_none_or(|wasted| wasted as usize <= at));
                    // The stricter rule never finds a newer one.
                    let stricter = counted.wasted_selftest;
                    prop_assert!(stricter.is_none() || counted.wasted <= stricter);
                }
            }
        }
    }
}
