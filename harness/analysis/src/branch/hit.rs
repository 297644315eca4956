// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the hits of an armed window have in common, whatever is measured of them.

use super::Symbols;
use std::{cmp::Reverse, collections::BTreeMap};
use tramplab_protocol::{
    message::Symbol,
    trace::{Kind, Record},
};

/// What to do where no hit is of use.
pub fn all_interrupted(hits: u32) -> String {
    format!(
        "interrupts fell into all {hits} hits: ask for more (the first are slow, as the emulator translates anew), or measure on a quieter host"
    )
}

/// The hits of the most frequent form; of equally frequent ones that seen first. Empty of nothing.
pub fn most_frequent<'a, H, F: Ord>(hits: &[&'a H], form: impl Fn(&'a H) -> F) -> Vec<&'a H> {
    let mut groups: BTreeMap<F, Vec<usize>> = BTreeMap::new();
    for (number, hit) in hits.iter().enumerate() {
        groups.entry(form(hit)).or_default().push(number);
    }
    let largest = groups.into_values().min_by_key(|group| (Reverse(group.len()), group[0]));
    largest.into_iter().flatten().map(|number| hits[number]).collect()
}

/// Whether an interrupt or an exception came over the flow, which is then not the hit's alone: only `int` (arm64: `brk`) and system
/// calls lead to its entries otherwise.
pub fn is_interrupt(record: &Record, symbols: &Symbols) -> bool {
    record.kind == Kind::Interrupt
        || !matches!(record.kind, Kind::Int | Kind::Syscall) && leads_to_entry(record, symbols)
}

/// Where QEMU does not report interrupts (before 10.2) the recorder takes one right behind a return or another indirect transfer
/// for that transfer's target.
fn is_astray(record: &Record, symbols: &Symbols) -> bool {
    // What jumps to an entry is the stub before it.
    let is_indirect =
        matches!(record.kind, Kind::Ret | Kind::IndCall | Kind::IndJump | Kind::Iret | Kind::Sysret);
    is_indirect && leads_to_entry(record, symbols)
}

fn leads_to_entry(record: &Record, symbols: &Symbols) -> bool {
    let is_entry = |s: &Symbol| is_x86_entry(s, record.to) || arm64_entry(s, record.to).is_some();
    symbols.find(record.to).is_some_and(is_entry)
}

/// Gives transfers that an interrupt was taken for the target of their own back, which is where the handler returns to: else
/// a program that was interrupted at its first instruction would seem never to have been entered.
pub fn with_targets(records: &[Record], symbols: &Symbols) -> Vec<Record> {
    let astray: Vec<bool> = records.iter().map(|record| is_astray(record, symbols)).collect();
    let mut targets: Vec<u64> = records.iter().map(|record| record.to).collect();
    let ends = ends_of_handlers(records, &astray);
    // From the end: what a handler returns to may be astray too.
    for (index, end) in ends.into_iter().enumerate().rev() {
        if let Some(back) = end {
            targets[index] = targets[back];
        }
    }
    let mut whole = Vec::with_capacity(records.len());
    for ((record, &target), &astray) in records.iter().zip(&targets).zip(&astray) {
        whole.push(Record { to: target, ..*record });
        if astray {
            whole.push(Record { from: target, to: record.to, kind: Kind::Interrupt, instructions: 0 });
        }
    }
    whole
}

/// By the record that went astray into a handler: the one by which that returns. Once through the trace, as a guest can have an
/// interrupt behind every record.
fn ends_of_handlers(records: &[Record], astray: &[bool]) -> Vec<Option<usize>> {
    let mut ends = vec![None; records.len()];
    // What was entered and not left, with the record that went astray, if one did.
    let mut open: Vec<Option<usize>> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        match record.kind {
            Kind::Interrupt | Kind::Int | Kind::Syscall => open.push(None),
            Kind::Iret | Kind::Sysret => {
                if let Some(Some(entry)) = open.pop() {
                    ends[entry] = Some(index);
                }
            }
            _ => {}
        }
        if astray[index] {
            open.push(Some(index));
        }
    }
    ends
}

/// Whether an interrupt, which comes over whatever runs, enters at an address of a symbol, or its handler goes on there: an
/// exception is the work of what raises it.
pub fn is_asynchronous(symbol: &Symbol, address: u64) -> bool {
    let name = symbol.name.as_str();
    let is_exception = name.starts_with("asm_exc_") && !name.starts_with("asm_exc_nmi");
    let from_vector = ARM64_INTERRUPTS.contains(&name);
    has_x86_name(name) && !is_exception
        || X86_STUBS.contains(&name)
        || from_vector
        || arm64_entry(symbol, address) == Some(Entry::Asynchronous)
}

