// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver's branch records beside those of a trace, row by row: of the same kernel on hardware
//! and in a guest.

use super::{Branch, Filter, Model, driver::of_the_driver, symbolic::Symbolic, symbols::is_kernel};
use tramplab_model::run::{NamedRecord, Place};

/// The rows that the two have in common, from the newest on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside<'a> {
    /// The driver's own records, which no trace has.
    pub own: usize,
    /// The rows behind these that are in both, up to the first that is not.
    pub same: usize,
    /// The first row that differs: the driver's and the trace's.
    pub differs: Option<[&'a NamedRecord; 2]>,
    /// Older rows of the driver's, behind the end of the trace.
    pub untraced: usize,
}

/// Compares records under `any`: those that a driver handed over with those that a CPU of the model
/// would keep of a trace. None if the driver's do not lead into a driver, or nothing was traced.
pub fn beside<'a>(
    driver: &'a [NamedRecord],
    model: Model,
    traced: &'a [NamedRecord],
) -> Option<Beside<'a>> {
    let own = of_the_driver(driver)?;
    let any = Filter::of(Branch::Any);
    let traced = model.snapshot(any, Some(driver.len() as u32), traced).map(|seen| seen.record);
    let rows: Vec<_> = driver[own..].iter().zip(traced).collect();
    let is_other = |&(row, (a, b)): &(usize, &(&NamedRecord, &NamedRecord))| {
        // A guest without the driver enters a stub there.
        let is_entry = row == 0;
        !is_same(&a.from, &b.from) || !is_entry && !is_same(&a.to, &b.to)
    };
    let differs = rows.iter().enumerate().find(is_other);
    let found = Beside {
        own,
        same: differs.map_or(rows.len(), |(row, _)| row),
        differs: differs.map(|(_, &(a, b))| [a, b]),
        untraced: driver.len() - own - rows.len(),
    };
    (!rows.is_empty()).then_some(found)
}

/// True for places of one name, whatever their addresses at this boot are. Nothing is known of
/// places of the kernel without a name.
fn is_same(a: &Place, b: &Place) -> bool {
    let is_known = |place: &Place| place.symbol.is_some() || !is_kernel(place.address);
    let is_named = is_known(a) && is_known(b);
    is_named && a.module == b.module && Symbolic(a).to_string() == Symbolic(b).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tramplab_model::run::Measurement;
    use tramplab_testdata::stored;

    /// The records of a trace, and the same as a driver hands them over, two of its own before.
    fn records() -> [Vec<NamedRecord>; 2] {
        let waste = stored().cells.into_iter().find_map(|cell| match cell.measurement {
            Some(Measurement::LbrWaste(waste)) => Some(waste),
            _ => None,
        });
        let traced = waste.unwrap().points.remove(0).records;
        let mut driver = traced[..12].to_vec();
        let entry = Place {
            symbol: Some("intel_pmu_snapshot_branch_stack".to_owned()),
            module: None,
            address: driver[0].to.address,
            offset: 0,
        };
        let own = Place { offset: 8, ..entry.clone() };
        driver[0].to = entry;
        let own = NamedRecord { from: own.clone(), to: own, ..driver[0].clone() };
        driver.splice(0..0, [own.clone(), own]);
        // Another boot has other addresses, and other numbers of BPF objects.
        for place in driver.iter_mut().flat_map(|record| [&mut record.from, &mut record.to]) {
            place.address ^= 0x1000;
            if let Some(id) =
                place.symbol.as_ref().and_then(|name| name.strip_prefix("bpf_trampoline_"))
            {
                place.symbol = Some(format!("bpf_trampoline_1{id}"));
            }
        }
        [driver, traced]
    }

    #[test]
    fn the_same_records_are_the_same_at_another_boot() {
        let [driver, traced] = records();
        let found = beside(&driver, Model::IntelLbr, &traced);
        assert_eq!(found, Some(Beside { own: 2, same: 12, differs: None, untraced: 0 }));
        assert_eq!(beside(&traced[1..], Model::IntelLbr, &traced), None);
        let short = beside(&driver, Model::IntelLbr, &traced[..5]);
        assert_eq!(short, Some(Beside { own: 2, same: 5, differs: None, untraced: 7 }));
        assert_eq!(beside(&driver, Model::IntelLbr, &[]), None);
    }

    #[test]
    fn names_the_first_row_that_differs() {
        let [driver, traced] = records();
        for row in 1..12 {
            for is_source in [false, true] {
                let mut other = driver.clone();
                let record = &mut other[row + 2];
                let end = if is_source { &mut record.from } else { &mut record.to };
                end.offset += 1;
                let found = beside(&other, Model::IntelLbr, &traced).unwrap();
                assert_eq!((found.own, found.same), (2, row));
                assert_eq!(found.differs, Some([&other[row + 2], &traced[row]]));
            }
        }
        // One is missing: the next is in its place, unless it is the same.
        for row in 1..11 {
            let mut other = driver.clone();
            other.remove(row + 2);
            let found = beside(&other, Model::IntelLbr, &traced).unwrap();
            let line =
                |record: &NamedRecord| (Symbolic(&record.from).to_string(), record.to.offset);
            let next = (row..11).find(|&at| line(&traced[at]) != line(&traced[at + 1]));
            assert_eq!(Some(found.same), next, "{row}: {found:?}");
        }
        // The stub that the driver's entry replaces has another name; its caller has not.
        let mut other = driver.clone();
        other[2].from.offset += 1;
        assert_eq!(beside(&other, Model::IntelLbr, &traced).unwrap().same, 0);
        // Two places without a name may be any.
        let (mut other, mut unnamed) = (driver, traced);
        for record in [&mut other[5], &mut unnamed[3]] {
            (record.from.symbol, record.from.address) = (None, !0xfff);
        }
        assert_eq!(beside(&other, Model::IntelLbr, &unnamed).unwrap().same, 3);
    }
}
