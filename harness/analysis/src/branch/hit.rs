// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules for the hits of an armed window that waste and trigger cost share.

use super::Symbols;
use std::{cmp::Reverse, collections::BTreeMap};
use tramplab_protocol::{
    message::Symbol,
    trace::{Accesses, Kind, Record},
};

/// Bytes of the longest instruction of any architecture.
const LONGEST: u64 = 15;

/// The message for a window in which every hit was interrupted.
pub fn all_interrupted(hits: u32) -> String {
    format!(
        "interrupts fell into all {hits} hits: ask for more hits (`hits` in a suite; of a \
         command a loop that hits it several times: the first are slow, because the emulator \
         translates their code), or measure on a quieter host"
    )
}

/// The end of a message about a window with too few or too many hits.
pub fn hint(has_dropped: bool) -> &'static str {
    match has_dropped {
        true => "; the recorder's ring was too small and dropped the oldest records",
        false => "",
    }
}

/// The end of a message about a program that ran `runs` times, at so many points of a hit.
pub fn hint_of_session(points: usize, runs: u64, expected: u64) -> &'static str {
    match points > 1 && (1..expected).contains(&runs) {
        true => "; a session's program that returns 1 at the entry does not run at the exit",
        false => "",
    }
}

/// Returns the hits of the most frequent form; of a tie, the form seen first. Empty for no hits.
pub fn most_frequent<'a, H, F: Ord>(hits: &[&'a H], form: impl Fn(&'a H) -> F) -> Vec<&'a H> {
    let mut groups: BTreeMap<F, Vec<usize>> = BTreeMap::new();
    for (number, hit) in hits.iter().enumerate() {
        groups.entry(form(hit)).or_default().push(number);
    }
    let largest = groups.into_values().min_by_key(|group| (Reverse(group.len()), group[0]));
    largest.into_iter().flatten().map(|number| hits[number]).collect()
}

pub fn is_in(symbol: &Symbol, address: u64) -> bool {
    (symbol.start..symbol.end).contains(&address)
}

/// Tells if `address` is that of the instruction behind `branch`.
pub fn is_behind(branch: u64, address: u64) -> bool {
    (1..=LONGEST).contains(&address.wrapping_sub(branch))
}

/// Matches a call of `symbol`, and what a mitigation makes of one, but no return from an interrupt.
pub fn enters(symbol: &Symbol, record: &Record) -> bool {
    record.to == symbol.start && !is_in(symbol, record.from) && record.kind != Kind::Iret
}

/// Tells if a record enters an interrupt or exception, whose branches are not the hit's own. Among
/// the hit's own, only `int` (arm64: `brk`) and system calls lead to the same entries.
pub fn is_interrupt(record: &Record, symbols: &Symbols) -> bool {
    record.kind == Kind::Interrupt
        || !matches!(record.kind, Kind::Int | Kind::Syscall) && leads_to_entry(record, symbols)
}

/// Tells if a record enters an interrupt, and not an exception. Exceptions are a user-space probe's
/// own: its breakpoint, its single step and its page faults.
pub fn is_asynchronous_interrupt(record: &Record, symbols: &Symbols) -> bool {
    leads_to_entry(record, symbols)
        && symbols.find(record.to).is_some_and(|symbol| is_asynchronous(symbol, record.to))
}

/// Tells if the target of a transfer is really that of an interrupt. QEMU before 10.2 does not
/// report interrupts. The recorder then takes one right behind a return, or another indirect
/// transfer, for the target of that transfer.
fn is_astray(record: &Record, symbols: &Symbols) -> bool {
    // A direct jump to an entry comes from the stub before it.
    let is_indirect = matches!(
        record.kind,
        Kind::Ret | Kind::IndCall | Kind::IndJump | Kind::Iret | Kind::Sysret
    );
    is_indirect && leads_to_entry(record, symbols)
}

fn leads_to_entry(record: &Record, symbols: &Symbols) -> bool {
    let is_entry = |s: &Symbol| is_x86_entry(s, record.to) || arm64_entry(s, record.to).is_some();
    symbols.find(record.to).is_some_and(is_entry)
}

/// Bytes of the padding before a function (K `arch/x86/Kconfig`, `FUNCTION_PADDING_BYTES`).
const PADDING: u64 = 16;

/// The function that a record leads to. With call depth tracking a call lands in the padding before
/// it, where its depth is counted (K `arch/x86/kernel/callthunks.c`).
fn target(record: &Record, symbols: &Symbols) -> u64 {
    let is_padding = |symbol: &Symbol| symbol.name.starts_with("__pfx_");
    match symbols.behind(record.to).filter(|_| record.kind.is_call()) {
        Some(next)
            if next.start - record.to <= PADDING
                && symbols.find(record.to).is_none_or(is_padding) =>
        {
            next.start
        }
        _ => record.to,
    }
}

/// Restores the targets of transfers that went astray: the addresses to which the handlers return.
/// Otherwise a program interrupted at its first instruction would seem never entered. If a handler
/// switched tasks, another one may have returned first. A call then leads to where the same
/// instruction calls all other times.
pub fn with_targets(records: &[Record], symbols: &Symbols) -> Vec<Record> {
    let astray: Vec<bool> = records.iter().map(|record| is_astray(record, symbols)).collect();
    let mut targets: Vec<u64> = records.iter().map(|record| target(record, symbols)).collect();
    let ends = ends_of_handlers(records, &astray);
    // Go from the end: a handler's return may have gone astray too.
    for (index, end) in ends.iter().enumerate().rev() {
        if let Some(back) = *end {
            targets[index] = targets[back];
        }
    }
    let switches: Vec<usize> =
        (0..records.len()).filter(|&at| switches_tasks(&records[at], symbols)).collect();
    let before = |index| switches.partition_point(|&switch| switch < index);
    let is_sure =
        |&at: &usize| !astray[at] || ends[at].is_some_and(|end| before(at) == before(end));
    let (sure, others): (Vec<usize>, Vec<usize>) =
        (0..records.len()).filter(|&at| records[at].kind == Kind::IndCall).partition(is_sure);
    // None: the instruction calls several functions.
    let mut called: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    for at in sure {
        let target = called.entry(records[at].from).or_insert(Some(targets[at]));
        *target = target.filter(|&target| target == targets[at]);
    }
    for at in others {
        if let Some(Some(target)) = called.get(&records[at].from) {
            targets[at] = *target;
        }
    }
    let mut whole = Vec::with_capacity(records.len());
    for ((record, &target), &astray) in records.iter().zip(&targets).zip(&astray) {
        whole.push(Record { to: target, ..*record });
        if astray {
            whole.push(Record {
                from: target,
                to: record.to,
                kind: Kind::Interrupt,
                instructions: 0,
                accesses: record.accesses.map(|_| Accesses::default()),
            });
        }
    }
    whole
}

/// Finds, for each record that went astray into a handler, the record by which the handler returns.
/// Goes through the trace once, as a guest can have an interrupt behind every record.
fn ends_of_handlers(records: &[Record], astray: &[bool]) -> Vec<Option<usize>> {
    let mut ends = vec![None; records.len()];
    // Handlers entered and not left, with the record that went astray into each, if one did.
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

/// Matches a call or jump to the functions that go on with another task. They also have calls that
/// fill the return stack buffer and do not return.
pub fn switches_tasks(record: &Record, symbols: &Symbols) -> bool {
    let is_switch =
        |symbol: &Symbol| ["__switch_to_asm", "cpu_switch_to"].contains(&symbol.name.as_str());
    matches!(record.kind, Kind::Call | Kind::Jump) && symbols.find(record.to).is_some_and(is_switch)
}

/// Tells if `address` in `symbol` is the entry of an interrupt or code of its handler. Exceptions
/// do not count: they are work of the code that raises them.
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
    symbol.start == address && has_x86_name(&symbol.name)
        || X86_STUBS.contains(&symbol.name.as_str())
}

/// The stubs of all device vectors, under one name (K `arch/x86/include/asm/idtentry.h`).
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
    /// An instruction raised the exception.
    Synchronous,
    Asynchronous,
}

