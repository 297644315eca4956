// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plugin's counting of instructions by call path, from this side: what it must know of the kernel, and when.

use crate::kallsyms::Kallsyms;
use crate::kernel_btf::KernelBtf;
use tramplab_protocol::counts::{SETUP_BYTES, Setup};
use tramplab_protocol::magic::Magic;
use tramplab_protocol::message::GuestError;

/// Switches threads: called with the one that goes and the one that comes.
#[cfg(target_arch = "x86_64")]
const SWITCH: &str = "__switch_to_asm";
#[cfg(target_arch = "aarch64")]
const SWITCH: &str = "cpu_switch_to";
/// The text that interrupts and exceptions enter at.
const ENTRY: [&str; 2] = ["__entry_text_start", "__entry_text_end"];

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
        let [start, end] = ENTRY;
        let entry_start = kallsyms.unique(start).ok_or_else(|| missing(start))?;
        let entry_end = kallsyms.unique(end).ok_or_else(|| missing(end))?;
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
