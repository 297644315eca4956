// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a hit on this machine beside the counted and the estimated one of its kernel in a
//! guest.

use super::{overhead_ns, per_hit, triggers};
use crate::group::{Group, pairs_of_this_machine};
use tramplab_analysis::spread::Spread;
use tramplab_model::{
    kinds::trigger::Cost,
    run::{Run, Trigger},
    table::Table,
};
use tramplab_protocol::message::HitCounter;

/// A cost, and the event of the kernel's code by which a CPU counts it.
const COUNTED: [(Cost, &str); 2] =
    [(Cost::Instructions, "instructions:k"), (Cost::Branches, "branches:k")];
const CYCLES: (Cost, &str) = (Cost::EstimatedCycles, "cycles:k");

pub fn tables(run: &Run, groups: &[Group]) -> Vec<Table> {
    pairs_of_this_machine(run, groups).filter_map(table).collect()
}

fn table([here, guest]: [&Group; 2]) -> Option<Table> {
    let exact: Vec<_> = triggers(guest).collect();
    let row = |(test, measured)| {
        let here: &Trigger = Result::ok(measured)?;
        let (_, guest) = exact.iter().find(|(other, _)| *other == test)?;
        let cost = guest.ok()?.cost.as_ref()?;
        let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let counted = |event| counted(here, event).map(|spread| format!("{spread:.1}"));
        let mut row = vec![test.to_string()];
        for (of, event) in COUNTED {
            let (count, found) = (cost.count(of), self::counted(here, event));
            let off = count.zip(found).map(|(count, found)| found.median - f64::from(count));
            row.extend([dash(count.map(|count| count.to_string())), dash(counted(event))]);
            row.push(dash(off.map(|off| format!("{off:+.1}"))));
        }
        let (of, event) = CYCLES;
        row.extend([dash(cost.count(of).map(|count| count.to_string())), dash(counted(event))]);
        row.push(dash(overhead_ns(here).map(|ns| format!("{ns:.0}"))));
        Some(row)
    };
    let mut header = vec!["mechanism"];
    for (of, event) in COUNTED {
        header.extend([of.name(), event, "difference"]);
    }
    header.extend([CYCLES.0.name(), CYCLES.1, "ns"]);
    let note = "Exact and estimated are of a hit in a guest; those with :k and the time are \
                this machine's, of its kernel's code: with the program less without it, median \
                (min..max), interrupts included. -: not counted.";
    let caption =
        format!("Cost of a hit on this machine ({}) beside {}", here.kernel, guest.kernel);
    Table::new(caption, header, triggers(here).filter_map(row)).noted([note.to_owned()]).if_filled()
}

/// An event of a hit, if the CPU counted it. An emulated PMU may take the event and count nothing.
fn counted(trigger: &Trigger, event: &str) -> Option<Spread> {
    let counter = trigger.counters.iter().find(|counter| counter.event == event)?;
    let counts = |counter: &&HitCounter| counter.attached.iter().all(|&count| count > 0);
    let counter = Some(counter).filter(|one| one.refused.is_none()).filter(counts)?;
    per_hit(&counter.attached, &counter.detached, trigger.timed)
}
