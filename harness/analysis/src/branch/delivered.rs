// SPDX-License-Identifier: MIT OR Apache-2.0
//! Branch records that the plugin handed to the guest's program, held against the trace: what the program says it was given must be what
//! the modelled CPU makes of the records before its last snapshot.

use super::{Filter, Model, Symbols, capture::snapshots};
use tramplab_model::run::{Delivered, NamedRecord, Place};
use tramplab_protocol::{
    message::LbrWasteReply,
    trace::{Kind, Record, Trace, VcpuTrace},
};

/// What a program is asked to show has room for so many.
const ROOM: u32 = 64;
/// Of `struct perf_branch_entry`.
const ENTRY_BYTES: i64 = 24;
/// `ENOENT`: what the helper returns while there is no driver.
const NO_DRIVER: i64 = -2;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// Becomes a skip.
    #[error(
        "nothing can be delivered: without a driver this kernel makes no call for a snapshot (before 6.10 its place is patched)"
    )]
    NoCall,
    #[error("no program called the snapshot function, so nothing was delivered")]
    NoSnapshot,
    #[error(
        "the program was to be given {expected} branch records, and its helper returned {result} (-2: nothing was delivered)"
    )]
    Result { expected: usize, result: i64 },
    #[error(
        "record {index} that the program was given is {from:#x} -> {to:#x}; by the trace it is {trace_from:#x} -> {trace_to:#x}"
    )]
    Differs { index: usize, from: u64, to: u64, trace_from: u64, trace_to: u64 },
}

/// Compares what the program got at its last run with the trace.
pub fn delivered(
    model: Model,
    filter: Filter,
    depth: u32,
    trace: &Trace,
    symbols: &Symbols,
    reply: &LbrWasteReply,
) -> Result<Delivered, DeliveryError> {
    let last = |vcpu: &VcpuTrace| Some((vcpu.records.clone(), snapshots(&vcpu.records, symbols).pop()?));
    let (records, snapshot) = trace.vcpus.iter().find_map(last).ok_or(DeliveryError::NoSnapshot)?;
    if snapshot.modelled && reply.snapshot_result == NO_DRIVER {
        return Err(DeliveryError::NoCall);
    }
    let place = |address| Place { address, symbol: None, module: None, offset: 0 };
    let newest_first: Vec<NamedRecord> = records[..=last_before(&records, snapshot.index)]
        .iter()
        .rev()
        .map(|r| NamedRecord { from: place(r.from), to: place(r.to), kind: r.kind, modelled: false })
        .collect();
    let address = |place: Option<&Place>| place.map_or(0, |place| place.address);
    let mut expected: Vec<(u64, u64)> = model
        .snapshot(filter, Some(depth), &newest_first)
        .map(|seen| (address(seen.from), address(seen.to)))
        .take(ROOM as usize)
        .collect();
    let records = expected.len() as u32;
    // The driver hands over as many as there are slots, whatever it dropped of them.
    expected.resize(depth.min(ROOM) as usize, (0, 0));
    let result = reply.snapshot_result;
    if result != expected.len() as i64 * ENTRY_BYTES || reply.snapshot.len() != expected.len() {
        return Err(DeliveryError::Result { expected: expected.len(), result });
    }
    let mut pairs = reply.snapshot.iter().zip(&expected).enumerate();
    match pairs.find(|(_, (guest, trace))| guest != trace) {
        Some((index, (&(from, to), &(trace_from, trace_to)))) => {
            Err(DeliveryError::Differs { index, from, to, trace_from, trace_to })
        }
        None => Ok(Delivered { model: model.name().to_owned(), filter: filter.to_string(), depth, records }),
    }
}

