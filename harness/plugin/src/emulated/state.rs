// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps the registers of all vCPUs in a file. The host copies it with a snapshot of the guest.

use super::{Lbr, ring::Registers};
use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    ptr,
};

/// Identifies the layout, and the records that the file is of.
const MAGIC: &str = "TLBRREG2";
const HEADER: usize = 64;

/// Maps the file; makes it if there is none. The mapping lives as long as QEMU.
pub fn map(path: &Path, lbr: Lbr, vcpus: usize) -> Result<Vec<&'static mut Registers>, String> {
    open(path, lbr, vcpus).map_err(|error| format!("{}: {error}", path.display()))
}

fn open(path: &Path, lbr: Lbr, vcpus: usize) -> io::Result<Vec<&'static mut Registers>> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let length = HEADER + vcpus * size_of::<Registers>();
    let mut header = [0; HEADER];
    let text = format!("{MAGIC} {lbr} {vcpus}");
    header[..text.len()].copy_from_slice(text.as_bytes());
    if file.metadata()?.len() == 0 {
        file.set_len(length as u64)?;
        file.write_all_at(&header, 0)?;
    }
    let mut found = [0; HEADER];
    file.read_exact_at(&mut found, 0)?;
    if found != header || file.metadata()?.len() != length as u64 {
        return Err(io::Error::other(format!("it is not the registers of {lbr} of {vcpus} vCPUs")));
    }
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping of a file that is this long.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, access, shared, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: each is within the mapping, aligned, of its own, and valid for any bytes.
    let of = |vcpu: usize| unsafe {
        &mut *start.byte_add(HEADER + vcpu * size_of::<Registers>()).cast::<Registers>()
    };
    Ok((0..vcpus).map(of).collect())
}
