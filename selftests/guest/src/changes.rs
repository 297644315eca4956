// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of the machine outside this process. All of them go through here, as `clippy.toml`
//! demands. On the user's own machine, all are refused.

#![allow(clippy::disallowed_methods)]

use crate::role;
use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags};
use nix::mount::MsFlags;
use nix::sys::reboot::RebootMode;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::time::TimeSpec;
use std::convert::Infallible;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

fn permitted() -> nix::Result<()> {
    if role::is_own_machine() { Err(Errno::EPERM) } else { Ok(()) }
}

pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    permitted()?;
    fs::write(path, contents)
}

/// Opens a device.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    permitted()?;
    File::options().read(true).write(true).open(path)
}

pub fn make_folder(path: impl AsRef<Path>) -> io::Result<()> {
    permitted()?;
    fs::create_dir(path)
}

pub fn make_folders(path: impl AsRef<Path>) -> io::Result<()> {
    permitted()?;
    fs::create_dir_all(path)
}

pub fn remove_folder(path: impl AsRef<Path>) -> io::Result<()> {
    permitted()?;
    fs::remove_dir(path)
}

/// Mounts a file system of the kernel's.
pub fn mount(source: &str, target: &str, kind: &str) -> nix::Result<()> {
    permitted()?;
    nix::mount::mount(Some(source), target, Some(kind), MsFlags::empty(), None::<&str>)
}

/// Mounts a file over another.
pub fn mount_over(source: &str, target: &str) -> nix::Result<()> {
    permitted()?;
    nix::mount::mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
}

pub fn load_module(file: &File) -> nix::Result<()> {
    permitted()?;
    nix::kmod::finit_module(file, c"", ModuleInitFlags::empty())
}

/// Removes a module that nobody uses.
pub fn remove_module(name: &CStr) -> nix::Result<()> {
    permitted()?;
    nix::kmod::delete_module(name, DeleteModuleFlags::O_NONBLOCK)
}

/// Brings the network interface `lo` up.
pub fn raise_loopback() -> nix::Result<()> {
    permitted()?;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: plain data, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request outlives the call, which reads it.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    Errno::result(result).map(drop)
}

pub fn set_clock(now: TimeSpec) -> nix::Result<()> {
    permitted()?;
    nix::time::clock_settime(nix::time::ClockId::CLOCK_REALTIME, now)
}

pub fn reboot(mode: RebootMode) -> nix::Result<Infallible> {
    permitted()?;
    nix::sys::reboot::reboot(mode)
}
