// SPDX-License-Identifier: MIT OR Apache-2.0
//! Useful records in reports: the facts that a run has about the driver, and the note on them.

use std::collections::BTreeSet;
use tramplab_analysis::branch::{Branch, Driver, Filter, Model, Taken};
use tramplab_model::run::{Cell, LbrWaste, NamedRecord, Run};

/// The driver that would hand the records of a cell's capture point to the program.
pub fn driver(run: &Run, cell: &Cell, waste: &LbrWaste, records: &[NamedRecord]) -> Driver {
    let kernel = run.kernel(cell.id.arch, &cell.id.kernel);
    let paravirt_xxl = kernel.and_then(|kernel| kernel.paravirt_xxl);
    let mitigations = cell.guest.as_ref().map_or(&[][..], |guest| &guest.mitigations);
    Driver::new(waste.source, paravirt_xxl, mitigations, records)
}

/// The depths to show: that of the CPU whose own records were counted or that is modelled, else
/// those of the family.
pub fn depths(model: Model, ring: Option<u32>, cpu: Option<u32>) -> Vec<u32> {
    ring.or(cpu).map_or_else(|| model.depths().to_vec(), |depth| vec![depth])
}

/// Says how many records of the driver are subtracted, or why only a bound is known. `drivers` are
/// those of one kernel.
pub fn note(model: Model, drivers: &[Driver]) -> Option<String> {
    let Driver::Modelled { paravirt_xxl, .. } = drivers.first()? else { return None };
    let by = |branch: Branch| {
        let taken = drivers.iter().map(|driver| driver.takes(model, Filter::of(branch)));
        Some((branch.name(), taken.reduce(Taken::or)?))
    };
    let taken: Vec<(&str, Taken)> = Branch::ALL.into_iter().filter_map(by).collect();
    let listed = |number: fn(&Taken) -> String| {
        let some = taken.iter().filter(|(_, taken)| taken.most != Some(0));
        some.map(|(name, taken)| format!("{name} {}", number(taken))).collect::<Vec<_>>().join(", ")
    };
    let (_, any) = taken.first()?;
    Some(match (any.most, paravirt_xxl) {
        (None, _) => format!(
            "≤: the driver's own records are not subtracted. Linux has no driver that snapshots \
             {model}."
        ),
        (_, Some(false)) => {
            "The driver takes none of these: the kernel has no PARAVIRT_XXL.".to_owned()
        }
        (_, Some(true)) => format!(
            "The driver's own records are subtracted: {}. The kernel has PARAVIRT_XXL{}.",
            listed(Taken::to_string),
            returns(drivers)
        ),
        (_, None) => format!(
            "≤: the run does not say if the kernel has PARAVIRT_XXL. If it has, the driver takes \
             up to {} of these.",
            listed(|taken| taken.most.map_or_else(String::new, |most| most.to_string()))
        ),
    })
}

/// Says how long the driver's returns are, unless each is one record.
fn returns(drivers: &[Driver]) -> String {
    let lengths = drivers.iter().flat_map(|driver| match driver {
        Driver::Modelled { returns, .. } => &returns[..],
        Driver::Counted => &[],
    });
    let lengths: BTreeSet<usize> = lengths.map(Vec::len).collect();
    match (lengths.first(), lengths.last()) {
        (Some(least), Some(most)) if least < most => format!(
            ". ≤: the lower number is subtracted, as each return of the driver is {least} to \
             {most} records"
        ),
        (Some(length), _) if *length > 1 => format!(", and each return is {length} records"),
        _ => String::new(),
    }
}
