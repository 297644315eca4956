// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hits of a user-space probe: a breakpoint, a single step elsewhere, and what may come between.

use super::{Symbols, TriggerError, trigger_cost};
use tramplab_model::run::TriggerCost;
use tramplab_protocol::{
    Mechanism, Point,
    message::{Symbol, TriggerReply},
    trace::{Kind, Record, Trace, VcpuTrace},
};

const FUNCTION: u64 = 0x7f00_0001_0080;
const CALLER: u64 = 0x5500_0000_1000;
/// The page that the kernel maps for single steps.
const SLOT: u64 = 0x7fff_ffff_f000;
const BREAKPOINT: u64 = 0xffff_ffff_8100_0000;
const DEBUG: u64 = 0xffff_ffff_8100_1000;
const FAULT: u64 = 0xffff_ffff_8100_2000;
const TIMER: u64 = 0xffff_ffff_8100_3000;
const PROGRAM: u64 = 0xffff_ffff_c000_0000;
const WAY: u64 = 0xffff_ffff_8200_0000;

type Traced = (u64, u64, Kind, u32);

fn symbol(name: &str, start: u64) -> Symbol {
    Symbol { name: name.to_owned(), module: None, start, end: start + 0x100 }
}

/// The call, the breakpoint, the program, the step of `mov $1, %eax`, and the return. `between`
/// comes while the kernel works.
fn hit(between: &[Traced]) -> Vec<Traced> {
    let entry = [
        (CALLER, FUNCTION, Kind::IndCall, 5),
        (FUNCTION, BREAKPOINT, Kind::Int, 1),
        (BREAKPOINT + 0x20, PROGRAM, Kind::IndCall, 100),
    ];
    let exit = [
        (PROGRAM + 8, WAY, Kind::Ret, 3),
        (WAY + 0x20, SLOT, Kind::Iret, 200),
        (SLOT + 5, DEBUG, Kind::Interrupt, 1),
        (DEBUG + 0x40, FUNCTION + 5, Kind::Iret, 300),
        (FUNCTION + 5, CALLER + 2, Kind::Ret, 1),
    ];
    [&entry, between, &exit].concat()
}

fn measure(hits: u32, records: &[Traced]) -> Result<TriggerCost, TriggerError> {
    measure_at(&[Point::Entry], hits, records)
}

fn measure_at(
    points: &[Point],
    hits: u32,
    records: &[Traced],
) -> Result<TriggerCost, TriggerError> {
    let function = Symbol { end: FUNCTION + 6, ..symbol("user_step", FUNCTION) };
    let reply = TriggerReply {
        others: Vec::new(),
        replacement: None,
        mechanism: Mechanism::Uprobe,
        function,
        trigger: None,
        points: points.to_vec(),
        program: symbol("bpf_prog_0123456789abcdef_tramplab_empty", PROGRAM),
        hits,
        attached_ns: Vec::new(),
        detached_ns: Vec::new(),
        timed: 1,
        estimated: 0,
        counters: Vec::new(),
        remarks: Vec::new(),
    };
    let symbols: Symbols = [
        symbol("asm_exc_int3", BREAKPOINT),
        symbol("asm_exc_debug", DEBUG),
        symbol("asm_exc_page_fault", FAULT),
        symbol("asm_sysvec_apic_timer_interrupt", TIMER),
    ]
    .into_iter()
    .collect();
    let record = |&(from, to, kind, instructions)| {
        let accesses = None;
        Record { from, to, kind, instructions, accesses }
    };
    let records: Vec<Record> = records.iter().map(record).collect();
    let total = records.len() as u64;
    let vcpus = vec![VcpuTrace { index: 0, total, records }];
    trigger_cost(&Trace { discontinuities: false, vcpus }, &symbols, &reply, None)
}

#[test]
fn counts_from_the_breakpoint_to_the_instruction_behind_the_probed_one() {
    let cost = measure(2, &hit(&[]).repeat(2)).unwrap();
    // The stepped instruction counts, as it runs outside of the function.
    assert_eq!((cost.instructions(), cost.branches()), (604, 6));
    assert_eq!((cost.interrupted_hits, cost.agreeing_hits), (0, 2));
    let records = &cost.parts[0].records;
    assert_eq!(records[0].from.symbol.as_deref(), Some("user_step"));
    assert_eq!(records.last().unwrap().to.offset, 5);
}

