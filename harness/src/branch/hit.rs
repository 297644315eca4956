// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the hits of an armed window have in common, whatever is measured of them.

use super::Symbols;
use std::{cmp::Reverse, collections::BTreeMap};
use tramplab_protocol::{
    message::Symbol,
    trace::{Kind, Record},
};

/// The hits of the most frequent form; of equally frequent ones that seen first. Empty of nothing.
pub fn most_frequent<'a, H, F: Ord>(hits: &[&'a H], form: impl Fn(&H) -> F) -> Vec<&'a H> {
    let mut groups: BTreeMap<F, Vec<usize>> = BTreeMap::new();
    for (number, hit) in hits.iter().enumerate() {
        groups.entry(form(hit)).or_default().push(number);
    }
    let largest = groups.into_values().min_by_key(|group| (Reverse(group.len()), group[0]));
    largest.into_iter().flatten().map(|number| hits[number]).collect()
}

/// Where QEMU does not report interrupts (before 10.2) the recorder may see one as the branch before it, gone astray: no
/// branch but `int` leads to these entries.
pub fn is_interrupt(record: &Record, symbols: &Symbols) -> bool {
    let is_entry = |s: &Symbol| s.start == record.to && is_interrupt_entry(&s.name);
    record.kind == Kind::Interrupt
        || record.kind != Kind::Int && symbols.find(record.to).is_some_and(is_entry)
}

/// Entries of interrupts, which come over whatever runs: an exception is the work of what raises it.
pub fn is_asynchronous(name: &str) -> bool {
    is_interrupt_entry(name)
        && !(name.starts_with("asm_exc_") && !name.starts_with("asm_exc_nmi") || name == "el1h_64_sync")
}

fn is_interrupt_entry(name: &str) -> bool {
    const X86: [&str; 5] = [
        "asm_sysvec_",
        "asm_exc_",
        "asm_common_interrupt",
        "asm_spurious_interrupt",
        "asm_fred_entrypoint_kernel",
    ];
    const ARM64: [&str; 3] = ["el1h_64_irq", "el1h_64_fiq", "el1h_64_sync"];
    X86.iter().chain(&ARM64).any(|entry| name.starts_with(entry))
}
