// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts like `perf stat` for the measuring thread: cycles and the like if the guest has a PMU,
//! and the kernel's own counts everywhere.

use crate::bpf::{self, BpfError};
use crate::role;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use tramplab_protocol::message::{Counter, GuestError};

pub struct Event {
    pub name: &'static str,
    kind: u32,
    config: u32,
}

/// The code that an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    All,
    User,
    Kernel,
}

const fn hardware(name: &'static str, config: u32) -> Event {
    Event { name, kind: libbpf_sys::PERF_TYPE_HARDWARE, config }
}

const fn software(name: &'static str, config: u32) -> Event {
    Event { name, kind: libbpf_sys::PERF_TYPE_SOFTWARE, config }
}

/// Misses of reads.
pub const fn misses(name: &'static str, cache: u32) -> Event {
    let what = libbpf_sys::PERF_COUNT_HW_CACHE_OP_READ << 8
        | libbpf_sys::PERF_COUNT_HW_CACHE_RESULT_MISS << 16;
    Event { name, kind: libbpf_sys::PERF_TYPE_HW_CACHE, config: cache | what }
}

/// By perf's names. Every PMU counts that many at once.
pub const OF_PMU: [Event; 4] = [
    hardware("cycles", libbpf_sys::PERF_COUNT_HW_CPU_CYCLES),
    hardware("instructions", libbpf_sys::PERF_COUNT_HW_INSTRUCTIONS),
    hardware("branches", libbpf_sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
    hardware("branch-misses", libbpf_sys::PERF_COUNT_HW_BRANCH_MISSES),
];
const OF_KERNEL: [Event; 2] = [
    software("task-clock", libbpf_sys::PERF_COUNT_SW_TASK_CLOCK),
    software("context-switches", libbpf_sys::PERF_COUNT_SW_CONTEXT_SWITCHES),
];

impl Event {
    /// Opens the event of the calling thread, off.
    pub fn open(&self, of: Of) -> Result<File, BpfError> {
        let mut attr = libbpf_sys::perf_event_attr {
            type_: self.kind,
            size: size_of::<libbpf_sys::perf_event_attr>() as u32,
            config: u64::from(self.config),
            read_format: u64::from(
                libbpf_sys::PERF_FORMAT_TOTAL_TIME_ENABLED
                    | libbpf_sys::PERF_FORMAT_TOTAL_TIME_RUNNING,
            ),
            ..Default::default()
        };
        attr.set_disabled(1);
        attr.set_exclude_user((of == Of::Kernel).into());
        attr.set_exclude_kernel((of == Of::User).into());
        Ok(File::from(bpf::perf_event_open(&attr, 0, -1)?))
    }
}

/// A count so far, with the times in which the event was on, and in which it counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub count: u64,
    pub enabled: u64,
    pub running: u64,
}

/// Reads an event.
pub fn read(name: &str, mut event: &File) -> Result<Count, GuestError> {
    let mut bytes = [0; 24];
    event.read_exact(&mut bytes).map_err(|error| {
        GuestError::Failed(format!("failed to read the count of {name}: {error}"))
    })?;
    let [count, enabled, running] =
        [0, 8, 16].map(|at| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes")));
    Ok(Count { count, enabled, running })
}

/// Events of the calling thread, off until they are started. Their counts add up.
pub struct Stat(Vec<(&'static str, File)>);

impl Stat {
    /// Opens the events that this kernel has.
    pub fn open() -> Stat {
        let open = |event: &Event| Some((event.name, event.open(Of::All).ok()?));
        // The PMU that QEMU emulates for arm64 derives cycles from the time, and counting them
        // disturbs sampling by them.
        let has_pmu = cfg!(target_arch = "x86_64") || role::is_own_machine();
        let of_pmu = if has_pmu { &OF_PMU[..] } else { &[] };
        Stat(of_pmu.iter().chain(&OF_KERNEL).filter_map(open).collect())
    }

    pub fn switch(&self, on: bool) -> Result<(), BpfError> {
        self.0.iter().try_for_each(|(_, event)| bpf::switch_event(event.as_fd(), on))
    }

    pub fn read(&self) -> Result<Vec<Counter>, GuestError> {
        let mut counters = Vec::new();
        for (name, event) in &self.0 {
            let Count { count, enabled, running } = read(name, event)?;
            counters.extend(scaled(name, count, enabled, running));
        }
        Ok(counters)
    }
}

/// Extrapolates an event that shared its counter with others and counted for a part of the time, as
/// perf does. Returns none if it never had the counter.
fn scaled(name: &str, count: u64, enabled: u64, running: u64) -> Option<Counter> {
    let whole =
        u128::from(count) * u128::from(enabled) / u128::from((running > 0).then_some(running)?);
    Some(Counter {
        event: name.to_owned(),
        count: whole.try_into().ok()?,
        estimated: running < enabled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extrapolates_a_count_of_a_part_of_the_time() {
        let counter =
            |count, estimated| Some(Counter { event: "cycles".to_owned(), count, estimated });
        assert_eq!(scaled("cycles", 1000, 50, 50), counter(1000, false));
        assert_eq!(scaled("cycles", 1000, 50, 20), counter(2500, true));
        assert_eq!(scaled("cycles", u64::MAX, 1 << 40, 1 << 40), counter(u64::MAX, false));
        assert_eq!(scaled("cycles", 0, 50, 0), None);
        assert_eq!(scaled("cycles", u64::MAX, 2, 1), None);
    }
}
