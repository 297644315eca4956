// SPDX-License-Identifier: MIT OR Apache-2.0
//! The LBR-waste measurement: attaches a capturing program and hits it while the recorder is armed.

use crate::bpf::{self, Link};
use crate::delivering::Delivering;
use crate::kallsyms::Kallsyms;
use crate::kernel_btf::KernelBtf;
use crate::libbpf_log;
use crate::link::Heartbeat;
use crate::method::{Method, Target};
use crate::trigger::{Hit, Traced};
use libbpf_rs::{AsRawLibbpf, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::os::fd::AsFd;
use tramplab_protocol::Mechanism;
use tramplab_protocol::message::{GuestError, LbrWasteReply, LbrWasteRequest};

const CAPTURE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o"));

/// As `state` of capture.bpf.c.
#[repr(C)]
struct State {
    runs: u64,
    result: i64,
    cpu: u32,
    reserved: u32,
    records: [[Record; RECORDS]; CPUS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Record {
    from: u64,
    to: u64,
    flags: u64,
}

const CPUS: usize = 64;
const RECORDS: usize = 64;

/// A capturing program and its link: dropped, they are detached and gone from kallsyms.
#[derive(Debug)]
pub struct Attached {
    _link: Link,
    _object: Object,
}

fn failed(what: impl std::fmt::Display) -> GuestError {
    GuestError::Failed(what.to_string())
}

/// Runs the measurement; the program stays attached while the second value lives.
pub fn measure(
    request: &LbrWasteRequest,
    btf: &KernelBtf,
    heartbeat: Option<&Heartbeat>,
) -> Result<(LbrWasteReply, Attached), GuestError> {
    let mechanism = request.mechanism;
    let Hit { method, traced, function } = Hit::prepare(mechanism, btf)?;
    let (object, state) = load_capture(method, &traced.target)?;
    let link = {
        let program =
            object.progs().find(|p| p.name() == capture_name(mechanism).as_str()).expect("loaded above");
        method.link(program.as_fd(), &traced.target)?
    };
    // Only a machine with branch records has such an event, and only then is the snapshot more than an error.
    let _branches = bpf::record_branches(0).ok();

    let delivering = match request.deliver {
        Some(cpu) => Some(Delivering::new(&Kallsyms::read().map_err(failed)?, cpu)?),
        None => None,
    };
    traced.trigger.pull_all(request.warmup)?;
    write_state(&state, &State::zeroed())?;
    traced.trigger.record(request.hits, heartbeat, delivering.as_ref())?;
    let after = read_state(&state)?;
    let reply = LbrWasteReply {
        mechanism,
        function,
        points: mechanism.points().to_vec(),
        hits: request.hits,
        runs: after.runs,
        snapshot_result: after.result,
        snapshot: snapshot(&after),
    };
    Ok((reply, Attached { _link: link, _object: object }))
}

fn capture_name(mechanism: Mechanism) -> String {
    format!("capture_{}", mechanism.name().replace('.', "_"))
}

fn load_capture(method: Method, target: &Target) -> Result<(Object, MapHandle), GuestError> {
    let mechanism = method.mechanism;
    libbpf_log::clear();
    let refused = |error: libbpf_rs::Error| {
        let log = libbpf_log::take();
        let text =
            format!("failed to load the capturing program for {mechanism}: {error}; {}", log.trim_end());
        // Kernels before 5.16 do not know the helper, and some program types may not use it.
        if log.contains("bpf_get_branch_snapshot") || log.contains("func#176") {
            GuestError::Unsupported(text)
        } else {
            GuestError::Failed(text)
        }
    };
    let mut open = ObjectBuilder::default().open_memory(CAPTURE).map_err(refused)?;
    let name = capture_name(mechanism);
    for mut program in open.progs_mut() {
        let wanted = program.name() == name.as_str();
        program.set_autoload(wanted);
        if wanted {
            if mechanism == Mechanism::FmodRet {
                // The section names the test function, which not every kernel lets be modified.
                program.set_attach_target(0, Some(target.name.clone())).map_err(refused)?;
            }
            let raw = program.as_libbpf_object().as_ptr();
            let kind = method.kind();
            // SAFETY: the program belongs to the open object. libbpf-rs' enumerations end before tracing multi.
            unsafe {
                libbpf_sys::bpf_program__set_type(raw, kind.program);
                libbpf_sys::bpf_program__set_expected_attach_type(raw, kind.attach);
            }
        }
    }
    let object = open.load().map_err(refused)?;
    let state = object
        .maps()
        .find(|map| map.name().to_string_lossy().ends_with(".bss"))
        .ok_or_else(|| failed("the capturing program has no .bss"))
        .and_then(|map| MapHandle::try_from(&map).map_err(failed))?;
    Ok((object, state))
}

impl State {
    fn zeroed() -> Box<State> {
        // SAFETY: integers only, for which zero is a value.
        unsafe { Box::<State>::new_zeroed().assume_init() }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `repr(C)` integers without padding.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<State>()) }
    }
}

fn write_state(map: &MapHandle, state: &State) -> Result<(), GuestError> {
    map.update(&0u32.to_ne_bytes(), state.bytes(), MapFlags::ANY).map_err(failed)
}

fn read_state(map: &MapHandle) -> Result<Box<State>, GuestError> {
    let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?.unwrap_or_default();
    if bytes.len() != size_of::<State>() {
        return Err(failed(format!(
            "the capturing program's state has {} bytes, not {}",
            bytes.len(),
            size_of::<State>()
        )));
    }
    let mut state = State::zeroed();
    // SAFETY: the lengths are equal, and any bytes are a `State`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut *state).cast(), bytes.len()) };
    Ok(state)
}

/// The records of the last run; none where the snapshot failed.
fn snapshot(state: &State) -> Vec<(u64, u64)> {
    let kept = usize::try_from(state.result).unwrap_or(0) / size_of::<Record>();
    let records = &state.records[state.cpu as usize % CPUS];
    records.iter().take(kept).map(|record| (record.from, record.to)).collect()
}

/// The reference target of a mechanism, for others that need one known to work.
pub fn reference(mechanism: Mechanism, btf: &KernelBtf, kallsyms: &Kallsyms) -> Result<Target, GuestError> {
    Ok(Traced::of(mechanism, btf, |name| kallsyms.unique(name))?.target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mechanism_has_a_program_and_the_state_fits() {
        let mut object = ObjectBuilder::default().open_memory(CAPTURE).unwrap();
        let names: Vec<String> =
            object.progs_mut().map(|p| p.name().to_string_lossy().into_owned()).collect();
        for mechanism in Mechanism::ALL {
            assert!(names.contains(&capture_name(mechanism)), "{mechanism} has no program among {names:?}");
        }
        assert_eq!(names.len(), Mechanism::ALL.len());
        let bss = object.maps().find(|m| m.name().to_string_lossy().ends_with(".bss")).unwrap();
        assert_eq!(bss.value_size() as usize, size_of::<State>());
    }

    #[test]
    fn a_snapshot_is_as_long_as_its_result_says() {
        let mut state = State::zeroed();
        state.cpu = 1;
        state.records[1][0] = Record { from: 1, to: 2, flags: 0 };
        state.records[1][1] = Record { from: 3, to: 4, flags: 0 };
        for (result, expected) in [(-2, vec![]), (0, vec![]), (24, vec![(1, 2)]), (48, vec![(1, 2), (3, 4)])]
        {
            state.result = result;
            assert_eq!(snapshot(&state), expected, "result {result}");
        }
        state.result = i64::MAX;
        assert_eq!(snapshot(&state).len(), RECORDS);
    }
}
