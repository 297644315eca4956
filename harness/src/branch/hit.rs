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

/// Where QEMU does not report interrupts (before 10.2) the recorder may see one as the branch before it, gone astray: nothing
/// but `int` (arm64: `brk`) and system calls leads to these entries.
pub fn is_interrupt(record: &Record, symbols: &Symbols) -> bool {
    let is_entry = |s: &Symbol| is_x86_entry(s, record.to) || arm64_entry(s, record.to).is_some();
    record.kind == Kind::Interrupt
        || !matches!(record.kind, Kind::Int | Kind::Syscall) && symbols.find(record.to).is_some_and(is_entry)
}

/// Whether an interrupt, which comes over whatever runs, enters at an address of a symbol, or its handler goes on there: an
/// exception is the work of what raises it.
pub fn is_asynchronous(symbol: &Symbol, address: u64) -> bool {
    let name = symbol.name.as_str();
    let is_exception = name.starts_with("asm_exc_") && !name.starts_with("asm_exc_nmi");
    let from_vector = ARM64_INTERRUPTS.contains(&name);
    has_x86_name(name) && !is_exception
        || from_vector
        || arm64_entry(symbol, address) == Some(Entry::Asynchronous)
}

fn is_x86_entry(symbol: &Symbol, address: u64) -> bool {
    symbol.start == address && has_x86_name(&symbol.name)
}

fn has_x86_name(name: &str) -> bool {
    const ENTRIES: [&str; 5] = [
        "asm_sysvec_",
        "asm_exc_",
        "asm_common_interrupt",
        "asm_spurious_interrupt",
        "asm_fred_entrypoint_kernel",
    ];
    ENTRIES.iter().any(|entry| name.starts_with(entry))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// Of an exception that an instruction raised.
    Synchronous,
    Asynchronous,
}

/// The tables that arm64 enters the kernel by, one entry after the other; the second is of CPUs whose branch history needs
/// hiding, and holds several of the first.
const ARM64_VECTORS: [&str; 2] = ["vectors", "__bp_harden_el1_vectors"];
/// Bytes of an entry, by the architecture. They come in fours: synchronous, IRQ, FIQ, error.
const ARM64_ENTRY: u64 = 0x80;
/// Where the entries jump to: what a sampled stack shows, as the entries themselves call nothing.
const ARM64_INTERRUPTS: [&str; 6] =
    ["el1h_64_irq", "el1h_64_fiq", "el1h_64_error", "el0t_64_irq", "el0t_64_fiq", "el0t_64_error"];

/// Which entry of the vectors begins at an address.
fn arm64_entry(symbol: &Symbol, address: u64) -> Option<Entry> {
    let offset = address.checked_sub(symbol.start)?;
    let is_start = ARM64_VECTORS.contains(&symbol.name.as_str()) && offset.is_multiple_of(ARM64_ENTRY);
    is_start.then(|| match (offset / ARM64_ENTRY) % 4 {
        0 => Entry::Synchronous,
        _ => Entry::Asynchronous,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0xffff_8000_8001_0800;

    fn symbol(name: &str) -> Symbol {
        Symbol { name: name.to_owned(), module: None, start: START, end: START + 0x1000 }
    }

    /// By name and offset: whether a return there is an interrupt gone astray, and whether what goes on there came over
    /// what ran.
    #[test]
    fn entries_are_known_by_name_and_place() {
        for (name, offset, entry, asynchronous) in [
            ("asm_sysvec_apic_timer_interrupt", 0, true, true),
            ("asm_sysvec_apic_timer_interrupt", 0xf, false, true),
            ("asm_exc_page_fault", 0, true, false),
            ("asm_exc_nmi", 0, true, true),
            // The kernel's own: synchronous, IRQ, FIQ, error; then those of user space.
            ("vectors", 0x200, true, false),
            ("vectors", 0x280, true, true),
            ("vectors", 0x300, true, true),
            ("vectors", 0x380, true, true),
            ("vectors", 0x400, true, false),
            ("vectors", 0x480, true, true),
            // Within an entry, as every one branches.
            ("vectors", 0x40c, false, false),
            ("vectors", 0x298, false, false),
            ("__bp_harden_el1_vectors", 0x800 + 0x280, true, true),
            // Reached by a branch of the entry.
            ("el1h_64_irq", 0, false, true),
            ("el1h_64_irq", 0x6c, false, true),
            ("el1h_64_sync", 0, false, false),
            ("el1h_64_irq_handler", 0, false, false),
            ("vfs_read", 0, false, false),
            ("vfs_read", 0x280, false, false),
        ] {
            let to = START + offset;
            let symbols: Symbols = [symbol(name)].into_iter().collect();
            let of = |kind| is_interrupt(&Record { from: 0, to, kind, instructions: 1 }, &symbols);
            assert_eq!(of(Kind::Ret), entry, "{name}+{offset:#x}");
            // What raises it says so, where the CPU is made to.
            assert_eq!(
                (of(Kind::Interrupt), of(Kind::Int), of(Kind::Syscall)),
                (true, false, false),
                "{name}"
            );
            assert_eq!(is_asynchronous(&symbol(name), to), asynchronous, "{name}+{offset:#x}");
        }
    }
}
