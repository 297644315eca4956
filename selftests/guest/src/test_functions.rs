// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's functions and the tracepoint that are hit unless the user names another.

use tramplab_protocol::mechanism::SYSCALL_PREFIXES;

/// The kernel's own test function (net/bpf/test_run.c). Every kernel with BPF_SYSCALL and NET has
/// it.
pub const TEST_FUNCTION: &str = "bpf_fentry_test1";
pub const MODIFY_FUNCTION: &str = "bpf_modify_return_test";
/// A hook that every prctl(2) passes. Hooks of security modules are modifiable. For kernels whose
/// test function is not (before 6.2 without CONFIG_FUNCTION_ERROR_INJECTION).
pub const MODIFY_HOOK: &str = "security_task_prctl";
/// The same hook as BPF programs attach to it.
pub const LSM_FUNCTION: &str = "bpf_lsm_task_prctl";
pub const TRACEPOINT: &str = "task_rename";
pub const TRACEPOINT_FUNCTION: &str = "__set_task_comm";
/// The tracepoint at the begin of all system calls, and the event of one that does little.
pub const SYSCALL_TRACEPOINT: &str = "sys_enter";
pub const SYSCALL_EVENT: &str = "syscalls/sys_enter_getpgid";
/// Prefix of the kernel's functions for system calls.
#[cfg(target_arch = "x86_64")]
pub const SYSCALL_PREFIX: &str = SYSCALL_PREFIXES[0];
#[cfg(target_arch = "aarch64")]
pub const SYSCALL_PREFIX: &str = SYSCALL_PREFIXES[1];
/// A system call that does little. It takes an argument: those without one are in BTF by another
/// name on x86-64.
#[cfg(target_arch = "x86_64")]
pub const SYSCALL_FUNCTION: &str = "__x64_sys_getpgid";
#[cfg(target_arch = "aarch64")]
pub const SYSCALL_FUNCTION: &str = "__arm64_sys_getpgid";
/// All functions whose hits are measured.
pub const FUNCTIONS: [&str; 6] = [
    TEST_FUNCTION,
    MODIFY_FUNCTION,
    MODIFY_HOOK,
    TRACEPOINT_FUNCTION,
    LSM_FUNCTION,
    SYSCALL_FUNCTION,
];