/// The newest record when the function begins that is called at `call`: the call itself, or the return of an interrupt that came between.
fn last_before(records: &[Record], call: usize) -> usize {
    let function = records[call].to;
    let mut last = call;
    while records.get(last + 1).is_some_and(|next| next.kind == Kind::Interrupt && next.from == function) {
        let returns = |record: &Record| record.kind == Kind::Iret && record.to == function;
        let Some(length) = records[last + 1..].iter().position(returns) else { break };
        last += 1 + length;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::Branch;
    use tramplab_protocol::{
        Mechanism, Point,
        message::{Pmu, Symbol},
        trace::{Kind, Record},
    };

    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    const PROGRAM: u64 = 0xffff_ffff_c000_0000;

    fn symbol(name: &str, module: Option<&str>, start: u64) -> Symbol {
        Symbol { name: name.to_owned(), module: module.map(str::to_owned), start, end: start + 0x100 }
    }

    fn symbols() -> Symbols {
        let symbols = [
            symbol("traced", None, KERNEL),
            symbol("__static_call_return0", None, KERNEL + 0x100),
            symbol("bpf_get_branch_snapshot", None, KERNEL + 0x200),
            symbol("bpf_prog_6deef7357e7b4530_capture", Some("bpf"), PROGRAM),
        ];
        symbols.into_iter().collect()
    }

    /// Two hits, of which the second is compared; what follows it is not.
    fn trace(called: u64) -> Trace {
        let r = |from, to, kind| Record { from, to, kind, instructions: 1 };
        let hit = [
            r(KERNEL + 4, PROGRAM, Kind::Call),
            r(PROGRAM + 8, PROGRAM + 16, Kind::Cond),
            r(PROGRAM + 24, called, Kind::Call),
            r(called + 6, PROGRAM + 29, Kind::Ret),
            r(PROGRAM + 40, KERNEL + 9, Kind::Ret),
        ];
        let records = [&hit[..], &[r(KERNEL + 12, KERNEL + 12, Kind::Interrupt)], &hit].concat();
        Trace {
            discontinuities: true,
            vcpus: vec![VcpuTrace { index: 0, total: records.len() as u64, records }],
        }
    }

    fn reply(snapshot: &[(u64, u64)]) -> LbrWasteReply {
        LbrWasteReply {
            mechanism: Mechanism::Fentry,
            function: symbols().find(KERNEL).unwrap().clone(),
            points: vec![Point::Entry],
            hits: 2,
            runs: 2,
            snapshot_result: snapshot.len() as i64 * ENTRY_BYTES,
            snapshot: snapshot.to_vec(),
            pmu: Pmu::default(),
            hardware: Vec::new(),
        }
    }

    const STAND_IN: u64 = KERNEL + 0x100;
    const NEWEST: [(u64, u64); 3] =
        [(PROGRAM + 24, STAND_IN), (PROGRAM + 8, PROGRAM + 16), (KERNEL + 4, PROGRAM)];

    fn compare(depth: u32, reply: &LbrWasteReply) -> Result<Delivered, DeliveryError> {
        let any = Filter::of(Branch::Any);
        delivered(Model::IntelLbr, any, depth, &trace(STAND_IN), &symbols(), reply)
    }

    #[test]
    fn what_equals_the_trace_was_delivered() {
        assert_eq!(compare(3, &reply(&NEWEST)).unwrap().records, 3);
        // The interrupt has no class: it took a slot, and what it leaves is 0. Behind it is the hit before.
        let older = [(PROGRAM + 40, KERNEL + 9), (STAND_IN + 6, PROGRAM + 29)];
        let all = [&NEWEST[..], &older, &[(0, 0)]].concat();
        assert_eq!(compare(6, &reply(&all)).unwrap().records, 5);
    }

    #[test]
    fn an_interrupt_before_the_function_begins_is_delivered_too() {
        let mut trace = trace(STAND_IN);
        let records = &mut trace.vcpus[0].records;
        let call = records.iter().rposition(|r| r.to == STAND_IN).unwrap();
        let handler = KERNEL + 0x80;
        let r = |from, to, kind| Record { from, to, kind, instructions: 1 };
        let interrupt = [r(STAND_IN, handler, Kind::Interrupt), r(handler + 8, STAND_IN, Kind::Iret)];
        records.splice(call + 1..call + 1, [interrupt, interrupt].concat());
        let returned = (handler + 8, STAND_IN);
        let given = [returned, returned, NEWEST[0], (0, 0), (0, 0)];
        let any = Filter::of(Branch::Any);
        let compare = |given| delivered(Model::IntelLbr, any, 5, &trace, &symbols(), &reply(given));
        assert_eq!(compare(&given).unwrap().records, 3);
        assert!(matches!(compare(&[NEWEST[0]; 5]), Err(DeliveryError::Differs { index: 0, .. })));
    }

    #[test]
    fn any_other_record_is_seen() {
        for index in 0..NEWEST.len() {
            for change in [|r: &mut (u64, u64)| r.0 += 1, |r: &mut (u64, u64)| r.1 = 0] {
                let mut wrong = NEWEST;
                change(&mut wrong[index]);
                let error = compare(3, &reply(&wrong)).unwrap_err();
                let DeliveryError::Differs { index: found, .. } = error else { panic!("{error}") };
                assert_eq!(found, index);
            }
        }
        let mut swapped = NEWEST;
        swapped.swap(1, 2);
        assert!(matches!(compare(3, &reply(&swapped)), Err(DeliveryError::Differs { index: 1, .. })));
    }

    #[test]
    fn too_few_too_many_and_none_are_seen() {
        for length in [0, 2] {
            let error = compare(3, &reply(&NEWEST[..length])).unwrap_err();
            assert!(matches!(error, DeliveryError::Result { expected: 3, .. }), "{error}");
        }
        assert!(matches!(compare(2, &reply(&NEWEST)), Err(DeliveryError::Result { expected: 2, .. })));
        let nothing = LbrWasteReply { snapshot_result: NO_DRIVER, ..reply(&[]) };
        assert!(matches!(compare(3, &nothing), Err(DeliveryError::Result { result: NO_DRIVER, .. })));
    }

    #[test]
    fn a_kernel_without_a_call_is_told_apart_from_one_that_got_nothing() {
        let any = Filter::of(Branch::Any);
        let nothing = LbrWasteReply { snapshot_result: NO_DRIVER, ..reply(&[]) };
        let helper = trace(KERNEL + 0x200);
        let compare = |reply| delivered(Model::IntelLbr, any, 3, &helper, &symbols(), reply);
        assert_eq!(compare(&nothing), Err(DeliveryError::NoCall));
        assert!(matches!(compare(&reply(&NEWEST)), Err(DeliveryError::Differs { .. })));
        let none = Trace { discontinuities: true, vcpus: vec![] };
        assert_eq!(
            delivered(Model::IntelLbr, any, 3, &none, &symbols(), &nothing),
            Err(DeliveryError::NoSnapshot)
        );
    }
}
