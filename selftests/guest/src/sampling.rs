// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples the measuring CPU, like `perf record -a -g`: a clock interrupts, and the kernel notes
//! the thread and its kernel stack.

use crate::bpf::{self, BpfError};
use crate::mapping::Mapping;
use crate::ring::{Record, Ring, RingError};
use crate::role;
use libbpf_sys::perf_event_mmap_page;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
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
/// The name of all threads whose own is private.
const OTHERS: &str = "others";
/// Their number until they are reported. No thread has it.
const OTHER_THREADS: u32 = u32::MAX;
/// The flag of kernel threads (K PF_KTHREAD, include/linux/sched.h).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// An event on one CPU, off until it is started.
pub struct Sampler {
    clock: &'static Clock,
    event: OwnedFd,
    buffer: Mapping,
    page: usize,
    names: Names,
}

/// Names of the threads seen so far.
struct Names {
    commands: HashMap<u32, String>,
    /// Threads whose names are private.
    private: HashSet<u32>,
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
        Ok(Sampler { clock, event, buffer, page, names: Names::new() })
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
                    tally.add(self.names.shown(thread), stack);
                }
                Record::Command { thread, name } => self.names.take(thread, name),
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
            self.names.commands.get(&thread).cloned().unwrap_or_else(|| format!(":{thread}"))
        };
        Samples {
            event: self.clock.name.to_owned(),
            period: self.clock.period,
            lost: tally.lost,
            stacks: tally
                .sorted()
                .map(|(thread, stack, count)| Sample {
                    command: name(thread),
                    pid: if thread == OTHER_THREADS { 0 } else { thread },
                    measured: thread == measured,
                    stack,
                    count,
                })
                .collect(),
        }
    }
}

impl Names {
    fn new() -> Names {
        let commands = [(0, IDLE), (OTHER_THREADS, OTHERS)];
        let commands = commands.map(|(thread, name)| (thread, name.to_owned())).into();
        Names { commands, private: HashSet::new() }
    }

    /// The thread under which a sample is told. Reads a new thread's name now: the thread may be
    /// gone later.
    fn shown(&mut self, thread: u32) -> u32 {
        if !self.private.contains(&thread) && !self.commands.contains_key(&thread) {
            self.take(thread, command(thread));
        }
        if self.private.contains(&thread) { OTHER_THREADS } else { thread }
    }

    fn take(&mut self, thread: u32, name: String) {
        self.set(thread, name, !role::is_own_machine() || is_public(thread));
    }

    fn set(&mut self, thread: u32, name: String, is_public: bool) {
        if is_public {
            self.private.remove(&thread);
            self.commands.insert(thread, name);
        } else {
            self.private.insert(thread);
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

/// Returns true for threads of the kernel, of the agent and of its children. One that is gone may
/// have been anybody's.
fn is_public(thread: u32) -> bool {
    let stat = || fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    Path::new(&format!("/proc/self/task/{thread}")).exists()
        || is_of_kernel_or(&stat(), std::process::id())
}

/// The same for the line of a thread in procfs, whose parent may be `agent`.
fn is_of_kernel_or(stat: &str, agent: u32) -> bool {
    // The name may have spaces and parentheses.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let field = |number| rest.split_whitespace().nth(number)?.parse::<u32>().ok();
    let (parent, flags) = (field(1), field(6));
    parent == Some(agent) || flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
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
    fn tells_threads_whose_names_are_private() {
        for (stat, is_public) in [
            ("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0", true),
            ("33 (kworker/0:1-ev) I 2 0 0 0 -1 69238880 0 0 0", true),
            ("800 (bash) S 799 800 800 34816 900 4194304 5 0 0", false),
            // A child of the agent's, with a misleading name.
            ("801 (a) b 2 (c) R 77 800 800 34816 -1 4194304 5 0 0", true),
            ("802 (x) S 2129984) S 1 800 800 34816 -1 4194304 5 0 0", false),
            ("", false),
        ] {
            assert_eq!(is_of_kernel_or(stat, 77), is_public, "{stat}");
        }
        let mut names = Names::new();
        names.set(7, "bash".to_owned(), false);
        names.set(8, "kworker/0:1".to_owned(), true);
        assert_eq!([7, 8, 7].map(|thread| names.shown(thread)), [OTHER_THREADS, 8, OTHER_THREADS]);
        assert!(!names.commands.values().any(|name| name == "bash"));
        assert!(is_public(nix::unistd::gettid().as_raw() as u32));
        assert!(!is_public(u32::MAX));
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
