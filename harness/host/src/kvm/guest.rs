// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest of four instructions.

use super::{KvmError, absent, cpu, denied};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Cap, Kvm, VcpuExit};
use std::{io, ptr, sync::mpsc, thread, time::Duration};

const LIMIT: Duration = Duration::from_secs(2);
/// The byte that the guest writes.
pub const ANSWER: u8 = 0x2a;

/// Bytes of the guest's memory, which begins at address 0 with its code. KVM takes whole pages of
/// the host, and arm64's may have 64 KiB.
const MEMORY: usize = 64 << 10;

/// A reason of the guest to leave its instructions.
pub enum Step {
    Answer,
    PowerOff,
}

/// Runs the guest. Returns KVM's API version.
pub fn probe() -> Result<i32, KvmError> {
    let (send, receive) = mpsc::channel();
    // Nothing here can stop a guest that hangs. Its thread ends with the process.
    thread::spawn(move || send.send(run()));
    receive.recv_timeout(LIMIT).unwrap_or(Err(KvmError::Hangs(LIMIT.as_secs())))
}

fn run() -> Result<i32, KvmError> {
    let kvm = Kvm::new().map_err(|error| match io::Error::from(error).kind() {
        io::ErrorKind::NotFound => absent(),
        io::ErrorKind::PermissionDenied => denied(),
        _ => KvmError::Failed { action: "open /dev/kvm", message: error.to_string() },
    })?;
    if !kvm.check_extension(Cap::UserMemory) {
        return Err(KvmError::Failed {
            action: "use KVM",
            message: "it lacks KVM_CAP_USER_MEMORY".into(),
        });
    }
    // Allocated before the VM, so that it outlives the VM.
    let memory = Memory::new()?;
    cpu::fill(&memory);
    let vm = kvm.create_vm().map_err(failed("create a VM"))?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY as u64,
        userspace_addr: memory.0 as u64,
    };
    // SAFETY: the pages are mapped until `memory` is dropped, after the VM.
    unsafe { vm.set_user_memory_region(region) }.map_err(failed("give the VM memory"))?;
    let mut vcpu = vm.create_vcpu(0).map_err(failed("create a vCPU"))?;
    cpu::prepare(&kvm, &vm, &vcpu)?;
    let mut answered = false;
    loop {
        match vcpu.run() {
            Ok(VcpuExit::Intr) => {}
            Ok(exit) => match cpu::step(&exit) {
                Some(Step::Answer) => answered = true,
                Some(Step::PowerOff) if answered => return Ok(kvm.get_api_version()),
                _ => return Err(KvmError::Ended(format!("{exit:?}"))),
            },
            Err(error) if error.errno() == libc::EINTR => {}
            Err(error) => return Err(KvmError::Ended(error.to_string())),
        }
    }
}

pub fn failed(action: &'static str) -> impl Fn(kvm_ioctls::Error) -> KvmError {
    move |error| KvmError::Failed { action, message: error.to_string() }
}

/// The pages that the guest sees.
pub struct Memory(*mut u8);

impl Memory {
    fn new() -> Result<Memory, KvmError> {
        // SAFETY: a new private mapping; nothing else knows its address.
        let pages = unsafe {
            libc::mmap(
                ptr::null_mut(),
                MEMORY,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if pages == libc::MAP_FAILED {
            let message = io::Error::last_os_error().to_string();
            return Err(KvmError::Failed { action: "map memory", message });
        }
        Ok(Memory(pages.cast()))
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MEMORY);
        // SAFETY: within the mapping, which is writable; no guest runs yet.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped nowhere else.
        unsafe { libc::munmap(self.0.cast(), MEMORY) };
    }
}
