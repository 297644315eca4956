// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measuring vCPU: the recorder watches it, and programs take the snapshot on it.

pub const MEASURING_CPU: usize = 0;

pub fn pin_or_say() {
    if let Err(errno) = pin() {
        eprintln!("tramplab-agent: failed to stay on CPU {MEASURING_CPU}: {errno}");
    }
}

fn pin() -> nix::Result<()> {
    let mut cpus = nix::sched::CpuSet::new();
    cpus.set(MEASURING_CPU)?;
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cpus)
}
