// SPDX-License-Identifier: MIT OR Apache-2.0
//! The BPF programs that trace the kernel at this moment, and their links.

use crate::bpf;
use std::os::fd::AsRawFd;

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
    let of_link = |fd| {
        let mut info = libbpf_sys::bpf_link_info::default();
        let mut length = size_of::<libbpf_sys::bpf_link_info>() as u32;
        // SAFETY: both outlive the call, and the length is the structure's.
        let result = unsafe { libbpf_sys::bpf_link_get_info_by_fd(fd, &mut info, &mut length) };
        result == 0 && LINKS.contains(&info.type_)
    };
    count(libbpf_sys::bpf_link_get_next_id, libbpf_sys::bpf_link_get_fd_by_id, of_link)
}

/// The number of programs, attached or not. None if the kernel does not tell.
pub fn programs() -> Option<usize> {
    let of_program = |fd| {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
        // SAFETY: both outlive the call, and the length is the structure's.
        let result = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd, &mut info, &mut length) };
        result == 0 && PROGRAMS.contains(&info.type_)
    };
    count(libbpf_sys::bpf_prog_get_next_id, libbpf_sys::bpf_prog_get_fd_by_id, of_program)
}

fn count(
    next: unsafe extern "C" fn(u32, *mut u32) -> i32,
    open: unsafe extern "C" fn(u32) -> i32,
    is_tracing: impl Fn(i32) -> bool,
) -> Option<usize> {
    let (mut id, mut found) = (0, 0);
    loop {
        // SAFETY: the id outlives the call.
        match unsafe { next(id, &mut id) } {
            0 => {}
            error if error == -libc::ENOENT => return Some(found),
            _ => return None,
        }
        // SAFETY: takes no pointer.
        let fd = unsafe { open(id) };
        // It may be gone meanwhile.
        if let Ok(fd) = bpf::owned(fd.into(), "open a program or link") {
            found += usize::from(is_tracing(fd.as_raw_fd()));
        }
    }
}
