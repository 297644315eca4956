// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples the measuring CPU, like `perf record -a -g`: a clock interrupts, and the kernel notes
//! the thread and its kernel stack.

use crate::bpf::{self, BpfError};
use crate::mapping::Mapping;
use crate::ring::{Record, Ring, RingError};
use libbpf_sys::perf_event_mmap_page;
use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use tramplab_protocol::message::{GuestError, Sample, Samples};

/// A clock that interrupts. Its period is prime, so that it does not keep step with the kernel's
/// own timers.
struct Clock {
    name: &'static str,
    kind: u32,
    config: u32,
    period: u64,
}

/// The best first: cycles need a PMU, which QEMU does not emulate.
const CLOCKS: [Clock; 2] = [
    Clock {
        name: "cycles",
        kind: libbpf_sys::PERF_TYPE_HARDWARE,
        config: libbpf_sys::PERF_COUNT_HW_CPU_CYCLES,
        period: 1_000_003,
    },
    // 2 kHz.
    Clock {
        name: "cpu-clock",
        kind: libbpf_sys::PERF_TYPE_SOFTWARE,
        config: libbpf_sys::PERF_COUNT_SW_CPU_CLOCK,
        period: 499_979,
    },
];

/// Bytes, a power of two. A system call that attaches to 40,000 functions takes seconds, in which
/// nobody empties the buffer. A minute of samples with 30 frames fits.
const BUFFER: usize = 32 << 20;
/// perf's name for the idle thread.
const IDLE: &str = "swapper";

/// An event on one CPU, off until it is started.
pub struct Sampler {
    clock: &'static Clock,
    event: OwnedFd,
    buffer: Mapping,
    page: usize,
    /// Names of the threads seen so far.
    commands: HashMap<u32, String>,
}

/// Merged samples.
#[derive(Debug, Default)]
pub struct Tally {
    stacks: HashMap<(u32, Vec<u64>), u64>,
    lost: u64,
}

impl Sampler {
    pub fn open(cpu: i32) -> Result<Sampler, GuestError> {
        let (clock, event) = open_event(cpu)?;
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
            .ok()
            .flatten()
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(|| GuestError::failed("the page size is not known"))?;
        let buffer = Mapping::new(event.as_fd(), page + BUFFER).map_err(|error| {
            GuestError::failed(format!("failed to map the samples of {}: {error}", clock.name))
        })?;
        Ok(Sampler { clock, event, buffer, page, commands: HashMap::from([(0, IDLE.to_owned())]) })
    }

    pub fn start(&self) -> Result<(), BpfError> {
        bpf::switch_event(self.event.as_fd(), true)
    }

    pub fn stop(&self) -> Result<(), BpfError> {
        bpf::switch_event(self.event.as_fd(), false)
    }

    /// Adds the samples since the last call. Call only while stopped.
    pub fn drain(&mut self, tally: &mut Tally) -> Result<(), RingError> {
        let page = self.buffer.as_ptr::<perf_event_mmap_page>();
        // SAFETY: inside the mapping and aligned. The kernel writes the head; only this thread
        // writes the tail.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*page).data_head),
                AtomicU64::from_ptr(&raw mut (*page).data_tail),
            )
        };
        let end = head.load(Ordering::Acquire);
        // SAFETY: the event is off, so the kernel writes nothing between tail and head.
        let data = unsafe { self.buffer.bytes(self.page) };
        let records = Ring { data, tail: tail.load(Ordering::Relaxed), head: end };
        let result = records.into_iter().try_for_each(|record| {
            match record? {
                Record::Sample { thread, stack } => {
                    // Read the name now: the thread may be gone later.
                    self.commands.entry(thread).or_insert_with(|| command(thread));
                    tally.add(thread, stack);
                }
                Record::Command { thread, name } => {
                    self.commands.insert(thread, name);
                }
                Record::Lost(count) => tally.lost += count,
                Record::Other => {}
            }
            Ok(())
        });
        tail.store(end, Ordering::Release);
        result
    }

    /// The merged samples, the most frequent stack first. `measured` is the thread to explain.
    pub fn finish(&self, tally: Tally, measured: u32) -> Samples {
        let name = |thread: u32| {
            self.commands.get(&thread).cloned().unwrap_or_else(|| format!(":{thread}"))
        };
        Samples {
            event: self.clock.name.to_owned(),
            period: self.clock.period,
            lost: tally.lost,
            stacks: tally
                .sorted()
                .map(|(thread, stack, count)| Sample {
                    command: name(thread),
                    pid: thread,
                    measured: thread == measured,
                    stack,
                    count,
                })
                .collect(),
        }
    }
}

