// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that KVM runs a guest, by running one of four instructions. `/dev/kvm` may open and make
//! a VM and still run no guest.
//!
//! The guest runs in long mode and uses an SSE register. That needs a real CPU: some nested KVMs
//! have only their software emulator, which runs real mode and then fails every kernel.

use serde::{Deserialize, Serialize};

#[cfg(target_arch = "x86_64")]
pub use x86::{offer, probe};

/// The branch records that KVM offers to guests, even if it runs none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// `IA32_PERF_CAPABILITIES` (MSR 0x345), if KVM lists it among its guests' MSRs. Bits 0 to 5
    /// are the format of the LBR, 0 without one.
    pub perf_capabilities: Option<u64>,
    /// The PMU's version in the supported CPUID (leaf 0xa), 0 without one.
    pub pmu_version: u8,
    /// Arch LBR in the supported CPUID (leaf 7).
    pub arch_lbr: bool,
    /// AMD's extended monitoring in the supported CPUID (leaf 0x80000022). Bit 1 is LbrExtV2.
    pub amd_extended: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    #[error("there is no /dev/kvm")]
    Absent,
    /// The modules of KVM refuse to load.
    #[error("the CPU offers no virtualization: /proc/cpuinfo shows neither vmx nor svm")]
    Unsupported,
    /// `by_group` is true if membership in the device's group opens it.
    #[error("/dev/kvm is not open to this user")]
    Denied { by_group: bool },
    #[error("failed to {action}: {message}")]
    Failed { action: &'static str, message: String },
    /// The guest of four instructions exists only for x86-64.
    #[error("/dev/kvm opens; only vm-test finds out if it runs a guest")]
    Untried,
    #[error("/dev/kvm makes a VM, but a guest of four instructions ended with {0}")]
    Ended(String),
    #[error("/dev/kvm makes a VM, but a guest of four instructions did not end within {0} s")]
    Hangs(u64),
}

/// Without the device: a module that is not loaded, or a CPU that no module takes.
fn absent() -> KvmError {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo");
    match cpuinfo.is_ok_and(|text| !offers_virtualization(&text)) {
        true if cfg!(target_arch = "x86_64") => KvmError::Unsupported,
        _ => KvmError::Absent,
    }
}

/// Linux shows no flag that the firmware has switched off.
fn offers_virtualization(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.any(|(_, flags)| flags.split_whitespace().any(|flag| ["vmx", "svm"].contains(&flag)))
}

