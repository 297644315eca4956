// SPDX-License-Identifier: MIT OR Apache-2.0
//! The capturing programs (`selftests/bpf/capture.bpf.c`), which snapshot the branch records, and
//! their results.

use crate::bpf::{Described, Program};
use crate::method::Method;
use crate::object::{Object, Wanted};
use crate::target::Target;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use tramplab_protocol::Mechanism;
use tramplab_protocol::message::{GuestError, Snapshot};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o"));
/// The helper's name in the verifier's log. A kernel that does not know it (before 5.16) logs only
/// its number.
const HELPER: [&str; 2] = ["bpf_get_branch_snapshot#176", "unknown#176"];

/// Same layout as `state` in capture.bpf.c.
#[repr(C)]
pub struct State {
    pub runs: u64,
    pub cpu: u32,
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

/// Runs whose snapshots are kept.
pub const RUNS: usize = 2;
const RECORDS: usize = 64;

/// All capturing programs, not loaded.
#[derive(Debug)]
pub struct Capture {
    object: Object,
    /// The memory of the running program's map. It belongs to the object.
    state: NonNull<State>,
}

fn name(mechanism: Mechanism) -> String {
    format!("capture_{}", mechanism.name().replace('.', "_"))
}

impl Capture {
    pub fn prepare() -> Result<Capture, GuestError> {
        let object = Object::prepare(OBJECT, Wanted::All, &[]).map_err(|error| {
            GuestError::failed(format!("failed to prepare the capturing programs: {error}"))
        })?;
        let (state, size) = object.variables().ok_or_else(|| {
            GuestError::failed(
                "the capturing programs' state is not mapped: the kernel cannot map arrays",
            )
        })?;
        if size != size_of::<State>() {
            return Err(GuestError::failed(format!(
                "the capturing programs' state has {size} bytes, not {}",
                size_of::<State>()
            )));
        }
        Ok(Capture { object, state: state.cast() })
    }

    /// Loads the program of a mechanism.
    pub fn load(&self, method: Method, target: &Target) -> Result<OwnedFd, GuestError> {
        let mechanism = method.mechanism;
        let program = self.object.program(&name(mechanism)).expect("there is one for each");
        // Its lines would only cost time: the verifier is to accept it.
        let described = program.described.map(|all| Described { lines: &[], ..all });
        method.load(target, Program { described, ..program }).map_err(|error| {
            let text = format!("the capturing program for {mechanism}: {error}");
            if is_of_helper(&text) {
                GuestError::Unsupported(text)
            } else {
                GuestError::Failed(text)
            }
        })
    }

    /// Clears the state. Makes no system call: the traced function may be one that it passes.
    pub fn reset(&self) {
        // SAFETY: the memory is mapped, aligned and as large as a `State` while the object lives.
        // Only a program that runs on this CPU, and so not now, writes it as well.
        unsafe { self.state.write_volatile(*State::zeroed()) }
    }

    /// Returns the state. Makes no system call.
    pub fn read(&self) -> Box<State> {
        // SAFETY: as in `reset`; any bytes are a valid state.
        Box::new(unsafe { self.state.read_volatile() })
    }

    /// How often the program has run. Makes no system call.
    pub fn runs(&self) -> u64 {
        // SAFETY: as in `reset`.
        unsafe { (&raw const (*self.state.as_ptr()).runs).read_volatile() }
    }
}

/// Returns true if the verifier rejected the helper: unknown, or not for programs of this type.
fn is_of_helper(refusal: &str) -> bool {
    HELPER.iter().any(|helper| refusal.contains(helper))
}

impl State {
    pub fn zeroed() -> Box<State> {
        let none = Record { from: 0, to: 0, flags: 0 };
        let records = [[none; RECORDS]; RUNS];
        Box::new(State { runs: 0, cpu: 0, reserved: 0, results: [0; RUNS], records })
    }

    /// The snapshots of the last runs, oldest first.
    pub fn newest(&self, runs: usize) -> Vec<Snapshot> {
        let first = self.runs.saturating_sub(runs.min(RUNS) as u64);
        let snapshot = |run: u64| {
            let slot = run as usize % RUNS;
            let result = self.results[slot];
            let kept = usize::try_from(result).unwrap_or(0) / size_of::<Record>();
            let entries =
                self.records[slot].iter().take(kept).map(|r| (r.from, r.to, r.flags)).collect();
            Snapshot { result, entries }
        };
        (first..self.runs).map(snapshot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::BpfError;
    use libbpf_rs::ObjectBuilder;

    #[test]
    fn every_mechanism_has_a_program_and_the_state_fits() {
        let mut object = ObjectBuilder::default().open_memory(OBJECT).unwrap();
        let names: Vec<String> =
            object.progs_mut().map(|p| p.name().to_string_lossy().into_owned()).collect();
        for mechanism in Mechanism::KERNEL {
            assert!(names.contains(&name(mechanism)), "{mechanism} has no program among {names:?}");
        }
        assert_eq!(names.len(), Mechanism::KERNEL.len());
        let bss = object.maps().find(|m| m.name().to_string_lossy().ends_with(".bss")).unwrap();
        assert_eq!(bss.value_size() as usize, size_of::<State>());
    }

    #[test]
    fn tells_a_missing_helper_from_a_wrong_program() {
        // kernel/bpf/verifier.c, check_helper_call(): before 6.0 and after, unknown and of the
        // wrong type.
        for (log, expected) in [
            (
                "3: (85) call unknown#176\ninvalid func unknown#176\nprocessed 4 insns (limit \
                 1000000)",
                true,
            ),
            ("unknown func bpf_get_branch_snapshot#176", true),
            (
                "program of this type cannot use helper bpf_get_branch_snapshot#176\nprocessed 9 \
                 insns",
                true,
            ),
            (
                "9: (85) call bpf_get_branch_snapshot#176\nR2 min value is negative\nprocessed 9 \
                 insns",
                false,
            ),
            ("unknown func bpf_other#1764", false),
        ] {
            let error = BpfError::new("load a program", libc::EINVAL, log);
            assert_eq!(is_of_helper(&error.to_string()), expected, "{log}");
        }
    }

    #[test]
    fn cuts_a_snapshot_at_its_result() {
        let mut state = State::zeroed();
        assert_eq!(state.newest(1), []);
        state.runs = 4;
        state.records[1][0] = Record { from: 1, to: 2, flags: 5 };
        state.records[1][1] = Record { from: 3, to: 4, flags: 0 };
        let all = [(1, 2, 5), (3, 4, 0)];
        for (result, expected) in [(-2, 0), (0, 0), (24, 1), (48, 2)] {
            state.results[1] = result;
            assert_eq!(state.newest(1), [Snapshot { result, entries: all[..expected].to_vec() }]);
        }
        state.results[1] = i64::MAX;
        assert_eq!(state.newest(1)[0].entries.len(), RECORDS);
    }

    #[test]
    fn orders_a_sessions_entry_before_its_exit() {
        let mut state = State::zeroed();
        state.results = [24, 48];
        let lengths = |state: &State, runs| -> Vec<usize> {
            state.newest(runs).iter().map(|snapshot| snapshot.entries.len()).collect()
        };
        for (done, runs, expected) in [
            (1, 1, vec![1]),
            (1, 2, vec![1]),
            (2, 1, vec![2]),
            (2, 2, vec![1, 2]),
            // More runs than are kept: the last ones.
            (5, 2, vec![2, 1]),
            (5, 9, vec![2, 1]),
        ] {
            state.runs = done;
            assert_eq!(lengths(&state, runs), expected, "{runs} of {done}");
        }
    }
}
