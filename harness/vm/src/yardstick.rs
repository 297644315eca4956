// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times guests without tramplab, for `cargo xtask bench`.

use super::{Spec, backends::Root};
use std::{io, thread, time::Duration};

const POLL: Duration = Duration::from_millis(2);

/// The time from start to end of a guest that does nothing.
pub fn time(spec: &Spec, root: &Root, limit: Duration) -> io::Result<Duration> {
    let (mut process, started) = root.start_idle(spec)?;
    loop {
        match process.exited() {
            Some(status) if process.is_good_end(&status) => return Ok(started.elapsed()),
            Some(status) => {
                return Err(io::Error::other(format!("{} ended with {status}", process.name())));
            }
            None if started.elapsed() > limit => {
                let (name, limit) = (process.name(), limit.as_secs());
                return Err(io::Error::other(format!("{name} did not end within {limit} s")));
            }
            None => thread::sleep(POLL),
        }
    }
}
