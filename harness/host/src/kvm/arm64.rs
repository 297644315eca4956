// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest runs in EL1 without an MMU. It writes where no memory is, and powers off by PSCI.

use super::{
    KvmError,
    guest::{ANSWER, Memory, Step, failed},
};
use kvm_bindings::{
    KVM_ARM_VCPU_PSCI_0_2, KVM_REG_ARM_CORE, KVM_REG_ARM64, KVM_REG_SIZE_U64,
    KVM_SYSTEM_EVENT_SHUTDOWN, kvm_vcpu_init,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

const PORT: u64 = 0x10_0000;
const PSCI_SYSTEM_OFF: u64 = 0x8400_0008;
/// `mov w2, #0x2a; str w2, [x1]; hvc #0; b .`
const CODE: [u32; 4] = [0x5280_0002 | (ANSWER as u32) << 5, 0xb900_0022, 0xd400_0002, 0x1400_0000];

pub fn fill(memory: &Memory) {
    for (index, instruction) in CODE.iter().enumerate() {
        memory.write(4 * index, &instruction.to_le_bytes());
    }
}

/// A new vCPU begins at address 0.
pub fn prepare(_: &Kvm, vm: &VmFd, vcpu: &VcpuFd) -> Result<(), KvmError> {
    let mut kind = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut kind).map_err(failed("read what CPU KVM offers"))?;
    kind.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2;
    vcpu.vcpu_init(&kind).map_err(failed("give the vCPU its features"))?;
    for (register, value) in [(0, PSCI_SYSTEM_OFF), (1, PORT)] {
        vcpu.set_one_reg(general(register), &value.to_le_bytes())
            .map_err(failed("set the vCPU's registers"))?;
    }
    Ok(())
}

/// KVM's name of a general register: its offset in words of 4 bytes.
fn general(register: u64) -> u64 {
    KVM_REG_ARM64 | KVM_REG_SIZE_U64 | u64::from(KVM_REG_ARM_CORE) | (2 * register)
}

pub fn step(exit: &VcpuExit) -> Option<Step> {
    match exit {
        VcpuExit::MmioWrite(PORT, [ANSWER, 0, 0, 0]) => Some(Step::Answer),
        VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_SHUTDOWN, _) => Some(Step::PowerOff),
        _ => None,
    }
}