/// x86-64's kernel has the return stepped elsewhere, and the step's trap comes in the caller, or
/// where a hijacked return leads to. arm64's computes where it leads to.
#[test]
fn counts_a_probed_return_up_to_where_it_leads() {
    const HIJACKED: u64 = SLOT + 0x80;
    let entry = [
        (CALLER, FUNCTION, Kind::IndCall, 5),
        (FUNCTION, BREAKPOINT, Kind::Int, 0),
        (BREAKPOINT + 0x20, PROGRAM, Kind::IndCall, 100),
        (PROGRAM + 8, WAY, Kind::Ret, 3),
    ];
    let stepped = |to| {
        [
            // The page of the step may be absent.
            (WAY + 0x20, SLOT, Kind::Iret, 200),
            (SLOT, FAULT, Kind::Interrupt, 0),
            (FAULT + 0x40, SLOT, Kind::Iret, 50),
            (SLOT, to, Kind::Ret, 1),
            (to, DEBUG, Kind::Interrupt, 0),
            (DEBUG + 0x40, to, Kind::Iret, 300),
        ]
    };
    let computed = |to| [(WAY + 0x20, to, Kind::Iret, 200)];
    let exit = [
        (HIJACKED, BREAKPOINT, Kind::Int, 0),
        (BREAKPOINT + 0x20, PROGRAM, Kind::IndCall, 100),
        (PROGRAM + 8, WAY, Kind::Ret, 3),
        (WAY + 0x20, CALLER + 2, Kind::Iret, 400),
    ];
    let back = CALLER + 2;
    for (records, points, expected) in [
        ([&entry[..], &stepped(back)].concat(), &[Point::Entry][..], &[(654, 9)][..]),
        ([&entry[..], &computed(back)].concat(), &[Point::Entry], &[(303, 4)]),
        (
            [&entry[..], &stepped(HIJACKED), &exit].concat(),
            &[Point::Entry, Point::Exit],
            &[(654, 9), (503, 4)],
        ),
        (
            [&entry[..], &computed(HIJACKED), &exit].concat(),
            &[Point::Entry, Point::Exit],
            &[(303, 4), (503, 4)],
        ),
    ] {
        // The caller loops between two hits.
        let between = [(back + 8, CALLER, Kind::Jump, 3)];
        let hits = [&records[..], &between].concat().repeat(2);
        let cost = measure_at(points, 2, &hits).unwrap();
        let parts = cost.parts.iter().map(|part| (part.instructions, part.branches));
        assert_eq!(parts.collect::<Vec<_>>(), expected, "{records:#x?}");
        assert_eq!((cost.agreeing_hits, cost.interrupted_hits), (2, 0));
    }
    // Without the trap, or without a probe of returns where it leads.
    let untrapped = [&entry[..], &stepped(back)[..4]].concat();
    let hijacked = [&entry[..], &computed(HIJACKED), &[exit[0], exit[3]]].concat();
    for records in [untrapped, hijacked] {
        let found = measure(1, &records);
        assert!(matches!(found, Err(TriggerError::Shape { .. })), "{found:?}");
    }
}

/// They come in the caller, after the function's own return.
#[test]
fn leaves_out_exceptions_behind_a_hit() {
    for entry in [TIMER, FAULT] {
        let behind =
            [(CALLER + 2, entry, Kind::Interrupt, 0), (entry + 0x80, CALLER + 2, Kind::Iret, 50)];
        let cost = measure(2, &[&hit(&[])[..], &behind].concat().repeat(2)).unwrap();
        assert_eq!((cost.instructions(), cost.branches()), (604, 6), "{entry:#x}");
        assert_eq!((cost.interrupted_hits, cost.agreeing_hits), (0, 2), "{entry:#x}");
    }
}

/// The page of a user stack may be absent. An interrupt is not the hit's.
#[test]
fn counts_exceptions_and_leaves_out_interrupts() {
    let at = BREAKPOINT + 0x30;
    let handled = |entry| [(at, entry, Kind::Interrupt, 0), (entry + 0x80, at, Kind::Iret, 50)];
    let fault = measure(1, &hit(&handled(FAULT))).unwrap();
    assert_eq!((fault.instructions(), fault.interrupted_hits), (654, 0));
    let timer = measure(2, &[hit(&handled(TIMER)), hit(&[])].concat()).unwrap();
    assert_eq!((timer.instructions(), timer.interrupted_hits, timer.agreeing_hits), (604, 1, 1));
    let only = measure(1, &hit(&handled(TIMER)));
    assert!(matches!(only, Err(TriggerError::Interrupted { hits: 1 })), "{only:?}");
}

/// A kernel that comes back to the breakpoint, or never, has not emulated the instruction.
#[test]
fn rejects_hits_that_do_not_come_back_behind_the_probe() {
    for to in [FUNCTION + 0x100, FUNCTION] {
        let mut records = hit(&[]);
        records[6].1 = to;
        let found = measure(1, &records);
        assert!(matches!(found, Err(TriggerError::Shape { .. })), "{to:#x}: {found:?}");
    }
}
