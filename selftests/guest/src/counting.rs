// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the plugin's counting of instructions by call path, and finds the kernel facts it needs.

use crate::kallsyms::Kallsyms;
use crate::kernel_btf::KernelBtf;
use std::ops::Range;
use tramplab_protocol::counts::Setup;
use tramplab_protocol::magic::Magic;
use tramplab_protocol::message::GuestError;

/// The function that switches threads. Its arguments are the previous and the next thread.
#[cfg(target_arch = "x86_64")]
const SWITCH: &str = "__switch_to_asm";
#[cfg(target_arch = "aarch64")]
const SWITCH: &str = "cpu_switch_to";
/// The entry text of interrupts and exceptions. An indirect transfer into it is one of them.
#[cfg(target_arch = "x86_64")]
fn entries(kallsyms: &Kallsyms) -> Result<Range<u64>, &'static str> {
    let find = |name| kallsyms.unique(name).ok_or(name);
    Ok(find("__entry_text_start")?..find("__entry_text_end")?)
}

/// Only the vectors of the entry text: threads also start in it, at `ret_from_fork`, by a return.
/// Its other vector tables serve CPUs that QEMU does not emulate.
#[cfg(target_arch = "aarch64")]
fn entries(kallsyms: &Kallsyms) -> Result<Range<u64>, &'static str> {
    /// Defined by the architecture: 16 entries of 128 bytes.
    const BYTES: u64 = 16 * 128;
    let name = "vectors";
    let start = kallsyms.unique(name).ok_or(name)?;
    Ok(start..start + BYTES)
}

/// The setup in memory, where the plugin reads it.
#[derive(Debug)]
pub struct Counting(Setup);

impl Counting {
    pub fn new(kallsyms: &Kallsyms, btf: &KernelBtf) -> Result<Counting, GuestError> {
        let missing = |what: &str| {
            GuestError::Unsupported(format!("it has no {what}, which separates threads"))
        };
        let switch_to = kallsyms.unique(SWITCH).ok_or_else(|| missing(SWITCH))?;
        let (comm, pid) = btf.task_offsets().ok_or_else(|| missing("task_struct in its BTF"))?;
        let Range { start: entry_start, end: entry_end } = entries(kallsyms).map_err(missing)?;
        Ok(Counting(Setup { switch_to, entry_start, entry_end, comm, pid }))
    }

    /// Counts while `work` runs: instructions, or with [`Magic::Estimate`] also the events of a
    /// modelled CPU.
    pub fn during<T>(&self, what: Magic, work: impl FnOnce() -> T) -> T {
        what.execute_with((&raw const self.0).cast());
        // The plugin flushes translated code at the magic instruction. This enters the kernel once
        // before it counts.
        let result = work();
        Magic::Disarm.execute();
        result
    }
}
