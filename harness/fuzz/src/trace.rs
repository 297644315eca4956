// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzz the reader of the plugin's branch traces, and what flows of any shape waste and cost.

use super::{
    bytes::{Bytes, Table},
    frames::crc,
};
use std::num::NonZeroU32;
use tramplab_analysis::branch::{
    Branch, Filter, Model, Symbols, delivered, lbr_waste, listing,
    listing::{missed_lines, printed, trigger_lines},
    symbols, trigger_cost,
};
use tramplab_model::{
    cpu::{Returns, Underflow},
    run::{Arch, LbrWaste, NamedRecord},
};
use tramplab_protocol::{
    Mechanism,
    message::{LbrWasteReply, Pmu, Symbol, TriggerReply, Triggered},
    trace::{Accesses, Kind, Record, Trace, VcpuTrace},
};

/// A kernel with few functions. `seed.py` uses the same order.
pub const KERNEL: Table = Table {
    base: 0xffff_ffff_8100_0000,
    each: 0x1000,
    names: &[
        ("entry_SYSCALL_64", None),
        ("sys_probe", None),
        ("traced", None),
        ("bpf_trampoline_6442508829", Some("bpf")),
        ("bpf_prog_6deef7357e7b4530_capture", Some("bpf")),
        ("__static_call_return0", None),
        ("bpf_get_branch_snapshot", None),
        ("intel_pmu_snapshot_branch_stack", None),
        ("asm_sysvec_apic_timer_interrupt", None),
        ("asm_exc_page_fault", None),
        ("vectors", None),
        ("fprobe_handler", None),
        ("__switch_to_asm", None),
    ],
};
const TRACED: usize = 2;
const PROGRAM: usize = 4;
const PATCHED: usize = 1;
const KINDS: [Kind; 11] = [
    Kind::Call,
    Kind::Ret,
    Kind::Cond,
    Kind::Jump,
    Kind::IndCall,
    Kind::IndJump,
    Kind::Syscall,
    Kind::Sysret,
    Kind::Int,
    Kind::Interrupt,
    Kind::Iret,
];
const MECHANISMS: [Mechanism; 6] = [
    Mechanism::Fentry,
    Mechanism::Fexit,
    Mechanism::KprobeMulti,
    Mechanism::KretprobeMulti,
    Mechanism::KprobeSession,
    Mechanism::TpBtf,
];

pub fn run(data: &[u8]) -> bool {
    let _ = Trace::decode(data);
    match data.split_first() {
        Some((b'F', file)) => of_file(file),
        Some((_, flow)) => of_flow(flow),
        None => false,
    }
}

fn of_file(data: &[u8]) -> bool {
    let mut file = Vec::from(&Trace::default().encode().expect("it is empty")[..8]);
    file.extend(data);
    file.extend(crc(&file).to_le_bytes());
    let Ok(trace) = Trace::decode(&file) else { return false };
    let again = trace.encode().expect("what was read can be written");
    assert_eq!(Trace::decode(&again).as_ref(), Ok(&trace));
    // A record has five fields of a byte or more.
    assert!(trace.vcpus.iter().map(|vcpu| vcpu.records.len() * 5).sum::<usize>() <= data.len());
    assert!(symbols::addresses(&trace).is_sorted());
    true
}

