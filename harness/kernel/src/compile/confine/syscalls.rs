// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls that a confined build may not make.
//!
//! Namespaces hide processes, the network and files. They do not hide keyrings, sockets of virtual
//! machines, the kernel's log, or the parts of the kernel that have had the most security holes. A
//! build needs none of them. Refused calls return ENOSYS, so that libc falls back from clone3() to
//! clone(), whose flags a filter can see.

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use std::{collections::BTreeMap, env};

/// Refused with any arguments.
const REFUSED: [libc::c_long; 12] = [
    // Keyrings have no namespace.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // Its operations open sockets that no filter sees.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // The host's kernel log.
    libc::SYS_syslog,
    libc::SYS_setns,
    // Its flags are in memory, where no filter sees them.
    libc::SYS_clone3,
];

/// Allowed socket families. AF_VSOCK, AF_ALG and AF_QIPCRTR ignore the namespace.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Calls of x86-64's x32 ABI have the same numbers with this bit set.
const X32: libc::c_long = 0x4000_0000;

/// Returns the filter for this host's architecture. Calls of its 32-bit ABI kill the caller.
pub fn filter() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|&number| (number, Vec::new())).collect();
    let other_family = FAMILIES
        .iter()
        .map(|&family| condition(0, SeccompCmpOp::Ne, u64::from(family.unsigned_abs())));
    rules.insert(libc::SYS_socket, vec![rule(other_family.collect())?]);
    // The creator of a user namespace has all privileges in it.
    let new_user = u64::from(libc::CLONE_NEWUSER.unsigned_abs());
    for number in [libc::SYS_clone, libc::SYS_unshare] {
        let is_set = condition(0, SeccompCmpOp::MaskedEq(new_user), new_user);
        rules.insert(number, vec![rule(vec![is_set])?]);
    }
    if cfg!(target_arch = "x86_64") {
        rules.extend(rules.clone().into_iter().map(|(number, rules)| (number | X32, rules)));
    }
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
        TargetArch::try_from(env::consts::ARCH)?,
    )?;
    Ok(filter.try_into()?)
}

/// The condition's errors are about the argument's number, which is right here.
fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

/// Holds where all conditions do.
fn rule(
    conditions: Vec<Result<SeccompCondition, BackendError>>,
) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>()?)
}

/// As the kernel reads it: `struct sock_filter`, one after the other.
pub fn bytes(program: &BpfProgram) -> Vec<u8> {
    let words = program.iter().flat_map(|step| {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&step.code.to_ne_bytes());
        bytes[2] = step.jt;
        bytes[3] = step.jf;
        bytes[4..].copy_from_slice(&step.k.to_ne_bytes());
        bytes
    });
    words.collect()
}
