// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks the branch records that the plugin delivered to the guest's program. They must be those
//! that the modelled CPU keeps of the trace before the program's last snapshot.

use super::{Filter, Model, Symbols, capture::snapshots};
use tramplab_model::run::{Delivered, NamedRecord, Place};
use tramplab_protocol::{
    message::LbrWasteReply,
    trace::{Kind, Record, Trace, VcpuTrace},
};

/// Records that the program can report at most.
const ROOM: u32 = 64;
/// Size of `struct perf_branch_entry`.
const ENTRY_BYTES: i64 = 24;
/// `-ENOENT`, the helper's result without a driver that takes snapshots.
pub(super) const NO_DRIVER: i64 = -2;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// The caller skips the cell.
    #[error(
        "cannot deliver records: without a driver, this kernel makes no call for a snapshot \
         (kernels before 6.10 patch the call out)"
    )]
    NoCall,
    #[error("no program called the snapshot function, so the plugin delivered nothing")]
    NoSnapshot,
    #[error(
        "expected {expected} branch records for the program, but its helper returned {result} \
         (-2: nothing was delivered)"
    )]
    Result { expected: usize, result: i64 },
    #[error(
        "the program received {from:#x} -> {to:#x} as record {index}; in the trace it is \
         {trace_from:#x} -> {trace_to:#x}"
    )]
    Differs { index: usize, from: u64, to: u64, trace_from: u64, trace_to: u64 },
}

/// Compares the records of the program's last run with the trace.
pub fn delivered(
    model: Model,
    filter: Filter,
    depth: u32,
    trace: &Trace,
    symbols: &Symbols,
    reply: &LbrWasteReply,
) -> Result<Delivered, DeliveryError> {
    let last =
        |vcpu: &VcpuTrace| Some((vcpu.records.clone(), snapshots(&vcpu.records, symbols).pop()?));
    let (records, snapshot) = trace.vcpus.iter().find_map(last).ok_or(DeliveryError::NoSnapshot)?;
    if snapshot.modelled && reply.snapshot_result == NO_DRIVER {
        return Err(DeliveryError::NoCall);
    }
    let place = |address| Place { address, symbol: None, module: None, offset: 0 };
    let newest_first: Vec<NamedRecord> = records[..=last_before(&records, snapshot.index)]
        .iter()
        .rev()
        .map(|r| NamedRecord {
            from: place(r.from),
            to: place(r.to),
            kind: r.kind,
            modelled: false,
        })
        .collect();
    let address = |place: Option<&Place>| place.map_or(0, |place| place.address);
    let mut expected: Vec<(u64, u64)> = model
        .snapshot(filter, Some(depth), &newest_first)
        .map(|seen| (address(seen.from), address(seen.to)))
        .take(ROOM as usize)
        .collect();
    let records = expected.len() as u32;
    // The driver returns as many entries as there are slots, even if it dropped records.
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
        None => Ok(Delivered {
            model: model.name().to_owned(),
            filter: filter.to_string(),
            depth,
            records,
        }),
    }
}

/// Finds the newest record at the time when the function called at `call` begins: the call itself,
/// or the return from an interrupt behind it.
fn last_before(records: &[Record], call: usize) -> usize {
    let function = records[call].to;
    let mut last = call;
    while records
        .get(last + 1)
        .is_some_and(|next| next.kind == Kind::Interrupt && next.from == function)
    {
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
        Symbol {
            name: name.to_owned(),
            module: module.map(str::to_owned),
            start,
            end: start + 0x100,
        }
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

    /// Two hits. The comparison takes the second, without the records behind its snapshot.
    fn trace(called: u64) -> Trace {
        let r = |from, to, kind| Record { from, to, kind, instructions: 1, accesses: None };
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
            program: None,
            function: symbols().find(KERNEL).unwrap().clone(),
            trigger: None,
            points: vec![Point::Entry],
            hits: 2,
            runs: 2,
            snapshot_result: snapshot.len() as i64 * ENTRY_BYTES,
            snapshot: snapshot.to_vec(),
            pmu: Pmu::default(),
            of_driver: Vec::new(),
            remarks: Vec::new(),
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
    fn accepts_the_records_of_the_trace() {
        assert_eq!(compare(3, &reply(&NEWEST)).unwrap().records, 3);
        // The interrupt has no class: its slot becomes a zero entry. Older records are of the
        // first hit.
        let older = [(PROGRAM + 40, KERNEL + 9), (STAND_IN + 6, PROGRAM + 29)];
        let all = [&NEWEST[..], &older, &[(0, 0)]].concat();
        assert_eq!(compare(6, &reply(&all)).unwrap().records, 5);
    }

    #[test]
    fn accepts_an_interrupt_before_the_function_begins() {
        let mut trace = trace(STAND_IN);
        let records = &mut trace.vcpus[0].records;
        let call = records.iter().rposition(|r| r.to == STAND_IN).unwrap();
        let handler = KERNEL + 0x80;
        let r = |from, to, kind| Record { from, to, kind, instructions: 1, accesses: None };
        let interrupt =
            [r(STAND_IN, handler, Kind::Interrupt), r(handler + 8, STAND_IN, Kind::Iret)];
        records.splice(call + 1..call + 1, [interrupt, interrupt].concat());
        let returned = (handler + 8, STAND_IN);
        let given = [returned, returned, NEWEST[0], (0, 0), (0, 0)];
        let any = Filter::of(Branch::Any);
        let compare = |given| delivered(Model::IntelLbr, any, 5, &trace, &symbols(), &reply(given));
        assert_eq!(compare(&given).unwrap().records, 3);
        assert!(matches!(compare(&[NEWEST[0]; 5]), Err(DeliveryError::Differs { index: 0, .. })));
    }

    #[test]
    fn rejects_any_other_record() {
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
        assert!(matches!(
            compare(3, &reply(&swapped)),
            Err(DeliveryError::Differs { index: 1, .. })
        ));
    }

    #[test]
    fn rejects_too_few_too_many_and_no_records() {
        for length in [0, 2] {
            let error = compare(3, &reply(&NEWEST[..length])).unwrap_err();
            assert!(matches!(error, DeliveryError::Result { expected: 3, .. }), "{error}");
        }
        assert!(matches!(
            compare(2, &reply(&NEWEST)),
            Err(DeliveryError::Result { expected: 2, .. })
        ));
        let nothing = LbrWasteReply { snapshot_result: NO_DRIVER, ..reply(&[]) };
        assert!(matches!(
            compare(3, &nothing),
            Err(DeliveryError::Result { result: NO_DRIVER, .. })
        ));
    }

    #[test]
    fn distinguishes_no_call_from_no_delivery() {
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