/// The vector tables by which arm64 enters the kernel. The second is for CPUs whose branch history
/// needs hiding; it holds several tables like the first.
const ARM64_VECTORS: [&str; 2] = ["vectors", "__bp_harden_el1_vectors"];
/// Bytes of a vector table's entry. Entries come in fours: synchronous, IRQ, FIQ, error.
const ARM64_ENTRY: u64 = 0x80;
/// The functions to which the entries jump. Sampled stacks show these: the entries call nothing.
const ARM64_INTERRUPTS: [&str; 6] =
    ["el1h_64_irq", "el1h_64_fiq", "el1h_64_error", "el0t_64_irq", "el0t_64_fiq", "el0t_64_error"];

/// Returns the kind of the vector table's entry that begins at `address`.
fn arm64_entry(symbol: &Symbol, address: u64) -> Option<Entry> {
    let offset = address.checked_sub(symbol.start)?;
    let is_start =
        ARM64_VECTORS.contains(&symbol.name.as_str()) && offset.is_multiple_of(ARM64_ENTRY);
    let is_exception = (offset / ARM64_ENTRY).is_multiple_of(4);
    is_start.then_some(if is_exception { Entry::Synchronous } else { Entry::Asynchronous })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0xffff_8000_8001_0800;

    /// Comparing the records pair by pair would take days.
    #[test]
    fn handles_an_interrupt_behind_every_record() {
        let symbols: Symbols = [symbol("asm_sysvec_apic_timer_interrupt")].into_iter().collect();
        let record =
            Record { from: 8, to: START, kind: Kind::Ret, instructions: 1, accesses: None };
        let back =
            Record { from: START, to: 16, kind: Kind::Iret, instructions: 1, accesses: None };
        let open = 1 << 20;
        let mut records = vec![record; open];
        records.push(back);
        let whole = with_targets(&records, &symbols);
        assert_eq!(whole.len(), 2 * open + 1);
        // Only the last one returned.
        assert_eq!((whole[2 * open - 2].to, whole[2 * open - 4].to), (16, START));
    }

    fn symbol(name: &str) -> Symbol {
        Symbol { name: name.to_owned(), module: None, start: START, end: START + 0x1000 }
    }

    /// Name and offset; is a return there a transfer gone astray; is the code there asynchronous.
    #[test]
    fn finds_entries_by_name_and_offset() {
        for (name, offset, entry, asynchronous) in [
            ("asm_sysvec_apic_timer_interrupt", 0, true, true),
            ("asm_sysvec_apic_timer_interrupt", 0xf, false, true),
            ("asm_exc_page_fault", 0, true, false),
            ("asm_exc_nmi", 0, true, true),
            // Any vector.
            ("irq_entries_start", 0, true, true),
            ("irq_entries_start", 0x110, true, true),
            ("spurious_entries_start", 0x10, true, true),
            // From the kernel: synchronous, IRQ, FIQ, error; then from user space.
            ("vectors", 0x200, true, false),
            ("vectors", 0x280, true, true),
            ("vectors", 0x300, true, true),
            ("vectors", 0x380, true, true),
            ("vectors", 0x400, true, false),
            ("vectors", 0x480, true, true),
            // Within an entry: each one branches.
            ("vectors", 0x40c, false, false),
            ("vectors", 0x298, false, false),
            ("__bp_harden_el1_vectors", 0x800 + 0x280, true, true),
            // Functions that the entries reach by a branch.
            ("el1h_64_irq", 0, false, true),
            ("el1h_64_irq", 0x6c, false, true),
            ("el1h_64_sync", 0, false, false),
            ("el1h_64_irq_handler", 0, false, false),
            ("vfs_read", 0, false, false),
            ("vfs_read", 0x280, false, false),
        ] {
            let to = START + offset;
            let symbols: Symbols = [symbol(name)].into_iter().collect();
            let of = |kind| {
                is_interrupt(
                    &Record { from: 0, to, kind, instructions: 1, accesses: None },
                    &symbols,
                )
            };
            assert_eq!(of(Kind::Ret), entry, "{name}+{offset:#x}");
            // These kinds of record decide by themselves.
            assert_eq!(
                (of(Kind::Interrupt), of(Kind::Int), of(Kind::Syscall)),
                (true, false, false),
                "{name}"
            );
            assert_eq!(is_asynchronous(&symbol(name), to), asynchronous, "{name}+{offset:#x}");
        }
    }

    #[test]
    fn a_call_into_the_padding_before_a_function_leads_to_it() {
        let at = |name: &str, start, end| Symbol { start, end, ..symbol(name) };
        let functions = [at("small", START, START + 8), at("f", START + 0x20, START + 0x80)];
        let padded = [&functions[..], &[at("__pfx_f", START + 0x10, START + 0x20)]].concat();
        for (symbols, kind, to, expected) in [
            (&functions[..], Kind::Call, 0x16, 0x20),
            (&padded[..], Kind::Call, 0x16, 0x20),
            (&functions[..], Kind::IndCall, 0x16, 0x20),
            (&functions[..], Kind::Call, 0x20, 0x20),
            // Nothing but a call lands there, and nothing lands farther away.
            (&functions[..], Kind::Jump, 0x16, 0x16),
            (&functions[..], Kind::Call, 0xc, 0xc),
            // Another function.
            (&functions[..], Kind::Call, 0, 0),
            (&functions[..], Kind::Call, 0x90, 0x90),
        ] {
            let symbols: Symbols = symbols.iter().cloned().collect();
            let call = Record { from: 8, to: START + to, kind, instructions: 1, accesses: None };
            let [found] = with_targets(&[call], &symbols)[..] else { panic!() };
            assert_eq!(found.to, START + expected, "{kind:?} {to:#x}");
        }
    }

    /// On x86-64 a device's interrupt enters by a stub, which jumps to the common entry.
    #[test]
    fn does_not_take_a_stub_for_a_transfer_gone_astray() {
        let common =
            Symbol { start: START + 0x1000, end: START + 0x2000, ..symbol("asm_common_interrupt") };
        let symbols: Symbols = [symbol("irq_entries_start"), common].into_iter().collect();
        let record = |kind, from, to| Record { from, to, kind, instructions: 1, accesses: None };
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
        assert!(
            handler.iter().take(1).chain(&seen[..1]).all(|record| is_interrupt(record, &symbols))
        );
    }

    #[test]
    fn restores_the_target_of_a_transfer_gone_astray() {
        let vector = START + 0x280;
        let switch_to = Symbol { start: 0x200, end: 0x300, ..symbol("cpu_switch_to") };
        let symbols: Symbols = [symbol("vectors"), switch_to].into_iter().collect();
        let record = |kind, from, to| Record { from, to, kind, instructions: 1, accesses: None };
        let told = |from| Record { instructions: 0, ..record(Kind::Interrupt, from, vector) };
        let handler = |to| [record(Kind::Call, 0x50, 0x60), record(Kind::Iret, 0x70, to)];
        let taken = |kind, to| record(kind, 1, to);
        let nested = [record(Kind::Interrupt, 0x60, START + 0x200), record(Kind::Iret, 0x90, 0x60)];
        let calls = |last| [8, 8, last].map(|to| taken(Kind::IndCall, to));
        let switch = [record(Kind::Call, 0x60, 0x200), record(Kind::Iret, 0x70, 0x1000)];
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
                [&[taken(Kind::Ret, vector), record(Kind::Iret, 0x70, vector)][..], &handler(8)]
                    .concat(),
                [
                    &[taken(Kind::Ret, 8), told(8), record(Kind::Iret, 0x70, 8), told(8)][..],
                    &handler(8),
                ]
                .concat(),
            ),
            (
                "a handler that another task's return follows",
                [&calls(vector)[..], &switch, &handler(8)].concat(),
                [&calls(8)[..], &[told(8)], &switch, &handler(8)].concat(),
            ),
            (
                "the same behind calls of several functions",
                [&[taken(Kind::IndCall, 16)][..], &calls(vector), &switch].concat(),
                [&[taken(Kind::IndCall, 16)][..], &calls(0x1000), &[told(0x1000)], &switch]
                    .concat(),
            ),
            (
                "a handler in which a kernel's thread runs",
                [&[taken(Kind::Ret, vector)][..], &switch[..1], &handler(8)].concat(),
                [&[taken(Kind::Ret, 8), told(8)][..], &switch[..1], &handler(8)].concat(),
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
