// SPDX-License-Identifier: MIT OR Apache-2.0
//! After a restore: the clock shows the time of the snapshot, and all guests restored from one
//! snapshot would draw the same random numbers.

use crate::changes;
use nix::sys::time::TimeSpec;
use std::{io, os::fd::AsRawFd, time::Duration};
use tramplab_protocol::message::GuestError;

/// Sets the wall clock. Measurements use the monotonic clock, which continues.
pub fn set_clock(realtime_ns: u64) -> Result<(), GuestError> {
    let now = TimeSpec::from_duration(Duration::from_nanos(realtime_ns));
    changes::set_clock(now)
        .map_err(|errno| GuestError::Failed(format!("failed to set the clock: {errno}")))
}

const SEED: usize = 32;

/// `struct rand_pool_info` (include/uapi/linux/random.h) with its bytes.
#[repr(C)]
struct Pool {
    entropy_bits: libc::c_int,
    bytes: libc::c_int,
    buffer: [u8; SEED],
}

// random(4): RNDADDENTROPY is `_IOW('R', 0x03, int[2])`, RNDRESEEDCRNG `_IO('R', 0x07)`.
nix::ioctl_write_ptr_bad!(
    add_entropy,
    nix::request_code_write!(b'R', 0x03, size_of::<[libc::c_int; 2]>()),
    Pool
);
nix::ioctl_none!(reseed, b'R', 0x07);

/// Mixes the seed into the kernel's random numbers and restarts their generator from it.
pub fn seed(seed: &[u8; SEED]) -> Result<(), GuestError> {
    let failed = |error: io::Error| {
        GuestError::Failed(format!("failed to seed the random numbers: {error}"))
    };
    let device = changes::open("/dev/urandom").map_err(failed)?;
    let pool =
        Pool { entropy_bits: 8 * SEED as libc::c_int, bytes: SEED as libc::c_int, buffer: *seed };
    // SAFETY: the descriptor is open, and the structure has the length it states.
    unsafe { add_entropy(device.as_raw_fd(), &pool) }.map_err(|errno| failed(errno.into()))?;
    // SAFETY: it takes no argument.
    unsafe { reseed(device.as_raw_fd()) }.map_err(|errno| failed(errno.into()))?;
    Ok(())
}
