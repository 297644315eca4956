// SPDX-License-Identifier: MIT OR Apache-2.0
//! The LBR-waste measurement: attaches a capturing program and hits it while the recorder is armed.

use crate::MEASURING_CPU;
use crate::bpf::{self, Link};
use crate::delivering::Delivering;
use crate::kallsyms::Kallsyms;
use crate::kernel_btf::KernelBtf;
use crate::libbpf_log;
use crate::link::Heartbeat;
use crate::method::{Method, Target};
use crate::trigger::{Hit, Traced, Trigger};
use libbpf_rs::{AsRawLibbpf, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::fs;
use std::os::fd::AsFd;
use tramplab_protocol::Mechanism;
use tramplab_protocol::message::{CpuRecords, GuestError, LbrWasteReply, LbrWasteRequest, Pmu, Snapshot};

const CAPTURE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o"));

/// As `state` of capture.bpf.c.
#[repr(C)]
struct State {
    runs: u64,
    cpu: u32,
    reserved: u32,
    results: [i64; RUNS],
    records: [[Record; RECORDS]; RUNS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Record {
    from: u64,
    to: u64,
    flags: u64,
}

/// The newest that are kept.
const RUNS: usize = 2;
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
    let branches = bpf::record_branches(MEASURING_CPU as i32, bpf::ALL_BRANCHES);
    let pmu = Pmu { depth: depth(), refused: branches.as_ref().err().map(ToString::to_string) };

    let delivering = match request.deliver {
        Some(cpu) => Some(Delivering::new(&Kallsyms::read().map_err(failed)?, cpu)?),
        None => None,
    };
    traced.trigger.pull_all(request.warmup)?;
    write_state(&state, &State::zeroed())?;
    traced.trigger.record(request.hits, heartbeat, delivering.as_ref())?;
    let after = read_state(&state)?;
    // Of two events that want other branches the kernel serves one.
    let hardware = match branches {
        Ok(branches) => {
            drop(branches);
            let each = |&kinds: &u64| hits_under(kinds, &traced.trigger, request, &state);
            request.hardware.iter().map(each).collect::<Result<_, _>>()?
        }
        Err(_) => Vec::new(),
    };
    let newest = newest(&after, 1).pop();
    let reply = LbrWasteReply {
        mechanism,
        function,
        points: mechanism.points().to_vec(),
        hits: request.hits,
        runs: after.runs,
        snapshot_result: newest.as_ref().map_or(0, |snapshot| snapshot.result),
        snapshot: newest
            .map(|snapshot| snapshot.entries.into_iter().map(|(from, to, _)| (from, to)).collect())
            .unwrap_or_default(),
        pmu,
        hardware,
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

/// What the CPU's own records hold of each hit. The event is a new one each time, so that the ring begins empty.
fn hits_under(
    branch_sample_type: u64,
    trigger: &Trigger,
    request: &LbrWasteRequest,
    state: &MapHandle,
) -> Result<CpuRecords, GuestError> {
    let points = request.mechanism.points().len();
    let _branches = bpf::record_branches(MEASURING_CPU as i32, branch_sample_type)?;
    trigger.pull_all(request.warmup)?;
    let mut snapshots = Vec::new();
    for _hit in 0..request.hits {
        write_state(state, &State::zeroed())?;
        trigger.pull()?;
        let after = read_state(state)?;
        if after.runs != points as u64 {
            return Err(failed(format!("a hit ran the program {} times, not {points}", after.runs)));
        }
        if after.cpu as usize != MEASURING_CPU {
            return Err(failed(format!("a hit was on CPU {}, not {MEASURING_CPU}", after.cpu)));
        }
        snapshots.extend(newest(&after, points));
    }
    Ok(CpuRecords { branch_sample_type, snapshots })
}

/// By the PMU that keeps most: cores may differ.
fn depth() -> Option<u32> {
    let devices = fs::read_dir("/sys/bus/event_source/devices").ok()?.flatten();
    let cpus = devices.filter(|device| device.file_name().to_string_lossy().starts_with("cpu"));
    cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("caps/branches")).ok()?.trim().parse().ok())
        .max()
}

/// The snapshots of the last runs, the oldest first.
fn newest(state: &State, runs: usize) -> Vec<Snapshot> {
    let first = state.runs.saturating_sub(runs.min(RUNS) as u64);
    let snapshot = |run: u64| {
        let slot = run as usize % RUNS;
        let result = state.results[slot];
        let kept = usize::try_from(result).unwrap_or(0) / size_of::<Record>();
        let entries = state.records[slot].iter().take(kept).map(|r| (r.from, r.to, r.flags)).collect();
        Snapshot { result, entries }
    };
    (first..state.runs).map(snapshot).collect()
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
        assert_eq!(newest(&state, 1), []);
        state.runs = 4;
        state.records[1][0] = Record { from: 1, to: 2, flags: 5 };
        state.records[1][1] = Record { from: 3, to: 4, flags: 0 };
        let all = [(1, 2, 5), (3, 4, 0)];
        for (result, expected) in [(-2, 0), (0, 0), (24, 1), (48, 2)] {
            state.results[1] = result;
            assert_eq!(newest(&state, 1), [Snapshot { result, entries: all[..expected].to_vec() }]);
        }
        state.results[1] = i64::MAX;
        assert_eq!(newest(&state, 1)[0].entries.len(), RECORDS);
    }

    #[test]
    fn of_a_session_the_entry_comes_before_the_exit() {
        let mut state = State::zeroed();
        state.results = [24, 48];
        let lengths = |state: &State, runs| -> Vec<usize> {
            newest(state, runs).iter().map(|snapshot| snapshot.entries.len()).collect()
        };
        for (done, runs, expected) in [
            (1, 1, vec![1]),
            (1, 2, vec![1]),
            (2, 1, vec![2]),
            (2, 2, vec![1, 2]),
            // Of more than are kept, the last.
            (5, 2, vec![2, 1]),
            (5, 9, vec![2, 1]),
        ] {
            state.runs = done;
            assert_eq!(lengths(&state, runs), expected, "{runs} of {done}");
        }
    }
}
