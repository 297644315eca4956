// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waste repeats, and programs get the records that the trace has.

use super::{LIMIT, WAYS, of_any_boot, recorded, waste};
use crate::machine;
use crate::machine::spec;
use std::collections::BTreeSet;
use tramplab_analysis::branch::{self, Branch, Filter, Model};
use tramplab_model::run::Arch;
use tramplab_protocol::{
    Mechanism,
    message::{Command, LbrWasteRequest, Response},
};
use tramplab_vm::Vm;

on_each_arch!(waste_repeats_within_and_across_boots);

fn waste_repeats_within_and_across_boots(arch: Arch) {
    let mut seen = BTreeSet::new();
    // Twice in one boot, and once in another.
    for rounds in [2, 1] {
        let dir = tempfile::tempdir().unwrap();
        let mut vm = Vm::boot(&spec(arch, dir.path())).unwrap();
        let mut number = 0;
        for _round in 0..rounds {
            let mut found = vec![];
            for mechanism in WAYS {
                let waste = waste(arch, &mut vm, dir.path(), number, mechanism);
                number += 1;
                found.push(waste);
            }
            seen.insert(of_any_boot(arch, &found));
        }
        vm.power_off(LIMIT).unwrap();
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

#[test]
fn delivers_the_records_of_the_trace_on_x86_64() {
    delivers_the_records_of_the_trace(
        Arch::X86_64,
        &[
            (Model::IntelLbr, "any", 32),
            (Model::AmdLbrV2, "any_call|cond", 16),
            (Model::ArchLbr, "any_return", 8),
        ],
    );
}

#[test]
#[ignore = "full: the twin on x86-64 runs in every change"]
fn delivers_the_records_of_the_trace_on_arm64() {
    delivers_the_records_of_the_trace(
        Arch::Arm64,
        &[(Model::Brbe, "any", 64), (Model::Brbe, "any_return", 8)],
    );
}

/// Compares the program's records with the trace. The plugin knows the model as two sets of kinds.
fn delivers_the_records_of_the_trace(arch: Arch, cpus: &[(Model, &str, u32)]) {
    let dir = tempfile::tempdir().unwrap();
    let delivering = machine::delivering(arch, dir.path());
    let mut vm = Vm::boot(&delivering).unwrap();
    let mut number = 0;
    let mut hit = |mechanism, deliver| {
        let request = Command::LbrWaste(LbrWasteRequest {
            mechanism,
            program: None,
            function: None,
            command: None,
            hits: 3,
            warmup: 3,
            deliver,
            events: Vec::new(),
        });
        let Response::LbrWaste(reply) = vm.request(request, LIMIT).unwrap().unwrap() else {
            panic!()
        };
        let (trace, symbols) = recorded(&mut vm, dir.path(), number);
        number += 1;
        let symbols: branch::Symbols = symbols.into_iter().collect();
        let waste = branch::lbr_waste(arch, &trace, &symbols, &reply).unwrap();
        (reply, trace, symbols, waste.points[0].digest.clone())
    };
    // A breakpoint on the way in, and a return probe.
    for mechanism in [Mechanism::Fentry, Mechanism::Kprobe, Mechanism::KretprobeMulti] {
        // Without delivery there is no driver.
        let (reply, _, _, plain) = hit(mechanism, None);
        assert_eq!((reply.snapshot_result, reply.snapshot.len()), (-2, 0));
        for &(model, filter, depth) in cpus {
            let filter: Filter = filter.parse().unwrap();
            let what = format!("{mechanism} {model} {filter}");
            let (reply, trace, symbols, digest) =
                hit(mechanism, Some(model.delivered(filter, depth)));
            let delivered = branch::delivered(model, filter, depth, &trace, &symbols, &reply)
                .unwrap_or_else(|error| panic!("{what}: {error}\n{reply:x?}"));
            assert!(delivered.records > 0, "{what}");
            // Delivery happens after the trace's records, so it changes none.
            assert_eq!(digest, plain, "{what}");
            // Records of another filter do not match.
            let other = Filter::of(Branch::Call);
            assert!(
                branch::delivered(model, other, depth, &trace, &symbols, &reply).is_err(),
                "{what}"
            );
        }
    }
    vm.power_off(LIMIT).unwrap();
}
