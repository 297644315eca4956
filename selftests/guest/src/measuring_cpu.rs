// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measuring CPU: the recorder watches it, and programs take the snapshot on it.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The first vCPU of a guest.
static CPU: AtomicUsize = AtomicUsize::new(0);

pub fn get() -> usize {
    CPU.load(Ordering::Relaxed)
}

/// Chooses the first CPU on which this process may run. A machine's CPU 0 may be offline, or
/// another's.
pub fn choose() {
    let first = |allowed: CpuSet| first(|cpu| allowed.is_set(cpu).unwrap_or(false));
    if let Some(cpu) = sched_getaffinity(Pid::from_raw(0)).ok().and_then(first) {
        CPU.store(cpu, Ordering::Relaxed);
    }
}

fn first(is_allowed: impl Fn(usize) -> bool) -> Option<usize> {
    (0..CpuSet::count()).find(|&cpu| is_allowed(cpu))
}

pub fn pin_or_say() {
    if let Err(errno) = pin() {
        eprintln!("tramplab-agent: failed to stay on CPU {}: {errno}", get());
    }
}

fn pin() -> nix::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(get())?;
    sched_setaffinity(Pid::from_raw(0), &cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_first_allowed_cpu() {
        for (allowed, expected) in [(&[0, 1][..], Some(0)), (&[3, 5], Some(3)), (&[], None)] {
            assert_eq!(first(|cpu| allowed.contains(&cpu)), expected);
        }
    }
}
