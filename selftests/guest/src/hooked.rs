// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions with hooks of ftrace: those of others, as long as the agent has attached nothing.

use crate::role;
use std::fs;
use tramplab_protocol::message::GuestError;
use tramplab_protocol::pattern;

pub const FILE: &str = "/sys/kernel/tracing/enabled_functions";

/// On the user's own machine, rejects hits of a function that somebody else traces. Call it before
/// the first attach to the function. Without the list, nobody traces by ftrace.
pub fn check(function: &str) -> Result<(), GuestError> {
    match role::is_own_machine() {
        true => untraced(function, &fs::read_to_string(FILE).unwrap_or_default()),
        false => Ok(()),
    }
}

fn untraced(function: &str, enabled: &str) -> Result<(), GuestError> {
    match functions(enabled).any(|traced| traced == pattern::split(function)) {
        false => Ok(()),
        true => Err(GuestError::Failed(format!(
            "another tracer is attached to {function}: its branches and its time would be counted; \
             detach it, or measure {function} in a guest (--vm qemu)"
        ))),
    }
}

/// The modules and names in the list. The lines of a function's hooks are indented.
pub fn functions(enabled: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    enabled.lines().filter(|line| !line.starts_with([' ', '\t'])).filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
        Some((module, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As 6.12 writes it.
    const ENABLED: &str = "\
vfs_read (1) R   D   M \ttramp: ftrace_regs_caller+0x0/0x70 (call_direct_funcs+0x0/0x20)
\tdirect(jmp)-->bpf_trampoline_6442531294+0x0/0xdc
kvm_vcpu_ioctl [kvm] (2)           \tsubops: (ent:a+0x0/0x1 ret:b+0x0/0x1)
\tops: c (d)
";

    #[test]
    fn names_the_function_that_others_trace() {
        let expected = [(None, "vfs_read"), (Some("kvm"), "kvm_vcpu_ioctl")];
        assert_eq!(functions(ENABLED).collect::<Vec<_>>(), expected);
        for (function, is_traced) in [
            ("vfs_read", true),
            ("vfs_rea", false),
            ("vfs_write", false),
            ("kvm:kvm_vcpu_ioctl", true),
            ("kvm_vcpu_ioctl", false),
        ] {
            match untraced(function, ENABLED) {
                Ok(()) => assert!(!is_traced, "{function}"),
                Err(GuestError::Failed(why)) => {
                    let text = format!("another tracer is attached to {function}: ");
                    assert!(is_traced && why.starts_with(&text), "{why}");
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(untraced("vfs_read", ""), Ok(()));
    }
}
