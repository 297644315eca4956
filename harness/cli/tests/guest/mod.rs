// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real guests through the library: their measurements, and their failures.

pub mod attach;
mod busy;
mod commands;
mod emulated;
mod failures;
mod freplace;
mod functions;
mod modules;
mod programs;
mod qemu_log;
mod shapes;
mod sites;
mod snapshots;
mod switches;
mod tail_calls;
mod trigger;
mod uprobes;
mod waste;

use std::{fs, path::Path, time::Duration};
use tramplab_analysis::branch;
use tramplab_model::run::{Arch, LbrWaste};
use tramplab_protocol::{
    Mechanism,
    message::{Command, LbrWasteRequest, Response, Symbol},
    trace::{self, Trace},
};
use tramplab_vm::Vm;

const LIMIT: Duration = Duration::from_mins(5);

fn waste(arch: Arch, vm: &mut Vm, dir: &Path, number: u64, mechanism: Mechanism) -> LbrWaste {
    let request = Command::LbrWaste(LbrWasteRequest {
        mechanism,
        program: None,
        function: None,
        command: None,
        hits: 8,
        warmup: 3,
        deliver: None,
        events: Vec::new(),
    });
    let Response::LbrWaste(reply) = vm.request(request, LIMIT).unwrap().unwrap() else { panic!() };
    let (trace, symbols) = recorded(vm, dir, number);
    branch::lbr_waste(arch, &trace, &symbols.into_iter().collect(), &reply).unwrap()
}

/// Reads a trace and resolves its addresses while the program is still attached.
fn recorded(vm: &mut Vm, dir: &Path, number: u64) -> (Trace, Vec<Symbol>) {
    let trace = Trace::decode(&fs::read(trace::file_name(dir, number)).unwrap()).unwrap();
    let addresses = branch::symbols::addresses(&trace);
    let Response::Resolve { symbols } =
        vm.request(Command::Resolve { addresses }, LIMIT).unwrap().unwrap()
    else {
        panic!()
    };
    (trace, symbols)
}

/// One mechanism of each kind of entry and exit. Kprobes are among them, as they take exceptions.
const WAYS: [Mechanism; 6] = [
    Mechanism::Fentry,
    Mechanism::Fexit,
    Mechanism::KprobeMulti,
    Mechanism::KretprobeMulti,
    Mechanism::Kprobe,
    Mechanism::Kretprobe,
];

/// Returns the facts that every boot and every attaching must repeat. On x86-64 these are all
/// records. On arm64 they are the counts: the JIT loads an address with a varying number of
/// instructions, which moves the code behind them. A trampoline holds its own address, which is
/// another each time it is made.
fn of_any_boot(arch: Arch, found: &[LbrWaste]) -> Vec<String> {
    let points = found.iter().flat_map(|waste| &waste.points);
    match arch {
        Arch::X86_64 => points.map(|point| point.digest.clone()).collect(),
        Arch::Arm64 => points.map(|point| format!("{:?}", point.wasted)).collect(),
    }
}
