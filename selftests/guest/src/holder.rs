// SPDX-License-Identifier: MIT OR Apache-2.0
//! The function that holds a tracepoint: its programs run on the stack of that function.

use crate::bpf::{self, Kind};
use crate::known::Known;
use crate::object::{Object, Wanted};
use crate::workload::Workload;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use tramplab_protocol::message::{GuestError, Symbol};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/holder.bpf.o"));
const PROGRAM: &str = "holder";
const DEPTH: usize = 32;
/// The functions between a tracepoint and a program, by the beginnings of their names.
const WAY: [&str; 3] = ["bpf_trace_run", "__bpf_trace_", "__traceiter_"];

/// Same layout as `state` in holder.bpf.c.
#[repr(C)]
struct State {
    bytes: i64,
    addresses: [u64; DEPTH],
}

/// Runs the workload, which hits the tracepoint, and finds the function that it is in.
pub fn find(tracepoint: &str, workload: &Workload, known: &Known) -> Result<Symbol, GuestError> {
    let failed = |what: &str| {
        GuestError::failed(format!("failed to find the function of {tracepoint}: {what}"))
    };
    let object = Object::prepare(OBJECT, Wanted::All, &[]);
    let object = object.map_err(|error| failed(&error.to_string()))?;
    let program = object.program(PROGRAM).ok_or_else(|| failed("its program is missing"))?;
    let state: NonNull<State> = match object.variables() {
        Some((state, size)) if size >= size_of::<State>() => state.cast(),
        _ => return Err(failed("the program's variables are not mapped")),
    };
    let kind = Kind { program: libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT, attach: 0 };
    let loaded = bpf::load(kind, 0, program)?;
    let link = bpf::link_raw_tracepoint(loaded.as_fd(), tracepoint)?;
    // Attaching may have hit it, too, in another function.
    // SAFETY: the memory is mapped and as large as a `State` while the object lives.
    unsafe { state.write_bytes(0, 1) };
    workload.run()?;
    drop(link);
    // SAFETY: the memory is mapped, aligned and as large as a `State` while the object lives. No
    // program writes it any more.
    let State { bytes, addresses } = unsafe { state.read_volatile() };
    let depth = usize::try_from(bytes).unwrap_or(0) / size_of::<u64>();
    let symbols = known.symbols()?;
    // A call returns behind itself, which may be another function's begin.
    let name = |address: &u64| symbols.resolve(address.saturating_sub(1));
    let stack: Vec<Symbol> = addresses.iter().take(depth).filter_map(name).collect();
    let held = holder(&stack).ok_or_else(|| {
        let names: Vec<&str> = stack.iter().map(|symbol| &*symbol.name).collect();
        failed(&format!("its stack is {}", names.join(", ")))
    })?;
    Ok(held.clone())
}

/// The first function behind those between a tracepoint and a program. `stack` begins with the
/// newest.
fn holder(stack: &[Symbol]) -> Option<&Symbol> {
    let is_way = |symbol: &Symbol| WAY.iter().any(|begin| symbol.name.starts_with(begin));
    let first = stack.iter().position(is_way)?;
    stack[first..].iter().find(|symbol| !is_way(symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_holder_behind_the_way_to_the_program() {
        let symbol =
            |name: &&str| Symbol { name: (*name).to_owned(), module: None, start: 1, end: 2 };
        for (names, expected) in [
            (
                &["bpf_prog_1", "bpf_trace_run2", "__set_task_comm", "prctl"][..],
                Some("__set_task_comm"),
            ),
            (&["bpf_trace_run2", "__bpf_trace_sys_enter", "__traceiter_sys_enter", "f"], Some("f")),
            (&["bpf_trace_run2"], None),
            (&["f", "g"], None),
            (&[], None),
        ] {
            let stack: Vec<Symbol> = names.iter().map(symbol).collect();
            assert_eq!(holder(&stack).map(|symbol| &*symbol.name), expected, "{names:?}");
        }
    }
}
