// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared with the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A file's memory, mapped until dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Maps the first bytes for reading and writing.
    pub fn new(file: BorrowedFd<'_>, length: usize) -> io::Result<Mapping> {
        Mapping::with(file, libc::PROT_READ | libc::PROT_WRITE, 0, length)
    }

    /// Maps bytes for reading.
    pub fn reading(file: BorrowedFd<'_>, offset: usize, length: usize) -> io::Result<Mapping> {
        Mapping::with(file, libc::PROT_READ, offset, length)
    }

    fn with(
        file: BorrowedFd<'_>,
        protection: libc::c_int,
        offset: usize,
        length: usize,
    ) -> io::Result<Mapping> {
        // SAFETY: a new mapping, wherever the kernel finds room.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: NonNull::new(start.cast()).expect("never mapped at 0"), length })
    }

    /// The mapping's first bytes as a structure. The kernel reads and writes them concurrently: use
    /// volatile or atomic accesses.
    pub fn as_ptr<T>(&self) -> *mut T {
        assert!(size_of::<T>() <= self.length, "the mapping is too short for the structure");
        self.start.as_ptr().cast()
    }

    /// The bytes from `offset` on.
    ///
    /// # Safety
    ///
    /// The kernel must not write them while the slice lives.
    pub unsafe fn bytes(&self, offset: usize) -> &[u8] {
        assert!(offset <= self.length);
        // SAFETY: inside the mapping, which lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), self.length - offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; all borrows have ended.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
