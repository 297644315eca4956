// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plugin's counting of instructions by call path, from this side: what it must know of the kernel, and when.

use crate::kallsyms::Kallsyms;
use crate::kernel_btf::KernelBtf;
use std::ops::Range;
use tramplab_protocol::counts::{SETUP_BYTES, Setup};
use tramplab_protocol::magic::Magic;
use tramplab_protocol::message::GuestError;

/// Switches threads: called with the one that goes and the one that comes.
#[cfg(target_arch = "x86_64")]
const SWITCH: &str = "__switch_to_asm";
#[cfg(target_arch = "aarch64")]
const SWITCH: &str = "cpu_switch_to";
/// Where interrupts and exceptions enter: a transfer through a register that leads there is one of them.
#[cfg(target_arch = "x86_64")]
fn entries(kallsyms: &Kallsyms) -> Result<Range<u64>, &'static str> {
    let find = |name| kallsyms.unique(name).ok_or(name);
    Ok(find("__entry_text_start")?..find("__entry_text_end")?)
}

/// The vectors and nothing else of the entry text: threads begin there too, at `ret_from_fork`, by a return. The other tables
/// of vectors are for CPUs that QEMU does not emulate.
#[cfg(target_arch = "aarch64")]
fn entries(kallsyms: &Kallsyms) -> Result<Range<u64>, &'static str> {
    /// By the architecture: 16 entries of 128 bytes.
    const BYTES: u64 = 16 * 128;
    let name = "vectors";
    let start = kallsyms.unique(name).ok_or(name)?;
    Ok(start..start + BYTES)
}

/// The setup in memory, where the plugin reads it.
#[derive(Debug)]
pub struct Counting([u8; SETUP_BYTES]);

impl Counting {
    pub fn new(kallsyms: &Kallsyms, btf: &KernelBtf) -> Result<Counting, GuestError> {
        let missing = |what: &str| {
            GuestError::Unsupported(format!("it has no {what}, by which threads are told apart"))
        };
        let switch_to = kallsyms.unique(SWITCH).ok_or_else(|| missing(SWITCH))?;
        let (comm, pid) = btf.task_offsets().ok_or_else(|| missing("task_struct in its BTF"))?;
        let Range { start: entry_start, end: entry_end } = entries(kallsyms).map_err(missing)?;
        Ok(Counting(Setup { switch_to, entry_start, entry_end, comm, pid }.encode()))
    }

    /// Counts while something is done.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        Magic::Profile.execute_with(self.0.as_ptr());
        // The plugin flushes translated code at the magic instruction; this enters the kernel once before it counts.
        let result = work();
        Magic::Disarm.execute();
        result
    }
}