fn is_x86_entry(symbol: &Symbol, address: u64) -> bool {
    symbol.start == address && has_x86_name(&symbol.name) || X86_STUBS.contains(&symbol.name.as_str())
}

/// A stub for each vector of a device, all of them under one name (K `arch/x86/include/asm/idtentry.h`).
const X86_STUBS: [&str; 2] = ["irq_entries_start", "spurious_entries_start"];

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
    let is_exception = (offset / ARM64_ENTRY).is_multiple_of(4);
    is_start.then_some(if is_exception { Entry::Synchronous } else { Entry::Asynchronous })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0xffff_8000_8001_0800;

    /// Looked at pair by pair, as many as a trace holds take days.
    #[test]
    fn a_guest_may_have_an_interrupt_behind_every_record() {
        let symbols: Symbols = [symbol("asm_sysvec_apic_timer_interrupt")].into_iter().collect();
        let record = Record { from: 8, to: START, kind: Kind::Ret, instructions: 1 };
        let back = Record { from: START, to: 16, kind: Kind::Iret, instructions: 1 };
        let open = 1 << 20;
        let mut records = vec![record; open];
        records.push(back);
        let whole = with_targets(&records, &symbols);
        assert_eq!(whole.len(), 2 * open + 1);
        // The last one only came back.
        assert_eq!((whole[2 * open - 2].to, whole[2 * open - 4].to), (16, START));
    }

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
            // Of whichever vector.
            ("irq_entries_start", 0, true, true),
            ("irq_entries_start", 0x110, true, true),
            ("spurious_entries_start", 0x10, true, true),
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

    /// A device's interrupt enters x86-64 by a stub that jumps on.
    #[test]
    fn a_stub_before_an_entry_is_no_transfer_gone_astray() {
        let common = Symbol { start: START + 0x1000, end: START + 0x2000, ..symbol("asm_common_interrupt") };
        let symbols: Symbols = [symbol("irq_entries_start"), common].into_iter().collect();
        let record = |kind, from, to| Record { from, to, kind, instructions: 1 };
        let stub = START + 0x110;
        let handler = [
            record(Kind::Jump, stub + 3, START + 0x1000),
            record(Kind::Call, START + 0x1010, 0x60),
            record(Kind::Iret, 0x70, 8),
        ];
        let seen = [&[record(Kind::Interrupt, 8, stub)][..], &handler].concat();
        assert_eq!(with_targets(&seen, &symbols), seen);
        let taken = [&[record(Kind::Ret, 1, stub)][..], &seen[..], &handler].concat();
        let told = Record { instructions: 0, ..record(Kind::Interrupt, 8, stub) };
        let expected = [&[record(Kind::Ret, 1, 8), told][..], &seen[..], &handler].concat();
        assert_eq!(with_targets(&taken, &symbols), expected);
        assert!(handler.iter().take(1).chain(&seen[..1]).all(|record| is_interrupt(record, &symbols)));
    }

    #[test]
    fn what_an_interrupt_was_taken_for_gets_its_target_back() {
        let vector = START + 0x280;
        let symbols: Symbols = [symbol("vectors")].into_iter().collect();
        let record = |kind, from, to| Record { from, to, kind, instructions: 1 };
        let told = |from| Record { instructions: 0, ..record(Kind::Interrupt, from, vector) };
        let handler = |to| [record(Kind::Call, 0x50, 0x60), record(Kind::Iret, 0x70, to)];
        let taken = |kind, to| record(kind, 1, to);
        let nested = [record(Kind::Interrupt, 0x60, START + 0x200), record(Kind::Iret, 0x90, 0x60)];
        let table = [
            ("nothing", vec![taken(Kind::IndCall, 8)], vec![taken(Kind::IndCall, 8)]),
            (
                "a call",
                [&[taken(Kind::IndCall, vector)][..], &handler(8)].concat(),
                [&[taken(Kind::IndCall, 8), told(8)][..], &handler(8)].concat(),
            ),
            (
                "a handler that is interrupted itself",
                [&[taken(Kind::Ret, vector)][..], &nested, &handler(8)].concat(),
                [&[taken(Kind::Ret, 8), told(8)][..], &nested, &handler(8)].concat(),
            ),
            (
                "the next one behind the handler's return",
                [&[taken(Kind::Ret, vector), record(Kind::Iret, 0x70, vector)][..], &handler(8)].concat(),
                [&[taken(Kind::Ret, 8), told(8), record(Kind::Iret, 0x70, 8), told(8)][..], &handler(8)]
                    .concat(),
            ),
            (
                "a handler without an end",
                vec![taken(Kind::Ret, vector)],
                vec![taken(Kind::Ret, vector), told(vector)],
            ),
        ];
        for (what, records, expected) in table {
            assert_eq!(with_targets(&records, &symbols), expected, "{what}");
        }
    }
}
