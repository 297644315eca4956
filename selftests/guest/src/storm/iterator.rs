// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replaces the programs of links. The kernel does so for links of iterators, and refuses it for
//! all other tracing links.

use crate::bpf::{self, BpfError, Kind, Link};
use crate::kernel_btf::KernelBtf;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The function that stands for the iterator over tasks.
const FUNCTION: &str = "bpf_iter_task";

/// An iterator of this kernel.
#[derive(Clone, Copy)]
pub struct Iterator(u32);

impl Iterator {
    pub fn find(btf: &KernelBtf) -> Option<Iterator> {
        btf.function(FUNCTION).map(Iterator)
    }

    fn load(self) -> Result<OwnedFd, BpfError> {
        let (program, attach) = (libbpf_sys::BPF_PROG_TYPE_TRACING, libbpf_sys::BPF_TRACE_ITER);
        bpf::load(Kind { program, attach }, self.0, bpf::EMPTY)
    }

    /// Makes a link, replaces its program, and closes it.
    pub fn update(self) -> Result<(), BpfError> {
        let (old, new) = (self.load()?, self.load()?);
        let link = bpf::link_tracing(old.as_fd(), libbpf_sys::BPF_TRACE_ITER)?;
        drop(old);
        replace(&link, new.as_fd())
    }

    /// Asks the kernel to replace the program of a link that it does not do so for.
    pub fn update_other(self, link: &Link) -> Result<(), BpfError> {
        replace(link, self.load()?.as_fd())
    }
}

fn replace(link: &Link, program: BorrowedFd<'_>) -> Result<(), BpfError> {
    let (link, program) = (link.as_fd().as_raw_fd(), program.as_raw_fd());
    // SAFETY: there are no options.
    let result = unsafe { libbpf_sys::bpf_link_update(link, program, std::ptr::null()) };
    if result < 0 { Err(BpfError::new("update a link", -result, "")) } else { Ok(()) }
}
