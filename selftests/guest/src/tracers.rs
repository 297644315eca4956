// SPDX-License-Identifier: MIT OR Apache-2.0
//! The BPF programs that trace the kernel at this moment, and their links.

use crate::bpf::{self, NextId};
use std::os::fd::{AsFd, BorrowedFd};

const LINKS: [u32; 5] = [
    libbpf_sys::BPF_LINK_TYPE_RAW_TRACEPOINT,
    libbpf_sys::BPF_LINK_TYPE_TRACING,
    libbpf_sys::BPF_LINK_TYPE_PERF_EVENT,
    libbpf_sys::BPF_LINK_TYPE_KPROBE_MULTI,
    libbpf_sys::BPF_LINK_TYPE_UPROBE_MULTI,
];
const PROGRAMS: [u32; 6] = [
    libbpf_sys::BPF_PROG_TYPE_KPROBE,
    libbpf_sys::BPF_PROG_TYPE_TRACEPOINT,
    libbpf_sys::BPF_PROG_TYPE_PERF_EVENT,
    libbpf_sys::BPF_PROG_TYPE_RAW_TRACEPOINT,
    libbpf_sys::BPF_PROG_TYPE_TRACING,
    libbpf_sys::BPF_PROG_TYPE_LSM,
];

/// The number of links. None if the kernel does not tell.
pub fn links() -> Option<usize> {
    count(libbpf_sys::bpf_link_get_next_id, libbpf_sys::bpf_link_get_fd_by_id, |link| {
        bpf::link_info(link, "ask for a link's type").is_ok_and(|info| LINKS.contains(&info.type_))
    })
}

/// The number of programs, attached or not. None if the kernel does not tell.
pub fn programs() -> Option<usize> {
    count(libbpf_sys::bpf_prog_get_next_id, libbpf_sys::bpf_prog_get_fd_by_id, |program| {
        let info = bpf::program_info(program, Default::default(), "ask for a program's type");
        info.is_ok_and(|info| PROGRAMS.contains(&info.type_))
    })
}

fn count(
    next: NextId,
    open: unsafe extern "C" fn(u32) -> i32,
    is_tracing: impl Fn(BorrowedFd<'_>) -> bool,
) -> Option<usize> {
    let mut found = 0;
    for id in bpf::ids(next) {
        // SAFETY: takes no pointer.
        let fd = unsafe { open(id.ok()?) };
        // It may be gone meanwhile.
        if let Ok(fd) = bpf::owned(fd.into(), "open a program or link") {
            found += usize::from(is_tracing(fd.as_fd()));
        }
    }
    Some(found)
}
