// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of the machine outside this process. All of them go through here, as `clippy.toml`
//! demands. On a machine that must stay as it is, all are refused.

#![allow(clippy::disallowed_methods)]

use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags};
use nix::mount::MsFlags;
use nix::sys::reboot::RebootMode;
use nix::sys::time::TimeSpec;
use std::convert::Infallible;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

static REFUSED: AtomicBool = AtomicBool::new(false);

/// Refuses all changes from now on.
pub fn refuse() {
    REFUSED.store(true, Ordering::Relaxed);
}

/// Returns true on a machine that must stay as it is.
pub fn are_refused() -> bool {
    REFUSED.load(Ordering::Relaxed)
}

fn permitted() -> nix::Result<()> {
    if are_refused() { Err(Errno::EPERM) } else { Ok(()) }
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

pub fn set_clock(now: TimeSpec) -> nix::Result<()> {
    permitted()?;
    nix::time::clock_settime(nix::time::ClockId::CLOCK_REALTIME, now)
}

pub fn reboot(mode: RebootMode) -> nix::Result<Infallible> {
    permitted()?;
    nix::sys::reboot::reboot(mode)
}
