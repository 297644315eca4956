// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a hit on this machine beside the counted and the estimated one of its kernel in a
//! guest.

use super::{NOT_SEEN, is_seen, not_counted, overhead_ns, per_hit, triggers};
use crate::group::{Group, pairs_of_this_machine};
use tramplab_analysis::spread::Spread;
use tramplab_model::{kinds::trigger::Cost, run::Trigger, table::Table};

/// Costs, and the events of the kernel's code by which a CPU counts them. Its event for branches
/// also counts those that are not taken, which no trace has.
const INSTRUCTIONS: (Cost, &str) = (Cost::Instructions, "instructions:k");
const CYCLES: (Cost, &str) = (Cost::EstimatedCycles, "cycles:k");

pub fn tables(groups: &[Group]) -> Vec<Table> {
    pairs_of_this_machine(groups).filter_map(table).collect()
}

fn table([here, guest]: [&Group; 2]) -> Option<Table> {
    let exact: Vec<_> = triggers(guest).collect();
    let row = |(test, measured)| {
        let here: &Trigger = Result::ok(measured)?;
        let (_, guest) = exact.iter().find(|(other, _)| *other == test)?;
        let cost = guest.ok()?.cost.as_ref()?;
        let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let both = |(of, event): (Cost, &str)| {
            let (count, found) = (cost.count(of), counted(here, event));
            let off = count.zip(found).map(|(count, found)| found.median - f64::from(count));
            [
                dash(count.map(|count| count.to_string())),
                dash(found.map(|spread| format!("{spread:.1}"))),
                dash(off.map(|off| format!("{off:+.1}"))),
            ]
        };
        let mut row = vec![test.to_string()];
        row.extend([INSTRUCTIONS, CYCLES].into_iter().flat_map(both));
        row.push(dash(overhead_ns(here).map(|ns| match is_seen(ns) {
            true => format!("{ns:.0}"),
            false => NOT_SEEN.to_owned(),
        })));
        Some(row)
    };
    let mut header = vec!["mechanism"];
    for (of, event) in [INSTRUCTIONS, CYCLES] {
        header.extend([of.name(), event, "difference"]);
    }
    header.push("ns");
    let note = "Exact and estimated are of a hit in a guest; those with :k and the time are \
                this machine's, of its kernel's code: with the program less without it, median \
                (min..max), interrupts included. -: not counted.";
    let caption =
        format!("Cost of a hit on this machine ({}) beside {}", here.kernel, guest.kernel);
    Table::new(caption, header, triggers(here).filter_map(row)).noted([note.to_owned()]).if_filled()
}

/// An event of a hit, if the CPU counted it.
fn counted(trigger: &Trigger, event: &str) -> Option<Spread> {
    let counter = trigger.counters.iter().find(|counter| counter.event == event)?;
    let counter = Some(counter).filter(|counter| not_counted(counter).is_none())?;
    per_hit(&counter.attached, &counter.detached, trigger.timed)
}
