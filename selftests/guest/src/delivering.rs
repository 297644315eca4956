// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the plugin's delivery of branch records, and finds the kernel facts it needs.

use crate::kallsyms::Kallsyms;
use tramplab_protocol::delivery::{Cpu, Setup};
use tramplab_protocol::message::GuestError;

/// The static call for a snapshot. Its key begins with the pointer to the called function.
const KEY: &str = "__SCK__perf_snapshot_branch_stack";
/// The called function while no driver is loaded. arm64 has copies of it, and only the key tells
/// which is called.
const STAND_IN: &str = "__static_call_return0";

/// The setup in memory, where the plugin reads it.
#[derive(Debug)]
pub struct Delivering {
    setup: Setup,
    /// Replaces the key if kallsyms does not list it.
    _stand_in: Box<u64>,
}

impl Delivering {
    /// `cpu_at` is the address of settings that replace `cpu`, or 0.
    pub fn new(kallsyms: &Kallsyms, cpu: Cpu, cpu_at: u64) -> Result<Delivering, GuestError> {
        let missing =
            |what: &str| GuestError::Unsupported(format!("kallsyms has no (or no single) {what}"));
        let stand_in = Box::new(kallsyms.unique(STAND_IN).unwrap_or(0));
        let stand_in_at = match kallsyms.of_kernel(KEY) {
            Some(key) => key,
            None if *stand_in != 0 => (&raw const *stand_in).expose_provenance() as u64,
            None => {
                return Err(missing(&format!("{KEY} (CONFIG_KALLSYMS_ALL), and no {STAND_IN}")));
            }
        };
        let bound = |name| kallsyms.of_kernel(name).ok_or_else(|| missing(name));
        let (text_start, text_end) = (bound("_stext")?, bound("_etext")?);
        let setup = Setup { stand_in_at, text_start, text_end, cpu, cpu_at };
        Ok(Delivering { setup, _stand_in: stand_in })
    }

    pub fn setup(&self) -> *const u8 {
        (&raw const self.setup).cast()
    }
}
