// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plugin's delivery of branch records, from this side: what it must know of the kernel.

use crate::kallsyms::Kallsyms;
use tramplab_protocol::delivery::{Cpu, SETUP_BYTES, Setup};
use tramplab_protocol::message::GuestError;

/// The static call that a snapshot is. Its key begins with the pointer to the function that is called.
const KEY: &str = "__SCK__perf_snapshot_branch_stack";
/// That function as long as no driver is there. Of arm64's there are copies: only the key tells which.
const STAND_IN: &str = "__static_call_return0";

/// The setup in memory, where the plugin reads it.
#[derive(Debug)]
pub struct Delivering {
    setup: [u8; SETUP_BYTES],
    /// Stands in for the key where kallsyms does not name it.
    _stand_in: Box<u64>,
}

impl Delivering {
    pub fn new(kallsyms: &Kallsyms, cpu: Cpu) -> Result<Delivering, GuestError> {
        let missing = |what: &str| GuestError::Unsupported(format!("kallsyms has no (or no single) {what}"));
        let stand_in = Box::new(kallsyms.unique(STAND_IN).unwrap_or(0));
        let stand_in_at = match kallsyms.of_kernel(KEY) {
            Some(key) => key,
            None if *stand_in != 0 => (&raw const *stand_in).expose_provenance() as u64,
            None => return Err(missing(&format!("{KEY} (CONFIG_KALLSYMS_ALL), and no {STAND_IN}"))),
        };
        let bound = |name| kallsyms.of_kernel(name).ok_or_else(|| missing(name));
        let (text_start, text_end) = (bound("_stext")?, bound("_etext")?);
        let setup = Setup { stand_in_at, text_start, text_end, cpu };
        Ok(Delivering { setup: setup.encode(), _stand_in: stand_in })
    }

    pub fn setup(&self) -> *const u8 {
        self.setup.as_ptr()
    }
}
