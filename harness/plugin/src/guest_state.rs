// SPDX-License-Identifier: GPL-2.0-or-later
//! Registers and memory of the guest, as far as QEMU's interface lets a plugin read them: on a vCPU's thread, in callbacks
//! that were registered for it.

use crate::{
    api::{self, Writer},
    decode::Guest,
    delivery::{Asked, Delivery},
    profiler::Task,
};
use std::ffi::CStr;
use tramplab_protocol::{
    counts::{COMM_BYTES, SETUP_BYTES, Setup},
    delivery,
};

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
        // SAFETY: the caller's promise; names are C strings.
        let (descriptors, name) =
            (unsafe { api::registers() }, |name| unsafe { CStr::from_ptr(name) }.to_bytes());
        let handle = |wanted: &str| {
            let found = descriptors.iter().find(|d| name(d.name) == wanted.as_bytes());
            found.map(|descriptor| descriptor.handle)
        };
        let [argument, first, second] = guest.registers();
        Some(Registers { argument: handle(argument)?, first: handle(first)?, second: handle(second)? })
    }

    /// What the magic instruction's argument says.
    ///
    /// # Safety
    /// In a callback that reads registers.
    pub unsafe fn setup(&self) -> Option<Setup> {
        // SAFETY: the caller's promise.
        unsafe { memory::<SETUP_BYTES>(register(self.argument)?).map(|bytes| Setup::decode(&bytes)) }
    }

    /// The same of the one that asks for delivery. None where it leads nowhere.
    ///
    /// # Safety
    /// In a callback that reads registers.
    pub unsafe fn delivery(&self) -> Option<Delivery> {
        // SAFETY: the caller's promise.
        unsafe {
            let setup = memory::<{ delivery::SETUP_BYTES }>(register(self.argument)?)?;
            let delivery::Setup { stand_in_at, text_start, text_end, cpu } = delivery::Setup::decode(&setup);
            let stand_in = u64::from_le_bytes(memory(stand_in_at)?);
            Some(Delivery { stand_in, text: [text_start, text_end], cpu })
        }
    }

    /// What the stand-in of a snapshot is called for, at its entry.
    ///
    /// # Safety
    /// In a callback that reads registers.
    pub unsafe fn asked(&self) -> Option<Asked> {
        // SAFETY: the caller's promise. The count is an `unsigned int`.
        unsafe { Some(Asked { entries: register(self.first)?, count: register(self.second)? as u32 }) }
    }

    /// Sets what a function that is about to return returns: by the register that a magic instruction's argument is in, on both
    /// architectures.
    ///
    /// # Safety
    /// In a callback that writes registers.
    pub unsafe fn set_returned(&self, writer: Writer, value: u64) {
        // SAFETY: the caller's promise; it has eight bytes.
        unsafe { writer.register(self.argument, &value.to_le_bytes()) };
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
