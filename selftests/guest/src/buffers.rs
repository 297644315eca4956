// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buffers through which a measured program hands records to user space. They are read between
//! hits, as the program's own user space would read them, or each later hit would find them full.
//!
//! Reading makes no system call, which may be a hit, and takes the same time with the program
//! attached or not.

use crate::bpf::{self, BpfError};
use crate::mapping::Mapping;
use crate::object::{Buffer, BufferKind};
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use tramplab_protocol::message::GuestError;

/// Bytes of the data area of a perf event's buffer.
const PERF_BYTES: usize = 1 << 18;

/// Bytes of a record's header in a ring buffer (`BPF_RINGBUF_HDR_SZ`).
const HEADER: u64 = 8;

/// All buffers of a program.
#[derive(Debug, Default)]
pub struct Buffers {
    rings: Vec<Ring>,
    perf: Vec<Perf>,
}

/// A ring buffer's pages of positions.
#[derive(Debug)]
struct Ring {
    consumer: Mapping,
    producer: Mapping,
    size: u64,
    /// The producer's position when it was last read.
    read: Cell<u64>,
}

/// The event of a CPU in a perf event array.
#[derive(Debug)]
struct Perf {
    buffer: Mapping,
    _event: OwnedFd,
}

impl Buffers {
    /// Opens the buffers of these maps.
    pub fn open(maps: &[Buffer]) -> Result<Buffers, GuestError> {
        let mut all = Buffers::default();
        for map in maps {
            // SAFETY: the map's descriptor belongs to the object, and is open while it lives.
            let fd = unsafe { BorrowedFd::borrow_raw(map.fd) };
            let failed = |what: String| {
                GuestError::failed(format!("failed to read the buffer {}: {what}", map.name))
            };
            match map.kind {
                BufferKind::Ring => {
                    let ring = Ring::open(fd, map.entries);
                    all.rings.push(ring.map_err(|error| failed(error.to_string()))?);
                }
                BufferKind::Perf => {
                    for cpu in 0..map.entries {
                        match Perf::open(fd, cpu) {
                            Ok(perf) => all.perf.push(perf),
                            // An entry of a CPU that is not there. The first one took the same
                            // arguments.
                            Err(error) if error.is_no_cpu() && cpu > 0 => {}
                            Err(error) => return Err(failed(error.to_string())),
                        }
                    }
                }
            }
        }
        Ok(all)
    }

    /// Reads all that is in them.
    pub fn empty(&self) {
        self.rings.iter().for_each(Ring::empty);
        self.perf.iter().for_each(Perf::empty);
    }
}

impl Ring {
    fn open(map: BorrowedFd<'_>, size: u32) -> std::io::Result<Ring> {
        let page = page_size();
        Ok(Ring {
            consumer: Mapping::new(map, page)?,
            producer: Mapping::reading(map, page, page)?,
            size: size.into(),
            read: Cell::new(0),
        })
    }

    fn empty(&self) {
        // SAFETY: both pages are mapped while `self` lives, and begin with an aligned position.
        unsafe {
            let produced = ptr::read_volatile(self.producer.as_ptr::<u64>());
            if produced == self.read.get() {
                // Nothing is new, so the newest records stay.
                return;
            }
            let position = consumed(self.read.replace(produced), produced, self.size);
            ptr::write_volatile(self.consumer.as_ptr::<u64>(), position);
        }
    }
}

/// The position up to which records were read. The newest ones stay: the kernel wakes a reader who
/// has read up to the record that it commits, and then each hit has an interrupt in it. If they
/// leave no room for as many again, they are read, too. The position is then 8 bytes past the end,
/// so that no record is committed there.
fn consumed(before: u64, produced: u64, size: u64) -> u64 {
    let newest = produced.saturating_sub(before);
    match newest.saturating_mul(2) <= size {
        true => before,
        false => produced.saturating_add(HEADER),
    }
}

impl Perf {
    fn open(map: BorrowedFd<'_>, cpu: u32) -> Result<Perf, BpfError> {
        let event = bpf::open_output(cpu)?;
        let failed = |error: std::io::Error| {
            BpfError::new("map a perf event", error.raw_os_error().unwrap_or(0), "")
        };
        // The kernel counts pages: the first one has the positions.
        let buffer = Mapping::new(event.as_fd(), page_size() + PERF_BYTES).map_err(failed)?;
        bpf::set_element(map, cpu, event.as_raw_fd())?;
        Ok(Perf { buffer, _event: event })
    }

    fn empty(&self) {
        let page = self.buffer.as_ptr::<libbpf_sys::perf_event_mmap_page>();
        // SAFETY: the page is mapped while `self` lives. Positions are aligned.
        unsafe {
            let head = ptr::read_volatile(&raw const (*page).data_head);
            ptr::write_volatile(&raw mut (*page).data_tail, head);
        }
    }
}

fn page_size() -> usize {
    // SAFETY: takes no pointer.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_the_newest_records_if_as_many_fit_again() {
        for (before, produced, size, expected) in [
            (0, 0, 4096, 0),
            (0, 16, 4096, 0),
            (16, 32, 4096, 16),
            (0, 2048, 4096, 0),
            (0, 2056, 4096, 2064),
            (4096, 8192, 4096, 8200),
        ] {
            assert_eq!(consumed(before, produced, size), expected, "{before} {produced} {size}");
        }
    }
}