/// Root's group opens more than this device.
fn denied() -> KvmError {
    use std::{fs, os::unix::fs::MetadataExt};
    let by_group = |device: fs::Metadata| device.gid() != 0 && device.mode() & 0o060 == 0o060;
    KvmError::Denied { by_group: fs::metadata("/dev/kvm").is_ok_and(by_group) }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn probe() -> Result<i32, KvmError> {
    use std::{fs::File, io::ErrorKind};

    match File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Err(KvmError::Untried),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(absent()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(denied()),
        Err(error) => Err(KvmError::Failed { action: "open /dev/kvm", message: error.to_string() }),
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn offer() -> Option<Offer> {
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{KvmError, Offer, absent, denied};
    use kvm_bindings::{
        KVM_MAX_CPUID_ENTRIES, Msrs, kvm_msr_entry, kvm_segment, kvm_sregs,
        kvm_userspace_memory_region,
    };
    use kvm_ioctls::{Cap, Kvm, VcpuExit};
    use std::{io, ptr, sync::mpsc, thread, time::Duration};

    const LIMIT: Duration = Duration::from_secs(2);
    const PORT: u16 = 0x10;
    const ANSWER: u8 = 0x2a;
    /// `paddd %xmm0, %xmm0; mov $0x2a, %al; out %al, $0x10; hlt`
    const CODE: [u8; 9] = [0x66, 0x0f, 0xfe, 0xc0, 0xb0, ANSWER, 0xe6, PORT as u8, 0xf4];

    const PAGE: usize = 4096;
    /// The guest's memory: the code at address 0, then three levels of page tables that map 2 MiB
    /// one to one.
    const PAGES: usize = 4;
    const TABLES: u64 = PAGE as u64;
    const PRESENT_WRITABLE: u64 = 0b11;
    const LARGE: u64 = 1 << 7;

    const CR0_PE_MP_ET_NE_PG: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 31;
    const CR4_PAE_OSFXSR_OSXMMEXCPT: u64 = 1 << 5 | 1 << 9 | 1 << 10;
    const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;

    const MSR_IA32_PERF_CAPABILITIES: u32 = 0x345;

    /// Runs the guest. Returns KVM's API version.
    pub fn probe() -> Result<i32, KvmError> {
        let (send, receive) = mpsc::channel();
        // Nothing here can stop a guest that hangs. Its thread ends with the process.
        thread::spawn(move || send.send(run()));
        receive.recv_timeout(LIMIT).unwrap_or(Err(KvmError::Hangs(LIMIT.as_secs())))
    }

    fn run() -> Result<i32, KvmError> {
        let failed = |action| {
            move |error: kvm_ioctls::Error| KvmError::Failed { action, message: error.to_string() }
        };
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
        let vm = kvm.create_vm().map_err(failed("create a VM"))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: (PAGES * PAGE) as u64,
            userspace_addr: memory.0 as u64,
        };
        // SAFETY: the page is mapped until `memory` is dropped, after the VM.
        unsafe { vm.set_user_memory_region(region) }.map_err(failed("give the VM memory"))?;
        let mut vcpu = vm.create_vcpu(0).map_err(failed("create a vCPU"))?;
        let cpuid = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(failed("read what CPU KVM offers"))?;
        vcpu.set_cpuid2(&cpuid).map_err(failed("give the vCPU its features"))?;
        let mut special = vcpu.get_sregs().map_err(failed("read the vCPU's registers"))?;
        long_mode(&mut special);
        vcpu.set_sregs(&special).map_err(failed("set the vCPU's registers"))?;
        let mut registers = vcpu.get_regs().map_err(failed("read the vCPU's registers"))?;
        registers.rip = 0;
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

    fn long_mode(special: &mut kvm_sregs) {
        let data = kvm_segment {
            limit: u32::MAX,
            selector: 0x10,
            type_: 3,
            present: 1,
            s: 1,
            db: 1,
            g: 1,
            ..Default::default()
        };
        special.cs = kvm_segment { selector: 0x08, type_: 11, db: 0, l: 1, ..data };
        for segment in
            [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss]
        {
            *segment = data;
        }
        special.cr0 = CR0_PE_MP_ET_NE_PG;
        special.cr3 = TABLES;
        special.cr4 = CR4_PAE_OSFXSR_OSXMMEXCPT;
        special.efer = EFER_LME_LMA;
    }

    /// None if KVM cannot be opened or gives no CPUID.
    pub fn offer() -> Option<Offer> {
        let kvm = Kvm::new().ok()?;
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).ok()?;
        let leaf = |function| {
            cpuid.as_slice().iter().find(|entry| (entry.function, entry.index) == (function, 0))
        };
        Some(Offer {
            perf_capabilities: perf_capabilities(&kvm),
            pmu_version: leaf(0xa).map_or(0, |entry| entry.eax as u8),
            arch_lbr: leaf(7).is_some_and(|entry| entry.edx & 1 << 19 != 0),
            amd_extended: leaf(0x8000_0022).map_or(0, |entry| entry.eax),
        })
    }

    fn perf_capabilities(kvm: &Kvm) -> Option<u64> {
        let known = kvm.get_msr_feature_index_list().ok()?;
        if !known.as_slice().contains(&MSR_IA32_PERF_CAPABILITIES) {
            return None;
        }
        let entry = kvm_msr_entry { index: MSR_IA32_PERF_CAPABILITIES, ..Default::default() };
        let mut values = Msrs::from_entries(&[entry]).ok()?;
        (kvm.get_msrs(&mut values).ok()? == 1).then(|| values.as_slice()[0].data)
    }

    /// The pages that the guest sees.
    struct Memory(*mut u8);

    impl Memory {
        fn new() -> Result<Memory, KvmError> {
            // SAFETY: a new private mapping; nothing else knows its address.
            let pages = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    PAGES * PAGE,
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
            let memory = Memory(pages.cast());
            memory.write(0, &CODE);
            let page = PAGE as u64;
            for (table, entry) in [
                (TABLES, (TABLES + page) | PRESENT_WRITABLE),
                (TABLES + page, (TABLES + 2 * page) | PRESENT_WRITABLE),
                (TABLES + 2 * page, LARGE | PRESENT_WRITABLE),
            ] {
                memory.write(table as usize, &entry.to_le_bytes());
            }
            Ok(memory)
        }

        fn write(&self, at: usize, bytes: &[u8]) {
            assert!(at + bytes.len() <= PAGES * PAGE);
            // SAFETY: within the mapping, which is writable; no guest runs yet.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) };
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: mapped in `new`, unmapped nowhere else.
            unsafe { libc::munmap(self.0.cast(), PAGES * PAGE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::offers_virtualization;

    #[test]
    fn reads_virtualization_from_the_cpus_flags() {
        for (cpuinfo, expected) in [
            ("flags\t\t: fpu vmx lm\n", true),
            ("processor\t: 0\nflags\t\t: fpu svm\n\nprocessor\t: 1\n", true),
            ("flags\t\t: fpu svm_lock\nvmx flags\t: vnmi\n", false),
            ("model name\t: svm: a CPU\nflags\t\t: fpu\n", false),
            ("", false),
        ] {
            assert_eq!(offers_virtualization(cpuinfo), expected, "{cpuinfo}");
        }
    }
}