impl Tally {
    fn add(&mut self, thread: u32, stack: Vec<u64>) {
        *self.stacks.entry((thread, stack)).or_insert(0) += 1;
    }

    /// Thread, stack and count, in a deterministic order.
    fn sorted(self) -> impl Iterator<Item = (u32, Vec<u64>, u64)> {
        let mut stacks: Vec<_> = self
            .stacks
            .into_iter()
            .map(|((thread, stack), count)| (thread, stack, count))
            .collect();
        stacks.sort_unstable_by(|a, b| b.2.cmp(&a.2).then_with(|| (a.0, &a.1).cmp(&(b.0, &b.1))));
        stacks.into_iter()
    }
}

fn open_event(cpu: i32) -> Result<(&'static Clock, OwnedFd), GuestError> {
    let mut refusals = Vec::new();
    for clock in &CLOCKS {
        let mut attr = libbpf_sys::perf_event_attr {
            type_: clock.kind,
            size: size_of::<libbpf_sys::perf_event_attr>() as u32,
            config: u64::from(clock.config),
            sample_type: u64::from(libbpf_sys::PERF_SAMPLE_TID | libbpf_sys::PERF_SAMPLE_CALLCHAIN),
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = clock.period;
        attr.set_disabled(1);
        attr.set_exclude_callchain_user(1);
        attr.set_comm(1);
        match bpf::perf_event_open(&attr, -1, cpu) {
            Ok(event) => return Ok((clock, event)),
            Err(error) => refusals.push(format!("{}: {error}", clock.name)),
        }
    }
    Err(GuestError::Unsupported(format!("it cannot sample by {}", refusals.join(" or by "))))
}

/// A thread's name, or perf's stand-in if the thread is gone.
fn command(thread: u32) -> String {
    match fs::read_to_string(format!("/proc/{thread}/comm")) {
        Ok(name) => plain_command(name.trim_end()),
        Err(_) => format!(":{thread}"),
    }
}

/// Drops a worker's current work, which procfs appends to its name.
fn plain_command(name: &str) -> String {
    let end = if name.starts_with("kworker/") { name.find(['-', '+']) } else { None };
    name[..end.unwrap_or(name.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_equal_stacks_of_a_thread() {
        let mut tally = Tally::default();
        for (thread, stack) in [
            (1, vec![5, 6]),
            (7, vec![5, 6]),
            (1, vec![5]),
            (1, vec![5, 6]),
            (0, vec![9]),
            (1, vec![]),
        ] {
            tally.add(thread, stack);
        }
        assert_eq!(
            tally.sorted().collect::<Vec<_>>(),
            [
                (1, vec![5, 6], 2),
                (0, vec![9], 1),
                (1, vec![], 1),
                (1, vec![5], 1),
                (7, vec![5, 6], 1)
            ]
        );
    }

    #[test]
    fn drops_a_workers_work_from_its_name() {
        for (comm, name) in [
            ("kworker/0:1-events", "kworker/0:1"),
            ("kworker/u4:2+flush-8:0", "kworker/u4:2"),
            ("kworker/0:0", "kworker/0:0"),
            ("rcu_tasks_kthread", "rcu_tasks_kthread"),
            ("tramplab-agent", "tramplab-agent"),
        ] {
            assert_eq!(plain_command(comm), name);
        }
    }
}
