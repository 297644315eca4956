// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads the guest's registers and memory through QEMU's interface. This works on a vCPU's thread,
//! in callbacks registered for it.

use crate::{
    api::{self, Writer},
    decode::Guest,
    delivery::{Asked, Delivery},
    profiler::Task,
};
use std::ffi::CStr;
use tramplab_protocol::{
    counts::{COMM_BYTES, Setup},
    delivery::{self, Cpu},
};
use zerocopy::transmute;

/// Handles of the registers that the plugin uses, for one vCPU.
pub struct Registers {
    /// Holds the pointer to a magic instruction's argument.
    argument: *mut api::RegisterHandle,
    /// Holds the first argument of a function; the next field the second.
    first: *mut api::RegisterHandle,
    second: *mut api::RegisterHandle,
}

// SAFETY: handles are names. QEMU uses them with the vCPU of the calling thread.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    /// Returns none if QEMU does not describe the registers.
    ///
    /// # Safety
    /// Call on the vCPU's thread, in a callback of QEMU.
    pub unsafe fn find(guest: Guest) -> Option<Registers> {
        // SAFETY: the caller's promise.
        let [argument, first, second] = guest.registers().map(|name| unsafe { handle(name) });
        Some(Registers { argument: argument?, first: first?, second: second? })
    }

    /// Reads the argument of `Profile`.
    ///
    /// # Safety
    /// Call in a callback that reads registers.
    pub unsafe fn setup(&self) -> Option<Setup> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { memory::<{ size_of::<Setup>() }>(register(self.argument)?)? };
        Some(transmute!(bytes))
    }

    /// Reads the argument of `Deliver`. Returns none if it points nowhere.
    ///
    /// # Safety
    /// Call in a callback that reads registers.
    pub unsafe fn delivery(&self) -> Option<Delivery> {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = memory::<{ size_of::<delivery::Setup>() }>(register(self.argument)?)?;
            let delivery::Setup { stand_in_at, text_start, text_end, cpu_at, cpu } =
                transmute!(bytes);
            let text = [text_start, text_end];
            let mut delivery = Delivery { stand_in_at, stand_in: None, text, cpu, cpu_at };
            delivery.look_up();
            Some(delivery)
        }
    }

    /// Reads the arguments of a snapshot's stand-in, at its entry.
    ///
    /// # Safety
    /// Call in a callback that reads registers.
    pub unsafe fn asked(&self) -> Option<Asked> {
        // SAFETY: the caller's promise. The count is an `unsigned int`.
        unsafe {
            Some(Asked { entries: register(self.first)?, count: register(self.second)? as u32 })
        }
    }

    /// Sets the return value of a function that is about to return. On both architectures its
    /// register is that of a magic instruction's argument.
    ///
    /// # Safety
    /// Call in a callback that writes registers.
    pub unsafe fn set_returned(&self, writer: Writer, value: u64) {
        // SAFETY: the caller's promise. The register has eight bytes.
        unsafe { writer.register(self.argument, &value.to_le_bytes()) };
    }

    /// Reads the previous and the next thread, at the entry of the function that switches them.
    ///
    /// # Safety
    /// Call in a callback that reads registers.
    pub unsafe fn switched(&self, setup: &Setup) -> Option<(Task, Task)> {
        // SAFETY: the caller's promise.
        unsafe { Some((task(register(self.first)?, setup)?, task(register(self.second)?, setup)?)) }
    }
}

impl Delivery {
    /// Looks up the stand-in if that was not yet possible: on arm64 code of user space has no
    /// access to the kernel's pointer.
    ///
    /// # Safety
    /// Call in a callback of QEMU on a vCPU's thread.
    pub unsafe fn look_up(&mut self) {
        if self.stand_in.is_none() {
            // SAFETY: the caller's promise.
            self.stand_in = unsafe { memory(self.stand_in_at) }.map(u64::from_le_bytes);
        }
    }

    /// With the settings that the guest has now. Without a page there, those of the beginning.
    ///
    /// # Safety
    /// Call in a callback of QEMU on a vCPU's thread.
    pub unsafe fn now(self) -> Delivery {
        // SAFETY: the caller's promise.
        let now = (self.cpu_at != 0).then(|| unsafe { memory(self.cpu_at) }).flatten();
        let with = |bytes: [u8; size_of::<Cpu>()]| Delivery { cpu: transmute!(bytes), ..self };
        now.map_or(self, with)
    }
}

/// The handle of a register of the current vCPU, by QEMU's name.
///
/// # Safety
/// Call on the vCPU's thread, in a callback of QEMU.
pub unsafe fn handle(name: &str) -> Option<*mut api::RegisterHandle> {
    // SAFETY: the caller's promise. Names are C strings.
    unsafe {
        let named =
            |d: &api::RegisterDescriptor| CStr::from_ptr(d.name).to_bytes() == name.as_bytes();
        api::registers().into_iter().find(named).map(|descriptor| descriptor.handle)
    }
}

/// # Safety
/// Call in a callback of QEMU on a vCPU's thread.
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
/// Call in a callback that reads registers.
pub unsafe fn register(handle: *mut api::RegisterHandle) -> Option<u64> {
    // SAFETY: the caller's promise.
    api::with_bytes(|bytes| unsafe { api::qemu_plugin_read_register(handle, bytes) > 0 })
        .map(u64::from_le_bytes)
}

/// A register of 32 bits.
///
/// # Safety
/// Call in a callback that reads registers.
pub unsafe fn word(handle: *mut api::RegisterHandle) -> Option<u32> {
    // SAFETY: the caller's promise.
    api::with_bytes(|bytes| unsafe { api::qemu_plugin_read_register(handle, bytes) > 0 })
        .map(u32::from_le_bytes)
}

/// # Safety
/// Call in a callback of QEMU on a vCPU's thread.
pub unsafe fn memory<const LENGTH: usize>(address: u64) -> Option<[u8; LENGTH]> {
    // SAFETY: the caller's promise.
    api::with_bytes(|bytes| unsafe { api::qemu_plugin_read_memory_vaddr(address, bytes, LENGTH) })
}