fn of_flow(data: &[u8]) -> bool {
    let mut bytes = Bytes::new(data);
    let mechanism = bytes.one_of(&MECHANISMS);
    let (hits, result, depth) = (u32::from(bytes.byte() % 8), bytes.byte(), bytes.byte());
    let mut vcpus: Vec<VcpuTrace> = Vec::new();
    while !bytes.is_empty() {
        let kind = bytes.byte();
        // 0xff begins another vCPU.
        if kind == 0xff || vcpus.is_empty() {
            vcpus.push(VcpuTrace { index: vcpus.len() as u32, ..VcpuTrace::default() });
        }
        let (from, to) = (address(&mut bytes), address(&mut bytes));
        let vcpu = vcpus.last_mut().expect("there is one");
        let kind_of = KINDS[usize::from(kind & 0xf) % KINDS.len()];
        let instructions = bytes.number() as u32;
        // As many as there are instructions.
        let accesses =
            (result & 4 != 0).then_some(Accesses { reads: instructions, writes: instructions });
        vcpu.records.push(Record { from, to, kind: kind_of, instructions, accesses });
        vcpu.total += 1 + u64::from(kind >> 7);
    }
    let trace = Trace { discontinuities: false, vcpus };
    let table: Vec<Symbol> = KERNEL.symbols().collect();
    let symbols: Symbols = table.iter().cloned().collect();
    let points = mechanism.points().to_vec();
    let function = table[TRACED].clone();
    // Other code may also hit a function that the user names.
    let is_named = result & 8 != 0;
    let hit_by_others = if is_named { u64::from(result >> 4) } else { 0 };
    let trigger = is_named.then(|| Triggered { workload: "any".to_owned(), hits: 1 });
    let runs = (u64::from(hits) + hit_by_others) * points.len() as u64;
    let reply = LbrWasteReply {
        mechanism,
        program: None,
        function: function.clone(),
        trigger: trigger.clone(),
        points: points.clone(),
        hits,
        runs,
        snapshot_result: i64::from(result as i8),
        snapshot: vec![(0, 0); usize::from(result & 7)],
        pmu: Pmu::default(),
        of_driver: Vec::new(),
        remarks: Vec::new(),
    };
    let mut accepted = false;
    // Or a program of the user's is attached, which counts no runs.
    let own = LbrWasteReply { program: Some(table[PROGRAM].clone()), runs: 0, ..reply.clone() };
    for arch in Arch::ALL {
        for reply in [&reply, &own] {
            if let Ok(waste) = lbr_waste(arch, &trace, &symbols, reply) {
                accepted = true;
                measured(arch, &waste);
            }
        }
    }
    for model in Model::ALL {
        let filter = Filter::of(Branch::Any);
        if let Ok(delivered) = delivered(model, filter, depth.into(), &trace, &symbols, &reply) {
            assert!(delivered.records <= depth.into());
        }
    }
    let program = table[PROGRAM].clone();
    let reply = TriggerReply {
        mechanism,
        function,
        trigger,
        others: Vec::new(),
        replacement: None,
        points,
        program,
        hits,
        attached_ns: Vec::new(),
        detached_ns: Vec::new(),
        estimated: 0,
        timed: 0,
        counters: Vec::new(),
        remarks: Vec::new(),
    };
    let returns = NonZeroU32::new(hits).map(|depth| Returns {
        depth,
        underflow: if is_named { Underflow::LastTarget } else { Underflow::Wrong },
        source: String::new(),
    });
    // Or a live patch replaces the function.
    let patched = TriggerReply { replacement: Some(table[PATCHED].clone()), ..reply.clone() };
    for reply in [&reply, &patched] {
        let Ok(cost) = trigger_cost(&trace, &symbols, reply, returns.as_ref()) else { continue };
        assert!(cost.hits == hits || is_named && cost.hits > hits);
        assert!(cost.agreeing_hits > 0 && cost.agreeing_hits + cost.interrupted_hits <= cost.hits);
        let predicted = cost.predicted.as_ref();
        let parts = cost.parts.iter().map(|part| trigger_lines(part, predicted));
        let lists = parts.chain(predicted.map(missed_lines));
        lists.for_each(|lines| drop(printed(&lines, None)));
        accepted = true;
    }
    accepted
}

/// An address in one of the functions, or in user space.
fn address(bytes: &mut Bytes) -> u64 {
    let (function, offset) = (bytes.byte(), bytes.byte());
    if function == 0xff { offset.into() } else { KERNEL.address(function & 0xf, offset.into()) }
}

/// Checks the definitions of waste against the records.
fn measured(arch: Arch, waste: &LbrWaste) {
    let interrupted = waste.interrupted_hits.expect("a trace shows them");
    assert!(waste.agreeing_hits > 0 && waste.agreeing_hits + interrupted <= waste.hits);
    let touches = |address: u64| (waste.function.start..waste.function.end).contains(&address);
    for point in &waste.points {
        let own = point.records.iter().any(|r| touches(r.from.address) || touches(r.to.address));
        assert!(own, "a capture without the function");
        for (model, filters) in &point.wasted {
            let model: Model = model.parse().expect("a model's name");
            assert_eq!(model.arch(), arch);
            for (branch, counted) in filters {
                let filter: Filter = branch.parse().expect("a filter's name");
                let Some(wasted) = counted.wasted else {
                    assert!(counted.wasted_selftest.is_none(), "the stricter rule finds more");
                    continue;
                };
                assert!(wasted as usize <= point.records.len(), "more are wasted than there are");
                assert!(counted.wasted_selftest.is_none_or(|stricter| stricter >= wasted));
                in_rings(model, filter, &point.records);
                let shown = listing(point, &waste.function, model, filter, None);
                assert_eq!(shown.lines().count(), wasted as usize + 1, "{shown}");
            }
        }
    }
}

/// Checks that a ring holds the newest records in order, at most as many as its depth.
fn in_rings(model: Model, filter: Filter, records: &[NamedRecord]) {
    let all: Vec<_> = model.snapshot(filter, None, records).collect();
    for &depth in model.depths() {
        let kept: Vec<_> = model.snapshot(filter, Some(depth), records).collect();
        assert!(kept.len() <= depth as usize);
        assert!(all.starts_with(&kept));
    }
}
