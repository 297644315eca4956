// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether KVM runs a guest: asked of a guest of three instructions. That `/dev/kvm` opens and makes a VM says nothing.

#[cfg(target_arch = "x86_64")]
pub use x86::{guest_lbr, probe};

#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    #[error("there is no /dev/kvm")]
    Absent,
    #[error("/dev/kvm is not open to this user")]
    Denied,
    #[error("failed to {action}: {message}")]
    Failed { action: &'static str, message: String },
    #[error("/dev/kvm makes a VM, but a guest of three instructions ended with {0}")]
    Ended(String),
    #[error("/dev/kvm makes a VM, but a guest of three instructions did not end within {0} s")]
    Hangs(u64),
}

#[cfg(not(target_arch = "x86_64"))]
pub fn probe() -> Result<i32, KvmError> {
    Err(KvmError::Failed { action: "try KVM", message: "not known on this architecture".into() })
}

#[cfg(not(target_arch = "x86_64"))]
pub fn guest_lbr() -> Option<u64> {
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::KvmError;
    use kvm_bindings::{Msrs, kvm_msr_entry, kvm_userspace_memory_region};
    use kvm_ioctls::{Cap, Kvm, VcpuExit};
    use std::{io, ptr, sync::mpsc, thread, time::Duration};

    const LIMIT: Duration = Duration::from_secs(2);
    const PORT: u16 = 0x10;
    const ANSWER: u8 = 0x2a;
    /// `mov $0x2a, %al; out %al, $0x10; hlt`, in real mode.
    const CODE: [u8; 5] = [0xb0, ANSWER, 0xe6, PORT as u8, 0xf4];
    const PAGE: usize = 4096;
    const GUEST_ADDRESS: u64 = 0x1000;
    const MSR_IA32_PERF_CAPABILITIES: u32 = 0x345;

    /// KVM's API version, if a guest ran to its end.
    pub fn probe() -> Result<i32, KvmError> {
        let (send, receive) = mpsc::channel();
        // A guest that hangs cannot be stopped from here; its thread ends with the process.
        thread::spawn(move || send.send(run()));
        receive.recv_timeout(LIMIT).unwrap_or(Err(KvmError::Hangs(LIMIT.as_secs())))
    }

    fn run() -> Result<i32, KvmError> {
        let failed = |action| move |error: kvm_ioctls::Error| KvmError::Failed { action, message: error.to_string() };
        let kvm = Kvm::new().map_err(|error| match io::Error::from(error).kind() {
            io::ErrorKind::NotFound => KvmError::Absent,
            io::ErrorKind::PermissionDenied => KvmError::Denied,
            _ => KvmError::Failed { action: "open /dev/kvm", message: error.to_string() },
        })?;
        if !kvm.check_extension(Cap::UserMemory) {
            return Err(KvmError::Failed { action: "use KVM", message: "it lacks KVM_CAP_USER_MEMORY".into() });
        }
        // Before the VM, so that it outlives it.
        let memory = Memory::new()?;
        let vm = kvm.create_vm().map_err(failed("create a VM"))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: GUEST_ADDRESS,
            memory_size: PAGE as u64,
            userspace_addr: memory.0 as u64,
        };
        // SAFETY: the page is mapped until `memory` is dropped, after the VM.
        unsafe { vm.set_user_memory_region(region) }.map_err(failed("give the VM memory"))?;
        let mut vcpu = vm.create_vcpu(0).map_err(failed("create a vCPU"))?;
        let mut special = vcpu.get_sregs().map_err(failed("read the vCPU's registers"))?;
        special.cs.base = 0;
        special.cs.selector = 0;
        vcpu.set_sregs(&special).map_err(failed("set the vCPU's registers"))?;
        let mut registers = vcpu.get_regs().map_err(failed("read the vCPU's registers"))?;
        registers.rip = GUEST_ADDRESS;
        // Bit 1 is always set.
        registers.rflags = 2;
        vcpu.set_regs(&registers).map_err(failed("set the vCPU's registers"))?;
        let mut answered = false;
        loop {
            match vcpu.run() {
                Ok(VcpuExit::IoOut(PORT, [ANSWER])) => answered = true,
                Ok(VcpuExit::Hlt) if answered => return Ok(kvm.get_api_version()),
                Ok(VcpuExit::Intr) => {}
                Ok(exit) => return Err(KvmError::Ended(format!("{exit:?}"))),
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => return Err(KvmError::Ended(error.to_string())),
            }
        }
    }

    /// The LBR format that KVM offers to guests (`IA32_PERF_CAPABILITIES`, bits 0 to 5), if it offers any.
    pub fn guest_lbr() -> Option<u64> {
        let kvm = Kvm::new().ok()?;
        let known = kvm.get_msr_feature_index_list().ok()?;
        if !known.as_slice().contains(&MSR_IA32_PERF_CAPABILITIES) {
            return None;
        }
        let entry = kvm_msr_entry { index: MSR_IA32_PERF_CAPABILITIES, ..Default::default() };
        let mut values = Msrs::from_entries(&[entry]).ok()?;
        if kvm.get_msrs(&mut values).ok()? != 1 {
            return None;
        }
        Some(values.as_slice()[0].data & 0x3f).filter(|&format| format != 0)
    }

    /// One page that the guest sees.
    struct Memory(*mut u8);

    impl Memory {
        fn new() -> Result<Memory, KvmError> {
            // SAFETY: a new private mapping; nothing else knows its address.
            let page = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    PAGE,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            if page == libc::MAP_FAILED {
                let message = io::Error::last_os_error().to_string();
                return Err(KvmError::Failed { action: "map a page", message });
            }
            let page: *mut u8 = page.cast();
            // SAFETY: the mapping is a page long and writable.
            unsafe { ptr::copy_nonoverlapping(CODE.as_ptr(), page, CODE.len()) };
            Ok(Memory(page))
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: mapped in `new`, unmapped nowhere else.
            unsafe { libc::munmap(self.0.cast(), PAGE) };
        }
    }
}
