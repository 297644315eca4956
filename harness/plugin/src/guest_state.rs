// SPDX-License-Identifier: GPL-2.0-or-later
//! Registers and memory of the guest, as far as QEMU's interface lets a plugin read them: on a vCPU's thread, in callbacks
//! that were registered for it.

use crate::{api, decode::Guest, profiler::Task};
use std::ffi::CStr;
use tramplab_protocol::counts::{COMM_BYTES, SETUP_BYTES, Setup};

/// Handles of the registers of interest, of one vCPU.
pub struct Registers {
    /// Points at a magic instruction's argument.
    argument: *mut api::RegisterHandle,
    /// The first two arguments of a function.
    first: *mut api::RegisterHandle,
    second: *mut api::RegisterHandle,
}

// SAFETY: handles are names; QEMU uses them with whichever vCPU's thread asks.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    /// None where QEMU does not describe them.
    ///
    /// # Safety
    /// On the vCPU's thread, in a callback of QEMU.
    pub unsafe fn find(guest: Guest) -> Option<Registers> {
        let names = guest.registers();
        // SAFETY: the array is QEMU's description, freed by its reader; names are C strings.
        unsafe {
            let array = api::qemu_plugin_get_registers();
            if (*array).data.is_null() {
                api::free_registers(array);
                return None;
            }
            let descriptors = std::slice::from_raw_parts(
                (*array).data.cast::<api::RegisterDescriptor>(),
                (*array).length as usize,
            );
            let handle = |name: &str| {
                let found = descriptors.iter().find(|d| CStr::from_ptr(d.name).to_bytes() == name.as_bytes());
                found.map(|descriptor| descriptor.handle)
            };
            let registers = (|| {
                let [argument, first, second] = names;
                Some(Registers {
                    argument: handle(argument)?,
                    first: handle(first)?,
                    second: handle(second)?,
                })
            })();
            api::free_registers(array);
            registers
        }
    }

    /// What the magic instruction's argument says.
    ///
    /// # Safety
    /// In a callback that reads registers.
    pub unsafe fn setup(&self) -> Option<Setup> {
        // SAFETY: the caller's promise.
        unsafe { memory::<SETUP_BYTES>(register(self.argument)?).map(|bytes| Setup::decode(&bytes)) }
    }

    /// The threads that go and come, at the entry of the function that switches them.
    ///
    /// # Safety
    /// In a callback that reads registers.
    pub unsafe fn switched(&self, setup: &Setup) -> Option<(Task, Task)> {
        // SAFETY: the caller's promise.
        unsafe { Some((task(register(self.first)?, setup)?, task(register(self.second)?, setup)?)) }
    }
}

/// # Safety
/// In a callback of QEMU on a vCPU's thread.
unsafe fn task(address: u64, setup: &Setup) -> Option<Task> {
    // SAFETY: the caller's promise.
    let (command, pid) = unsafe {
        (
            memory::<COMM_BYTES>(address.checked_add(setup.comm.into())?)?,
            memory::<4>(address.checked_add(setup.pid.into())?)?,
        )
    };
    let command = command.split(|&byte| byte == 0).next().unwrap_or_default();
    let command = String::from_utf8_lossy(command).into_owned();
    Some(Task { address, pid: u32::from_le_bytes(pid), command })
}

/// # Safety
/// In a callback that reads registers.
unsafe fn register(handle: *mut api::RegisterHandle) -> Option<u64> {
    // SAFETY: the caller's promise.
    api::with_bytes(|bytes| unsafe { api::qemu_plugin_read_register(handle, bytes) > 0 })
        .map(u64::from_le_bytes)
}

/// # Safety
/// In a callback of QEMU on a vCPU's thread.
unsafe fn memory<const LENGTH: usize>(address: u64) -> Option<[u8; LENGTH]> {
    // SAFETY: the caller's promise.
    api::with_bytes(|bytes| unsafe { api::qemu_plugin_read_memory_vaddr(address, bytes, LENGTH) })
}
