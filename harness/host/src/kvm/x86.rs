// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest runs in long mode and uses an SSE register. That needs a real CPU: some nested KVMs
//! have only their software emulator, which runs real mode and then fails every kernel.

use super::{
    KvmError, Offer,
    guest::{ANSWER, Memory, Step, failed},
};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, Msrs, kvm_msr_entry, kvm_segment, kvm_sregs};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

const PORT: u16 = 0x10;
/// `paddd %xmm0, %xmm0; mov $0x2a, %al; out %al, $0x10; hlt`
const CODE: [u8; 9] = [0x66, 0x0f, 0xfe, 0xc0, 0xb0, ANSWER, 0xe6, PORT as u8, 0xf4];

const PAGE: u64 = 4096;
/// Behind the code: three levels of page tables that map 2 MiB one to one.
const TABLES: u64 = PAGE;
const PRESENT_WRITABLE: u64 = 0b11;
const LARGE: u64 = 1 << 7;

const CR0_PE_MP_ET_NE_PG: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 31;
const CR4_PAE_OSFXSR_OSXMMEXCPT: u64 = 1 << 5 | 1 << 9 | 1 << 10;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;

const MSR_IA32_PERF_CAPABILITIES: u32 = 0x345;

pub fn fill(memory: &Memory) {
    memory.write(0, &CODE);
    for (table, entry) in [
        (TABLES, (TABLES + PAGE) | PRESENT_WRITABLE),
        (TABLES + PAGE, (TABLES + 2 * PAGE) | PRESENT_WRITABLE),
        (TABLES + 2 * PAGE, LARGE | PRESENT_WRITABLE),
    ] {
        memory.write(table as usize, &entry.to_le_bytes());
    }
}

pub fn prepare(kvm: &Kvm, _: &VmFd, vcpu: &VcpuFd) -> Result<(), KvmError> {
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
    vcpu.set_regs(&registers).map_err(failed("set the vCPU's registers"))
}

pub fn step(exit: &VcpuExit) -> Option<Step> {
    match exit {
        VcpuExit::IoOut(PORT, [ANSWER]) => Some(Step::Answer),
        VcpuExit::Hlt => Some(Step::PowerOff),
        _ => None,
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
